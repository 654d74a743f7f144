"""A link as the keeper sees it, and the connection it uses at the moment."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Callable
from typing import Any

from .messages import PARENT, raw_part
from .protocol import ACK_DELAY, ATTACHED, Event, Link
from .wire import KEEPER, Buffer, ProtocolError

READ = 256 * 1024
_MOST_BUFFERS = 512  # writev takes 1024 on Linux and less elsewhere

ATTACHED_HOLD = 256 << 20

SHORT_ABSENCE = 10.0
"""Seconds for which a client that went away is kept what was on its way to it, though that be more than its bound: most
breaks are over by then, and nothing has to go for them."""

_PIPE_SIZE = 1 << 20

SILENCE = 40.0
"""Seconds without a word after which a client counts as away; it pings every few seconds (kernels/silence.py)."""


class Client:
    """One link, attached or away.

    Args:
        link_id: the link's name; the client chose it.
        name: who the client is, for people.
        hold: most bytes to hold while it is away for longer than `SHORT_ABSENCE`. An attached client that is merely
            slow may have `ATTACHED_HOLD`, or four times this if that is more: its output is leaving, and giving some
            up is the last resort.
    """

    def __init__(self, link_id: str, name: str, hold: int) -> None:
        self.link_id = link_id
        self.name = name
        self.hold = hold
        self.link = Link(hold)
        self.attempt: tuple[str, int] = ("", 0)
        """The process that it was attached by last, and that one's number of the attempt."""
        self.greeted = False
        """Whether a greeting ever came that fits."""
        self.away_since = 0.0
        self.heard = 0.0
        self.ack_at: float | None = None
        self.blocked = False
        self._in = self._out = -1
        self._bridge: socket.socket | None = None

    @property
    def attached(self) -> bool:
        """Whether there is a connection."""
        return self._bridge is not None

    def has_come_since(self, attempt: tuple[str, int]) -> bool:
        """Whether the same process has made a later attempt, which got here first."""
        return attempt[0] == self.attempt[0] != "" and attempt[1] < self.attempt[1]

    @property
    def descriptors(self) -> tuple[int, int]:
        """The connection's input and output."""
        return self._in, self._out

    def attach(self, bridge: socket.socket, descriptors: list[int], hello: dict[str, Any], now: float) -> None:
        """Use a new connection, which must not block; `bridge` is closed when the connection is done with."""
        self._bridge = bridge
        self._in, self._out = descriptors
        _widen(self._out)
        self.heard = now
        self.blocked = False
        self.link.set_limit(max(4 * self.hold, ATTACHED_HOLD))
        self.link.begin(hello)

    def detach(self, now: float) -> None:
        """The connection is over; the link stays. What it has waiting now stays too for a while, see `settle_down`."""
        if self._bridge is None:
            return
        for descriptor in self.descriptors:
            os.close(descriptor)
        self._bridge.close()
        self._bridge = None
        self._in = self._out = -1
        self.blocked = False
        self.ack_at = None
        self.away_since = now
        self.link.end()
        self.link.set_limit(max(self.hold, self.link.held))

    def settle_down(self, now: float) -> bool:
        """Hold no more than may be held for a client that is away, once it has been for long; say if something went.

        A message of which the peer may have the beginning stays, whatever its size.
        """
        before = self.link.held
        if not self.attached and now - self.away_since >= SHORT_ABSENCE:
            self.link.set_limit(self.hold)
        return self.link.held < before

    def read(self, now: float, take: Callable[[Event], None]) -> bool:
        """Take what has arrived; say whether the connection still stands."""
        try:
            data = os.read(self._in, READ)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        if not data:
            return False
        self.take(data, now, take)
        return True

    def take(self, data: bytes, now: float, take: Callable[[Event], None]) -> None:
        """Take bytes that came over the connection."""
        self.heard = now
        for event in self.link.receive(data):
            take(event)
        if self.link.ack_pending and self.ack_at is None:
            self.ack_at = now + ACK_DELAY

    def tick(self, now: float) -> None:
        """Send the confirmation that waited for company long enough."""
        if self.ack_at is not None and now >= self.ack_at:
            self.ack_at = None
            if self.link.ack_pending:
                self.link.acknowledge()

    def flush(self) -> bool:
        """Write what can be written; say whether the connection still stands."""
        self.blocked = False
        while buffers := self.link.outgoing():
            try:
                self.link.written(os.writev(self._out, buffers[:_MOST_BUFFERS]))
            except (BlockingIOError, InterruptedError):
                self.blocked = True
                return True
            except OSError:
                return False
        return True

    def tell(self, content: dict[str, Any]) -> None:
        """Say something on the keeper's own channel."""
        self.link.send(KEEPER, [json.dumps(content).encode()])

    def pass_on(self, channel: int, parts: list[Buffer]) -> None:
        """Say a kernel's message, or that it was too large for the link."""
        try:
            self.link.send(channel, parts)
        except ProtocolError:
            self.link.send_gap(channel, raw_part(parts, PARENT) or b"{}", sum(map(len, parts)))

    @property
    def settled(self) -> bool:
        """Whether the peer has confirmed all there is, or cannot at the moment."""
        return not self.attached or self.link.state != ATTACHED or self.link.held == 0


def _widen(descriptor: int) -> None:
    """Make a pipe hold more, where that can be: with 64 KiB, keeper and ssh server wait for each other all the time."""
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
        except OSError:
            pass  # no pipe, or the account may have no more: it works as it is
