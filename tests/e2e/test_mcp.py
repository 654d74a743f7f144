"""Sessions over the Model Context Protocol, as the official SDK's own client sees them, over stdio."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from crash import albedo
from faces import Embedded, Host
from kernels import eventually, started
from mcp import Client, StdioServerParameters
from mcp.types import CallToolResult, ImageContent, TextContent
from procs import wait_until

from albedo_provisioner.kernels.records import KernelRecords
from albedo_provisioner.sessions.mcp_server import shown
from albedo_provisioner.sessions.results import KernelReport, Result

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="


@asynccontextmanager
async def agent(*arguments: str, cwd: Path | None = None) -> AsyncIterator[Client]:
    """Start the server as an agent does, and connect to it."""
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "albedo_provisioner", "mcp", *arguments], env=dict(os.environ), cwd=cwd
    )
    async with Client(server) as client:
        yield client


def text(result: CallToolResult) -> str:
    first = result.content[0]
    assert isinstance(first, TextContent)
    return first.text


def content(result: CallToolResult) -> dict[str, Any]:
    assert result.structured_content is not None
    return result.structured_content


async def test_the_tools_and_what_they_are_for_are_told(tmp_path: Path) -> None:
    async with agent(cwd=tmp_path) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"execute", "execute_in_notebook", "context", "status", "interrupt", "reset", "hosts"}
        assert all(tool.description for tool in tools.values())
        assert set(tools["execute"].input_schema["required"]) == {"location", "code"}
        for location, path in ((".", str(tmp_path)), ("./rel", f"{tmp_path}/rel")):
            assert content(await client.call_tool("status", {"location": location}))["location"] == path


async def test_an_agent_is_told_what_to_know_of_a_folder(embedded_host: Embedded) -> None:
    embedded_host.write("proj/AGENTS.md", "Run the tests with `make test`.")
    where = {"location": embedded_host.location("proj")}
    async with agent() as client:
        told = ""
        while "make test" not in told:  # a busy machine's host may take longer than is waited for
            told = text(await client.call_tool("context", where))
        assert f"execute on {embedded_host.alias} (" in told
        await client.call_tool("execute", {**where, "code": "memory.append('The gate opens at 7.')"})
        assert "The gate opens at 7." in text(await client.call_tool("context", where))


async def test_code_runs_on_a_host_and_keeps_its_state_until_a_reset(any_host: Host) -> None:
    where = {"location": any_host.location()}
    async with agent() as client:
        first = await client.call_tool("execute", {**where, "code": "x = 41\nprint('hello')\nx + 1"})
        assert text(first) == "hello\n[value] 42"
        assert content(first)["kernel"]["host"] == (any_host.alias or "this machine")
        second = await client.call_tool("execute", {**where, "code": "x"})
        assert (text(second), content(second)["kernel"]["reused"]) == ("[value] 41", True)
        assert "number of items" in text(await client.call_tool("execute", {**where, "code": "len?"}))
        long = await client.call_tool("execute", {**where, "code": "'v' * 9_000_000"})
        assert (len(text(long)) < 210_000, content(long)["value_clipped"]) == (True, True)
        assert text(long).endswith(content(long)["kernel"]["note"])
        assert len(json.dumps(content(long))) < 500_000
        other = await client.call_tool("execute", {**where, "code": "x", "kernel": "other"})
        assert "NameError" in text(other)
        assert not other.is_error
        assert "print parts of it" in text(long)
        assert "full_value()" not in text(long) + json.dumps(content(long))
        assert "The kernel was ended" in text(await client.call_tool("reset", where))
        assert "no kernel to end" in text(await client.call_tool("reset", {**where, "kernel": "never"}))
        assert "NameError" in text(await client.call_tool("execute", {**where, "code": "x"}))
        name = await client.call_tool("execute", {**where, "code": "import os\nprint(os.fsdecode(b'\\xff'))"})
        assert (text(name), content(name)["stdout"]) == (r"\udcff", "\\udcff\n"), "what no message can carry"
        late = await client.call_tool("execute", {**where, "code": "import time\ntime.sleep(600)", "timeout": 1})
        assert "[timeout]" in text(late)
        assert "kept" in text(late)
    await eventually(lambda: not any_host.processes())


async def test_code_that_runs_can_be_looked_at_and_interrupted(embedded_host: Embedded) -> None:
    where = {"location": embedded_host.location()}
    async with agent() as client:
        code = "job = run('sleep', '600')\nopen('begun', 'w')\nimport time\ntime.sleep(600)"
        running = asyncio.create_task(client.call_tool("execute", {**where, "code": code}))

        async def interrupted() -> bool:
            return "was interrupted" in text(await client.call_tool("interrupt", where))

        await eventually((embedded_host.home / "begun").exists)

        async def jobs() -> list[str]:
            status = content(await client.call_tool("status", where))
            assert status["execution_state"] == "busy"
            return [job["command"] for job in status["jobs"]]

        # Nothing is asked for a status, and the word of a cell's job comes beside what the cell does.
        assert await eventually(jobs) == ["sleep 600"]
        assert await interrupted()
        assert "KeyboardInterrupt" in text(await running)
        assert "No code" in text(await client.call_tool("interrupt", where))


async def test_code_runs_in_the_kernel_of_a_notebook(embedded_host: Embedded) -> None:
    """L8."""
    options = {"env": {**os.environ, "JPY_SESSION_NAME": "/nb/a.ipynb"}}
    async with started(embedded_host.location(), options=options) as person, agent() as client:
        await person.run("x = 41")
        where = {"notebook": "/nb/a.ipynb"}
        assert text(await client.call_tool("execute_in_notebook", {**where, "code": "y = x + 1\ny"})) == "[value] 42"
        assert await person.value("y") == "42"
        other = await client.call_tool("execute_in_notebook", {"notebook": "/nb/b.ipynb", "code": "1"})
        assert other.is_error
        assert "No kernel is known" in text(other)


async def test_images_come_as_images(embedded_host: Embedded) -> None:
    code = f"import base64\nfrom IPython.display import Image, display\ndisplay(Image(base64.b64decode({PIXEL!r})))"
    async with agent() as client:
        result = await client.call_tool("execute", {"location": embedded_host.location(), "code": code})
        (image,) = [each for each in result.content if isinstance(each, ImageContent)]
        assert image.mime_type == "image/png"
        assert base64.b64decode(image.data) == base64.b64decode(PIXEL)


async def test_hosts_are_listed_and_asked(embedded_host: Embedded) -> None:
    async with agent() as client:
        listed = content(await client.call_tool("hosts", {}))["result"]
        assert listed == [{"host": embedded_host.alias, "source": "config"}]
        (state,) = content(await client.call_tool("hosts", {"probe": [str(embedded_host.alias)]}))["result"]
        assert state["state"] == "ready"


async def test_what_cannot_be_run_is_an_error_that_says_why(embedded_host: Embedded) -> None:
    async with agent() as client:
        result = await client.call_tool("execute", {"location": "-oProxyCommand=id:/", "code": "1"})
        assert result.is_error
        assert "Not a location" in text(result)
        embedded_host.server.behave(refuse_auth=True)
        result = await client.call_tool("execute", {"location": embedded_host.location(), "code": "1"})
        assert result.is_error
        assert content(result)["state"] == "needs_auth"
        assert "Permission denied" in text(result)


async def test_with_keep_the_kernel_outlives_the_agent(embedded_host: Embedded) -> None:
    async with agent("--keep", "--owner", "me") as client:
        await client.call_tool("execute", {"location": embedded_host.location(), "code": "x = 41"})
    (kernel,) = [line for line in albedo("kernels").splitlines() if embedded_host.alias and embedded_host.alias in line]
    assert "idle" in kernel
    albedo("stop", kernel.split()[0])


def request(number: int, method: str, **params: Any) -> str:
    """Return a request as it goes over the wire."""
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + "\n"


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_its_kernels_also_under_a_cell_that_takes_no_notice(
    embedded_host: Embedded, signum: signal.Signals
) -> None:
    command = [sys.executable, "-m", "albedo_provisioner", "mcp"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        server.stdin.write(request(1, "initialize", **client))
        server.stdin.flush()
        assert "albedo" in server.stdout.readline()
        server.stdin.write('{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
        code = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nopen('begun', 'w')\ntime.sleep(600)"
        call = {"name": "execute", "arguments": {"location": embedded_host.location(), "code": code}}
        server.stdin.write(request(2, "tools/call", **call))
        server.stdin.flush()
        wait_until((embedded_host.home / "begun").exists, what="the cell runs")
        began = time.monotonic()
        server.send_signal(signum)
        assert server.wait(30) == -signum
        assert time.monotonic() - began < 8, "within what it takes at most, and a busy machine's time"
    assert not embedded_host.processes()
    assert KernelRecords().all() == []


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (Result("ok"), "[ok, no output]"),
        (Result("lost", stdout="a\n", kernel=KernelReport(note="gone.")), "a\n[lost]\n[note] gone."),
        (Result("error", stderr="b\n", error="E: e", traceback="T"), "[stderr]\nb\n[error]\nT"),
    ],
)
def test_a_result_is_text_for_a_model(result: Result, expected: str) -> None:
    assert text(shown(result)) == expected
