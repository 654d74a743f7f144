"""`jupyter albedo doctor`: everything that a kernel on a host depends on, looked at one by one."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING

from ..errors import LocationError
from .table import printable
from .waiting import waiting

if TYPE_CHECKING:
    from ..hosts.doctor.findings import Finding

_DESCRIPTION = """\
Examine a host, or a location, for everything that a kernel there depends on: from the ssh config, the name and the
sign-in to the Python, its packages, room on the disk, the private directory, and the way there. Each line says "ok",
"note" (worth knowing; kernels work all the same) or "problem", and what to do.

It takes some seconds, uses one connection and puts nothing on the host. A host out of reach is told of as far as can be
said from here. The exit status is 1 when something keeps a kernel from starting there.
"""

_COLOURS = {"ok": "32", "note": "33", "problem": "31"}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "doctor",
        help="examine a host for all that a kernel there depends on",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "place", metavar="HOST", type=_place, help="[user@]host, a location such as gpu:~/proj, or . for this machine"
    )
    parser.add_argument("--python", metavar="PATH", help="the interpreter on the host (default: its python3)")
    parser.add_argument("--json", action="store_true", help="as JSON, for programs")
    parser.set_defaults(run=run)


def _place(text: str) -> str:
    from ..hosts.doctor.diagnose import parse_place

    try:
        parse_place(text)
    except LocationError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def run(arguments: argparse.Namespace) -> int:
    """Examine the host and print what is found, line by line as it is known."""
    from ..hosts.hosts import Hosts

    with waiting(f"examining {arguments.place} ...") as line:

        def tell(finding: Finding) -> None:
            if not arguments.json:
                with line.aside():
                    print(_line(finding))

        diagnosis = Hosts().diagnose(arguments.place, python=arguments.python, tell=tell)
    if arguments.json:
        print(json.dumps(diagnosis.to_dict(), indent=2, ensure_ascii=False))
    elif diagnosis.can_start:
        print(f"Nothing keeps a kernel from starting on {diagnosis.host}.")
    else:
        print(f"No kernel can start on {diagnosis.host}: see what is a problem above.")
    return 0 if diagnosis.can_start else 1


def _line(finding: Finding) -> str:
    state = finding.state.ljust(7)
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":
        state = f"\x1b[{_COLOURS[finding.state]}m{state}\x1b[0m"
    words = " ".join(part for part in (finding.text, finding.advice) if part)
    return f"{state}  {finding.check:<10}  {printable(' '.join(words.split()))}"
