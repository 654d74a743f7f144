"""Whatever comes to a keeper's socket, by whoever may open it, harms neither the keeper nor those linked to it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from faces import Embedded
from kernels import Kernel, eventually, started

from albedo_provisioner.bundle import reception, wire
from albedo_provisioner.bundle.protocol import Attached, Link, Parted, Received
from albedo_provisioner.bundle.wire import IOPUB, KEEPER, SHELL

GREETING = wire.json_frame(wire.HELLO, {"client": "fuzz", "protocol": 1, "received": [0, 0]}).decode("latin-1")
OFFER = {"link": "f" * 32, "client": "fuzz", "fresh": True, "hello": GREETING}


class Door:
    """A keeper's socket and its process, as somebody of the same account on its host sees them."""

    def __init__(self, host: Embedded, kernel: Kernel) -> None:
        self.kernel = kernel
        (self.folder,) = (host.home / ".albedo-remote" / "run").iterdir()
        (self.pid,) = {p.pid for p in host.processes() if Path(f"/proc/{p.pid}/comm").read_text() == "albedo-keeper\n"}

    def connect(self) -> socket.socket:
        """Connect to it."""
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(f"/proc/self/fd/{folder}/keeper")  # the path itself may be too long for a socket
        finally:
            os.close(folder)
        connection.settimeout(20)
        return connection

    def hand_over(self, data: bytes, descriptors: list[int]) -> socket.socket:
        """Connect and send bytes with descriptors."""
        connection = self.connect()
        socket.send_fds(connection, [data], descriptors)
        return connection

    @contextmanager
    def attached(self, **offer: Any) -> Iterator[socket.socket]:
        """Hand over a connection as a bridge does, and give its other end."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            bridge = self.hand_over(handoff({**OFFER, **offer}), [theirs.fileno(), theirs.fileno()])
            theirs.close()
            ours.settimeout(20)
            with bridge:
                yield ours

    def descriptors(self) -> int:
        """Return how many descriptors the keeper has."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def resident(self) -> int:
        """Return the keeper's memory in bytes."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@asynccontextmanager
async def unharmed(host: Embedded) -> AsyncIterator[Door]:
    """Have a kernel with a client, and see afterwards that nothing of what came in between has left a trace."""
    async with started(host.location()) as kernel:
        await kernel.run("x = 41")
        door = Door(host, kernel)
        descriptors, resident = door.descriptors(), door.resident()
        yield door
        assert await kernel.value("x + 1") == "42"
        assert kernel.status["connections"] == 1, "its connection is the one it had"
        await eventually(lambda: door.descriptors() <= descriptors, 20, f"{descriptors} descriptors as before")
        assert door.resident() - resident < 16 << 20
        host.cut()
        await eventually(lambda: kernel.status["connections"] == 2 and kernel.status["away"] is None)
        assert await kernel.value("x + 1") == "42"
        assert Door(host, kernel).pid == door.pid, "the keeper is the one that it was"


def handoff(offer: object) -> bytes:
    data = json.dumps(offer).encode()
    return struct.pack("!I", len(data)) + data


def ended(connection: socket.socket) -> bool:
    """Wait for the other side to close."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass  # it did not even read all
    return True


BOGUS: dict[str, bytes] = {
    "nothing in it": b"\0\0\0\0",
    "too short": b"\0\0",
    "no json": struct.pack("!I", 20) + b"x" * 20,
    "half of it": handoff(OFFER)[:-30],
    "more than there is": struct.pack("!I", 0xFFFFFFFF) + b"{}",
    "deep json": struct.pack("!I", 60_000) + b"[" * 60_000,
    "a list": handoff([]),
    "a number": handoff(7),
    "nothing said": handoff({}),
    "no text": handoff({**OFFER, "hello": 3}),
    "not latin": handoff({**OFFER, "hello": "\u20ac"}),
    "a path for a link": handoff({**OFFER, "link": "../../x"}),
    "a long link": handoff({**OFFER, "link": "a" * 65}),
    "letters of elsewhere": handoff({**OFFER, "link": "é" * 8}),
}


@pytest.fixture
def null() -> Iterator[int]:
    """A descriptor of /dev/null."""
    descriptor = os.open(os.devnull, os.O_RDWR)
    yield descriptor
    os.close(descriptor)


async def test_bogus_handoffs_are_turned_away(embedded_host: Embedded, null: int) -> None:
    async with unharmed(embedded_host) as door:
        for name, data in BOGUS.items():
            for count in (0, 1, 2):
                with door.hand_over(data, [null] * count) as connection:
                    assert await asyncio.to_thread(ended, connection), name


async def test_a_wrong_number_of_descriptors_is_turned_away(embedded_host: Embedded, null: int) -> None:
    async with unharmed(embedded_host) as door:
        for count in (0, 1, 3, 10, 200):
            for _ in range(20):
                with door.hand_over(handoff(OFFER), [null] * count) as connection:
                    assert await asyncio.to_thread(ended, connection), count


async def test_descriptors_of_the_wrong_kind_are_turned_away(embedded_host: Embedded, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(100))
    kinds = [
        (tmp_path, os.O_RDONLY),
        (tmp_path, os.O_PATH),
        (file, os.O_PATH),
        (file, os.O_RDONLY),
        (file, os.O_WRONLY),
    ]
    async with unharmed(embedded_host) as door:
        for path, flags in kinds:
            descriptor = os.open(path, flags)
            try:
                with door.hand_over(handoff(OFFER), [descriptor, descriptor]) as connection:
                    await asyncio.to_thread(ended, connection)
            finally:
                os.close(descriptor)


async def test_half_handoffs_that_never_finish_keep_nobody_out(embedded_host: Embedded) -> None:
    async with unharmed(embedded_host) as door:
        before = door.descriptors()
        idle = [door.connect() for _ in range(150)]
        try:
            assert await door.kernel.value("x") == "41"
            await eventually(lambda: door.descriptors() <= before + reception.MOST_ARRIVING)
            with door.attached() as ours:
                assert await asyncio.to_thread(ours.recv, 5), "who comes with a handoff is let in"
        finally:
            for connection in idle:
                connection.close()


async def test_what_breaks_the_protocol_ends_its_own_connection(embedded_host: Embedded) -> None:
    rng = random.Random(11)
    link = Link()
    link.begin({"client": "fuzz"})
    link.receive(GREETING.encode("latin-1"))
    for _ in range(5):
        link.send(SHELL, [b"x" * 100, b"<IDS|MSG>", b"{}"])
        link.send(KEEPER, [b'{"id": 1, "do": "status"}'])
    good = b"".join(map(bytes, link.outgoing()))
    link.written(len(good))
    good = b"".join(map(bytes, link.outgoing()))
    async with unharmed(embedded_host) as door:
        for number in range(60):
            data = bytearray(good)
            for _ in range(rng.randrange(1, 5)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            with door.attached(link=f"{number:032}") as ours:
                ours.sendall(data + b"\xff" * 64)
                assert await asyncio.to_thread(ended, ours)
        for number in range(20):
            with door.attached(link="e" * 31 + f"{number}"[-1], hello=f"\x00\x00\x00\x02\x01{number:02}") as ours:
                assert await asyncio.to_thread(ended, ours)


REQUESTS: list[bytes] = [
    *(b"", b"\xff", b"[]", b"{}", b"7", b'{"id": 1}', b'{"id": "x", "do": "status"}', b"[" * 50_000),
    *(b'{"id": 1, "do": []}', b'{"id": 1, "do": "fly"}', b'{"id": 1, "do": "signal"}'),
    *(b'{"id": 1, "do": "signal", "signum": "9"}', b'{"id": 1, "do": "signal", "signum": 1e99}'),
    *(b'{"id": 1, "do": "signal", "signum": 99999999999999999999}', b'{"id": 1, "do": "signal", "signum": -4}'),
    *(b'{"id": 1, "do": "signal", "signum": 2, "cell": [1]}', b'{"id": 1, "do": "signal", "signum": 2, "cell": {}}'),
    *(b'{"id": 1, "do": "cell", "msg_id": null}', b'{"id": 1, "do": "cell", "first": "x"}'),
    *(b'{"id": 1, "do": "stop", "term_grace": "soon"}', b'{"id": 1, "do": "finish", "term_grace": []}'),
]


async def test_requests_that_make_no_sense_are_refused(embedded_host: Embedded) -> None:
    async with unharmed(embedded_host) as door:
        for number, request in enumerate(REQUESTS):
            for more, parts in enumerate(([request], [request, b"more"], [])):
                with door.attached(link=f"{number:031}{more}") as ours:
                    link = Link()
                    link.begin({"client": "fuzz"})
                    link.receive(await asyncio.to_thread(ours.recv, 1 << 16))
                    link.written(len(b"".join(map(bytes, link.outgoing()))))  # the greeting went with the handoff
                    link.send(KEEPER, parts)
                    ours.sendall(b"".join(map(bytes, link.outgoing())))
                    link.written(sum(map(len, link.outgoing())))
                    await asyncio.to_thread(refusal, ours, link, request)


def answered(connection: socket.socket, link: Link) -> None:
    """Read until a message has come."""
    while not any(isinstance(event, Received) for event in link.receive(connection.recv(1 << 16))):
        pass


def refusal(connection: socket.socket, link: Link, request: bytes) -> None:
    """Read until the keeper has refused a request, or said goodbye because it was none."""
    while data := connection.recv(1 << 16):
        for event in link.receive(data):
            if isinstance(event, Received) and event.channel == KEEPER:
                content = json.loads(bytes(event.parts[0]))
                if "id" in content:
                    waits = b'"cell"' in request and b'"signal"' in request
                    assert "error" in content or waits, (request, content)
                    return
            elif isinstance(event, Parted):
                assert event.code == "protocol", (request, event)
                return
            else:
                assert isinstance(event, Attached) or (isinstance(event, Received) and event.channel == IOPUB)
        if b'"cell": ' in request and b'"signal"' in request:
            return  # it may wait for a cell of that name


async def test_a_link_of_which_nothing_had_arrived_is_taken_up(embedded_host: Embedded) -> None:
    """L5: it was cut right after the greetings, with its first request on the way."""
    async with unharmed(embedded_host) as door:
        with door.attached() as ours:
            assert await asyncio.to_thread(ours.recv, 1 << 16)
        with door.attached(fresh=False) as ours:
            link = Link()
            link.begin({"client": "fuzz"})
            (event,) = link.receive(await asyncio.to_thread(ours.recv, 1 << 16))
            assert isinstance(event, Attached)
            link.written(sum(map(len, link.outgoing())))  # the greeting went with the handoff
            link.send(KEEPER, [b'{"id": 1, "do": "status"}'])
            ours.sendall(b"".join(map(bytes, link.outgoing())))
            await asyncio.to_thread(answered, ours, link)


async def test_a_kernel_holds_no_connection_open(embedded_host: Embedded) -> None:
    """One that was started anew, by a keeper that had connections by then."""
    async with started(embedded_host.location()) as kernel:
        await kernel.manager.restart_kernel(now=True)
        assert await kernel.value("6 * 7") == "42"

        def open_files(pid: int) -> set[str]:
            return {os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd") if os.path.islink(entry.path)}

        door = Door(embedded_host, kernel)
        shared = open_files(kernel.status["pid"]) & open_files(door.pid)
        assert not [name for name in shared if name.startswith(("socket:", "pipe:"))]


async def test_a_stopped_reader_holds_nobody_up(embedded_host: Embedded) -> None:
    """A connection whose other end takes nothing: the keeper's pipe is full, and the others' output goes on."""
    async with unharmed(embedded_host) as door:
        with door.attached():
            cell = await door.kernel.run("for i in range(200): print('x' * 50_000)")
            assert len(cell.stdout) == 200 * 50_001
        assert door.kernel.status["process"] == "running"
        os.kill(door.pid, signal.SIGCONT)  # it is there, and ours to signal


async def test_what_was_on_its_way_to_a_client_that_left_is_kept_for_a_moment_and_not_for_long(
    embedded_host: Embedded,
) -> None:
    """L9: it was attached and took nothing, so much more than the bound was waiting for it."""
    async with started(embedded_host.location(), {"hold": 1 << 20, "journal_bytes": 1 << 20}) as kernel:
        await kernel.run("pass")
        door = Door(embedded_host, kernel)
        before = door.resident()
        with door.attached():
            cell = await kernel.run("for i in range(1000): print('x' * 100_000, flush=True)")
            assert len(cell.stdout) == 1000 * 100_001
            assert door.resident() - before > 80 << 20
        await eventually(lambda: door.resident() - before < 24 << 20, 60, "no more is held than may be")


async def test_a_connection_that_was_made_before_the_one_that_is_there_takes_nothing_over(
    embedded_host: Embedded,
) -> None:
    """L5: its command was under way when it broke, and reaches the keeper after that of the next one."""
    async with unharmed(embedded_host) as door:
        with door.attached(attempt=["a", 2]) as newer:
            assert newer.recv(1 << 16)
            with door.attached(attempt=["a", 1]) as late:
                assert ended(late)
            newer.sendall(wire.ping_frame(wire.PING, 7))
            said = b""
            while wire.ping_frame(wire.PONG, 7) not in said:  # it is served as before
                said += (piece := newer.recv(1 << 16))
                assert piece
            with door.attached(attempt=["b", 1]) as another:
                assert another.recv(1 << 16), "another process's is newer, whatever its number"
