"""Several clients of one kernel, each with a link of its own: who gets what, and what each is told of the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import zmq
import zmq.asyncio
from faces import Embedded, Host
from kernels import Cell, Client, Kernel, eventually, numbered, started, taken_up
from procs import Process, alive

from albedo_provisioner.hosts import io_thread
from albedo_provisioner.kernels.endpoints import Endpoints
from albedo_provisioner.kernels.records import KernelRecords
from albedo_provisioner.kernels.relay import relay_at
from albedo_provisioner.kernels.remote import RemoteKernel

SLOWLY = "import time\nfor i in range({count}):\n    print(i, flush=True)\n    time.sleep(0.002)\n'the end'"


@asynccontextmanager
async def linked_again(kernel: Kernel) -> AsyncIterator[Kernel]:
    """Link to a kernel once more, as another process would that was given what it needs; it is not ended here."""
    info = await kernel.manager.provisioner.get_provisioner_info()  # type: ignore[union-attr]
    other = await taken_up(kernel.manager.kernel_name, info)
    try:
        yield other
    finally:
        await other.close()
        remote = other.manager.provisioner._kernel  # type: ignore[union-attr]
        if remote is not None:
            await io_thread.run(remote.leave())


def bridges(host: Host) -> list[Process]:
    """Return the processes on a host that serve a connection."""
    return [process for process in host.processes() if process.argv == ("cat",)]


def printed_for(client: Client, cell: Cell) -> list[str]:
    """Return the lines that a client saw of a cell that another one has run."""
    texts = [
        message["content"]["text"]
        for channel, message in client.others
        if channel == "iopub" and message["msg_type"] == "stream" and message["parent_header"]["msg_id"] == cell.id
    ]
    return "".join(texts).splitlines()


async def seen_whole(client: Client, cell: Cell, count: int) -> None:
    """Wait until a client has seen the end of another one's cell, and check that it saw all of it, in order, once."""

    def idle() -> bool:
        return any(
            channel == "iopub"
            and message["parent_header"].get("msg_id") == cell.id
            and message["content"].get("execution_state") == "idle"
            for channel, message in client.others
        )

    await client.until(idle)
    assert printed_for(client, cell) == list(numbered(count))


def strays(client: Client) -> list[str]:
    """Return the kinds of messages that came on shell for what somebody else has asked."""
    own = client.client.session.session
    return [
        message["msg_type"]
        for channel, message in client.others
        if channel == "shell" and message["parent_header"]["session"] != own
    ]


async def beats(client: Client) -> bool:
    """Whether a client's heartbeat is answered."""
    socket: zmq.asyncio.Socket = zmq.asyncio.Context.instance().socket(zmq.REQ)
    socket.linger = 0
    socket.connect(client.client._make_url("hb"))
    await socket.send(b"beat")
    answered = await socket.poll(5000)
    socket.close()
    return bool(answered)


class TestSideBySide:
    async def test_each_gets_its_own_replies_and_both_see_all_output_also_after_a_cut(self, remote_host: Host) -> None:
        """L8: two links, over one connection to the host, which breaks in the middle."""
        async with started(remote_host.location()) as one, linked_again(one) as two:
            assert two.status["pid"] == one.status["pid"]
            await one.run("x = 41")
            assert await two.value("x") == "41"
            cells = [one.begin(SLOWLY.format(count=300)), two.begin(SLOWLY.format(count=300))]
            await cells[0].until(lambda: "100" in cells[0].lines)
            remote_host.cut()
            for cell, other in zip(cells, (two, one), strict=True):
                await cell.done()
                assert cell.lines == list(numbered(300))
                assert cell.value == "'the end'"
                await seen_whole(other, cell, 300)
            assert one.client.session.session != two.client.session.session
            assert strays(one) == strays(two) == []
            assert one.status["connections"] == two.status["connections"] == 2

    async def test_one_whose_link_alone_breaks_misses_nothing_and_the_other_notices_nothing(
        self, sshd_host: Host
    ) -> None:
        """L8: the bridge of one of them is killed."""
        async with started(sshd_host.location()) as one:
            before = {process.pid for process in bridges(sshd_host)}
            async with linked_again(one) as two:
                (bridge,) = [process for process in bridges(sshd_host) if process.pid not in before]
                cell = one.begin(SLOWLY.format(count=400))
                await cell.until(lambda: "100" in cell.lines)
                assert sshd_host.run(["kill", "-KILL", str(bridge.pid)]).returncode == 0
                await cell.done()
                assert cell.lines == list(numbered(400))
                await seen_whole(two, cell, 400)
                assert (one.status["connections"], two.status["connections"]) == (1, 2)

    async def test_one_that_comes_while_a_cell_of_the_other_runs_need_not_wait_for_its_end(
        self, embedded_host: Embedded
    ) -> None:
        """L8: what the kernel is, which clients ask on shell first of all, is told at once; all else has its turn."""
        async with started(embedded_host.location()) as one:
            cell = one.begin(
                "import os, time\nwhile not os.path.exists('go'):\n    print('on', flush=True)\n    time.sleep(0.6)"
            )  # not more often: jupyter_client's `wait_for_ready` takes output until there is none for 0.2 s
            await cell.until(lambda: cell.stdout)
            async with linked_again(one) as two:  # this waits until the kernel answers
                await two.until(lambda: printed_for(two, cell))
                mine = two.begin("6 * 7")
                assert cell.reply is None
                embedded_host.write("go", "")
                assert (await mine.done()).value == "42"
                assert (await cell.done()).status == "ok"
                assert strays(two) == []

    async def test_when_one_lets_go_the_other_goes_on(self, remote_host: Host) -> None:
        """L8."""
        async with started(remote_host.location()) as one:
            async with linked_again(one) as two:
                cell = one.begin(SLOWLY.format(count=200))
                await cell.until(lambda: "50" in cell.lines)
                assert two.status["step"] == "attached"
            await cell.done()
            assert cell.lines == list(numbered(200))
            assert await one.value("1 + 1") == "2"

    async def test_one_more_client_does_not_take_the_notebook_from_its_server(self, embedded_host: Embedded) -> None:
        """L8: by the record a later server finds the kernel, when the process that it was started for has ended."""
        options = {"env": {"JPY_SESSION_NAME": "/nb/a.ipynb"}}
        async with started(embedded_host.location(), options=options) as one:
            (before,) = KernelRecords().all()
            async with linked_again(one):
                (record,) = KernelRecords().all()
                assert (record.owner, record.notebook) == (before.owner, "/nb/a.ipynb")


class TestWhatOneDoesTheOtherIsToldOf:
    async def test_an_end(self, remote_host: Host) -> None:
        """L8, K5: the other one's cell is told who ended the kernel, and does not hang."""
        async with started(remote_host.location()) as one, linked_again(one) as two:
            cell = two.begin("print('begun', flush=True)\nimport time\ntime.sleep(600)")
            await cell.until(lambda: cell.stdout)
            await one.close()
            await one.manager.shutdown_kernel(now=True)
            await cell.done()
            assert cell.reply is not None
            assert "ended by a client: albedo, process " in cell.reply["evalue"]
            assert cell.reply["evalue"] in cell.stderr
            assert not await two.manager.is_alive()
            await eventually(lambda: two.status["step"] == "ended")
            assert "ended by a client" in two.status["cause"]
            await two.manager.shutdown_kernel()

    async def test_a_restart(self, remote_host: Host) -> None:
        """L8, K5: the other one goes on with the new kernel, its heart beats, and its next cell is told."""
        async with started(remote_host.location()) as one, linked_again(one) as two:
            await two.run("x = 41")
            await one.manager.restart_kernel()
            await eventually(lambda: two.status["pid"] == one.status["pid"] and two.status["process"] == "running")
            cell = await two.run("'x' in globals()")
            assert cell.value == "False"
            assert "was restarted by a client: albedo, process " in cell.stderr
            assert await two.manager.is_alive()
            assert await beats(two)
            assert await one.value("1 + 1") == "2"


class TestTheSameClientTwice:
    async def test_the_newest_wins_and_the_older_is_told_and_does_not_hang(self, remote_host: Host) -> None:
        """L8: as when a process was copied together with its link. They must not throw each other out for ever."""
        async with started(remote_host.location()) as one:
            older = one.manager.provisioner._kernel  # type: ignore[union-attr]
            assert older is not None
            await one.run("x = 41")
            cell = one.begin("print('begun', flush=True)\nimport time\ntime.sleep(1)\ny = 42")
            await cell.until(lambda: cell.stdout)

            async def attach() -> RemoteKernel:
                kernel = RemoteKernel(older.request, older.kernel_id, relay_at(Endpoints()))
                kernel._link._link_id = older._link._link_id
                await kernel._attach_patiently()
                return kernel

            newer = await io_thread.run(attach())
            try:
                await cell.done()
                assert cell.reply is not None
                assert "taken over by a newer process" in cell.reply["evalue"]
                assert str(remote_host.alias) in cell.stderr
                assert one.status["step"] == "ended"
                assert not await one.manager.is_alive()
                with pytest.raises(Exception, match="taken over by a newer process"):
                    await one.manager.restart_kernel(now=True)
                pid = newer.pid
                assert pid is not None
                await one.manager.shutdown_kernel(now=True)
                assert alive(pid), "the older one has nothing to end any more"
                assert (await io_thread.run(newer._link.call("status")))["kernel"]["state"] == "running"
            finally:
                await io_thread.run(newer.finish())
