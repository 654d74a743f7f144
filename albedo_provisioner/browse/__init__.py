"""Looking at a folder, on this machine or on a host, before anybody works in it.

    from albedo_provisioner import browse

    browse.list("gpu:")                 # folders to choose from, in the home there
    browse.repo("gpu:~/proj").branch    # which repository it is, and in which state
    browse.preview("~/proj").languages  # what it is made of

Each of them goes to the host once, over the connection that the process has to it already if it has one. What answers
there waits for the next look for half a minute, which then takes a single round trip. It is all the same for a local
folder: it is the same code that looks, on the host or here, and only gathers facts. With an event
loop, use `list_async`, `repo_async` and `preview_async`; to look at several places side by side, `asyncio.gather` them,
or `list_all`, `repo_all` and `preview_all`, which return for each place what came of it, errors included.

Places are given as people write them: `host:~/proj`, `host:` (the home), `~`, a relative path with a "/" in it. A
folder with a name that no location can spell is named by a folder above it, and its path `below` that.

All of them raise (see `albedo_provisioner.errors`), with the host and its state on the error:

- `LocationError`: that is no place;
- `UnreachableError`, `SignInError`, `UnsupportedHostError`: nobody can look there now, or not at all;
- `NoSuchFolderError`, `NotAFolderError`, `NoPermissionError`: it cannot be looked at (all are `FolderError`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from ..errors import AlbedoError
from ..hosts import io_thread
from .listing import Entry, Listing
from .listing import listing as _listing
from .preview import Language, Node, Preview
from .preview import preview as _preview
from .repository import Repository
from .repository import repository as _repository
from .visit import TIMEOUT, Place, look, placed

__all__ = [
    "TIMEOUT",
    "Entry",
    "Language",
    "Listing",
    "Node",
    "Preview",
    "Repository",
    "list",
    "list_all",
    "list_async",
    "preview",
    "preview_all",
    "preview_async",
    "repo",
    "repo_all",
    "repo_async",
]

MOST_ENTRIES = 2000
"""Entries of a listing, at most."""

Answer = TypeVar("Answer")


async def list_async(
    location: Place,
    *,
    below: str | bytes = "",
    files: bool = False,
    python: str | None = None,
    timeout: float = TIMEOUT,
) -> Listing:
    """Return what is in a folder: its folders, and the rest if that is wanted.

    Args:
        location: the folder.
        below: the path of another one, relative to it; bytes, or text as in `Entry.name`.
        files: files and all else are wanted, too. Links that lead nowhere are always told.
        python: interpreter of the host that does the looking; None for the login shell's `python3`.
        timeout: seconds that it may take.

    Raises:
        LocationError: `location` or `below` is none.
        HostError: (a subclass) see the package.
    """
    place = placed(location)
    return _listing(place.host, await look(place, "list", below, python, timeout, files=files, most=MOST_ENTRIES))


async def repo_async(
    location: Place, *, below: str | bytes = "", python: str | None = None, timeout: float = TIMEOUT
) -> Repository:
    """Return which repository a folder is in, and in which state that is.

    Nothing of the repository's own is run for it (hooks, `core.fsmonitor`, filters of its config), and nothing is
    written. Args and errors are those of `list_async`.
    """
    place = placed(location)
    return _repository(place.host, await look(place, "repo", below, python, timeout))


async def preview_async(
    location: Place, *, below: str | bytes = "", python: str | None = None, timeout: float = TIMEOUT
) -> Preview:
    """Return what a folder is made of: languages by bytes, and a tree of two levels.

    At most 50,000 files are looked at. Args and errors are those of `list_async`.
    """
    place = placed(location)
    return _preview(place.host, await look(place, "preview", below, python, timeout))


def repo(
    location: Place, *, below: str | bytes = "", python: str | None = None, timeout: float = TIMEOUT
) -> Repository:
    """Return which repository a folder is in; blocking, see `repo_async`."""
    return io_thread.run_blocking(repo_async(location, below=below, python=python, timeout=timeout))


def preview(
    location: Place, *, below: str | bytes = "", python: str | None = None, timeout: float = TIMEOUT
) -> Preview:
    """Return what a folder is made of; blocking, see `preview_async`."""
    return io_thread.run_blocking(preview_async(location, below=below, python=python, timeout=timeout))


def list_all(places: Iterable[str], **options: Any) -> Mapping[str, Listing | AlbedoError]:
    """Look into several folders side by side; blocking.

    Args:
        places: the folders.
        options: as for `list`, for each of them; so each is bounded by the `timeout`.

    Returns:
        for each place its listing, or the error that `list` would have raised.
    """
    return io_thread.run_blocking(_side_by_side(list_async, places, options))


def repo_all(places: Iterable[str], **options: Any) -> Mapping[str, Repository | AlbedoError]:
    """Ask for several folders' repositories side by side; see `list_all`."""
    return io_thread.run_blocking(_side_by_side(repo_async, places, options))


def preview_all(places: Iterable[str], **options: Any) -> Mapping[str, Preview | AlbedoError]:
    """Ask what several folders are made of, side by side; see `list_all`."""
    return io_thread.run_blocking(_side_by_side(preview_async, places, options))


async def _side_by_side(
    ask: Callable[..., Awaitable[Answer]], places: Iterable[str], options: Mapping[str, Any]
) -> Mapping[str, Answer | AlbedoError]:
    async def one(place: str) -> Answer | AlbedoError:
        try:
            return await ask(place, **options)
        except AlbedoError as error:
            return error

    names = tuple(dict.fromkeys(places))
    return dict(zip(names, await asyncio.gather(*map(one, names)), strict=True))


# Last, as from here on the name no longer means Python's own.
def list(
    location: Place,
    *,
    below: str | bytes = "",
    files: bool = False,
    python: str | None = None,
    timeout: float = TIMEOUT,
) -> Listing:
    """Return what is in a folder; blocking, see `list_async`."""
    return io_thread.run_blocking(list_async(location, below=below, files=files, python=python, timeout=timeout))
