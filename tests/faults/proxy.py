"""A TCP proxy that misbehaves on request: cuts at a chosen byte, holds still, drips, is not there."""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from dataclasses import dataclass, field

_READ = 64 * 1024
UP, DOWN = 0, 1
"""From the client to the server, and back."""


@dataclass
class _Way:
    """One direction of one connection."""

    source: socket.socket
    target: socket.socket
    direction: int
    waiting: bytes = b""
    not_before: float = 0.0
    over: bool = False  # the source has ended


@dataclass
class _Faults:
    left: list[int | None] = field(default_factory=lambda: [None, None])  # bytes in each direction before a cut
    reset: bool = True
    held: bool = False
    drip: tuple[int, float] | None = None


class Proxy:
    """Passes connections on to a port of this machine. Usable from any thread.

    Args:
        target: the port.
        port: the port to listen on; one that the system does not give to others while we do not.
        buffer: bytes that are taken from clients before they are passed on; None for what the system gives, which
            hides from a client how slow it is.
    """

    def __init__(self, target: int, port: int, buffer: int | None = None) -> None:
        self._target = target
        self._buffer = buffer
        self._lock = threading.RLock()
        self._faults = _Faults()
        self._connections: list[tuple[_Way, _Way]] = []
        self.port = port
        self._listener: socket.socket | None = self._listen()
        self._wake, self._alarm = socket.socketpair()
        self._alarm.setblocking(False)
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="proxy", daemon=True)
        self._thread.start()

    def _listen(self) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
        listener.setblocking(False)
        if self._buffer is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._buffer)
            # Loopback's segments are 64 KiB, and a receiver confirms about as much at a time.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1400)
        return listener

    # -- faults ----------------------------------------------------------------------------------------------

    def cut(self, *, reset: bool = True) -> int:
        """Break all connections; return how many there were."""
        with self._lock:
            count = len(self._connections)
            while self._connections:
                self._drop(self._connections[0], reset)
            self._tell()
            return count

    def cut_after(self, *, up: int | None = None, down: int | None = None, reset: bool = True) -> None:
        """Break all connections once, when that many more bytes went in a direction."""
        with self._lock:
            self._faults.left = [up, down]
            self._faults.reset = reset
            self._tell()

    def block(self) -> None:
        """Break all connections and refuse new ones."""
        with self._lock:
            if self._listener is not None:
                self._listener.close()
                self._listener = None
            self.cut()

    def unblock(self) -> None:
        """Listen again."""
        with self._lock:
            if self._listener is None:
                self._listener = self._listen()
            self._tell()

    def hold(self, yes: bool) -> None:
        """Let nothing pass on any connection, and tell nobody."""
        with self._lock:
            self._faults.held = yes
            self._tell()

    def drip(self, size: int = 0, pause: float = 0.0) -> None:
        """Pass on only `size` bytes in each direction every `pause` seconds; all at once with 0."""
        with self._lock:
            self._faults.drip = (size, pause) if size else None
            self._tell()

    def heal(self) -> None:
        """Be an ordinary proxy again."""
        with self._lock:
            self._faults = _Faults()
        self.unblock()

    @property
    def pending_cut(self) -> bool:
        """Whether a cut that was asked for has not come yet."""
        with self._lock:
            return any(left is not None for left in self._faults.left)

    def close(self) -> None:
        """End."""
        with self._lock:
            self._closed = True
            self.block()
        self._thread.join(5)
        self._wake.close()
        self._alarm.close()

    # -- the thread ------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        try:
            self._alarm.send(b"x")
        except BlockingIOError:
            pass  # it is awake already

    def _serve(self) -> None:
        while not self._closed:
            with self._lock:
                now = time.monotonic()
                ways = [way for pair in self._connections for way in pair if not self._faults.held]
                sources = [way.source for way in ways if not way.waiting and not way.over and way.not_before <= now]
                targets = [way.target for way in ways if way.waiting]
                pauses = [way.not_before - now for way in ways if way.not_before > now]
                listeners = [self._listener] if self._listener is not None else []
            try:
                readable, writable, _ = select.select(
                    [self._wake, *listeners, *sources], targets, [], min(pauses, default=None)
                )
            except (OSError, ValueError):
                continue  # one of them was closed meanwhile
            with self._lock:
                if self._wake in readable:
                    self._wake.recv(4096)
                if self._listener is not None and self._listener in readable:
                    self._accept()
                if not self._faults.held:
                    for pair in list(self._connections):
                        if pair in self._connections:  # not broken together with one before it
                            self._pass_on(pair, readable, writable)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            near, _ = self._listener.accept()
        except OSError:
            return
        try:
            far = socket.create_connection(("127.0.0.1", self._target), 5)
        except OSError:
            near.close()  # the server is down: the connection ends before it says anything
            return
        for each in (near, far):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            each.setblocking(False)
        self._connections.append((_Way(near, far, UP), _Way(far, near, DOWN)))

    def _pass_on(self, pair: tuple[_Way, _Way], readable: list[socket.socket], writable: list[socket.socket]) -> None:
        try:
            for way in pair:
                if way.source in readable and not way.waiting and not way.over:
                    self._take(way)
                if way.waiting and (way.source in readable or way.target in writable):
                    way.waiting = way.waiting[self._give(way) :]
                if self._faults.left[way.direction] == 0 and not way.waiting:
                    reset = self._faults.reset
                    self._faults.left = [None, None]
                    self.cut(reset=reset)
                    return
        except BlockingIOError:
            return
        except OSError:
            self._drop(pair, True)
            return
        if all(way.over and not way.waiting for way in pair):
            self._drop(pair, False)

    def _take(self, way: _Way) -> None:
        most = _READ
        if self._faults.drip is not None:
            most, pause = self._faults.drip
            way.not_before = time.monotonic() + pause
        left = self._faults.left[way.direction]
        if left is not None:
            most = min(most, left)
            if most == 0:
                return
        way.waiting = way.source.recv(most)
        if left is not None:
            self._faults.left[way.direction] = left - len(way.waiting)
        if not way.waiting:
            way.over = True
            way.target.shutdown(socket.SHUT_WR)

    @staticmethod
    def _give(way: _Way) -> int:
        try:
            return way.target.send(way.waiting)
        except BlockingIOError:
            return 0

    def _drop(self, pair: tuple[_Way, _Way], reset: bool) -> None:
        self._connections.remove(pair)
        for way in pair:
            if reset:
                way.source.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            way.source.close()
