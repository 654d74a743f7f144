"""Calls that changed memory, on record: so that a call which comes again changes nothing more.

A call comes again when the process that served it was killed before its answer had arrived. Whether it had its effect
by then must be known for certain, whatever moment that was, and whatever a person did to the file since. The effect of
a call is one rename: a file written for it alone takes the place of the memory's, which may get its name for a moment.
So, under the lock of the folder:

1. the new content is written beside the file, down to the disk;
2. the call is noted together with the name and inode of what was written, down to the disk;
3. the rename;
4. the call is noted as done (no matter if this is lost);
5. what has the name of what was written is removed.

What is noted and not known to be done has happened if, and only if, what was written for it has not that name any more.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..database import opened
from ..home import albedo_home

_SCHEMA = """
CREATE TABLE IF NOT EXISTS calls (
    folder TEXT NOT NULL,
    call_id TEXT NOT NULL,
    written TEXT NOT NULL,
    done INTEGER NOT NULL,
    noted REAL NOT NULL,
    PRIMARY KEY (folder, call_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS calls_under_way ON calls (folder) WHERE NOT done;
CREATE INDEX IF NOT EXISTS calls_by_age ON calls (noted);
"""

KEPT = 30 * 24 * 3600.0
"""Seconds for which a call is remembered. It can come again as long as its kernel waits for the answer."""

_MOST_ID = 200

_INODE = "#"  # stands between a name and the inode of what was written; there is none in our names


class Ledger:
    """The calls of one `$ALBEDO_HOME`. Every method is called with the lock of the folder that it is about.

    Args:
        home: see `albedo_home`.
    """

    def __init__(self, home: str | os.PathLike[str] | None = None) -> None:
        self._path = albedo_home(home) / "memory-calls.sqlite"

    def is_done(self, folder: Path, call_id: str) -> bool:
        """Whether a call had its effect; one that was broken off before that is forgotten.

        Raises:
            ConfigError: the record cannot be used.
            ValueError: `call_id` is none.
        """
        if not 0 < len(call_id) <= _MOST_ID:
            raise ValueError(f"A call's id has 1 to {_MOST_ID} characters.")
        self.settle(folder)
        with self._open() as database:
            return _has(database, folder, call_id)

    def settle(self, folder: Path) -> None:
        """Find out what became of calls in a folder that were under way when their process was killed."""
        with self._open() as database:
            rows = database.execute("SELECT call_id, written FROM calls WHERE folder = ? AND NOT done", (folder.name,))
            for call_id, written in rows.fetchall():
                if _is_still_there(folder, written):
                    # Forgotten before anybody removes the file, or its absence would be taken for the effect.
                    database.execute("DELETE FROM calls WHERE folder = ? AND call_id = ?", (folder.name, call_id))
                else:
                    _finish(database, folder, call_id)

    def begin(self, folder: Path, call_id: str, written: Path) -> None:
        """Note that a call is about to have its effect, by a rename of what was written."""
        with self._open() as database:
            database.execute("BEGIN IMMEDIATE")
            database.execute("DELETE FROM calls WHERE noted < ? AND done", (time.time() - KEPT,))
            relative = f"{written.relative_to(folder)}{_INODE}{written.lstat().st_ino}"
            database.execute("INSERT INTO calls VALUES (?, ?, ?, 0, ?)", (folder.name, call_id, relative, time.time()))

    def withdraw(self, folder: Path, call_id: str) -> None:
        """Note that there was no rename after all."""
        with self._open() as database:
            database.execute("DELETE FROM calls WHERE folder = ? AND call_id = ?", (folder.name, call_id))

    def finish(self, folder: Path, call_id: str) -> None:
        """Note that the rename has been made."""
        with self._open() as database:
            _finish(database, folder, call_id)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with opened(self._path, _SCHEMA, "record of calls to memory") as database:
            # Else the newest notes might be lost with the power, and the files not.
            database.execute("PRAGMA synchronous = FULL")
            yield database


def _is_still_there(folder: Path, written: str) -> bool:
    name, _, inode = written.partition(_INODE)
    try:
        return str((folder / name).lstat().st_ino) == inode or not inode  # versions before this one noted none
    except FileNotFoundError:
        return False


def _has(database: sqlite3.Connection, folder: Path, call_id: str) -> bool:
    row = database.execute("SELECT 1 FROM calls WHERE folder = ? AND call_id = ?", (folder.name, call_id))
    return row.fetchone() is not None


def _finish(database: sqlite3.Connection, folder: Path, call_id: str) -> None:
    database.execute("UPDATE calls SET done = 1 WHERE folder = ? AND call_id = ?", (folder.name, call_id))
