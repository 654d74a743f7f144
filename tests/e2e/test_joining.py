"""One kernel for a person and an agent: sessions that join a notebook's kernel, and notebooks that open a session's."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from crash import albedo
from faces import Embedded, Host
from jupyter_client.manager import AsyncKernelManager
from kernels import Client, Kernel, add_kernelspec, started, started_by_name, under_way
from notebook_server import NotebookServer
from procs import alive

from albedo_provisioner import AsyncSessions, Sessions
from albedo_provisioner.errors import AlbedoError, ConfigError, KernelGoneError
from albedo_provisioner.hosts import io_thread
from albedo_provisioner.kernels.records import KernelRecords
from albedo_provisioner.sessions import current_cell, joined_kernel
from albedo_provisioner.sessions.past import result_of

NOTEBOOK = "/nb/a.ipynb"
STUBBORN = "import time\nwhile True:\n    try:\n        time.sleep(600)\n    except KeyboardInterrupt:\n        pass"
UNTIL_GO = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n"


@asynccontextmanager
async def notebook(host: Host) -> AsyncIterator[Kernel]:
    """Start a kernel as a Jupyter Server does for a notebook."""
    async with started(host.location(), options={"env": {**os.environ, "JPY_SESSION_NAME": NOTEBOOK}}) as kernel:
        yield kernel


@pytest.fixture
async def sessions() -> AsyncIterator[AsyncSessions]:
    async with AsyncSessions(max_kernels=1, idle_timeout=3600) as made:
        yield made


def printed(client: Client) -> str:
    """Return what a client saw on stdout of what others have run."""
    return "".join(
        message["content"]["text"]
        for channel, message in client.others
        if channel == "iopub" and message["msg_type"] == "stream" and message["content"]["name"] == "stdout"
    )


class TestSessionsThatJoin:
    async def test_share_the_variables_with_the_notebook_which_sees_what_they_print(
        self, any_host: Host, sessions: AsyncSessions
    ) -> None:
        """L8."""
        async with notebook(any_host) as person:
            await person.run("x = 41")
            (before,) = KernelRecords().all()
            session = await sessions.join(notebook=NOTEBOOK, owner="agent")
            result = await session.execute("print('from the agent')\ny = x + 1\ny")
            assert (result.status, result.value, result.stdout) == ("ok", "42", "from the agent\n")
            assert (result.kernel.reused, result.kernel.note, result.execution_count) == (True, None, 2)
            assert await person.value("y") == "42"
            await person.until(lambda: "from the agent" in printed(person))
            assert (await session.execute("x")).stdout == ""
            status = await session.status()
            assert (status["joined"], status["kernel_id"]) == (True, before.kernel_id)
            assert (await sessions.join(before.kernel_id[:8], owner="agent")).id == session.id
            assert KernelRecords().all() == [before]  # whose it is stays as it was

    async def test_never_end_or_restart_it(self, embedded_host: Embedded, sessions: AsyncSessions) -> None:
        async with notebook(embedded_host) as person:
            await person.run("x = 41")
            session = await sessions.join(notebook=NOTEBOOK, owner="a")
            for refused in (session.reset(), session.move("/tmp"), session.execute("1", reset=True)):
                with pytest.raises(AlbedoError, match=f"belongs to the notebook {NOTEBOOK}"):
                    await refused
            own = await sessions.open(embedded_host.location(), "a")
            assert own.id != session.id
            assert (await own.execute("'x' in globals()")).value == "False"  # the limit of one kernel counts own ones
            assert (await session.execute("x")).value == "41"
            other = await sessions.open(embedded_host.location(), "b")
            await other.execute("1")
            assert (await own.status())["kernel_id"] is None
            await session.execute("import threading")
            await session.close()
            assert await sessions.close_owner("b") == 1
            assert await person.value("x") == "41"
            await sessions.join(notebook=NOTEBOOK, owner="c")
            assert await sessions.close_owner("c") == 1
            await sessions.join(notebook=NOTEBOOK)
            await sessions.close()
            assert await person.value("x") == "41"

    async def test_let_go_of_it_when_they_are_not_used(self, embedded_host: Embedded) -> None:
        async with notebook(embedded_host) as person, AsyncSessions(idle_timeout=0.1) as sessions:
            session, own = await sessions.join(notebook=NOTEBOOK), await sessions.open(embedded_host.location())
            await session.execute("x = 41")
            await asyncio.sleep(0.2)  # the time itself
            await own.execute("1")
            assert (await session.status())["kernel_id"] is None
            result = await session.execute("x")
            assert (result.value, result.kernel.state_lost, result.kernel.reused) == ("41", False, True)
            assert await person.value("x") == "41"

    async def test_leave_code_that_does_not_obey_its_interrupt_running(
        self, embedded_host: Embedded, sessions: AsyncSessions, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """S5."""
        monkeypatch.setattr(current_cell, "INTERRUPT_GRACE", 0.5)
        async with notebook(embedded_host) as person:
            session = await sessions.join(notebook=NOTEBOOK)
            assert (await session.execute("import time\ntime.sleep(600)", timeout=0.5)).status == "timeout"
            result = await session.execute(f"stop = False\n{STUBBORN.replace('True:', 'not stop:', 1)}", timeout=1)
            assert (result.status, result.kernel.ended, result.kernel.state_lost) == ("timeout", False, False)
            assert "not killed" in str(result.kernel.note)
            assert alive(int(person.status["pid"]))
            await session.execute("1", timeout=0.1)
            os.kill(int(person.status["pid"]), signal.SIGKILL)  # there is no other way to stop it

    async def test_interrupt_their_own_code_and_never_what_the_notebook_runs(
        self, embedded_host: Embedded, sessions: AsyncSessions
    ) -> None:
        """L7."""
        async with notebook(embedded_host) as person:
            session = await sessions.join(notebook=NOTEBOOK)
            cell = person.begin(f"print('begun', flush=True)\n{UNTIL_GO}'the end'")
            await cell.until(lambda: cell.stdout)
            late = await session.execute("ran = 'late'", timeout=0.5, cell_id="late")
            again = asyncio.create_task(session.execute("ran = 'again'", cell_id="again"))
            await under_way(session)
            assert await session.interrupt()
            assert (late.status, (await again).status) == ("timeout", "interrupted")
            for result in (late, await again):
                assert "not run: it was taken back while another client's code ran" in str(result.kernel.note)
            embedded_host.write("go", "")
            await cell.done()
            assert cell.value == "'the end'"
            assert (await session.execute("'ran' in globals()")).value == "False"
            assert [(await session.cell(name)).status for name in ("late", "again")] == ["timeout", "interrupted"]
            record = replace(next(each for each in await session.cells() if each.cell_id == "late"), result=None)
            found = await io_thread.run(
                result_of(record, session._core.record, Path(), lambda _: False)
            )  # as the next process would
            assert (found.status, "was not run" in str(found.kernel.note)) == ("interrupted", True)
            cell = person.begin("print('begun', flush=True)\nimport time\ntime.sleep(1)")
            await cell.until(lambda: cell.stdout)
            result = await session.execute("time.sleep(3.5)\n6 * 7", timeout=4)
            assert (result.status, result.value) == ("ok", "42"), "the time behind the notebook's is not the code's own"

    async def test_run_also_when_code_of_the_notebook_fails_before(
        self, embedded_host: Embedded, sessions: AsyncSessions
    ) -> None:
        """A kernel throws away what waits behind code that fails; the agent's was not the notebook's."""
        async with notebook(embedded_host) as person:
            session = await sessions.join(notebook=NOTEBOOK)
            cell = person.begin("print('begun', flush=True)\nimport time\ntime.sleep(1)\n1 / 0")
            await cell.until(lambda: cell.stdout)
            result = await session.execute("print('ran')\n6 * 7")
            assert (result.status, result.value, result.stdout) == ("ok", "42", "ran\n")
            await cell.done()
            assert cell.status == "error"

    async def test_tell_a_restart_and_a_death_and_go_on(
        self, embedded_host: Embedded, sessions: AsyncSessions, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """S4: the kernel's owner starts it anew, and not the session."""
        async with notebook(embedded_host) as person:
            session = await sessions.join(notebook=NOTEBOOK)
            await session.execute("x = 41")
            await person.manager.restart_kernel()
            result = await session.execute("'x' in globals()")
            assert (result.value, result.kernel.state_lost, result.kernel.reused) == ("False", True, False)
            assert "restarted" in str(result.kernel.note)
            assert result.stderr == ""
            assert (await session.execute("1")).kernel.state_lost is False

            lost = await session.execute("import os\nos._exit(3)")
            assert (lost.status, lost.kernel.ended, lost.kernel.state_lost) == ("lost", True, True)
            assert "exit status 3" in str(lost.kernel.note)
            waiting = asyncio.create_task(session.execute("6 * 7"))
            await person.manager.restart_kernel(now=True)
            result = await waiting
            assert (result.value, result.kernel.state_lost) == ("42", False)  # that was told
            assert result.kernel.reused is False
            assert (await session.execute("1")).kernel.reused

            monkeypatch.setattr(joined_kernel, "RESTART_PATIENCE", 0.5)
            await person.close()
            await person.manager.shutdown_kernel()
            with pytest.raises(KernelGoneError, match="nothing was run"):
                await session.execute("1")
            async with notebook(embedded_host) as again:
                await again.run("x = 42")
                result = await session.execute("x")
                assert (result.value, result.kernel.state_lost) == ("42", True)

    async def test_go_on_where_code_that_was_left_running_went_with_a_restart(
        self, embedded_host: Embedded, sessions: AsyncSessions
    ) -> None:
        """S4, L3: its owner restarts the kernel before the next process comes."""
        async with notebook(embedded_host) as person:
            first = AsyncSessions()
            session = await first.join(notebook=NOTEBOOK)
            call = asyncio.create_task(session.execute("x = 41\nimport time\ntime.sleep(600)", cell_id="k"))
            await under_way(session)
            await first.leave()
            await asyncio.gather(call, return_exceptions=True)
            await person.manager.restart_kernel(now=True)
            again = await sessions.resume(session.id)
            result = await again.execute("'x' in globals()", timeout=60)
            assert (result.value, result.kernel.state_lost) == ("False", True)
            assert (await again.status())["execution_state"] == "idle"
            assert (await again.cell("k")).status == "lost"

    async def test_are_resumed_by_another_process(self, embedded_host: Embedded, sessions: AsyncSessions) -> None:
        """L3: and what became of the kernel meanwhile is told."""
        async with notebook(embedded_host) as person:
            first = AsyncSessions()
            session = await first.join(notebook=NOTEBOOK)
            await session.execute("x = 41", cell_id="one")
            await first.leave()
            again = await sessions.resume(session.id)
            result = await again.execute("x")
            assert (result.value, result.kernel.state_lost) == ("41", False)
            assert (await again.cell("one")).status == "ok"
            await again.close()
            assert await person.value("x") == "41"

            second = AsyncSessions()
            session = await second.join(notebook=NOTEBOOK)
            await session.execute("x = 41")
            await second.leave()
            await person.manager.restart_kernel()
            result = await (await sessions.resume(session.id)).execute("'x' in globals()")
            assert (result.value, result.kernel.state_lost) == ("False", True)

    async def test_find_the_kernels_of_other_machines_on_their_hosts(
        self, remote_host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """L8: no record is here; a kernelspec for the host makes it one that is asked."""
        async with notebook(remote_host) as person:
            await person.run("x = 41")
            (record,) = KernelRecords().all()
            monkeypatch.setenv("ALBEDO_HOME", str(tmp_path / "elsewhere"))
            async with AsyncSessions() as sessions:
                for session in (await sessions.join(record.kernel_id[:6]), await sessions.join(notebook=NOTEBOOK)):
                    result = await session.execute("x")
                    assert (result.value, result.kernel.location) == ("41", remote_host.location())
                with pytest.raises(AlbedoError, match="ffff"):
                    await sessions.join("ffff")
                with pytest.raises(ConfigError):
                    await sessions.join()
            assert KernelRecords().all() == []
            assert await person.value("x") == "41"


class TestNotebooksThatJoin:
    def test_open_a_sessions_kernel_in_a_jupyter_server_and_leave_it_to_the_session(
        self, server: NotebookServer, any_host: Host
    ) -> None:
        """L8."""
        with Sessions() as sessions:
            session = sessions.open(any_host.location(), "agent")
            session.execute("x = 41")
            kernel_id = str(session.status()["kernel_id"])
            assert "running" in albedo("add", "--join", kernel_id[:8])
            name = f"albedo-join-{kernel_id[:8]}"

            answer = server.start(name)
            assert answer.status == 201, answer
            jupyter_id = answer.content["kernel"]["id"]
            channels = server.open(jupyter_id)
            cell = channels.begin("print(x)\ny = 42")
            assert channels.finish(cell)["status"] == "ok"
            assert channels.text(cell) == "41\n"
            assert "stays when the notebook is closed" in channels.text(cell, "stderr")
            result = session.execute("print('from the agent')\ny")
            assert (result.value, result.kernel.reused) == ("42", True)
            channels.until(lambda: "from the agent" in str([m["content"].get("text") for m in channels.messages]))

            assert server.ask("POST", f"api/kernels/{jupyter_id}/restart").status == 500
            cell = channels.begin("print(x)")
            assert channels.finish(cell)["status"] == "ok"
            assert channels.text(cell) == "41\n"
            assert "not restarted from here" in channels.text(cell, "stderr")
            cell = channels.begin("print('begun', flush=True)\nimport time\ntime.sleep(600)")
            channels.until(lambda: channels.text(cell))
            assert server.ask("POST", f"api/kernels/{jupyter_id}/interrupt").status == 204
            assert channels.finish(cell)["ename"] == "KeyboardInterrupt"
            channels.close()
            assert server.ask("DELETE", f"api/sessions/{answer.content['id']}").status == 204
            result = session.execute("x")
            assert (result.value, result.kernel.state_lost) == ("41", False)

            assert server.start(name, "b.ipynb").status == 201  # and again; the server ends with it open
            server.stop()
            result = session.execute("x")
            assert (result.value, result.kernel.state_lost) == ("41", False)
            session.close()
            assert "No kernel" in albedo("add", "--join", kernel_id, status=1)
            albedo("remove", name)

    async def test_with_jupyter_client_the_session_goes_on_under_its_own_cell(
        self, embedded_host: Embedded, sessions: AsyncSessions
    ) -> None:
        """L8: closing the notebook interrupts nothing of the session's."""
        session = await sessions.open(embedded_host.location())
        await session.execute("x = 41")
        kernel_id = (await session.status())["kernel_id"]
        name = add_kernelspec(embedded_host.location(), {"join": kernel_id})
        async with started_by_name(name) as person:
            assert await person.value("x") == "41"
            begun, loop = asyncio.Event(), asyncio.get_running_loop()
            code = (
                "print('begun', flush=True)\nimport os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nx + 1"
            )
            call = session.execute(code, on_output=lambda _: loop.call_soon_threadsafe(begun.set))
            running = asyncio.create_task(call)
            await begun.wait()
        embedded_host.write("go", "")
        result = await running
        assert (result.status, result.value) == ("ok", "42")
        await session.close()
        with pytest.raises(KernelGoneError):
            await AsyncKernelManager(kernel_name=name).start_kernel()

    async def test_are_told_when_the_session_ends_its_kernel(
        self, embedded_host: Embedded, sessions: AsyncSessions
    ) -> None:
        session = await sessions.open(embedded_host.location())
        await session.execute("x = 41")
        name = add_kernelspec(embedded_host.location(), {"join": (await session.status())["kernel_id"]})
        async with started_by_name(name) as person:
            cell = person.begin("print('begun', flush=True)\nimport time\ntime.sleep(600)")
            await cell.until(lambda: cell.stdout)
            # The person's code runs, so the agent's call is neither run nor a reason to kill the kernel.
            began = time.monotonic()
            result = await session.execute("1", timeout=0.5)
            assert result.status == "timeout"
            assert time.monotonic() - began < 4
            assert alive(int(person.status["pid"]))
            await session.reset()
            await cell.done()
            assert cell.reply is not None
            assert "ended by a client" in cell.reply["evalue"]
            assert not await person.manager.is_alive()
