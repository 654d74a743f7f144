"""Finds what a test left behind on this machine: processes, and files in the temporary directory."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
from collections.abc import Callable, Iterable
from pathlib import Path

from procs import Process, everyone, send, wait_until

# In the environment of whatever a test of this run starts, at any depth, detached or not.
MARK = "ALBEDO_TEST_RUN"
TOKEN = f"{os.getpid()}-{secrets.token_hex(6)}"

# What the fixtures keep beyond a test or end themselves: each answers with the ids of processes.
kept: list[Callable[[], Iterable[int]]] = []


def mine() -> list[Process]:
    """Return the processes that this run of the suite started and that exist, but those that the fixtures keep.

    Children of this process count as well when they were started with another environment. Zombies count if they are
    children: somebody here did not wait for them. Other zombies are nobody's fault: in many containers process 1
    waits for nobody.
    """
    own = os.getpid()
    excused = {own, *(pid for pids in kept for pid in pids())}
    return [
        process
        for process in everyone()
        if process.pid not in excused
        and (process.ppid == own or (process.environ.get(MARK) == TOKEN and process.state != "Z"))
    ]


def leaked_processes(before: Iterable[Process]) -> list[Process]:
    """Return the processes of this run that were not there before the test, and every one that runs our code."""
    known = {(process.pid, process.started) for process in before}
    return [
        process
        for process in mine()
        if (process.pid, process.started) not in known
        or "ALBEDO_KERNEL_ID" in process.environ
        or any(".albedo-remote/" in part for part in process.argv)
    ]


def settled(findings: Callable[[], list[str]], seconds: float = 5.0) -> list[str]:
    """Return what `findings` still finds after at most that long; [] as soon as it finds nothing."""
    found: list[str] = []

    def nothing() -> bool:
        found[:] = findings()
        return not found

    with contextlib.suppress(TimeoutError):
        wait_until(nothing, seconds)
    return found


def kill(processes: Iterable[Process]) -> None:
    """End what was left, so that later tests are not blamed for it."""
    for process in processes:
        send(process, signal.SIGKILL)
        if process.ppid == os.getpid() and process.state == "Z":
            try:
                os.waitpid(process.pid, os.WNOHANG)
            except ChildProcessError:
                pass  # its owner has waited for it after all


def temporary_files(directory: Path) -> list[Path]:
    """Return what lies in a temporary directory and bears our name."""
    return sorted(directory.glob("albedo*"))
