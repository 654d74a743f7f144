"""Starting the kernel's process: its environment, its connection file, its place in the system."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import sys
import time
from typing import Any

from . import kernelspecs, rundir

MARK = "ALBEDO_KERNEL_ID"
"""Environment variable that every process of a kernel inherits, so that none is overlooked when it ends."""

LEAST_FILES = 72
"""Open files without which no Python kernel gets to its first cell: it has 64 from the start."""

FEW_FILES = 256
"""Open files that are few: who has fewer is given more, as far as the account may have them."""

_ENOUGH_FILES = 1024

KEEPER_TASKS, KERNEL_TASKS = 3, 12
"""Processes and threads that a keeper and a Python kernel are, and take (`ulimit -u` counts both). With one less a
kernel of ipykernel 7 gets to its first cell at times, with two less never."""

_SETTLED = 1.0
"""Seconds within which what brought us here (the login's shells, what watched them) has ended."""

_NAME = re.compile(r"\$(?:(\$)|([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})")


def folder_path(text: str) -> str:
    """Return the path of a location (absolute, or beginning with `~`) as an absolute path on this host."""
    return os.path.abspath(os.path.expanduser(text))


def environment(wanted: dict[str, str], base: dict[str, str]) -> dict[str, str]:
    """Return the login environment with what the kernelspec and the client want added.

    `$NAME` and `${NAME}` in a wanted value stand for variables of this host's environment, as Jupyter does it for
    local kernels with the variables there; unknown names stay as they are.
    """

    def value_of(match: re.Match[str]) -> str:
        if match[1]:
            return "$"
        return base.get(match[2] or match[3], match[0])

    return {**base, **{name: _NAME.sub(value_of, value) for name, value in wanted.items()}}


def write_connection_file(path: str, spec: dict[str, Any]) -> str:
    """Write the kernel's connection file into its run directory and return its path.

    The kernel listens on ipc sockets there: no TCP port, nothing for another user of the host to connect to.
    """
    content = {
        "transport": "ipc",
        "ip": rundir.socket_base(path),
        "shell_port": 1,
        "iopub_port": 2,
        "stdin_port": 3,
        "control_port": 4,
        "hb_port": 5,
        "key": spec["key"],
        "signature_scheme": spec["signature_scheme"],
        "kernel_name": spec.get("kernel_name", ""),
        "jupyter_session": spec.get("env", {}).get("JPY_SESSION_NAME", ""),
    }
    file = os.path.join(path, rundir.CONNECTION)
    with os.fdopen(rundir.private_file(file), "w") as stream:
        json.dump(content, stream)
    return file


def spawn(path: str, kernel_id: str, spec: dict[str, Any]) -> int:
    """Start the kernel in its folder, in a session of its own, and return its pid.

    Raises:
        OSError: the folder cannot be entered or the program cannot be run.
        UnknownKernelspecError: it is to be that of a kernelspec of this host, and there is no such one.
    """
    wanted = spec.get("env", {})
    if spec.get("kernelspec"):
        # Looked up at every start, so that what becomes of the kernelspec here is followed.
        command, given = kernelspecs.command(spec["kernelspec"], spec.get("arguments", []))
        wanted = {**given, **wanted}
    else:
        command = spec["argv"]
    file = write_connection_file(path, spec)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(path, rundir.BEGUN))  # of the kernel before this one
    names = {
        "python": sys.executable,
        "launcher": os.path.join(os.path.dirname(os.path.abspath(__file__)), "launcher.py"),
        "connection_file": file,
    }
    argv = [re.sub(r"\{(python|launcher|connection_file)\}", lambda m: names[m[1]], word) for word in command]
    env = environment(wanted, dict(os.environ))
    cwd = folder_path(spec["cwd"])
    env[MARK] = kernel_id
    env["PWD"] = cwd
    log = rundir.private_file(os.path.join(path, rundir.LOG))
    try:
        os.chdir(cwd)
        return _posix_spawn(argv, env, log)
    finally:
        os.close(log)
        os.chdir(path)


def _posix_spawn(argv: list[str], env: dict[str, str], log: int) -> int:
    # Python ignores SIGPIPE and SIGXFSZ for itself; a kernel and its children must start with the defaults.
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, log, 1),
        (os.POSIX_SPAWN_DUP2, log, 2),
    ]
    defaults = [signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT]
    defaults += [signal.SIGTERM, signal.SIGCHLD]
    try:
        return os.posix_spawnp(argv[0], argv, env, file_actions=actions, setsid=True, setsigmask=[], setsigdef=defaults)
    except NotImplementedError:  # a C library without POSIX_SPAWN_SETSID: a process group has to do
        return os.posix_spawnp(argv[0], argv, env, file_actions=actions, setpgroup=0, setsigdef=defaults)


def last_words(path: str, most: int = 4000) -> str:
    """Return the end of what the kernel printed outside Jupyter's channels, at most so many bytes of it."""
    try:
        with open(os.path.join(path, rundir.LOG), "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - most))
            return file.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""


def raise_file_limit() -> int:
    """Have this process, and the kernel that it starts, open more files if the login allows few; return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH_FILES)
    if soft == resource.RLIM_INFINITY or soft >= FEW_FILES or most <= soft:
        return soft if soft != resource.RLIM_INFINITY else sys.maxsize
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


def task_room(wanted: int = 0) -> tuple[int, int] | None:
    """Return how many processes and threads the account may have here (`ulimit -u`), and how many it has now, ours
    included; None where there is no limit, as for root, or where they cannot be counted.

    Args:
        wanted: for how many more there should be room; if there is not, what just ends is waited for.
    """
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if limit == resource.RLIM_INFINITY or os.geteuid() == 0:
        return None
    deadline = time.monotonic() + _SETTLED
    while (count := _count_tasks()) and limit - count < wanted and time.monotonic() < deadline:
        time.sleep(0.05)
    return (limit, count) if count else None


def _count_tasks() -> int:
    """Return how many processes and threads the account has here; 0 where they cannot be counted."""
    count = 0
    try:
        with os.scandir("/proc") as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError, PermissionError, ProcessLookupError):  # it has ended
                    if entry.name.isdecimal() and entry.stat().st_uid == os.getuid():
                        count += len(os.listdir(f"/proc/{entry.name}/task"))
    except OSError:
        return 0
    return count


def memory_limit() -> int | None:
    """Return how much address space one process may have here (`ulimit -v`), in bytes; None for as much as it likes."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def recorded_process(record: dict[str, Any]) -> tuple[int, int] | None:
    """Return the identity of the kernel in a record (see `rundir.py`), which may have ended; None when it cannot live.

    Start times count from the system's start, so after a restart of the host a stranger may have the same identity.
    """
    if not record.get("pid") or not record.get("start") or record.get("boot_id") not in (None, boot_id()):
        return None
    return int(record["pid"]), int(record["start"])


def boot_id() -> str:
    """Return what tells one run of this host from the next, or an empty string where there is no such thing."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""
