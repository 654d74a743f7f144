"""Looking at folders: what is in them, their repositories, what they are made of; here, and on hosts, alike."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from faces import Embedded, Host, Local, Real
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from repositories import by_tree, commit, git, make_repository, make_tree

from albedo_provisioner import Location, browse
from albedo_provisioner.errors import (
    FolderError,
    LocationError,
    NoPermissionError,
    NoSuchFolderError,
    NotAFolderError,
    SignInError,
    UnreachableError,
    UnsupportedHostError,
)

if TYPE_CHECKING:
    from conftest import Workspace


@pytest.fixture
def folder_in_memory() -> Iterator[Path]:
    """Return a folder of this machine, and so of embedded hosts, in which many files are made quickly."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as name:
        yield Path(name).resolve()


def names(listing: browse.Listing) -> list[str]:
    return [entry.name for entry in listing.entries]


def by_name(listing: browse.Listing) -> dict[str, browse.Entry]:
    return {entry.name: entry for entry in listing.entries}


class TestList:
    def test_folders_come_first_and_say_what_a_picker_wants(self, any_host: Host) -> None:
        """M5."""
        folder = any_host.make_folder("proj")
        for name in ("b", "A", ".config", "with jj/.jj"):
            any_host.make_folder(f"proj/{name}")
        make_repository(any_host, "proj/c")
        any_host.write("proj/0.txt", "12345")
        os.symlink("A", folder / "to a")
        os.symlink("nowhere", folder / "broken")
        os.symlink("circle", folder / "circle")
        os.utime(folder / "b", (1e9, 1e9))
        listing = browse.list(any_host.location("proj"))
        assert names(listing) == [".config", "A", "b", "c", "to a", "with jj", "broken", "circle"]
        found = by_name(listing)
        assert str(listing.location) == any_host.location("proj")
        assert str(found["b"].location) == any_host.location("proj/b")
        assert found["b"].modified == 1e9
        assert [name for name in found if found[name].hidden] == [".config"]
        assert {name: found[name].vcs for name in found if found[name].vcs} == {"c": "git", "with jj": "jj"}
        assert (found["to a"].kind, found["to a"].link, found["to a"].error) == ("folder", True, None)
        assert found["broken"].error == "no such file or directory"
        assert found["circle"].error == "too many levels of symbolic links"
        assert not listing.truncated
        entries = browse.list(any_host.location("proj"), files=True).entries
        assert [(entry.name, entry.kind, entry.size) for entry in entries if entry.kind == "file"] == [
            ("0.txt", "file", 5)
        ]

    def test_a_folder_that_may_not_be_read_is_listed_and_says_so(self, sshd_host: Real) -> None:
        sshd_host.make_folder("proj/shut").chmod(0)
        (entry,) = browse.list(sshd_host.location("proj")).entries
        assert (entry.name, entry.kind, entry.error) == ("shut", "folder", "permission denied")

    def test_any_name_leads_back_to_its_folder(self, any_host: Host) -> None:
        parent = any_host.make_folder("proj")
        strange = [b"line\nbreak", b"no \xff utf-8", "日本 x".encode(), b"-rf", b"~", b"$(id)"]
        for name in strange:
            os.mkdir(os.path.join(os.fsencode(parent), name))
            os.mkdir(os.path.join(os.fsencode(parent), name, b"inside"))
        any_host._own(parent)
        listing = browse.list(any_host.location("proj"))
        assert sorted(os.fsencode(name) for name in names(listing)) == sorted(strange)
        for entry in listing.entries:
            assert names(browse.list(any_host.location("proj"), below=entry.name)) == ["inside"]
            if entry.location is not None:
                assert names(browse.list(str(entry.location))) == ["inside"]
        assert [entry.name for entry in listing.entries if entry.location is None] == ["line\nbreak", "no \udcff utf-8"]
        as_json = json.loads(json.dumps(listing.to_dict(), ensure_ascii=False).encode())["entries"]
        raw = {each["name"]: base64.b64decode(each["raw"]) for each in as_json if each["raw"]}
        assert raw == {"no � utf-8": b"no \xff utf-8"}
        assert names(browse.list(any_host.location("proj"), below=b"no \xff utf-8")) == ["inside"]

    def test_two_thousand_of_ten_thousand_are_listed_the_same_here_and_there(
        self, embedded_host: Embedded, folder_in_memory: Path
    ) -> None:
        """M5."""
        (folder_in_memory / "first").touch()
        wanted = sorted(["first", *(f"{number % 7} {number}" for number in range(9999))])
        for name in wanted:
            if name != "first":
                os.link(folder_in_memory / "first", folder_in_memory / name)
        (folder_in_memory / "z").mkdir()
        there = browse.list(embedded_host.location(folder_in_memory), files=True)
        assert there.truncated
        assert names(there) == ["z", *wanted[:1999]], "folders first"
        assert same(there) == same(browse.list(folder_in_memory, files=True))
        assert browse.preview(embedded_host.location(folder_in_memory)).tree.files == 10_000

    def test_places_are_taken_as_people_type_them(
        self, embedded_host: Embedded, local_host: Local, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """H5: what is answered is absolute."""
        embedded_host.make_folder("proj/sub")
        local_host.make_folder("here/sub")
        monkeypatch.chdir(local_host.home / "here")
        for typed in (f"{embedded_host.alias}:", f"{embedded_host.alias}:~", f"{embedded_host.alias}:~/proj/.."):
            assert str(browse.list(typed).location) == embedded_host.location()
        for typed in (".", "sub/..", "~/here", "../here"):
            assert str(browse.list(typed).location) == str(local_host.home / "here")
        assert browse.list("./sub").location == Location(None, str(local_host.home / "here" / "sub"))
        for refused in ("sub", "", "-x", "gpu:relative", "sub\n/"):
            with pytest.raises(LocationError):
                browse.list(refused)
        for outside in ("/etc", b"/etc", "..", "../../etc", "sub/../../here"):
            with pytest.raises(LocationError):
                browse.list(".", below=outside)


class TestPreview:
    def test_counts_languages_and_changes_by_what_git_knows(self, any_host: Host) -> None:
        """M5."""
        folder = make_repository(
            any_host,
            "proj",
            {
                "src/a.py": "x" * 100,
                "src/deep/er/b.py": "x" * 50,
                "c.ipynb": "{}",
                "Makefile": "x" * 70,
                "data.json": "x" * 1000,
                "README": "x" * 1000,
                "vendor/big.js": "x" * 5000,
                ".gitattributes": "vendor/** linguist-vendored\n*.made.py linguist-generated\n",
                ".gitignore": "ignored/\n",
                "gone.py": "x",
            },
        )
        any_host.write("proj/src/deep/new.py", "x" * 5)
        any_host.write("proj/src/x.made.py", "x" * 5000)
        any_host.write("proj/src/deep/er/b.py", "y" * 50)
        any_host.write("proj/ignored/x.py", "x" * 5000)
        os.unlink(folder / "gone.py")
        os.symlink("src/a.py", folder / "link.py")
        found = browse.preview(any_host.location("proj"))
        assert [(each.name, each.type, each.bytes, each.files) for each in found.languages] == [
            ("Python", "programming", 155, 3),
            ("Makefile", "programming", 70, 1),
            ("Jupyter Notebook", "markup", 2, 1),
        ]
        tree = by_tree(found)
        assert set(tree) >= {"src", "c.ipynb", "gone.py", "link.py"}
        assert not {"ignored", ".git"} & set(tree)
        assert (tree["src"].files, tree["src"].bytes, tree["src"].changed) == (3, 155, 3)
        assert [(node.name, node.files, node.changed) for node in tree["src"].children] == [
            ("deep", 2, 2),
            ("a.py", 1, 0),
            ("x.made.py", 0, 1),
        ]
        assert (tree["gone.py"].kind, tree["gone.py"].changed) == ("gone", 1)
        assert tree["link.py"].kind == "other"
        assert found.tree.changed == 5
        assert (found.tree.name, found.truncated, found.problems) == ("proj", False, ())
        inside = browse.preview(any_host.location("proj/src"))
        assert inside.tree.changed == 3
        assert by_tree(inside)["deep"].changed == 2

    def test_a_plain_folder_is_walked_but_for_what_is_hidden(self, any_host: Host) -> None:
        any_host.write("proj/a/b/c.py", "x" * 10)
        any_host.write("proj/.venv/lib/z.py", "x" * 1000)
        any_host.make_folder("proj/empty")
        folder = any_host.home / "proj"
        os.symlink("..", folder / "a" / "up")
        found = browse.preview(any_host.location("proj"))
        assert [(each.name, each.bytes) for each in found.languages] == [("Python", 10)]
        tree = by_tree(found)
        assert list(tree) == [".venv", "a", "empty"]
        assert (tree["a"].files, tree["a"].changed, tree[".venv"].files) == (1, None, 0)
        assert json.loads(json.dumps(found.to_dict()))["tree"]["children"][1]["children"][0]["name"] == "b"

    def test_a_folder_that_may_not_be_read_is_a_problem_in_a_repository_also(self, sshd_host: Real) -> None:
        make_repository(sshd_host, "repo", {"src/a.py": "x", "known/b.py": "x"})
        sshd_host.write("plain/c.py", "x")
        for name in ("repo/src/noperm", "repo/known", "plain/noperm"):
            sshd_host.make_folder(name).chmod(0)
        for number in range(25):
            sshd_host.make_folder(f"many/{number:02}").chmod(0)
        assert browse.preview(sshd_host.location("plain")).problems == ("noperm: permission denied",)
        found = browse.preview(sshd_host.location("repo"))
        assert set(found.problems) == {"src/noperm: permission denied", "known: permission denied"}
        assert by_tree(found)["known"].files == 0
        assert by_tree(found)["known"].children[0].kind == "other"
        assert browse.preview(sshd_host.location("repo/src")).problems == ("noperm: permission denied",)
        many = browse.preview(sshd_host.location("many")).problems
        assert (many[0], many[-1], len(many)) == ("00: permission denied", "5 more cannot be read", 21)

    def test_a_folder_that_its_repository_ignores_is_walked(self, embedded_host: Embedded) -> None:
        make_repository(embedded_host, "dotfiles", {".gitignore": "*\n!.gitignore\n"})
        embedded_host.write("dotfiles/work/a.py", "x" * 10)
        assert browse.preview(embedded_host.location("dotfiles/work")).languages[0].bytes == 10

    def test_a_wide_folder_says_how_much_is_left_out(self, embedded_host: Embedded) -> None:
        folder = embedded_host.make_folder("wide")
        for number in range(130):
            (folder / f"{number:03}.py").touch()
        tree = browse.preview(embedded_host.location("wide")).tree
        assert (len(tree.children), tree.left_out, tree.files) == (100, 30, 130)


def same(answer: browse.Listing | browse.Repository | browse.Preview) -> Any:
    """Return an answer without the host's name in it."""

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: strip(each) for name, each in value.items() if name != "host"}
        if isinstance(value, list):
            return [strip(each) for each in value]
        return value.partition(":")[2] if isinstance(value, str) and value.startswith("box") else value

    return strip(answer.to_dict())


FILE_NAMES = st.one_of(
    st.sampled_from(
        [b"a b.py", b"line\nbreak.c", b"\xff\xfe.js", "日本.md".encode(), b".hidden", b"-n", b"x.ipynb", b"~"]
    ),
    st.binary(min_size=1, max_size=12)
    .map(lambda name: name.replace(b"/", b"").replace(b"\0", b""))
    # Git refuses to know files with its own folder's name, in any case and by any trick of a file system.
    .filter(lambda name: name not in (b"", b".", b"..") and b"git" not in name.lower()),
)
CONTENTS = st.one_of(st.binary(max_size=40), st.sampled_from(["nowhere", ".", "..", "loop", "/etc/passwd"]))
TREES = st.recursive(
    st.dictionaries(FILE_NAMES, CONTENTS, max_size=5),
    lambda inner: st.dictionaries(FILE_NAMES, st.one_of(CONTENTS, inner), max_size=5),
    max_leaves=20,
)


class TestSameHereAndThere:
    # Nothing is made smaller after a failure: each try takes a second.
    @settings(
        max_examples=8,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(tree=TREES, later=TREES, repository=st.booleans())
    def test_every_field_of_every_answer(
        self,
        embedded_host: Embedded,
        local_host: Local,
        tree: dict[bytes, object],
        later: dict[bytes, object],
        repository: bool,
    ) -> None:
        """M5, over any trees, committed in part or not at all."""
        folder = embedded_host.home / f"tree{time.monotonic_ns()}"
        make_tree(folder, tree)
        os.symlink("loop", folder / "loop")
        if repository:
            git(embedded_host, folder, "init", "--quiet")
            commit(embedded_host, folder)
        make_tree(folder / "later", later)
        there = embedded_host.location(folder)

        async def ask() -> list[Any]:
            asked = [
                each
                for place in (there, folder)
                for each in (
                    browse.list_async(place, files=True),
                    browse.repo_async(place),
                    browse.preview_async(place),
                    browse.repo_async(place, below="later"),
                )
            ]
            return await asyncio.gather(*asked)

        answers = asyncio.run(ask())
        assert [same(answer) for answer in answers[:4]] == [same(answer) for answer in answers[4:]]
        listing, repo, preview, inside = answers[:4]
        assert {os.fsencode(entry.name) for entry in listing.entries} == set(os.listdir(os.fsencode(folder)))
        assert by_name(listing)["loop"].error
        assert repo.problems == preview.problems == ()
        assert repo.kind == inside.kind == ("git" if repository else None)
        if repository:
            command = ["git", "-C", os.fsencode(folder), "status", "--porcelain", "-z", "-uall"]
            told = subprocess.run(command, capture_output=True, check=True)
            assert repo.changed == told.stdout.count(b"\0")


class TestErrors:
    def test_a_host_that_is_down_is_told_in_sshs_words(self, remote_host: Host) -> None:
        """M6."""
        remote_host.down()
        for ask in (browse.list, browse.repo, browse.preview):
            with pytest.raises(UnreachableError, match="refused") as caught:
                ask(f"{remote_host.alias}:~/proj")
            assert (caught.value.host, caught.value.state) == (remote_host.alias, "unreachable")

    def test_a_host_that_goes_away_between_two_looks_is_told_until_it_is_back(self, remote_host: Host) -> None:
        """M6: on a connection that was there, too."""
        remote_host.make_folder("proj/x")
        assert names(browse.list(remote_host.location("proj"))) == ["x"]
        remote_host.freeze()
        remote_host.down()
        with pytest.raises(UnreachableError):
            browse.list(remote_host.location("proj"))
        remote_host.up()
        assert names(browse.list(remote_host.location("proj"))) == ["x"]

    def test_a_host_that_wants_a_sign_in_or_has_an_old_python_says_so(self, embedded_host: Embedded) -> None:
        """M6."""
        embedded_host.server.behave(refuse_auth=True)
        with pytest.raises(SignInError, match="Permission denied") as caught:
            browse.list(embedded_host.location())
        assert (caught.value.host, caught.value.state) == (embedded_host.alias, "needs_auth")
        embedded_host.server.behave(refuse_auth=False)
        old = embedded_host.write_old_python("old/python3")
        with pytest.raises(UnsupportedHostError, match=r"python >= 3\.11") as told:
            browse.repo(embedded_host.location(), python=str(old))
        assert told.value.state == "unsupported"

    def test_a_folder_that_cannot_be_looked_at_is_no_empty_one(self, any_host: Host) -> None:
        any_host.write("file", "")
        for ask in (browse.list, browse.repo, browse.preview):
            with pytest.raises(NoSuchFolderError, match="no such file") as caught:
                ask(any_host.location("nowhere"))
            assert caught.value.host == (any_host.alias or "this machine")
            with pytest.raises(NotAFolderError):
                ask(any_host.location("file"))
        assert caught.value.state == "ready"

    def test_nor_is_one_that_may_not_be_read(self, sshd_host: Real) -> None:
        sshd_host.make_folder("shut").chmod(0)
        sshd_host.make_folder("closed").chmod(0o100)
        for ask in (browse.list, browse.repo, browse.preview):
            with pytest.raises(NoPermissionError, match="permission denied"):
                ask(sshd_host.location("shut"))
        with pytest.raises(FolderError):
            browse.list(sshd_host.location("closed"))
        assert browse.repo(sshd_host.location("closed")).kind is None, "that needs no list of what is in it"

    def test_a_host_that_never_answers_is_given_up_in_time(self, embedded_host: Embedded) -> None:
        profile = (embedded_host.home / ".profile").read_text()
        embedded_host.write(".profile", f"{profile}\nsleep 30\n")
        began = time.monotonic()
        with pytest.raises(UnreachableError, match=r"no answer within 1\.5 s, while asking"):
            browse.list(embedded_host.location(), timeout=1.5)
        assert time.monotonic() - began < 6
        embedded_host.clear()  # as with ssh, the profile's own processes go on

    def test_hosts_are_asked_side_by_side_each_for_its_time(
        self, embedded_host: Embedded, workspace: Workspace
    ) -> None:
        """H6."""
        embedded_host.server.behave(auth_delay=3.0)
        for alias in ("one", "two"):
            text = workspace.ssh_config.read_text()
            workspace.add_to_ssh_config(text.replace(str(embedded_host.alias), alias) if alias == "one" else "")
        workspace.add_to_ssh_config("Host nowhere\n    HostName 127.0.0.1\n    Port 1\n")
        (embedded_host.home / "proj").mkdir()
        places = [embedded_host.location("proj"), f"one:{embedded_host.home}/proj", "nowhere:", "no place"]
        began = time.monotonic()
        found = browse.repo_all(places)
        assert 2.9 < time.monotonic() - began < 5.9
        assert list(found) == places
        assert [getattr(found[place], "kind", "error") for place in places] == [None, None, "error", "error"]
        assert isinstance(found["nowhere:"], UnreachableError)
        assert isinstance(found["no place"], LocationError)
        began = time.monotonic()
        hasty = browse.list_all(["two:", *places[:2]], timeout=0.5)
        assert time.monotonic() - began < 2.9
        assert len(hasty) == 3


def test_paths_may_be_path_objects(local_host: Local) -> None:
    local_host.make_folder("proj/x")
    assert names(browse.list(Path(local_host.home) / "proj")) == ["x"]
