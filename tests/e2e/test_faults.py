"""The fault campaign's short form: a dozen rounds of `python -m tests.faults`, which has the long one.

A round that fails prints the command that replays it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from pathlib import Path

import pytest
from conftest import unavailable
from faces import Embedded, Host
from faults.agents import run_agents
from faults.run import run
from kernels import Kernel, eventually, started
from sshd import NoSshdError

from albedo_provisioner.provisioner import AlbedoProvisioner

FIXED = "short"
ENDLESS = "import time\nprint('begun', flush=True)\nfor _ in range(6000): time.sleep(0.01)"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("seed", "rounds"), [(FIXED, 10), (None, 4)], ids=["fixed", "random"])
async def test_random_cells_under_random_faults_arrive_byte_for_byte(seed: str | None, rounds: int) -> None:
    """L1 to L8."""
    try:
        assert await run(rounds, seed or secrets.token_hex(4)) == []
    except NoSshdError as error:
        unavailable(str(error))


class TestFoundByTheCampaign:
    """What it found once, each by itself and the same way every time."""

    async def test_an_interrupt_does_not_pass_the_cell_that_it_is_for(self, embedded_host: Embedded) -> None:
        """L7: both are asked for while the host is out of reach, and control traffic comes first when it is back."""
        async with started(embedded_host.location()) as kernel:
            embedded_host.down()
            await eventually(lambda: kernel.status["step"] == "reattaching")
            cell = kernel.begin(ENDLESS)
            later = kernel.begin("'spared'")
            await eventually(lambda: asked(kernel) == 2)
            await kernel.manager.interrupt_kernel()
            embedded_host.up()
            await cell.done()
            assert cell.reply is not None
            assert cell.reply["ename"] == "KeyboardInterrupt"
            await later.done()

    async def test_a_new_keeper_interrupts_what_it_has_not_heard_of(self, embedded_host: Embedded) -> None:
        """L7."""
        async with started(embedded_host.location()) as kernel:
            cell = kernel.begin(ENDLESS)
            await cell.until(lambda: cell.stdout)
            kill_keeper(embedded_host)
            await eventually(lambda: "keeper" in cell.stderr)
            await kernel.manager.interrupt_kernel()
            await cell.done()
            assert cell.reply is not None
            assert cell.reply["ename"] == "KeyboardInterrupt"

    async def test_a_cell_that_was_told_its_kernel_died_is_not_run_by_the_next(self, embedded_host: Embedded) -> None:
        """K5, L5: it was on its way when the kernel died."""
        async with started(embedded_host.location()) as kernel:
            embedded_host.down()
            await eventually(lambda: kernel.status["step"] == "reattaching")
            os.kill(kernel.status["pid"], signal.SIGKILL)
            late = kernel.begin("ran_late = True")
            await eventually(lambda: asked(kernel) == 1)
            embedded_host.up()
            await late.done()
            assert late.reply is not None
            assert "SIGKILL" in late.reply["evalue"]
            await kernel.manager.restart_kernel(now=True)
            assert await kernel.value("'ran_late' in globals()") == "False"

    async def test_an_interrupt_of_a_kernel_that_starts_does_not_end_it(self, any_host: Host) -> None:
        """K4, K5: nothing runs on it yet, and Python would end by the signal."""
        async with started(any_host.location()) as kernel:
            restart = asyncio.create_task(kernel.manager.restart_kernel(now=True))
            old = kernel.status["pid"]
            await eventually(lambda: kernel.status["pid"] != old)
            assert kernel.status["process"] == "starting"
            await kernel.manager.provisioner.send_signal(signal.SIGINT)  # type: ignore[union-attr]
            await restart
            assert await kernel.value("6 * 7") == "42"

    async def test_an_end_outlives_the_keeper_that_it_was_for(self, embedded_host: Embedded) -> None:
        """K6: the keeper is killed while the host is out of reach, and the kernel is to end."""
        async with started(embedded_host.location()) as kernel:
            embedded_host.down()
            await eventually(lambda: kernel.status["step"] == "reattaching")
            kill_keeper(embedded_host)
            await kernel.manager.shutdown_kernel(now=True)
            embedded_host.up()
            await eventually(lambda: embedded_host.leftovers() == [], what="nothing left")


def asked(kernel: Kernel) -> int:
    """Return how many cells the relay knows of that have no reply."""
    provisioner = kernel.manager.provisioner
    assert isinstance(provisioner, AlbedoProvisioner)
    assert provisioner._kernel is not None
    return len(provisioner._kernel._front.running)


def kill_keeper(host: Embedded) -> None:
    """Kill the host's only keeper."""
    (keeper,) = [p for p in host.processes() if Path(f"/proc/{p.pid}/comm").read_text() == "albedo-keeper\n"]
    os.kill(keeper.pid, signal.SIGKILL)


@pytest.mark.timeout(300)
def test_agents_that_are_killed_lose_no_call_and_run_none_twice() -> None:
    """L3, L4: a few rounds of `python -m tests.faults --agents`."""
    try:
        assert run_agents(4, secrets.token_hex(4)) == 0
    except NoSshdError as error:
        unavailable(str(error))
