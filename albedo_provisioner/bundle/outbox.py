"""What one side has said in a lane and the other has not yet confirmed.

Bytes get their offset in the lane when they are first sent. From then on they cannot change, and are kept until the
peer has them. What was never sent may still give way when more is held than the limit allows: stream output first,
displays next, results and errors last; statuses, replies and requests never. A note takes the place of what
went, so that the loss is told where it happened.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Sequence

from .messages import HEADER, PARENT, json_part, raw_part
from .wire import IOPUB, MAIN, NOTE, PIECE, Buffer, ProtocolError, encode_message, piece_head

WINDOW = 64 << 20
"""Most bytes of a lane under way at once; beyond it messages wait unsent, where more urgent ones can pass them and they
can give way. Wide enough for 600 MB/s over a link with 100 ms of delay."""

_LEAST_WINDOW = 4 << 20
"""What may be under way at once at least, however little may be held."""

_RANKS = {
    "stream": 0,
    "display_data": 1,
    "update_display_data": 1,
    "comm_msg": 1,
    "execute_result": 2,
    "error": 2,
}
_KEEP = 3

_HEAD = 6
"""Parts that are looked at when something has to give way: topic, delimiter, signature, header, parent and metadata.
The content is not kept beside its encoded form, which is a copy where it is small."""


class _Unsent:
    __slots__ = ("buffers", "channel", "gap", "head", "size")

    def __init__(self, channel: int, parts: Sequence[Buffer], gap: Gap | None = None) -> None:
        self.channel = channel
        self.head = parts[:_HEAD]
        self.gap = gap
        self.buffers = [] if gap else encode_message(channel, parts)
        self.size = sum(map(len, self.buffers))


class Gap:
    """Messages that gave way: how many, how many bytes, and the parent header (raw JSON) of what they belonged to."""

    __slots__ = ("messages", "parent", "size")

    def __init__(self, parent: bytes) -> None:
        self.parent = parent
        self.messages = 0
        self.size = 0

    def encode(self) -> bytes:
        """Return the JSON of a NOTE: `note` is "gap", and `messages`, `bytes`, `parent` (the raw parent header)."""
        parent = self.parent.decode("utf-8", "replace")
        return json.dumps({"note": "gap", "messages": self.messages, "bytes": self.size, "parent": parent}).encode()


class Outbox:
    """The sending side of one lane.

    Args:
        lane: the lane's number.
        limit: most bytes to hold, or None for no bound. Half of them at most are under way at once, as these cannot
            give way.
    """

    def __init__(self, lane: int, limit: int | None = None) -> None:
        self.lane = lane
        self._limit = limit
        self._window = WINDOW if limit is None else min(WINDOW, max(limit // 2, _LEAST_WINDOW))
        self.acked = 0
        self.end = 0
        """Offset after the last byte that was ever sent."""
        self._next = 0  # offset of the next byte to go out on the present connection
        self._sent: deque[tuple[int, Buffer]] = deque()  # (offset of the end, bytes), not confirmed
        self._again: deque[Buffer] = deque()  # sent before, to go out again on the present connection
        self._unsent: deque[_Unsent] = deque()
        self._unsent_size = 0
        self._started: deque[Buffer] = deque()  # what remains of messages of which a piece is in `_sent`

    @property
    def held(self) -> int:
        """Bytes in memory: sent and not confirmed, and not sent."""
        return self.end - self.acked + self._unsent_size

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be sent on the present connection."""
        return not (self._again or self._started or self._unsent)

    def put(self, channel: int, parts: Sequence[Buffer]) -> None:
        """Append a message; `parts` must not change afterwards.

        Raises:
            ProtocolError: the message is too large for the link.
        """
        message = _Unsent(channel, parts)
        self._unsent.append(message)
        self._unsent_size += message.size
        self._keep_within_limit()

    def set_limit(self, limit: int | None) -> None:
        """Change how much may be held; what is over it, and may, gives way at once. What may be under way stays."""
        self._limit = limit
        self._keep_within_limit()

    def put_gap(self, parent: bytes, size: int) -> None:
        """Append a gap for one message of `size` bytes that could not be taken at all."""
        gap = Gap(parent)
        gap.messages, gap.size = 1, size
        self._unsent.append(_Unsent(NOTE, (), gap))

    def unsent(self, channel: int) -> list[Sequence[Buffer]]:
        """Return the first parts (`_HEAD` of them at most) of a channel's messages of which nothing was ever sent."""
        return [message.head for message in self._unsent if message.channel == channel]

    def withdraw(self, channel: int, message_id: str) -> bool:
        """Take a message back by the id in its header; False when some of it was sent, or it is not known."""
        for message in self._unsent:
            if message.channel == channel and json_part(message.head, HEADER).get("msg_id") == message_id:
                self._unsent.remove(message)
                self._unsent_size -= message.size
                return True
        return False

    def take_over(self, other: Outbox, channels: Collection[int]) -> None:
        """Append what another outbox has never sent on some channels; it is not to be used any more."""
        taken = [message for message in other._unsent if message.channel in channels]
        self._unsent.extend(taken)
        self._unsent_size += sum(message.size for message in taken)

    def confirm(self, offset: int) -> None:
        """Forget what the peer has.

        Raises:
            ProtocolError: it confirms more than it was sent, or takes a confirmation back.
        """
        if not self.acked <= offset <= self.end:
            raise ProtocolError(
                f"the peer confirms {offset} bytes of lane {self.lane}, which has {self.acked} to {self.end}"
            )
        self.acked = offset
        while self._sent and self._sent[0][0] <= offset:
            self._sent.popleft()

    def restart(self, offset: int) -> None:
        """Begin a connection to a peer that has the first `offset` bytes: what was sent after them goes out again.

        Raises:
            ProtocolError: as `confirm`.
        """
        self.confirm(offset)
        self._again.clear()
        self._next = offset
        for end, data in self._sent:
            missing = end - max(offset, end - len(data))
            self._again.append(data if missing == len(data) else memoryview(data)[len(data) - missing :])

    def pull(self) -> list[Buffer]:
        """Return the next DATA frame as buffers, or nothing when nothing may be sent now."""
        taken: list[Buffer] = []
        size = 0
        while size < PIECE:
            if self._again:
                source, new = self._again, False
            else:
                if not self._started and not self._open_next():
                    break
                source, new = self._started, True
            data = source.popleft()
            if len(data) > PIECE - size:
                view = memoryview(data)
                source.appendleft(view[PIECE - size :])
                data = view[: PIECE - size]
            size += len(data)
            if new:
                self.end += len(data)
                self._unsent_size -= len(data)
                self._sent.append((self.end, data))
            taken.append(data)
        if not taken:
            return taken
        taken.insert(0, piece_head(self.lane, self._next, size))
        self._next += size
        return taken

    def _open_next(self) -> bool:
        """Give the next unsent message its place in the lane; say whether there was one that may go now."""
        if not self._unsent or self.end - self.acked >= self._window:
            return False
        message = self._unsent.popleft()
        if message.gap is not None:
            message.buffers = encode_message(NOTE, [message.gap.encode()])
            self._unsent_size += sum(map(len, message.buffers))
        self._started.extend(message.buffers)
        return True

    def _keep_within_limit(self) -> None:
        if self._limit is not None and self.held > self._limit:
            self._shed(self._limit - self._limit // 8)

    def _shed(self, target: int) -> None:
        """Let unsent messages give way, least important and oldest first, until `target` bytes are held."""
        for rank in range(_KEEP):
            if self.held <= target:
                return
            kept: deque[_Unsent] = deque()
            gaps = {message.gap.parent: message.gap for message in self._unsent if message.gap is not None}
            for message in self._unsent:
                if message.gap is not None or self.held <= target or _rank(message) != rank:
                    kept.append(message)
                    continue
                parent = raw_part(message.head, PARENT) or b"{}"
                gap = gaps.get(parent)
                if gap is None:
                    gap = gaps[parent] = Gap(parent)
                    kept.append(_Unsent(NOTE, (), gap))
                gap.messages += 1
                gap.size += message.size
                self._unsent_size -= message.size
            self._unsent = kept


def outboxes(limit: int | None) -> list[Outbox]:
    """Return a link's outboxes; only the main lane, which carries output, can grow and has a limit."""
    return [Outbox(lane, limit if lane == MAIN else None) for lane in range(MAIN + 1)]


def _rank(message: _Unsent) -> int:
    if message.channel != IOPUB:
        return _KEEP
    return _RANKS.get(json_part(message.head, HEADER).get("msg_type", ""), _KEEP)
