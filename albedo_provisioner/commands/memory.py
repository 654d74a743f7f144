"""`jupyter albedo memory`: the memory of a workspace, which is kept on this machine."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from ..errors import LocationError
from ..location import Location, place
from .table import say

if TYPE_CHECKING:
    from ..workspace.memory import WorkspaceMemory

_DESCRIPTION = """\
Read or write the memory of a workspace: plain Markdown files on this machine, which code on the workspace's host can
read and write as well (`from albedo_bundle import memory`). Reading covers the workspaces that are linked with it.

  read            print it (the default)
  path            print the folder that the files are in
  append TEXT     add a text to memory.md       (without TEXT it is taken from standard input)
  save TEXT       have memory.md hold this text and nothing else
  journal TEXT    add an entry to the file of this day
  grep TEXT       print the lines that contain a text
  search WORDS    print the paragraphs that say most about some words
"""

_ACTIONS = ("read", "path", "append", "save", "journal", "grep", "search")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "memory",
        help="read or write the memory of a workspace",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("place", metavar="LOCATION", type=location, help="the workspace")
    parser.add_argument("action", nargs="?", default="read", choices=_ACTIONS, metavar="ACTION", help="see above")
    parser.add_argument("text", nargs="?", metavar="TEXT", help="what to write, or to look for")
    parser.add_argument("--limit", metavar="NUMBER", type=int, help="how many lines or paragraphs at most")
    parser.set_defaults(run=run)


def location(text: str) -> Location:
    """Read a location as a person types it.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    try:
        return place(text)
    except LocationError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(arguments: argparse.Namespace) -> int:
    """Do what is wanted."""
    from ..workspace.folders import memory_folder
    from ..workspace.memory import WorkspaceMemory

    memory = WorkspaceMemory(with_home(arguments.place))
    action, text = arguments.action, arguments.text
    if action == "read":
        text_there = memory.read()
        if sys.stdout.isatty():
            say(text_there.removesuffix("\n"))
        else:
            sys.stdout.write(text_there)
    elif action == "path":
        say(memory_folder(memory.store.location))
    elif action in ("grep", "search"):
        return _find(memory, action, text, arguments.limit)
    else:
        {"append": memory.append, "save": memory.save, "journal": memory.journal}[action](
            sys.stdin.read() if text is None else text
        )
    return 0


def with_home(typed: Location) -> Location:
    """Return a location with its absolute path; what needs ssh is imported only if a host has to be asked for it.

    Raises:
        HostError: the host cannot be asked.
    """
    if not typed.needs_home:
        return typed
    from ..hosts import io_thread
    from ..workspace.asking import absolute

    return io_thread.run_blocking(absolute(typed))


def _find(memory: WorkspaceMemory, action: str, text: str | None, limit: int | None) -> int:
    """Print what is found; the exit status is 1 when nothing is, as grep's."""
    if not text:
        say(
            f"jupyter albedo: {action} what? Give a text: jupyter albedo memory LOCATION {action} TEXT", file=sys.stderr
        )
        return 2
    bound = {} if limit is None else {"limit": limit}
    hits = memory.grep(text, **bound) if action == "grep" else memory.search(text, **bound)
    for hit in hits:
        say(hit)
    return 0 if hits else 1
