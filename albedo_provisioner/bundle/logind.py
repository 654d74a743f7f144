"""Outliving a login on hosts where systemd ends all processes of an account with its last login.

With `KillUserProcesses=yes` in logind.conf(5) a link that breaks takes the kernel with it. Two things together keep it:
the processes have to leave the login's scope for one of the account's own service manager, which any account may
do; and that manager has to stay when nobody is logged in (`loginctl enable-linger`), which we leave to the user: it
lasts, and starts the account's services at every boot.
"""

from __future__ import annotations

import os
import re
import select
import signal
import time
from collections.abc import Sequence

_TIMEOUT = 3.0
"""Seconds for one question; they take 15 ms each."""

_LOGIND = ("org.freedesktop.login1", "/org/freedesktop/login1")

ENABLE_LINGER = "loginctl enable-linger"


def outlive_login(pids: Sequence[int], name: str) -> str | None:
    """See to it that processes outlive the login that they were started in.

    Args:
        pids: the processes, ours among them; those that they have started so far must be among them too.
        name: for their scope: letters, digits and dashes.

    Returns:
        None when they outlive it, as far as can be known; else why they will not, in words that follow the host's name.
    """
    threat = threat_of_logout()
    if threat is None or ENABLE_LINGER in threat:
        return threat
    problem = _move(pids, f"albedo-{name}.scope")
    return None if problem is None else f"{threat}, and the kernel could not be moved out of it: {problem}"


def threat_of_logout() -> str | None:
    """Return what this host does to a kernel when its login ends, in words that follow the host's name.

    None when it does nothing. Where the words name no command, moving the processes keeps them.
    """
    if not _in_login() or _ask(*_LOGIND, "org.freedesktop.login1.Manager", "KillUserProcesses") != "b true":
        return None
    ends = "ends all processes of an account with its last login (KillUserProcesses of systemd-logind)"
    if _ask(_LOGIND[0], f"{_LOGIND[1]}/user/self", "org.freedesktop.login1.User", "Linger") == "b true":
        return ends
    return f"{ends}, so a link that breaks would end the kernel. To keep kernels, run there once: {ENABLE_LINGER}"


def _in_login() -> bool:
    """Whether we run in the scope of a login, by our control group (v1 or v2)."""
    try:
        with open("/proc/self/cgroup") as file:
            return any(re.search(r"/session-[^/]*\.scope(/|$)", line.rstrip("\n")) for line in file)
    except OSError:
        return False


def _ask(service: str, path: str, interface: str, name: str) -> str | None:
    """Return a property as busctl prints it; None when nobody answers."""
    status, said = _busctl("get-property", service, path, interface, name)
    return said if status == 0 else None


def _move(pids: Sequence[int], scope: str) -> str | None:
    """Move processes into a new scope of the account's own service manager; None when that was done, else why not."""
    status, said = _busctl(
        *("--user", "call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1"),
        *("org.freedesktop.systemd1.Manager", "StartTransientUnit", "ssa(sv)a(sa(sv))", scope, "fail"),
        *("2", "PIDs", "au", str(len(pids)), *map(str, pids)),
        *("Description", "s", "Jupyter kernel and its keeper", "0"),
    )
    return None if status == 0 else (said or f"busctl ended with status {status}")


def _busctl(*arguments: str) -> tuple[int, str]:
    """Run busctl; return its exit status (127: there is none, 124: it took too long) and what it printed.

    Not by `subprocess`, which would cost every keeper a megabyte for as long as it lives.
    """
    env = {**os.environ, "XDG_RUNTIME_DIR": os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"}
    reading, writing = os.pipe()
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, writing, 1),
        (os.POSIX_SPAWN_DUP2, writing, 2),
    ]
    said = b""
    try:
        pid = os.posix_spawnp("busctl", ["busctl", *arguments], env, file_actions=actions)
    except OSError as error:
        os.close(reading)
        return 127, str(error.strerror)
    finally:
        os.close(writing)
    deadline = time.monotonic() + _TIMEOUT
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            piece = pipe.read(4096)
            if not piece:
                break
            said += piece
        else:
            os.kill(pid, signal.SIGKILL)  # our child, and not waited for yet
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return (124 if status < 0 else status), said.decode("utf-8", "replace").strip()
