"""The faults. Each breaks something at a random moment and heals it; what may come of that is said in `rounds.py`."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable

from procs import Process, send

from .campaign import Campaign, Failure, eventually

Fault = Callable[[Campaign, random.Random], Awaitable[None]]


def _moment(rng: random.Random, most: float = 1.5) -> float:
    """Return seconds, short ones more often."""
    return rng.choice([rng.uniform(0, 0.1), rng.uniform(0.1, 0.6), rng.uniform(0.3, most)])


def _size(rng: random.Random, most: int = 400_000) -> int:
    """Return a number of bytes, of any order of magnitude."""
    return int(most ** rng.random())


async def none(_: Campaign, __: random.Random) -> None:
    """Nothing happens."""


async def kill_bridge(campaign: Campaign, rng: random.Random) -> None:
    """Kill the process that serves the connection, once or several times."""
    for _ in range(rng.choice([1, 1, 3])):
        for bridge in campaign.place.bridges():
            send(bridge, signal.SIGKILL)
        await asyncio.sleep(_moment(rng, 0.5))


async def kill_sessions(campaign: Campaign, rng: random.Random) -> None:
    """Kill the server processes of all connections."""
    for _ in range(rng.choice([1, 1, 3])):
        await asyncio.to_thread(campaign.place.server.cut)
        await asyncio.sleep(_moment(rng, 0.5))


async def kill_sshd(campaign: Campaign, rng: random.Random) -> None:
    """Kill the ssh server with all its connections, and start it again."""
    await asyncio.to_thread(campaign.place.server.stop)
    await asyncio.sleep(_moment(rng))
    await asyncio.to_thread(campaign.place.server.up)


async def block_port(campaign: Campaign, rng: random.Random) -> None:
    """Break the connections and refuse new ones for a while; meanwhile the kernel must not count as dead."""
    campaign.place.proxy.block()
    seconds = _moment(rng, 3)
    await asyncio.sleep(seconds)
    status = await campaign.client.do("status")
    if not status["alive"]:
        raise Failure(f"a host out of reach was taken for a dead kernel: {status}")
    if seconds > 1 and (status["away"] is None or status["step"] == "attached"):
        raise Failure(f"the host is out of reach, and the status does not say so: {status}")
    campaign.place.proxy.unblock()


async def cut(campaign: Campaign, rng: random.Random) -> None:
    """Break the connections several times, at intervals of any length."""
    for _ in range(rng.randrange(1, 6)):
        campaign.place.proxy.cut(reset=rng.random() < 0.5)
        await asyncio.sleep(_moment(rng, 0.8))


async def cut_down(campaign: Campaign, rng: random.Random) -> None:
    """Break the connections when so many bytes came from the host: in greetings, handshakes, large messages."""
    await _cut_after(campaign, rng, "down")


async def cut_up(campaign: Campaign, rng: random.Random) -> None:
    """Break the connections when so many bytes went to the host."""
    await _cut_after(campaign, rng, "up")


async def _cut_after(campaign: Campaign, rng: random.Random, direction: str) -> None:
    proxy = campaign.place.proxy
    for number in range(rng.randrange(1, 5)):
        if number:
            proxy.cut()  # so that the next one falls into the reattaching
        size = _size(rng, 400_000 if direction == "down" else 20_000)
        proxy.cut_after(**{direction: size}, reset=rng.random() < 0.5)
        await eventually(_is(lambda: not proxy.pending_cut), _moment(rng))


async def stop_server(campaign: Campaign, rng: random.Random) -> None:
    """Stop the server processes of all connections for a while."""
    await _stop(campaign.place.server._session_servers(), _moment(rng))


async def stop_bridge_and_keeper(campaign: Campaign, rng: random.Random) -> None:
    """Stop our own processes on the host for a while."""
    place = campaign.place
    await _stop(rng.choice([place.bridges(), place.keepers(), place.bridges() + place.keepers()]), _moment(rng))


async def stop_kernel(campaign: Campaign, rng: random.Random) -> None:
    """Stop the kernel for a while."""
    await _stop(campaign.place.kernels(), _moment(rng))


async def stop_client(campaign: Campaign, rng: random.Random) -> None:
    """Stop the client's process for a while."""
    campaign.client.signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(_moment(rng))
    finally:
        campaign.client.signal(signal.SIGCONT)


async def half_open(campaign: Campaign, rng: random.Random) -> None:
    """Hold the connections still until the client has noticed and has a new one (some ten seconds)."""
    stopped = campaign.place.server._session_servers()
    before = (await campaign.client.do("status"))["connections"]
    for process in stopped:
        send(process, signal.SIGSTOP)
    try:

        async def replaced() -> bool:
            return bool((await campaign.client.do("status"))["connections"] > before)

        if stopped and not await eventually(replaced, 20):
            raise Failure("a half-open connection was not replaced within 20 s")
    finally:
        for process in stopped:
            send(process, rng.choice([signal.SIGCONT, signal.SIGKILL]))


async def drip(campaign: Campaign, rng: random.Random) -> None:
    """Let bytes through in drips for a while, and break the connections in the end, or not."""
    campaign.place.proxy.drip(rng.choice([7, 100, 1500]), rng.choice([0.001, 0.01]))
    await asyncio.sleep(_moment(rng, 2))
    campaign.place.proxy.drip()
    if rng.random() < 0.5:
        campaign.place.proxy.cut()


async def hold(campaign: Campaign, rng: random.Random) -> None:
    """Let nothing through for a while, and break the connections in the end, or not."""
    campaign.place.proxy.hold(True)
    await asyncio.sleep(_moment(rng, 3))
    if rng.random() < 0.5:
        campaign.place.proxy.cut()
    campaign.place.proxy.hold(False)


async def full_disk(campaign: Campaign, rng: random.Random) -> None:
    """Leave no byte free under the run directory while the connection is made anew."""
    campaign.place.fill_disk()
    try:
        campaign.place.proxy.cut()
        await asyncio.sleep(_moment(rng))
        before = campaign.client.received[-1:]
        await campaign.settle()  # it works on, however full the disk is
        if campaign.client.received[-1:] == before:
            raise Failure("nothing came while the disk was full")
    finally:
        campaign.place.free_disk()


async def _stop(processes: list[Process], seconds: float) -> None:
    for process in processes:
        send(process, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        for process in processes:
            send(process, signal.SIGCONT)


def _is(condition: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def ask() -> bool:
        return condition()

    return ask


LINK_FAULTS: dict[str, tuple[Fault, float]] = {
    fault.__name__: (fault, weight)
    for fault, weight in (
        (none, 1),
        (kill_bridge, 3),
        (kill_sessions, 3),
        (kill_sshd, 3),
        (block_port, 4),
        (cut, 4),
        (cut_down, 6),
        (cut_up, 6),
        (stop_server, 2),
        (stop_bridge_and_keeper, 3),
        (stop_kernel, 1),
        (stop_client, 2),
        (half_open, 0.4),
        (drip, 3),
        (hold, 3),
        (full_disk, 2),
    )
}
"""Faults that cost nothing, with how often they come."""
