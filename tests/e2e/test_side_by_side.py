"""Many hosts that are asked at the same time through one ssh server, or over one connection."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest
from door import Door
from faces import Real
from masters import Master
from recorder import Recorder, run

from albedo_provisioner import AsyncHosts, Hosts
from albedo_provisioner.errors import UnreachableError
from albedo_provisioner.hosts import doors
from albedo_provisioner.hosts.openssh import ProgramTransport
from albedo_provisioner.hosts.ssh import SSHTransport

DROPS = {"MaxStartups": "10:100:11", "AllowTcpForwarding": "yes"}
"""A server that drops each connection for which there are ten already that have not signed in. (It is not at once that
it takes note of a sign-in.)"""


def spell(door: Door, jumps: bool, count: int = 22) -> list[str]:
    """Write so many aliases of one account, and return them."""
    door.write("bastion")
    door.write("jb*", **({"ProxyJump": "bastion"} if jumps else {}))
    return [f"jb{number}" for number in range(count)]


@pytest.fixture(params=["builtin", "program"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("ALBEDO_SSH", request.param)
    return str(request.param)


@pytest.mark.parametrize("jumps", [False, True], ids=["one server", "one jump host"])
def test_hosts_behind_one_server_are_ready_all(door: Door, way: str, jumps: bool) -> None:
    """H6: the server counts those that go on to hosts behind it as well."""
    server = door.host.server
    server.restart(**DROPS)
    names, before = spell(door, jumps), len(server.log())
    states = Hosts().probe_all(names)
    assert {name: state.detail for name, state in states.items() if state.state != "ready"} == {}
    assert "drop connection" not in server.log()[before:] or jumps  # the target of a jump is the same server here


@pytest.mark.parametrize("kind", [SSHTransport, ProgramTransport])
async def test_a_connection_that_is_turned_away_is_tried_again(
    door: Door, kind: type[SSHTransport] | type[ProgramTransport]
) -> None:
    """Those of other processes count as well, and they go."""
    door.host.server.restart(MaxStartups="1:100:1")
    door.write("gpu")
    port, before = door.host.server.port, len(door.host.server.log())
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await reader.readuntil(b"\n")
    transport = kind("gpu")
    door.transports.append(transport)
    asyncio.get_running_loop().call_later(0.1, writer.close)
    assert (await run(transport, "id -un")).out.decode().strip() == door.host.account.name
    assert "drop connection" in door.host.server.log()[before:]


@pytest.mark.parametrize("kind", [SSHTransport, ProgramTransport])
async def test_a_server_that_turns_everybody_away_is_told_soon(
    door: Door, kind: type[SSHTransport] | type[ProgramTransport], hanging_up: tuple[int, list[float]]
) -> None:
    port, callers = hanging_up
    door.write("gpu", Port=str(port))
    transport = kind("gpu")
    door.transports.append(transport)
    with pytest.raises(UnreachableError, match="cannot be reached: connection "):
        await transport.open("true", Recorder())
    assert len(callers) == 4
    assert callers[-1] - callers[0] < 8


@pytest.fixture
def hanging_up() -> Iterator[tuple[int, list[float]]]:
    """Listen on a port where every caller is hung up on without a word; return it, and when they called."""
    callers: list[float] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    caller, _ = server.accept()
                except OSError:
                    return
                callers.append(time.monotonic())  # before the caller can know
                caller.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1], callers
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


async def test_nobody_waits_for_others_at_a_server_that_answers_nobody(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H6: they are all told in the time of one."""
    monkeypatch.setattr(doors, "PATIENCE", 0.5)
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        door.write("deaf*", Port=str(server.getsockname()[1]))
        began = time.monotonic()
        states = await AsyncHosts(timeout=3).probe_all([f"deaf{number}" for number in range(13)])
        assert time.monotonic() - began < 6
    assert {state.state for state in states.values()} == {"unreachable"}


async def test_a_probe_s_time_does_not_count_the_wait_for_other_probes(sshd_host: Real, door: Door) -> None:
    """H6: a place at the door is what it lacks, and not an answer."""
    door.write("gpu")
    from albedo_provisioner.hosts import io_thread

    async def crowd() -> doors.Doors:
        return doors.Doors.get()

    taken = await io_thread.run(crowd())

    async def hold(seconds: float) -> None:
        key = doors.door_of("127.0.0.1", sshd_host.server.port)

        async def stand() -> None:
            async with taken.knock(key, "others") as knock:
                for _ in range(round(seconds * 10)):
                    await asyncio.sleep(0.1)
                    knock.moved()

        await asyncio.gather(*(stand() for _ in range(doors.MOST_AT_ONCE)))

    holding = asyncio.ensure_future(io_thread.run(hold(6.0)))
    began = time.monotonic()
    await asyncio.sleep(0.2)
    state = await AsyncHosts(timeout=5).probe("gpu", fresh=True)
    assert state.state == "ready", state.detail
    assert time.monotonic() - began > 5.5
    await holding


def test_hosts_over_one_connection_that_is_signed_in_are_ready_all(door: Door) -> None:
    """H6: probes take turns in its few sessions, and only what others hold of them is "no room"."""
    door.host.server.restart(MaxSessions="2")
    door.write("gpu*", ControlPath=str(door.workspace.home / "m"))
    names = [f"gpu{number}" for number in range(9)]
    with Master("gpu0", str(door.workspace.home / "m")):
        door.host.server.reconfigure(MaxSessions="2", PubkeyAuthentication="no")
        states = Hosts().probe_all(names)
        assert {name: state.detail for name, state in states.items() if state.state != "ready"} == {}
        holders = [ssh_over(door, name) for name in names[:2]]
        try:
            states = Hosts().probe_all(names[:3], fresh=True)
            assert {state.state for state in states.values()} == {"needs_auth"}
            assert all("MaxSessions" in state.detail for state in states.values())
        finally:
            for holder in holders:
                holder.communicate()


def ssh_over(door: Door, alias: str) -> subprocess.Popen[bytes]:
    """Hold a session of the test's master until its input ends; return ssh."""
    holder = subprocess.Popen(
        ["ssh", "-F", os.environ["ALBEDO_SSH_CONFIG"], alias, "echo held; cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    return holder
