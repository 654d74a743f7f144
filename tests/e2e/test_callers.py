"""Kernels from every kind of caller: plain scripts, threads, several loops, and a process that takes over another's."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from faces import Embedded, Host
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel
from jupyter_client.multikernelmanager import AsyncMultiKernelManager
from kernels import PATIENCE, Kernel, add_kernelspec, started, taken_up
from leaks import settled
from procs import alive, wait_until

from albedo_provisioner.errors import AlbedoError, KernelGoneError


def value(client: BlockingKernelClient, expression: str) -> str:
    """Return what an expression's value looks like, by a blocking client."""
    found: list[str] = []

    def hook(message: dict[str, Any]) -> None:
        if message["msg_type"] == "execute_result":
            found.append(message["content"]["data"]["text/plain"])

    reply = client.execute_interactive(expression, output_hook=hook, timeout=PATIENCE)
    assert reply["content"]["status"] == "ok", reply["content"]
    return found[0]


def use_blocking(location: str) -> None:
    """Do everything a blocking caller does."""
    manager, client = start_new_kernel(startup_timeout=PATIENCE, kernel_name=add_kernelspec(location))
    try:
        value(client, "(x := 41)")
        assert value(client, "x + 1") == "42"
        assert manager.is_alive()
        client.execute("print('begun', flush=True); import time; time.sleep(600)")
        wait_until(lambda: client.get_iopub_msg(timeout=PATIENCE)["msg_type"] == "stream", PATIENCE)
        manager.interrupt_kernel()
        assert client.get_shell_msg(timeout=PATIENCE)["content"]["ename"] == "KeyboardInterrupt"
        manager.restart_kernel()
        client.wait_for_ready(timeout=PATIENCE)
        assert value(client, "'x' in globals()") == "False"
        info = client.kernel_info(reply=True, timeout=PATIENCE)
        assert info["content"]["status"] == "ok"
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
    assert not manager.is_alive()


class TestBlockingCallers:
    def test_a_script_without_any_loop_works(self, any_host: Host) -> None:
        """K4."""
        use_blocking(any_host.location())
        assert settled(any_host.leftovers) == []

    async def test_a_thread_beside_a_running_loop_works(self, embedded_host: Embedded) -> None:
        """K4."""
        async with started(embedded_host.location()) as kernel:
            with ThreadPoolExecutor() as threads:
                loop = asyncio.get_running_loop()
                works = [loop.run_in_executor(threads, use_blocking, embedded_host.location()) for _ in range(2)]
                assert await kernel.value("1 + 1") == "2"
                await asyncio.gather(*works)
            assert await kernel.value("2 + 2") == "4"

    async def test_blocking_calls_inside_a_running_loop_work_as_notebooks_make_them(
        self, embedded_host: Embedded
    ) -> None:
        """K4: the loop stands still meanwhile, and ours does not."""
        use_blocking(embedded_host.location())

    def test_two_loops_one_after_the_other_and_side_by_side(self, embedded_host: Embedded) -> None:
        """K4."""

        async def use(number: int) -> str:
            async with started(embedded_host.location()) as kernel:
                return await kernel.value(f"{number} * 2")

        assert asyncio.run(use(1)) == "2"
        assert asyncio.run(use(2)) == "4"
        results: list[str] = []
        threads = [
            threading.Thread(target=lambda number=number: results.append(asyncio.run(use(number)))) for number in (3, 4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(results) == ["6", "8"]

    def test_a_kernel_started_in_one_loop_is_ended_in_another(self, embedded_host: Embedded) -> None:
        """K6."""
        manager = KernelManager(kernel_name=add_kernelspec(embedded_host.location()))
        manager.start_kernel()
        with ThreadPoolExecutor() as threads:
            threads.submit(manager.shutdown_kernel).result()
        assert settled(embedded_host.leftovers) == []

    async def test_many_kernels_of_one_multi_kernel_manager(self, remote_host: Host) -> None:
        """K4, K6."""
        managers = AsyncMultiKernelManager()
        names = [add_kernelspec(remote_host.location()) for _ in range(4)]
        ids = await asyncio.gather(*(managers.start_kernel(kernel_name=name) for name in names))
        assert remote_host.connected() == 1
        kernels = []
        for each in ids:
            manager = managers.get_kernel(each)
            kernel = Kernel(manager, manager.client())
            await kernel.open()
            kernels.append(kernel)
        values = await asyncio.gather(*(kernel.value(f"{n} + 1") for n, kernel in enumerate(kernels)))
        assert values == ["1", "2", "3", "4"]
        for kernel in kernels:
            await kernel.close()
        await managers.shutdown_all()
        assert settled(remote_host.leftovers) == []

    def test_a_script_that_forgets_to_end_its_kernel_does_not_hang(self, embedded_host: Embedded) -> None:
        """K8: the kernel stays, as one whose client has been lost; the process ends."""
        process = run_script(FORGETFUL, add_kernelspec(embedded_host.location()))
        out, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
        assert out.startswith("42\n")
        embedded_host.clear()


COMMON = """
import json, sys, time
from jupyter_client.manager import KernelManager
manager = KernelManager(kernel_name=sys.argv[1])
manager.start_kernel()
client = manager.client()
client.start_channels()
client.wait_for_ready(timeout=60)
def run(code):
    client.execute_interactive(code, timeout=60, output_hook=lambda m: m["msg_type"] == "execute_result"
        and print(m["content"]["data"]["text/plain"], flush=True))
"""
FORGETFUL = COMMON + "run('6 * 7')\n"
HANDING_OVER = (
    COMMON
    + """
import asyncio, os
run("x = 41")
info = asyncio.run(manager.provisioner.get_provisioner_info())
info["connection_info"] = {k: v.decode() if isinstance(v, bytes) else v for k, v in info["connection_info"].items()}
print(json.dumps([info, manager.provisioner.status["pid"]]), flush=True)
sys.stdin.read()
"""
)


def handed_over_at_death(name: str) -> tuple[dict[str, Any], int]:
    """Have a process start a kernel and be killed; return what another needs to take it up, and the kernel's pid."""
    process = run_script(HANDING_OVER, name)
    assert process.stdout is not None
    info, pid = json.loads(process.stdout.readline())
    process.kill()
    process.communicate()
    return info, pid


def run_script(text: str, *arguments: str) -> subprocess.Popen[str]:
    """Run a Python program in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", text, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


class TestTakingOver:
    @pytest.fixture
    def handed_over(self, any_host: Host) -> Callable[[], tuple[Host, str, dict[str, Any], int]]:
        """Return a function that has a process start a kernel, set x, and be killed."""

        def hand_over() -> tuple[Host, str, dict[str, Any], int]:
            name = add_kernelspec(any_host.location())
            info, pid = handed_over_at_death(name)
            return any_host, name, info, pid

        return hand_over

    async def test_a_killed_clients_kernel_goes_on_in_another_process(
        self, handed_over: Callable[[], tuple[Host, str, dict[str, Any], int]]
    ) -> None:
        """L3."""
        host, name, info, pid = handed_over()
        assert alive(pid)
        kernel = await taken_up(name, info)
        assert await kernel.value("x") == "41"
        assert kernel.status["pid"] == pid
        cell = kernel.begin("print('begun', flush=True)\nimport time\ntime.sleep(600)")
        await cell.until(lambda: cell.stdout)
        await kernel.manager.interrupt_kernel()
        assert (await cell.done()).status == "error"
        await kernel.close()
        await kernel.manager.shutdown_kernel(now=True)
        assert settled(host.leftovers) == []
        assert not alive(pid)

    async def test_one_that_is_gone_is_told(self, embedded_host: Embedded) -> None:
        """L3."""
        name = add_kernelspec(embedded_host.location())
        info, _ = handed_over_at_death(name)
        embedded_host.clear()
        with pytest.raises(KernelGoneError) as caught:
            await taken_up(name, info)
        assert str(embedded_host.alias) in str(caught.value)

    async def test_while_the_host_is_out_of_reach_it_is_no_less_alive(self, embedded_host: Embedded) -> None:
        """L3, L4."""
        name = add_kernelspec(embedded_host.location())
        info, pid = handed_over_at_death(name)
        embedded_host.down()
        with pytest.raises(AlbedoError) as caught:
            await taken_up(name, info)
        assert not isinstance(caught.value, KernelGoneError)
        assert "refused" in str(caught.value)
        embedded_host.up()
        kernel = await taken_up(name, info)
        assert (await kernel.value("x"), kernel.status["pid"]) == ("41", pid)
        await kernel.close()
        await kernel.manager.shutdown_kernel(now=True)


def test_the_sockets_of_a_killed_process_are_cleared_away_by_the_next(embedded_host: Embedded) -> None:
    """K8."""
    runtime = Path(os.environ["JUPYTER_RUNTIME_DIR"])
    process = run_script(HANDING_OVER, add_kernelspec(embedded_host.location()))
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    process.communicate()
    assert [path for path in runtime.iterdir() if path.name.startswith("albedo-")]
    use_blocking(embedded_host.location())
    assert not [path for path in runtime.iterdir() if path.name.startswith("albedo-")]
    embedded_host.clear()
