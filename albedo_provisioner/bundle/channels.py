"""The keeper's sockets to its kernel's channels.

They are never closed while the kernel lives: a ROUTER or PUB that loses its peer throws away what the peer misses.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import zmq

from .wire import CONTROL, IOPUB, SHELL, STDIN, Buffer

# As in the connection file that `spawn.py` writes.
_PORTS = {CONTROL: 4, SHELL: 1, STDIN: 3, IOPUB: 2}
_HEARTBEAT_PORT = 5
_IDENTITY = b"albedo-keeper"
_LARGE = 64 * 1024


class KernelChannels:
    """Connections to one kernel process's ipc sockets.

    Args:
        context: the keeper's zmq context.
        base: the connection file's `ip`: sockets are at `<base>-<port>`, or `<base>:<port>`.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], base: str) -> None:
        self._context = context
        self._base = base
        self.sockets: dict[int, zmq.Socket[bytes]] = {}
        self._heart: zmq.Socket[bytes] | None = None
        self._beating = False  # whether a heartbeat is on its way

    def _file(self, port: int) -> str | None:
        """Return the socket's file if there is one. Jupyter puts a dash before the number; kernels that know tcp best
        put a colon there.
        """
        return next((file for file in self._files(port) if os.path.exists(file)), None)

    def _files(self, port: int) -> tuple[str, str]:
        return f"{self._base}-{port}", f"{self._base}:{port}"

    @property
    def bound(self) -> bool:
        """Whether the kernel listens on all of its channels."""
        return all(self._file(port) for port in (*_PORTS.values(), _HEARTBEAT_PORT))

    def remove_files(self) -> None:
        """Remove what an earlier kernel left at these addresses, or `bound` would be true too early."""
        for port in (*_PORTS.values(), _HEARTBEAT_PORT):
            for file in self._files(port):
                try:
                    os.unlink(file)
                except FileNotFoundError:
                    pass

    def open(self) -> None:
        """Connect; call it once the kernel is `bound`."""
        for channel, port in _PORTS.items():
            socket = self._context.socket(zmq.SUB if channel == IOPUB else zmq.DEALER)
            socket.linger = 0
            socket.sndhwm = socket.rcvhwm = 0  # what may be held is bounded by the links, and told; zmq would just drop
            socket.reconnect_ivl = 5
            if channel == IOPUB:
                socket.subscribe(b"")
            else:
                # A kernel addresses an input request, on stdin, to whom its execute request came from, on shell.
                socket.identity = _IDENTITY
            socket.connect(f"ipc://{self._file(port)}")
            self.sockets[channel] = socket
        self._heart = self._context.socket(zmq.DEALER)
        self._heart.linger = 0
        self._heart.connect(f"ipc://{self._file(_HEARTBEAT_PORT)}")

    def beat(self) -> None:
        """Send a heartbeat, unless the last one has not been answered."""
        if self._heart is not None and not self._beating:
            self._heart.send_multipart([b"", b"beat"], zmq.NOBLOCK)
            self._beating = True

    def answered(self) -> bool:
        """Whether the last heartbeat, if any, has been answered."""
        while self._heart is not None and self._beating:
            try:
                self._heart.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            self._beating = False
        return not self._beating

    def close(self) -> None:
        """Disconnect."""
        for socket in self.sockets.values():
            socket.close(0)
        self.sockets = {}
        if self._heart is not None:
            self._heart.close(0)
        self._heart, self._beating = None, False

    def send(self, channel: int, parts: list[bytes | memoryview]) -> None:
        """Pass a message on to the kernel."""
        self.sockets[channel].send_multipart(parts)

    def receive(self, channel: int, most: int) -> Iterator[list[Buffer]]:
        """Yield messages that have arrived on a channel, until there are none or `most` bytes were taken."""
        socket = self.sockets.get(channel)
        while socket is not None and most > 0:
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            # Large parts are not copied out of zmq's memory, which goes when the last of us lets go of them.
            parts: list[Buffer] = [frame.bytes if len(frame) < _LARGE else frame.buffer for frame in frames]
            most -= sum(map(len, parts))
            yield parts
