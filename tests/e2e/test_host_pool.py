"""The process's pool of hosts: shared by all callers, made anew after a fork, gone without a trace at exit."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from faces import Host, Real
from recorder import eventually, run

from albedo_provisioner.hosts import io_thread
from albedo_provisioner.hosts.local import LocalTransport
from albedo_provisioner.hosts.pool import HostPool
from albedo_provisioner.hosts.remote import RemoteTransport


async def pool() -> HostPool:
    return HostPool.get()


async def test_each_host_has_one_transport_for_all_callers() -> None:
    hosts = await io_thread.run(pool())
    assert await io_thread.run(pool()) is hosts
    assert isinstance(hosts.transport_for(None), LocalTransport)
    assert isinstance(hosts.transport_for("gpu"), RemoteTransport)
    assert hosts.transport_for("gpu") is hosts.transport_for("gpu")
    assert hosts.transport_for("gpu") is not hosts.transport_for("ann@gpu")


def test_the_pool_is_refused_elsewhere_than_on_the_io_thread() -> None:
    with pytest.raises(RuntimeError, match="I/O thread"):
        HostPool.get()


async def test_close_all_closes_all_connections_and_the_pool_goes_on(sshd_host: Real) -> None:
    async def echo() -> bytes:
        return bytes((await run(HostPool.get().transport_for(sshd_host.alias), "echo here")).out)

    async def close() -> None:
        await HostPool.get().close_all()

    assert await io_thread.run(echo()) == b"here\n"
    await io_thread.run(close())
    await eventually(lambda: not sshd_host.connected())
    assert await io_thread.run(echo()) == b"here\n"
    await io_thread.run(close())


PROGRAM = """
import asyncio, os, sys
sys.path.insert(0, sys.argv[2])
from albedo_provisioner.hosts import io_thread
from albedo_provisioner.hosts.pool import HostPool
from recorder import run, start

async def echo():
    told = await run(HostPool.get().transport_for(sys.argv[1] or None), "echo here")
    return told.out.decode().strip()

async def hold():
    return await start(HostPool.get().transport_for(sys.argv[1] or None), "cat")

assert io_thread.run_blocking(echo()) == "here"
kept = io_thread.run_blocking(hold())
"""


def run_program(host: Host, more: str) -> subprocess.CompletedProcess[str]:
    """Run a program of its own that talks to a host, with all warnings shown."""
    command = [sys.executable, "-W", "default", "-c", PROGRAM + more, host.alias or ""]
    return subprocess.run(
        [*command, os.path.dirname(__file__)], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_process_with_open_channels_ends_without_a_word(any_host: Host) -> None:
    result = run_program(any_host, "")
    assert (result.stdout, result.stderr, result.returncode) == ("", "", 0)


def test_a_forked_child_makes_connections_of_its_own(any_host: Host) -> None:
    result = run_program(
        any_host,
        """
child = os.fork()
if child == 0:
    assert io_thread.run_blocking(echo(), 20) == "here"
    os._exit(0)
_, status = os.waitpid(child, 0)
assert io_thread.run_blocking(echo(), 20) == "here"
print(os.waitstatus_to_exitcode(status))
""",
    )
    assert (result.stdout, result.stderr, result.returncode) == ("0\n", "", 0)
