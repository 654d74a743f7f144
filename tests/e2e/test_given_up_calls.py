"""What a session was asked when its link had just broken: whether it was run is told, and nothing runs that was given
up before it had begun.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest
from faces import Embedded, keeper_of
from kernels import eventually, until_status
from procs import Process, send

from albedo_provisioner import AsyncSession, AsyncSessions
from albedo_provisioner.errors import LinkAwayError
from albedo_provisioner.sessions import current_cell, session_kernel

FILE = "ran"
CODE = f"open({FILE!r}, 'a').write('again')"


async def break_behind(host: Embedded, session: AsyncSession, call: asyncio.Task[object]) -> None:
    """Break the link for good once a call's code has been written to a connection that carries nothing any more."""
    await eventually(lambda: session._core._cell.running is not None)
    link = session._core._held.kernel._link  # type: ignore[union-attr]
    await eventually(lambda: link._link.idle)
    host.down()
    await until_status(session, "link", "reattaching")
    assert not call.done()


@pytest.fixture
def no_patience() -> Iterator[pytest.MonkeyPatch]:
    """Wait for no host that is out of reach, until that is undone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(current_cell, "ANSWER_TIMEOUT", 0.5)
        patch.setattr(current_cell, "INTERRUPT_GRACE", 0.5)
        patch.setattr(session_kernel, "ANSWER_TIMEOUT", 0.5)
        yield patch


class TestCodeThatWentOutOverADeadConnection:
    @pytest.mark.parametrize("how", ["timeout", "interrupted", "cancelled"])
    async def test_is_not_run_when_the_host_is_back_if_it_was_given_up_meanwhile(
        self, embedded_host: Embedded, async_sessions: AsyncSessions, no_patience: pytest.MonkeyPatch, how: str
    ) -> None:
        """L5, L7, S5."""
        session = await async_sessions.open(embedded_host.location())
        await session.execute("x = 41")
        embedded_host.freeze()
        call = asyncio.create_task(session.execute(CODE, cell_id="c", timeout=2 if how == "timeout" else None))
        await break_behind(embedded_host, session, call)
        if how == "timeout":
            result = await call
            assert result.status == "timeout"
            assert "cell('c')" in str(result.kernel.note)
            known = await session.cell("c")
            assert known.status == "timeout"
            assert "not known yet" in str(known.kernel.note)
        elif how == "interrupted":
            assert await session.interrupt()
        else:
            call.cancel()
        embedded_host.up()
        no_patience.undo()
        if how == "interrupted":
            assert (await call).status == how
        assert (await session.execute("x")).value == "41"
        result = await session.cell("c")
        assert result.status == ("timeout" if how == "timeout" else "interrupted")
        assert "This was not run" in str(result.kernel.note)
        assert not (embedded_host.home / FILE).exists()

    async def test_is_not_run_by_a_kernel_that_was_to_be_ended_meanwhile(
        self, embedded_host: Embedded, async_sessions: AsyncSessions, no_patience: pytest.MonkeyPatch
    ) -> None:
        """L5, S3, S9."""
        session = await async_sessions.open(embedded_host.location())
        await session.execute("x = 41")
        embedded_host.freeze()
        call = asyncio.create_task(session.execute(CODE, cell_id="c"))
        await break_behind(embedded_host, session, call)
        await session.reset()
        result = await call
        assert result.status == "lost"
        with pytest.raises(LinkAwayError, match="as soon as it can be reached again"):
            await session.close()
        embedded_host.up()
        no_patience.undo()
        await eventually(lambda: not embedded_host.processes())
        assert not (embedded_host.home / FILE).exists()

    async def test_is_not_said_not_to_have_run_when_it_began_and_its_kernel_was_reset(
        self, embedded_host: Embedded, async_sessions: AsyncSessions, no_patience: pytest.MonkeyPatch
    ) -> None:
        """S3, S5."""
        session = await async_sessions.open(embedded_host.location())
        call = asyncio.create_task(session.execute(f"{CODE}\nimport time\ntime.sleep(600)", timeout=2, cell_id="c"))
        await eventually((embedded_host.home / FILE).exists)
        embedded_host.down()
        assert (await call).status == "timeout"
        await session.reset()
        result = await session.cell("c")
        assert result.status == "timeout"
        assert str(result.kernel.note).endswith("The code had begun.")
        embedded_host.up()
        no_patience.undo()
        assert (await session.execute("1")).kernel.state_reset


class TestAnEndThatIsNotProven:
    async def test_is_told_by_whoever_closes_the_session(
        self, embedded_host: Embedded, async_sessions: AsyncSessions, no_patience: pytest.MonkeyPatch
    ) -> None:
        """S3, S6: as if the end had been asked for by closing it."""
        host = embedded_host
        session, other = [await async_sessions.open(host.location(), owner) for owner in ("reset", "reset::child")]
        for each in (session, other):
            await each.execute("x = 41")
        host.down()
        await until_status(session, "link", "reattaching")
        await session.reset()
        await other.reset()
        assert host.processes()
        with pytest.raises(LinkAwayError, match="is ended as soon as it can be reached again"):
            await session.close()
        with pytest.raises(LinkAwayError, match="is ended as soon as it can be reached again"):
            await session.close()  # it is no more proven than before
        with pytest.raises(LinkAwayError, match="is ended as soon as it can be reached again"):
            await async_sessions.close_owner("reset")
        host.up()
        no_patience.undo()
        await eventually(lambda: not host.processes())
        await session.close()

    async def test_is_told_by_the_next_process_and_proven_by_it(
        self, embedded_host: Embedded, no_patience: pytest.MonkeyPatch
    ) -> None:
        """S6, L3."""
        host = embedded_host
        first = AsyncSessions()
        session = await first.open(host.location(), "conv-1")
        await session.execute("x = 41")
        host.down()
        await until_status(session, "link", "reattaching")
        await session.reset()
        await first.leave()
        async with AsyncSessions() as others:
            with pytest.raises(LinkAwayError, match="still to be ended"):
                await (await others.resume(session.id)).close()
        host.up()
        no_patience.undo()
        await eventually(lambda: not host.processes())


class TestAKernelThatGoesWhileItIsTakenUp:
    @pytest.mark.parametrize("seen", ["by a keeper that goes as well", "by nobody"])
    async def test_is_a_loss_and_the_call_that_is_repeated_is_lost_too(
        self, embedded_host: Embedded, async_sessions: AsyncSessions, seen: str
    ) -> None:
        """L3, S4: an error would say that the code was not run."""
        host, first = embedded_host, AsyncSessions()
        session = await first.open(host.location())
        await session.execute("x = 41")
        code = f"open({FILE!r}, 'a').write('once')\nimport time\ntime.sleep(600)"
        call = asyncio.create_task(session.execute(code, cell_id="c"))
        await eventually(lambda: (host.home / FILE).exists())
        status = await session.status()
        keeper = keeper_of(host)
        await first.leave()
        await asyncio.gather(call, return_exceptions=True)
        if seen == "by nobody":
            send(keeper, signal.SIGKILL)
        else:
            send(keeper, signal.SIGSTOP)
        run = str(host.home / ".albedo-remote" / "run" / status["kernel_id"])
        ours = {keeper.pid, status["process"]["pid"]}
        again = asyncio.create_task((await async_sessions.resume(session.id)).execute(code, cell_id="c"))
        await eventually(lambda: any(each.pid not in ours and _folder_of(each) == run for each in host.processes()))
        os.kill(status["process"]["pid"], signal.SIGKILL)
        send(keeper, signal.SIGKILL)
        result = await again
        assert (result.status, result.kernel.state_lost) == ("lost", True)
        assert (await async_sessions.list())[0]["session_id"] == session.id
        session = await async_sessions.resume(session.id)
        assert (await session.cell("c")).status == "lost"
        assert (await session.execute("'x' in globals()")).value == "False"
        assert (host.home / FILE).read_text() == "once"


def _folder_of(process: Process) -> str:
    try:
        return os.readlink(f"/proc/{process.pid}/cwd")
    except OSError:  # it has ended
        return ""
