"""Sessions: kernels that an agent can trust, through `Sessions` and `AsyncSessions`."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest
from faces import Embedded, Host, Real
from kernels import eventually, kernel_pid
from procs import wait_until

from albedo_provisioner import AsyncSessions, Location, Result, Sessions
from albedo_provisioner.errors import (
    AlbedoError,
    FolderError,
    LocationError,
    SignInError,
    UnreachableError,
)
from albedo_provisioner.kernels import retries
from albedo_provisioner.sessions import current_cell, patience


class TestState:
    def test_a_second_call_reuses_the_kernel_of_the_first(self, any_host: Host, sessions: Sessions) -> None:
        """S1."""
        session = sessions.open(any_host.location())
        first, second = session.execute("x = 41"), session.execute("x")
        assert (first.kernel.reused, second.kernel.reused) == (False, True)
        assert (first.execution_count, second.execution_count) == (1, 2)
        assert (second.value, second.kernel.state_lost) == ("41", False)
        assert sessions.open(any_host.location()).id == session.id

    def test_a_reset_is_said_and_is_no_loss(self, embedded_host: Embedded, sessions: Sessions) -> None:
        """S3."""
        session = sessions.open(embedded_host.location())
        session.execute("x = 41")
        pid = kernel_pid(session)
        result = session.execute("'x' in globals()", reset=True)
        assert result.value == "False"
        assert (result.kernel.reused, result.kernel.state_reset, result.kernel.state_lost) == (False, True, False)
        assert kernel_pid(session) != pid
        session.reset()
        assert session.execute("1").kernel.reused is False

    def test_a_kernel_that_died_between_two_calls_is_told_with_its_cause(
        self, any_host: Host, sessions: Sessions
    ) -> None:
        """S4."""
        session = sessions.open(any_host.location())
        session.execute("x = 41")
        os.kill(kernel_pid(session), signal.SIGKILL)
        result = session.execute("'x' in globals()")
        assert (result.status, result.value) == ("ok", "False")
        assert (result.kernel.reused, result.kernel.state_lost) == (False, True)
        assert "lost" in str(result.kernel.note)
        assert "SIGKILL" in str(result.kernel.note)
        again = session.execute("1")
        assert (again.kernel.state_lost, again.kernel.note) == (False, None)

    def test_a_kernel_that_dies_under_a_call_is_told_and_the_next_one_starts_afresh(
        self, embedded_host: Embedded, sessions: Sessions
    ) -> None:
        session = sessions.open(embedded_host.location())
        session.execute("x = 41")
        # It takes ipykernel a moment to send what was printed; what it has not sent dies with it.
        result = session.execute("print('so far', flush=True)\nimport os, time\ntime.sleep(1)\nos._exit(3)")
        assert result.status == "lost"
        assert "so far" in result.stdout
        assert (result.kernel.ended, result.kernel.state_lost) == (True, True)
        assert "exit status 3" in str(result.kernel.note)
        again = session.execute("'x' in globals()")
        assert (again.value, again.kernel.reused, again.kernel.state_lost) == ("False", False, False)

    def test_a_broken_link_is_neither_a_loss_nor_news(self, remote_host: Host, sessions: Sessions) -> None:
        session = sessions.open(remote_host.location())
        session.execute("x = 41")
        threading.Timer(0.5, remote_host.cut).start()
        result = session.execute("import time\nfor i in range(20):\n    print(i, flush=True)\n    time.sleep(0.1)\nx")
        assert result.stdout == "".join(f"{i}\n" for i in range(20))
        assert (result.status, result.value) == ("ok", "41")
        assert (result.kernel.reused, result.kernel.state_lost, result.kernel.note) == (True, False, None)

    def test_a_call_made_while_the_host_is_away_runs_once_when_it_is_back(
        self, remote_host: Host, sessions: Sessions
    ) -> None:
        session = sessions.open(remote_host.location())
        session.execute("ran = []")
        remote_host.down()
        wait_until(lambda: session.status()["link"] == "reattaching", what="the link is away")
        assert "refused" in wait_until(lambda: session.status()["away"]) or session.status()["away"]
        results: list[Result] = []
        thread = threading.Thread(target=lambda: results.append(session.execute("ran.append(1)\nran")))
        thread.start()
        wait_until(lambda: session.status()["execution_state"] == "busy")
        remote_host.up()  # from here: a real server ends with the thread that started it
        thread.join()
        result = results[0]
        assert (result.value, result.kernel.reused, result.kernel.state_lost) == ("[1]", True, False)

    def test_a_kernel_that_died_while_the_host_was_away_is_a_loss_and_the_call_runs_once(
        self, embedded_host: Embedded, sessions: Sessions, tmp_path: Path
    ) -> None:
        """S4."""
        session = sessions.open(embedded_host.location())
        session.execute("x = 41")
        pid = kernel_pid(session)
        embedded_host.down()
        wait_until(lambda: session.status()["link"] == "reattaching", what="the link is away")
        os.kill(pid, signal.SIGKILL)
        threading.Timer(1.0, embedded_host.up).start()
        result = session.execute(f"print('run', file=open({str(tmp_path / 'ran')!r}, 'a'))\n'x' in globals()")
        assert (result.status, result.value) == ("ok", "False")
        assert (result.kernel.reused, result.kernel.state_lost) == (False, True)
        assert (tmp_path / "ran").read_text() == "run\n"

    def test_what_threads_of_earlier_cells_print_is_told_later(
        self, embedded_host: Embedded, sessions: Sessions
    ) -> None:
        session = sessions.open(embedded_host.location())
        session.execute("import threading\nthreading.Timer(0.5, lambda: print('from the past', flush=True)).start()")
        time.sleep(1)  # the thread's own time
        result = session.execute("1")
        assert result.stdout == ""
        assert "from the past" in str(result.kernel.note)


class TestTimeouts:
    def test_code_that_obeys_the_interrupt_keeps_its_state(self, any_host: Host, sessions: Sessions) -> None:
        """S5."""
        session = sessions.open(any_host.location())
        session.execute("x = 41")
        result = session.execute("print('begun', flush=True)\nimport time\ntime.sleep(600)", timeout=1)
        assert (result.status, result.stdout) == ("timeout", "begun\n")
        assert "kept" in str(result.kernel.note)
        assert (result.kernel.ended, result.kernel.state_lost) == (False, False)
        assert session.execute("x").value == "41"

    def test_code_that_obeys_behind_a_flood_of_its_output_keeps_its_state(
        self, embedded_host: Embedded, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """S5: that it has obeyed is heard behind all that it had said before."""
        monkeypatch.setattr(current_cell, "INTERRUPT_GRACE", 0.05)
        session = sessions.open(embedded_host.location())
        session.execute("x = 41")
        code = "try:\n    while True:\n        print('q' * 100_000)\nexcept KeyboardInterrupt:\n    x += 1"
        result = session.execute(code, timeout=1)
        assert (result.status, result.kernel.state_lost) == ("timeout", False)
        assert "kept" in str(result.kernel.note)
        assert session.execute("x").value == "42"

    def test_code_that_does_not_obey_costs_the_kernel(
        self, any_host: Host, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """S5."""
        monkeypatch.setattr(current_cell, "INTERRUPT_GRACE", 1.0)
        session = sessions.open(any_host.location())
        session.execute("x = 41")
        pid = kernel_pid(session)
        code = (
            "import time\nwhile True:\n    try:\n        time.sleep(600)\n    except KeyboardInterrupt:\n        pass"
        )
        result = session.execute(code, timeout=1)
        assert result.status == "timeout"
        assert (result.kernel.ended, result.kernel.state_lost) == (True, True)
        assert "killed" in str(result.kernel.note)
        wait_until(lambda: not any(process.pid == pid for process in any_host.processes()), what="the kernel is gone")
        again = session.execute("'x' in globals()")
        assert (again.value, again.kernel.reused, again.kernel.state_lost) == ("False", False, False)

    def test_at_a_host_that_is_away_cost_nothing(self, embedded_host: Embedded, sessions: Sessions) -> None:
        session = sessions.open(embedded_host.location())
        session.execute("x = 41")
        embedded_host.down()
        wait_until(lambda: session.status()["link"] == "reattaching", what="the link is away")
        result = session.execute("import time\ntime.sleep(600)", timeout=1)
        assert result.status == "timeout"
        assert "out of reach" in str(result.kernel.note)
        assert (result.kernel.ended, result.kernel.state_lost) == (False, False)
        embedded_host.up()
        again = session.execute("x")
        assert (again.value, again.kernel.reused) == ("41", True)

    def test_an_interrupt_from_elsewhere_is_told(self, any_host: Host, sessions: Sessions) -> None:
        session = sessions.open(any_host.location())
        session.execute("x = 41")
        assert session.interrupt() is False

        begun = threading.Event()

        def interrupt() -> None:
            begun.wait()
            assert session.status()["execution_state"] == "busy"
            assert session.interrupt() is True

        thread = threading.Thread(target=interrupt)
        thread.start()
        code = "print('begun', flush=True)\nimport time\ntime.sleep(600)"
        result = session.execute(code, on_output=lambda _: begun.set())
        thread.join()
        assert result.status == "interrupted"
        assert session.execute("x").value == "41"

    async def test_cancelling_the_caller_interrupts_the_code_and_keeps_the_state(
        self, embedded_host: Embedded, async_sessions: AsyncSessions
    ) -> None:
        session = await async_sessions.open(embedded_host.location())
        await session.execute("x = 41")
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()
        code = "print('begun', flush=True)\nimport time\ntime.sleep(600)"
        told = {"on_output": lambda _: loop.call_soon_threadsafe(begun.set)}
        call = asyncio.create_task(session.execute(code, cell_id="long", **told))
        await begun.wait()
        queued = asyncio.create_task(session.execute("1 / 0", cell_id="never"))
        await eventually(lambda: "never" in session._core._calls)
        queued.cancel()
        call.cancel()
        for task in (queued, call):
            with pytest.raises(asyncio.CancelledError):
                await task
        assert (await session.execute("x")).value == "41"
        assert (await session.cell("long")).status == "interrupted"
        with pytest.raises(KeyError):
            await session.cell("never")


class TestOwners:
    def test_never_share_and_are_closed_with_their_children(self, embedded_host: Embedded, sessions: Sessions) -> None:
        """S6."""
        location = embedded_host.location()
        ours = {owner: sessions.open(location, owner) for owner in ("a", "a::child-9", "ab", "b")}
        pids = {owner: (session.execute(f"x = {owner!r}"), kernel_pid(session))[1] for owner, session in ours.items()}
        assert len(set(pids.values())) == 4
        assert sessions.close_owner("a") == 2
        left = {process.pid for process in embedded_host.processes()}
        assert left.isdisjoint({pids["a"], pids["a::child-9"]})
        assert left >= {pids["ab"], pids["b"]}
        assert ours["b"].execute("x").value == "'b'"
        with pytest.raises(AlbedoError, match="closed"):
            ours["a"].execute("x")
        assert [each["owner"] for each in sessions.list()] == ["ab", "b"]

    def test_a_kernel_idle_for_too_long_ends_while_nobody_calls(self, embedded_host: Embedded) -> None:
        """S7."""
        with Sessions(idle_timeout=0.5) as sessions:
            old, child = (sessions.open(embedded_host.location(), owner) for owner in ("old", "new::child"))
            child.execute("x = 41")
            kept, pid = kernel_pid(child), int(str(old.execute("import os\nx = 41\nos.getpid()").value))
            wait_until(lambda: pid not in {process.pid for process in embedded_host.processes()}, 60)
            assert kept in {process.pid for process in embedded_host.processes()}
            result = old.execute("'x' in globals()")
            assert (result.value, result.kernel.state_lost) == ("False", True)
            assert "0.5 s" in str(result.kernel.note)

    def test_of_too_many_kernels_the_least_recently_used_goes_and_never_a_busy_one(
        self, embedded_host: Embedded, tmp_path: Path
    ) -> None:
        """S7."""
        until = f"import os, time\nwhile not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.05)\nx = 2"
        with Sessions(max_kernels=2) as sessions:
            busy, idle, new = (sessions.open(embedded_host.location(), owner) for owner in ("busy", "idle", "new"))
            busy.execute("x = 1")
            thread = threading.Thread(target=lambda: busy.execute(until))
            thread.start()
            wait_until(lambda: busy.status()["execution_state"] == "busy")
            idle.execute("x = 1")
            pid = kernel_pid(idle)
            new.execute("1")
            assert pid not in {process.pid for process in embedded_host.processes()}
            (tmp_path / "go").touch()
            thread.join()
            assert busy.execute("x").value == "2"

    def test_close_ends_the_kernel_with_all_that_it_started(self, any_host: Host) -> None:
        """K6."""
        with Sessions() as sessions:
            session = sessions.open(any_host.location())
            session.execute("import subprocess\np = subprocess.Popen(['sleep', '7777'], start_new_session=True)")
            session.close()
            assert not [process for process in any_host.processes() if "7777" in process.argv]
            assert sessions.list() == []
        with pytest.raises(AlbedoError, match="closed"):
            sessions.open(any_host.location())

    def test_moving_ends_the_kernel_in_the_old_place_with_all_that_it_started(
        self, embedded_host: Embedded, sshd_host: Real, sessions: Sessions
    ) -> None:
        """S11, K6."""
        session = sessions.open(embedded_host.location())
        session.execute("import subprocess\np = subprocess.Popen(['sleep', '7777'], start_new_session=True)\nx = 1")
        name = session.id
        with pytest.raises(FolderError):
            session.move(sshd_host.location("nowhere"))
        assert session.execute("x").value == "1"
        session.move(sshd_host.location())
        wait_until(lambda: not embedded_host.processes(), what="nothing is left in the old place")
        assert session.id == name
        result = session.execute("import os\nos.getcwd()")
        assert result.value == repr(str(sshd_host.home))
        assert (result.kernel.reused, result.kernel.state_reset, result.kernel.host) == (False, True, sshd_host.alias)
        assert "moved" in str(result.kernel.note)
        assert len(session.cells()) == 3


class TestHosts:
    def test_an_interpreter_that_is_not_there_can_be_put_right_by_opening_the_session_once_more(
        self, embedded_host: Embedded, sessions: Sessions
    ) -> None:
        session = sessions.open(embedded_host.location(), python="/no/such/python3")
        with pytest.raises(AlbedoError, match="/no/such/python3"):
            session.execute("1")
        again = sessions.open(embedded_host.location(), python=str(embedded_host.python), env={"WHAT": "ever"})
        assert again.id == session.id
        assert again.execute("import os; os.environ['WHAT']").value == "'ever'"

    def test_that_cannot_be_used_say_why(self, embedded_host: Embedded, sessions: Sessions) -> None:
        with pytest.raises(FolderError, match="nowhere"):
            sessions.open(embedded_host.location("nowhere")).execute("1")
        session = sessions.open(embedded_host.location())
        embedded_host.down()
        with pytest.raises(UnreachableError, match="refused"):
            session.execute("1")
        embedded_host.up()
        assert session.execute("1").kernel.state_lost is False

    def test_that_want_a_sign_in_are_waited_for(
        self, embedded_host: Embedded, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """S10."""
        monkeypatch.setattr(retries, "_SIGN_IN_PAUSE", 0.5)
        embedded_host.server.behave(refuse_auth=True)
        session = sessions.open(embedded_host.location())
        with pytest.raises(SignInError):
            session.execute("1", wait_for_sign_in=False)
        results = []
        thread = threading.Thread(target=lambda: results.append(session.execute("6 * 7")))
        thread.start()
        status = wait_until(lambda: session.status() if session.status()["away"] else None)
        assert status is not None
        assert "Permission denied" in status["away"]
        assert str(embedded_host.alias) in status["advice"]
        embedded_host.server.behave(refuse_auth=False)
        thread.join(30)
        assert results[0].value == "42"
        status = session.status()
        assert (status["away"], status["responsive"]) == (None, True)
        # The same while a kernel is there.
        embedded_host.server.behave(refuse_auth=True)
        embedded_host.cut()
        wait_until(lambda: session.status()["away"], what="the link is away")
        with pytest.raises(SignInError, match="Permission denied"):
            session.execute("print('not run')", wait_for_sign_in=False)
        status = session.status()
        assert "Permission denied" in status["away"]
        assert str(embedded_host.alias) in status["advice"]
        thread = threading.Thread(target=lambda: results.append(session.execute("x = 1\n6 * 8")))
        thread.start()
        wait_until(lambda: session.status()["execution_state"] == "busy")
        embedded_host.server.behave(refuse_auth=False)
        thread.join(30)
        assert (results[1].value, results[1].execution_count, results[1].kernel.reused) == ("48", 2, True)
        status = session.status()
        assert (status["away"], status["advice"]) == (None, None)

    def test_that_cannot_be_used_are_waited_for_as_long_as_the_call_may_take(
        self, embedded_host: Embedded, sessions: Sessions
    ) -> None:
        """S10: also by a call that stands behind one which waits."""
        embedded_host.server.behave(refuse_auth=True)
        session = sessions.open(embedded_host.location())

        def times_out(words: str) -> None:
            result = session.execute("print('not run')", timeout=1)
            assert (result.status, result.stdout, result.kernel.ended) == ("timeout", "", True)
            assert re.search(f"the code was not run: {words}", str(result.kernel.note))

        times_out(f"waiting for a sign-in at {embedded_host.alias}: .*Permission denied.*authorized_keys")
        results = []
        thread = threading.Thread(target=lambda: results.append(session.execute("6 * 7")))
        thread.start()
        wait_until(lambda: session.status()["advice"])
        with pytest.raises(SignInError, match="Permission denied"):
            session.execute("1", wait_for_sign_in=False)
        times_out(f"waiting for a sign-in at {embedded_host.alias}")
        assert thread.is_alive()
        embedded_host.server.behave(refuse_auth=False)
        thread.join(30)
        assert results[0].value == "42"
        assert [cell.code for cell in session.cells()].count("print('not run')") == 2

    def test_that_accept_and_say_nothing_are_waited_for_a_few_seconds_longer(
        self, embedded_host: Embedded, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(patience, "CONTACT_GRACE", 0.5)
        embedded_host.server.behave(hold_new=True)
        began = time.monotonic()
        result = sessions.open(embedded_host.location()).execute("1", timeout=0.5)
        assert time.monotonic() - began < 10
        assert result.status == "timeout"
        assert "has not let us in yet" in str(result.kernel.note)

    @pytest.mark.parametrize("location", ["-oProxyCommand=id:/tmp", "relative", ""])
    def test_that_are_none_are_refused(self, sessions: Sessions, location: str) -> None:
        with pytest.raises(LocationError):
            sessions.open(location)

    def test_may_be_relative_folders_of_this_machine(
        self, sessions: Sessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "rel" / "dir").mkdir(parents=True)
        monkeypatch.chdir(tmp_path)
        session = sessions.open("./rel")
        assert session.location == Location(None, f"{tmp_path}/rel")
        assert sessions.open("rel/").id == sessions.open(f"{tmp_path}/rel").id == session.id
        assert sessions.open(".").location == Location(None, str(tmp_path))
        session.links.add("rel/dir")
        session.links.add(".")
        assert {str(each.location) for each in session.links.list()} == {str(tmp_path), f"{tmp_path}/rel/dir"}
        session.links.remove("./rel/dir")
        assert [str(each.location) for each in session.links.list()] == [str(tmp_path)]
        with pytest.raises(LocationError, match=r"for the folder here write \./rel,"):
            sessions.open("rel")


async def test_many_sessions_and_calls_at_once_do_not_mix(embedded_host: Embedded, sshd_host: Real) -> None:
    async with AsyncSessions(max_kernels=64) as sessions:

        async def work(number: int) -> None:
            host = (embedded_host, sshd_host)[number % 2]
            session = await sessions.open(host.location(), f"owner-{number}")
            results = await asyncio.gather(*(session.execute(f"n = {number}\nprint({i})\nn + {i}") for i in range(5)))
            for i, result in enumerate(results):
                assert (result.status, result.stdout, result.value) == ("ok", f"{i}\n", str(number + i))
            assert sorted(result.execution_count or 0 for result in results) == [1, 2, 3, 4, 5]

        await asyncio.gather(*(work(number) for number in range(10)))
        assert len(await sessions.list()) == 10
    await eventually(lambda: not embedded_host.processes())
