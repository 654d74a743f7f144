"""What hosts said of workspaces when they were asked last, kept here: for when they are out of reach, and for who
cannot wait. One SQLite file under `$ALBEDO_HOME`, for all processes.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..derived import DerivedFile
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

    Every method raises `ConfigError` when the file is in use by another process for very long.
    """

    def __init__(self, home: str | os.PathLike[str] | None = None) -> None:
        self._file = DerivedFile(albedo_home(home) / "mirror.sqlite", _SCHEMA, "record of workspaces")

    @property
    def not_kept(self) -> str:
        """Why what was told last is kept in memory alone, and not for other processes; empty when it is kept."""
        return self._file.not_kept

    def get(self, location: Location) -> Reflection:
        """Return what is known of a workspace."""
        row = self._row(
            "SELECT state, detail, told, facts, gathered FROM workspaces WHERE location = ?", (str(location),)
        )
        if row is None:
            return Reflection()
        state, detail, told, facts, gathered = row
        return Reflection(state, detail, told, None if facts is None else json.loads(facts), gathered)

    def may_ask(self, location: Location, every: float) -> bool:
        """Whether nobody has asked for so many seconds, in any process; who hears so is the one who asks now."""

        def ask(database: sqlite3.Connection) -> bool:
            now = time.time()
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

        return self._file.do(ask)

    def put_facts(self, location: Location, facts: dict[str, Any]) -> None:
        """Keep what is there, instead of what was there before."""
        self._do(
            "INSERT INTO workspaces (location, asked, state, detail, told, facts, gathered) "
            "VALUES (?1, ?2, 'ready', '', ?2, ?3, ?2) ON CONFLICT (location) DO "
            "UPDATE SET state = 'ready', detail = '', told = ?2, facts = ?3, gathered = ?2",
            (str(location), time.time(), json.dumps(facts)),
        )

    def put_state(self, location: Location, state: str, detail: str) -> None:
        """Keep that the host could not say what is there. What was known before stays."""
        self._do(
            "INSERT INTO workspaces (location, asked, state, detail, told) VALUES (?1, ?2, ?3, ?4, ?2) "
            "ON CONFLICT (location) DO UPDATE SET state = ?3, detail = ?4, told = ?2",
            (str(location), time.time(), state, detail),
        )

    def badge(self, location: Location) -> tuple[str, str] | None:
        """Return the badge and detail that a workspace got last; None when it was never looked at."""
        row = self._row("SELECT badge, detail FROM badges WHERE location = ?", (str(location),))
        return None if row is None else (str(row[0]), str(row[1]))

    def put_badges(self, badges: Iterable[tuple[Location, str, str]]) -> None:
        """Keep the badges of workspaces, each with its detail."""
        rows = [(str(location), badge, detail, time.time()) for location, badge, detail in badges]

        def put(database: sqlite3.Connection) -> None:
            database.execute("BEGIN IMMEDIATE")
            database.executemany("INSERT OR REPLACE INTO badges VALUES (?, ?, ?, ?)", rows)

        self._file.do(put)

    def home_of(self, host: str) -> str | None:
        """Return the account's home on a host; None when it is not known."""
        row = self._row("SELECT home FROM homes WHERE host = ?", (host,))
        return None if row is None else str(row[0])

    def put_home(self, host: str, home: str) -> None:
        """Keep the account's home on a host."""
        self._do("INSERT OR REPLACE INTO homes VALUES (?, ?)", (host, home))

    def _row(self, question: str, values: tuple[Any, ...]) -> Any:
        return self._file.do(lambda database: database.execute(question, values).fetchone())

    def _do(self, statement: str, values: tuple[Any, ...]) -> None:
        self._file.do(lambda database: database.execute(statement, values))
