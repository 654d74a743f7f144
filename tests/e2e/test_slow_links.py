"""Links that carry little, but carry on: they are slow, and not dead.

What takes seconds at 12 kB/s here takes as much longer at 2 kB/s as our patience with silence really is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from benchmarks.delay import Link
from faces import Real
from faults.place import free_port
from faults.proxy import Proxy
from kernels import eventually, started
from procs import alive

from albedo_provisioner.hosts import ssh_connect, ssh_life
from albedo_provisioner.hosts.staging import bundle
from albedo_provisioner.kernels import link, silence

if TYPE_CHECKING:
    from conftest import Workspace

RATE = 12_000
"""Bytes a second, in each direction."""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have everything that notices dead connections do so six times as fast, and greetings be waited for 5 s only."""
    for module, name in (
        (silence, "PING_EVERY"),
        (silence, "SILENCE"),
        (ssh_life, "LOOK_EVERY"),
        (ssh_life, "ENOUGH"),
    ):
        usual = getattr(module, name)
        monkeypatch.setattr(module, name, usual / 6)
    monkeypatch.setattr(ssh_connect, "KEEPALIVE_INTERVAL", 1)
    monkeypatch.setattr(link, "GREETING_TIMEOUT", 5.0)


@pytest.fixture
def slow(workspace: Workspace, sshd_host: Real) -> Iterator[Proxy]:
    """Return what stands before the real sshd, for who goes there by the name of "slow"."""
    proxy = Proxy(sshd_host.server.port, free_port(), buffer=4096)
    name(workspace, sshd_host, "slow", proxy.port)
    yield proxy
    proxy.close()


def name(workspace: Workspace, host: Real, alias: str, port: int) -> None:
    """Have an ssh server found by a name at another port, where something stands before it."""
    known = workspace.home / "known"
    known.write_text(host.server.known_hosts.read_text().replace(str(host.server.port), str(port)))
    workspace.add_to_ssh_config(
        f"Host {alias}\n  HostName 127.0.0.1\n  Port {port}\n  User {host.account.name}\n"
        f"  IdentityFile {host.server.client_key}\n  UserKnownHostsFile {known}\n  GlobalKnownHostsFile none\n"
    )


@pytest.mark.first_visit
async def test_all_that_is_large_arrives_over_the_one_connection_that_there_is(
    slow: Proxy, sshd_host: Real, impatient: None
) -> None:
    """L1: our files on the way there, an output, a cell: whole packets of ssh pass seldom, and bytes all the time.

    L6: silence is noticed as ever.
    """
    slow.drip(RATE // 20, 0.05)
    began = time.monotonic()
    async with started(f"slow:{sshd_host.home}") as kernel:
        assert time.monotonic() - began > len(bundle().archive) / RATE > 1.5 * link.GREETING_TIMEOUT, "it was not slow"
        cell = await kernel.run("import os\nprint(os.urandom(20_000).hex())")
        assert len(cell.stdout) == 40_001
        cell = await kernel.run(f"len({'x' * 30_000!r})")
        assert cell.value == "30000"
        assert kernel.status["connections"] == 1

        slow.hold(True)
        held = time.monotonic()
        await eventually(lambda: "nothing was heard" in str(kernel.status["away"]), 15)
        assert time.monotonic() - held < 15 / 6 + 1
        slow.heal()
        assert await kernel.value("6 * 7") == "42"


async def test_a_far_host_is_not_taken_for_one_out_of_reach_when_it_is_to_restart_or_end_a_kernel(
    workspace: Workspace, sshd_host: Real
) -> None:
    """L5, L6: round trips of half a second, over the connection that there is."""
    with closing(Link(sshd_host.server.port, 0.25)) as far:
        name(workspace, sshd_host, "far", far.port)
        async with started(f"far:{sshd_host.home}") as kernel:
            await kernel.run("x = 41")
            await kernel.manager.restart_kernel()
            assert await kernel.value("'x' in globals()") == "False"
            assert kernel.status["connections"] == 1
            pid = kernel.status["pid"]
            await kernel.manager.shutdown_kernel()
            assert not alive(pid), "the end has been proven"
