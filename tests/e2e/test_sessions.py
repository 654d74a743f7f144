"""Sessions: kernels that an agent can trust, through `Sessions` and `AsyncSessions`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from faces import Embedded, Host, Real, keeper_of
from kernels import eventually
from procs import send, wait_until

from albedo_provisioner import AsyncSessions, Location, Result, Session, Sessions
from albedo_provisioner.errors import (
    AlbedoError,
    ConfigError,
    FolderError,
    LocationError,
    SignInError,
    UnreachableError,
)
from albedo_provisioner.kernels import retries
from albedo_provisioner.kernels.records import KernelRecords, this_process
from albedo_provisioner.sessions import current_cell, patience
from albedo_provisioner.sessions.outputs import Limits


@pytest.fixture
async def async_sessions() -> AsyncIterator[AsyncSessions]:
    async with AsyncSessions() as made:
        yield made


def kernel_pid(session: Session) -> int:
    """Return the pid of a session's kernel, which is this machine's as well in all these tests."""
    return int(session.status()["process"]["pid"])


CODE = "import sys\nprint('a', flush=True)\nprint('b', file=sys.stderr, flush=True)\nprint('c')\nx = 41\nx + 1"


class TestResults:
    def test_have_all_that_came_of_the_code(self, any_host: Host, sessions: Sessions) -> None:
        session = sessions.open(any_host.location())
        result = session.execute(CODE)
        assert (result.status, result.ok, result.value) == ("ok", True, "42")
        assert (result.stdout, result.stderr, result.error) == ("a\nc\n", "b\n", None)
        assert [output.get("text") for output in result.outputs[:3]] == ["a\n", "b\n", "c\n"]
        assert result.outputs[3] == {
            "output_type": "execute_result",
            "data": {"text/plain": "42"},
            "metadata": {},
            "execution_count": 1,
        }
        report = result.kernel
        assert (report.remote, report.host) == (any_host.remote, any_host.alias or "this machine")
        assert report.location == any_host.location()
        assert (report.execution_count, report.note, report.ended) == (1, None, False)
        assert 0 < result.duration < 30
        content = json.loads(json.dumps(result.to_dict()))
        assert content["value"] == "42"
        assert content["kernel"]["execution_count"] == 1

    def test_tell_an_error_without_a_terminals_colours(self, embedded_host: Embedded, sessions: Sessions) -> None:
        result = sessions.open(embedded_host.location()).execute("print('before')\n1 / 0\nprint('after')")
        assert (result.status, result.error, result.stdout) == (
            "error",
            "ZeroDivisionError: division by zero",
            "before\n",
        )
        assert "ZeroDivisionError" in str(result.traceback)
        assert "\x1b" not in str(result.traceback)
        assert "\x1b" in str(result.traceback_colored)
        assert result.outputs[-1]["ename"] == "ZeroDivisionError"

    def test_have_displays_and_their_updates(self, embedded_host: Embedded, sessions: Sessions) -> None:
        code = (
            "from IPython.display import HTML, display, clear_output\n"
            "display(HTML('gone'))\nclear_output()\n"
            "handle = display(HTML('<b>1</b>'), display_id=True)\nhandle.update(HTML('<b>2</b>'))"
        )
        result = sessions.open(embedded_host.location()).execute(code)
        (output,) = result.outputs
        assert output["data"]["text/html"] == "<b>2</b>"
        assert set(output) == {"output_type", "data", "metadata"}

    def test_are_cut_in_the_middle_and_the_whole_can_be_had(self, embedded_host: Embedded, sessions: Sessions) -> None:
        """S9."""
        session = sessions.open(embedded_host.location())
        code = "import sys\nfor i in range(20000): print(i)\nprint('e' * 3000, file=sys.stderr)"
        result = session.execute(code, limits=Limits(stdout=1000, stderr=100))
        assert result.stdout.startswith("0\n1\n2\n")
        assert result.stdout.endswith("19998\n19999\n")
        assert "characters cut" in result.stdout
        assert len(result.stdout) < 1100
        assert (result.stdout_clipped, result.stderr_clipped) == (True, True)
        assert result.full_stdout() == "".join(f"{i}\n" for i in range(20000))
        assert result.full_stderr() == "e" * 3000 + "\n"
        assert sum(len(str(output.get("text"))) for output in result.outputs) < 1600
        whole = Path(os.environ["ALBEDO_HOME"]) / "outputs" / f"{result.cell_id}.stdout"
        assert whole.stat().st_mode & 0o777 == 0o600
        assert session.execute("1").full_stdout() == ""

    def test_are_within_their_limits_whatever_they_are(self, embedded_host: Embedded, sessions: Sessions) -> None:
        """S9: values, errors, displays, what a pager would show."""
        session = sessions.open(embedded_host.location())
        few = Limits(stdout=100, stderr=100, displays=1000)
        short = session.execute("'v'*800", limits=few)
        assert (short.value, short.value_clipped, short.kernel.note) == (repr("v" * 800), False, None)
        long = session.execute("'v'*3000", cell_id="long", limits=few)
        for result in (long, session.cell("long")):
            assert str(result.value).startswith("'vvv")
            assert "\n[… 2002 characters cut …]\n" in str(result.value)
            assert str(result.value).endswith("vvv'")
            assert (len(str(result.value)) < 1100, result.value_clipped) == (True, True)
            assert result.full_value() == repr("v" * 3000)
            assert "value has 3,002 characters and is cut in its middle; full_value() has all" in str(
                result.kernel.note
            )
            assert [each["text"][:40] for each in result.outputs] == ["[… left out here: an output of 3,002 byt"]
        usual = session.execute("'z' * 3_000_000", cell_id="usual")
        assert usual.full_value() == repr("z" * 3_000_000)
        for result in (usual, session.cell("usual")):
            assert (result.value_clipped, len(str(result.value)) < 201_000) == (True, True)
            assert result.outputs[0]["data"]["text/plain"] == result.value
        failed = session.execute("raise ValueError('m'*3000000 + '!')", limits=few)
        assert len(failed.to_json()) < 10_000
        assert failed.status == "error"
        assert str(failed.error).startswith("ValueError: mmm")
        assert str(failed.traceback).endswith("mmm!")
        assert (failed.error_clipped, failed.traceback_clipped) == (True, True)
        assert failed.full_error() == f"ValueError: {'m' * 3000000}!"
        assert f"ValueError: {'m' * 3000000}!" in str(failed.full_traceback())
        assert "error has 3,000,013 characters" in str(failed.kernel.note)
        (error,) = failed.outputs
        assert (error["output_type"], error["ename"]) == ("error", "ValueError")
        shows = (
            "from IPython.display import display\nhandle = display('small', display_id=True)\nhandle.update('u'*2000)\n"
            "display({'text/plain': 'a'}, raw=True, metadata={'m': 'm' * 2000})\n"
            "for i in range(2000): display({'text/plain': 'i' * (i + 1000)}, raw=True)"
        )
        shown = session.execute(shows, limits=few)
        assert len(shown.to_json()) < 3000
        assert "2,002 outputs of " in str(shown.kernel.note)
        code = "import sys\nfor i in range(2000): print('o' * 200, file=(sys.stdout, sys.stderr)[i % 2], flush=True)"
        in_turns = session.execute(code, limits=few)
        assert (len(in_turns.to_json()) < 3000, len(in_turns.outputs) > 1) == (True, True)
        came: list[object] = []
        paged = session.execute("len?", on_output=came.append)
        (page,) = paged.outputs
        assert (page["output_type"], came) == ("display_data", [page])
        assert "Return the number of items" in page["data"]["text/plain"]
        assert (paged.status, paged.value, paged.execution_count) == ("ok", None, 7)
        (page,) = session.execute("len??", limits=Limits(displays=10)).outputs
        assert "left out here" in page["text"]

    def test_of_a_failure_that_the_kernel_cannot_send_are_not_empty(
        self, embedded_host: Embedded, sessions: Sessions
    ) -> None:
        session = sessions.open(embedded_host.location())
        code = (
            "session = get_ipython().kernel.session\nsend = session.send\n"
            "def refuse(stream, kind, *content, **more):\n    if kind == 'error': '\\ud800'.encode()\n"
            "    return send(stream, kind, *content, **more)\n"
            "session.send = refuse\nraise ValueError"
        )
        result = session.execute(code, cell_id="odd")
        for found in (result, session.cell("odd")):
            assert (found.status, found.stdout) == ("error", "")
            assert "surrogates not allowed" in str(found.error)
            assert found.outputs[-1]["output_type"] == "error"
            assert "the kernel did not send its error" in str(found.kernel.note)
        assert session.execute("1").value == "1"

    def test_of_a_hundred_megabytes_take_no_more_memory_than_their_limits(
        self, embedded_host: Embedded, sessions: Sessions
    ) -> None:
        """S9."""
        session = sessions.open(embedded_host.location())
        result = session.execute("line = 'x' * 999\nfor _ in range(100_000): print(line)", limits=Limits(stdout=10_000))
        assert result.status == "ok"
        assert len(result.to_dict()["stdout"]) < 11_000
        assert len(json.dumps(result.to_dict())) < 100_000
        assert len(result.full_stdout()) == 100_000_000

    def test_come_piece_by_piece_while_the_code_runs(self, embedded_host: Embedded, sessions: Sessions) -> None:
        session = sessions.open(embedded_host.location())
        came: list[object] = []
        code = "import time\nprint('a', flush=True)\ntime.sleep(1)\nprint('b', flush=True)\n7"
        for output in session.stream(code):
            came.append((time.monotonic(), output))
        assert [getattr(each, "status", None) or each.get("text") or each["data"] for _, each in came] == [  # type: ignore[misc]
            "a\n",
            "b\n",
            {"text/plain": "7"},
            "ok",
        ]
        assert came[1][0] - came[0][0] > 0.5  # type: ignore[index]

    async def test_come_piece_by_piece_to_a_program_with_a_loop(
        self, embedded_host: Embedded, async_sessions: AsyncSessions
    ) -> None:
        session = await async_sessions.open(embedded_host.location())
        came = [each async for each in session.stream("print('a')\n7")]
        assert [type(each).__name__ for each in came] == ["dict", "dict", "Result"]
        with pytest.raises(ConfigError):
            async for _ in session.stream("1", timeout=0):
                pass


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


PROGRAM = """
import sys
from albedo_provisioner import Sessions
sessions = Sessions()
session = sessions.open(sys.argv[1], "agent")
session.execute("x = 41")
print(session.id, session.status()["process"]["pid"], flush=True)
session.execute("print('BEGUN', flush=True)\\nimport time\\nfor i in range(30):\\n    print(i, flush=True)\\n"
                "    time.sleep(0.1)\\nx + 1", cell_id="turn-7", on_output=lambda o: print("begun", flush=True))
"""


@pytest.fixture
def killed(any_host: Host) -> tuple[str, int]:
    """Run a program that is killed in the middle of a call; return its session's id and its kernel's pid."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, any_host.location()], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        session_id, pid = process.stdout.readline().split()
        assert process.stdout.readline() == "begun\n"
        process.kill()
    return session_id, int(pid)


class TestSurvival:
    def test_another_process_goes_on_with_the_session_and_its_running_cell(
        self, any_host: Host, killed: tuple[str, int], sessions: Sessions
    ) -> None:
        """L3."""
        (listed,) = sessions.list()
        assert (listed["session_id"], listed["owner"], listed["open"]) == (killed[0], "agent", "nowhere")
        session = sessions.resume(killed[0])
        result = session.cell("turn-7")
        assert (result.status, result.value) == ("ok", "42")
        assert result.stdout == "BEGUN\n" + "".join(f"{i}\n" for i in range(30))
        again = session.execute("this would not even be Python", cell_id="turn-7")
        assert (again.status, again.value, again.outputs) == (result.status, result.value, result.outputs)
        assert "other code" in str(again.kernel.note)
        later = session.execute("x")
        assert (later.value, later.kernel.reused, later.kernel.state_lost) == ("41", True, False)
        assert kernel_pid(session) == killed[1]
        assert next(cell.code for cell in session.cells()) == "x = 41"

    def test_also_while_the_host_cannot_be_reached_at_first(
        self, any_host: Host, killed: tuple[str, int], sessions: Sessions
    ) -> None:
        """L4."""
        if not any_host.remote:
            any_host.clear()
            pytest.skip("this machine is always within reach")
        any_host.down()
        session = sessions.resume(killed[0])
        with pytest.raises(AlbedoError, match="refused"):
            session.cell("turn-7")
        threading.Timer(2.0, any_host.up).start()
        any_host.up()
        assert session.cell("turn-7").value == "42"
        assert session.execute("x").value == "41"

    def test_a_kernel_that_is_gone_meanwhile_is_told(
        self, any_host: Host, killed: tuple[str, int], sessions: Sessions
    ) -> None:
        any_host.clear()
        session = sessions.resume(killed[0])
        result = session.cell("turn-7")
        assert result.status == "lost"
        assert "gone" in str(result.kernel.note)
        later = session.execute("'x' in globals()")
        assert (later.value, later.kernel.reused, later.kernel.state_lost) == ("False", False, True)

    def test_a_running_cell_whose_keeper_was_killed_too_is_not_said_never_to_have_run(
        self, any_host: Host, killed: tuple[str, int], sessions: Sessions
    ) -> None:
        send(keeper_of(any_host), signal.SIGKILL)
        session = sessions.resume(killed[0])
        result = session.cell("turn-7")
        assert (result.status, result.kernel.state_lost) == ("lost", False)
        assert "may have run" in str(result.kernel.note)
        assert session.execute("x").value == "41"

    def test_a_session_that_is_open_elsewhere_is_not_taken(self, embedded_host: Embedded, sessions: Sessions) -> None:
        code = (
            "import sys\nfrom albedo_provisioner import Sessions\n"
            "print(Sessions().open(sys.argv[1]).id, flush=True)\ninput()"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code, embedded_host.location()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            session_id = process.stdout.readline().strip()
            with pytest.raises(AlbedoError, match="open in process"):
                sessions.resume(session_id)
            process.communicate("\n")
        assert sessions.resume(session_id).id == session_id
        with pytest.raises(KeyError):
            sessions.resume("nonsense")

    def test_what_was_left_is_resumed(self, embedded_host: Embedded) -> None:
        """Also by another process while the one that left it lives, and after its exit."""
        code = (
            "import sys\nfrom albedo_provisioner import Sessions\nsessions = Sessions()\n"
            "for owner in ('a', 'b'):\n    session = sessions.open(sys.argv[1], owner)\n"
            "    session.execute('x = 41')\n    print(session.id, flush=True)\n"
            "sessions.leave()\nprint('left', flush=True)\ninput()"
        )
        with (
            Sessions() as sessions,
            subprocess.Popen(
                [sys.executable, "-c", code, embedded_host.location()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as process,
        ):
            assert process.stdout is not None
            first, second, left = (process.stdout.readline().strip() for _ in range(3))
            assert left == "left"
            assert [each["open"] for each in sessions.list()] == ["nowhere", "nowhere"]
            session = sessions.resume(first)
            assert session.execute("x").value == "41"
            assert [each["open"] for each in sessions.list()] == ["here", "nowhere"]
            assert sessions.close_owner("b") == 1
            with pytest.raises(KeyError):
                sessions.resume(second)
            process.communicate("\n")
            again = session.execute("x += 1\nx")
            assert (again.value, again.kernel.reused, again.kernel.state_lost) == ("42", True, False)
            (record,) = KernelRecords().all()
            assert record.owner == this_process()

    def test_what_was_left_is_resumed_by_the_same_process(self, embedded_host: Embedded) -> None:
        first = Sessions()
        session = first.open(embedded_host.location())
        session.execute("x = 41")
        first.leave()
        with Sessions() as second:
            assert second.resume(session.id).execute("x").value == "41"

    def test_what_was_left_is_taken_up_by_who_opens_the_same_place(self, embedded_host: Embedded) -> None:
        """Of the same owner, and for the same interpreter; by several at once, one gets it."""
        first = Sessions()
        session = first.open(f"{embedded_host.alias}:", "ann")
        session.execute("x = 41")
        place = str(session.location)
        first.leave()
        with Sessions() as second, Sessions() as third:
            assert second.open(place, "bob").id != session.id
            assert second.open(place, "ann", tools={"f": print}).id != session.id
            assert third.open(place, "ann", python="/usr/bin/python3").id != session.id
            again = second.open(place, "ann")
            assert again.id == session.id
            result = again.execute("x")
            assert (result.value, result.kernel.reused) == ("41", True)
            assert second.open(f"{embedded_host.alias}:", "ann").id == session.id
        with Sessions() as fourth:
            assert fourth.open(place, "ann").id != session.id
            assert fourth.open(place, "ann").execute("'x' in globals()").value == "False"
        program = (
            "import sys\nfrom albedo_provisioner import Sessions\nsession = Sessions().open(sys.argv[1])\n"
            "print(session.id, session.execute(\"n = globals().get('n', 0) + 1; n\").value)"
        )
        command = [sys.executable, "-c", program, place]
        runs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() for _ in range(2)]
        assert [number for _, number in runs] == ["1", "2"]
        assert runs[0][0] == runs[1][0]
        with Sessions() as last:
            last.open(place)


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
