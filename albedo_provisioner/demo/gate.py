"""A loopback TCP port whose connections can be cut, frozen, delayed or broken after so many bytes.

The ssh server stands behind the gate, so that a test can break a connection at any moment without the server's help:
what the client sees is what a network does, not what a polite server does. Nothing here knows ssh.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

# Linger for zero seconds: close() then sends RST, which is what a client sees of a host that was cut off.
_RESET = struct.pack("ii", 1, 0)

Direction = Literal["sent", "received"]


@dataclass
class Counters:
    """Bytes that passed the gate, as the server sees them: `sent` went out to clients, `received` came in."""

    sent: int = 0
    received: int = 0


class Gate:
    """A port on loopback in front of a server that takes sockets.

    Args:
        serve: takes the server's end of each new connection (one end of a socket pair, not yet in any loop), with
            the wire it belongs to.

    Attributes:
        port: the port; fixed once and for all by `start`.
        latency: seconds each byte is kept back in each direction.
        hold_new: new connections are accepted by the kernel, yet nothing ever passes (until `thaw`).
        wires: the connections that exist now.
        accepted: how many connections there ever were.
    """

    def __init__(self, serve: Callable[[Wire, socket.socket], None]) -> None:
        self.port = 0
        self.latency = 0.0
        self.hold_new = False
        self.wires: list[Wire] = []
        self.accepted = 0
        self._serve = serve
        self._server: asyncio.Server | None = None
        self._reserved: socket.socket | None = None
        self._budget: dict[Direction, int] = {}

    async def start(self) -> None:
        """Listen on a free port of 127.0.0.1."""
        self._reserve()
        await self.up()

    def _reserve(self) -> None:
        """Bind without listening: clients are refused, and nobody else gets the port meanwhile."""
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", self.port))
        self.port = sock.getsockname()[1]
        self._reserved = sock

    async def up(self) -> None:
        """Listen (again)."""
        if self._reserved is None:
            return
        sock, self._reserved = self._reserved, None
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._arrival, sock=sock, backlog=128)

    def down(self) -> None:
        """Refuse new connections and cut those that exist."""
        if self._server is not None:
            self._server.close()
            self._server = None
            self._reserve()
        self.cut()

    def stop(self) -> None:
        """Give the port up."""
        self.down()
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None

    def cut(self, *, reset: bool = True) -> int:
        """Break all connections now and return how many there were.

        Args:
            reset: with a TCP reset, what is under way is lost; else with an ordinary end after what was sent.
        """
        wires = list(self.wires)
        for wire in wires:
            wire.cut(reset=reset)
        return len(wires)

    def freeze(self) -> int:
        """Let nothing pass on the connections that exist, without closing them; return how many there are."""
        for wire in self.wires:
            wire.freeze()
        return len(self.wires)

    def thaw(self) -> None:
        """Undo `freeze` and `hold_new`; what was kept back goes through now."""
        self.hold_new = False
        for wire in list(self.wires):
            wire.thaw()

    def cut_after(self, direction: Direction, count: int | None) -> None:
        """Cut all connections once, as soon as `count` more bytes have passed in that direction (None: never)."""
        if count is None:
            self._budget.pop(direction, None)
        else:
            self._budget[direction] = count

    def spend(self, direction: Direction, count: int) -> tuple[int, bool]:
        """Return how many of `count` bytes may still pass, and whether everything is to be cut after them."""
        left = self._budget.get(direction)
        if left is None:
            return count, False
        if count < left:
            self._budget[direction] = left - count
            return count, False
        del self._budget[direction]
        return left, True

    def _arrival(self) -> asyncio.Protocol:
        self.accepted += 1
        wire = Wire(self, self.accepted)
        self.wires.append(wire)
        if self.hold_new:
            wire.freeze()
        return wire.outer

    def admit(self, wire: Wire, sock: socket.socket) -> None:
        """Hand the server its end of a new connection."""
        self._serve(wire, sock)

    def forget(self, wire: Wire) -> None:
        """Drop a connection that ended."""
        if wire in self.wires:
            self.wires.remove(wire)


class Wire:
    """One connection through the gate: an outer end (the client) and an inner end (the server).

    Attributes:
        number: 1 for the gate's first connection, and so on.
        counters: the bytes that passed.
        frozen: nothing passes at the moment.
    """

    def __init__(self, gate: Gate, number: int) -> None:
        self.gate = gate
        self.number = number
        self.counters = Counters()
        self.frozen = False
        self.outer = _End(self, "received")
        self.inner = _End(self, "sent")
        self.outer.peer, self.inner.peer = self.inner, self.outer
        self._dialling: asyncio.Task[None] | None = None
        self._ended = False

    def dial(self) -> None:
        """Connect the inner end to the server; called when the client's connection is there."""
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()

        async def connect() -> None:
            await loop.create_connection(lambda: self.inner, sock=ours)

        self.outer.settle()
        self._dialling = loop.create_task(connect())
        self.gate.admit(self, theirs)

    def freeze(self) -> None:
        """Stop reading and passing on, in both directions. Nobody is told."""
        self.frozen = True
        self.outer.settle()
        self.inner.settle()

    def thaw(self) -> None:
        """Go on where `freeze` stopped."""
        self.frozen = False
        for end in (self.outer, self.inner):
            end.deliver()
            end.settle()

    def cut(self, *, reset: bool) -> None:
        """End the connection on both sides now."""
        if self._ended:
            return
        self._ended = True
        self.gate.forget(self)
        if self._dialling is not None and not self._dialling.done():
            self._dialling.cancel()
        outer, inner = self.outer.transport, self.inner.transport
        if outer is not None:
            if reset:
                sock = outer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                outer.abort()
            else:
                outer.close()
        if inner is not None:
            inner.abort()

    @property
    def ended(self) -> bool:
        """The connection is over."""
        return self._ended


@dataclass(eq=False)
class _End(asyncio.Protocol):
    """One end of a wire: what it reads goes to its peer, after the gate's latency."""

    wire: Wire
    direction: Direction
    transport: asyncio.Transport | None = None
    _queue: deque[tuple[float, bytes | None]] = field(default_factory=deque)
    _timer: asyncio.TimerHandle | None = None
    _full: bool = False  # the peer's transport cannot take more for now
    _resting: bool = False  # reading is paused

    def __post_init__(self) -> None:
        self.peer: _End = self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self.wire.ended:
            transport.abort()
        elif self is self.wire.outer:
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.wire.dial()
        else:
            self.peer.deliver()
            self.peer.settle()
            self.settle()

    def data_received(self, data: bytes) -> None:
        self._queue.append((time.monotonic() + self.wire.gate.latency, data))
        self.deliver()

    def eof_received(self) -> bool:
        self._queue.append((time.monotonic() + self.wire.gate.latency, None))
        self.deliver()
        return True  # what was read before goes on first

    def connection_lost(self, exc: Exception | None) -> None:
        self.wire.cut(reset=exc is not None)

    def pause_writing(self) -> None:
        self.peer._full = True
        self.peer.settle()

    def resume_writing(self) -> None:
        self.peer._full = False
        self.peer.settle()

    def settle(self) -> None:
        """Read if what is read can go on, else rest."""
        if self.transport is None or self.transport.is_closing():
            return
        rest = self.wire.frozen or self._full or self.peer.transport is None
        if rest != self._resting:
            self._resting = rest
            if rest:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    def deliver(self) -> None:
        """Pass on what is due."""
        while self._queue and not self.wire.frozen and not self.wire.ended:
            out = self.peer.transport
            if out is None or out.is_closing():
                return
            due, data = self._queue[0]
            wait = due - time.monotonic()
            if wait > 0:
                if self._timer is None:
                    self._timer = asyncio.get_running_loop().call_later(wait, self._ring)
                return
            self._queue.popleft()
            if data is None:
                out.close()  # after what is still to be written; ssh has no use for half a connection
            else:
                self._pass_on(out, data)

    def _ring(self) -> None:
        self._timer = None
        self.deliver()

    def _pass_on(self, out: asyncio.Transport, data: bytes) -> None:
        count, last = self.wire.gate.spend(self.direction, len(data))
        if self.direction == "sent":
            self.wire.counters.sent += count
        else:
            self.wire.counters.received += count
        if count:
            out.write(data[:count] if count < len(data) else data)
        if last:
            # An ordinary end: exactly so many bytes arrive, which a reset could not promise.
            self.wire.gate.cut(reset=False)
