"""What a program that holds sessions may do wrong, and what that costs: an answer in words, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from faces import Embedded
from procs import wait_until

from albedo_provisioner import AsyncSession, AsyncSessions, Limits, Result, Sessions
from albedo_provisioner.errors import AlbedoError, ConfigError, LocationError
from albedo_provisioner.sessions import current_cell, listener


class Unspeakable(Exception):
    """An error whose own text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("not even this")

    __repr__ = __str__


class TestOutputs:
    def test_a_receiver_that_raises_changes_nothing_and_is_told_of(
        self, embedded_host: Embedded, sessions: Sessions, caplog: pytest.LogCaptureFixture
    ) -> None:
        session = sessions.open(embedded_host.location())
        session.execute("x = 41")
        kernel = session._session._core._held.kernel
        assert kernel is not None
        shown = "from IPython.display import HTML, display\nprint(1, flush=True)\ndisplay(HTML('<b>2</b>'))\n"
        code = f"{shown}print(3)\nx + 1"
        caplog.set_level(logging.WARNING, "albedo_provisioner")

        def divide(output: dict[str, Any]) -> None:
            output.clear()  # what it is given is its own
            raise ZeroDivisionError("no")

        def unspeakable(output: dict[str, Any]) -> None:
            raise Unspeakable

        def leave(output: dict[str, Any]) -> None:
            raise SystemExit(3)

        for receiver, words in ((divide, "ZeroDivisionError: no"), (unspeakable, "Unspeakable"), (leave, "SystemExit")):
            caplog.clear()
            result = session.execute(code, on_output=receiver)
            assert (result.status, result.stdout, result.value) == ("ok", "1\n3\n", "42"), receiver
            assert [output["output_type"] for output in result.outputs] == [
                "stream",
                "display_data",
                "stream",
                "execute_result",
            ]
            assert f"on_output failed with {words}" in str(result.kernel.note)
            (logged,) = caplog.records
            assert logged.exc_info is not None
            assert logged.exc_info[0] is not None
            assert words.startswith(logged.exc_info[0].__name__)
        after = session.execute("x")
        assert (after.value, after.kernel.note, after.kernel.reused) == ("41", None, True)
        assert kernel.connections == 1  # the link took no notice

    def test_text_for_the_next_cell_is_in_the_result_and_not_run(
        self, embedded_host: Embedded, sessions: Sessions
    ) -> None:
        text = "ran = True\n" * 200
        embedded_host.write("more.py", text)
        session = sessions.open(embedded_host.location())
        result = session.execute("%load more.py", cell_id="load", limits=Limits(displays=100))
        assert result.next_input is not None
        assert (result.status, result.next_input_clipped, len(result.next_input) < 150) == ("ok", True, True)
        assert text in str(result.full_next_input())
        assert "it was not run" in str(result.kernel.note)
        again = session.cell("load")
        assert again.to_dict()["next_input"] == result.next_input
        assert again.full_next_input() == result.full_next_input()
        assert session.execute("'ran' in globals()").value == "False"
        recalled = session.execute("%recall 2")
        assert (recalled.next_input, recalled.next_input_clipped) == ("'ran' in globals()", False)
        assert session.execute("1").next_input is None

    def test_a_listener_that_is_slow_holds_up_its_own_call_alone(
        self, embedded_host: Embedded, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It may ask the session how it is, and its call's result has to wait for it, but not for ever."""
        slow, other = [sessions.open(embedded_host.location(), owner) for owner in ("slow", "other")]
        other.execute("1")
        begun, go, states = threading.Event(), threading.Event(), list[str]()

        def wait(output: dict[str, Any]) -> None:
            states.append(slow.status()["execution_state"])
            begun.set()
            go.wait()

        with ThreadPoolExecutor() as pool:
            call = pool.submit(slow.execute, "print(1, flush=True)\n2", on_output=wait)
            assert begun.wait(60)
            assert other.execute("6 * 7").value == "42"
            assert not call.done()
            go.set()
            assert call.result(60).value == "2"
            assert len(states) == 2
            go.clear()
            monkeypatch.setattr(listener, "PATIENCE", 0.5)
            result = pool.submit(slow.execute, "3", on_output=wait).result(60)
            assert (result.status, result.value) == ("ok", "3")
            assert "on_output had taken more than 0.5 s" in str(result.kernel.note)
            go.set()
        assert slow.execute("4").kernel.note is None

    def test_a_listener_on_the_link_that_fails_costs_that_message_alone(
        self, embedded_host: Embedded, sessions: Sessions, caplog: pytest.LogCaptureFixture
    ) -> None:
        session = sessions.open(embedded_host.location())
        held = session._session._core._held
        session.execute("x = 44")
        assert held.console is not None
        assert held.kernel is not None

        def fail(msg_type: str, content: dict[str, Any]) -> None:
            raise ZeroDivisionError

        held.console._late = fail
        session.execute("import threading\nthreading.Timer(1, print, ['late'], {'flush': True}).start()")
        wait_until(lambda: "could not be taken" in caplog.text)
        result = session.execute("print(1)\nx")
        assert (result.stdout, result.value, held.kernel.connections) == ("1\n", "44", 1)
        logged = [record for record in caplog.records if "could not be taken" in record.getMessage()]
        assert all(record.exc_info for record in logged)

    def test_a_tools_error_whose_text_cannot_be_had_is_the_cells_alone(
        self, embedded_host: Embedded, sessions: Sessions, caplog: pytest.LogCaptureFixture
    ) -> None:

        class OddDict(dict):  # type: ignore[type-arg]
            def items(self) -> Any:
                raise RuntimeError("no items")

        def fail(how: object = Unspeakable()) -> None:
            raise Unspeakable(how)

        session = sessions.open(embedded_host.location(), tools={"fail": fail, "odd": OddDict})
        result = session.execute("tools.fail()")
        assert "Unspeakable" in str(result.error)
        assert "no items" in str(session.execute("tools.odd()").error)
        assert session.execute("1").value == "1"
        assert not [record for record in caplog.records if record.exc_info]

    def test_a_stream_that_is_left_early_interrupts_the_code_and_says_nothing(
        self, embedded_host: Embedded, sessions: Sessions, caplog: pytest.LogCaptureFixture
    ) -> None:
        session = sessions.open(embedded_host.location())
        session.execute("x = 41\nimport time")
        code = "for i in range(600):\n    print(i, flush=True)\n    time.sleep(0.1)"
        for output in session.stream(code, cell_id="left"):
            assert output
            break
        gc.collect()
        wait_until(lambda: session.status()["execution_state"] == "idle", what="the code was interrupted")
        assert session.cell("left").status == "interrupted"
        assert session.execute("x").value == "41"
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


class TestTextThatIsNone:
    """Lone surrogates: Python makes them of names of files that are no UTF-8, and `json` of what others have cut."""

    def test_is_in_results_and_on_record_as_it_came(self, embedded_host: Embedded, sessions: Sessions) -> None:
        session = sessions.open(embedded_host.location(), tools={"echo": lambda text: text})

        def run(code: str) -> Result:
            result = session.execute(code, timeout=60)
            assert session.cell(result.cell_id).to_dict() == result.to_dict()
            return result

        session.execute("import os\nfrom IPython.display import HTML, display\nname = os.fsdecode(b'\\xff.txt')")
        assert run("print(name)").stdout == "\udcff.txt\n"
        assert run("import sys\nprint(name, file=sys.stderr)").stderr == "\udcff.txt\n"
        assert run("class Odd:\n    def __repr__(self): return name\nOdd()").value == "\udcff.txt"
        assert run("raise ValueError(name)").error == "ValueError: \udcff.txt"
        assert run("display(HTML(name))").outputs[0]["data"]["text/html"] == "\udcff.txt"
        assert run("tools.echo(name) == name").value == "True"
        assert run("tools.echo('\\ud800')").value == "'\\ud800'"
        assert run("memory.append(name)").status == "ok"
        # Those that no bytes stand for are sent as escapes, as Python prints them on stderr.
        assert run("print('a\\ud800b')").stdout == "a\\ud800b\n"
        assert run("class Odd:\n    def __repr__(self): return '\\ud800'\nOdd()").value == r"\ud800"
        assert run("raise ValueError('\\ud800')").error == r"ValueError: \ud800"
        assert run("display(HTML('\\ud800'))").outputs[0]["data"]["text/html"] == r"\ud800"
        assert run("x = 41\nx + 1").value == "42"

    def test_does_not_keep_a_session_from_what_it_tells(self, embedded_host: Embedded, sessions: Sessions) -> None:
        session = sessions.open(embedded_host.location())
        session.execute("job = run('sh', '-c', 'while [ ! -e go ]; do sleep 0.05; done # \\udcff')")
        embedded_host.write("go", "")
        wait_until(lambda: session.status()["jobs"][0]["state"] == "ended", what="the job has ended")
        session.reset()
        result = session.execute("1")
        assert (result.value, result.kernel.state_reset) == ("1", True)
        assert r"# \udcff'` ended with exit code 0" in str(result.kernel.note)


OLD_SCHEMA = """
CREATE TABLE sessions (session_id TEXT PRIMARY KEY, owner TEXT NOT NULL, location TEXT NOT NULL, spelled TEXT NOT NULL,
    tools TEXT NOT NULL, python TEXT, env TEXT NOT NULL, kernel_id TEXT, lost TEXT, created REAL NOT NULL,
    used REAL NOT NULL, process TEXT NOT NULL) STRICT;
CREATE TABLE cells (number INTEGER PRIMARY KEY, cell_id TEXT NOT NULL UNIQUE, session_id TEXT NOT NULL, kernel_id TEXT,
    code TEXT NOT NULL, state TEXT NOT NULL, asked REAL NOT NULL, result TEXT) STRICT;
"""
"""The file of sessions as it was when all sessions had one space of names for their cells."""


STUBBORN = (
    "import time\nprint('begun', flush=True)\nuntil = time.monotonic() + {}\nwhile time.monotonic() < until:\n"
    "    try:\n        time.sleep(until - time.monotonic())\n"
    "    except KeyboardInterrupt:\n        print('no', flush=True)"
)
"""Takes no notice of interrupts, for so many seconds."""


class TestCancelledCallers:
    """Whose code takes no notice of its interrupt."""

    @pytest.fixture(autouse=True)
    def patience(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(current_cell, "INTERRUPT_GRACE", 1.0)

    async def cancelled(self, session: AsyncSession, code: str, **options: Any) -> None:
        """Run code, and cancel the caller when it has begun."""
        begun, loop = asyncio.Event(), asyncio.get_running_loop()
        told = {"on_output": lambda _: loop.call_soon_threadsafe(begun.set)}
        call = asyncio.create_task(session.execute(code, **told, **options))
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    async def test_cost_the_kernel_when_another_call_comes(self, embedded_host: Embedded) -> None:
        async with AsyncSessions() as sessions:
            session = await sessions.open(embedded_host.location())
            await session.execute("x = 41")
            await self.cancelled(session, STUBBORN.format(600), cell_id="stubborn")
            began = time.monotonic()
            calls = [session.execute("'x' in globals()"), session.execute("2")]
            result, after = await asyncio.gather(*calls)
            assert (result.value, result.kernel.reused, result.kernel.state_lost) == ("False", False, True)
            assert "a cell whose caller was cancelled did not obey the interrupt" in str(result.kernel.note)
            assert (after.value, after.kernel.reused, after.kernel.state_lost) == ("2", True, False)
            assert time.monotonic() - began > 1
            past = await session.cell("stubborn")
            assert past.status == "interrupted"
            assert past.stdout.startswith("begun\nno\n")
            assert "did not stop within 1 s" in str(past.kernel.note)

    async def test_cost_nothing_while_nobody_comes(self, embedded_host: Embedded) -> None:
        async with AsyncSessions() as sessions:
            session = await sessions.open(embedded_host.location())
            await session.execute("x = 41")
            await self.cancelled(session, STUBBORN.format(3) + "\nprint('end')", cell_id="stubborn")
            past = await session.cell("stubborn")
            assert (past.status, past.stdout) == ("ok", "begun\nno\nend\n")
            result = await session.execute("x")
            assert (result.value, result.kernel.reused, result.kernel.note) == ("41", True, None)

    async def test_hold_up_no_move(self, embedded_host: Embedded) -> None:
        async with AsyncSessions() as sessions:
            session = await sessions.open(embedded_host.location())
            await self.cancelled(session, STUBBORN.format(600))
            embedded_host.make_folder("other")
            await session.move(embedded_host.location("other"))
            result = await session.execute("import os\nos.path.basename(os.getcwd())")
            assert (result.value, result.kernel.state_reset) == ("'other'", True)

    async def test_leave_a_kernel_that_was_joined_alone(self, embedded_host: Embedded) -> None:
        async with AsyncSessions() as sessions:
            ours = await sessions.open(embedded_host.location())
            await ours.execute("x = 41")
            guest = await sessions.join((await ours.status())["kernel_id"], owner="guest")
            await self.cancelled(guest, STUBBORN.format(4))
            result = await guest.execute("x")
            assert (result.value, result.kernel.state_lost) == ("41", False)


class TestMistakes:
    """Are told at once, as a `ConfigError` that says what is wrong, and nothing comes of them."""

    def test_in_calls(self, embedded_host: Embedded, sessions: Sessions) -> None:
        session: Any = sessions.open(embedded_host.location(), tools={"echo": str})

        async def receive(output: dict[str, Any]) -> None:
            raise AssertionError("nobody awaits this")

        for code, options, words in (
            ("2", {"cell_id": 5}, "cell_id is of type int"),
            ("2", {"cell_id": "\ud800"}, "cell_id holds the lone surrogate"),
            (None, {}, "code is of type NoneType"),
            (b"1", {}, "code is of type bytes"),
            ("'a\udcff'", {}, r"code holds the lone surrogate '\\udcff' at character 2"),
            ("1", {"timeout": 0}, "timeout is 0, and has to be seconds above zero"),
            ("1", {"timeout": "5"}, "timeout is '5'"),
            ("1", {"timeout": float("nan")}, "timeout is nan"),
            ("1", {"on_output": 5}, "on_output is of type int"),
            ("1", {"on_output": receive}, "on_output is a coroutine function"),
            ("1", {"limits": 5}, "limits is of type int"),
            ("1", {"max_tool_calls": -1}, "max_tool_calls is -1"),
            ("1", {"max_tool_calls": None}, "max_tool_calls is None"),
            ("1", {"tools": 5}, "tools is 5"),
            ("1", {"tools": [5]}, "A name in tools is of type int"),
        ):
            with pytest.raises(ConfigError, match=words):
                session.execute(code, **options)
        for wrong in (5, "\ud800"):
            with pytest.raises(ConfigError, match="cell_id"):
                session.cell(wrong)
        assert session.cells() == []
        assert session.status()["kernel_id"] is None
        result = session.execute("tools.echo(1)", tools=iter(["echo"]), timeout=60, max_tool_calls=1, cell_id="")
        assert result.value == "'1'"

    def test_in_limits(self) -> None:
        wrong: Any
        for wrong in (-5, 1.5, "5", None):
            for name in ("stdout", "stderr", "displays"):
                with pytest.raises(ConfigError, match=f"{name} of Limits is"):
                    Limits(**{name: wrong})

    def test_in_sessions(self, sessions: Sessions) -> None:
        made: Any = sessions
        surrogate = "a\ud800"
        for options, words in (
            ({"owner": 5}, "owner is of type int"),
            ({"owner": surrogate}, "owner holds the lone surrogate"),
            ({"python": 5}, "python is"),
            ({"env": {"A": 1}}, r"env\['A'\] is of type int"),
            ({"env": {surrogate: "1"}}, "A name in env holds"),
            ({"env": ["A=1"]}, "env is of type list"),
            ({"tools": ["echo"]}, "tools is of type list"),
        ):
            with pytest.raises(ConfigError, match=words):
                made.open("/tmp", **options)
        for location in (5, "/tmp/" + surrogate):
            with pytest.raises(LocationError):
                made.open(location)
        for call in (
            lambda: made.resume(surrogate),
            lambda: made.close_owner(None),
            lambda: made.join(kernel_id=5),
            lambda: made.join(notebook=5),
            lambda: made.join("x", owner=surrogate),
            lambda: Sessions(max_kernels=0),
            lambda: Sessions(idle_timeout="x"),  # type: ignore[arg-type]
        ):
            with pytest.raises(ConfigError):
                call()
        assert made.list() == []
        made.close()
        with pytest.raises(AlbedoError, match="have been closed"):
            made.list()

    def test_a_full_disk_is_none_and_is_said_to_be_full(self, embedded_host: Embedded, tmp_path: Path) -> None:
        def open_many(sessions: Sessions) -> None:
            for number in range(200):  # until the pages that are there have no more room
                sessions.open("/tmp", f"owner-{number}-{'x' * 1000}")

        home = tmp_path / "full"
        home.mkdir()
        if subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", str(home)], check=False
        ).returncode:
            pytest.skip("a disk cannot be mounted here")
        try:
            with Sessions(home=home) as sessions:
                session = sessions.open(embedded_host.location())
                session.execute("x = 41")
                subprocess.run(["sh", "-c", f"cat /dev/zero > {home}/filler"], check=False, stderr=subprocess.DEVNULL)
                with pytest.raises(ConfigError, match=r"sessions\.sqlite cannot be used: .*full.*ALBEDO_HOME"):
                    open_many(sessions)
                with pytest.raises(ConfigError, match=r"sessions\.sqlite cannot be used: .*full"):
                    session.execute("x = 0\n" + "# a long line\n" * 5000)
                (home / "filler").unlink()
                sessions.open("/tmp", "later")
                assert [each["owner"] for each in sessions.list()][-1] == "later"
                result = session.execute("x")
                assert (result.value, result.kernel.reused, result.kernel.note) == ("41", True, None)
        finally:
            subprocess.run(["umount", "--lazy", str(home)], check=True)


class TestCellIds:
    def test_are_each_sessions_own(self, embedded_host: Embedded, sessions: Sessions) -> None:
        location = embedded_host.location()
        ours, theirs = sessions.open(location, "a"), sessions.open(location, "b")
        kernel_id = ours.execute("ran = 0\n0", cell_id="start") and ours.status()["kernel_id"]
        guest = sessions.join(kernel_id, owner="guest")
        odd = f"../{'long' * 100}/\x00"
        for name in ("step-1", odd):
            for number, session in enumerate((ours, theirs, guest)):
                code = f"print({number})\nprint('x' * 300)\n{number}"
                result = session.execute(code, cell_id=name, limits=Limits(stdout=100))
                assert (result.status, result.value, result.cell_id) == ("ok", str(number), name)
            for number, session in enumerate((ours, theirs, guest)):
                for again in (session.cell(name), session.execute("1 / 0", cell_id=name)):
                    assert (again.value, again.cell_id) == (str(number), name)
                    assert again.full_stdout() == f"{number}\n{'x' * 300}\n"
        unnamed = ours.execute("'unnamed'")
        assert ours.execute("1 / 0", cell_id=unnamed.cell_id).value == "'unnamed'"
        assert theirs.execute("'theirs'", cell_id=unnamed.cell_id).value == "'theirs'"
        assert ours.cell(unnamed.cell_id).value == "'unnamed'"
        assert [cell.cell_id for cell in ours.cells()] == ["start", "step-1", odd, unnamed.cell_id]
        with pytest.raises(KeyError):
            theirs.cell("start")
        files = os.listdir(Path(os.environ["ALBEDO_HOME"]) / "outputs")
        assert len(files) == 6

    def test_of_an_earlier_version_are_still_known(self) -> None:
        home = Path(os.environ["ALBEDO_HOME"])
        result = Result("ok", stdout="cut", value="41", cell_id="turn-1", stdout_clipped=True).to_json()
        session_id = uuid.uuid4().hex
        outputs = home / "outputs"
        outputs.mkdir(parents=True)
        (outputs / "turn-1.stdout").write_text("all of it")
        with contextlib.closing(sqlite3.connect(home / "sessions.sqlite")) as database:
            database.executescript(OLD_SCHEMA)
            row = (session_id, "o", "/tmp", "/tmp", "[]", None, "{}", None, None, 1.0, 1.0, '[1, 1, "before"]')
            database.execute(f"INSERT INTO sessions VALUES ({', '.join('?' * len(row))})", row)
            cells = (1, "turn-1", session_id, None, "41", "done", 1.0, result)
            database.execute(f"INSERT INTO cells VALUES ({', '.join('?' * len(cells))})", cells)
            database.commit()
        with Sessions() as first, Sessions() as second:  # the second one finds it up to date
            session = first.resume(session_id)
            for found in (session.cell("turn-1"), session.execute("1 / 0", cell_id="turn-1")):
                assert (found.value, found.cell_id, found.full_stdout()) == ("41", "turn-1", "all of it")
            other = second.open("/tmp", "other")
            with pytest.raises(KeyError):
                other.cell("turn-1")
            assert other.execute("42", cell_id="turn-1").value == "42"


def test_a_long_result_of_a_killed_process_is_cut_as_its_call_said(embedded_host: Embedded, sessions: Sessions) -> None:
    """L3, S9."""
    program = (
        "import sys\nfrom albedo_provisioner import Limits, Sessions\nsession = Sessions().open(sys.argv[1])\n"
        "print(session.id, flush=True)\nlimits = Limits(stdout=5000, displays=1000)\n"
        "code = 'import time\\nprint(0, flush=True)\\ntime.sleep(1)\\nfor _ in range(19000): print(\"x\" * 99)\\n'\n"
        "code += 'len?'\n"
        "session.execute(code, cell_id='long', limits=limits, on_output=lambda _: print('begun', flush=True))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, embedded_host.location()], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        session_id = process.stdout.readline().strip()
        assert process.stdout.readline() == "begun\n"
        process.kill()
    session = sessions.resume(session_id)
    for result in (session.cell("long"), session.cell("long")):  # found out, and from the record
        assert (result.status, result.stdout_clipped) == ("ok", True)
        assert len(result.stdout) < 5100
        assert result.full_stdout() == "0\n" + ("x" * 99 + "\n") * 19000
        assert "Return the number of items" in result.outputs[-1]["data"]["text/plain"]
    assert [cell.limits for cell in session.cells()] == [Limits(stdout=5000, displays=1000)]


def test_a_tool_that_closes_its_own_session_leaves_nothing_behind(embedded_host: Embedded) -> None:
    """K6: nor does it keep its program from ending in order, however that ends."""
    program = (
        "import sys\nfrom albedo_provisioner import Sessions\nsessions = Sessions()\n"
        "session = sessions.open(sys.argv[1], tools={'shut': lambda: session.close()})\n"
        "print(session.execute('tools.shut()').status)\nif sys.argv[2] == 'close': sessions.close()"
    )
    for end in ("close", "exit"):
        command = [sys.executable, "-c", program, embedded_host.location(), end]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert (done.stdout, done.stderr) == ("interrupted\n", ""), end
        assert not embedded_host.processes()
    with Sessions() as sessions:
        assert sessions.list() == []
