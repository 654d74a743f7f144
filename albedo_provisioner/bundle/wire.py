"""Bytes on the link: frames on a connection, and the messages that lanes carry inside them.

Two layers, both without I/O:

- A *frame* is a 4-byte length, a 1-byte kind and that many bytes of payload. Frames belong to one connection.
- A *lane* is an ordered byte stream that outlives connections, as a QUIC stream outlives packets. DATA frames carry
  pieces of it, each with the offset of its first byte. What a lane carries is a row of *messages*: a head (body
  length, channel, number of parts), the lengths of the parts, the parts. The parts are a Jupyter message's zmq
  frames, byte for byte: nothing here looks into them.

Numbering bytes instead of messages means that a cut in the middle of a large message costs only what was in flight,
and that a large message is sent in pieces between which a more urgent lane gets its turn.

All integers are big-endian. Every length is checked against a cap before anything of that size is allocated.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any

Buffer = bytes | bytearray | memoryview
Message = tuple[int, list[memoryview]]
"""A channel and a message's parts."""

# Frame kinds.
HELLO, DATA, ACK, PING, PONG, REPORT, FAREWELL = 1, 2, 3, 4, 5, 6, 7

# Channels. The first four are Jupyter's; KEEPER carries JSON between the client and the keeper itself; NOTE is JSON
# too, about the messages among which it stands in the main lane: here some were given up, here the kernel ended.
# CALL is what the kernel's code asks of a client, and the answers (`callers.py`). A keeper says nothing on it but to
# clients that asked for calls, and a client nothing but answers, so that neither has to know of it. It goes by the main
# lane: what a cell printed before it called is there before the call, and ten megabytes hold up no interrupt.
SHELL, CONTROL, STDIN, IOPUB, KEEPER, NOTE, CALL = 1, 2, 3, 4, 5, 6, 7
CHANNELS = frozenset((SHELL, CONTROL, STDIN, IOPUB, KEEPER, NOTE, CALL))

# Lanes. Control and keeper traffic has a lane of its own, so that a flood of output cannot keep an interrupt or a
# status answer waiting. Shell and stdin share the output's lane on purpose: an execute reply that overtook a gigabyte
# of its cell's output would make nbclient and others give up waiting for the rest.
PROMPT, MAIN = 0, 1
LANES = 2

PIECE = 256 * 1024
"""Most bytes of a lane in one DATA frame."""

MAX_MESSAGE = 1 << 30
"""Longest body of one message, in bytes."""

MAX_PARTS = 4096
"""Most parts of one message."""

TOOL = "tool"
"""The kind of calls that go to no other client than the one that their cell names."""

TOLD_TO_END = "was ended from its host: its keeper was told to end (SIGTERM)"
"""How a kernel has ended of which no more than that is known on its host; in words that follow "The kernel"."""

MAX_CALL, MAX_BLOBS = 64 << 20, 1024
"""Longest call or answer on CALL, in bytes, and most of its parts that are blobs."""

_FRAME = struct.Struct("!IB")
_PIECE = struct.Struct("!BQ")
_ACK = struct.Struct("!QQ")
_PING = struct.Struct("!Q")
_MESSAGE = struct.Struct("!IBH")

_CAPS = {
    HELLO: 64 * 1024,
    DATA: _PIECE.size + PIECE,
    ACK: _ACK.size,
    PING: _PING.size,
    PONG: _PING.size,
    REPORT: 1 << 20,
    FAREWELL: 64 * 1024,
}

_AT_ONCE = 6 << 20
"""Bytes to make room for before they have come."""

# Below this a message's parts are joined into one buffer: one small copy is cheaper than several buffers to write.
_JOIN_BELOW = 64 * 1024


class ProtocolError(Exception):
    """The peer sent what the protocol does not allow. The connection ends; nothing else happens."""


def lane_of(channel: int) -> int:
    """Return the lane that a channel's messages travel in."""
    return PROMPT if channel in (CONTROL, KEEPER) else MAIN


def frame(kind: int, payload: bytes) -> bytes:
    """Return one whole frame.

    Raises:
        ProtocolError: the payload is longer than that kind may be.
    """
    if len(payload) > _CAPS[kind]:
        raise ProtocolError(f"a frame of kind {kind} may not carry {len(payload)} bytes")
    return _FRAME.pack(len(payload), kind) + payload


def json_frame(kind: int, content: dict[str, Any]) -> bytes:
    """Return a frame whose payload is JSON."""
    return frame(kind, json.dumps(content).encode())


def ack_frame(offsets: Sequence[int]) -> bytes:
    """Return an ACK frame: for each lane, how many of its bytes have arrived."""
    return _FRAME.pack(_ACK.size, ACK) + _ACK.pack(*offsets)


def ping_frame(kind: int, token: int) -> bytes:
    """Return a PING or PONG frame."""
    return _FRAME.pack(_PING.size, kind) + _PING.pack(token)


def piece_head(lane: int, offset: int, length: int) -> bytes:
    """Return what goes before `length` bytes of a lane to make a DATA frame of them."""
    return _FRAME.pack(_PIECE.size + length, DATA) + _PIECE.pack(lane, offset)


def encode_message(channel: int, parts: Sequence[Buffer]) -> list[Buffer]:
    """Return a message as the buffers that go into its lane; large parts are not copied.

    Raises:
        ProtocolError: it has more parts, or is longer, than a message may be.
    """
    lengths = [len(part) if isinstance(part, bytes) else memoryview(part).nbytes for part in parts]
    body = 4 * len(parts) + sum(lengths)
    if len(parts) > MAX_PARTS or body > MAX_MESSAGE:
        raise ProtocolError(
            f"a message of {len(parts)} parts and {body} bytes is over the link's limit "
            f"({MAX_PARTS} parts, {MAX_MESSAGE} bytes)"
        )
    head = _MESSAGE.pack(body, channel, len(parts)) + struct.pack(f"!{len(parts)}I", *lengths)
    if body < _JOIN_BELOW:
        return [b"".join((head, *parts))]
    buffers: list[Buffer] = [head]
    for part, length in zip(parts, lengths, strict=True):
        if length == 0:
            continue  # an empty buffer cannot be written: whoever waits for the last of it would wait for ever
        if length < _JOIN_BELOW and isinstance(buffers[-1], bytes) and len(buffers[-1]) < _JOIN_BELOW:
            buffers[-1] = b"".join((buffers[-1], part))
        else:
            buffers.append(part)
    return buffers


class Piece:
    """Some bytes of a lane, and the offset of the first of them."""

    __slots__ = ("data", "lane", "offset")

    def __init__(self, lane: int, offset: int, data: memoryview) -> None:
        self.lane = lane
        self.offset = offset
        self.data = data


class Frame:
    """A whole frame of any kind but DATA."""

    __slots__ = ("kind", "payload")

    def __init__(self, kind: int, payload: bytes) -> None:
        self.kind = kind
        self.payload = payload

    def json(self) -> dict[str, Any]:
        """Return the payload as a JSON object.

        Raises:
            ProtocolError: it is none.
        """
        try:
            content = json.loads(self.payload)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"a frame of kind {self.kind} holds no JSON: {error}") from None
        if not isinstance(content, dict):
            raise ProtocolError(f"a frame of kind {self.kind} holds no JSON object")
        return content

    def acks(self) -> tuple[int, ...]:
        """Return an ACK's offsets, one for each lane."""
        return _ACK.unpack(self.payload)

    def token(self) -> int:
        """Return a PING's or PONG's token."""
        token: int = _PING.unpack(self.payload)[0]
        return token


class FrameReader:
    """Turns a connection's bytes, split anywhere, into frames.

    A DATA frame is not gathered: its bytes are handed on as they come, as `Piece`s, so that a large message is
    copied once, to its final place.
    """

    def __init__(self) -> None:
        self._head = bytearray()
        self._wanted = _FRAME.size
        self._lane = 0
        self._offset = 0
        self._left = 0  # bytes of the present DATA frame that are still to come

    def feed(self, data: Buffer) -> Iterator[Frame | Piece]:
        """Take bytes and yield what they complete.

        Raises:
            ProtocolError: the bytes are no frames; the reader is of no use afterwards.
        """
        view = memoryview(data)
        position, end = 0, len(view)
        while position < end:
            if self._left:
                length = min(self._left, end - position)
                yield Piece(self._lane, self._offset, view[position : position + length])
                self._left -= length
                self._offset += length
                position += length
                continue
            length = min(self._wanted - len(self._head), end - position)
            self._head += view[position : position + length]
            position += length
            if len(self._head) == self._wanted:
                whole = self._advance()
                if whole is not None:
                    yield whole

    def _advance(self) -> Frame | None:
        """Go on from a complete head: to the rest of the frame, or past it."""
        length, kind = _FRAME.unpack_from(self._head)
        if self._wanted == _FRAME.size:
            self._check(kind, length)
            self._wanted += _PIECE.size if kind == DATA else length
            if len(self._head) < self._wanted:
                return None
        if kind == DATA:
            self._lane, self._offset = _PIECE.unpack_from(self._head, _FRAME.size)
            self._left = length - _PIECE.size
            if self._lane >= LANES:
                raise ProtocolError(f"there is no lane {self._lane}")
            whole = None
        else:
            whole = Frame(kind, bytes(self._head[_FRAME.size :]))
        self._head.clear()
        self._wanted = _FRAME.size
        return whole

    @staticmethod
    def _check(kind: int, length: int) -> None:
        cap = _CAPS.get(kind)
        if cap is None:
            raise ProtocolError(f"there is no frame of kind {kind}")
        fixed = {ACK: _ACK.size, PING: _PING.size, PONG: _PING.size}.get(kind)
        if length > cap or (fixed is not None and length != fixed) or (kind == DATA and length <= _PIECE.size):
            raise ProtocolError(f"a frame of kind {kind} cannot be {length} bytes long")


class MessageReader:
    """Turns a lane's bytes, split anywhere, into messages.

    Args:
        most: longest body of one message, in bytes.
    """

    def __init__(self, most: int = MAX_MESSAGE) -> None:
        self._most = most
        self._head = bytearray()
        self._channel = 0
        self._count = 0
        self._body: bytearray | None = None
        self._filled = 0
        self._size = 0

    def feed(self, data: memoryview) -> Iterator[Message]:
        """Take bytes and yield the messages that they complete; what is yielded does not share memory with `data`.

        Raises:
            ProtocolError: the bytes are no messages.
        """
        position, end = 0, len(data)
        while position < end:
            if self._body is None:
                length = min(_MESSAGE.size - len(self._head), end - position)
                self._head += data[position : position + length]
                position += length
                if len(self._head) < _MESSAGE.size:
                    return
                size = self._begin()
                if end - position >= size:
                    yield self._parts(memoryview(bytes(data[position : position + size])))
                    position += size
                else:
                    self._body, self._filled, self._size = bytearray(min(size, _AT_ONCE)), 0, size
                continue
            if self._filled == len(self._body):
                # A long one doubles with what comes: a damaged length alone must not cost a gigabyte.
                self._body += bytes(min(self._filled, self._size - self._filled))
            length = min(len(self._body) - self._filled, end - position)
            self._body[self._filled : self._filled + length] = data[position : position + length]
            self._filled += length
            position += length
            if self._filled == self._size:
                body, self._body = self._body, None
                yield self._parts(memoryview(body))

    def _begin(self) -> int:
        size: int
        size, self._channel, self._count = _MESSAGE.unpack(self._head)
        self._head.clear()
        if self._channel not in CHANNELS:
            raise ProtocolError(f"there is no channel {self._channel}")
        if size > self._most or self._count > MAX_PARTS or size < 4 * self._count:
            raise ProtocolError(f"a message cannot have {self._count} parts in {size} bytes")
        return size

    def _parts(self, body: memoryview) -> Message:
        lengths = struct.unpack_from(f"!{self._count}I", body)
        start = 4 * self._count
        if start + sum(lengths) != len(body):
            raise ProtocolError("a message's parts do not add up to its length")
        parts = []
        for length in lengths:
            parts.append(body[start : start + length])
            start += length
        return self._channel, parts
