"""Processes of this machine as /proc shows them, and how to wait and to kill without hitting the wrong one."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


_KERNEL_THREAD = 0x00200000
"""Of the flags in /proc/<pid>/stat: PF_KTHREAD of the kernel's include/linux/sched.h."""


@dataclass(frozen=True)
class Process:
    """One process at one moment. All of it is read at that moment, and parsed when it is asked for: tests look often.

    Attributes:
        pid, ppid: its id and its parent's.
        uid: the real user id.
        state: the letter of /proc/<pid>/stat; "Z" is a zombie.
        started: start time in clock ticks since boot; with `pid` it names the process for good.
        exe: the name of the running program's file; "" when it may not be read.
    """

    pid: int
    ppid: int
    uid: int
    state: str
    started: int
    command_line: bytes
    environment: bytes
    exe: str

    @functools.cached_property
    def argv(self) -> tuple[str, ...]:
        """The command line."""
        return tuple(part.decode(errors="replace") for part in self.command_line.split(b"\0")[:-1])

    @functools.cached_property
    def environ(self) -> dict[str, str]:
        """The environment it was started with; empty when it may not be read."""
        parts = (part.decode(errors="replace").partition("=") for part in self.environment.split(b"\0"))
        return {name: value for name, found, value in parts if found}

    def __str__(self) -> str:
        text = " ".join(self.argv) or f"({self.exe or 'no command line'})"
        kernel = self.environ.get("ALBEDO_KERNEL_ID")
        notes = [f"ppid {self.ppid}", f"uid {self.uid}"]
        if self.state == "Z":
            notes.append("zombie: its parent has not waited for it")
        if kernel:
            notes.append(f"ALBEDO_KERNEL_ID={kernel}")
        return f"process {self.pid} ({', '.join(notes)}): {text[:300]}"


def read(pid: int) -> Process | None:
    """Return the process, or None if there is none (any more), or it is a thread of the system's kernel."""
    root = f"/proc/{pid}/"
    try:
        # The command name in parentheses may hold blanks and parentheses itself.
        fields = _content(root + "stat").rpartition(b")")[2].split()
        if int(fields[6]) & _KERNEL_THREAD:
            return None
        uid = int(_content(root + "status").partition(b"\nUid:")[2].split(None, 1)[0])
        command_line = _content(root + "cmdline")
    except (OSError, IndexError):
        return None
    environment, exe = b"", ""
    with contextlib.suppress(OSError):
        environment = _content(root + "environ")
    with contextlib.suppress(OSError):
        exe = os.path.basename(os.readlink(root + "exe")).removesuffix(" (deleted)")
    return Process(pid, int(fields[1]), uid, fields[0].decode(), int(fields[19]), command_line, environment, exe)


def _content(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def everyone() -> Iterator[Process]:
    """Yield all processes of this machine."""
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (process := read(int(entry))) is not None:
            yield process


def descendants(pid: int) -> list[Process]:
    """Return all processes below `pid`."""
    by_parent: dict[int, list[Process]] = {}
    for process in everyone():
        by_parent.setdefault(process.ppid, []).append(process)
    found: list[Process] = []
    todo = [pid]
    while todo:
        children = by_parent.get(todo.pop(), [])
        found += children
        todo += [child.pid for child in children]
    return found


def send(process: Process, number: signal.Signals) -> None:
    """Signal exactly this process; nothing happens if it has ended, even if its id was given away again."""
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(process.pid)
        try:
            now = read(process.pid)
            if now is not None and now.started == process.started:
                signal.pidfd_send_signal(pidfd, number)
        finally:
            os.close(pidfd)


def alive(pid: int) -> bool:
    """Say whether the process exists and is no zombie."""
    process = read(pid)
    return process is not None and process.state != "Z"


def wait_until(condition: Callable[[], T], seconds: float = 10.0, what: str = "") -> T:
    """Ask again and again until the answer is true, and return it.

    Raises:
        TimeoutError: it was not true within `seconds`.
    """
    deadline = time.monotonic() + seconds
    pause = 0.002
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:g} s: {what or condition}; the last answer was {answer!r}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)
    return answer
