"""The kernel's side of the conversation with its jobs' supervisor, which is made at the first job.

Each request has a connection of its own, so that nothing has to be sorted out between threads, and a KeyboardInterrupt
leaves nothing behind: the connection is closed, by which the supervisor knows that nobody waits any more. Forked
children may ask as well.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import socket
import subprocess
import sys
import threading
import time
from typing import Any

from . import ROOT, rundir
from .job_wire import SOCKET, Talk, TalkError
from .processes import MARK

LOG = "jobs.log"
FOLDER = "jobs"

_MAIN = """
import os, sys
root = sys.argv.pop()
with open(os.path.join(root, "albedo_bundle", "mending.py"), encoding="utf-8") as file:
    exec(file.read())
mend_below(os.path.dirname(root))
sys.path.append(root)
from albedo_bundle import supervisor
supervisor.main()
"""

_NUDGE = 0.25
"""Seconds after which a wait in an event loop goes round again: ipykernel has its loop know of an interrupt only when
something else makes the loop go on."""

_lock = threading.Lock()
os.register_at_fork(after_in_child=lambda: globals().update(_lock=threading.Lock()))


class SupervisorLostError(Exception):
    """There is no supervisor, or it ended before it answered; the words say why."""


def converse(
    content: dict[str, Any], descriptors: tuple[int, ...] = (), timeout: float | None = None, start: bool = False
) -> dict[str, Any]:
    """Ask the supervisor for something, and wait for its answer.

    Args:
        content: the request, see `supervisor.py`.
        descriptors: what goes with it; they are closed.
        timeout: seconds to wait; None waits as long as it takes.
        start: start a supervisor if there is none.

    Raises:
        SupervisorLostError: there is none, or it is gone.
        TimeoutError: no answer in time.
        OSError: it could not be started.
        ValueError: the request is too long.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    talk = _open(content, descriptors, start)
    try:
        poll = select.poll()
        while True:
            if not talk.flush():
                raise _lost()
            poll.register(talk.connection, select.POLLIN | (select.POLLOUT if talk.waiting else 0))
            left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
            if not poll.poll(left):
                raise TimeoutError
            if (answer := _heard(talk)) is not None:
                return answer
    finally:
        talk.close()


async def converse_async(content: dict[str, Any]) -> dict[str, Any]:
    """Do as `converse` from an asyncio task, which other tasks go on beside.

    Raises:
        SupervisorLostError: as `converse`.
    """
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    talk = _open(content, (), False)
    loop.add_reader(talk.connection, ready.set)
    try:
        while True:
            if not talk.flush():
                raise _lost()
            try:
                async with asyncio.timeout(_NUDGE):
                    await ready.wait()
            except TimeoutError:
                continue
            ready.clear()
            if (answer := _heard(talk)) is not None:
                return answer
    finally:
        loop.remove_reader(talk.connection)
        talk.close()


def _heard(talk: Talk) -> dict[str, Any] | None:
    try:
        frames = talk.hear()
    except (EOFError, TalkError):
        raise _lost() from None
    return frames[0] if frames else None


def _lost() -> SupervisorLostError:
    try:
        with open(os.path.join(_run_directory(), LOG), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 1000))
            words = file.read().decode("utf-8", "replace").strip().splitlines()
    except OSError:
        words = []
    return SupervisorLostError(words[-1] if words else "it was killed")


def _open(content: dict[str, Any], descriptors: tuple[int, ...], start: bool) -> Talk:
    try:
        connection = _connect(start)
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    talk = Talk(connection)
    try:
        talk.say(content, descriptors)
    except BaseException:
        talk.close()
        raise
    return talk


def _connect(start: bool) -> socket.socket:
    directory = _run_directory()
    path = rundir.socket_base(directory) + SOCKET
    connection = _try_to_connect(path)
    if connection is None and start:
        with _lock:
            lock = os.open(os.path.join(directory, rundir.LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)  # forked children may have the same idea
                connection = _try_to_connect(path)
                if connection is None:
                    _start(directory, path)
                    connection = _try_to_connect(path)
            finally:
                os.close(lock)
    if connection is None:
        raise _lost()
    return connection


def _try_to_connect(path: str) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    except BaseException:
        connection.close()
        raise
    return connection


def _start(directory: str, path: str) -> None:
    """Start a supervisor. Its socket listens before it does, so that nobody has to wait for it."""
    folder = os.path.join(directory, FOLDER)
    os.makedirs(folder, 0o700, exist_ok=True)
    if os.path.lexists(path):
        os.unlink(path)  # of one before
    log = rundir.private_file(os.path.join(directory, LOG))
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(path)
            listener.listen(128)
            # Whatever cells have done to the environment: by the mark nothing of a kernel is overlooked at its end.
            environment = {**os.environ, MARK: os.path.basename(directory)}
            # As our own modules need no others: -I and -S keep what the user has on the path out, and make it quick.
            command = [sys.executable, "-I", "-S", "-c", _MAIN, str(listener.fileno()), folder, ROOT]
            _children.append(
                subprocess.Popen(
                    command,
                    cwd=directory,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(listener.fileno(),),
                    start_new_session=True,
                )
            )
    finally:
        os.close(log)


_children: list[subprocess.Popen[bytes]] = []  # so that they are waited for when they have ended


def _run_directory() -> str:
    """Return the kernel's run directory.

    Raises:
        RuntimeError: this process is no kernel.
    """
    from ipykernel.connect import get_connection_file

    try:
        return os.path.dirname(get_connection_file())
    except RuntimeError:
        raise RuntimeError(
            "Jobs are run by kernels of albedo_provisioner, and this process is none; subprocess does it here."
        ) from None
