"""Calls that end before their code does, or before it has begun: what is told then, and what came of it later."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest
from faces import Embedded, keeper_of
from kernels import eventually, started, under_way, until_status
from procs import send

from albedo_provisioner import AsyncSession, AsyncSessions, Result
from albedo_provisioner.kernels.records import KernelRecords
from albedo_provisioner.sessions import current_cell
from albedo_provisioner.sessions.results import Output

UNTIL_GO = "import os, time\nprint('begun', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\n"


async def ended(session: AsyncSession, cell_id: str) -> Result:
    """Return what came of a cell, once its code has come to its end."""

    async def it_has() -> bool:
        return all(cell.state == "done" for cell in await session.cells() if cell.cell_id == cell_id)

    await eventually(it_has)
    return await session.cell(cell_id)


class TestTimeouts:
    async def test_of_code_that_has_not_gone_out_take_it_back(
        self, embedded_host: Embedded, async_sessions: AsyncSessions
    ) -> None:
        """S5, L3: the host is out of reach the whole time, so it can be said for certain that it was not run."""
        session = await async_sessions.open(embedded_host.location())
        await session.execute("x = 41")
        embedded_host.down()
        await until_status(session, "link", "reattaching")
        result = await session.execute("x += 1", timeout=0.3, cell_id="a")
        assert (result.status, result.kernel.state_lost) == ("timeout", False)
        assert "was not run: " in str(result.kernel.note)
        call = asyncio.create_task(session.execute("x += 1", cell_id="b"))
        await under_way(session)
        assert await session.interrupt()
        assert (await call).status == "interrupted"
        embedded_host.up()
        assert (await session.execute("x")).value == "41"
        assert (await session.execute("x += 1", cell_id="a")).status == "timeout"  # asked twice, and told twice
        assert "was not run: " in str((await session.cell("b")).kernel.note)

    @pytest.mark.parametrize("later", ["in this process", "in the next one"])
    async def test_of_code_that_runs_while_the_host_is_out_of_reach_have_its_end_told_later(
        self, embedded_host: Embedded, later: str
    ) -> None:
        """L4, L7."""
        folder = embedded_host.make_folder("proj")
        code = f"{UNTIL_GO}x = 41\nopen('done', 'w').close()\nx + 1"
        async with AsyncSessions() as sessions:
            session = await sessions.open(embedded_host.location("proj"))
            begun, loop = asyncio.Event(), asyncio.get_running_loop()
            told = {"on_output": lambda _: loop.call_soon_threadsafe(begun.set)}
            call = asyncio.create_task(session.execute(code, cell_id="d", timeout=3, **told))
            await begun.wait()
            embedded_host.down()
            result = await call
            assert (result.status, result.stdout) == ("timeout", "begun\n")
            assert "out of reach" in str(result.kernel.note)
            known = await session.cell("d")
            assert (known.status, known.stdout) == (result.status, result.stdout)
            assert str(known.kernel.note).startswith(f"{result.kernel.note} (This is what its call was told")
            embedded_host.write("proj/go", "")
            await eventually((folder / "done").exists)
            if later == "in the next one":
                await sessions.leave()
            embedded_host.up()
            if later == "in this process":
                result = await ended(session, "d")
        if later == "in the next one":
            async with AsyncSessions() as sessions:
                session = await sessions.resume(session.id)
                result = await session.cell("d")
        assert (result.status, result.value, result.stdout) == ("ok", "42", "begun\n")


async def test_an_interrupt_reaches_a_call_that_still_waits_for_its_kernel(
    embedded_host: Embedded, async_sessions: AsyncSessions
) -> None:
    session = await async_sessions.open(embedded_host.location())
    call = asyncio.create_task(session.execute("x = 41", cell_id="first"))
    await until_status(session, "execution_state", "starting")
    assert (await session.status())["cell_id"] == "first"
    assert await session.interrupt()
    result = await call
    assert (result.status, result.kernel.state_lost) == ("interrupted", False)
    assert "was not run" in str(result.kernel.note)
    assert (await session.execute("'x' in globals()")).value == "False"
    assert (await session.cell("first")).status == "interrupted"


async def test_code_behind_a_notebooks_is_told_of_when_its_turn_has_come(
    embedded_host: Embedded, async_sessions: AsyncSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L8: where a kernel cannot take code back, as others than Python's. An interrupt may come too late for what is
    short, and then it is not said that it was interrupted.
    """
    monkeypatch.setattr(current_cell, "INTERRUPT_GRACE", 0.5)
    async with started(embedded_host.location()) as person:
        (kernel,) = KernelRecords().all()
        session = await async_sessions.join(kernel.kernel_id)
        (embedded_host.home / ".albedo-remote" / "run" / kernel.kernel_id / "taken-back").unlink()
        cell = person.begin(UNTIL_GO)
        await cell.until(lambda: cell.stdout)
        result = await session.execute("41 + 1", timeout=0.3, cell_id="behind")
        assert result.status == "timeout"
        assert "may run yet" in str(result.kernel.note)
        embedded_host.write("go", "")
        await cell.done()
        result = await ended(session, "behind")
        # On a busy machine the interrupt, a tenth of a second after the beginning, may yet hit it, or its reply alone.
        assert (result.status, result.value) in (("ok", "42"), ("timeout", None), ("timeout", "42"))
        after = (
            ("It came to its end.",)
            if result.status == "ok"
            else ("It was interrupted then.", "lives and has its state.")
        )
        assert str(result.kernel.note).endswith(after)
        assert (await session.execute("41 + 1", cell_id="behind")).to_dict() == result.to_dict()
        other = await session.execute("1 / 0", cell_id="behind")
        assert (other.status, other.value) == (result.status, result.value)
        assert "other code" in str(other.kernel.note)


async def test_code_that_outlives_its_call_keeps_its_kernel_and_its_end_is_a_use(embedded_host: Embedded) -> None:
    """S7: the time without use begins when the code has ended, and not when its call had."""
    idle = 3.0
    async with AsyncSessions(idle_timeout=idle) as sessions:
        session = await sessions.open(embedded_host.location())
        begun, loop = asyncio.Event(), asyncio.get_running_loop()
        told = {"on_output": lambda _: loop.call_soon_threadsafe(begun.set)}
        call = asyncio.create_task(session.execute(UNTIL_GO, timeout=1, cell_id="late", **told))
        await begun.wait()
        embedded_host.down()
        assert (await call).status == "timeout"
        called = time.monotonic()
        await eventually(lambda: time.monotonic() > called + idle + 1)  # the time itself, and a look
        assert (await session.status())["kernel_id"] is not None
        embedded_host.up()
        await ended(session, "late")
        came_to_its_end = time.monotonic()

        async def gone() -> bool:
            return (await session.status())["kernel_id"] is None

        await eventually(gone)
        assert time.monotonic() - came_to_its_end > idle / 2
        result = await session.execute("1")
        assert f"nothing had used it for {idle:g} s" in str(result.kernel.note)


async def test_a_reset_by_another_hand_is_told_by_the_next_result(
    embedded_host: Embedded, async_sessions: AsyncSessions
) -> None:
    session = await async_sessions.open(embedded_host.location())
    await session.execute("x = 41")
    await session.reset()
    result = await session.execute("'x' in globals()")
    assert (result.value, result.kernel.state_reset, result.kernel.state_lost) == ("False", True, False)
    assert "was reset" in str(result.kernel.note)
    call = asyncio.create_task(session.execute("import time\ntime.sleep(600)"))
    await under_way(session)
    await session.reset()
    result = await call
    assert (result.status, result.kernel.state_reset, result.kernel.state_lost) == ("lost", True, False)
    result = await session.execute("1")
    assert (result.kernel.state_reset, result.kernel.note) == (False, None)


async def test_a_cell_whose_keeper_is_killed_is_not_said_to_be_lost_when_its_reply_comes(
    embedded_host: Embedded, async_sessions: AsyncSessions
) -> None:
    """K6: the reply and the statuses come by two ways, and either may be first."""
    session = await async_sessions.open(embedded_host.location())
    for number in range(3):
        await session.execute(f"n = {number}", reset=True)
        printed: list[Output] = []
        call = asyncio.create_task(session.execute(f"{UNTIL_GO}os.remove('go')\nn + 1", on_output=printed.append))
        await eventually(lambda printed=printed: printed)
        send(keeper_of(embedded_host), signal.SIGKILL)
        await until_status(session, "link", "reattaching")
        await until_status(session, "link", "attached")
        embedded_host.write("go", "")
        result = await call
        assert (result.status, result.value) == ("ok", str(number + 1)), result.kernel.note
