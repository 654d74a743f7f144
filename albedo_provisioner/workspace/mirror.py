"""What hosts said of workspaces when they were asked last, kept here: for when they are out of reach, and for who
cannot wait. One SQLite file under `$ALBEDO_HOME`, for all processes.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from ..database import opened
from ..home import albedo_home
from ..location import Location

UNKNOWN = "unknown"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS workspaces (
    location TEXT PRIMARY KEY,
    asked REAL NOT NULL DEFAULT 0,
    state TEXT NOT NULL DEFAULT 'unknown',
    detail TEXT NOT NULL DEFAULT '',
    told REAL,
    facts TEXT,
    gathered REAL
) STRICT;
CREATE TABLE IF NOT EXISTS badges (
    location TEXT PRIMARY KEY, badge TEXT NOT NULL, detail TEXT NOT NULL, told REAL NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS homes (host TEXT PRIMARY KEY, home TEXT NOT NULL) STRICT;
"""

_MOST = 200
"""Workspaces of which facts are kept. Those of one have a bound of their own, see `bundle/gather.py`."""


@dataclass(frozen=True)
class Reflection:
    """What is known of a workspace's folder.

    Attributes:
        state: of its host when it was asked last: "ready", "gone" (the host is there, the folder is not),
            "unsupported", "needs_auth", "unreachable"; "unknown" when it has never been asked.
        detail: why, in ssh's or the host's words.
        told: when that was, in seconds since the epoch; None for never.
        facts: what was there (see `bundle/gather.py`) when it was seen last; None for never.
        gathered: when that was.
    """

    state: str = UNKNOWN
    detail: str = ""
    told: float | None = None
    facts: dict[str, Any] | None = None
    gathered: float | None = None


class Mirror:
    """The mirror of one `$ALBEDO_HOME`. Cheap to make; every call opens the file anew, from any thread.

    Args:
        home: see `albedo_home`.

    Every method raises `ConfigError` when the file cannot be used.
    """

    def __init__(self, home: str | os.PathLike[str] | None = None) -> None:
        self._path = albedo_home(home) / "mirror.sqlite"

    def get(self, location: Location) -> Reflection:
        """Return what is known of a workspace."""
        with self._open() as database:
            row = database.execute(
                "SELECT state, detail, told, facts, gathered FROM workspaces WHERE location = ?", (str(location),)
            ).fetchone()
        if row is None:
            return Reflection()
        state, detail, told, facts, gathered = row
        return Reflection(state, detail, told, None if facts is None else json.loads(facts), gathered)

    def may_ask(self, location: Location, every: float) -> bool:
        """Whether nobody has asked for so many seconds, in any process; who hears so is the one who asks now."""
        now = time.time()
        with self._open() as database:
            database.execute("BEGIN IMMEDIATE")
            row = database.execute("SELECT asked FROM workspaces WHERE location = ?", (str(location),)).fetchone()
            if row is not None and 0 <= now - row[0] < every:
                return False
            database.execute(
                "INSERT INTO workspaces (location, asked) VALUES (?1, ?2) "
                "ON CONFLICT (location) DO UPDATE SET asked = ?2",
                (str(location), now),
            )
            database.execute(
                "DELETE FROM workspaces WHERE location NOT IN "
                "(SELECT location FROM workspaces ORDER BY asked DESC LIMIT ?)",
                (_MOST,),
            )
            return True

    def put_facts(self, location: Location, facts: dict[str, Any]) -> None:
        """Keep what is there, instead of what was there before."""
        with self._open() as database:
            database.execute(
                "UPDATE workspaces SET state = 'ready', detail = '', told = ?1, facts = ?2, gathered = ?1 "
                "WHERE location = ?3",
                (time.time(), json.dumps(facts), str(location)),
            )

    def put_state(self, location: Location, state: str, detail: str) -> None:
        """Keep that the host could not say what is there. What was known before stays."""
        with self._open() as database:
            database.execute(
                "UPDATE workspaces SET state = ?, detail = ?, told = ? WHERE location = ?",
                (state, detail, time.time(), str(location)),
            )

    def badge(self, location: Location) -> tuple[str, str] | None:
        """Return the badge and detail that a workspace got last; None when it was never looked at."""
        with self._open() as database:
            row = database.execute("SELECT badge, detail FROM badges WHERE location = ?", (str(location),)).fetchone()
        return None if row is None else (str(row[0]), str(row[1]))

    def put_badges(self, badges: Iterable[tuple[Location, str, str]]) -> None:
        """Keep the badges of workspaces, each with its detail."""
        with self._open() as database:
            database.execute("BEGIN IMMEDIATE")
            database.executemany(
                "INSERT OR REPLACE INTO badges VALUES (?, ?, ?, ?)",
                ((str(location), badge, detail, time.time()) for location, badge, detail in badges),
            )

    def home_of(self, host: str) -> str | None:
        """Return the account's home on a host; None when it is not known."""
        with self._open() as database:
            row = database.execute("SELECT home FROM homes WHERE host = ?", (host,)).fetchone()
        return None if row is None else str(row[0])

    def put_home(self, host: str, home: str) -> None:
        """Keep the account's home on a host."""
        with self._open() as database:
            database.execute("INSERT OR REPLACE INTO homes VALUES (?, ?)", (host, home))

    def _open(self) -> AbstractContextManager[sqlite3.Connection]:
        return opened(self._path, _SCHEMA, "record of workspaces")
