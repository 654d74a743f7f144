"""Memory as files on this machine: several processes at once, processes that are killed, hands that edit."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from procs import wait_until

from albedo_provisioner.errors import ConfigError, MemoryFileError
from albedo_provisioner.hosts import io_thread
from albedo_provisioner.location import Location
from albedo_provisioner.workspace import hands
from albedo_provisioner.workspace import store as files
from albedo_provisioner.workspace.files import swap
from albedo_provisioner.workspace.folders import memory_folder
from albedo_provisioner.workspace.links import WorkspaceGroups
from albedo_provisioner.workspace.memory import WorkspaceMemory
from albedo_provisioner.workspace.mirror import Mirror
from albedo_provisioner.workspace.workspace import Workspace as Space

if TYPE_CHECKING:
    from conftest import Workspace

HERE = Location.parse("gpu:/srv/data")
THERE = Location.parse("lab:/srv/data")


@pytest.fixture
def memory() -> WorkspaceMemory:
    return WorkspaceMemory(HERE)


def folder_of(memory: WorkspaceMemory) -> Path:
    folder = memory.store.folder()
    assert folder is not None
    return folder


class TestFolder:
    def test_is_private_and_says_whose_it_is(self, workspace: Workspace, memory: WorkspaceMemory) -> None:
        """M1."""
        assert memory.read() == ""
        assert not (workspace.albedo_home / "memories").exists()
        memory.append("The gate opens at 7.")
        memory.journal("Saw the gate.")
        folder = workspace.albedo_home / "memories" / "gpu--srv-data"
        assert (folder / "memory.md").read_text() == "The gate opens at 7.\n"
        assert (folder / "location").read_text() == "gpu:/srv/data\n"
        modes = {path.name: path.stat().st_mode & 0o777 for path in (folder.parent, folder, *folder.rglob("*"))}
        assert {mode for name, mode in modes.items() if name in ("memories", folder.name, "journal")} == {0o700}
        assert {mode for name, mode in modes.items() if name.endswith(".md") or name == "location"} == {0o600}

    @settings(max_examples=15)
    @given(paths=st.lists(st.text("ab-/_.2", min_size=1, max_size=6), min_size=2, max_size=6))
    @example(paths=["a-b", "a/b", "a_b", "a-b-2", "a.b"])
    def test_is_never_that_of_another_location(self, paths: list[str]) -> None:
        locations = {str(Location("gpu", f"/{path}")): Location("gpu", f"/{path}") for path in paths}
        with tempfile.TemporaryDirectory() as home:
            for text, location in locations.items():
                WorkspaceMemory(location, home).append(text)
            for text, location in locations.items():
                assert WorkspaceMemory(location, home).read() == f"{text}\n"

    def test_that_a_person_has_made_is_taken(self, workspace: Workspace, memory: WorkspaceMemory) -> None:
        folder = workspace.albedo_home / "memories" / "gpu--srv-data"
        folder.mkdir(parents=True)
        (folder / "memory.md").write_text("By hand.")
        assert memory.read() == "By hand."
        other = WorkspaceMemory(Location.parse("gpu:/srv-data"))
        other.append("Another.")
        assert (memory.read(), other.read()) == ("By hand.", "Another.\n")
        assert (workspace.albedo_home / "memories" / "gpu--srv-data-2" / "memory.md").exists()

    def test_needs_a_home_that_is_known(self) -> None:
        with pytest.raises(ValueError, match="home"):
            memory_folder(Location.parse("gpu:~/proj"))


class TestWriting:
    def test_appends_lines_saves_all_and_keeps_a_journal(self, memory: WorkspaceMemory) -> None:
        memory.append("one")
        memory.append("two\n")
        assert memory.read() == "one\ntwo\n"
        memory.save("three")
        assert memory.read() == "three\n"
        memory.journal("Went in.")
        memory.journal("Went out.")
        (day,) = (folder_of(memory) / "journal").glob("*.md")
        assert re.fullmatch(r"\d{4}-\d\d-\d\d\.md", day.name)
        assert re.fullmatch(r"## \d\d:\d\d:\d\d\n\nWent in.\n\n## \d\d:\d\d:\d\d\n\nWent out.\n", day.read_text())
        assert [path.name for path in folder_of(memory).iterdir() if "md." in path.name] == []

    def test_keeps_what_a_hand_has_written_byte_for_byte(self, memory: WorkspaceMemory) -> None:
        memory.append("one")
        path = folder_of(memory) / "memory.md"
        path.write_bytes("\ufeffcaf\xe9\r\n".encode("latin-1", "replace") + b"caf\xe9 \xff no newline")
        before = path.read_bytes()
        memory.append("half a \ud800 character")
        assert path.read_bytes() == before + b"\nhalf a \\ud800 character\n"
        assert "caf\ufffd" in memory.read()
        assert memory.grep("NO NEWLINE") == ["memory.md:2: caf\ufffd \ufffd no newline"]

    @pytest.mark.parametrize("call", ["save", "append", "journal", "grep", "search"])
    def test_of_what_is_no_text_is_refused(self, memory: WorkspaceMemory, call: str) -> None:
        for value in (5, b"x", None):
            with pytest.raises(TypeError, match="a text is needed, and not a value of type"):
                getattr(memory, call)(value)
        assert memory.read() == ""

    def test_of_too_much_is_refused_and_changes_nothing(self, memory: WorkspaceMemory) -> None:
        memory.append("x" * (files.MOST_MEMORY - 10))
        with pytest.raises(
            MemoryFileError, match=r"memory.md of gpu:/srv/data would have 1,048,5\d\d bytes.*1,048,576"
        ):
            memory.append("y" * 20)
        assert memory.read() == "x" * (files.MOST_MEMORY - 10) + "\n"

    def test_on_a_full_disk_says_so_and_changes_nothing(self, workspace: Workspace, memory: WorkspaceMemory) -> None:
        memories = workspace.albedo_home / "memories"
        memories.mkdir(parents=True)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(memories)], check=False).returncode:
            pytest.skip("a disk cannot be mounted here")
        try:
            memory.append("kept")
            with pytest.raises(MemoryFileError, match="No space left on device"):
                memory.append("x" * 100_000, "call-1")
            assert memory.read() == "kept\n"
            memory.append("small", "call-1")
            assert memory.read() == "kept\nsmall\n"
            assert list(folder_of(memory).glob(".*.md.*")) == []
        finally:
            subprocess.run(["umount", "--lazy", str(memories)], check=True)

    @pytest.mark.parametrize("what", ["memory.md", "journal", "folder"])
    def test_follows_no_links(self, workspace: Workspace, memory: WorkspaceMemory, what: str) -> None:
        memory.append("one")
        memory.journal("one")
        folder = folder_of(memory)
        path = folder if what == "folder" else folder / what
        aside = workspace.root / "aside"
        path.rename(aside)
        path.symlink_to(aside)
        with pytest.raises(MemoryFileError, match=f"{path} is a symbolic link"):
            memory.journal("two") if what == "journal" else memory.append("two")
        assert path.is_symlink()

    def test_waits_for_no_pipe(self, memory: WorkspaceMemory) -> None:
        memory.append("one")
        path = folder_of(memory) / "memory.md"
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(MemoryFileError, match="no plain file"):
            memory.read()


WRITERS = """
import sys
from albedo_provisioner.location import Location
from albedo_provisioner.workspace.memory import WorkspaceMemory
name, memory = sys.argv[1], WorkspaceMemory(Location.parse("gpu:/srv/data"))
print("ready", flush=True)
sys.stdin.readline()
for number in range(8):
    memory.append(f"{name} {number}", f"{name}-{number}")
    memory.append(f"{name} {number}", f"{name}-{number}")
    memory.journal(f"{name} {number}")
"""


def test_several_processes_lose_nothing_and_repeat_nothing(memory: WorkspaceMemory) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITERS, f"w{each}"], stdin=-1, stdout=-1, text=True)
        for each in range(3)
    ]
    for writer in writers:
        assert writer.stdout is not None
        writer.stdout.readline()
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    for number in range(8):
        memory.append(f"here {number}")
        memory.search("here")
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    lines = memory.read().splitlines()
    assert sorted(lines) == sorted(f"{name} {number}" for name in ("w0", "w1", "w2", "here") for number in range(8))
    for name in ("w0", "w1", "w2", "here"):
        assert [line for line in lines if line.startswith(name)] == [f"{name} {number}" for number in range(8)]
    (day,) = (folder_of(memory) / "journal").glob("*.md")
    assert sorted(re.findall(r"^w\d \d+$", day.read_text(), re.MULTILINE)) == sorted(
        f"w{each} {number}" for each in range(3) for number in range(8)
    )
    assert "**w1** **7**" in memory.search("w1 7", 1)[0]


KILLED = """
import os, signal, sys, types
from albedo_provisioner.location import Location
from albedo_provisioner.workspace.memory import WorkspaceMemory
here = Location.parse("gpu:/srv/data")

WATCHED = {"open", "write", "flush", "fsync", "close", "rename", "unlink", "execute", "mkdir", "flock", "lstat", "read"}

def call_and_die(number, count):
    def watch(frame, event, argument):
        nonlocal count
        if event in ("c_call", "c_return") and getattr(argument, "__name__", "") in WATCHED:
            count -= 1
            if count < 0:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.setprofile(watch)
    WorkspaceMemory(here).append(f"call {number}", f"id-{number}")

WorkspaceMemory(here).append("begin", "id-begin")
path = WorkspaceMemory(here).store.folder() / "memory.md"
expected, number, survived = ["begin"], 0, False
while not survived:
    child = os.fork()
    if child == 0:
        call_and_die(number, 2 * number)  # a call and its return are two events
        os._exit(0)
    survived = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    if number % 2:  # a person has the file open in an editor, and saves it now
        with open(path, "a") as file:
            file.write(f"hand {number}\\n")
    WorkspaceMemory(here).append(f"call {number}", f"id-{number}")
    lines = path.read_text().splitlines()
    expected += [f"call {number}"] + ([f"hand {number}"] if number % 2 else [])
    if sorted(lines) != sorted(expected):
        sys.exit(f"killed at {number}: {lines[-5:]}")
    number += 1
left = [name for name in os.listdir(path.parent) if ".md." in name]
print(number, left)
"""


def test_a_call_whose_process_is_killed_at_any_moment_and_that_comes_again_happens_once(workspace: Workspace) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    moments, left = done.stdout.split(" ", 1)
    assert int(moments) > 40
    assert left.strip() == "[]"


@pytest.fixture
def leases(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the file system has leases: without them memory is as on macOS."""
    if not request.param:
        monkeypatch.setattr(hands, "_lease", lambda _: None)
    return bool(request.param)


class TestAPersonsProgram:
    """That writes the file while calls add to it. (Seen with 100 saves of each kind.)"""

    SAVES = 5
    SLOWLY = "{ sleep 0.02; head -n 99 new; sleep 0.02; tail -n 1 new; } > memory.md"

    @pytest.mark.parametrize(
        ("save", "leases"),
        [
            ("cat new > memory.md", True),
            ("cp new memory.md", True),
            (SLOWLY, True),
            (SLOWLY, False),
            ("cp new .new && mv .new memory.md", True),
        ],
        indirect=["leases"],
    )
    def test_that_saves_it_loses_nothing_and_neither_do_calls(
        self, memory: WorkspaceMemory, leases: bool, save: str
    ) -> None:
        memory.append("begin")
        folder, added, stop = folder_of(memory), 0, threading.Event()

        def add() -> None:
            nonlocal added
            while not stop.is_set():
                memory.append(f"call {added + 1}", f"id-{added + 1}")
                added += 1

        with ThreadPoolExecutor() as pool:
            adding = pool.submit(add)
            try:
                for number in range(self.SAVES):
                    text = f"hand {number}\n" * 100
                    (folder / "new").write_text(text)
                    subprocess.run(["sh", "-c", save], cwd=folder, check=True)
                    at_end = added
                    wait_until(lambda: added > at_end + 1, 10, f"calls after save {number}")  # noqa: B023
                    known, now = added, memory.read()
                    assert now.startswith(text), f"save {number}: {now[:60]!r}"
                    calls = [int(line.removeprefix("call ")) for line in now.removeprefix(text).splitlines()]
                    assert calls == list(range(calls[0], calls[-1] + 1))
                    # What was added just before the save is what the person saved over; its answer may come later.
                    assert calls[0] <= at_end + 2
                    assert calls[-1] >= known
            finally:
                stop.set()
            adding.result()

    def test_that_adds_to_it_loses_nothing(self, memory: WorkspaceMemory) -> None:
        memory.append("begin")
        path = folder_of(memory) / "memory.md"
        loop = "for each in $(seq 200); do echo hand $each >> memory.md; done"
        with subprocess.Popen(["sh", "-c", loop], cwd=path.parent) as person:
            number = 0
            while person.poll() is None:
                memory.append(f"call {number}")
                number += 1
        assert person.returncode == 0
        lines = path.read_text().splitlines()
        assert [line for line in lines if "hand" in line] == [f"hand {each + 1}" for each in range(200)]
        assert [line for line in lines if "call" in line] == [f"call {each}" for each in range(number)]

    @pytest.mark.parametrize("save", ["cat new > memory.md", "cp new .new && mv .new memory.md"])
    @pytest.mark.parametrize("call", ["append", "save"])
    def test_that_saves_in_the_very_moment_of_the_rename_is_not_overrun(
        self, memory: WorkspaceMemory, monkeypatch: pytest.MonkeyPatch, save: str, call: str
    ) -> None:
        memory.append("begin")
        folder = folder_of(memory)
        (folder / "new").write_text("hand\n" * 100)
        saving = []

        def swap_late(fresh: Path, path: Path) -> None:
            if not saving:
                saving.append(subprocess.Popen(["sh", "-c", save], cwd=folder))
                if "mv" in save:
                    saving[0].wait()
                else:  # it waits for our lease, in the middle of opening the file; or there are no leases here
                    wchan = Path(f"/proc/{saving[0].pid}/wchan")
                    wait_until(lambda: saving[0].poll() is not None or b"break_lease" in wchan.read_bytes())
            swap(fresh, path)

        monkeypatch.setattr(files, "swap", swap_late)
        getattr(memory, call)("call", "id-1")
        assert saving[0].wait() == 0
        assert (folder / "memory.md").read_text() == "hand\n" * 100 + ("call\n" if call == "append" else "")
        memory.append("call", "id-1")
        assert memory.read().count("call") == (call == "append")
        assert list(folder.glob(".memory*")) == []

    def test_that_keeps_it_open_is_named(self, memory: WorkspaceMemory, monkeypatch: pytest.MonkeyPatch) -> None:
        memory.append("begin")
        monkeypatch.setattr(hands, "PATIENCE", 0.5)
        path = folder_of(memory) / "memory.md"
        with subprocess.Popen(["sh", "-c", "exec cat >> memory.md"], cwd=path.parent, stdin=-1) as person:
            wait_until(lambda: Path(f"/proc/{person.pid}/comm").read_text() == "cat\n")
            with pytest.raises(MemoryFileError, match=rf"open for writing in cat \(process {person.pid}\)"):
                memory.append("call", "id-1")
            person.communicate(b"hand\n")
        memory.append("call", "id-1")
        assert memory.read() == "begin\nhand\ncall\n"


class TestReading:
    @pytest.fixture(autouse=True)
    def linked(self) -> None:
        WorkspaceGroups().link(HERE, THERE)

    def test_covers_the_group_and_writing_is_ones_own(self, memory: WorkspaceMemory) -> None:
        """M2."""
        other = WorkspaceMemory(THERE)
        other.append("The gate opens at 7.")
        memory.append("No door.")
        assert memory.grep("GATE") == ["[lab:/srv/data] memory.md:1: The gate opens at 7."]
        assert memory.search("gates") == ["[lab:/srv/data] memory.md:1: The **gate** opens at 7."]
        assert memory.read() == "No door.\n\n# Memory of lab:/srv/data (linked)\n\nThe gate opens at 7.\n"
        assert (memory.read(linked=False), other.read(linked=False)) == ("No door.\n", "The gate opens at 7.\n")

    def test_within_a_budget_leaves_half_for_ones_own(self, memory: WorkspaceMemory) -> None:
        memory.save("a" * 1000)
        WorkspaceMemory(THERE).save("b" * 1000)
        text = memory.read(600)
        assert len(text) <= 600
        assert 200 < text.count("a") < 400
        assert 150 < text.count("b") < 400

    def test_goes_on_when_another_workspaces_file_cannot_be_read(self, memory: WorkspaceMemory) -> None:
        memory.append("The gate.")
        other = WorkspaceMemory(THERE)
        other.append("Another gate.")
        path = folder_of(other) / "memory.md"
        path.unlink()
        path.symlink_to("/etc/hostname")
        assert "symbolic link" in memory.read()
        for hits in (memory.grep("gate"), memory.search("gate")):
            assert hits[0].startswith("memory.md:1: The")
            assert hits[1].startswith("[lab:/srv/data] memory.md:0: ")
            assert "symbolic link" in hits[1]
        with pytest.raises(MemoryFileError):
            other.grep("gate")

    def test_leaves_out_what_is_no_file_in_a_journal_and_says_so(self, memory: WorkspaceMemory) -> None:
        other = WorkspaceMemory(THERE)
        for each in (memory, other):
            each.append("The gate.")
            each.journal("The gate was painted.")
            journal = folder_of(each) / "journal"
            (journal / "x.md").symlink_to("/etc/hostname")
            (journal / "2020-01-01.md").mkdir()
            os.close(os.open(os.fsencode(journal) + b"/\xff.md", os.O_CREAT | os.O_WRONLY))
        for find in (memory.grep, memory.search, memory.search):
            hits = find("gate")
            assert [hit.text for hit in hits if hit.line and "painted" in hit] != []
            assert {(hit.location, hit.line > 0) for hit in hits} == {
                (str(place), found) for place in (HERE, THERE) for found in (True, False)
            }
            notes = [str(hit) for hit in hits if hit.line == 0]
            assert len(notes) == 6
            for words in (
                "x.md is a symbolic link",
                "2020-01-01.md is no plain file",
                r"journal/\\xff.md in .* no UTF-8",
            ):
                assert len([note for note in notes if re.search(words, note)]) == 2
        shutil.rmtree(journal)
        journal.touch()
        assert ["cannot be listed" in hit for hit in other.grep("gate", 2)] == [False, True]

    def test_finds_nothing_by_an_empty_text(self, memory: WorkspaceMemory) -> None:
        with pytest.raises(ValueError, match="empty"):
            memory.grep("")

    def test_finds_accents_however_they_are_put_together(self, memory: WorkspaceMemory) -> None:
        memory.save("Cafe\u0301\nCaf\u00e9")
        assert len(memory.grep("CAFE\u0301")) == len(memory.grep("caf\u00e9")) == 2

    def test_shows_what_is_around_a_text_in_a_very_long_line(self, memory: WorkspaceMemory) -> None:
        memory.save("x" * 5000 + "gate" + "y" * 5000)
        (hit,) = memory.grep("gate")
        assert len(hit) < 400
        assert "xxxgateyyy" in hit


class TestSearch:
    def test_ranks_paragraphs_and_sees_what_a_hand_has_changed(self, memory: WorkspaceMemory) -> None:
        memory.save("# Gate\n\nThe gate opens at 7. The gate is red.\n\nThe wall has a gate, and much else besides it.")
        memory.journal("The gate was painted.")
        hits = memory.search("gate")
        assert [hit.line for hit in hits if hit.file == "memory.md"] == [1, 5]
        assert len(hits) == 3
        path = folder_of(memory) / "memory.md"
        path.write_text("The bridge opens at 8.\n")
        assert [hit.file[:8] for hit in memory.search("gate")] == ["journal/"]
        assert memory.search("bridges opening") == ["memory.md:1: The **bridge** **opens** at 8."]
        path.unlink()
        assert memory.search("bridge") == []

    def test_falls_back_to_some_of_the_words(self, memory: WorkspaceMemory) -> None:
        memory.save("The gate opens at 7.\n\nThe wall is high.")
        assert len(memory.search("gate wall")) == 2
        assert memory.search("gate seven opens")[0].line == 1

    @pytest.mark.parametrize(
        ("text", "query", "found"),
        [
            ("城門在早上七點打開。\n\n城牆很高。", "七點", "memory.md:1: 城門在早上**七點**打開。"),
            ("城門在早上七點打開。\n\n城牆很高。", "七點城門", "memory.md:1: **城門**在早上**七點**打開。"),
            ("門は7時に開きます。\n\n壁は高い。", "門 7時", "memory.md:1: **門**は**7時**に開きます。"),
            ("성문이 7시에 열린다.\n\n성벽은 높다.", "성문", "memory.md:1: **성문**이 7시에 열린다."),
            ("ประตูเปิดเจ็ดโมง\n\nกำแพงสูง", "เปิด", "memory.md:1: ประตู**เปิด**เจ็ดโมง"),
            ("फाटक सात बजे खुलता है।\n\nदीवार ऊँची है।", "खुलता", "memory.md:1: फाटक सात बजे **खुलता** है।"),
            ("ト\u3099アを開ける\n\nノート", "ドア", "memory.md:1: **ドア**を開ける"),
            ("Das Café öffnet um 7.\n\nDie Mauer.", "cafe o\u0308ffnet", "memory.md:1: Das **Café** **öffnet** um 7."),
        ],
    )
    def test_finds_words_that_no_spaces_part(self, memory: WorkspaceMemory, text: str, query: str, found: str) -> None:
        memory.save(text)
        assert memory.search(query) == [found]

    def test_makes_the_index_anew_when_it_is_damaged_or_gone(
        self, workspace: Workspace, memory: WorkspaceMemory
    ) -> None:
        memory.save("The gate.")
        assert memory.search("gate")
        index = workspace.albedo_home / "memory-search.sqlite"
        index.write_bytes(b"no database" * 1000)
        assert memory.search("gate")
        index.unlink()
        assert memory.search("gate")
        assert index.stat().st_mode & 0o777 == 0o600

    @settings(max_examples=60)
    @given(query=st.text(max_size=30))
    @example(query='"')
    @example(query="a OR NEAR(b) NOT c* ^d {e} : f-g + (")
    @example(query="a\0b")
    @example(query="_ __ --")
    @example(query="\u0301 \ud800")
    def test_takes_any_text_for_words(self, query: str) -> None:
        memory = WorkspaceMemory(HERE)
        if not memory.read():
            memory.save("The gate opens at 7.")
        memory.search(query)

    @settings(max_examples=20)
    @given(text=st.text(st.characters(codec="utf-8"), max_size=200), data=st.data())
    def test_and_grep_find_what_is_there(self, text: str, data: st.DataObject) -> None:
        memory = WorkspaceMemory(HERE)
        memory.save(f"{text}\n\nThe unmistakable gate.")
        assert any("gate" in hit for hit in memory.search("unmistakable", 100))
        lines = [line.rstrip("\r") for line in memory.read().split("\n")]
        line = data.draw(st.sampled_from([line for line in lines if line]))
        assert any(hit.text == line for hit in memory.grep(line, 10_000))

    def test_does_without_an_index_on_the_disk(self, workspace: Workspace, memory: WorkspaceMemory) -> None:
        memory.save("The gate.")
        (workspace.albedo_home / "memory-search.sqlite").mkdir()
        assert memory.search("gate") == ["memory.md:1: The **gate**."]

    def test_has_the_line_in_which_it_found_something(self, memory: WorkspaceMemory) -> None:
        lines = [f"line {number} of many" for number in range(1, 1001)]
        lines[700] += " zebra"
        memory.save("\n".join(lines) + "\n\nAt the end\nthere are\na zebra and a\nlion.")
        hits = memory.search("zebra")
        assert sorted(hit.line for hit in hits) == [701, 1004]
        assert all("**zebra**" in hit.text for hit in hits)
        (hit,) = memory.search("lion")
        assert (hit.line, hit.text) == (1005, "At the end there are a zebra and a **lion**.")

    @pytest.mark.parametrize("text", ["big " * 262_000, '{"big":1},' * 100_000, "big\n" * 262_000, "大" * 349_000])
    def test_is_quick_in_long_texts_that_have_a_word_often(self, memory: WorkspaceMemory, text: str) -> None:
        memory.save(text)
        memory.search("nothing of it")  # the index is made
        began = time.monotonic()
        hits = memory.search(text[:1] if text[0] == "大" else "big", 20)
        assert time.monotonic() - began < 5
        assert len(hits) == 20
        assert all(len(hit) < 1000 and "**" in hit for hit in hits)


@pytest.fixture
def disk(workspace: Workspace) -> Iterator[Path]:
    """Have our directory on a disk of 4 MB, and return it."""
    home = workspace.albedo_home
    home.mkdir(mode=0o700)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs", str(home)], check=False).returncode:
        pytest.skip("a disk cannot be mounted here")
    yield home
    subprocess.run(["umount", "--lazy", str(home)], check=True)


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb") as filler, contextlib.suppress(OSError):
        while True:
            os.write(filler.fileno(), bytes(4096))


class TestWithoutRoom:
    """A disk that is full, or may not be written, keeps nobody from reading what is there."""

    @pytest.mark.parametrize("trouble", ["full", "read-only"])
    @pytest.mark.parametrize("before", ["used before", "new"])
    def test_all_that_is_there_is_read(self, disk: Path, tmp_path: Path, trouble: str, before: str) -> None:
        here = Location(None, str(tmp_path))
        (tmp_path / "AGENTS.md").write_text("Mind the gap.")
        memory, workspace = WorkspaceMemory(here), Space(lambda: here)
        memory.append("The gate opens at 7.")
        WorkspaceMemory(THERE).append("The bridge opens at 8.")
        WorkspaceGroups().link(here, THERE)
        by_hand = disk / "memories" / "box--srv"
        by_hand.mkdir()
        (by_hand / "memory.md").write_text("By hand.")
        if before == "used before":
            assert memory.search("opens")
            Mirror().put_home("gpu", "/home/ann")
        if trouble == "full":
            fill(disk)
        else:
            disk.chmod(0o755)  # which cannot be mended there, and lets nobody change anything
            subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        assert memory.read() == f"The gate opens at 7.\n\n# Memory of {THERE} (linked)\n\nThe bridge opens at 8.\n"
        assert len(memory.grep("opens")) == 2
        for _ in range(2):
            assert sorted(memory.search("opens")) == [
                f"[{THERE}] memory.md:1: The bridge **opens** at 8.",
                "memory.md:1: The gate **opens** at 7.",
            ]
        assert WorkspaceMemory(Location.parse("box:/srv")).read() == "By hand."
        assert Space(lambda: here).news() == []
        context = io_thread.run_blocking(workspace.context(wait=0, memory_chars=1000))
        assert [each.text for each in context.instructions] == ["Mind the gap."]
        assert context.memory == "The gate opens at 7."
        assert context.linked_memory == ((str(THERE), "The bridge opens at 8."),)
        assert any("cannot be kept on this machine" in each for each in context.problems)
        if before == "used before":
            assert Mirror().home_of("gpu") == "/home/ann"
        with pytest.raises(MemoryFileError):
            memory.append("No room.")
        if trouble == "full":
            (disk / "filler").unlink()
            context = io_thread.run_blocking(workspace.context())
            assert context.problems == ()
            assert Mirror().get(here).state in ("ready", "unknown")
            memory.append("Room.")

    def test_files_that_are_damaged_are_made_anew_if_they_can_be(self, workspace: Workspace, tmp_path: Path) -> None:
        here = Location(None, str(tmp_path))
        (tmp_path / "AGENTS.md").write_text("Mind the gap.")
        workspace.albedo_home.mkdir()
        (workspace.albedo_home / "mirror.sqlite").write_bytes(b"no database" * 1000)
        context = io_thread.run_blocking(Space(lambda: here).context())
        assert ([each.text for each in context.instructions], context.problems) == (["Mind the gap."], ())
        assert Mirror().get(here).state == "ready"
        links = workspace.albedo_home / "links.sqlite"
        links.write_bytes(b"no database" * 1000)
        with pytest.raises(ConfigError, match=r"record of links in .* damaged: put a copy of it in its place"):
            WorkspaceMemory(here).read()
        assert links.read_bytes() == b"no database" * 1000
