"""Sessions for agents of any language: a server of the Model Context Protocol (https://modelcontextprotocol.io).

Needs the official Python SDK, which is an extra: `pip install 'albedo-provisioner[mcp]'`.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Annotated, Any

from mcp.server.mcpserver import MCPServer
from mcp.types import CallToolResult, ImageContent, TextContent
from pydantic import Field

from .. import __version__
from ..errors import AlbedoError
from ..hosts.hosts import AsyncHosts
from .clipping import ClippedText
from .faces import AsyncSession, AsyncSessions
from .outputs import WHOLE, Limits, plain
from .results import Result

_INSTRUCTIONS = """\
Run Python on the user's own hosts, in kernels that keep their state between calls. A location is host:/absolute/path or
host:~/path (hosts as in the user's ssh config), or a path on this machine. Always read the note of a result:
it says when the state of earlier calls is gone, and why. Programs that take long run as jobs, without a shell:
job = run("make", "-j8") in one call; job.tail(), job.exit_code, job.stop() or `await job` in later ones. The tool
status lists them. Begin work in a folder with the tool context. What is worth knowing later goes into notes that stay
with the user: memory.append("..."), and memory.search("words") finds it again.
"""

_FIRST_LOOK = 5.0
"""Seconds that a host has to say what an agent should know; what is known without it is told all the same."""

_LIMITS = Limits(displays=5_000_000)

_MOST_TEXT = 500_000
"""Characters of a result's text for a model."""

_NO_TEXT = re.compile("[\ud800-\udfff]")

_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")

Location = Annotated[
    str,
    Field(
        description="where: host:/absolute/path, host:~/path, /path here, ./path below where this server was started"
    ),
]
Kernel = Annotated[str, Field(description="a name, to have several kernels at one location that share nothing")]


def make_server(sessions: AsyncSessions, owner: str) -> MCPServer:
    """Return a server that offers sessions of one owner.

    Args:
        sessions: the sessions; who made them ends them.
        owner: whose they are.
    """
    server = MCPServer("albedo", instructions=_INSTRUCTIONS, version=__version__, log_level="WARNING")

    async def session_at(location: str, kernel: str) -> AsyncSession:
        return await sessions.open(location, f"{owner}::{kernel}" if kernel else owner)

    @server.tool(structured_output=False)
    async def execute(
        location: Location,
        code: Annotated[str, Field(description="Python code; the value of its last expression is returned")],
        timeout: Annotated[
            float | None, Field(description="seconds after which it is interrupted; null for no limit")
        ] = 300,
        reset: Annotated[bool, Field(description="run it on a fresh kernel")] = False,
        kernel: Kernel = "",
    ) -> CallToolResult:
        """Run code where the user's files are, and return what came of it. Variables stay for the next call."""
        try:
            session = await session_at(location, kernel)
            # A person cannot be waited for here: the agent has to be able to say that they are needed.
            result = await session.execute(code, timeout=timeout, reset=reset, limits=_LIMITS, wait_for_sign_in=False)
        except AlbedoError as error:
            return _refusal(error)
        return shown(result)

    @server.tool(structured_output=False)
    async def execute_in_notebook(
        notebook: Annotated[
            str, Field(description="path of a notebook on this machine that a person has open, or its kernel's id")
        ],
        code: Annotated[str, Field(description="code; the value of its last expression is returned")],
        timeout: Annotated[
            float | None, Field(description="seconds after which it is interrupted; null for no limit")
        ] = 300,
    ) -> CallToolResult:
        """Run code in the very kernel of a person's notebook, on the same variables. It is the person's to end."""
        by_path = "/" in notebook or notebook.endswith(".ipynb")
        try:
            session = await sessions.join(
                None if by_path else notebook, notebook=notebook if by_path else None, owner=owner
            )
            result = await session.execute(code, timeout=timeout, limits=_LIMITS, wait_for_sign_in=False)
        except AlbedoError as error:
            return _refusal(error)
        return shown(result)

    @server.tool(structured_output=False)
    async def context(location: Location) -> CallToolResult:
        """Say what to know before working in a folder: where it is, instructions, skills, notes, linked folders."""
        try:
            return _text((await (await session_at(location, "")).context(wait=_FIRST_LOOK)).text)
        except AlbedoError as error:
            return _refusal(error)

    @server.tool(structured_output=False)
    async def status(location: Location, kernel: Kernel = "") -> CallToolResult:
        """Say what a kernel is doing, and whether its host is within reach. Nothing is asked of the host."""
        try:
            return _json(await (await session_at(location, kernel)).status())
        except AlbedoError as error:
            return _refusal(error)

    @server.tool(structured_output=False)
    async def interrupt(location: Location, kernel: Kernel = "") -> CallToolResult:
        """Interrupt the code that runs; the state of earlier calls stays."""
        try:
            done = await (await session_at(location, kernel)).interrupt()
        except AlbedoError as error:
            return _refusal(error)
        return _text("The code was interrupted." if done else "No code was running.")

    @server.tool(structured_output=False)
    async def reset(location: Location, kernel: Kernel = "") -> CallToolResult:
        """End a kernel with all that it started; the next call runs on a fresh one."""
        try:
            session = await session_at(location, kernel)
            had_one = (await session.status())["kernel_id"] is not None
            await session.reset()
        except AlbedoError as error:
            return _refusal(error)
        done = "The kernel was ended; the next call starts a fresh one."
        return _text(done if had_one else "There was no kernel to end; the next call starts one.")

    @server.tool(structured_output=False)
    async def hosts(
        probe: Annotated[
            list[str] | None, Field(description="hosts to ask what they are; none: list those that are known")
        ] = None,
    ) -> CallToolResult:
        """List the user's hosts, or ask some of them whether a kernel could run there."""
        known = AsyncHosts()
        try:
            if probe:
                return _json([state.to_dict() for state in (await known.probe_all(probe)).values()])
            return _json([{"host": host.host, "source": host.source} for host in known.list()])
        except AlbedoError as error:
            return _refusal(error)

    return server


def shown(result: Result) -> CallToolResult:
    """Return a result as text for a model, its images as images, and all of it as structured content."""
    note = result.kernel.note
    for name in ("value", "error", "traceback", "next_input"):  # no model can call what a program can
        note = note and note.replace(WHOLE.format(name), "print parts of it to see more")
    result = replace(result, kernel=replace(result.kernel, note=note))
    lines = []
    if result.stdout:
        lines.append(result.stdout.rstrip("\n"))
    if result.stderr:
        lines.append(f"[stderr]\n{result.stderr.rstrip()}")
    for output in result.outputs:
        data = output.get("data") or {}
        text = data.get("text/plain")
        if output["output_type"] == "display_data" and isinstance(text, str) and not any(map(data.get, _IMAGES)):
            lines.append(plain(text).rstrip("\n"))
    if result.value is not None:
        lines.append(f"[value] {result.value}")
    if result.next_input is not None:
        lines.append(f"[next input]\n{result.next_input.rstrip()}")
    if result.traceback:
        lines.append(f"[{result.status}]\n{result.traceback}")
    elif result.status != "ok":
        lines.append(f"[{result.status}]")
    if result.kernel.note:
        lines.append(f"[note] {result.kernel.note}")
    text = ClippedText.of("\n".join(lines) or "[ok, no output]", _MOST_TEXT, None).text
    content: list[Any] = [TextContent(type="text", text=_fit(text))]
    structured = json.loads(_fit(json.dumps(result.to_dict(), ensure_ascii=False), in_json=True))
    for output in structured["outputs"]:
        data = output.get("data") or {}
        for kind in _IMAGES:
            if isinstance(data.get(kind), str):
                content.append(ImageContent(type="image", data=data.pop(kind).replace("\n", ""), mime_type=kind))
    return CallToolResult(content=content, structured_content=structured)


def _fit(text: str, *, in_json: bool = False) -> str:
    """Return a text with escapes for lone surrogates, which what code prints may have, and no message can carry."""
    escape = r"\\u" if in_json else r"\u"
    return _NO_TEXT.sub(lambda found: f"{escape}{ord(found[0]):04x}", text)


def _text(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=_fit(text))])


def _json(content: Any) -> CallToolResult:
    text = _fit(json.dumps(content, indent=1, ensure_ascii=False), in_json=True)
    content = json.loads(text)
    structured = content if isinstance(content, dict) else {"result": content}
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=structured)


def _refusal(error: AlbedoError) -> CallToolResult:
    structured = {"error": str(error), "state": getattr(error, "state", None)}
    return CallToolResult(
        content=[TextContent(type="text", text=str(error))], structured_content=structured, is_error=True
    )
