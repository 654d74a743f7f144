"""`jupyter albedo stop`: end kernels on their hosts, and prove it."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from ..errors import AlbedoError, HostError, LinkAwayError
from .kernels import add_timeout
from .table import printable, say
from .waiting import Waiting, waiting

if TYPE_CHECKING:
    from ..kernels.survey import FoundKernel

_DESCRIPTION = """\
End kernels on their hosts: the kernel, everything it started, and its keeper; that nothing is left is looked up there.

A kernel whose host is out of reach is noted as "ending": it is ended at the next contact with its host, when a kernel
is started or found again there, or at the next `jupyter albedo kernels`. The exit status is 1 then.
"""

_NAME = "jupyter albedo stop"

_TIMEOUT = 30.0
"""Seconds for the way to a host and the end there: asking politely, TERM, KILL, and looking again."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "stop",
        help="end kernels on their hosts",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    which = parser.add_mutually_exclusive_group(required=True)
    # An empty list as the default: to argparse a positional of a group must be one that can be left out.
    which.add_argument(
        "ids", nargs="*", default=[], metavar="ID", help="an id, or its beginning, as `kernels` shows it"
    )
    which.add_argument("--notebook", metavar="PATH", help="the kernels of this notebook")
    add_timeout(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """End them, side by side, and say for each what came of it."""
    from ..hosts import io_thread
    from ..kernels import find
    from ..kernels.survey import DEADLINE

    deadline = arguments.timeout or DEADLINE
    status = 0
    kernels: dict[str, FoundKernel] = {}
    with waiting("looking for the kernels ...") as line:
        if arguments.notebook is not None:
            kernels = {kernel.kernel_id: kernel for kernel in find.by_notebook(arguments.notebook, deadline)}
        if arguments.ids:
            found, errors = find.by_ids(arguments.ids, deadline)
            kernels = {kernel.kernel_id: kernel for kernel in found}
            status = 1 if errors else 0
            with line.aside():
                for error in errors:
                    # The others are ended all the same.
                    say(f"jupyter albedo: {error}", file=sys.stderr)

    with waiting("ending, and looking whether anything is left ...") as line:

        async def end_all() -> list[bool]:
            import asyncio

            timeout = arguments.timeout or _TIMEOUT
            return await asyncio.gather(*(_end(kernel, timeout, line) for kernel in kernels.values()))

        return status if all(io_thread.run_blocking(end_all())) else 1


async def _end(kernel: FoundKernel, timeout: float, line: Waiting) -> bool:
    """End one kernel and say what came of it; whether nothing is left."""
    try:
        ended: dict[str, Any] | AlbedoError = await end_kernel(kernel, timeout)
    except AlbedoError as error:
        ended = error
    with line.aside():
        return _tell(kernel, ended)


def _tell(kernel: FoundKernel, ended: dict[str, Any] | AlbedoError) -> bool:
    """Say what came of ending a kernel; whether nothing is left."""
    name = f"{kernel.short_id} on {kernel.host_name}"
    if isinstance(ended, (HostError, LinkAwayError)):
        say(f"jupyter albedo: {ended}", file=sys.stderr)
        if kernel.record is not None:
            say(f"Kernel {name} is to be ended, which will be done at the next contact with its host.")
        return False
    if isinstance(ended, AlbedoError):
        say(f"jupyter albedo: kernel {name} is not proven to have ended: {ended}", file=sys.stderr)
        return False
    left = [*ended["survivors"], *ended["foreign"]]
    for process in left:
        say(
            f"jupyter albedo: process {process['pid']} ({printable(process['name'])}) is left on {kernel.host_name}:"
            f" {process['why']}",
            file=sys.stderr,
        )
    if not left:
        say(f"Ended {name} ({printable(kernel.notebook or kernel.folder)})")
    return not left


async def end_kernel(kernel: FoundKernel, timeout: float) -> dict[str, Any]:
    """End a kernel with all that it started, and its keeper; on the I/O thread.

    Returns:
        the report of what was ended and what is left, see `bundle/ladder.py`.

    Raises:
        AlbedoError: its host could not be asked, or it is not proven. Its record then says "ending".
    """
    import asyncio
    from dataclasses import replace

    from ..errors import ConfigError, KernelGoneError, UnreachableError
    from ..kernels.endings import end_at, note_if_possible
    from ..kernels.journal import visiting
    from ..kernels.records import ENDING, KernelRecords, this_process

    records = KernelRecords()
    if kernel.record is not None:
        # Before the host is asked, and in this process's name, which ends soon: whoever is in contact with the host
        # then sees to it, also when a Jupyter Server that never will be has the kernel open.
        try:
            records.put(replace(kernel.record, state=ENDING, owner=this_process()))
            records.note_ending(kernel.kernel_id, f"was ended with `{_NAME}` (process {os.getpid()})")
        except ConfigError:  # the disk is full, say: that much is noted all the same
            note_if_possible(records.set_state, kernel.kernel_id, ENDING)
    try:
        async with asyncio.timeout(timeout):
            started = 0.0
            try:
                # By the keeper's own hand, for it alone answers with what it found in the end.
                async with visiting(kernel.host, kernel.kernel_id, kernel.python, _NAME) as (link, visitor):
                    started = float(visitor.facts.get("started") or 0.0)
                    report = (await link.call("finish", term_grace=2.0))["report"]
            except (KernelGoneError, UnreachableError):  # there is none, or it does not answer although its host may
                report = await end_at(kernel.host, kernel.python, kernel.kernel_id, started)
    except TimeoutError:
        raise UnreachableError(
            kernel.host_name, f"{kernel.host_name} did not answer within {timeout:g} s.", f"no answer in {timeout:g} s"
        ) from None
    if not report["survivors"]:
        note_if_possible(records.remove_ended, kernel.kernel_id)
    return dict(report)
