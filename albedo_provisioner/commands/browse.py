"""`jupyter albedo browse`: look at a folder before anybody works in it."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..location import place
from .table import print_table, printable, say
from .waiting import waiting

if TYPE_CHECKING:
    from ..browse import Listing, Preview, Repository

_DESCRIPTION = """\
Look at a folder of a host, or of this machine: which repository it is in, what it is made of, and what is in it.

Nothing of the repository's own is run for that. Without --only the three are asked for at the same time.
"""

LIST, REPO, PREVIEW = "list", "repo", "preview"
_LANGUAGES = 6


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "browse",
        help="look at a folder of a host",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("place", metavar="LOCATION", help="[user@]host:/absolute/path, host:~/path, host:, or a folder")
    parser.add_argument("--only", choices=(LIST, REPO, PREVIEW), help="ask for one of the three alone")
    parser.add_argument("--files", action="store_true", help="list files, too")
    parser.add_argument("--all", action="store_true", help="list what is hidden, too")
    parser.add_argument("--json", action="store_true", help="as JSON, for programs")
    parser.add_argument("--timeout", metavar="SECONDS", type=float, help="how long to wait (default: 25)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Ask, and print the answers."""
    from ..hosts import io_thread

    location = place(arguments.place)
    if arguments.timeout is not None and not arguments.timeout > 0:
        raise ConfigError(f"--timeout is {arguments.timeout:g}; it is a number of seconds.")
    with waiting(f"looking at {location} ..."):
        answers = io_thread.run_blocking(_ask(str(location), arguments))
    if arguments.json:
        print(json.dumps({name: answer.to_dict() for name, answer in answers.items()}, indent=2, ensure_ascii=False))
        return 0
    told: tuple[str, ...] = ()
    if REPO in answers:
        told = _print_repository(answers[REPO])
    if PREVIEW in answers:
        _print_preview(answers[PREVIEW])
    if LIST in answers:
        _print_listing(answers[LIST], arguments.all)
    for words in dict.fromkeys(words for name in answers if name != LIST for words in answers[name].problems):
        if words not in told:
            say(f"Note: {printable(words)}")
    return 0


async def _ask(location: str, arguments: argparse.Namespace) -> dict[str, Any]:
    import asyncio

    from .. import browse

    timeout = arguments.timeout or browse.TIMEOUT
    asked: dict[str, Callable[[], Awaitable[Any]]] = {
        REPO: lambda: browse.repo_async(location, timeout=timeout),
        PREVIEW: lambda: browse.preview_async(location, timeout=timeout),
        LIST: lambda: browse.list_async(location, files=arguments.files, timeout=timeout),
    }
    names = [arguments.only] if arguments.only else list(asked)
    return dict(zip(names, await asyncio.gather(*(asked[name]() for name in names)), strict=True))


def _print_repository(repo: Repository) -> tuple[str, ...]:
    """Print a line, and return the problems that are told in it."""
    if repo.kind is None:
        say("in no repository")
        return ()
    where = f" at {printable(str(repo.root))}" if repo.root != repo.location and repo.root is not None else ""
    parts = [f"{repo.kind} repository{where}"]
    unknown = []
    if repo.branch is not None:
        parts.append(f"branch {printable(repo.branch)}")
    elif repo.detached:
        parts.append("on no branch")
    elif repo.kind == "git":
        unknown.append("branch")
    if repo.change is not None:
        parts.append(f"change {repo.change[:12]}")
    elif repo.kind == "jj":
        unknown.append("change")
    if repo.commit is not None:
        parts.append(f"commit {repo.commit[:12]}")
    elif repo.unborn:
        parts.append("no commit")
    else:
        unknown.append("commit")
    if repo.changed is not None:
        parts.append(f"{repo.changed} files changed" if repo.changed != 1 else "1 file changed")
    else:
        unknown.append("changes")
    if repo.touched is not None:
        parts.append(f"last touched {_day(repo.touched)}")
    if unknown:
        parts.append(f"unknown: {', '.join(unknown)} ({printable('; '.join(repo.problems))})")
    say(", ".join(parts))
    return repo.problems if unknown else ()


def _print_preview(preview: Preview) -> None:
    total = sum(language.bytes for language in preview.languages)
    shares = [f"{each.name} {100 * each.bytes / total:.0f} %" for each in preview.languages[:_LANGUAGES] if total]
    more = " or more" if preview.truncated else ""
    say(", ".join([f"{preview.tree.files} files, {_size(preview.tree.bytes)}{more}", *shares]))


def _print_listing(listing: Listing, hidden: bool) -> None:
    rows = []
    for entry in listing.entries:
        if entry.hidden and not hidden:
            continue
        name = entry.name + ("/" if entry.kind == "folder" else "")
        size = "-" if entry.size is None else _size(entry.size)
        modified = "-" if entry.modified is None else _day(entry.modified)
        rows.append((name, modified, size, entry.error or entry.vcs or ""))
    if rows:
        print()
        print_table(("NAME", "MODIFIED", "SIZE", ""), rows)
    if listing.truncated:
        say(f"... and more than these {len(listing.entries)}")


def _day(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):  # a file system may hold any number
        return "-"


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 10 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
