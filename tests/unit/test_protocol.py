"""The link's protocol: exactly once, in order, whatever happens to the connections."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albedo_provisioner.bundle import protocol, wire
from albedo_provisioner.bundle.protocol import Attached, Failed, Link, LinkLostError, Parted, Ponged, Received
from albedo_provisioner.bundle.wire import CALL, CONTROL, IOPUB, KEEPER, NOTE, SHELL, STDIN

CHANNELS = [SHELL, CONTROL, STDIN, IOPUB, KEEPER, CALL]
messages = st.lists(
    st.tuples(st.sampled_from(CHANNELS), st.lists(st.binary(max_size=300), max_size=4)),
    max_size=20,
)


class Side:
    """One end of a link, and all it was told."""

    def __init__(self, limit: int | None = None) -> None:
        self.link = Link(limit)
        self.heard: list[tuple[int, list[bytes]]] = []
        self.events: list[protocol.Event] = []

    def take(self, data: bytes) -> None:
        for event in self.link.receive(data):
            if isinstance(event, Received):
                self.heard.append((event.channel, [bytes(part) for part in event.parts]))
            else:
                self.events.append(event)

    def give(self, most: int) -> bytes:
        """At most so many bytes of what this side wants to write."""
        data = b"".join(bytes(buffer) for buffer in self.link.outgoing())[:most]
        self.link.written(len(data))
        return data


def lanes(said: list[tuple[int, list[bytes]]]) -> dict[int, list[tuple[int, list[bytes]]]]:
    return {lane: [m for m in said if wire.lane_of(m[0]) == lane] for lane in range(wire.LANES)}


def connect(a: Side, b: Side) -> None:
    a.link.begin({"name": "a"})
    b.link.begin({"name": "b"})


def settle(a: Side, b: Side) -> None:
    """Carry bytes both ways until both are silent and all is confirmed."""
    while True:
        moved = False
        for one, other in ((a, b), (b, a)):
            if one.link.ack_pending and one.link.idle:
                one.link.acknowledge()
            data = one.give(1 << 30)
            if data:
                moved = True
                other.take(data)
        if not moved:
            return


def cut_and_carry(a: Side, b: Side, rng: random.Random) -> None:
    """Carry a random part of what is to be said in random pieces, then lose the rest with the connection."""
    connect(a, b)
    for _ in range(rng.randrange(12)):
        one, other = rng.choice([(a, b), (b, a)])
        data = one.give(rng.choice([1, 7, 50, 1000, 100_000]))
        arrived = data if rng.random() < 0.8 else data[: rng.randrange(len(data) + 1)]
        for start, end in pieces(arrived, rng):
            other.take(arrived[start:end])
        if len(arrived) < len(data):
            break  # a cut in the middle of a write: nothing later can arrive
        if rng.random() < 0.3:
            one.link.acknowledge()


def pieces(data: bytes, rng: random.Random) -> Iterator[tuple[int, int]]:
    start = 0
    while start < len(data):
        end = min(len(data), start + rng.choice([1, 2, 5, 13, 64, 4096]))
        yield start, end
        start = end


@settings(max_examples=200)
@given(there=messages, back=messages, seed=st.integers(0, 2**32), cuts=st.integers(0, 8))
def test_every_message_arrives_once_and_in_order_whatever_is_split_or_cut(
    there: list[tuple[int, list[bytes]]], back: list[tuple[int, list[bytes]]], seed: int, cuts: int
) -> None:
    rng = random.Random(seed)
    a, b = Side(), Side()
    to_say = [(a, m) for m in there] + [(b, m) for m in back]
    order_a, order_b = iter(there), iter(back)
    turns = [a] * len(there) + [b] * len(back)
    rng.shuffle(turns)
    assert len(turns) == len(to_say)
    for _ in range(cuts):
        for _ in range(min(len(turns), rng.randrange(6))):
            side = turns.pop()
            side.link.send(*next(order_a if side is a else order_b))
        cut_and_carry(a, b, rng)
    for side in turns[::-1]:
        side.link.send(*next(order_a if side is a else order_b))
    connect(a, b)
    settle(a, b)
    assert lanes(b.heard) == lanes(there)
    assert lanes(a.heard) == lanes(back)
    assert not any(isinstance(event, Failed) for event in a.events + b.events)
    assert a.link.held == b.link.held == 0, "what is confirmed is forgotten"


@given(data=st.binary(max_size=2000), attached=st.booleans(), step=st.integers(1, 50))
def test_random_bytes_are_a_protocol_error_and_nothing_else(data: bytes, attached: bool, step: int) -> None:
    a, b = Side(), Side()
    connect(a, b)
    if attached:
        settle(a, b)
    for start in range(0, len(data), step):
        a.take(data[start : start + step])
        if isinstance(a.events[-1] if a.events else None, Failed):
            break
    assert not a.heard or attached


@given(said=messages, where=st.integers(0, 2**20), what=st.integers(0, 255))
def test_a_damaged_byte_never_raises(said: list[tuple[int, list[bytes]]], where: int, what: int) -> None:
    a, b = Side(), Side()
    connect(a, b)
    settle(a, b)
    for message in said:
        a.link.send(*message)
    data = bytearray()
    while piece := a.give(1 << 20):
        data += piece
    if data:
        data[where % len(data)] = what
    b.take(bytes(data))
    assert all(isinstance(e, (Attached, Failed, Ponged, Parted)) for e in b.events)


def test_a_large_message_is_not_sent_again_from_its_beginning_after_a_cut() -> None:
    a, b = Side(), Side()
    connect(a, b)
    settle(a, b)
    big = [b"x", bytes(5_000_000), b"y"]
    a.link.send(IOPUB, big)
    while sum(b.link._received) < 3_000_000:
        b.take(a.give(1 << 30))
    connect(a, b)
    again = 0
    while not b.heard:
        data = a.give(1 << 30)
        again += len(data)
        b.take(data)
        a.take(b.give(1 << 30))
    assert again < 2_300_000
    assert b.heard == [(IOPUB, big)]


def test_an_empty_part_behind_a_large_one_leaves_nothing_to_write() -> None:
    a, b = Side(), Side()
    connect(a, b)
    settle(a, b)
    parts = [b"x" * 100_000, b"", b"y" * 100_000, b""]
    a.link.send(IOPUB, parts)
    settle(a, b)
    assert b.heard == [(IOPUB, parts)]
    assert a.link.outgoing() == []


def test_control_passes_output_that_waits() -> None:
    a, b = Side(), Side()
    connect(a, b)
    settle(a, b)
    for _ in range(100):
        a.link.send(IOPUB, [bytes(100_000)])
    b.take(a.give(300_000))
    a.link.send(CONTROL, [b"reply"])
    carried = 0
    while (CONTROL, [b"reply"]) not in b.heard:
        data = a.give(1 << 20)
        carried += len(data)
        b.take(data)
    assert carried < 600_000


def test_an_execute_reply_does_not_pass_its_cells_output() -> None:
    a, b = Side(), Side()
    connect(a, b)
    a.link.send(IOPUB, [bytes(1_000_000)])
    a.link.send(SHELL, [b"reply"])
    settle(a, b)
    assert [channel for channel, _ in b.heard] == [IOPUB, SHELL]


def test_a_peer_that_forgot_the_link_is_noticed() -> None:
    a, b = Side(), Side()
    connect(a, b)
    a.link.send(SHELL, [b"one"])
    settle(a, b)
    forgetful = Side()
    connect(a, forgetful)
    settle(a, forgetful)
    assert any(isinstance(event, Failed) and isinstance(event.error, LinkLostError) for event in a.events)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff\x02" + bytes(20),
        b"\x00\x00\x00\x01\x09x",
        b"\x00\x00\x00\x02\x01{}",
        b"\x00\x00\x00\x02\x01[]",
        b"\x00\x00\x00\x03\x03abc",
        wire.json_frame(wire.HELLO, {"protocol": 99, "received": [0, 0]}),
        wire.json_frame(wire.HELLO, {"protocol": 1, "received": [0, True]}),
        wire.json_frame(wire.HELLO, {"protocol": 1, "received": [0]}),
        wire.ping_frame(wire.PING, 1),
    ],
    ids=["length", "kind", "version", "list", "ack", "newer", "bool", "lanes", "early"],
)
def test_what_the_protocol_does_not_allow_is_refused(data: bytes) -> None:
    a = Side()
    a.link.begin({})
    a.take(data)
    assert [type(event) for event in a.events] == [Failed]


def test_a_ping_is_answered_and_a_farewell_is_heard() -> None:
    a, b = Side(), Side()
    connect(a, b)
    settle(a, b)
    a.link.ping(7)
    settle(a, b)
    b.link.farewell("replaced", "a newer connection took over")
    settle(a, b)
    assert Ponged(7) in a.events
    assert Parted("replaced", "a newer connection took over") in a.events


# -- bounds ------------------------------------------------------------------------------------------------------------


def jupyter(msg_type: str, parent: str, size: int = 1000) -> list[bytes]:
    header = json.dumps({"msg_type": msg_type, "msg_id": "m"}).encode()
    return [b"topic", b"<IDS|MSG>", b"sig", header, json.dumps({"msg_id": parent}).encode(), b"{}", bytes(size)]


def kinds(side: Side) -> list[str]:
    found = []
    for channel, parts in side.heard:
        found.append("gap" if channel == NOTE else json.loads(parts[3])["msg_type"])
    return found


def test_an_absent_peer_costs_no_more_than_the_limit_and_is_told_what_it_missed() -> None:
    limit = 100_000
    a, b = Side(limit), Side()
    most = 0
    for _ in range(2000):
        a.link.send(IOPUB, jupyter("stream", "cell-1"))
        most = max(most, a.link.held)
    a.link.send(IOPUB, jupyter("display_data", "cell-1"))
    a.link.send(IOPUB, jupyter("error", "cell-1"))
    a.link.send(IOPUB, jupyter("status", "cell-1", 10))
    a.link.send(SHELL, [b"c", b"<IDS|MSG>", b"s", b'{"msg_type": "execute_reply"}', b"{}", b"{}", b"{}"])
    assert most <= limit + 3000
    connect(a, b)
    settle(a, b)
    heard = kinds(b)
    assert heard[-4:] == ["display_data", "error", "status", "execute_reply"]
    assert heard.count("gap") == 1
    gap = next(json.loads(parts[0]) for channel, parts in b.heard if channel == NOTE)
    assert gap["messages"] == 2000 - heard.count("stream")
    assert gap["bytes"] > 1000 * gap["messages"]
    assert json.loads(gap["parent"]) == {"msg_id": "cell-1"}


def test_results_stay_when_displays_have_given_way() -> None:
    a, b = Side(50_000), Side()
    for _ in range(200):
        a.link.send(IOPUB, jupyter("display_data", "cell-1"))
        a.link.send(IOPUB, jupyter("execute_result", "cell-2", 100))
    connect(a, b)
    settle(a, b)
    heard = kinds(b)
    assert heard.count("display_data") < 200
    assert heard.count("gap") >= 1


def test_what_was_sent_is_never_given_up() -> None:
    a, b = Side(100_000), Side()
    connect(a, b)
    settle(a, b)
    first = [jupyter("stream", "cell-1") for _ in range(50)]
    for parts in first:
        a.link.send(IOPUB, parts)
    while a.give(1 << 20):
        pass  # sent, but lost with the connection
    for _ in range(500):
        a.link.send(IOPUB, jupyter("stream", "cell-1"))
    connect(a, b)
    settle(a, b)
    assert [parts for _, parts in b.heard[:50]] == first


def test_a_message_over_the_limit_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    a = Side()
    with pytest.raises(protocol.ProtocolError):
        a.link.send(IOPUB, [b""] * (wire.MAX_PARTS + 1))
