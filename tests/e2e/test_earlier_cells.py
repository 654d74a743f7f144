"""Code that an earlier process has left running on a session's kernel: it is known, waited for, and can be ended."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from faces import Embedded, keeper_of
from kernels import eventually, until_status
from procs import send

from albedo_provisioner import AsyncSession, AsyncSessions
from albedo_provisioner.sessions import current_cell

CODE = """
import os, time
x = 42
print('precious', flush=True); open('began', 'w').close()
while not os.path.exists('go'):
    time.sleep(0.02)
x
"""

STUBBORN = """
import time
print('precious', flush=True); open('began', 'w').close()
while True:
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        pass
"""


async def left_running(
    host: Embedded, sessions: AsyncSessions, code: str, *, keeper_killed: bool = False
) -> AsyncSession:
    """Return a session whose cell "k" was left running by the sessions that it was opened with."""
    first = AsyncSessions()
    left = await first.open(host.location())
    call = asyncio.create_task(left.execute(code, cell_id="k"))
    await eventually((host.home / "began").exists)
    await first.leave()
    await asyncio.gather(call, return_exceptions=True)
    if keeper_killed:
        send(keeper_of(host), signal.SIGKILL)
    return await sessions.resume(left.id)


@pytest_asyncio.fixture
async def session(embedded_host: Embedded, async_sessions: AsyncSessions) -> AsyncIterator[AsyncSession]:
    session = await left_running(embedded_host, async_sessions, CODE)
    await until_status(session, "link", "attached")
    yield session


class TestCodeThatWasLeftRunning:
    async def test_is_known_and_what_is_asked_next_waits_for_it(
        self, embedded_host: Embedded, async_sessions: AsyncSessions, session: AsyncSession
    ) -> None:
        """S4, S5, S7: as if this process had asked for it."""
        status = await session.status()
        assert (status["cell_id"], status["link"]) == ("k", "attached")
        assert 0 < status["running_for"] < 300
        result = await session.execute("x", timeout=0.5)
        assert result.status == "timeout"
        assert "what was asked of this session before was not done yet" in str(result.kernel.note)
        assert not result.kernel.state_lost
        later = asyncio.create_task(session.execute("x + 1"))
        assert (await session.status())["cell_id"] == "k"
        embedded_host.write("go", "")
        assert (await later).value == "43"
        result = await session.cell("k")
        assert (result.status, result.value) == ("ok", "42")
        assert (await session.status())["execution_state"] == "idle"

    async def test_is_interrupted_and_the_call_that_waits_for_it_goes_on(self, session: AsyncSession) -> None:
        """S5, L7."""
        later = asyncio.create_task(session.execute("x"))
        assert await session.interrupt()
        result = await later
        assert (result.value, result.kernel.reused, result.kernel.state_lost) == ("42", True, False)
        assert (await session.cell("k")).status == "interrupted"
        assert not await session.interrupt()

    async def test_is_interrupted_before_anything_else_is_asked(
        self, embedded_host: Embedded, async_sessions: AsyncSessions, session: AsyncSession
    ) -> None:
        """S5: also where the host could not be asked when the session was resumed."""
        await async_sessions.leave()
        embedded_host.down()
        async with AsyncSessions() as others:
            session = await others.resume(session.id)
            await until_status(session, "link", "ended")
            embedded_host.up()
            assert await session.interrupt()
            assert (await session.cell("k")).status == "interrupted"

    async def test_ends_with_its_kernel_when_that_is_reset(self, session: AsyncSession) -> None:
        """S3."""
        later = asyncio.create_task(session.execute("'x' in globals()"))
        await eventually(lambda: session._core._patiences)
        await session.reset()
        result = await later
        assert (result.value, result.kernel.state_reset, result.kernel.state_lost) == ("False", True, False)
        lost = await session.cell("k")
        assert (lost.status, lost.stdout) == ("lost", "precious\n")
        assert (lost.kernel.state_reset, lost.kernel.state_lost) == (True, False)
        assert str(lost.kernel.note).endswith("The session was reset, so the state of earlier calls is gone.")

    async def test_is_no_kernel_that_is_evicted(self, embedded_host: Embedded, session: AsyncSession) -> None:
        """S7."""
        await session._core._registry.make_room(None)
        await session._core.evict("others want the room")
        assert (await session.status())["cell_id"] == "k"
        embedded_host.write("go", "")
        assert (await session.cell("k")).value == "42"

    async def test_is_given_up_with_a_kernel_that_is_killed(
        self, embedded_host: Embedded, session: AsyncSession
    ) -> None:
        """S4: the call that waits for it runs afresh, and tells."""
        later = asyncio.create_task(session.execute("'x' in globals()"))
        await eventually(lambda: session._core._patiences)
        os.kill((await session.status())["process"]["pid"], signal.SIGKILL)
        result = await later
        assert (result.value, result.kernel.state_lost) == ("False", True)
        lost = await session.cell("k")
        assert (lost.status, lost.stdout, lost.kernel.state_lost) == ("lost", "precious\n", True)
        assert "SIGKILL" in str(lost.kernel.note)

    async def test_is_ended_by_the_time_of_the_call_that_repeats_it(self, session: AsyncSession) -> None:
        """S5: it is not run again, and not waited for for ever."""
        result = await session.execute(CODE, timeout=1, cell_id="k")
        assert (result.status, result.kernel.state_lost) == ("timeout", False)
        assert "ran for more than 1 s and was interrupted; the state of earlier calls is kept" in str(
            result.kernel.note
        )
        assert (await session.cell("k")).status == "timeout"
        assert (await session.execute("x")).value == "42"

    async def test_is_interrupted_when_the_call_that_repeats_it_is_cancelled(self, session: AsyncSession) -> None:
        """S5."""
        again = asyncio.create_task(session.execute(CODE, cell_id="k"))
        await asyncio.sleep(0)
        again.cancel()
        with pytest.raises(asyncio.CancelledError):
            await again
        assert (await session.cell("k")).status == "interrupted"
        assert (await session.execute("x")).value == "42"

    async def test_that_does_not_obey_when_the_time_of_a_repeated_call_is_over_costs_its_kernel(
        self, embedded_host: Embedded, async_sessions: AsyncSessions, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """S5: and both who ask are told the same."""
        monkeypatch.setattr(current_cell, "INTERRUPT_GRACE", 0.5)
        monkeypatch.setattr(current_cell, "_FLOWS", 0.5)
        session = await left_running(embedded_host, async_sessions, STUBBORN)
        assert (await session.status())["cell_id"] == "k"
        result = await session.execute(STUBBORN, timeout=1, cell_id="k")
        assert (result.status, result.stdout, result.kernel.state_lost) == ("timeout", "precious\n", True)
        assert "so the kernel was killed" in str(result.kernel.note)
        await eventually(lambda: not session._core._held._to_prove)  # type: ignore[attr-defined]
        again = await session.cell("k")
        assert (again.status, again.stdout, again.kernel.note) == ("timeout", "precious\n", result.kernel.note)

    async def test_is_known_also_when_the_keeper_that_knew_it_was_killed(
        self, embedded_host: Embedded, async_sessions: AsyncSessions
    ) -> None:
        """L3, S7: nobody has what came of it, and it is waited for and interrupted all the same."""
        session = await left_running(embedded_host, async_sessions, CODE, keeper_killed=True)
        await until_status(session, "link", "attached")
        await session._core.evict("others want the room")
        status = await session.status()
        assert (status["cell_id"], status["execution_state"]) == ("k", "busy")
        later = asyncio.create_task(session.execute("x"))
        await eventually(lambda: session._core._patiences)
        assert await session.interrupt()
        result = await later
        assert (result.value, result.kernel.reused, result.kernel.state_lost) == ("42", True, False)
        assert (await session.status())["execution_state"] == "idle"
        assert "may have run" in str((await session.cell("k")).kernel.note)
