"""The link breaks in every way there is, and nothing is lost, repeated or held up for good."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import time

import pytest
from faces import Embedded, Host
from jupyter_client.multikernelmanager import AsyncMultiKernelManager
from kernels import Cell, Client, Kernel, add_kernelspec, eventually, numbered, started
from procs import Process, alive, descendants, send, wait_until

from albedo_provisioner import provisioner
from albedo_provisioner.errors import LinkAwayError, UnreachableError
from albedo_provisioner.kernels.remote import SHUTDOWN_PATIENCE


@pytest.fixture(params=["embedded", "sshd", "openssh", "local"])
def any_host(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Host:
    """Return each kind of host in turn, the real one twice: the second time the user's ssh program goes there."""
    kind = request.param
    if kind == "openssh":
        monkeypatch.setenv("ALBEDO_SSH", "program")
        kind = "sshd"
    host: Host = request.getfixturevalue(f"{kind}_host")
    return host


@pytest.fixture
def remote_host(any_host: Host) -> Host:
    """Return each kind of host that is reached by ssh in turn."""
    return any_host


def connections_of(kernels: int) -> int:
    """Return how many connections so many kernels on a host share; the ssh program makes one for each."""
    return kernels if os.environ.get("ALBEDO_SSH") == "program" else 1


remote = pytest.mark.parametrize("any_host", ["embedded", "sshd", "openssh"], indirect=True)

TEN_SECONDS = "import time\nfor i in range(50):\n    print(i, flush=True)\n    time.sleep(0.2)\n'the end'"


def slowly(count: int, pause: float = 0.002) -> str:
    """Return code that prints so many lines, each by itself, and has a value."""
    return f"import time\nfor i in range({count}):\n    print(i, flush=True)\n    time.sleep({pause})\n'the end'"


async def reattached(kernel: Kernel, connections: int = 2, seconds: float = 30) -> None:
    """Wait until the link has had so many connections and has one now."""
    await eventually(
        lambda: kernel.status["connections"] >= connections and kernel.status["step"] == "attached",
        seconds,
        f"reattached; {kernel.status}",
    )


def bridge_of(host: Host) -> Process:
    """Return the only process on the host that serves a connection; on this machine it is a child of ours."""
    there = host.processes() if host.remote else descendants(os.getpid())
    (bridge,) = [process for process in there if process.argv == ("cat",)]
    return bridge


def assert_complete(cell: Cell, count: int) -> None:
    """Check that a cell of `slowly` came whole, in order and once."""
    assert cell.lines == list(numbered(count))
    assert cell.value == "'the end'"
    assert cell.stderr == ""
    states = [message["content"]["execution_state"] for message in cell.of_type("status")]
    assert states == ["busy", "idle"]


class TestBrokenConnections:
    async def test_a_killed_bridge_costs_nothing(self, any_host: Host) -> None:
        """L1."""
        async with started(any_host.location()) as kernel:
            pid = kernel.status["pid"]
            cell = kernel.begin(slowly(500))
            await cell.until(lambda: "100" in cell.lines)
            send(bridge_of(any_host), signal.SIGKILL)
            await cell.done()
            assert_complete(cell, 500)
            assert kernel.status["pid"] == pid
            assert kernel.status["connections"] == 2

    @remote
    async def test_a_twelve_second_cut_in_a_ten_second_cell_loses_no_line(self, remote_host: Host) -> None:
        """L2."""
        async with started(remote_host.location()) as kernel:
            cell = kernel.begin(TEN_SECONDS)
            await cell.until(lambda: len(cell.lines) >= 20)
            remote_host.down()
            cut = time.monotonic()
            await eventually(lambda: "refused" in str(kernel.status["away"]))
            assert await kernel.manager.is_alive()
            assert await kernel.client.is_alive()
            # The test is about this very time: what is awaited happens on the other side of the cut.
            await asyncio.sleep(12 - (time.monotonic() - cut))
            assert len(cell.lines) < 50
            remote_host.up()
            await cell.done(15)
            assert_complete(cell, 50)
            assert await kernel.value("1 + 1") == "2"

    @remote
    async def test_cuts_in_quick_succession_lose_and_repeat_nothing(self, remote_host: Host) -> None:
        """L5."""
        async with started(remote_host.location()) as kernel:
            cell = kernel.begin(slowly(2000, 0.001))
            for number in range(1, 7):
                await cell.until(functools.partial(lambda number: len(cell.lines) > 300 * number, number))
                remote_host.cut()
            await cell.done()
            assert_complete(cell, 2000)
            assert kernel.status["connections"] >= 4

    @remote
    async def test_requests_made_while_the_host_is_out_of_reach_are_done_once_and_in_order(
        self, remote_host: Host
    ) -> None:
        """L5."""
        async with started(remote_host.location()) as kernel:
            await kernel.run("ran = []")
            remote_host.down()
            await eventually(lambda: kernel.status["step"] == "reattaching")
            cells = [kernel.begin(f"ran.append({i})\nlist(ran)") for i in range(20)]
            remote_host.up()
            for cell in cells:
                await cell.done()
            assert cells[-1].value == str(list(range(20)))

    async def test_an_interrupt_given_while_the_host_is_out_of_reach_arrives_later(
        self, embedded_host: Embedded
    ) -> None:
        """L7."""
        async with started(embedded_host.location()) as kernel:
            cell = kernel.begin("print('begun', flush=True)\nimport time\ntime.sleep(600)")
            await cell.until(lambda: cell.stdout)
            embedded_host.down()
            await eventually(lambda: kernel.status["step"] == "reattaching")
            for _ in range(3):
                await kernel.manager.interrupt_kernel()
            await cell.until(lambda: cell.stderr)
            embedded_host.up()
            await cell.done()
            assert cell.reply is not None
            assert cell.reply["ename"] == "KeyboardInterrupt"
            assert cell.stderr.count("the interrupt is delivered when it is back") == 1
            assert await kernel.value("1 + 1") == "2"

    async def test_a_restart_during_a_cut_happens_once(self, embedded_host: Embedded) -> None:
        """L5."""
        async with started(embedded_host.location()) as kernel:
            await kernel.run("x = 41")
            pid = kernel.status["pid"]
            for now in (True, False):
                restart = asyncio.create_task(kernel.manager.restart_kernel(now=now))
                await asyncio.sleep(0)
                embedded_host.cut()
                await restart
                assert await kernel.value("'x' in globals()") == "False"
                assert kernel.status["pid"] != pid
                pid = kernel.status["pid"]
            kernels = [p for p in embedded_host.processes() if any("launcher.py" in word for word in p.argv)]
            assert [process.pid for process in kernels] == [pid]

    async def test_a_forced_restart_while_the_host_is_out_of_reach_happens_when_it_is_back(
        self, embedded_host: Embedded
    ) -> None:
        """L5."""
        async with started(embedded_host.location()) as kernel:
            await kernel.run("x = 41")
            pid = kernel.status["pid"]
            embedded_host.down()
            await eventually(lambda: kernel.status["step"] == "reattaching")
            restart = asyncio.create_task(kernel.manager.restart_kernel(now=True))
            await asyncio.wait([restart], timeout=1)
            embedded_host.up()
            await restart
            assert await kernel.value("'x' in globals()") == "False"
            assert kernel.status["pid"] != pid

    async def test_a_polite_restart_while_the_host_is_out_of_reach_is_refused_and_the_kernel_stays(
        self, embedded_host: Embedded
    ) -> None:
        """L5."""
        async with started(embedded_host.location()) as kernel:
            await kernel.run("x = 41")
            embedded_host.down()
            await eventually(lambda: kernel.status["step"] == "reattaching")
            asked = time.monotonic()
            with pytest.raises(LinkAwayError) as caught:
                await kernel.manager.restart_kernel()
            assert time.monotonic() - asked < 3.5, "two seconds, on a machine with time for it"
            assert str(embedded_host.alias) in str(caught.value)
            embedded_host.up()
            # Nothing of it comes later, although the host is back in the moment in which it was refused.
            while time.monotonic() - asked < 3 * SHUTDOWN_PATIENCE:
                assert await kernel.value("x") == "41"
            cell = await kernel.run("")
            assert "It stays" not in cell.stderr, "the refusal was told with the first cell"

    async def test_a_polite_restart_in_a_break_that_is_not_known_yet_is_refused_too(
        self, embedded_host: Embedded
    ) -> None:
        """L5, L6: nothing of it comes later, neither to the kernel nor to the cell that runs."""
        async with started(embedded_host.location()) as kernel:
            cell = kernel.begin("import time\nprint('begun', flush=True)\nfor _ in range(100): time.sleep(0.1)\n41")
            await cell.until(lambda: "begun" in cell.stdout)
            pid = kernel.status["pid"]
            os.kill(embedded_host.server.pid, signal.SIGSTOP)
            try:
                assert kernel.status["away"] is None
                asked = time.monotonic()
                with pytest.raises(LinkAwayError, match="cannot be restarted now"):
                    await kernel.manager.restart_kernel()
                assert time.monotonic() - asked < 7, "five seconds, on a machine with time for it"
            finally:
                os.kill(embedded_host.server.pid, signal.SIGCONT)
            await cell.done()
            assert cell.value == "41"
            assert kernel.status["pid"] == pid

    async def test_a_refused_restart_leaves_cell_and_manager_as_they_were(self, embedded_host: Embedded) -> None:
        """L5, K5: the cell runs on, the restarter goes on watching, and a later end is a real one."""
        managers = AsyncMultiKernelManager(kernel_manager_class="jupyter_client.ioloop.AsyncIOLoopKernelManager")
        kernel_id = await managers.start_kernel(kernel_name=add_kernelspec(embedded_host.location()))
        manager = managers.get_kernel(kernel_id)
        client = Client(manager.client())
        await client.open()
        try:
            cell = client.begin(slowly(60, 0.05))
            await cell.until(lambda: "5" in cell.lines)
            embedded_host.down()
            await eventually(lambda: manager.provisioner.status["step"] == "reattaching")
            with pytest.raises(LinkAwayError):
                await managers.restart_kernel(kernel_id)
            embedded_host.up()
            await cell.done()
            assert cell.lines == list(numbered(60))
            assert cell.value == "'the end'"
            assert "cannot be restarted now" in cell.stderr
            pid = manager.provisioner.status["pid"]
            await client.run("import os; os._exit(4)")
            await eventually(
                lambda: manager.provisioner.status["pid"] != pid and manager.provisioner.status["process"] == "running"
            )
            assert await client.value("1 + 1") == "2"
        finally:
            await client.close()
            await managers.shutdown_kernel(kernel_id)
        await eventually(lambda: embedded_host.leftovers() == [])

    @remote
    async def test_two_kernels_on_one_host_share_a_connection_and_survive_its_loss(self, remote_host: Host) -> None:
        """L1."""
        async with started(remote_host.location()) as one, started(remote_host.location()) as two:
            assert remote_host.connected() == connections_of(2)
            cells = [each.begin(slowly(500)) for each in (one, two)]
            for cell in cells:
                await cell.until(functools.partial(lambda cell: "100" in cell.lines, cell))
            remote_host.cut()
            for cell in cells:
                await cell.done()
                assert_complete(cell, 500)
            await eventually(lambda: remote_host.connected() == connections_of(2))

    @remote
    async def test_a_kernel_that_dies_while_the_host_is_out_of_reach_is_told_later(self, remote_host: Host) -> None:
        """K5, L5."""
        async with started(remote_host.location()) as kernel:
            cell = kernel.begin("print('begun', flush=True)\nimport time\ntime.sleep(600)")
            await cell.until(lambda: cell.stdout)
            remote_host.down()
            await eventually(lambda: kernel.status["step"] == "reattaching")
            pid = kernel.status["pid"]
            assert remote_host.run(["kill", "-KILL", str(pid)]).returncode == 0
            assert await kernel.manager.is_alive(), "a host out of reach is not a kernel gone"
            remote_host.up()
            await cell.done()
            assert cell.reply is not None
            assert "SIGKILL" in cell.reply["evalue"]
            assert not await kernel.manager.is_alive()


class TestHalfOpenConnections:
    @remote
    async def test_are_noticed_and_replaced_within_fifteen_seconds(self, remote_host: Host) -> None:
        """L6: under a kernel that prints, and under one that is quiet."""
        async with started(remote_host.location()) as busy, started(remote_host.location()) as quiet:
            await quiet.run("x = 41")
            cell = busy.begin(TEN_SECONDS)
            await cell.until(lambda: len(cell.lines) >= 5)
            assert remote_host.freeze() == connections_of(2)
            began = time.monotonic()
            for kernel in (busy, quiet):
                await reattached(kernel, seconds=20)
            assert time.monotonic() - began < 15
            await cell.done()
            assert_complete(cell, 50)
            remote_host.thaw()
            assert await busy.value("1 + 1") == "2"
            assert await quiet.value("x") == "41"

    async def test_are_replaced_for_a_restart_which_then_happens(self, embedded_host: Embedded) -> None:
        """L5, L6: long before the silence by itself would be noticed."""
        async with started(embedded_host.location()) as kernel:
            await kernel.run("x = 41")
            pid = kernel.status["pid"]
            embedded_host.freeze()
            await kernel.manager.restart_kernel()
            assert await kernel.value("'x' in globals()") == "False"
            assert kernel.status["pid"] != pid
            embedded_host.thaw()

    async def test_of_a_host_that_answers_nobody_hold_an_end_up_for_some_seconds_only(
        self, embedded_host: Embedded
    ) -> None:
        """L5, L6: the end is noted, and happens when the host answers again."""
        async with started(embedded_host.location()) as kernel:
            await kernel.run("x = 41")
            os.kill(embedded_host.server.pid, signal.SIGSTOP)
            try:
                asked = time.monotonic()
                await kernel.manager.shutdown_kernel()
                assert time.monotonic() - asked < 7, "five seconds, on a machine with time for it"
            finally:
                os.kill(embedded_host.server.pid, signal.SIGCONT)
        await eventually(lambda: embedded_host.leftovers() == [], what="nothing left on the host")

    async def test_an_interrupt_that_finds_no_answer_is_told_to_the_cell_and_arrives(
        self, embedded_host: Embedded, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """L6, L7: before anybody can know that nothing comes any more."""
        monkeypatch.setattr(provisioner, "SIGNAL_TIMEOUT", 0.5)
        async with started(embedded_host.location()) as kernel:
            cell = kernel.begin("print('begun', flush=True)\nimport time\ntime.sleep(600)")
            await cell.until(lambda: cell.stdout)
            embedded_host.freeze()
            await kernel.manager.interrupt_kernel()
            await cell.until(lambda: "the interrupt is delivered when it is back" in cell.stderr)
            embedded_host.thaw()
            await cell.done()
            assert cell.reply is not None
            assert cell.reply["ename"] == "KeyboardInterrupt"


class TestAwkwardMoments:
    @pytest.mark.parametrize("direction", ["sent", "received"])
    async def test_a_cut_within_a_50_mb_message_repeats_and_loses_nothing(
        self, embedded_host: Embedded, direction: str
    ) -> None:
        """L5."""
        async with started(embedded_host.location()) as kernel:
            await kernel.run(
                "n = 0\ndef opened(comm, message): comm.on_msg(lambda m: comm.send({}, buffers=m['buffers']))"
            )
            await kernel.run("get_ipython().kernel.comm_manager.register_target('echo', opened)")
            kernel.say("comm_open", {"comm_id": "c1", "target_name": "echo", "data": {}})
            await kernel.run("")
            data = bytes(range(256)) * (50_000_000 // 256)
            embedded_host.server.cut_after(**{direction: 20_000_000})
            kernel.say("comm_msg", {"comm_id": "c1", "data": {}}, buffers=[data])
            await kernel.run("n += 1")
            echoes = [m for channel, m in kernel.others if channel == "iopub" and m["msg_type"] == "comm_msg"]
            assert len(echoes) == 1
            assert bytes(echoes[0]["buffers"][0]) == data
            assert await kernel.value("n") == "1"
            assert kernel.status["connections"] == 2

    async def test_cuts_while_it_reattaches(self, embedded_host: Embedded) -> None:
        """L5."""
        async with started(embedded_host.location()) as kernel:
            cell = kernel.begin(slowly(3000))
            await cell.until(lambda: len(cell.lines) > 100)
            for size in (200, 2_000, 4_000, 6_000, 8_000, 10_000):
                embedded_host.server.cut_after(received=size)
                embedded_host.cut()
                await eventually(lambda: kernel.status["step"] == "reattaching" or cell.idle)
                await reattached(kernel, kernel.status["connections"] + (not cell.idle))
            await cell.done()
            assert_complete(cell, 3000)

    async def test_a_start_that_is_cut_makes_one_kernel_or_none(self, embedded_host: Embedded) -> None:
        """L5: in the handshake, while the bundle is copied, while the kernel starts."""
        server = embedded_host.server
        outcomes = []
        for direction, size in [("received", n) for n in (500, 3_000, 6_000, 10_000, 15_000, 25_000, 40_000)] + [
            ("sent", n) for n in (1_000, 3_000, 4_000, 4_500, 5_000)
        ]:
            for path in (embedded_host.home / ".albedo-remote").glob("*"):
                assert embedded_host.run(["rm", "-rf", str(path)]).returncode == 0
            server.cut()
            server.cut_after(**{direction: size})
            try:
                async with started(embedded_host.location()) as kernel:
                    kernels = [p for p in embedded_host.processes() if any("launcher.py" in word for word in p.argv)]
                    assert [process.pid for process in kernels] == [kernel.status["pid"]]
                    assert await kernel.value("1 + 1") == "2"
                    outcomes.append("started")
            except UnreachableError as error:
                outcomes.append(str(error))
            await eventually(lambda: embedded_host.leftovers() == [], what=f"nothing left after {direction} {size}")
        assert outcomes.count("started") >= 6, outcomes
        assert all(each == "started" or str(embedded_host.alias) in each for each in outcomes), outcomes

    @remote
    async def test_an_end_that_is_cut_still_ends_everything(self, remote_host: Host) -> None:
        """L5, K6."""
        for now in (True, False):
            async with started(remote_host.location(), now=now) as kernel:
                assert await kernel.value("1 + 1") == "2"
                remote_host.cut()
            await eventually(lambda: remote_host.leftovers() == [], what="nothing left")

    async def test_an_end_while_the_host_is_out_of_reach_does_not_hang_and_is_done_later(
        self, embedded_host: Embedded
    ) -> None:
        """L5, K6."""
        async with started(embedded_host.location(), now=True) as kernel:
            assert await kernel.value("1 + 1") == "2"
            embedded_host.down()
            await eventually(lambda: kernel.status["step"] == "reattaching")
            ending = asyncio.create_task(kernel.manager.shutdown_kernel(now=True))
            await asyncio.wait([ending], timeout=2)
            embedded_host.up()
            await ending

    async def test_an_end_while_the_host_is_out_of_reach_is_not_told_as_done(self, embedded_host: Embedded) -> None:
        """L5, K6: to the cell that runs and is not cut short yet, and to another page's that waits."""
        async with started(embedded_host.location()) as kernel, kernel.another_client() as other:
            pid = kernel.status["pid"]
            running = kernel.begin("print('begun', flush=True)\nimport time\ntime.sleep(600)")
            await running.until(lambda: running.stdout)
            waiting = other.begin("1")
            embedded_host.down()
            await eventually(lambda: kernel.status["step"] == "reattaching")
            await kernel.manager.shutdown_kernel()
            for cell in (running, waiting):
                await cell.done()
                assert cell.reply is not None
                assert cell.reply["ename"] == "ReplyLost"
                (error,) = cell.of_type("error")
                for told in (cell.stderr, cell.reply["evalue"], error["content"]["evalue"]):
                    assert "The end of the kernel on" in told
                    assert f"was asked for by a client: albedo, process {os.getpid()} on " in told
                    assert "is out of reach (" in told
                    assert "was ended" not in told
            assert alive(pid)
            embedded_host.up()
        wait_until(lambda: embedded_host.leftovers() == [], 30, "nothing left")
