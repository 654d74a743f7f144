"""Workspaces that are linked: groups of locations on record here, for all processes.

Linking two workspaces merges their groups, unlinking takes one out, and a group of one is none.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import sqlite3
import time
import uuid
from collections.abc import Iterable
from contextlib import AbstractContextManager

from ..database import opened, opened_to_read
from ..errors import WorkspaceLinkError
from ..home import albedo_home
from ..location import Location
from .store import MemoryStore

_SCHEMA = """
CREATE TABLE IF NOT EXISTS members (location TEXT PRIMARY KEY, team TEXT NOT NULL, since REAL NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS news (number INTEGER PRIMARY KEY AUTOINCREMENT, location TEXT NOT NULL, text TEXT NOT NULL)
    STRICT;
"""

_MOST_NEWS = 1000

_TICK = 0.1  # seconds within which a file system's clock may stand still


def link_id(location: Location) -> str:
    """Return the id that a workspace has in lists of links: enough of a digest to tell it from others."""
    return hashlib.sha256(str(location).encode()).hexdigest()[:8]


class WorkspaceGroups:
    """The links of one `$ALBEDO_HOME`. Cheap to make; every call opens the file anew, from any thread.

    Locations have absolute paths.

    Args:
        home: see `albedo_home`.
    """

    def __init__(self, home: str | os.PathLike[str] | None = None) -> None:
        self._path = albedo_home(home) / "links.sqlite"
        self._home = home

    def group(self, location: Location) -> list[Location]:
        """Return the workspaces that are linked with this one, those of longest standing first; it is not among them.

        Raises:
            ConfigError: the record cannot be used.
        """
        if not self._path.exists():
            return []
        with self._open_to_read() as database:
            return [each for each in _members(database, _team(database, location)) if each != location]

    def groups(self) -> list[list[Location]]:
        """Return all groups."""
        if not self._path.exists():
            return []
        with self._open_to_read() as database:
            teams = database.execute("SELECT team FROM members GROUP BY team ORDER BY min(since), team").fetchall()
            return [_members(database, team) for (team,) in teams]

    def link(self, one: Location, other: Location) -> None:
        """Merge the groups of two workspaces; blocking, as ssh may be asked whether two hosts are one.

        Raises:
            WorkspaceLinkError: it is the same workspace (and has no memory by the other name), they are linked already,
                by whatever spelling, or a folder of this machine is not there.
        """
        # Where it was given a memory by the other name before, linking is the one way to have both read.
        if one == other or (_is_one_folder(one, other) and not MemoryStore(other, self._home).has_files):
            raise WorkspaceLinkError(f"{one} cannot be linked with itself{_named_as(one, other)}.")
        for mine, theirs in itertools.product((one, *self.group(one)), (other, *self.group(other))):
            apart = mine not in (one, other) or theirs not in (one, other)
            if mine != theirs and apart and _is_one_folder(mine, theirs):
                raise WorkspaceLinkError(f"{one} and {other} are linked already: {mine} is {theirs}.")
        for location in (one, other):
            if not location.is_remote and not os.path.isdir(location.path):
                raise WorkspaceLinkError(
                    f"{location} cannot be linked: there is no such folder on this machine. Make it first."
                )
        with self._open() as database:
            database.execute("BEGIN IMMEDIATE")
            teams = [_team(database, one), _team(database, other)]
            if teams[0] is not None and teams[0] == teams[1]:
                raise WorkspaceLinkError(f"{one} and {other} are linked already.")
            sides = [_members(database, teams[0]) or [one], _members(database, teams[1]) or [other]]
            team = teams[0] or teams[1] or uuid.uuid4().hex
            for location in (*sides[0], *sides[1]):
                database.execute(
                    "INSERT INTO members VALUES (?1, ?2, ?3) ON CONFLICT (location) DO UPDATE SET team = ?2",
                    (str(location), team, time.time()),
                )
            for here, there in (sides, sides[::-1]):
                _tell(database, here, f"This workspace is linked with {_named(there)} now: memory is read in both.")

    def unlink(self, location: Location) -> None:
        """Take a workspace out of its group.

        Raises:
            WorkspaceLinkError: it is in none.
        """
        with self._open() as database:
            database.execute("BEGIN IMMEDIATE")
            team = _team(database, location)
            others = [each for each in _members(database, team) if each != location]
            if not others:
                raise WorkspaceLinkError(f"{location} is not linked with any workspace.")
            database.execute("DELETE FROM members WHERE location = ?", (str(location),))
            if len(others) == 1:
                database.execute("DELETE FROM members WHERE team = ?", (team,))
            _tell(database, [location], f"This workspace is not linked with {_named(others)} any more.")
            _tell(database, others, f"This workspace is not linked with {location} any more.")

    def _open(self) -> AbstractContextManager[sqlite3.Connection]:
        return opened(self._path, _SCHEMA, "record of links")

    def _open_to_read(self) -> AbstractContextManager[sqlite3.Connection]:
        return opened_to_read(self._path, _SCHEMA, "record of links")


class LinkNews:
    """What becomes of a workspace's links from now on, whoever makes or takes them away. Cheap to ask.

    Args:
        home: see `albedo_home`.
    """

    def __init__(self, home: str | os.PathLike[str] | None = None) -> None:
        self._path = albedo_home(home) / "links.sqlite"
        self._seen = 0
        self._looked: tuple[int, int] | None = None
        if self._look() is not None:
            with self._open_to_read() as database:
                self._seen = int(database.execute("SELECT ifnull(max(number), 0) FROM news").fetchone()[0])

    def take(self, location: Location) -> list[str]:
        """Return what is new of a workspace, a sentence each; the next call has what is new then.

        Raises:
            ConfigError: the record cannot be used.
        """
        looked = self._look()
        if looked is None or looked == self._looked:
            return []
        # A file that has only just changed may change again without it being seen by its time.
        self._looked = looked if looked[0] < (time.time() - _TICK) * 1e9 else None
        with self._open_to_read() as database:
            rows = database.execute(
                "SELECT number, text, location FROM news WHERE number > ? ORDER BY number", (self._seen,)
            ).fetchall()
        self._seen = max((number for number, _, _ in rows), default=self._seen)
        return [text for _, text, where in rows if where == str(location)]

    def _look(self) -> tuple[int, int] | None:
        """Return what changes with the record: an answer takes no opening of it."""
        newest = size = 0
        for suffix in ("", "-wal"):
            try:
                status = os.stat(f"{self._path}{suffix}")
            except FileNotFoundError:
                continue
            newest, size = max(newest, status.st_mtime_ns), size + status.st_size
        return (newest, size) if newest else None

    def _open_to_read(self) -> AbstractContextManager[sqlite3.Connection]:
        return opened_to_read(self._path, _SCHEMA, "record of links")


def _is_one_folder(one: Location, other: Location) -> bool:
    """Whether two locations are one folder: of this machine, by symbolic links, too; of hosts if their ssh config says
    that both are one account of one machine.
    """
    if one == other:
        return True
    if one.host is not None and other.host is not None:
        from ..hosts.openssh_config import leads_to_one_account  # most links are of folders with different paths

        return one.path == other.path and leads_to_one_account(one.host, other.host)
    if one.is_remote or other.is_remote:
        return False
    return os.path.isdir(one.path) and os.path.isdir(other.path) and os.path.samefile(one.path, other.path)


def _named_as(one: Location, other: Location) -> str:
    return "" if one == other else f" by another name, {other}"


def _team(database: sqlite3.Connection, location: Location) -> str | None:
    row = database.execute("SELECT team FROM members WHERE location = ?", (str(location),)).fetchone()
    return None if row is None else str(row[0])


def _members(database: sqlite3.Connection, team: str | None) -> list[Location]:
    rows = database.execute("SELECT location FROM members WHERE team = ? ORDER BY since, location", (team,))
    return [Location.parse(text) for (text,) in rows]


def _named(locations: Iterable[Location]) -> str:
    return ", ".join(map(str, locations))


def _tell(database: sqlite3.Connection, locations: Iterable[Location], text: str) -> None:
    database.executemany("INSERT INTO news (location, text) VALUES (?, ?)", ((str(each), text) for each in locations))
    database.execute("DELETE FROM news WHERE number <= (SELECT max(number) FROM news) - ?", (_MOST_NEWS,))
