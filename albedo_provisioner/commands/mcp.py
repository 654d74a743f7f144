"""`jupyter albedo mcp`: serve sessions to an agent over the Model Context Protocol."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import TYPE_CHECKING

from ..errors import AlbedoError

if TYPE_CHECKING:
    import asyncio

_DESCRIPTION = """\
Serve kernels on your hosts to an agent over the Model Context Protocol, on standard input and output.

The agent gets the tools execute, status, interrupt, reset and hosts. Put it into the agent's configuration as a server
with the command "jupyter-albedo" and the arguments ["mcp"]. When the agent goes away its kernels are ended; with --keep
they stay, for as long as idle kernels do (a day). It goes away by the end of standard input, or by SIGTERM or SIGHUP.
"""

_PATIENCE = 1.0
"""Seconds that code which runs is given to obey its interrupt at the end."""

_LAST_SECONDS = 5.0
"""Seconds that are taken for the end after a signal: who sent it may kill us after a few."""


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
    """Serve until standard input ends, or a signal ends us."""
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
        signalled = _signalled()
        sessions = AsyncSessions()
        serving = asyncio.create_task(make_server(sessions, arguments.owner).run_stdio_async())
        await asyncio.wait((serving, signalled), return_when=asyncio.FIRST_COMPLETED)
        closing = asyncio.create_task(sessions.leave() if arguments.keep else sessions.close(patience=_PATIENCE))
        await asyncio.wait((closing, signalled), return_when=asyncio.FIRST_COMPLETED)
        if signalled.done():
            await asyncio.wait([closing], timeout=_LAST_SECONDS)
            if not closing.done() or closing.exception() is not None:
                why = (
                    closing.exception()
                    if closing.done()
                    else f"not within {_LAST_SECONDS:g} s; `jupyter albedo kernels` shows and ends what is left"
                )
                print(f"jupyter albedo: the kernels were not all seen to end: {why}", file=sys.stderr)
            _die(signalled.result())
        await closing
        serving.result()

    asyncio.run(serve())
    return 0


def _signalled() -> asyncio.Future[signal.Signals]:
    """Return what is done once a signal wants us to end."""
    import asyncio

    loop = asyncio.get_running_loop()
    came: asyncio.Future[signal.Signals] = loop.create_future()

    def take(signum: signal.Signals) -> None:
        if not came.done():
            came.set_result(signum)

    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:  # as by nohup
            loop.add_signal_handler(signum, take, signum)
    return came


def _die(signum: signal.Signals) -> None:
    """End by a signal, as whoever sent it expects.

    Nothing else would end us: a thread of the server sits in a read of standard input.
    """
    signal.signal(signum, signal.SIG_DFL)
    sys.stderr.flush()
    os.kill(os.getpid(), signum)
