"""What a session tells of a kernel that is gone: who ended it, and that it is told to somebody who hears it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from crash import albedo
from faces import Embedded
from kernels import PATIENCE, eventually, under_way, until_status

from albedo_provisioner import AsyncSessions, Sessions
from albedo_provisioner.errors import AlbedoError
from albedo_provisioner.sessions import session_kernel
from albedo_provisioner.sessions.cell_runs import CellRuns


def run_elsewhere(code: str) -> None:
    """Run code in another process of this machine."""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


class TestWhoEndedIt:
    async def test_is_told_of_one_that_was_stopped_from_a_terminal(
        self, embedded_host: Embedded, async_sessions: AsyncSessions
    ) -> None:
        """S4: whatever the session was at, and also when it hears of it late."""
        session = await async_sessions.open(embedded_host.location())

        async def stop() -> None:
            kernel_id = (await session.status())["kernel_id"]
            assert "Ended" in await asyncio.to_thread(albedo, "stop", kernel_id)

        await session.execute("x = 41")
        await stop()
        result = await session.execute("'x' in globals()")
        assert (result.value, result.kernel.state_lost) == ("False", True)
        assert "was ended by a client: jupyter albedo stop, process " in str(result.kernel.note)
        call = asyncio.create_task(session.execute("import time\ntime.sleep(600)"))
        await under_way(session)
        await stop()
        result = await call
        assert (result.status, result.kernel.state_lost) == ("lost", True)
        assert "jupyter albedo stop" in str(result.kernel.note)
        await session.execute("x = 41")
        embedded_host.freeze()  # so that this process is told nothing
        await stop()
        embedded_host.cut()
        await until_status(session, "link", "ended")
        result = await session.execute("'x' in globals()")
        assert (result.value, result.kernel.state_lost) == ("False", True)
        assert "`jupyter albedo stop`" in str(result.kernel.note)

    @pytest.mark.parametrize("how", ["stopped", "closed"])
    async def test_is_told_of_one_that_nobody_was_linked_to_and_to_its_guests(
        self, embedded_host: Embedded, async_sessions: AsyncSessions, how: str
    ) -> None:
        first = AsyncSessions()
        session = await first.open(embedded_host.location(), "conv-1")
        await session.execute("x = 41")
        kernel_id = (await session.status())["kernel_id"]
        await first.leave()
        if how == "stopped":
            await asyncio.to_thread(albedo, "stop", kernel_id)
            session = await async_sessions.resume(session.id)
            result = await session.execute("'x' in globals()")
            assert (result.value, result.kernel.state_lost) == ("False", True)
            assert "The kernel was ended with `jupyter albedo stop` (process " in str(result.kernel.note)
            return
        guest = await async_sessions.join(kernel_id)
        await guest.execute("x")
        close = "from albedo_provisioner import Sessions\nwith Sessions() as s: assert s.close_owner('conv-1') == 1"
        await asyncio.to_thread(run_elsewhere, close)
        await until_status(guest, "link", "ended")
        with pytest.raises(AlbedoError, match="closed all sessions of the owner 'conv-1'"):
            await guest.execute("x")


class TestALossThatNobodyWasTold:
    async def test_as_the_caller_was_cancelled_is_told_to_the_next_one(
        self, embedded_host: Embedded, async_sessions: AsyncSessions
    ) -> None:
        """S4."""
        session = await async_sessions.open(embedded_host.location())
        await session.execute("x = 41")
        pid = (await session.status())["process"]["pid"]
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: session._core._held.kernel.poll() is not None)  # type: ignore[union-attr]
        call = asyncio.create_task(session.execute("import time\ntime.sleep(600)", cell_id="c"))
        await under_way(session)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        result = await session.execute("'x' in globals()")
        assert (result.value, result.kernel.state_lost, result.kernel.reused) == ("False", True, False)
        assert "SIGKILL" in str(result.kernel.note)
        result = await session.execute("1")
        assert (result.kernel.state_lost, result.kernel.reused, result.kernel.note) == (False, True, None)

    def test_as_its_process_was_killed_is_told_by_the_next_one(self, embedded_host: Embedded) -> None:
        """L3, S4."""
        code = (
            "import sys\nfrom albedo_provisioner import Sessions\nsession = Sessions().open(sys.argv[1])\n"
            "session.execute('x = 41')\nstatus = session.status()\n"
            "print(session.id, status['process']['pid'], flush=True)\n"
            "while session.status()['process']['state'] != 'exited': pass\n"
            "code = 'print(1, flush=True)\\nimport time\\ntime.sleep(1)\\n7'\n"
            "session.execute(code, cell_id='c', on_output=lambda _: print('begun', flush=True))"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code, embedded_host.location()], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            session_id, pid = process.stdout.readline().split()
            os.kill(int(pid), signal.SIGKILL)
            assert process.stdout.readline() == "begun\n"
            process.kill()
        with Sessions() as sessions:
            session = sessions.resume(session_id)
            result = session.cell("c")
            assert (result.value, result.kernel.state_lost, result.kernel.reused) == ("7", True, False)
            assert "SIGKILL" in str(result.kernel.note)
            result = session.execute("'x' in globals()")
            assert (result.value, result.kernel.state_lost, result.kernel.reused) == ("False", True, False)
            assert session.execute("1").kernel.state_lost is False


class TestAKernelThatEndsUnderACallOfAProcessThatWasKilled:
    async def test_is_told_once_to_the_next_one(self, embedded_host: Embedded, async_sessions: AsyncSessions) -> None:
        """L3, S4: to its call with the same id, with the cause; whether the kernel ends before that or meanwhile, and
        also with a loss from before that the call would have told.
        """
        code = (
            "import os, sys\nfrom albedo_provisioner import Sessions\n"
            "session = Sessions().open(sys.argv[1], owner=sys.argv[2])\nsession.execute('x = 41')\n"
            "if sys.argv[2] == 'later':\n"
            "    os.kill(session.status()['process']['pid'], 9)\n"
            "    while session.status()['process']['state'] != 'exited': pass\n"
            "code = 'import os, time\\nprint(os.getpid(), flush=True)\\ntime.sleep(600)'\n"
            "tell = lambda output: print(session.id, output['text'], flush=True)\n"
            "session.execute(code, cell_id='c', on_output=tell)"
        )
        for when in ("before", "later"):
            arguments = [sys.executable, "-c", code, embedded_host.location(), when]
            process = await asyncio.create_subprocess_exec(*arguments, stdout=subprocess.PIPE)
            assert process.stdout is not None
            session_id, pid = (await process.stdout.readline()).decode().split()
            process.kill()
            await process.wait()
            if when == "before":
                os.kill(int(pid), signal.SIGKILL)
            session = await async_sessions.resume(session_id)
            call = asyncio.create_task(session.execute("never run", cell_id="c"))
            if when == "later":
                await until_status(session, "link", "attached")
                os.kill(int(pid), signal.SIGKILL)
            result = await call
            assert (result.status, result.kernel.state_lost, result.kernel.ended) == ("lost", True, True), when
            assert str(result.kernel.note).count("was ended by SIGKILL") == 1, result.kernel.note
            again = await session.execute("never run", cell_id="c")
            assert again.kernel.note == result.kernel.note
            result = await session.execute("'x' in globals()")
            assert (result.value, result.kernel.state_lost, result.kernel.reused) == ("False", False, False), when
            assert result.kernel.note is None


class TestAKernelThatNoCodeWasGivenTo:
    """It has no state that could be lost."""

    def test_is_no_loss_to_the_next_process(self, embedded_host: Embedded) -> None:
        """L3, S4: the process was killed as it started its first kernel, or as that was there."""
        code = (
            "import os, signal, sys\nfrom albedo_provisioner import Sessions\n"
            "from albedo_provisioner.kernels.remote import RemoteKernel\n"
            "from albedo_provisioner.sessions.cell_runs import CellRuns\n"
            "def die(*_): os.kill(os.getpid(), signal.SIGKILL)\n"
            "where, what = sys.argv[2].split('.')\nsetattr(globals()[where], what, die)\n"
            "session = Sessions().open(sys.argv[1], owner=what)\nprint(session.id, flush=True)\n"
            "session.execute('1', cell_id='c')"
        )
        with Sessions() as sessions:
            for moment in ("RemoteKernel._put_record", "RemoteKernel._make", "CellRuns.run"):
                run = subprocess.run(
                    [sys.executable, "-c", code, embedded_host.location(), moment],
                    stdout=subprocess.PIPE,
                    text=True,
                    timeout=PATIENCE,
                    check=False,
                )
                session = sessions.resume(run.stdout.strip())
                if moment == "CellRuns.run":
                    albedo("stop", *(each["kernel_id"] for each in sessions.list() if each["session_id"] == session.id))
                assert session.cells() == []
                result = session.execute("x = 41")
                assert (result.status, result.kernel.state_lost, result.kernel.note) == ("ok", False, None), moment
            os.kill(session.status()["process"]["pid"], signal.SIGKILL)
            assert session.execute("1").kernel.state_lost  # which this one had

    async def test_is_no_loss_when_it_ends_before_that(
        self, embedded_host: Embedded, async_sessions: AsyncSessions, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """S4: nor is there anything to reset."""
        session = await async_sessions.open(embedded_host.location())
        run, ended = CellRuns.run, []

        async def run_too_late(self: CellRuns, *call: Any) -> Any:
            kernel = self._held.kernel
            assert kernel is not None
            os.kill(kernel.pid or 0, signal.SIGKILL)
            await kernel.wait()
            ended.append(kernel.pid)
            return await run(self, *call)

        with monkeypatch.context() as patches:
            patches.setattr(CellRuns, "run", run_too_late)
            with pytest.raises(AlbedoError, match=r"Three kernels in a row .* was ended by SIGKILL"):
                await session.execute("x = 41")
        assert len(ended) == 3
        await session.reset()
        result = await session.execute("1")
        assert (result.kernel.state_lost, result.kernel.state_reset, result.kernel.note) == (False, False, None)


class TestNewsOfSeveralThings:
    """None of which anybody was told yet."""

    async def test_that_jobs_ended_is_told_although_the_kernel_was_reset_or_moved(
        self, embedded_host: Embedded, async_sessions: AsyncSessions
    ) -> None:
        """S3, S11."""
        session = await async_sessions.open(embedded_host.location())
        elsewhere, go = embedded_host.location(embedded_host.make_folder("elsewhere")), embedded_host.home / "go"
        words = "ended with exit code 3"

        async def job_ended() -> None:
            wait = f"while [ ! -e {go} ]; do sleep 0.05; done; exit 3"
            await session.execute(f"job = run('sh', '-c', {wait!r})")
            go.touch()
            await eventually(ended)
            go.unlink()

        async def ended() -> bool:
            return [job["state"] for job in (await session.status())["jobs"]] == ["ended"]

        await job_ended()
        await session.reset()
        result = await session.execute("1")
        note = str(result.kernel.note)
        assert (result.kernel.state_reset, result.kernel.state_lost, note.count(words)) == (True, False, 1)
        assert note.index("The session was reset") < note.index(words)
        await job_ended()
        result = await session.execute("1", reset=True)
        assert (result.kernel.state_reset, str(result.kernel.note).count(words)) == (True, 1)
        assert "The session was reset" not in str(result.kernel.note)  # the caller knows
        await job_ended()
        await session.move(elsewhere)
        note = str((await session.execute("1")).kernel.note)
        assert note.index(f"to {elsewhere}; it has a fresh kernel") < note.index(words)
        assert (await session.execute("1")).kernel.note is None

    async def test_is_told_in_order(self, embedded_host: Embedded) -> None:
        """S4, S7: a loss, then an eviction, and then a reset, which a killed kernel's loss went before."""
        async with AsyncSessions(max_kernels=1) as sessions:
            session, other = [await sessions.open(embedded_host.location(), owner) for owner in ("conv-1", "conv-2")]

            async def killed() -> None:
                os.kill((await session.status())["process"]["pid"], signal.SIGKILL)
                kernel = session._core._held.kernel
                assert kernel is not None
                await eventually(lambda: kernel.poll() is not None)

            async def unheard() -> None:
                call = asyncio.create_task(session.execute(f"import time\ntime.sleep({PATIENCE})"))
                await under_way(session)
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
                await until_status(session, "execution_state", "idle")

            await session.execute("x = 41")
            await killed()
            await unheard()
            await other.execute("1")  # takes the kernel's place
            note = str((await session.execute("1")).kernel.note)
            assert note.index("ended by SIGKILL") < note.index("there may be 1 kernels"), note
            await killed()
            await session.reset()
            result = await session.execute("1")
            note = str(result.kernel.note)
            assert note.index("ended by SIGKILL") < note.index("The session was reset"), note
            assert (result.kernel.state_lost, result.kernel.state_reset) == (True, True)
            assert (await session.execute("1")).kernel.note is None

    def test_a_move_is_told_by_the_next_process(self, embedded_host: Embedded) -> None:
        """S11, L3: the one that moved it was killed at once."""
        elsewhere = embedded_host.location(embedded_host.make_folder("elsewhere"))
        code = (
            "import os, signal, sys\nfrom albedo_provisioner import Sessions\n"
            "session = Sessions().open(sys.argv[1])\nsession.execute('x = 41')\nprint(session.id, flush=True)\n"
            "session.move(sys.argv[2])\nos.kill(os.getpid(), signal.SIGKILL)"
        )
        run = subprocess.run(
            [sys.executable, "-c", code, embedded_host.location(), elsewhere],
            stdout=subprocess.PIPE,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        with Sessions() as sessions:
            session = sessions.resume(run.stdout.strip())
            result = session.execute("'x' in globals()")
            assert (result.value, result.kernel.state_reset, result.kernel.reused) == ("False", True, False)
            assert result.kernel.state_lost is False
            assert f"to {elsewhere}; it has a fresh kernel" in str(result.kernel.note)
            assert session.execute("1").kernel.note is None


class TestAReset:
    async def test_whose_call_failed_is_told_by_the_next_one(
        self, embedded_host: Embedded, async_sessions: AsyncSessions, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """S3: the kernel is gone although nothing was run."""
        session = await async_sessions.open(embedded_host.location())
        await session.execute("x = 41")
        embedded_host.down()
        await until_status(session, "link", "reattaching")
        with monkeypatch.context() as patches:
            patches.setattr(session_kernel, "ANSWER_TIMEOUT", 0.2)
            with pytest.raises(AlbedoError, match="refused"):
                await session.execute("x", reset=True)
        embedded_host.up()
        result = await session.execute("'x' in globals()")
        assert (result.value, result.kernel.state_reset, result.kernel.reused) == ("False", True, False)
        assert (await session.execute("1")).kernel.state_reset is False
        again = await session.execute("2", reset=True)
        assert (again.value, again.kernel.state_reset, again.kernel.note) == ("2", True, None)

    async def test_does_not_wait_for_a_person_to_sign_in(
        self, embedded_host: Embedded, async_sessions: AsyncSessions
    ) -> None:
        """S10."""
        embedded_host.server.behave(refuse_auth=True)
        session = await async_sessions.open(embedded_host.location())
        call = asyncio.create_task(session.execute("x = 41"))

        async def waits() -> bool:
            return "authorized_keys" in str((await session.status())["advice"])

        await eventually(waits)
        await session.reset()
        result = await call
        assert (result.status, result.kernel.state_lost) == ("interrupted", False)
        embedded_host.server.behave(refuse_auth=False)
        assert (await session.execute("'x' in globals()")).value == "False"
