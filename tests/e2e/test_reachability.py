"""A host that answers again is noticed at once where something tells of it, and not only at the next retry."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator

import pytest
from faces import Embedded
from kernels import eventually, started

from albedo_provisioner.hosts import io_thread
from albedo_provisioner.hosts.check import check_location
from albedo_provisioner.hosts.reachability import SPACING, Reachability
from albedo_provisioner.kernels import retries, silence
from albedo_provisioner.location import Location

ADDRESS = f"127.{os.getpid() >> 16 & 255}.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"  # no other test's
RTM_NEWADDR, RTM_DELADDR = 20, 21
NLM_F_REQUEST, NLM_F_ACK, NLM_F_CREATE = 0x1, 0x4, 0x400


def change_network(kind: int) -> int:
    """Add an address to the loopback interface, or take it away; return 0 or the system's error number (rtnetlink)."""
    address = socket.inet_aton(ADDRESS)
    attributes = struct.pack("=HH4s", 8, 1, address) + struct.pack("=HH4s", 8, 2, address)
    body = struct.pack("=BBBBI", socket.AF_INET, 32, 0, 254, socket.if_nametoindex("lo")) + attributes
    flags = NLM_F_REQUEST | NLM_F_ACK | (NLM_F_CREATE if kind == RTM_NEWADDR else 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as rtnetlink:
        rtnetlink.bind((0, 0))
        rtnetlink.send(struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body)
        (error,) = struct.unpack_from("=i", rtnetlink.recv(4096), 16)
    return -int(error)


@pytest.fixture
def network() -> Iterator[None]:
    """See that the network can be changed here, and is as it was afterwards."""
    if sys.platform != "linux" or change_network(RTM_NEWADDR):
        pytest.skip("changing the network takes Linux and root")
    change_network(RTM_DELADDR)
    yield
    change_network(RTM_DELADDR)


@pytest.fixture
def long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have links rest as long after the first failure as they do when a host has been away for minutes."""
    monkeypatch.setattr(retries, "_FIRST_RETRY", 30.0)
    monkeypatch.setattr(retries, "_LONGEST_PAUSE", ((float("inf"), 30.0),))


@pytest.mark.usefixtures("long_pauses")
class TestLinksThatWait:
    async def test_try_again_when_this_machines_network_changes(self, embedded_host: Embedded, network: None) -> None:
        async with started(embedded_host.location()) as kernel:
            await kernel.run("x = 41")
            embedded_host.down()
            await eventually(lambda: "refused" in str(kernel.status["away"]))
            embedded_host.up()
            change_network(RTM_NEWADDR)
            await eventually(lambda: kernel.status["step"] == "attached", 5)
            assert await kernel.value("x") == "41"

    async def test_try_again_when_somebody_else_got_through(self, embedded_host: Embedded) -> None:
        async with started(embedded_host.location()) as kernel:
            embedded_host.down()
            await eventually(lambda: "refused" in str(kernel.status["away"]))
            embedded_host.up()
            await asyncio.to_thread(check_location, Location.parse(embedded_host.location()), str(embedded_host.python))
            await eventually(lambda: kernel.status["step"] == "attached", 5)


async def test_a_connection_that_a_change_of_the_network_left_dead_is_replaced_sooner(
    embedded_host: Embedded, network: None
) -> None:
    """L6."""
    async with started(embedded_host.location()) as kernel:
        await kernel.run("x = 41")
        embedded_host.freeze()
        began = time.monotonic()
        change_network(RTM_NEWADDR)
        await eventually(lambda: kernel.status["connections"] == 2)
        assert time.monotonic() - began < silence.SILENCE - 1
        assert await kernel.value("x") == "41"
        embedded_host.thaw()


async def test_a_connection_that_a_change_of_the_network_left_alone_stays(
    embedded_host: Embedded, network: None
) -> None:
    async with started(embedded_host.location()) as kernel:
        change_network(RTM_NEWADDR)
        await asyncio.sleep(silence.PING_EVERY + 1)  # the time in which it would be given up
        assert kernel.status["connections"] == 1


async def test_news_in_quick_succession_are_told_at_once_and_once_more_at_the_end() -> None:
    told: list[float] = []

    async def announce() -> None:
        cancel = Reachability.get().subscribe("gpu", lambda: told.append(time.monotonic()))
        for _ in range(50):
            Reachability.get().announce("gpu")
            Reachability.get().announce("lab2")
        assert len(told) == 1
        await eventually(lambda: len(told) == 2)
        cancel()
        Reachability.get().announce("gpu")
        await asyncio.sleep(2 * SPACING)

    await io_thread.run(announce())
    assert len(told) == 2
    assert told[1] - told[0] >= SPACING * 0.9
