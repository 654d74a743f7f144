"""What a kernel, its jobs' supervisor and the keeper say to each other about jobs: JSON in frames on a unix socket.

The supervisor listens in the run directory; the kernel, children that it forked, and the keeper connect. A frame is a
4-byte length (big-endian) and that many bytes of JSON. Descriptors travel along with the frame that needs them.

    from the supervisor, to everybody   {"jobs": [summary, ...]}   all there are; the first thing on a connection
                                        {"job": summary}           one has begun, ended, or changed otherwise
    a request, with a number            {"id": 7, "do": "run", ...}
    its answer                          {"id": 7, ...} or {"id": 7, "error": {...}}

The supervisor tells the keeper what has happened before it answers the kernel. So a client knows of it before it gets
the result of the cell in which it happened.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections import deque

TYPE_CHECKING = False  # not from typing: see processes.py
if TYPE_CHECKING:
    from typing import Any

SOCKET = "-jobs"
"""What is added to the run directory's prefix for sockets (`rundir.socket_base`)."""

MARK = "ALBEDO_JOB_ID"
"""Environment variable that all processes of a job inherit, so that they are found although they left its group. Its
value is the kernel's id, a dot and the job's number."""

MOST = 8 << 20
"""Bytes that a frame may have: all arguments and variables of a program go into one."""

MOST_DESCRIPTORS = 4
"""Descriptors that may have come without the frame that they are for."""

_LENGTH = struct.Struct("!I")
_READ = 256 * 1024


class TalkError(Exception):
    """The other side said what is no frame; the connection ends."""


class Talk:
    """One end of a connection, which is made not to block.

    Attributes:
        connection: the socket, to be waited on by the owner: for reading always, for writing while `waiting`.
        descriptors: those that have come; a frame's own are to be taken from the left when it is there.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.descriptors: deque[int] = deque()
        self._in = bytearray()
        self._out: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._sent = 0  # bytes of the first of them

    @property
    def waiting(self) -> bool:
        """Whether something is still to be sent."""
        return bool(self._out)

    def say(self, content: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
        """Say something, now or as soon as there is room; the descriptors stay open until then.

        Raises:
            ValueError: it is too long.
        """
        data = json.dumps(content).encode()
        if len(data) > MOST:
            raise ValueError(f"{len(data)} bytes are more than the {MOST} that may be sent at once")
        self._out.append((_LENGTH.pack(len(data)) + data, descriptors))

    def flush(self) -> bool:
        """Send what can be sent; False when the other side is gone."""
        while self._out:
            data, descriptors = self._out[0]
            try:
                if descriptors and not self._sent:
                    self._sent += socket.send_fds(self.connection, [data], descriptors)
                else:
                    self._sent += self.connection.send(memoryview(data)[self._sent :])
            except (BlockingIOError, InterruptedError):
                return True
            except OSError:
                return False
            if self._sent == len(data):
                self._out.popleft()
                self._sent = 0
                for descriptor in descriptors:
                    os.close(descriptor)
        return True

    def hear(self) -> list[dict[str, Any]]:
        """Return what has come.

        Raises:
            EOFError: the other side is gone.
            TalkError: it said what is no frame.
        """
        try:
            data, descriptors, _, _ = socket.recv_fds(self.connection, _READ, MOST_DESCRIPTORS)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError as error:
            raise EOFError from error
        self.descriptors.extend(descriptors)
        if len(self.descriptors) > MOST_DESCRIPTORS:
            raise TalkError("descriptors without frames")
        if not data:
            raise EOFError
        self._in += data
        frames = []
        while len(self._in) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._in)
            if size > MOST:
                raise TalkError(f"a frame of {size} bytes")
            if len(self._in) < _LENGTH.size + size:
                break
            frames.append(self._frame(bytes(self._in[_LENGTH.size : _LENGTH.size + size])))
            del self._in[: _LENGTH.size + size]
        return frames

    @staticmethod
    def _frame(data: bytes) -> dict[str, Any]:
        try:
            content = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise TalkError(str(error)) from None
        if not isinstance(content, dict):
            raise TalkError("a frame that is no object")
        return content

    def close(self) -> None:
        """End the connection."""
        self.connection.close()
        for descriptor in self.descriptors:
            os.close(descriptor)
        for _, descriptors in self._out:
            for descriptor in descriptors:
                os.close(descriptor)
        self.descriptors.clear()
        self._out.clear()
