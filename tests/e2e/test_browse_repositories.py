"""What is said of repositories, through their life and with their traps."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

import pytest
from faces import Embedded, Host, Real
from repositories import by_tree, commit, git, make_repository

from albedo_provisioner import browse
from albedo_provisioner.cli import main


def first_line(capsys: pytest.CaptureFixture[str], place: str, *options: str) -> str:
    """Return the only line that the command prints of a repository."""
    assert main(["browse", place, "--only", "repo", *options]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    return line


class TestRepository:
    def test_follows_a_repository_through_its_life(self, any_host: Host, capsys: pytest.CaptureFixture[str]) -> None:
        """M5: unborn, on a branch, changed, detached; seen from its root and from a folder in it."""
        folder = make_repository(any_host, "proj")
        where = any_host.location("proj")
        unborn = browse.repo(where)
        assert (unborn.kind, str(unborn.root), unborn.branch) == ("git", where, "main")
        assert (unborn.commit, unborn.detached, unborn.changed, unborn.problems) == (None, False, 0, ())
        assert unborn.unborn
        assert first_line(capsys, where).startswith("git repository, branch main, no commit, 0 files changed")

        any_host.write("proj/a", "a" * 100)
        any_host.write("proj/src/b c", "b")
        first = commit(any_host, folder)
        clean = browse.repo(any_host.location("proj/src"))
        assert (str(clean.root), clean.commit, clean.unborn, clean.changed) == (where, first, False, 0)
        assert clean.touched == float(git(any_host, folder, "log", "-1", "--format=%ct"))

        git(any_host, folder, "mv", "a", "new\nname")
        any_host.write("proj/src/b c", "other")
        any_host.write("proj/more/untracked", "")
        any_host.write("proj/more/ignored", "")
        any_host.write("proj/.gitignore", "ignored\n")
        os.utime(folder / "more" / "untracked", (4e9, 4e9))
        changed = browse.repo(where)
        assert changed.changed == 4, "a renamed one, a changed one, and two that are new"
        assert changed.touched == 4e9

        git(any_host, folder, "checkout", "--quiet", "--force", "--detach")
        detached = browse.repo(where)
        assert (detached.branch, detached.detached, detached.commit) == (None, True, first)
        git(any_host, folder, "checkout", "--quiet", "-b", "(detached)")
        assert browse.repo(where).branch == "(detached)"

    def test_worktrees_submodules_conflicts_and_repositories_in_repositories(self, embedded_host: Embedded) -> None:
        library = make_repository(embedded_host, "library", {"f": "1"})
        folder = make_repository(embedded_host, "proj", {"a": "1"})
        git(embedded_host, folder, "worktree", "add", "--quiet", "-b", "other", str(embedded_host.home / "tree"))
        other = browse.repo(embedded_host.location("tree"))
        assert (str(other.root), other.branch) == (embedded_host.location("tree"), "other")

        git(
            embedded_host,
            folder,
            "-c",
            "protocol.file.allow=always",
            "submodule",
            "add",
            "--quiet",
            str(library),
            "lib",
        )
        commit(embedded_host, folder)
        inside = browse.repo(embedded_host.location("proj/lib"))
        assert str(inside.root) == embedded_host.location("proj/lib")
        embedded_host.write("proj/lib/f", "2")
        assert browse.repo(embedded_host.location("proj")).changed == 0, "another commit would count"
        commit(embedded_host, folder / "lib")
        assert browse.repo(embedded_host.location("proj")).changed == 1

        make_repository(embedded_host, "proj/nested", {"x": "1"})
        tree = by_tree(browse.preview(embedded_host.location("proj")))
        assert tree["nested"].changed == 1
        assert tree["lib"].kind == "folder"

        embedded_host.write("tree/a", "there")
        commit(embedded_host, embedded_host.home / "tree")
        embedded_host.write("proj/a", "here")
        commit(embedded_host, folder)
        with pytest.raises(AssertionError):
            git(embedded_host, folder, "merge", "other")
        assert browse.repo(embedded_host.location("proj")).changed == 1
        assert by_tree(browse.preview(embedded_host.location("proj")))["a"].files == 1

    def test_one_whose_worktree_is_elsewhere_does_not_choose_what_is_shown(self, embedded_host: Embedded) -> None:
        elsewhere = embedded_host.make_folder("elsewhere")
        (elsewhere / "theirs").touch()
        folder = make_repository(embedded_host, "proj", {"mine": "1"})
        git(embedded_host, folder, "config", "core.worktree", str(elsewhere))
        shown = browse.preview(embedded_host.location("proj"))
        assert {node.name for node in shown.tree.children} == {".git", "mine"}, "as any folder"
        assert "worktree is elsewhere" in str(shown.problems)

    def test_other_folders_are_in_none(self, embedded_host: Embedded) -> None:
        plain = embedded_host.make_folder("plain")
        os.utime(plain, (1e9, 1e9))
        found = browse.repo(embedded_host.location("plain"))
        assert (found.kind, found.root, found.changed, found.touched, found.problems) == (None, None, None, 1e9, ())
        embedded_host.make_folder("only a name/.git")
        assert browse.repo(embedded_host.location("only a name")).kind is None
        bare = embedded_host.make_folder("bare")
        git(embedded_host, bare, "init", "--quiet", "--bare")
        assert browse.repo(embedded_host.location("bare")).kind is None

    def test_nothing_of_a_hostile_repository_is_run_and_nothing_is_written(self, any_host: Host) -> None:
        library = make_repository(any_host, "library", {"f": "1"})
        folder = make_repository(any_host, "proj", {"a": "1", "b": "1", ".gitattributes": "* filter=evil diff=evil\n"})
        git(any_host, folder, "-c", "protocol.file.allow=always", "submodule", "add", "--quiet", str(library), "lib")
        commit(any_host, folder)
        mark = any_host.home / "was-run"
        touch = f"touch {shlex.quote(str(mark))}"
        for where in (folder, folder / "lib"):
            for setting, command in {
                "core.fsmonitor": f"{touch}; false",
                "filter.evil.clean": f"{touch}; cat",
                "filter.evil.process": touch,
                "filter.evil.required": "true",
                "filter.other.clean": f"{touch}; cat",
                "diff.evil.textconv": touch,
                "diff.external": touch,
                "core.hooksPath": str(any_host.home / "hooks"),
                "core.pager": touch,
                "gpg.program": touch,
                "log.showSignature": "true",
            }.items():
                git(any_host, where, "config", setting, command)
        for hook in ("post-index-change", "fsmonitor-watchman", "pre-commit"):
            any_host.write(f"hooks/{hook}", f"#!/bin/sh\n{touch}\n").chmod(0o755)
        any_host.write("proj/lib/.gitattributes", "* filter=other\n")
        any_host.write("proj/lib/f", "2")
        any_host.write("proj/a", "2")
        os.utime(folder / "b", (2e9, 2e9))  # so that git has to look into it
        before = (folder / ".git" / "index").read_bytes()
        found = browse.repo(any_host.location("proj"))
        assert (found.changed, found.problems) == (1, ())
        assert by_tree(browse.preview(any_host.location("proj")))["a"].changed == 1
        assert not mark.exists()
        assert (folder / ".git" / "index").read_bytes() == before
        git_says = any_host.run(["git", "-C", str(folder), "status"])
        assert git_says.returncode != 0 or mark.exists(), "these settings would have been obeyed"

    def test_what_a_partial_clone_lacks_is_not_fetched(self, embedded_host: Embedded) -> None:
        """Its config names the program that would do it."""
        folder = make_repository(embedded_host, "proj", {"a": "line\n" * 200, "b": "other\n" * 300})
        mark = embedded_host.home / "was-run"
        for setting, value in {
            "core.repositoryFormatVersion": "1",
            "extensions.partialClone": "origin",
            "remote.origin.promisor": "true",
            "remote.origin.url": str(embedded_host.home),
            "remote.origin.uploadpack": f"touch {shlex.quote(str(mark))}; false",
        }.items():
            git(embedded_host, folder, "config", setting, value)
        blob = git(embedded_host, folder, "rev-parse", "HEAD:a")
        (folder / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
        git(embedded_host, folder, "mv", "a", "moved")
        embedded_host.write("proj/moved", "line\n" * 201)
        git(embedded_host, folder, "add", "moved")  # renamed and changed: git wants to compare it with what it was
        found = browse.repo(embedded_host.location("proj"))
        assert (found.branch, found.changed) == ("main", None)
        assert found.problems[0].startswith("git (changed): ")
        assert not mark.exists()
        embedded_host.run(["git", "-C", str(folder), "status"])
        assert mark.exists(), "it would have been run"

    def test_another_accounts_repository_is_told_in_gits_words(
        self, sshd_host: Real, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = make_repository(sshd_host, "proj", {"a.py": "1"})
        os.chown(folder, 0, 0)
        os.chown(folder / ".git", 0, 0)
        found = browse.repo(sshd_host.location("proj"))
        assert (found.kind, found.root, found.branch, found.changed) == ("git", None, None, None)
        assert len(found.problems) == 1
        assert "dubious ownership" in found.problems[0]
        told = first_line(capsys, sshd_host.location("proj"))
        assert told.startswith("git repository, unknown: branch, commit, changes (git (root): fatal: detected dubious")
        seen = browse.preview(sshd_host.location("proj"))
        assert "dubious ownership" in seen.problems[0]
        assert [language.name for language in seen.languages] == ["Python"]

    def test_a_host_without_git_says_so(self, embedded_host: Embedded) -> None:
        make_repository(embedded_host, "proj", {"a.py": "1"})
        profile = (embedded_host.home / ".profile").read_text()
        embedded_host.write(".profile", f"{profile}\nPATH=/nowhere\n")
        where, python = embedded_host.location("proj"), str(embedded_host.python)
        found = browse.repo(where, python=python)
        assert (found.kind, found.branch, found.commit, found.changed) == ("git", None, None, None)
        assert "git: no such file or directory" in found.problems[0]
        assert browse.preview(where, python=python).languages[0].name == "Python"

    def test_what_takes_too_long_is_none_and_the_rest_is_told(
        self, embedded_host: Embedded, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = make_repository(embedded_host, "proj", {"a.py": "1"})
        slow = '#!/bin/sh\ncase " $* " in *" status "*) sleep 60 & wait;; esac\nexec /usr/bin/git "$@"\n'
        embedded_host.write("slow/git", slow).chmod(0o755)
        profile = (embedded_host.home / ".profile").read_text()
        embedded_host.write(".profile", f"{profile}\nPATH={embedded_host.home}/slow:$PATH\n")
        found = browse.repo(embedded_host.location("proj"), timeout=9)
        assert (found.branch, found.commit) == ("main", git(embedded_host, folder, "rev-parse", "HEAD"))
        assert (found.changed, found.touched) == (None, None)
        assert found.problems == ("git (changed): it took too long",)
        told = first_line(capsys, embedded_host.location("proj"), "--timeout", "9")
        assert told == (
            f"git repository, branch main, commit {str(found.commit)[:12]}, "
            "unknown: changes (git (changed): it took too long)"
        )

    def test_jj_is_seen_by_its_folder(self, embedded_host: Embedded, capsys: pytest.CaptureFixture[str]) -> None:
        embedded_host.make_folder("proj/.jj")
        embedded_host.write("proj/src/a.py", "1")
        found = browse.repo(embedded_host.location("proj/src"))
        assert (found.kind, str(found.root)) == ("jj", embedded_host.location("proj"))
        assert (found.change, found.commit, found.changed) == (None, None, None)
        assert found.problems[0].startswith("jj ("), "without jj, or as nothing is in that folder"
        told = first_line(capsys, embedded_host.location("proj"))
        assert told.startswith("jj repository, unknown: change, commit, changes (jj (")
        assert browse.preview(embedded_host.location("proj")).languages[0].name == "Python"

    def test_an_older_jj_tells_what_it_can(self, embedded_host: Embedded) -> None:
        for kind in (".jj", "src"):
            embedded_host.make_folder(f"proj/{kind}")
        known = '*" log "*) echo "kkmq 3f2a 1700000000";;'
        old = f'case "$*" in {known} *) echo "error: unexpected argument -T" >&2; exit 2;; esac'
        embedded_host.make_folder("old")
        embedded_host.write("old/jj", f"#!/bin/sh\n{old}\n").chmod(0o755)
        profile = (embedded_host.home / ".profile").read_text()
        embedded_host.write(".profile", f"{profile}\nPATH={embedded_host.home}/old:$PATH\n")
        found = browse.repo(embedded_host.location("proj"))
        assert (found.change, found.commit, found.touched, found.changed) == ("kkmq", "3f2a", 1.7e9, None)
        assert found.problems == ("jj (changed): error: unexpected argument -T",)
        preview = browse.preview(embedded_host.location("proj"))
        assert [node.name for node in preview.tree.children] == [".jj", "src"]

    @pytest.mark.skipif(shutil.which("jj") is None, reason="there is no jj")
    @pytest.mark.parametrize("colocated", [False, True])
    def test_jj_tells_of_its_change_and_writes_nothing(self, embedded_host: Embedded, colocated: bool) -> None:
        profile = (embedded_host.home / ".profile").read_text()
        program = Path(shutil.which("jj") or "").parent
        embedded_host.write(".profile", f"{profile}\nPATH={program}:$PATH\n")
        folder = embedded_host.make_folder("proj")

        def jj(*words: str) -> str:
            done = embedded_host.run([str(program / "jj"), "-R", str(folder), *words])
            assert done.returncode == 0, done.stderr
            return done.stdout

        made = embedded_host.run(
            [str(program / "jj"), "git", "init", "--colocate" if colocated else "--no-colocate", str(folder)]
        )
        assert made.returncode == 0, made.stderr
        for path, content in {"a.py": "1", "lib/b.rs": "22", "lib/old.rs": "333", ".gitignore": "target\n"}.items():
            embedded_host.write(folder / path, content)
        jj("new")
        (folder / "lib/old.rs").rename(folder / "lib/new name.rs")
        embedded_host.write(folder / "a.py", "4444")
        embedded_host.write(folder / "target/built.py", "5")
        jj("status")

        def state() -> dict[str, tuple[int, bytes]]:
            return {str(p): (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.rglob("*") if p.is_file()}

        before = state()
        found = browse.repo(embedded_host.location("proj/lib"))
        log = ("log", "--ignore-working-copy", "--no-graph", "-r", "@", "-T")
        assert (found.kind, str(found.root)) == ("jj", embedded_host.location("proj"))
        assert (found.change, found.commit) == (jj(*log, "change_id"), jj(*log, "commit_id"))
        assert (found.changed, found.problems) == (2, ())
        assert found.touched is not None
        assert int(found.touched) >= int((folder / "a.py").stat().st_mtime)
        whole, inside = (browse.preview(embedded_host.location(name)) for name in ("proj", "proj/lib"))
        assert {each.name: each.bytes for each in whole.languages} == {"Python": 4, "Rust": 5}
        assert (whole.tree.changed, inside.tree.changed) == (2, 1)
        assert {each.name for each in inside.tree.children if each.kind == "file"} == {"b.rs", "new name.rs"}
        embedded_host.write(folder / "later.py", "66")
        assert browse.repo(embedded_host.location("proj")).changed == (3 if colocated else 2)
        (folder / "later.py").unlink()
        assert state() == before
