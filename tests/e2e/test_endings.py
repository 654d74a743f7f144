"""How kernels end: by themselves, by force, when asked; what is told, what is restarted, and that nothing stays."""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faces import Embedded, Host, keeper_of
from jupyter_client.manager import AsyncKernelManager
from kernels import Cell, Kernel, add_kernelspec, eventually, make_with_restarter, started
from procs import alive

from albedo_provisioner.kernels import ended
from albedo_provisioner.kernels.records import KernelRecords
from albedo_provisioner.provisioner import AlbedoProvisioner


def kill(host: Host, pid: int) -> None:
    """Kill a process of the host, as the account."""
    assert host.run(["kill", "-KILL", str(pid)]).returncode == 0


def assert_told(cell: Cell, how: str, host: Host) -> None:
    """Check that a cell whose kernel died was told why, in all three ways, and ended."""
    name = host.alias or "this machine"
    assert how in cell.stderr
    assert name in cell.stderr
    assert cell.reply is not None
    assert (cell.reply["status"], cell.reply["ename"]) == ("error", "KernelDied")
    assert how in cell.reply["evalue"]
    assert name in cell.reply["evalue"]
    (error,) = cell.of_type("error")
    assert how in error["content"]["evalue"]
    assert cell.outputs[-1]["content"] == {"execution_state": "idle"}


class TestDeath:
    async def test_a_cell_whose_kernel_exits_is_told_the_status(self, any_host: Host) -> None:
        """K5."""
        async with started(any_host.location()) as kernel:
            kernel.answer = lambda _: (
                ""
            )  # by then the last words have left the kernel, which os._exit does not wait for
            cell = kernel.begin("print('last words')\nimport os\ninput()\nos._exit(3)")
            await cell.done()
            assert cell.stdout == "last words\n"
            assert_told(cell, "exit status 3", any_host)
            assert not await kernel.manager.is_alive()
            assert kernel.status["exit_code"] == 3

    async def test_cells_whose_kernel_is_killed_are_told_the_signal(self, remote_host: Host) -> None:
        """K5: the running one and those that wait behind it."""
        async with started(remote_host.location()) as kernel:
            running = kernel.begin("print('begun', flush=True)\nimport time\ntime.sleep(600)")
            waiting = kernel.begin("1")
            await running.until(lambda: running.stdout)
            kill(remote_host, kernel.status["pid"])
            for cell in (running, waiting):
                await cell.done()
                assert_told(cell, "SIGKILL", remote_host)
            assert not await kernel.manager.is_alive()

    async def test_a_segmentation_fault_is_told(self, embedded_host: Embedded) -> None:
        """K5."""
        async with started(embedded_host.location()) as kernel:
            cell = await kernel.run("import ctypes\nctypes.string_at(0)")
            assert_told(cell, "SIGSEGV", embedded_host)

    async def test_jupyters_restarter_brings_a_dead_kernel_back(self, remote_host: Host) -> None:
        """K5."""
        async with started(remote_host.location(), make=make_with_restarter) as kernel:
            before = kernel.status["pid"]
            await kernel.value("x = 41\nx")
            for death in ("import os\nos._exit(1)", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"):
                cell = await kernel.run(death)
                assert cell.status == "error"
                assert await kernel.value("'x' in globals()") == "False"
                assert kernel.status["pid"] != before
                before = kernel.status["pid"]
            assert kernel.status["step"] == "attached"

    async def test_a_dead_kernel_can_be_restarted_by_hand(self, embedded_host: Embedded) -> None:
        """K5."""
        async with started(embedded_host.location()) as kernel:
            await kernel.run("import os\nos._exit(1)")
            await eventually(lambda: kernel.status["exit_code"] == 1)
            await kernel.manager.restart_kernel()
            assert await kernel.value("1 + 1") == "2"

    async def test_a_kernel_whose_keeper_is_killed_lives_on_and_the_cell_is_told_what_may_be_missing(
        self, remote_host: Host
    ) -> None:
        """K5, K6."""
        async with started(remote_host.location()) as kernel:
            pid = kernel.status["pid"]
            code = (
                "x = 41\nprint('begun', flush=True)\nimport os, time\nwhile not os.path.exists('go'): time.sleep(0.01)"
            )
            cell = kernel.begin(code)
            await cell.until(lambda: cell.stdout)
            kill(remote_host, keeper_of(remote_host).pid)
            await eventually(lambda: kernel.status["connections"] == 2)
            remote_host.write("go", "")
            await cell.done()
            assert "keeper" in cell.stderr
            assert "missing" in cell.stderr
            assert await kernel.value("x") == "41"
            assert kernel.status["pid"] == pid
            await kernel.manager.restart_kernel()
            assert await kernel.value("'x' in globals()") == "False"

    async def test_what_was_asked_while_the_host_was_out_of_reach_is_done_also_when_the_keeper_is_killed_then(
        self, embedded_host: Embedded
    ) -> None:
        """K6, L5: it had not gone out, so nobody can have done it."""
        async with started(embedded_host.location()) as kernel:
            await kernel.run("y = 0")
            embedded_host.down()
            await eventually(lambda: kernel.status["step"] == "reattaching")
            endless = kernel.begin("import time\ntry: time.sleep(600)\nexcept KeyboardInterrupt: print('stopped')")
            cells = [kernel.begin("y += 1\ny") for _ in range(3)]
            await kernel.manager.interrupt_kernel()
            kill(embedded_host, keeper_of(embedded_host).pid)
            embedded_host.up()
            await endless.done()
            assert endless.stdout == "stopped\n"
            for number, cell in enumerate(cells, 1):
                await cell.done()
                assert (cell.value, cell.stderr) == (str(number), "")

    async def test_a_kernel_that_is_killed_together_with_its_keeper_is_dead_and_can_be_started_again(
        self, remote_host: Host
    ) -> None:
        """K5, K6: as when the host is restarted. Clients keep their connections, as with a local kernel."""
        async with started(remote_host.location()) as kernel:
            cell = kernel.begin(
                "import subprocess\nprint(subprocess.Popen(['sleep', '7777']).pid)\nsubprocess.time.sleep(600)"
            )
            await cell.until(lambda: cell.stdout)
            for pid in (keeper_of(remote_host).pid, kernel.status["pid"]):
                kill(remote_host, pid)
            await cell.done()
            assert cell.status == "error"
            assert str(remote_host.alias) in cell.stderr
            assert not await kernel.manager.is_alive()
            await kernel.manager.restart_kernel(now=True)
            assert await kernel.value("1 + 1", 20) == "2"
            assert not alive(int(cell.stdout)), "what the old kernel had started"


def assert_one_end(cell: Cell) -> None:
    """Assert that a cell that failed was told so once, and once that it is over (a second reply fails by itself)."""
    states = [message["content"]["execution_state"] for message in cell.of_type("status")]
    assert (states, len(cell.of_type("error"))) == (["busy", "idle"], 1), cell


class TestRestart:
    async def test_clients_go_on_with_the_new_kernel_over_the_connections_they_have(self, any_host: Host) -> None:
        """K4."""
        async with started(any_host.location()) as kernel, kernel.another_client() as other:
            await kernel.run("x = 41")
            before = kernel.status["pid"]
            await kernel.manager.restart_kernel()
            cell = await kernel.run("x")
            assert cell.status == "error"
            assert cell.reply is not None
            assert cell.reply["ename"] == "NameError"
            assert await other.value("6 * 7") == "42"
            assert kernel.status["pid"] != before
            assert kernel.status["connections"] == 1
            assert not alive(before)

    async def test_restarting_again_and_again_with_a_cell_running_works(self, remote_host: Host) -> None:
        """K4."""
        async with started(remote_host.location()) as kernel:
            for number in range(4):
                cell = kernel.begin("print('begun', flush=True)\nimport time\ntime.sleep(600)")
                await cell.until(functools.partial(lambda cell: cell.stdout, cell))
                await kernel.manager.restart_kernel(now=number % 2 == 0)
                assert await kernel.value("1 + 1") == "2"

    async def test_of_a_running_cell_gives_it_one_end(self, embedded_host: Embedded) -> None:
        """K4, K5: it is interrupted first, and what comes of that is not said once more when the kernel is gone."""
        fails = (
            "import time\nfrom IPython import get_ipython\nkernel = get_ipython().kernel\n"
            "content = {'ename': 'Cut', 'evalue': 'short', 'traceback': []}\n"
            "kernel.send_response(kernel.iopub_socket, 'error', content)\ntime.sleep(600)"
        )
        async with started(embedded_host.location()) as kernel:
            for code in ("time.sleep(600)", "while True: sum(range(9999))", "while True: print('x' * 200)"):
                cell = kernel.begin(f"import time\nprint('begun', flush=True)\n{code}")
                await cell.until(functools.partial(lambda cell: cell.stdout, cell))
                await kernel.manager.restart_kernel()
                await cell.done()
                assert await kernel.value("1 + 1") == "2"
                assert_one_end(cell)

            cell = kernel.begin(fails)
            await cell.until(lambda: cell.of_type("error"))
            kill(embedded_host, kernel.status["pid"])
            await cell.done()
            assert cell.reply is not None
            assert cell.reply["ename"] == "KernelDied"
            assert "SIGKILL" in cell.stderr
            await kernel.manager.restart_kernel()
            assert await kernel.value("1 + 1") == "2"
            assert_one_end(cell)

    async def test_a_request_made_while_it_restarts_is_answered_by_the_new_kernel(self, remote_host: Host) -> None:
        """K4, L5."""
        async with started(remote_host.location()) as kernel:
            await kernel.run("x = 41")
            restart = asyncio.create_task(kernel.manager.restart_kernel(now=True))
            await eventually(lambda: kernel.status["process"] != "running" or restart.done())
            cell = kernel.begin("'x' in globals()")
            await restart
            assert (await cell.done()).value == "False"

    async def test_cells_of_all_clients_that_it_cuts_short_are_told_and_so_they_are_of_the_end(
        self, any_host: Host
    ) -> None:
        """L8, K5: no front end waits for ever because another one has restarted or ended the kernel."""
        stubborn = (
            "import time\nprint('begun', flush=True)\nwhile True:\n"
            "    try: time.sleep(600)\n    except KeyboardInterrupt: pass"
        )
        async with started(any_host.location()) as kernel, kernel.another_client() as other:
            for end, how in (
                (kernel.manager.restart_kernel, "restarted"),
                (kernel.manager.shutdown_kernel, "shut down"),
            ):
                running = other.begin(stubborn)
                await running.until(functools.partial(lambda cell: cell.stdout, running))
                queued = [kernel.begin("1"), other.begin("2")]
                await end()
                for cell in (running, *queued):
                    await cell.done()
                    assert_told(cell, f"was {how} by a client: albedo, process ", any_host)
                if how == "restarted":
                    assert await other.value("6 * 7") == "42"
                    assert await kernel.value("1 + 1") == "2"

    @pytest.mark.parametrize("meanwhile", [False, True])
    async def test_cells_that_it_cuts_short_are_told_also_when_the_keeper_is_killed_before_or_meanwhile(
        self, embedded_host: Embedded, meanwhile: bool
    ) -> None:
        """L8, K5: the keeper that takes its place has never heard of them."""
        async with started(embedded_host.location()) as kernel, kernel.another_client() as other:
            running = other.begin("import time\nprint('begun', flush=True)\nfor _ in range(600): time.sleep(0.1)")
            await running.until(lambda: running.stdout)
            cells = [running, kernel.begin("1"), other.begin("2")]
            keeper = keeper_of(embedded_host)
            if meanwhile:
                restart = asyncio.create_task(kernel.manager.restart_kernel())
                await asyncio.sleep(0.1)
                kill(embedded_host, keeper.pid)
                await restart
            else:
                kill(embedded_host, keeper.pid)
                await running.until(lambda: "keeper" in running.stderr)
                cells.append(other.begin("3"))
                await eventually(lambda: kernel.status["step"] == "attached")
                await kernel.manager.restart_kernel()
            for cell in cells:
                await cell.done()
                assert cell.reply is not None
                # The manager interrupts first, and the reply to that may get through.
                assert cell.reply["status"] in ("error", "aborted")
            assert await other.value("6 * 7") == "42"
            assert await kernel.value("1 + 1") == "2"

    async def test_a_cell_that_comes_to_its_end_before_it_is_not_said_to_have_been_cut_short(
        self, embedded_host: Embedded
    ) -> None:
        """ipykernel ends after the cell that runs: it says that it is done with it, and does not answer it any more."""
        async with started(embedded_host.location()) as kernel:
            cell = kernel.begin("import time\nprint('begun', flush=True)\ntime.sleep(1)\nprint('ended')")
            await cell.until(lambda: "begun" in cell.stdout)
            kernel.client.shutdown(restart=True)
            await cell.done()
            assert (cell.stdout, cell.stderr) == ("begun\nended\n", "")
            assert cell.reply is not None
            assert (cell.reply["ename"], cell.of_type("error")) == ("ReplyLost", [])
            assert "came to its end" in cell.reply["evalue"]
            assert "restarted by a client" in cell.reply["evalue"]

    async def test_a_cell_that_it_interrupts_is_answered_with_the_error_that_the_kernel_has_published(
        self, embedded_host: Embedded
    ) -> None:
        """K4, L8: the manager interrupts first; ipykernel says that it is done then, and may lose the reply."""
        sleeping = "import time\nprint('begun', flush=True)\ntime.sleep(600)\nprint('ended')"
        async with started(embedded_host.location()) as kernel, kernel.another_client() as other:
            for client in (kernel, other):
                cell = client.begin(sleeping)
                await cell.until(functools.partial(lambda cell: cell.stdout, cell))
                await kernel.manager.restart_kernel()
                await cell.done()
                assert cell.reply is not None
                (error,) = cell.of_type("error")
                assert cell.reply["status"] == "error"
                assert error["content"]["ename"] == cell.reply["ename"] == "KeyboardInterrupt"
                assert error["content"]["traceback"] == cell.reply["traceback"]
                assert cell.stdout == "begun\n"
                assert await client.value("6 * 7") == "42"

    async def test_a_cell_that_takes_its_interrupt_is_not_said_to_have_come_to_its_end(
        self, embedded_host: Embedded
    ) -> None:
        """ipykernel says that it is done with it, and of no error; the shutdown that follows takes its reply."""
        taking = (
            "import time\nprint('begun', flush=True)\ntry: time.sleep(600)\nexcept KeyboardInterrupt: time.sleep(1)"
        )
        async with started(embedded_host.location()) as kernel:
            cell = kernel.begin(taking)
            await cell.until(lambda: cell.stdout)
            await kernel.manager.restart_kernel()
            await cell.done()
            assert cell.reply is not None
            assert (cell.reply["ename"], cell.of_type("error")) == ("ReplyLost", [])
            assert "was interrupted, and whether it had come to its end by then is not known" in cell.reply["evalue"]

    async def test_an_interrupt_reaches_the_running_cell(self, any_host: Host) -> None:
        """K4."""
        async with started(any_host.location()) as kernel:
            cell = kernel.begin("print('begun', flush=True)\nimport time\ntime.sleep(600)")
            await cell.until(lambda: cell.stdout)
            await kernel.manager.interrupt_kernel()
            await cell.done()
            assert cell.reply is not None
            assert cell.reply["ename"] == "KeyboardInterrupt"
            assert await kernel.value("1 + 1") == "2"

    async def test_an_interrupt_gets_through_while_a_cell_floods_its_output(self, remote_host: Host) -> None:
        """K4."""
        async with started(remote_host.location()) as kernel:
            cell = kernel.begin("while True: print('x' * 1000)")
            await cell.until(lambda: len(cell.outputs) > 20)
            await kernel.manager.interrupt_kernel()
            await cell.done()
            assert cell.reply is not None
            assert cell.reply["ename"] == "KeyboardInterrupt"


JOBS = """
import os, signal, subprocess, sys, time
sleep = ["sleep", "7777"]
hidden = {"env": {"PATH": os.environ["PATH"]}}
pids = {}
pids["plain"] = subprocess.Popen(sleep).pid
pids["session"] = subprocess.Popen(sleep, start_new_session=True).pid
pids["group"] = subprocess.Popen(sleep, process_group=0).pid
pids["nohup"] = subprocess.Popen(["nohup", *sleep], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid
pids["bare"] = subprocess.Popen(sleep, start_new_session=True, **hidden).pid
deaf = "trap '' TERM HUP INT; echo $$; while :; do sleep 1; done"
pids["deaf"] = int(subprocess.Popen(["sh", "-c", deaf], stdout=subprocess.PIPE, text=True).stdout.readline())
# Twice forked, as daemons do: its parent is gone; once with our environment, once with none of it.
for name, more in (("daemon", {}), ("bare daemon", hidden)):
    code = "import os, sys; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0);" \\
        "print(os.getpid(), flush=True); os.close(1); os.execvp('sleep', ['sleep', '7777'])"
    pids[name] = int(subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, **more).stdout)
stopped = subprocess.Popen(sleep)
os.kill(stopped.pid, signal.SIGSTOP)
pids["stopped"] = stopped.pid
import threading
pids["of a thread"] = None
def work():
    pids["of a thread"] = os.posix_spawnp("sleep", sleep, os.environ)
thread = threading.Thread(target=work); thread.start(); thread.join()
"""

CANARY = """
import signal, sys
def note(number, frame):
    print(signal.Signals(number).name, flush=True)
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, note)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def canary() -> Iterator[None]:
    """Watch that no process of this machine, outside the host, is signalled."""
    process = subprocess.Popen(
        [sys.executable, "-c", CANARY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
    )
    bystander = subprocess.Popen(["sleep", "600"])
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    yield
    assert process.poll() is None
    assert bystander.poll() is None
    said, _ = process.communicate()
    bystander.kill()
    bystander.wait()
    assert said == b""


async def shutdown(kernel: Kernel) -> None:
    await kernel.manager.shutdown_kernel()


async def shutdown_now(kernel: Kernel) -> None:
    await kernel.manager.shutdown_kernel(now=True)


async def restart(kernel: Kernel) -> None:
    await kernel.manager.restart_kernel()


async def restart_now(kernel: Kernel) -> None:
    await kernel.manager.restart_kernel(now=True)


async def die_and_shutdown(kernel: Kernel) -> None:
    await kernel.run("os._exit(1)")
    await kernel.manager.shutdown_kernel()


@pytest.mark.usefixtures("canary")
class TestJobs:
    @pytest.mark.parametrize("end", [shutdown, shutdown_now, restart, restart_now, die_and_shutdown])
    async def test_every_process_a_kernel_started_is_gone_from_the_host_once_it_has_ended(
        self, sshd_host: Host, end: Callable[[Kernel], Any]
    ) -> None:
        """K6."""
        await self.check(sshd_host, end)

    @pytest.mark.parametrize("end", [shutdown, restart_now])
    async def test_the_same_on_a_host_that_runs_as_ourselves(
        self, embedded_host: Embedded, end: Callable[[Kernel], Any]
    ) -> None:
        """K6."""
        await self.check(embedded_host, end)

    async def check(self, host: Host, end: Callable[[Kernel], Any]) -> None:
        async with started(host.location()) as kernel:
            pids: dict[str, int] = await kernel.json("pids", JOBS)
            assert {name for name, pid in pids.items() if alive(pid)} == set(pids), "they run"
            kernel_pid = kernel.status["pid"]
            await end(kernel)
            # It is proven when the ending returns, so there is nothing to wait for.
            assert [name for name, pid in pids.items() if alive(pid)] == []
            assert not alive(kernel_pid)

    async def test_the_same_when_a_client_asked_the_kernel_to_end(self, sshd_host: Host) -> None:
        """K6: the kernel has gone by itself, and its jobs have not."""
        async with started(sshd_host.location()) as kernel:
            code = "import subprocess\nsubprocess.Popen(['sleep', '7777'], start_new_session=True).pid"
            pid = int(await kernel.value(code))
            kernel.client.shutdown()
            await eventually(lambda: kernel.status["process"] == "exited")
            await kernel.manager.shutdown_kernel()
            assert not alive(pid)

    async def test_a_job_that_has_finished_leaves_no_zombie_with_the_keeper(self, sshd_host: Host) -> None:
        """K6."""
        code = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import os; os.fork() or os._exit(0)'])"
        async with started(sshd_host.location()) as kernel:
            await kernel.run(code)
            left = sshd_host.run(["ps", "-o", "stat=", "--ppid", str(keeper_of(sshd_host).pid)]).stdout.split()
            assert [state for state in left if state.startswith("Z")] == []


async def test_a_kernel_that_ignores_its_end_is_killed(embedded_host: Embedded) -> None:
    """K6."""
    async with started(embedded_host.location(), now=True) as kernel:
        code = "import signal, time\nfor n in (2, 15, 1): signal.signal(n, signal.SIG_IGN)\nprint(1, flush=True)"
        cell = kernel.begin(f"{code}\ntime.sleep(600)")
        await cell.until(lambda: cell.stdout)
        pid = kernel.status["pid"]
    assert not alive(pid)


async def test_nobody_is_left_when_a_start_is_given_up(embedded_host: Embedded) -> None:
    """K6, K8: the caller stopped waiting."""
    embedded_host.server.behave(exec_delay=0.5)
    for patience in (0.05, 0.3, 0.8, 1.1):
        context = started(embedded_host.location())
        try:
            async with asyncio.timeout(patience), context:
                pass
        except TimeoutError:
            pass
    await eventually(lambda: embedded_host.leftovers() == [], what="nothing left on the host")


async def test_nobody_is_left_when_a_start_is_given_up_as_it_comes_to_its_end(
    embedded_host: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K6, K8: the kernel is there already, and its caller never gets it."""
    last_step = AlbedoProvisioner._connect

    async def given_up(provisioner: AlbedoProvisioner) -> Any:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return await last_step(provisioner)

    with monkeypatch.context() as patches:
        patches.setattr(AlbedoProvisioner, "_connect", given_up)
        manager = AsyncKernelManager(kernel_name=add_kernelspec(embedded_host.location()))
        with pytest.raises(asyncio.CancelledError):
            await manager.start_kernel()
    assert not manager.has_kernel
    await eventually(lambda: embedded_host.leftovers() == [], what="nothing left on the host")
    assert KernelRecords().all() == []


@pytest.mark.parametrize("now", [False, True], ids=["asked", "killed"])
async def test_nobody_is_left_when_an_end_is_given_up(
    embedded_host: Embedded, monkeypatch: pytest.MonkeyPatch, now: bool
) -> None:
    """K6, K8: the kernel ends, and whoever wanted that does not wait until its keeper has ended as well."""
    monkeypatch.setattr(ended, "_END_GIVEN_UP", 0.3)
    manager = AsyncKernelManager(kernel_name=add_kernelspec(embedded_host.location()))
    await manager.start_kernel()
    half_way = asyncio.Event()

    async def wait_there(*_: Any, **__: Any) -> None:
        half_way.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patches:
        patches.setattr(AlbedoProvisioner, "cleanup", wait_there)
        end = asyncio.create_task(manager.shutdown_kernel(now=now))
        await half_way.wait()
        end.cancel()
        await asyncio.wait([end])
    await eventually(lambda: embedded_host.leftovers() == [], what="nothing left on the host")
    assert KernelRecords().all() == []
    if manager.has_kernel:  # it may be asked for again
        await manager.shutdown_kernel()


def test_a_start_that_comes_late_makes_nothing_when_its_client_has_left(tmp_path: Path) -> None:
    """K6, K8: on a host that is so busy that the client gave up before our code ran there."""
    request = {"do": "start", "kernel_id": "late", "kernel": {"cwd": str(tmp_path)}, "needs": []}
    code = f"from albedo_provisioner.bundle import entry; entry.main({request!r})"
    environment = {**os.environ, "HOME": str(tmp_path)}
    late = subprocess.run([sys.executable, "-c", code], input="", capture_output=True, text=True, env=environment)
    assert (late.returncode, late.stdout, late.stderr) == (0, "", "")
    assert list(tmp_path.glob(".albedo-remote/run/*")) == []


SHORT_LIFE = """
import sys
from jupyter_client.manager import KernelManager
manager = KernelManager(kernel_name=sys.argv[1])
manager.start_kernel()
print(manager.provisioner.status["pid"], flush=True)
sys.stdin.readline()
while manager.is_alive():
    pass
manager.shutdown_kernel()
print("ended", flush=True)
"""


class TestGone:
    """Neither the kernel nor its keeper is there any more."""

    async def test_a_cell_that_is_sent_then_is_answered_with_the_cause(self, embedded_host: Embedded) -> None:
        """K5: nobody starts another kernel, so nobody would ever answer."""
        async with started(embedded_host.location()) as kernel:
            for pid in (keeper_of(embedded_host).pid, kernel.status["pid"]):
                kill(embedded_host, pid)
            await eventually(lambda: kernel.status["process"] == "exited")
            first = await kernel.run("1", 20)
            assert_told(first, "has this kernel no more", embedded_host)
            again = await kernel.run("2", 3)  # now that nobody has come, at once
            assert_told(again, "has this kernel no more", embedded_host)
            await kernel.manager.restart_kernel(now=True)
            assert await kernel.value("1 + 1", 20) == "2"

    async def test_with_jupyters_restarter_the_next_kernel_takes_it(self, embedded_host: Embedded) -> None:
        """K5: as with a local kernel."""
        async with started(embedded_host.location(), make=make_with_restarter) as kernel:
            before = kernel.status["pid"]
            for pid in (keeper_of(embedded_host).pid, before):
                kill(embedded_host, pid)
            await eventually(lambda: kernel.status["process"] == "exited")
            assert await kernel.value("6 * 7", 30) == "42"
            assert kernel.status["pid"] != before

    def test_a_program_that_ends_with_it_prints_nothing_of_ours(self, embedded_host: Embedded) -> None:
        """K5, K8."""
        kernelspec = add_kernelspec(embedded_host.location())
        with subprocess.Popen(
            [sys.executable, "-c", SHORT_LIFE, kernelspec],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as program:
            assert program.stdout is not None
            pid = int(program.stdout.readline())
            for each in (keeper_of(embedded_host).pid, pid):
                kill(embedded_host, each)
            said, complaint = program.communicate("\n", timeout=60)
        assert (said, complaint) == ("ended\n", "")
