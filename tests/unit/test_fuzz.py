"""Malformed bytes on the link: no crash, no growth, nothing that was not said. Both sides run the same class."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albedo_provisioner.bundle import wire
from albedo_provisioner.bundle.protocol import Attached, Event, Failed, Link, LinkLostError, Received
from albedo_provisioner.bundle.wire import CONTROL, IOPUB, KEEPER, NOTE, SHELL, STDIN, ProtocolError
from albedo_provisioner.kernels.link import KernelLink

MOST = 32 << 20
"""Bytes that a fuzzed link may hold on to: far more than the inputs, far less than the lengths that they claim."""

GREETING = wire.json_frame(wire.HELLO, {"client": "fuzz", "protocol": 1, "received": [0, 0]})

messages = st.lists(
    st.tuples(
        st.sampled_from([SHELL, CONTROL, STDIN, IOPUB, KEEPER, NOTE]), st.lists(st.binary(max_size=200), max_size=4)
    ),
    min_size=1,
    max_size=8,
)

Mutation = Callable[[bytearray, random.Random], None]


def flip(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def extreme(data: bytearray, rng: random.Random) -> None:
    """Overwrite four bytes with a number that is at an edge of something."""
    at = rng.randrange(len(data))
    value = rng.choice([0, 1, 8, 9, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, wire.MAX_MESSAGE, wire.PIECE, wire.PIECE + 10])
    data[at : at + 4] = value.to_bytes(4, "big")


def delete(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.randrange(1, 30)]


def repeat(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    data[at:at] = data[at : at + rng.randrange(1, 60)]


def insert(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.randbytes(rng.randrange(1, 20))


MUTATIONS: list[Mutation] = [flip, extreme, delete, repeat, insert]


def stream(said: list[tuple[int, list[bytes]]]) -> bytes:
    """Return all that a side writes in a connection on which it greets, says these messages, and pings."""
    link, peer = Link(), Link()
    link.begin({"client": "fuzz"})
    peer.begin({})
    out = bytearray()

    def carry() -> None:
        data = b"".join(bytes(each) for each in link.outgoing())
        link.written(len(data))
        out.extend(data)
        peer.receive(data)

    carry()
    link.receive(b"".join(bytes(each) for each in peer.outgoing()))
    for message in said:
        link.send(*message)
    link.ping(7)
    while link.outgoing():
        carry()
    link.farewell("closed", "done")
    carry()
    return bytes(out)


def fed(data: bytes, rng: random.Random, link: Link | None = None) -> tuple[Link, list[Event]]:
    """Give bytes to a link in random pieces, as its owner would: up to the first failure."""
    if link is None:
        link = Link(1 << 20)
    link.begin({})
    events: list[Event] = []
    at = 0
    while at < len(data):
        size = rng.choice([1, 3, 20, 500, 1 << 20])
        events += link.receive(data[at : at + size])
        at += size
        if events and isinstance(events[-1], Failed):
            break
        link.written(sum(map(len, link.outgoing())))
    return link, events


@settings(max_examples=300)
@given(said=messages, seed=st.integers(0, 2**32), count=st.integers(1, 6))
def test_mutated_streams_fail_at_most_once_and_as_the_last_event(
    said: list[tuple[int, list[bytes]]], seed: int, count: int
) -> None:
    rng = random.Random(seed)
    data = bytearray(stream(said))
    for _ in range(count):
        if data:
            rng.choice(MUTATIONS)(data, rng)
    link, events = fed(bytes(data), rng)
    assert not any(isinstance(event, Failed) for event in events[:-1])
    received = [event for event in events if isinstance(event, Received)]
    assert not received or any(isinstance(event, Attached) for event in events), "nothing counts before a greeting"
    assert all(event.channel in wire.CHANNELS for event in received)
    # Whatever came, the connection can be replaced by one that works, or the link says that it cannot go on.
    link.end()
    _, after = fed(stream([]), rng, link)
    assert isinstance(after[0], Attached | Failed)


@settings(max_examples=300)
@given(
    seed=st.integers(0, 2**32), kind=st.integers(0, 9), length=st.integers(0, 2**32 - 1), rest=st.binary(max_size=99)
)
def test_a_frame_of_any_kind_and_length_is_taken_or_refused(seed: int, kind: int, length: int, rest: bytes) -> None:
    rng = random.Random(seed)
    for before in (b"", GREETING):
        fed(before + length.to_bytes(4, "big") + bytes([kind]) + rest, rng)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(
    kind=st.sampled_from([wire.HELLO, wire.REPORT, wire.FAREWELL]),
    content=_json
    | st.fixed_dictionaries({"protocol": st.just(1) | _json, "received": _json | st.lists(st.integers(), max_size=3)}),
)
def test_json_of_any_shape_in_a_frame_is_taken_or_refused(kind: int, content: object) -> None:
    payload = json.dumps(content).encode()
    _, events = fed(wire.frame(kind, payload), random.Random(0))
    assert len(events) == 1


@pytest.mark.parametrize(
    "payload", [b"[" * 60_000, b"\xff\xfe", b"", b'{"a":' * 9_000, b"1" * 60_000, b"NaN", b'"\\ud800"']
)
def test_hostile_json_is_a_protocol_error(payload: bytes) -> None:
    _, events = fed(wire.frame(wire.HELLO, payload), random.Random(0))
    assert [type(event) for event in events] == [Failed]


@settings(max_examples=200)
@given(data=st.binary(max_size=400), step=st.integers(1, 60))
def test_random_bytes_in_a_lane_end_the_link_and_nothing_else(data: bytes, step: int) -> None:
    reader = wire.MessageReader()
    try:
        for at in range(0, len(data), step):
            for channel, parts in reader.feed(memoryview(data[at : at + step])):
                assert channel in wire.CHANNELS
                assert sum(map(len, parts)) <= len(data)
    except ProtocolError:
        pass  # that is what it is for


@given(acks=st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), max_size=5))
def test_confirmations_of_what_was_never_said_are_refused(acks: list[tuple[int, int]]) -> None:
    link, _ = fed(GREETING, random.Random(0))
    link.send(IOPUB, [b"x" * 100])
    said = sum(map(len, link.outgoing()))
    link.written(said)
    for offsets in acks:
        events = link.receive(wire.ack_frame(offsets))
        if events:
            assert isinstance(events[-1], Failed)
            return
        assert 0 <= link.held <= said


def test_a_claimed_length_costs_nothing_before_its_bytes_come() -> None:
    head = wire._MESSAGE.pack(wire.MAX_MESSAGE, IOPUB, 3)
    frame = wire.piece_head(wire.MAIN, 0, len(head) + 100) + head + bytes(100)
    tracemalloc.start()
    try:
        _, events = fed(GREETING + frame, random.Random(1))
        assert not any(isinstance(event, Failed) for event in events), events
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()


def test_thousands_of_bad_connections_leave_a_link_no_larger() -> None:
    rng = random.Random(5)
    good = stream([(SHELL, [b"x" * 50])])
    link = Link(1 << 20)
    for _ in range(200):
        link, _ = fed(good, rng, Link(1 << 20))
    tracemalloc.start()
    try:
        link = Link(1 << 20)
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(3000):
            data = bytearray(good)
            rng.choice(MUTATIONS)(data, rng)
            _, events = fed(bytes(data), rng, link)
            link.end()
            if events and isinstance(events[-1], Failed) and isinstance(events[-1].error, LinkLostError):
                link = Link(1 << 20)  # as its owner does
        assert tracemalloc.get_traced_memory()[0] - before < 1 << 20
    finally:
        tracemalloc.stop()


class Silent:
    """A visit, its transport and its owner in one, of whom nothing is expected."""

    host = "somewhere"

    def __init__(self) -> None:
        self.received_messages: list[int] = []
        self.closed = False

    def close(self) -> None:
        self.closed = True

    def greeted(self, _: dict[str, Any]) -> None:
        pass

    def received(self, channel: int, _: list[memoryview]) -> None:
        self.received_messages.append(channel)


@pytest.mark.parametrize("said", [[], [b""], [b"\xff"], [b"[]"], [b"7"], [b'{"id": []}'], [b"[" * 50_000]])
async def test_a_keeper_that_talks_nonsense_loses_its_connection_and_no_message(said: list[bytes]) -> None:
    there: Any = Silent()
    link = KernelLink(there, "kernel", "client", None, there)
    link._visit = there
    link._link.begin({})
    link._link.written(sum(map(len, link._link.outgoing())))
    link._on_data(there, stream([(IOPUB, [b"a"]), (KEEPER, said), (IOPUB, [b"b"])]))
    assert there.closed
    assert link.away is not None
    assert there.received_messages == [IOPUB, IOPUB], "what has arrived does not come again, so it has to be passed on"
