"""`jupyter albedo mcp`: serve sessions to an agent over the Model Context Protocol."""

from __future__ import annotations

import argparse

from ..errors import AlbedoError

_DESCRIPTION = """\
Serve kernels on your hosts to an agent over the Model Context Protocol, on standard input and output.

The agent gets the tools execute, status, interrupt, reset and hosts. Put it into the agent's configuration as a server
with the command "jupyter-albedo" and the arguments ["mcp"]. When the agent goes away its kernels are ended; with --keep
they stay, for as long as idle kernels do (a day).
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "mcp",
        help="serve kernels to an agent over the Model Context Protocol",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--owner", default="mcp", metavar="NAME", help="whose the sessions are (default: mcp)")
    parser.add_argument("--keep", action="store_true", help="leave the kernels running when the agent goes away")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until standard input ends."""
    try:
        from ..sessions.mcp_server import make_server
    except ModuleNotFoundError as error:
        raise AlbedoError(
            f"This takes the Model Context Protocol's Python SDK, version 2 ({error}). Install it with: "
            "pip install 'albedo-provisioner[mcp]'"
        ) from None
    import asyncio

    from ..sessions.faces import AsyncSessions

    async def serve() -> None:
        sessions = AsyncSessions()
        try:
            await make_server(sessions, arguments.owner).run_stdio_async()
        finally:
            await (sessions.leave() if arguments.keep else sessions.close())

    asyncio.run(serve())
    return 0
