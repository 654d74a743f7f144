"""Calls out of the kernel: what code in a cell asks of its keeper, or through it of a client.

    result, blobs = call("tool", {"name": "read_file"}, [b"..."])

The keeper listens on a unix socket in the kernel's private directory. A connection carries one call at a time, a
message each way (`wire.py`'s, on channel CALL), so nothing has to be sorted out between threads, and what is
interrupted leaves nothing behind: its connection is closed, by which the keeper knows that nobody waits any more.
Connections that came to a clean end are used again.

A call has an id, made here. When the keeper is killed, the kernel goes on, and so does the call: it is asked again of
the keeper that takes its place, by the same id, by which the far side knows what it has done already.

Usable from any thread, and in forked children, which get connections of their own.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

from . import cells
from .wire import CALL, MAX_BLOBS, MAX_CALL, Buffer, MessageReader, encode_message

_MOST_IDLE = 4
_READ = 256 * 1024
_NUDGE = 0.25
_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
"""Seconds between two looks whether there is a keeper again: the kernel lives without one until a client comes back."""


class CallError(Exception):
    """A call was not done, or what came of it is lost; the message says why."""


class CallTooLargeError(CallError, ValueError):
    """A call is longer than may be; it was not made."""


class _KeeperLostError(Exception):
    """The connection ended before the answer: its keeper was killed, if it is not that nobody listens yet."""


def call(
    kind: str, arguments: dict[str, Any], blobs: Sequence[Buffer] = (), timeout: float | None = None
) -> tuple[dict[str, Any], list[bytes]]:
    """Ask for something and wait for the answer. A KeyboardInterrupt takes the call back.

    Args:
        kind: what kind of call; who answers depends on it (`callers.py`).
        arguments: what goes with it, as JSON.
        blobs: what goes with it as it is.
        timeout: seconds to wait at most; None waits as long as it takes, also while nobody is there who could answer.

    Returns:
        the answer's JSON and its blobs.

    Raises:
        CallError: it was refused, or this process is no kernel; the message says why.
        CallTooLargeError: it is longer than `MAX_CALL` bytes.
        TimeoutError: no answer came in time. It was taken back, and may have been done all the same.
        TypeError, ValueError: the arguments are no JSON.
    """
    request = _Request(kind, arguments, blobs, timeout)
    while True:
        connection = _connection(request)
        try:
            answer = _converse(connection, request)
        except _KeeperLostError:
            connection.close()
            request.pause()
        except BaseException:
            _hang_up(connection)
            raise
        else:
            _keep(connection)
            return answer.result()


async def call_async(
    kind: str, arguments: dict[str, Any], blobs: Sequence[Buffer] = (), timeout: float | None = None
) -> tuple[dict[str, Any], list[bytes]]:
    """Do as `call` from an asyncio task, which other tasks go on beside. Cancelling the task takes the call back.

    Raises:
        CallError: as `call`, and so are the others.
    """
    import asyncio

    request = _Request(kind, arguments, blobs, timeout)
    nudge = asyncio.create_task(_keep_going_round())
    try:
        async with asyncio.timeout(timeout):
            while True:
                connection = _connect_once(request, wait=False)
                if connection is not None:
                    try:
                        return (await _converse_async(connection, request)).result()
                    except _KeeperLostError:
                        pass
                    finally:
                        _hang_up(connection)
                await asyncio.sleep(request.next_pause())
    finally:
        nudge.cancel()


async def _keep_going_round() -> None:
    """Have the event loop go round: ipykernel has it know of an interrupt only when something else makes it go on."""
    import asyncio

    while True:  # noqa: ASYNC110 - no event is waited for: it is the loop that has to go on
        await asyncio.sleep(_NUDGE)


class _Request:
    """A call as it goes over the wire, and how long it may take."""

    def __init__(self, kind: str, arguments: dict[str, Any], blobs: Sequence[Buffer], timeout: float | None) -> None:
        self.id = os.urandom(16).hex()
        cell = cells.current()
        head = {
            "call": self.id,
            "kind": kind,
            "cell": cell.id if cell else "",
            "link": cell.link if cell else "",
            "server": cell.server if cell else "",
        }
        text = json.dumps(arguments).encode()
        parts: list[Buffer] = [json.dumps(head).encode(), text, *blobs]
        size = sum(memoryview(part).nbytes for part in parts)
        if size > MAX_CALL or len(blobs) > MAX_BLOBS:
            raise CallTooLargeError(
                f"a call of {size} bytes in {len(blobs)} blobs is too large: {MAX_CALL} bytes and {MAX_BLOBS} blobs "
                "are the most"
            )
        self.message = encode_message(CALL, parts)
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._pause = 0.0

    def left(self) -> float | None:
        """Return how many seconds there are left; None for no end.

        Raises:
            TimeoutError: there are none.
        """
        if self._deadline is None:
            return None
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no answer came in time")
        return left

    def next_pause(self) -> float:
        """Return the seconds to wait before the next attempt: none at first, as an idle connection may be stale."""
        pause, self._pause = self._pause, min(max(_PAUSE, 2 * self._pause), _LONGEST_PAUSE)
        return pause

    def pause(self) -> None:
        """Wait before the next attempt."""
        pause, left = self.next_pause(), self.left()
        time.sleep(pause if left is None else min(pause, left))


class _Answer:
    """The answer as it comes in."""

    def __init__(self, request: _Request) -> None:
        self._id = request.id
        self._reader = MessageReader(MAX_CALL + 8 * MAX_BLOBS)
        self._parts: list[memoryview] | None = None

    def feed(self, data: bytes) -> bool:
        """Take bytes and say whether it is complete."""
        if not data:
            raise _KeeperLostError
        for _, parts in self._reader.feed(memoryview(data)):
            self._parts = parts
        return self._parts is not None

    def result(self) -> tuple[dict[str, Any], list[bytes]]:
        """Return what the answer says, or raise what it says."""
        assert self._parts is not None
        head = json.loads(bytes(self._parts[0]))
        if "error" in head:
            raise CallError(str(head["error"]))
        return json.loads(bytes(self._parts[1])), [bytes(part) for part in self._parts[2:]]


def _converse(connection: socket.socket, request: _Request) -> _Answer:
    answer = _Answer(request)
    try:
        for buffer in request.message:
            connection.settimeout(request.left())
            connection.sendall(buffer)
        while True:
            connection.settimeout(request.left())
            if answer.feed(connection.recv(_READ)):
                return answer
    except TimeoutError:
        raise TimeoutError("no answer came in time") from None
    except (BrokenPipeError, ConnectionResetError):
        raise _KeeperLostError from None


async def _converse_async(connection: socket.socket, request: _Request) -> _Answer:
    import asyncio

    loop = asyncio.get_running_loop()
    answer = _Answer(request)
    try:
        for buffer in request.message:
            await loop.sock_sendall(connection, buffer)
        while not answer.feed(await loop.sock_recv(connection, _READ)):
            pass
    except (BrokenPipeError, ConnectionResetError):
        raise _KeeperLostError from None
    return answer


# -- connections ---------------------------------------------------------------------------------------------

_lock = threading.Lock()
_idle: list[socket.socket] = []


def _connection(request: _Request) -> socket.socket:
    """Return a connection to the keeper, waiting until there is one."""
    with _lock:
        if _idle:
            return _idle.pop()
    while True:
        connection = _connect_once(request)
        if connection is not None:
            return connection
        request.pause()


def _connect_once(request: _Request, wait: bool = True) -> socket.socket | None:
    """Return a new connection, or None while there is no keeper, or (unless it may wait) it is too busy.

    Raises:
        CallError: there will be none.
    """
    path = cells.socket_path
    if path is None:
        raise CallError("this process is no kernel of albedo_provisioner's, so there is nobody to call")
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(request.left() if wait else 0.0)
        connection.connect(path)
    except (ConnectionRefusedError, FileNotFoundError, BlockingIOError):
        connection.close()
        if not os.path.isdir(os.path.dirname(path)):
            raise CallError("the kernel's keeper and its directory are gone, so there is nobody to call") from None
        return None
    except BaseException:
        connection.close()
        raise
    return connection


def _keep(connection: socket.socket) -> None:
    with _lock:
        if len(_idle) < _MOST_IDLE:
            _idle.append(connection)
            return
    connection.close()


def _hang_up(connection: socket.socket) -> None:
    """End a connection for all who hold it: a forked child may have a copy, which closing would leave open."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it has ended already
    connection.close()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()  # the parent's may be held by a thread that does not exist here
    while _idle:
        _idle.pop().close()  # the parent talks on them


os.register_at_fork(after_in_child=_after_fork_in_child)
