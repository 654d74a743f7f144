"""What is in a folder, entry by entry: for a picker of folders, and of files if they are wanted."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..location import Location
from .names import location_of, shown, spelled


@dataclass(frozen=True)
class Entry:
    """One entry of a folder.

    Attributes:
        name: its name; bytes of it that are no UTF-8 are lone surrogates, as in Python's own names of files
            (`os.fsencode` gives the bytes back).
        kind: "folder", "file" or "other"; of a link, what it leads to.
        location: its location; None when its name cannot be part of one (control characters, no UTF-8): such a folder
            is named by its parent's location and `below`.
        modified: when it was last changed, in seconds since the epoch; of a link, what it leads to. None when that
            could not be found out.
        size: a file's size in bytes, else None.
        hidden: its name begins with a dot.
        link: it is a symbolic link.
        vcs: "git" or "jj" when it is the root of a repository, else None.
        error: why it cannot be used, in the host's words: a link that leads nowhere or in a circle, a folder that the
            account may not read, no answer of a file system. None when all is well.
    """

    name: str
    kind: str
    location: Location | None
    modified: float | None
    size: int | None
    hidden: bool
    link: bool
    vcs: str | None
    error: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON; `raw` has the name's bytes in base64 where `name` has lost some."""
        rest = {name: getattr(self, name) for name in ("kind", "modified", "size", "hidden", "link", "vcs", "error")}
        return {**shown(self.name), "location": spelled(self.location), **rest}


@dataclass(frozen=True)
class Listing:
    """What is in a folder.

    Attributes:
        host: the host as the user spells it; None for this machine.
        folder: the folder's absolute path there.
        location: its location; None when its path cannot be spelled as one.
        entries: folders first, each kind by name without regard to case.
        truncated: there are more entries than these.
    """

    host: str | None
    folder: str
    location: Location | None
    entries: tuple[Entry, ...]
    truncated: bool

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return {
            "host": self.host,
            "location": spelled(self.location),
            "entries": [entry.to_dict() for entry in self.entries],
            "truncated": self.truncated,
        }


def listing(host: str | None, facts: Mapping[str, Any]) -> Listing:
    """Return what a host's facts (`bundle/browsing.py`) say of a folder."""
    folder = str(facts["folder"])
    return Listing(
        host,
        folder,
        location_of(host, folder),
        tuple(_entry(host, folder, each) for each in facts["entries"]),
        bool(facts["more"]),
    )


def _entry(host: str | None, folder: str, facts: Mapping[str, Any]) -> Entry:
    name = str(facts["name"])
    return Entry(
        name,
        facts["kind"],
        location_of(host, posixpath.join(folder, name)),
        seconds(facts["modified"]),
        facts["size"],
        name.startswith("."),
        bool(facts["link"]),
        facts["vcs"],
        facts["error"],
    )


def seconds(nanoseconds: int | None) -> float | None:
    """Return a time of a host's facts in seconds since the epoch."""
    return None if nanoseconds is None else nanoseconds / 1e9
