"""The link: a conversation between a client and a keeper that outlives its connections. No I/O in here.

How nothing is lost and nothing comes twice. Each side numbers the bytes of what it says, lane by lane (`wire.py`), and
keeps them until the other side confirms that they arrived (`outbox.py`). A connection begins with a HELLO from each
side that says how far it has received each lane; each then sends again from there. Connections may break anywhere,
any number of times, in the middle of any frame: the next HELLOs put both sides right.

One connection goes through these states, on either side alike:

    DETACHED --begin()--> GREETING --peer's HELLO--> ATTACHED
       ^                     |                          |
       +------- end() -------+--------------------------+      (after a Failed the owner calls end() as well)

Bytes that arrive are given to `receive`, which returns events; bytes to write are taken from `outgoing` and, as far as
they were written, struck off with `written`. The owner also keeps two clocks, because there is none in here: when
`ack_pending` stays true for `ACK_DELAY` it calls `acknowledge`, and it calls `ping` to see whether the peer is there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from .outbox import outboxes
from .wire import (
    ACK,
    FAREWELL,
    HELLO,
    LANES,
    PING,
    PONG,
    REPORT,
    Buffer,
    Frame,
    FrameReader,
    MessageReader,
    Piece,
    ProtocolError,
    ack_frame,
    json_frame,
    lane_of,
    ping_frame,
)

VERSION = 1

ACK_DELAY = 0.1
"""Seconds a confirmation may wait for company."""

ACK_BYTES = 4 << 20
"""Bytes received after which a confirmation waits no longer."""

DETACHED, GREETING, ATTACHED = "detached", "greeting", "attached"


class LinkLostError(ProtocolError):
    """The peer does not know this link any more (or not as far as we do): what was unconfirmed may be lost."""


class Attached(NamedTuple):
    """The peer's HELLO has arrived and fits; what it had missed is on its way again."""

    hello: dict[str, Any]


class Received(NamedTuple):
    """A message, exactly once and in its lane's order. The parts are read-only or ours alone."""

    channel: int
    parts: list[memoryview]


class Reported(NamedTuple):
    """What the host's side says before the keeper speaks: a step, or why there will be no keeper."""

    content: dict[str, Any]


class Ponged(NamedTuple):
    """The answer to a ping."""

    token: int


class Parted(NamedTuple):
    """The peer ends this connection on purpose: `code` for programs, `message` for people."""

    code: str
    message: str


class Failed(NamedTuple):
    """The bytes broke the protocol; always the last event. The owner ends the connection.

    With a `LinkLostError` the link itself cannot go on and the owner makes a new one.
    """

    error: ProtocolError


Event = Attached | Received | Reported | Ponged | Parted | Failed


class Link:
    """One side of the conversation; both sides run this class.

    Args:
        limit: most bytes to hold of what the peer has not confirmed; output beyond it gives way and a gap is told
            (see `outbox.py`). None for no bound.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.state = DETACHED
        self._outboxes = outboxes(limit)
        self._received = [0] * LANES
        self._readers = [MessageReader() for _ in range(LANES)]
        self._frames = FrameReader()
        self._wire: deque[Buffer] = deque()  # begun or urgent bytes of the present connection
        self._confirmed = [0] * LANES  # what the peer was last told that we have

    # -- saying things ---------------------------------------------------------------------------------------

    def send(self, channel: int, parts: Sequence[Buffer]) -> None:
        """Say a message. It is kept until the peer has it; `parts` must not change afterwards.

        Raises:
            ProtocolError: the message is over the link's limits.
        """
        self._outboxes[lane_of(channel)].put(channel, parts)

    def send_gap(self, channel: int, parent: bytes, size: int) -> None:
        """Say that a message of `size` bytes, with this raw parent header, could not be taken."""
        self._outboxes[lane_of(channel)].put_gap(parent, size)

    def unsent(self, channel: int) -> list[Sequence[Buffer]]:
        """Return the first parts of a channel's messages of which nothing was ever sent: nobody can have got them."""
        return self._outboxes[lane_of(channel)].unsent(channel)

    def withdraw(self, channel: int, message_id: str) -> bool:
        """Take a message back by the id in its header; False when the peer may have got some of it."""
        return self._outboxes[lane_of(channel)].withdraw(channel, message_id)

    def take_over(self, other: Link, channels: Collection[int]) -> None:
        """Say what another link has never sent on some channels; it is not to be used any more."""
        for box, others in zip(self._outboxes, other._outboxes, strict=True):
            box.take_over(others, channels)

    @property
    def held(self) -> int:
        """Bytes held that the peer has not confirmed."""
        return sum(box.held for box in self._outboxes)

    def set_limit(self, limit: int | None) -> None:
        """Change how much may be held; what is over it, and may, gives way at once."""
        self._outboxes[-1].set_limit(limit)

    @property
    def fresh(self) -> bool:
        """Whether nothing was ever said or heard."""
        return not any(self._received) and not any(box.end for box in self._outboxes)

    # -- one connection --------------------------------------------------------------------------------------

    def begin(self, hello: dict[str, Any]) -> None:
        """Begin a connection; an earlier one counts as ended. `hello` is said along with where we are."""
        self.end()
        self.state = GREETING
        self._wire.append(json_frame(HELLO, {**hello, "protocol": VERSION, "received": self._received}))

    def end(self) -> None:
        """The connection is gone. What had not been confirmed will be said again over the next one."""
        self.state = DETACHED
        self._frames = FrameReader()
        self._wire.clear()

    def receive(self, data: Buffer) -> list[Event]:
        """Take bytes from the connection and return what they mean.

        Never raises for what the peer sent: a fault is the last event, `Failed`, after all that came before it.
        """
        events: list[Event] = []
        try:
            for item in self._frames.feed(data):
                if isinstance(item, Piece):
                    self._take_piece(item, events)
                else:
                    self._take_frame(item, events)
        except ProtocolError as error:
            events.append(Failed(error))
            return events
        if sum(self._received) - sum(self._confirmed) >= ACK_BYTES:
            self.acknowledge()
        return events

    def outgoing(self) -> list[Buffer]:
        """Return buffers to write next, most urgent first; an empty list when there is nothing to write now.

        Call `written` with the number of bytes that went out before calling again.
        """
        if not self._wire and self.state == ATTACHED:
            for box in self._outboxes:
                taken = box.pull()
                if taken:
                    if self.ack_pending:
                        self.acknowledge()
                    self._wire.extend(taken)
                    break
        return list(self._wire)

    def written(self, size: int) -> None:
        """Strike off bytes that went out."""
        wire = self._wire
        while size:
            first = wire.popleft()
            if len(first) > size:
                wire.appendleft(memoryview(first)[size:])
                return
            size -= len(first)

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be written on this connection."""
        return not self._wire and (self.state != ATTACHED or all(box.idle for box in self._outboxes))

    # -- confirmations and signs of life ---------------------------------------------------------------------

    @property
    def ack_pending(self) -> bool:
        """Whether the peer has not been told of all that arrived."""
        return self.state == ATTACHED and self._received != self._confirmed

    def acknowledge(self) -> None:
        """Tell the peer how far each lane has arrived."""
        if self.state == ATTACHED:
            self._confirmed = list(self._received)
            self._wire.append(ack_frame(self._received))

    def ping(self, token: int) -> None:
        """Ask for a sign of life; `Ponged` with the same token is the answer."""
        if self.state == ATTACHED:
            self._wire.append(ping_frame(PING, token))

    def farewell(self, code: str, message: str) -> None:
        """Tell the peer why this connection is about to be closed from our side."""
        if self.state != DETACHED:
            self._wire.append(json_frame(FAREWELL, {"code": code, "message": message}))

    # -- what arrives ----------------------------------------------------------------------------------------

    def _take_piece(self, piece: Piece, events: list[Event]) -> None:
        if self.state != ATTACHED:
            raise ProtocolError("data before the greeting")
        lane = piece.lane
        known = self._received[lane] - piece.offset
        if known < 0:
            raise ProtocolError(f"lane {lane} goes on at byte {piece.offset}, expected {self._received[lane]}")
        data = piece.data[known:]  # what we have already is not applied again
        self._received[lane] += len(data)
        try:
            for channel, parts in self._readers[lane].feed(data):
                if lane_of(channel) != lane:
                    raise ProtocolError(f"channel {channel} does not travel in lane {lane}")
                events.append(Received(channel, parts))
        except ProtocolError as error:
            # Where the next message in this lane begins is not known any more, on this connection or a later one.
            raise LinkLostError(str(error)) from None

    def _take_frame(self, item: Frame, events: list[Event]) -> None:
        if item.kind == HELLO:
            events.append(Attached(self._greeted(item.json())))
        elif item.kind == REPORT:
            if self.state != GREETING:
                raise ProtocolError("a report after the greeting")
            events.append(Reported(item.json()))
        elif item.kind == FAREWELL:
            content = item.json()
            events.append(Parted(str(content.get("code", "")), str(content.get("message", ""))))
        elif self.state != ATTACHED:
            raise ProtocolError(f"a frame of kind {item.kind} before the greeting")
        elif item.kind == ACK:
            for box, offset in zip(self._outboxes, item.acks(), strict=True):
                box.confirm(offset)
        elif item.kind == PING:
            self._wire.append(ping_frame(PONG, item.token()))
        elif item.kind == PONG:
            events.append(Ponged(item.token()))

    def _greeted(self, hello: dict[str, Any]) -> dict[str, Any]:
        if self.state != GREETING:
            raise ProtocolError("a second greeting")
        if hello.get("protocol") != VERSION:
            raise ProtocolError(f"the peer speaks version {hello.get('protocol')!r} of the link, we speak {VERSION}")
        offsets = hello.get("received")
        if (
            not isinstance(offsets, list)
            or len(offsets) != LANES
            or not all(isinstance(offset, int) and not isinstance(offset, bool) for offset in offsets)
        ):
            raise ProtocolError("the greeting does not say how far the peer has received")
        for box, offset in zip(self._outboxes, offsets, strict=True):
            if not box.acked <= offset <= box.end:
                raise LinkLostError(
                    f"the peer has {offset} bytes of lane {box.lane}, we have {box.acked} to {box.end} to offer"
                )
        for box, offset in zip(self._outboxes, offsets, strict=True):
            box.restart(offset)
        self.state = ATTACHED
        self._confirmed = list(self._received)
        return hello
