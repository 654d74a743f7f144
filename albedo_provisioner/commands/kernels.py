"""`jupyter albedo kernels`: the live kernels on the hosts that we know."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from ..errors import HostError, LocationError
from ..location import parse_host
from .table import print_table, say
from .waiting import waiting

if TYPE_CHECKING:
    from ..kernels.survey import FoundKernel, HostAnswer

_DESCRIPTION = """\
List the kernels that run on other hosts and on this machine, whoever started them and whether or not a notebook is
open on them.

All hosts that are known are asked at the same time: those of kernels on record, those in the kernel picker, and this
machine. A host that cannot be asked is told of below the table, in ssh's words; its kernels on record are listed in
state "unknown", for a host out of reach is not a kernel gone. The exit status is 0 in that case too: `--json` has an
"error" for each host that could not be asked.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "kernels",
        help="list the kernels that run on the hosts",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "hosts", nargs="*", metavar="HOST", type=host, help="ask only these ([user@]host, or . for this machine)"
    )
    parser.add_argument("--json", action="store_true", help="as JSON, for programs")
    add_timeout(parser)
    parser.set_defaults(run=run)


def add_timeout(parser: argparse.ArgumentParser) -> None:
    """Add the option that bounds how long hosts are waited for."""
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=_seconds, help="how long to wait for each host (default: 30)"
    )


def host(text: str) -> str | None:
    """Read a host as it stands in a location; a whole location will do. None is this machine.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    try:
        return parse_host(text)
    except LocationError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above zero")
    return seconds


def run(arguments: argparse.Namespace) -> int:
    """Ask the hosts and print what they have."""
    from ..kernels.survey import DEADLINE, survey

    with waiting("asking the hosts which kernels they have ..."):
        answers = survey(arguments.hosts or None, arguments.timeout or DEADLINE)
    if arguments.json:
        print(json.dumps(_as_json(answers), indent=2, ensure_ascii=False))
        return 0
    kernels = [kernel for answer in answers for kernel in answer.kernels]
    if kernels:
        _print_table(kernels)
    for answer in answers:
        if answer.error is not None:
            say(answer.error)
    if not kernels and all(answer.error is None for answer in answers):
        say("No kernel runs on the hosts that were asked.", file=sys.stderr)
    return 0


def _print_table(kernels: list[FoundKernel]) -> None:
    from ..kernels.survey import when

    rows = []
    for kernel in kernels:
        state = f"{kernel.state} ({kernel.note})" if kernel.note else kernel.state
        notebook = _shorter(kernel.notebook) or "-"
        if kernel.notebook_now:
            notebook += f" ({kernel.notebook_now})"
        memory = "-" if kernel.memory is None else f"{kernel.memory / 1e6:.0f} MB"
        folder = kernel.folder if kernel.host else _shorter(kernel.folder)
        rows.append((kernel.short_id, kernel.host_name, folder, notebook, state, when(kernel.since), memory))
    print_table(("ID", "HOST", "FOLDER", "NOTEBOOK", "STATE", "SINCE", "MEMORY"), rows)


def _shorter(path: str) -> str:
    """Return a path of this machine with `~` for the home."""
    home = os.path.expanduser("~")
    return "~" + path[len(home) :] if home != "/" and path.startswith(home + "/") else path


def _as_json(answers: list[HostAnswer]) -> dict[str, Any]:
    return {
        "hosts": [
            {
                "host": answer.host,
                "error": None if answer.error is None else str(answer.error),
                "detail": answer.error.detail if isinstance(answer.error, HostError) else None,
            }
            for answer in answers
        ],
        "kernels": [
            {
                "kernel_id": kernel.kernel_id,
                "host": kernel.host,
                "folder": kernel.folder,
                "notebook": kernel.notebook or None,
                "notebook_now": kernel.notebook_now or None,
                "state": kernel.state,
                "note": kernel.note or None,
                "since": kernel.since,
                "memory": kernel.memory,
                "pid": kernel.pid,
                "on_record": kernel.record is not None,
            }
            for answer in answers
            for kernel in answer.kernels
        ],
    }
