"""Calls whose code cannot begin yet: they can be given up, and their time may be over; their code is never run then."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest
from faces import Embedded, keeper_of
from kernels import PATIENCE, eventually, under_way
from procs import send

from albedo_provisioner import AsyncSessions, Result
from albedo_provisioner.sessions import session_kernel

UNTIL_GO = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n"


def never_ran(result: Result, status: str) -> None:
    """Check what a result says of code that was not run."""
    assert (result.status, result.stdout, result.execution_count) == (status, "", None), result.kernel.note
    assert "was not run" in str(result.kernel.note)


async def test_calls_that_wait_for_another_sessions_kernel_to_go_are_given_up(
    embedded_host: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7: that one's end is awaited, and its keeper says nothing. So is a session's own kernel, that is reset."""
    monkeypatch.setattr(session_kernel, "ANSWER_TIMEOUT", PATIENCE)
    async with AsyncSessions(max_kernels=1) as sessions:
        session, other = [await sessions.open(embedded_host.location(), owner) for owner in ("conv-1", "conv-2")]
        await other.execute("x = 41")
        keeper = keeper_of(embedded_host)
        send(keeper, signal.SIGSTOP)
        began = time.monotonic()
        call = asyncio.create_task(session.execute("open('ran', 'w')", cell_id="c"))
        await eventually(lambda: [each.waits_for for each in session._core._patiences.values()] == ["room"])
        assert await session.interrupt()
        never_ran(await call, "interrupted")
        assert (await session.cell("c")).status == "interrupted"
        assert await session.interrupt() is False
        send(keeper, signal.SIGCONT)
        await session.execute("x = 42")
        send(keeper_of(embedded_host), signal.SIGSTOP)
        late = await other.execute("open('ran', 'w')", timeout=0.5)
        never_ran(late, "timeout")
        assert "kernels of other sessions" in str(late.kernel.note)
        assert time.monotonic() - began < PATIENCE
        send(keeper_of(embedded_host), signal.SIGCONT)
        result = await other.execute("'x' in globals()")
        assert (result.value, result.kernel.state_lost) == ("False", True)
    assert not (embedded_host.home / "ran").exists()


async def test_a_call_behind_an_earlier_one_is_taken_back_when_its_time_is_over(
    embedded_host: Embedded, async_sessions: AsyncSessions
) -> None:
    """S5: it does not wait for longer than its code might take, and the earlier one goes on."""
    session = await async_sessions.open(embedded_host.location())
    await session.execute("x = 41")
    before = asyncio.create_task(session.execute(UNTIL_GO))
    await under_way(session)
    waits = asyncio.create_task(session.execute("x += 1\nx", timeout=PATIENCE, cell_id="waits"))
    result = await session.execute("x = 0", timeout=0.5, cell_id="late")
    never_ran(result, "timeout")
    assert "asked of this session before" in str(result.kernel.note)
    assert not before.done()
    embedded_host.write("go", "")
    assert (await before).status == "ok"
    assert (await waits).value == "42"
    assert (await session.execute("x = 0", cell_id="late")).status == "timeout"  # asked again, it is not run either
    assert (await session.execute("x")).value == "42"


async def test_calls_are_interrupted_one_by_one_while_a_sign_in_is_waited_for(
    embedded_host: Embedded, async_sessions: AsyncSessions
) -> None:
    """S10: the oldest first, as it is the one that would run."""
    embedded_host.server.behave(refuse_auth=True)
    session = await async_sessions.open(embedded_host.location())
    first, second = [asyncio.create_task(session.execute(f"x = {number}\nx")) for number in (1, 2)]

    async def asked() -> bool:
        return (await session.status())["advice"] is not None

    await eventually(asked)
    assert await session.interrupt()
    never_ran(await first, "interrupted")
    assert not second.done()
    embedded_host.server.behave(refuse_auth=False)
    result = await second
    assert (result.value, result.kernel.state_lost) == ("2", False)
