"""Memory, links and context of sessions on real hosts."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from crash import albedo
from faces import Embedded, Host, Local, Real
from kernels import PATIENCE, add_kernelspec
from procs import wait_until

from albedo_provisioner import AsyncSessions, Session, Sessions
from albedo_provisioner.browse import visit
from albedo_provisioner.cli import main
from albedo_provisioner.errors import UnreachableError, WorkspaceLinkError
from albedo_provisioner.location import Location
from albedo_provisioner.workspace import asking
from albedo_provisioner.workspace.asking import LinkedWorkspace
from albedo_provisioner.workspace.memory import WorkspaceMemory

if TYPE_CHECKING:
    from conftest import Workspace


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have hosts answer in their own time, as a busy machine may take more than five seconds for a first visit."""
    assert asking.PATIENCE == 5.0
    monkeypatch.setattr(asking, "PATIENCE", 60.0)


def look_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every look into a workspace be a new one."""
    monkeypatch.setattr(asking, "EVERY", 0.0)


def notes(session: Session) -> str:
    """Return the note of the session's next result."""
    return session.execute("1").kernel.note or ""


def also_known_as(workspace: Workspace, host: Host) -> str:
    """Give a host another name in the ssh config, and return it."""
    (text,) = [text for text in workspace.ssh_config.read_text().split("Host ") if text.split()[:1] == [host.alias]]
    workspace.add_to_ssh_config(f"\nHost other-name {text.removeprefix(str(host.alias))}")
    return "other-name"


class TestLinks:
    def test_badges_say_what_hosts_say(
        self,
        new_embedded_host: Callable[..., Embedded],
        sessions: Sessions,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """M3, H6: on hosts that are there, away, locked and silent; and when one goes away between two looks."""
        there, away, locked, silent = (new_embedded_host() for _ in range(4))
        for host in (there, away, locked, silent):
            host.make_folder("proj")
        here = tmp_path / "here"
        here.mkdir()
        session = sessions.open(str(here))
        for location in (there.location("proj"), there.location("none"), away.location("proj"), away.location("none")):
            session.links.add(location)
        for host in (locked, silent):
            session.links.add(host.location("proj"))
        there.write("a file", "")
        session.links.add(there.location("a file"))
        rows = session.links.list()
        assert [(str(row.location), row.badge) for row in rows] == [
            (there.location("proj"), ""),
            (there.location("none"), "gone"),
            (away.location("proj"), ""),
            (away.location("none"), "gone"),
            (locked.location("proj"), ""),
            (silent.location("proj"), ""),
            (there.location("a file"), "gone"),
        ]
        assert [row.detail for row in rows if row.badge] == ["no such file or directory"] * 2 + ["not a folder"]
        away.down()
        locked.server.behave(refuse_auth=True)
        locked.cut()
        profile = (silent.home / ".profile").read_text()
        silent.write(".profile", f"{profile}\nsleep 60\n")
        monkeypatch.setattr(asking, "PATIENCE", 5.0)

        def look() -> list[LinkedWorkspace] | None:
            began = time.monotonic()
            found = session.links.list()
            assert time.monotonic() - began < 5 + 4
            return found if sum(row.badge == "connecting" for row in found) == 1 else None

        rows = wait_until(look, PATIENCE, "a look at which all but one host answers")
        assert rows is not None
        badges = {str(row.location): (row.badge, row.detail) for row in rows}
        assert badges[there.location("proj")] == ("", "")
        assert badges[there.location("none")][0] == "gone"
        for folder in ("proj", "none"):  # what its host does not say is not known
            assert badges[away.location(folder)][0] == "unreachable"
            assert "refused" in badges[away.location(folder)][1]
        assert badges[locked.location("proj")][0] == "sign in"
        assert "Permission denied" in badges[locked.location("proj")][1]
        assert badges[silent.location("proj")][0] == "connecting"
        assert "no answer within 5 s" in badges[silent.location("proj")][1]
        silent.write(".profile", profile)
        assert asking.HOPELESS == 10.0
        monkeypatch.setattr(asking, "PATIENCE", 60.0)
        monkeypatch.setattr(asking, "HOPELESS", 0.0)  # as if the question that has no answer were older
        assert [row.badge for row in session.links.list() if row.location.host == silent.alias] == [""]
        silent.clear()  # as with ssh, the profile's own processes go on
        assert json.loads(json.dumps([row.to_dict() for row in rows]))[0]["location"] == there.location("proj")

    def test_to_folders_that_may_not_be_entered_say_so(
        self, sshd_host: Real, sessions: Sessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """M3: and the context of such a folder says the same."""
        look_again(monkeypatch)
        sshd_host.make_folder("closed/inside")
        session = sessions.open(str(tmp_path))
        places = [sshd_host.location("closed"), sshd_host.location("closed/inside")]
        for place in places:
            session.links.add(place)
        (sshd_host.home / "closed").chmod(0)
        try:
            rows = session.links.list()
            assert [(str(row.location), row.badge, row.detail) for row in rows] == [
                (place, "no permission", "permission denied") for place in places
            ]
            context = session.context(wait=60)
            assert context.gone == ()
            assert f"- {places[0]}: no permission (permission denied)" in context.text
            for place in places:
                context = sessions.open(place, owner=place).context(wait=60)
                assert (context.state, context.detail) == ("ready", "permission denied")
                assert "The folder cannot be read: permission denied." in context.text
        finally:
            (sshd_host.home / "closed").chmod(0o700)

    def test_are_made_and_taken_away(
        self, embedded_host: Embedded, sessions: Sessions, tmp_path: Path, workspace: Workspace
    ) -> None:
        embedded_host.make_folder("proj")
        for name in "ab":
            (tmp_path / name).mkdir()
        (tmp_path / "also a").symlink_to("a")
        session = sessions.open(str(tmp_path / "a"))
        session.links.add(f"{embedded_host.alias}:~/proj")
        assert [str(row.location) for row in session.links.list()] == [embedded_host.location("proj")]
        for location, words in (
            (str(tmp_path / "a"), "with itself"),
            (str(tmp_path / "also a"), "with itself"),
            (embedded_host.location("proj"), "linked already"),
            (f"{embedded_host.alias}:~/proj", "linked already"),
            (str(tmp_path / "none"), "no such folder"),
        ):
            with pytest.raises(WorkspaceLinkError, match=words):
                session.links.add(location)
        user = workspace.ssh_config.read_text().split("User ")[1].split()[0]
        for host in (f"{user}@{embedded_host.alias}", also_known_as(workspace, embedded_host)):
            for location in (f"{host}:~/proj", f"{host}:{embedded_host.home}/proj"):
                with pytest.raises(WorkspaceLinkError, match=f"linked already: .* is {host}:"):
                    session.links.add(location)
            there = sessions.open(embedded_host.location("proj"), owner=host)
            with pytest.raises(WorkspaceLinkError, match=f"with itself by another name, {host}:"):
                there.links.add(f"{host}:~/proj")
        alias = f"{user}@{embedded_host.alias}:{embedded_host.home}/proj"
        WorkspaceMemory(Location.parse(alias)).append("by this name")
        there.links.add(alias)  # the one way to have both read
        assert "by this name" in str(there.memory.grep("by this name"))
        there.links.remove(alias)
        session.links.add(f"{user}x@{embedded_host.alias}:{embedded_host.home}/proj")  # another account
        session.links.remove(f"{user}x@{embedded_host.alias}:{embedded_host.home}/proj")
        other = sessions.open(str(tmp_path / "b"))
        with pytest.raises(WorkspaceLinkError, match="not linked"):
            other.links.remove()
        other.links.add(embedded_host.location("proj"))  # which merges the groups
        assert {str(row.location) for row in other.links.list()} == {
            str(tmp_path / "a"),
            embedded_host.location("proj"),
        }
        (row,) = [row for row in session.links.list() if row.location.is_remote]
        session.links.remove(row.id)
        with pytest.raises(WorkspaceLinkError, match="not linked"):
            session.links.remove(row.location)
        session.links.remove()
        assert other.links.list() == []

    def test_at_a_home_that_cannot_be_found_out_are_refused_in_sshs_words(
        self, embedded_host: Embedded, sessions: Sessions, tmp_path: Path
    ) -> None:
        """H5."""
        embedded_host.down()
        session = sessions.open(str(tmp_path))
        with pytest.raises(UnreachableError, match="refused"):
            session.links.add(f"{embedded_host.alias}:~/proj")
        with pytest.raises(UnreachableError, match="refused"):
            sessions.open(f"{embedded_host.alias}:~/proj").memory.append("x")

    def test_made_by_another_process_are_told_with_the_next_result(self, local_host: Local, sessions: Sessions) -> None:
        a, b, c = (str(local_host.make_folder(name)) for name in "abc")
        session = sessions.open(a)
        session.links.add(c)
        linked = "This workspace is linked with {} now: memory is read in both."
        assert notes(session) == linked.format(c)
        printed = albedo("link", "add", a, b)
        assert printed == f"Linked {a} with {b}\n"
        assert notes(session) == linked.format(b)
        assert notes(session) == ""
        session.links.remove(c)
        assert notes(session) == f"This workspace is not linked with {c} any more."

    def test_on_the_command_line(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for name in "ab":
            (tmp_path / name).mkdir()
        a, b = (str(tmp_path / name) for name in "ab")

        def run(*words: str) -> str:
            assert main(words) == 0
            return capsys.readouterr().out

        assert "No workspaces are linked" in run("link", "list")
        run("link", "add", a, b)
        (tmp_path / "b").rmdir()
        listed = json.loads(run("link", "list", "--json"))
        assert [(row["group"], row["location"], row["badge"]) for row in listed] == [(1, a, ""), (1, b, "gone")]
        table = [line.split() for line in run("link", "list", a).splitlines()]
        assert table[0] == ["ID", "GROUP", "LOCATION", "STATE", "DETAIL"]
        assert [row[2:4] for row in table[1:]] == [[a], [b, "gone"]]
        assert run("link", "remove", listed[0]["id"]) == f"{a} is not linked any more\n"
        assert run("link", "list", "--json") == "[]\n"
        assert main(["link", "remove", a]) == 1
        assert "is not linked with any workspace" in capsys.readouterr().err


INSTRUCTIONS = "Run the tests with `make test`."
SKILL = "---\nname: deploy\ndescription: How to deploy.\n---\n\n# Deploy\n\nPush the button.\n"


def furnish(host: Host) -> str:
    """Put a repository with instructions and skills on a host, and return the location of a folder in it."""
    host.make_folder("proj/sub")
    host.make_folder("proj/.git")
    host.write("proj/AGENTS.md", INSTRUCTIONS)
    host.write("proj/CLAUDE.md", INSTRUCTIONS)
    host.write("proj/.github/copilot-instructions.md", "Be brief.")
    host.write("proj/sub/AGENTS.md", "Mind the gap.")
    host.write("AGENTS.md", "Above the repository.")
    host.write("proj/.agents/skills/deploy/SKILL.md", SKILL)
    host.write("proj/sub/.agents/skills/broken/SKILL.md", "---\nname: [\n---\n")
    host.write("secret", "Nobody's business.")
    (host.home / "proj/sub/GEMINI.md").symlink_to(host.home / "secret")
    return host.location("proj/sub")


class TestContext:
    def test_has_what_an_agent_should_know(self, any_host: Host, sessions: Sessions, tmp_path: Path) -> None:
        """M4."""
        session = sessions.open(furnish(any_host))
        session.memory.append("The gate opens at 7.")
        other = sessions.open(str(tmp_path))
        other.memory.append("The bridge opens at 8.")
        session.links.add(str(tmp_path))
        context = session.context(wait=60)
        system = os.uname()
        host = any_host.alias or "this machine"
        assert context.where == f"execute on {host} ({system.sysname} {system.machine})"
        assert (context.state, context.root) == ("ready", str(any_host.home / "proj"))
        assert [(each.location, each.text) for each in context.instructions] == [
            (any_host.location("proj/AGENTS.md"), INSTRUCTIONS),
            (any_host.location("proj/.github/copilot-instructions.md"), "Be brief."),
            (any_host.location("proj/sub/AGENTS.md"), "Mind the gap."),
        ]
        assert [(each.name, each.description, each.location) for each in context.skills] == [
            ("deploy", "How to deploy.", any_host.location("proj/.agents/skills/deploy/SKILL.md")),
            ("broken", "", any_host.location("proj/sub/.agents/skills/broken/SKILL.md")),
        ]
        assert context.memory == "The gate opens at 7."
        assert context.linked_memory == ((str(tmp_path), "The bridge opens at 8."),)
        assert len(context.problems) == 2
        assert any("GEMINI.md: it is a link to outside" in each for each in context.problems)
        assert any("broken/SKILL.md: its front matter is no YAML" in each for each in context.problems)
        for words in (
            context.where,
            INSTRUCTIONS,
            "Mind the gap.",
            f"- deploy: How to deploy. ({any_host.location('proj/.agents/skills/deploy/SKILL.md')})",
            "The gate opens at 7.",
            f"## Memory of {tmp_path} (linked)",
        ):
            assert words in context.text
        assert "Nobody's business" not in context.text
        assert "Push the button" not in context.text
        assert json.loads(json.dumps(context.to_dict()))["where"] == context.where

    def test_is_there_at_once_and_says_what_is_not_known(
        self, embedded_host: Embedded, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """M4, M6: at a host that is silent, then there, then out of reach, then without the folder."""
        look_again(monkeypatch)
        location = furnish(embedded_host)
        session = sessions.open(location)
        session.memory.append("The gate opens at 7.")
        profile = (embedded_host.home / ".profile").read_text()
        embedded_host.write(".profile", f"{profile}\nsleep 3\n")
        began = time.monotonic()
        context = session.context()
        assert time.monotonic() - began < 2.5
        assert (context.state, context.os, context.instructions) == ("unknown", None, ())
        assert "its system is not known yet" in context.where
        assert "it is not known which instructions and skills there are" in context.text
        assert context.memory == "The gate opens at 7."
        session.context(wait=60)
        embedded_host.write(".profile", profile)
        embedded_host.down()
        context = session.context(wait=60)
        assert context.state == "unreachable"
        assert "refused" in context.detail
        assert f"{embedded_host.alias} could not be asked (unreachable): " in context.text
        assert "Instructions and skills are as they were on" in context.text
        assert [each.text for each in context.instructions][-1] == "Mind the gap."
        assert context.os == os.uname().sysname
        embedded_host.up()
        subprocess.run(["mv", embedded_host.home / "proj", embedded_host.home / "aside"], check=True)
        wait_until(lambda: session.context(wait=60).state == "gone", what="the folder to be known as gone")
        assert "The folder is not there any more" in session.context(wait=60).text

    def test_of_a_home_that_is_not_known_says_so(self, embedded_host: Embedded, sessions: Sessions) -> None:
        """M6."""
        embedded_host.down()
        session = sessions.open(f"{embedded_host.alias}:~/proj")
        context = session.context()
        assert (context.memory, context.state) == (None, "unknown")
        assert "It is not known yet where the host's home is" in context.text
        for wait in (60, 0):  # by then it has been said why
            context = session.context(wait=wait)
            assert (context.location, context.state) == (f"{embedded_host.alias}:~/proj", "unreachable")
            assert "refused" in context.detail
            assert f"{embedded_host.alias} could not be asked (unreachable): " in context.text
            assert "has not answered yet" not in context.text

    def test_marks_linked_workspaces_that_are_gone(
        self, remote_host: Host, sessions: Sessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """M4, M3: a host that goes away makes none of them gone."""
        look_again(monkeypatch)
        session = sessions.open(str(tmp_path))
        remote_host.make_folder("proj")
        session.links.add(remote_host.location("proj"))
        session.links.add(remote_host.location("none"))
        assert session.context(wait=60).gone == (remote_host.location("none"),)
        assert f"- {remote_host.location('none')}: gone (no such file or directory)" in session.context().text
        remote_host.down()
        context = session.context(wait=60)
        assert context.gone == ()
        assert [row.badge for row in context.linked] == ["unreachable", "unreachable"]

    def test_is_bounded(self, embedded_host: Embedded, sessions: Sessions) -> None:
        embedded_host.write("proj/AGENTS.md", "a" * 200_000)
        for number in range(250):
            embedded_host.write(f"proj/.agents/skills/s{number:03}/SKILL.md", SKILL)
        for name, size in (("long", 5000), ("longer", 50_000)):
            embedded_host.write(f"proj/.agents/skills/{name}/SKILL.md", f"---\nname: {'x' * size}\n---\n")
        session = sessions.open(embedded_host.location("proj"))
        session.memory.append("m" * 100_000)
        context = session.context(wait=60, memory_chars=1000, instruction_chars=2000)
        assert len(context.instructions[0].text) <= 2000
        assert len(context.memory or "") <= 1000
        assert len(context.skills) == 199
        assert not any("no front matter" in each for each in context.problems)
        left_out = [each for each in context.problems if "there is too much before it" in each]
        assert len(left_out) == 1
        assert left_out[0].endswith("and before 52 more skills and files")
        for name in ("long", "longer"):
            told = [each for each in context.problems if f"/{name}/SKILL.md" in each]
            assert len(told) == 1
            assert told[0].endswith("its front matter is too long: it may have 4,096 bytes")
        assert len(session.context(instruction_chars=10**6).instructions[0].text) < 66_000

    def test_of_a_host_whose_python_is_too_old_says_so_unless_another_is_known(
        self, embedded_host: Embedded, sessions: Sessions
    ) -> None:
        location = furnish(embedded_host)
        embedded_host.write_old_python("old/python3")
        profile = (embedded_host.home / ".profile").read_text()
        embedded_host.write(".profile", f"{profile}\nPATH={embedded_host.home}/old:$PATH\n")
        context = sessions.open(location).context(wait=60)
        assert (context.state, context.skills) == ("unsupported", ())
        assert "3.8.2" in context.text
        add_kernelspec(location, {"python": str(embedded_host.python)})
        session = sessions.open(embedded_host.location("proj"))
        assert session.context(wait=60).state == "ready"
        session.links.add(location)
        assert [row.badge for row in session.links.list()] == [""]

    def test_of_a_folder_here_waits_for_no_linked_host(
        self, embedded_host: Embedded, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """M4."""
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "AGENTS.md").write_text(INSTRUCTIONS)
            session = sessions.open(folder)
            session.links.add(embedded_host.location())
            profile = (embedded_host.home / ".profile").read_text()
            embedded_host.write(".profile", f"{profile}\nsleep 60\n")
            began = time.monotonic()
            context = session.context()
            assert time.monotonic() - began < 10
            assert [each.text for each in context.instructions] == [INSTRUCTIONS]
            assert [row.badge for row in context.linked] == ["unknown"]
            monkeypatch.setattr(asking, "PATIENCE", 0.5)
            assert [row.badge for row in session.links.list()] == ["connecting"]
            embedded_host.clear()

    def test_takes_one_look_for_all_who_want_one_and_none_within_five_seconds(
        self, sshd_host: Real, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert asking.EVERY == 5.0
        location = furnish(sshd_host)
        asked = []
        real = visit.ask_at_length

        async def count(*arguments: Any) -> dict[str, Any]:
            asked.append(arguments)
            return await real(*arguments)

        monkeypatch.setattr(visit, "ask_at_length", count)

        async def many() -> None:
            async with AsyncSessions() as made:
                opened = [await made.open(location, owner=f"o{number}") for number in range(3)]
                contexts = await asyncio.gather(*(each.context(wait=60) for each in opened))
                assert {len(each.instructions) for each in contexts} == {3}
                again = await opened[0].context(wait=60)
                assert again.known_since == contexts[0].known_since

        asyncio.run(many())
        assert len(asked) == 1


def test_memory_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: str, status: int = 0) -> str:
        assert main(["memory", str(tmp_path), *words]) == status
        return capsys.readouterr().out

    assert albedo("memory", tmp_path, "append", "The gate opens at 7.") == ""
    assert run("journal", "Went in.") == ""
    assert run() == "The gate opens at 7.\n"
    assert run("grep", "GATE") == "memory.md:1: The gate opens at 7.\n"
    assert run("search", "opening gates") == "memory.md:1: The **gate** **opens** at 7.\n"
    assert run("grep", "bridge", status=1) == ""
    folder = Path(run("path").strip())
    assert folder.parent == Path(os.environ["ALBEDO_HOME"]) / "memories"
    assert sorted(path.name for path in folder.glob("[!.]*")) == ["journal", "location", "memory.md"]
