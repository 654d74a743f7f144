"""The processes that a benchmark makes: found by a mark in their environment, weighed, and ended at the end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

MARK = "ALBEDO_BENCHMARK"
"""Environment variable of all that a run starts: `<run>:<column>:<side>`, the side being "client" or "host"."""


def marked(prefix: str) -> list[psutil.Process]:
    """Return the processes whose mark begins with this, but not ourselves."""
    wanted = f"{MARK}={prefix}".encode()
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            environ = Path(f"/proc/{process.pid}/environ").read_bytes()
            if any(entry.startswith(wanted) for entry in environ.split(b"\0")):
                found.append(process)
        except OSError:
            continue  # gone meanwhile, or not ours to look at
    return found


def helpers(prefix: str) -> list[psutil.Process]:
    """Return the marked processes that are no kernel: what a provisioner keeps running beside it."""
    found = []
    for process in marked(prefix):
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if words and not any("ipykernel_launcher" in word or word.endswith("launcher.py") for word in words):
            found.append(process)
    return found


def mentioning(text: str) -> list[psutil.Process]:
    """Return the processes with this in their command line. OpenSSH's shared connections write their title over their
    environment, and with it the mark.
    """
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and any(text in word for word in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue  # gone meanwhile
    return found


def sessions(sshd: int) -> list[psutil.Process]:
    """Return an sshd's connections: its children."""
    children: list[psutil.Process] = psutil.Process(sshd).children()
    return children


def bridges(sshd: int) -> list[psutil.Process]:
    """Return what runs at the other end of our channels: the `cat`s below an sshd."""
    return [process for process in psutil.Process(sshd).children(recursive=True) if process.name() == "cat"]


def kill_sessions(sshd: int) -> None:
    """Kill an sshd's connections, but not what runs on them: each is a process, or two, as the server's kind is."""
    for session in sessions(sshd):
        for process in (session, *(p for p in session.children(recursive=True) if p.name().startswith("sshd"))):
            _signal(process, signal.SIGKILL)


def memory(process: psutil.Process) -> tuple[float, float]:
    """Return resident and proportional set size, in bytes (0 where the system does not tell)."""
    try:
        full = process.memory_full_info()
    except psutil.Error:
        return 0.0, 0.0
    return float(full.rss), float(getattr(full, "pss", 0))


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """Return the processor time that these have used, all threads."""
    return sum(_cpu(process) for process in processes)


def _cpu(process: psutil.Process) -> float:
    try:
        # In nanoseconds, where `cpu_times` counts in hundredths of a second.
        tasks = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
        precise = [int(task.read_text().split()[0]) / 1e9 for task in tasks]
        if any(precise):
            return sum(precise)
        times = process.cpu_times()
        return float(times.user + times.system)
    except (OSError, psutil.Error):
        return 0.0


def end(processes: list[psutil.Process]) -> None:
    """Kill these and wait until they are gone."""
    for process in processes:
        _signal(process, signal.SIGKILL)
    psutil.wait_procs(processes, timeout=5)


def wait_until(true: Callable[[], bool], seconds: float, what: str, pause: float = 0.001) -> None:
    """Wait for something.

    Raises:
        TimeoutError: it did not come about in time.
    """
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(pause)


def _signal(process: psutil.Process, signum: int) -> None:
    try:
        process.send_signal(signum)
    except psutil.NoSuchProcess:
        pass  # it ended by itself
