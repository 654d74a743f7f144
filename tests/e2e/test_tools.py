"""Tools: functions of a program that the cells of its sessions may call."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from faces import Embedded, Host, Real
from kernels import PATIENCE, eventually, started
from procs import wait_until

from albedo_provisioner import AsyncSessions, Session, Sessions
from albedo_provisioner.errors import AlbedoError, ConfigError


def read_file(path: str, *, limit: int = 10, opener: Any = len) -> str:
    """Read a file.

    At most `limit` characters of it."""
    return f"{path}:{limit}"


def echo(*args: Any, **kwargs: Any) -> Any:
    return [list(args), kwargs]


async def double(value: Any) -> Any:
    await asyncio.sleep(0)
    return value * 2


def fail(how: str) -> None:
    if how == "own":
        raise type("NoSuchUser", (Exception,), {})("nobody knows ann")
    if how == "key":
        raise KeyError("k")
    if how == "file":
        Path("/nonexistent/x").read_text()
    if how == "text":
        b"\xff".decode()
    if how == "stop":
        raise StopIteration(3)
    if how == "exit":
        sys.exit(3)
    if how == "group":
        raise ExceptionGroup("many", [KeyError("k"), ExceptionGroup("in it", [ValueError(1), OSError(2, "gone")])])


TOOLS = {"read_file": read_file, "echo": echo, "double": double, "fail": fail, "odd": lambda: object()}


def error_of(session: Session, code: str, **options: Any) -> str:
    """Run code that has to fail with an error, and return that."""
    result = session.execute(code, **options)
    assert result.status == "error", result
    return str(result.error)


class TestCells:
    def test_call_them_as_functions_with_json_and_bytes(self, any_host: Host, sessions: Sessions) -> None:
        """S8."""
        session = sessions.open(any_host.location(), tools=TOOLS)
        result = session.execute("tools.read_file('a', limit=3), tools.double(21), await tools.double.awaitable('ab')")
        assert (result.value, result.tool_calls_made) == ("('a:3', 42, 'abab')", 3)
        value = {"deep": [b"\0\xff", {"$blob": 7}, None, 1.5, "é", {"more": b""}], "$plain": True}
        code = f"tools.echo({value!r}, k=(1, 2)) == [[{value!r}], {{'k': [1, 2]}}]"
        assert session.execute(code).value == "True"
        large = "import os\nbig = os.urandom(8_000_000)\ntools.echo(big) == [[big], {}]"
        assert session.execute(large).value == "True"
        for name in ("tools", "albedo_bundle.tools"):
            shown = session.execute(f"import albedo_bundle\nhelp({name}.read_file)\nprint(dir({name}))").stdout
            assert "read_file(path: str, *, limit: int = 10, opener: Any = <built-in function len>) -> str" in shown
            assert "At most `limit` characters of it." in shown
            assert "['double', 'echo', 'fail', 'odd', 'read_file']" in shown
        complete = (
            "from IPython.core.completer import provisionalcompleter\nwith provisionalcompleter():\n"
            "    found = [each.text for each in get_ipython().Completer.completions('tools.re', 8)]\nfound"
        )
        assert session.execute(complete).value == "['read_file']"
        assert "    tools.read_file(path: str, *," in session.execute("print(tools)").stdout
        assert session.status()["tools"] == ["double", "echo", "fail", "odd", "read_file"]

    def test_get_their_errors_and_are_told_what_cannot_be(self, embedded_host: Embedded, sessions: Sessions) -> None:
        session = sessions.open(embedded_host.location(), tools=TOOLS)
        caught = "try:\n    tools.fail({!r})\nexcept {} as error:\n    print(type(error).__name__, error, sep='|')"
        for how, kind, told in (
            ("key", "KeyError", "KeyError|'k'"),
            ("file", "FileNotFoundError", "FileNotFoundError|[Errno 2] No such file or directory: '/nonexistent/x'"),
            ("text", "UnicodeDecodeError", "UnicodeDecodeError|'utf-8' codec can't decode byte 0xff in position 0"),
            ("own", "albedo_bundle.ToolError", "NoSuchUser|nobody knows ann"),
            ("stop", "StopIteration", "StopIteration|3"),
            ("exit", "albedo_bundle.ToolError", "SystemExit|3"),
            ("group", "* (KeyError, ValueError, FileNotFoundError)", "ExceptionGroup|many (2 sub-exceptions)"),
        ):
            result = session.execute("import albedo_bundle\n" + caught.format(how, kind))
            assert result.stdout.startswith(told), result
            assert result.tool_calls_made == 1
        assert error_of(session, "tools.read_file()") == "TypeError: missing a required argument: 'path'"
        assert "there is no tool 'nope'; there are double," in error_of(session, "tools.nope")
        assert "keys of a dictionary" in error_of(session, "tools.echo({1: 2})")
        assert "and no set" in error_of(session, "tools.echo({1})")
        assert "nested" in error_of(session, "a = []\na.append(a)\ntools.echo(a)")
        assert "too large" in error_of(session, "tools.echo(bytes(70_000_000))")
        assert "too large" in error_of(session, "tools.double(bytes(40_000_000))")
        assert "cannot be passed" in error_of(session, "tools.odd()")
        assert session.execute("tools.double(1)").value == "2"

    def test_call_those_that_they_were_given_and_as_often_as_they_may(
        self, embedded_host: Embedded, sessions: Sessions
    ) -> None:
        """S8."""
        session = sessions.open(embedded_host.location(), tools=TOOLS)
        assert "given echo" in error_of(session, "tools.double(1)", tools=["echo"])
        assert "given none" in error_of(session, "tools.double(1)", tools=[])
        code = "made = 0\nfor i in range(9):\n    tools.echo(i)\n    made += 1"
        result = session.execute(code, max_tool_calls=3)
        assert "ToolError: tools.echo: this cell has made the 3 calls" in str(result.error)
        assert result.tool_calls_made == 3
        assert session.execute("made").value == "3"
        for options in ({"tools": ["nope"]}, {"tools": "echo"}, {"max_tool_calls": -1}):
            with pytest.raises(ConfigError):
                session.execute("1", **options)
        for name in ("not-a-name", "class", "_private", ""):
            with pytest.raises(ConfigError, match="identifier"):
                sessions.open(embedded_host.location(), tools={name: echo})
        with pytest.raises(ConfigError, match="function"):
            sessions.open(embedded_host.location(), tools={"x": 1})  # type: ignore[dict-item]

    def test_leave_nothing_behind_that_could_call_any(self, embedded_host: Embedded, sessions: Sessions) -> None:
        """S8: a thread left over from an earlier cell has no authority."""
        called: list[str] = []
        session = sessions.open(embedded_host.location(), tools={"note": called.append})
        code = (
            "import threading, asyncio\ngo, told = threading.Event(), []\n"
            "def left_over():\n"
            "    go.wait()\n"
            "    try: tools.note('from the past')\n"
            "    except Exception as error: told.append(str(error))\n"
            "thread = threading.Thread(target=left_over)\nthread.start()\ntools.note('in time')"
        )
        session.execute(code)
        result = session.execute("go.set()\nthread.join()\ntools.note('later')\ntold")
        assert "the cell that this was called for has ended" in str(result.value)
        assert (called, result.tool_calls_made) == (["in time", "later"], 1)

    def test_have_none_where_none_are_offered(self, embedded_host: Embedded, sessions: Sessions) -> None:
        session = sessions.open(embedded_host.location())
        assert "no tools are offered here" in error_of(session, "tools.read_file('x')")
        assert session.execute("tools").value == "<tools: none are offered here>"
        assert (
            session.execute("memory.__name__, run.__module__").value == "('albedo_bundle.memory', 'albedo_bundle.jobs')"
        )
        assert session.execute("tools = 7\ntools").value == "7"
        assert session.execute("tools").value == "7"


async def test_a_notebook_has_none_and_who_joins_its_kernel_has_its_own(embedded_host: Embedded) -> None:
    async with started(embedded_host.location()) as kernel, AsyncSessions() as sessions:
        assert await kernel.value("'tools' in globals()") == "False"
        assert await kernel.value("from albedo_bundle import tools\ntools") == "<tools: none are offered here>"
        await kernel.run("memory = 7")
        kernel_id = kernel.manager.provisioner._kernel.kernel_id  # type: ignore[union-attr]
        one = await sessions.join(kernel_id, owner="one", tools={"f": lambda: 1})
        two = await sessions.join(kernel_id, owner="two", tools={"f": lambda: 2, "g": lambda: 3})
        for session, expected in ((one, "(1, ['f'], 7)"), (two, "(2, ['f', 'g'], 7)"), (one, "(1, ['f'], 7)")):
            assert (await session.execute("tools.f(), dir(tools), memory")).value == expected
        assert await kernel.value("tools") == "<tools: none are offered here>"


async def test_calls_cross_broken_links_exactly_once(sshd_host: Real, other_sshd_host: Real) -> None:
    """S8: on two hosts, whose links break again and again."""
    seen: Counter[str] = Counter()

    async def work(what: str, data: bytes) -> bytes:
        seen[what] += 1
        await asyncio.sleep(0.01)
        return what.encode() + data

    def work_slowly(what: str, data: bytes) -> bytes:
        seen[what] += 1
        time.sleep(0.01)
        return what.encode() + data

    async with AsyncSessions() as sessions:

        async def run(host: Real) -> None:
            session = await sessions.open(host.location(), tools={"work": work, "work_slowly": work_slowly})
            code = (
                "import os\nfor i in range(40):\n"
                "    data, name = os.urandom(30_000), f'{os.getuid()} {i}'\n"
                "    assert [tools.work, tools.work_slowly][i % 2](name, data) == name.encode() + data\n"
                "    print(i, flush=True)"
            )
            result = await session.execute(code)
            assert (result.status, result.tool_calls_made, result.kernel.note) == ("ok", 40, None), result
            assert result.stdout == "".join(f"{i}\n" for i in range(40))

        both = asyncio.gather(run(sshd_host), run(other_sshd_host))
        for limit in (10, 30, 50):
            await eventually(lambda limit=limit: len(seen) >= limit)
            sshd_host.cut()
            other_sshd_host.cut()
        await both
    assert len(seen) == 80
    assert set(seen.values()) == {1}


class TestTheProgram:
    def test_may_use_its_sessions_in_a_tool(self, embedded_host: Embedded, sessions: Sessions) -> None:
        other = sessions.open(embedded_host.location(), "other")

        def look() -> Any:
            with pytest.raises(AlbedoError, match="wait for itself"):
                session.execute("1")
            return [session.status()["execution_state"], other.execute("6 * 7").value]

        session = sessions.open(embedded_host.location(), tools={"look": look})
        assert session.execute("tools.look()").value == "['busy', '42']"

    def test_has_its_tools_taken_back_when_the_cell_is_interrupted_or_out_of_time(
        self, embedded_host: Embedded, sessions: Sessions
    ) -> None:
        ended: list[str] = []
        begun = threading.Event()

        async def slow(name: str) -> None:
            begun.set()
            try:
                await asyncio.sleep(600)
            finally:
                ended.append(name)

        def block() -> None:
            begun.set()
            time.sleep(3)

        session = sessions.open(embedded_host.location(), tools={"slow": slow, "block": block})
        session.execute("x = 41")
        result = session.execute("tools.slow('a')", timeout=1)
        assert (result.status, result.tool_calls_made, result.kernel.state_lost) == ("timeout", 1, False)
        wait_until(lambda: ended == ["a"], what="the tool was cancelled")
        for code in ("tools.slow('b')", "tools.block()"):
            begun.clear()
            thread = threading.Thread(target=lambda: (begun.wait(PATIENCE), session.interrupt()))
            thread.start()
            assert session.execute(code).status == "interrupted"
            thread.join()
        wait_until(lambda: ended == ["a", "b"], what="the tool was cancelled")
        assert session.execute("x").value == "41"

    def test_keeps_its_tools_through_a_reset_a_move_and_the_kernels_end(
        self, embedded_host: Embedded, local_host: Host, sessions: Sessions
    ) -> None:
        session = sessions.open(embedded_host.location(), tools=TOOLS)
        assert session.execute("tools.double(1)").value == "2"
        assert session.execute("tools.double(2)", reset=True).value == "4"
        assert session.execute("import os\nos._exit(1)").status == "lost"
        assert session.execute("tools.double(3)").value == "6"
        folder = local_host.make_folder("elsewhere")
        session.move(str(folder))
        assert session.execute("tools.double(4)").value == "8"

    def test_has_one_session_for_each_set_of_tools(self, embedded_host: Embedded, sessions: Sessions) -> None:
        plain = sessions.open(embedded_host.location())
        one = sessions.open(embedded_host.location(), tools={"f": lambda: 1})
        assert one.id != plain.id
        assert one.execute("tools.f()").value == "1"
        again = sessions.open(embedded_host.location(), tools={"f": lambda: 2})
        assert again.id == one.id
        result = one.execute("tools.f()")
        assert (result.value, result.kernel.reused) == ("2", True)


PROGRAM = """
import sys, time
from albedo_provisioner import Sessions

def once(path):
    with open(path, "a") as file:
        file.write("done\\n")
    print("begun", flush=True)
    time.sleep(600)

session = Sessions().open(sys.argv[1], "agent", tools={"once": once})
session.execute("x = 41")
print(session.id, flush=True)
code = f"try:\\n    tools.once({sys.argv[2]!r})\\nexcept Exception as error:\\n    print(error)\\nx + 1"
session.execute(code, cell_id="c")
"""


@pytest.fixture
def killed(any_host: Host, tmp_path: Path) -> str:
    """Run a program that is killed while it does a tool for a cell; return its session's id."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, any_host.location(), str(tmp_path / "note")], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        session_id = process.stdout.readline().strip()
        assert process.stdout.readline() == "begun\n"
        process.kill()
    return session_id


class TestAProgramKilledInTheMiddle:
    def test_has_its_call_ended_in_words_and_not_done_again(
        self, killed: str, sessions: Sessions, tmp_path: Path
    ) -> None:
        session = sessions.resume(killed, tools={"once": lambda path: "new"})
        result = session.cell("c")
        assert (result.status, result.value) == ("ok", "42")
        assert "the program that offered this tool has ended" in result.stdout
        assert (tmp_path / "note").read_text() == "done\n"
        later = session.execute("tools.once('x'), x")
        assert (later.value, later.kernel.reused) == ("('new', 41)", True)

    def test_is_told_when_its_kernel_went_too(self, any_host: Host, killed: str, sessions: Sessions) -> None:
        any_host.clear()
        session = sessions.resume(killed)
        assert session.cell("c").status == "lost"
        result = session.execute("tools")
        assert (result.value, result.kernel.state_lost) == ("<tools: none are offered here>", True)
        with pytest.raises(ConfigError, match="'once'"):
            session.execute("1", tools=["once"])
