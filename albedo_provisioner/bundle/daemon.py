"""How a keeper comes to be: out of the bridge's fork, away from the connection, its kernel first.

The kernel takes a third of a second to start, so it is started before anything else is imported or looked up; what the
keeper needs is made ready meanwhile.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from typing import Any, NoReturn

from . import processes, rundir
from .entry import missing
from .spawn import folder_path, spawn

_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36


def main(path: str, request: dict[str, Any], listener: socket.socket, told: int) -> NoReturn:
    """Become the keeper of a new kernel; never returns.

    Args:
        path: the run directory, which is the current directory.
        request: the start request.
        listener: the keeper's socket, listening.
        told: a pipe on which to say, once, `{}` or why there will be no keeper.
    """
    status = 1
    try:
        status = _run(path, request, listener, told)
    except BaseException as error:  # noqa: BLE001 - whatever it was, the client has to hear of it
        import traceback

        traceback.print_exc()
        answer = json.dumps({"error": "keeper", "detail": f"{type(error).__name__}: {error}"}).encode()
        try:
            os.write(told, answer)
        except OSError:
            pass  # it was told already, and is closed
        _end_kernel(request["kernel_id"])
        rundir.remove(path)
    finally:
        os._exit(status)  # not back into the bridge's code, which we are a copy of


def _run(path: str, request: dict[str, Any], listener: socket.socket, told: int) -> int:
    os.setsid()
    subreaper = _become_subreaper()
    _leave_connection(path)
    wake = _wake_on_signals()
    answer: dict[str, Any] = {}
    try:
        pid = spawn(path, request["kernel_id"], request["kernel"])
    except OSError as error:
        answer = {"error": "spawn", "argv": request["kernel"]["argv"], "detail": error.strerror or str(error)}
    lacking = missing(["zmq", *request["needs"]])
    if lacking:
        answer = {"error": "packages", "lacking": lacking, "python": sys.executable}
    if answer:
        _end_kernel(request["kernel_id"])
        rundir.remove(path)
        os.write(told, json.dumps(answer).encode())
        return 0
    from .keeper import Keeper

    keeper = Keeper(path, request, listener, wake, subreaper)
    keeper.kernel.spawned(pid, folder_path(request["kernel"]["cwd"]))
    os.write(told, b"{}")
    os.close(told)
    keeper.run()
    return 0


def _end_kernel(kernel_id: str) -> None:
    from .ladder import Ladder

    Ladder([], own_children=True, mark=kernel_id, term_grace=0, reap=processes.reap).run()


def _become_subreaper() -> bool:
    """Have every orphan of the kernel's handed to us, so that none is lost sight of; where the system can (Linux)."""
    if sys.platform != "linux":
        return False
    import ctypes

    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_NAME, b"albedo-keeper", 0, 0, 0)
    return bool(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def _leave_connection(path: str) -> None:
    """Give up the connection's descriptors: it must be able to end while we go on."""
    null = os.open(os.devnull, os.O_RDWR)
    log = rundir.private_file(os.path.join(path, rundir.KEEPER_LOG))
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.dup2(log, 2)
    os.close(null)
    os.close(log)


def _wake_on_signals() -> int:
    """Return a descriptor that gets a byte with the number of each signal that concerns a keeper."""
    wake, alarm = os.pipe()
    for descriptor in (wake, alarm):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
    for signum in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(signum, lambda *_: None)
    for signum in (signal.SIGHUP, signal.SIGINT):
        signal.signal(signum, signal.SIG_IGN)
    return wake
