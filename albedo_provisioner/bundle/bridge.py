"""Handing a connection to a keeper, and making the keeper when there is none.

The process that the loader started ends up as a bridge: it passes its standard input and output to the keeper over the
keeper's socket and then only waits for that socket to close, so that sshd sees a running command for as long as the
keeper uses the connection. Killing it closes the connection and hurts nothing else.

A keeper that is stopped (SIGSTOP) or very busy takes no connection. Nobody waits for that longer than the client does.
"""

from __future__ import annotations

import array
import fcntl
import json
import os
import select
import socket
import struct
import termios
from typing import Any, NoReturn

from . import processes, rundir
from .entry import fail, folder, is_without_room, must_be_here, must_have_room, sweep_up
from .place import have_made_anew
from .spawn import boot_id, last_words, recorded_process

PATIENCE = 10.0
"""Seconds to wait for a keeper to have room for one more connection; clients wait longer than that for an answer."""

_ATTEMPTS = 3
"""How often a connection is offered to keepers that end, one after the other, before they take it."""

_NO_KEEPER = (FileNotFoundError, NotADirectoryError, ConnectionRefusedError)


def start(request: dict[str, Any]) -> None:
    """Make a keeper with its kernel, and become a bridge to it."""
    folder(request["kernel"]["cwd"])
    must_be_here(request)
    must_have_room(not request["kernel"].get("kernelspec"))
    kernel_id = request["kernel_id"]
    try:
        if rundir.keeper_lives(kernel_id):
            fail("exists", kernel_id=kernel_id)
        if os.path.lexists(rundir.path_of(kernel_id)):
            sweep_up(kernel_id)
        path = rundir.create(kernel_id)
    except OSError as error:
        fail("staging", detail=error.strerror or str(error), path=error.filename or rundir.root())
    os.chdir(path)  # so that the socket's name is short, however long the path is
    if _client_has_left():
        rundir.remove(path)
        return
    try:
        _make_keeper(path, request, None)
    except Exception:
        rundir.remove(path)
        raise
    attach(request)


def _client_has_left() -> bool:
    """Whether nobody waits for us any more: what comes on this connection has an end, of which a client knows nothing
    that waits. A start that comes so late was given up meanwhile, and nobody would end what it makes.
    """
    poll = select.poll()
    poll.register(0, select.POLLIN)
    if not poll.poll(0):
        return False
    waiting = array.array("i", [0])
    try:
        fcntl.ioctl(0, termios.FIONREAD, waiting)
    except OSError:
        return False  # neither a pipe nor a socket: nothing is known
    return waiting[0] == 0


def attach(request: dict[str, Any]) -> None:
    """Hand this connection to a kernel's keeper and wait until the keeper is done with it.

    Where the keeper was killed and its kernel runs on, a new keeper adopts the kernel first.
    """
    must_be_here(request)
    path = rundir.path_of(request["kernel_id"])
    for _ in range(_ATTEMPTS):
        connection = _keeper(path, request)
        taken = _hand_over(connection, request)
        if taken:
            wait(connection)
        if taken is not None:
            return
        connection.close()  # its keeper ended just now, and maybe the kernel: that is found out as if we came now
    fail("stuck", detail="it took no connection")


def _keeper(path: str, request: dict[str, Any]) -> socket.socket:
    """Return a connection to a kernel's keeper, which is made where the kernel has none any more; or tell why not."""
    try:
        try:
            os.chdir(path)
            return _connect_or_adopt(path, request)
        except _NO_KEEPER:
            if not have_made_anew(request["kernel_id"]):
                raise
            os.chdir(path)
            return rundir.connect(PATIENCE)
    except _NO_KEEPER:
        _tell_gone(path, request["kernel_id"])
    except TimeoutError as error:
        fail("stuck", detail=str(error))
    except OSError as error:
        if is_without_room(error):
            fail("staging", detail=error.strerror, path=path)
        fail("keeper", detail=error.strerror or str(error))


def _hand_over(connection: socket.socket, request: dict[str, Any]) -> bool | None:
    """Hand our standard input and output over; True once they were taken, False when the client has left before, None
    when the keeper ended, or turned us away.
    """
    offered = {name: request[name] for name in ("link", "client", "fresh", "hello")}
    offer = json.dumps({**offered, "attempt": request.get("attempt")}).encode()
    try:
        socket.send_fds(connection, [struct.pack("!I", len(offer)) + offer], [0, 1])
        if not _is_answered(connection):
            return False
        return True if connection.recv(1, socket.MSG_PEEK) else None
    except ConnectionError:
        return None


def _tell_gone(path: str, kernel_id: str) -> NoReturn:
    """Tell the client that there is no keeper, nor a kernel that another one could take charge of."""
    words = last_words(path)
    removed = not os.path.lexists(path)
    severed = removed or bool((rundir.read_record(path) or {}).get(rundir.SEVERED))
    # Nobody can reach a kernel whose sockets were removed, and nobody else would end it.
    left = severed and bool(processes.family(processes.snapshot(), [], mark=kernel_id).ours)
    if left and removed and os.path.lexists(path):
        left = False  # another one is being started under its id just now, and may be what was found
    if left:
        sweep_up(kernel_id)
    fail("gone", boot_id=boot_id(), node=os.uname().nodename, detail=words, severed=left)


def _is_answered(connection: socket.socket) -> bool:
    """Wait until the keeper has taken what was handed over, of which it tells with a byte, or has ended; False when the
    client left before.

    Without that, each attempt of a client at a stopped keeper would leave a process waiting.
    """
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    poll.register(0, 0)  # what comes there is the keeper's; its end is told all the same
    return any(descriptor == connection.fileno() for descriptor, _ in poll.poll())


def _connect_or_adopt(path: str, request: dict[str, Any]) -> socket.socket:
    try:
        return rundir.connect(PATIENCE)
    except _NO_KEEPER:
        record = rundir.read_record(path)
        if record is None or record.get(rundir.SEVERED) or _lives(record.get("keeper")):
            raise
    lock = os.open(rundir.LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two clients that come at once must not make two keepers
        try:
            return rundir.connect(PATIENCE)
        except _NO_KEEPER:
            kernel = recorded_process(record)
            if kernel is None or not processes.still_alive([kernel]):
                raise
            if os.path.lexists(rundir.SOCKET):
                os.unlink(rundir.SOCKET)
            _make_keeper(path, {**request, **record.get("settings", {})}, record, lock)
        return rundir.connect(PATIENCE)
    finally:
        os.close(lock)


def _lives(keeper: list[int] | None) -> bool:
    """Whether the keeper of a record lives; then its socket was removed, and no other one may take its place."""
    return keeper is not None and bool(processes.still_alive([(int(keeper[0]), int(keeper[1]))]))


def _make_keeper(path: str, request: dict[str, Any], adopted: dict[str, Any] | None, lock: int | None = None) -> None:
    """Fork a keeper and wait until it is ready, or fail with its reason. A lock that is held stays this process's."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(rundir.SOCKET)
    listener.listen(16)
    ready, told = os.pipe()
    if os.fork() == 0:
        os.close(ready)
        if lock is not None:
            os.close(lock)  # else it would be held for as long as the keeper lives
        from . import daemon

        daemon.main(path, request, listener, told, adopted)
    listener.close()
    os.close(told)
    with os.fdopen(ready, "rb") as pipe:
        answer = json.loads(pipe.read() or b'{"error": "keeper", "detail": "it ended at once"}')
    if answer.get("error") == "gone":
        raise ConnectionRefusedError  # there is nothing to keep: told as whenever nobody is there
    if "error" in answer:
        fail(**answer)


def wait(connection: socket.socket) -> None:
    """Stay until the keeper closes its end, holding as little as can be."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):
        os.dup2(null, descriptor)
    os.dup2(connection.fileno(), 0)
    os.chdir("/")
    for program in ("/bin/cat", "/usr/bin/cat"):
        if os.access(program, os.X_OK):
            os.execv(program, ["cat"])  # a twentieth of an interpreter's memory, for as long as the connection lasts
    while os.read(0, 4096):
        pass
