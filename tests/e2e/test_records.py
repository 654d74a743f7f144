"""The records of kernels, used by several processes at once."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from albedo_provisioner.kernels.records import ENDING, LIVE, KernelRecord, KernelRecords, this_process
from albedo_provisioner.location import Location

if TYPE_CHECKING:
    from conftest import Workspace

HERE = Location.parse("gpu:/srv/data")
NOTEBOOK = "/nb/a.ipynb"

PREPARED = """
import sys
from albedo_provisioner.kernels.records import ENDING, KernelRecord, KernelRecords
from albedo_provisioner.location import Location
here = Location.parse("gpu:/srv/data")
print("ready", flush=True)
word = sys.stdin.readline().strip()
"""
CLAIM = (
    PREPARED
    + """
found = KernelRecords().claim(here, "/nb/a.ipynb", None)
print(found.kernel_id if found else "none", flush=True)
sys.stdin.readline()
"""
)
WRITE = (
    PREPARED
    + """
for number in range(25):
    kernel_id = f"{word}-{number}"
    KernelRecords().put(KernelRecord(kernel_id, here, "", {}))
    KernelRecords().set_state(kernel_id, ENDING)
    if number % 2:
        KernelRecords().remove(kernel_id)
print("done", flush=True)
sys.stdin.readline()
"""
)


class AtOnce:
    """Processes that run one program, begun at the same moment, which live until `end`.

    Attributes:
        answers: what each has printed.
    """

    def __init__(self, program: str, words: Sequence[str]) -> None:
        command = [sys.executable, "-c", program]
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in words
        ]
        assert [self._line(process) for process in self._processes] == ["ready"] * len(words)
        for process, word in zip(self._processes, words, strict=True):
            assert process.stdin is not None
            process.stdin.write(word + "\n")
            process.stdin.flush()
        self.answers = [self._line(process) for process in self._processes]

    def _line(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline().strip()

    def end(self) -> None:
        """Have them end."""
        for process in self._processes:
            process.communicate("\n")


def record(
    kernel_id: str = "one", notebook: str = NOTEBOOK, folder: Location = HERE, state: str = LIVE, used: bool = False
) -> KernelRecord:
    """Return a record, of a kernel whose process here is this one or has ended."""
    _, start, boot = this_process()
    owner = this_process() if used else (1, start, boot)  # process 1 is there, and was not started when we were
    return KernelRecord(kernel_id, folder, notebook, {"key": "secret"}, state, owner)


def test_a_kernel_is_claimed_by_one_process_alone() -> None:
    """L3: of several that claim at once, and by no other as long as that one lives."""
    KernelRecords().put(record())
    several = AtOnce(CLAIM, ["go"] * 6)
    assert sorted(several.answers) == ["none"] * 5 + ["one"]
    assert KernelRecords().claim(HERE, NOTEBOOK, None) is None
    several.end()
    found = KernelRecords().claim(HERE, NOTEBOOK, None)
    assert found is not None
    assert found.kernel_id == "one"


def test_two_kernels_go_to_two_processes() -> None:
    """L3."""
    for kernel_id in ("one", "two"):
        KernelRecords().put(record(kernel_id))
    several = AtOnce(CLAIM, ["go"] * 4)
    several.end()
    assert sorted(several.answers) == ["none", "none", "one", "two"]


def test_a_claim_that_could_not_be_used_is_given_back() -> None:
    """L4."""
    KernelRecords().put(record())
    claimed = KernelRecords().claim(HERE, NOTEBOOK, None)
    assert claimed is not None
    assert KernelRecords().claim(HERE, NOTEBOOK, None) is None
    KernelRecords().give_back(claimed)
    assert KernelRecords().claim(HERE, NOTEBOOK, None) == claimed


@pytest.mark.parametrize(
    "changes",
    [{"used": True}, {"state": ENDING}, {"notebook": "/nb/b.ipynb"}, {"folder": Location.parse("gpu:/srv/other")}],
    ids=["in use", "to be ended", "another notebook", "another folder"],
)
def test_what_is_not_there_to_be_had_is_not_claimed(changes: dict[str, object]) -> None:
    """L3."""
    KernelRecords().put(record(**changes))  # type: ignore[arg-type]
    before = KernelRecords().all()
    assert KernelRecords().claim(HERE, NOTEBOOK, None) is None
    assert KernelRecords().all() == before


def test_many_processes_that_begin_with_no_file_lose_no_record(workspace: Workspace) -> None:
    """The file is made by all of them at once, and is private."""
    several = AtOnce(WRITE, [f"p{number}" for number in range(6)])
    several.end()
    assert several.answers == ["done"] * 6
    found = {each.kernel_id: each.state for each in KernelRecords().all()}
    assert found == {f"p{process}-{number}": ENDING for process in range(6) for number in range(0, 25, 2)}
    for path in workspace.albedo_home.glob("kernels.sqlite*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(os.stat(workspace.albedo_home).st_mode) == 0o700
