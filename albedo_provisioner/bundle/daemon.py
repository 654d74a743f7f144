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
from .entry import is_without_room, missing, without
from .kernelspecs import UnknownKernelspecError
from .logind import outlive_login
from .place import KEEPER_NAME
from .spawn import LEAST_FILES, folder_path, raise_file_limit, spawn

TYPE_CHECKING = False  # not from typing: see processes.py
if TYPE_CHECKING:
    from .keeper import Keeper

_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36


def main(
    path: str, request: dict[str, Any], listener: socket.socket, told: int, adopted: dict[str, Any] | None
) -> NoReturn:
    """Become the keeper of a kernel; never returns.

    A keeper that fails once it has begun leaves its kernel running: the next contact has it adopted.

    Args:
        path: the run directory, which is the current directory.
        request: the start request; for an adopted kernel, the attach request with the kernel's settings.
        listener: the keeper's socket, listening.
        told: a pipe on which to say, once, `{}` or why there will be no keeper.
        adopted: the record of the running kernel to take charge of; None to start one.
    """
    status = 1
    try:
        keeper = _begin(path, request, listener, adopted)
        if isinstance(keeper, dict):
            _undo(path, request["kernel_id"], adopted)
            _tell(told, keeper)
        else:
            _tell(told, {})
            os.close(told)
            told = -1
            keeper.run()
            status = 0
    except BaseException as error:  # noqa: BLE001 - whatever it was, the client has to hear of it
        if told >= 0:
            _undo(path, request["kernel_id"], adopted)
            if isinstance(error, OSError) and is_without_room(error):
                _tell(told, {"error": "staging", "path": path, "detail": error.strerror})
            else:
                from . import caches, shadows

                said = caches.words_of(error) or shadows.words_of(error) or f"{type(error).__name__}: {error}"
                _tell(told, {"error": "keeper", "detail": said})
        import traceback

        traceback.print_exc()  # only now: the log's disk may be full, and then this fails, too
    finally:
        os._exit(status)  # not back into the bridge's code, which we are a copy of


def _tell(descriptor: int, answer: dict[str, Any]) -> None:
    data = json.dumps(answer).encode()
    while data:
        data = data[os.write(descriptor, data) :]


def _begin(
    path: str, request: dict[str, Any], listener: socket.socket, adopted: dict[str, Any] | None
) -> Keeper | dict[str, Any]:
    """Return a keeper with its kernel, or why there is none."""
    os.setsid()
    _leave_connection(path)
    wake = _wake_on_signals()
    pid = 0
    files = raise_file_limit()
    if adopted is None:
        if files < LEAST_FILES and not request["kernel"].get("kernelspec"):  # what others take is not known
            return {"error": "files", "limit": files}
        try:
            pid = spawn(path, request["kernel_id"], request["kernel"])
        except OSError as error:
            detail = error.strerror or str(error)
            if is_without_room(error):  # it is the run directory that has none
                return {"error": "staging", "path": path, "detail": detail}
            return {"error": "spawn", "program": error.filename or "the kernel", "detail": detail}
        except UnknownKernelspecError as error:
            return {"error": "kernelspec", "detail": str(error)}
    # Only now: it imports ctypes, and the kernel has no orphans for as long as it is still starting.
    subreaper = _become_subreaper()
    lacking = missing(["zmq", *request.get("needs", ())], request.get("provide", True))
    if lacking:
        return {"error": "packages", **without(lacking)}
    from .keeper import Keeper

    keeper = Keeper(path, request, listener, wake, subreaper)
    if adopted is None:
        keeper.kernel.spawned(pid, folder_path(request["kernel"]["cwd"]))
    elif not keeper.kernel.adopt(adopted):
        return {"error": "gone"}  # it ended just now
    keeper.warning = outlive_login([os.getpid(), keeper.kernel.pid], f"{request['kernel_id']}-{os.getpid()}")
    return keeper


def _undo(path: str, kernel_id: str, adopted: dict[str, Any] | None) -> None:
    if adopted is None:
        _end_kernel(kernel_id)
        rundir.remove(path)


def _end_kernel(kernel_id: str) -> None:
    from .ladder import Ladder

    Ladder([], own_children=True, mark=kernel_id, term_grace=0, reap=processes.reap).run()


def _become_subreaper() -> bool:
    """Have every orphan of the kernel's handed to us, so that none is lost sight of; where the system can (Linux)."""
    if sys.platform != "linux":
        return False
    import ctypes

    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_NAME, KEEPER_NAME.encode(), 0, 0, 0)
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
