"""The database of sessions and their cells: so that a new process can go on where another one was killed."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from ..database import connect, unusable
from ..errors import AlbedoError
from ..home import albedo_home
from ..kernels.records import this_process
from ..location import Location
from .entries import DONE, RUNNING, CellName, CellRecord, Joined, SessionRecord
from .outputs import Limits
from .results import Result

_SCHEMA = """
CREATE TABLE IF NOT EXISTS sessions (
    session_id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    location TEXT NOT NULL,
    spelled TEXT NOT NULL,
    tools TEXT NOT NULL,
    python TEXT,
    env TEXT NOT NULL,
    kernel_id TEXT,
    lost TEXT,
    created REAL NOT NULL,
    used REAL NOT NULL,
    process TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS cells (
    number INTEGER PRIMARY KEY,
    cell_id TEXT NOT NULL UNIQUE,
    session_id TEXT NOT NULL,
    kernel_id TEXT,
    code TEXT NOT NULL,
    state TEXT NOT NULL,
    asked REAL NOT NULL,
    result TEXT,
    name TEXT,
    limits TEXT
) STRICT;
CREATE TABLE IF NOT EXISTS joined (
    session_id TEXT PRIMARY KEY,
    kernel_id TEXT NOT NULL,
    notebook TEXT,
    process TEXT
) STRICT;
CREATE INDEX IF NOT EXISTS cells_of_session ON cells (session_id, number);
"""

OUTPUTS_KEPT = 7 * 24 * 3600.0
"""Seconds for which the whole texts of results that were cut are kept."""

MOST_CELLS = 200
"""Cells of a session that are kept on record."""

_CONTENT = "record of sessions"

_FORGET_EVERY = 16
"""Looking for those that are too many is the dearest part of noting one."""


P = ParamSpec("P")
T = TypeVar("T")


def _telling(
    method: Callable[Concatenate[SessionRecords, P], T],
) -> Callable[Concatenate[SessionRecords, P], T]:
    """Have what goes wrong with the file told as the `ConfigError` of all files here."""

    @functools.wraps(method)
    def tell(self: SessionRecords, /, *args: P.args, **options: P.kwargs) -> T:
        if self._closed:
            raise closed()
        try:
            return method(self, *args, **options)
        except sqlite3.Error as error:
            raise unusable(self._path, _CONTENT, error) from error

    return tell


def closed() -> AlbedoError:
    """Return the error for the use of records that have been closed."""
    return AlbedoError("These Sessions have been closed; make new ones.")


class SessionRecords:
    """The records of one `$ALBEDO_HOME`. Used on one thread; the file stays open, as every cell is noted in it.

    Args:
        home: see `albedo_home`.

    Raises:
        ConfigError: the file cannot be used. Every method raises it then.
        AlbedoError: of methods: it has been closed.
    """

    def __init__(self, home: str | os.PathLike[str] | None = None) -> None:
        place = albedo_home(home)
        self._path = place / "sessions.sqlite"
        self._closed = False
        self._database = connect(self._path, _SCHEMA, _CONTENT)
        try:
            self._bring_up_to_date()
        except sqlite3.Error as error:
            self._database.close()
            raise unusable(self._path, _CONTENT, error) from error
        self.outputs: Path = place / "outputs"
        """The directory for texts that are too long for results; it may have to be made."""

    def _bring_up_to_date(self) -> None:
        """Give a file of an earlier version what it lacks. There the id that a caller had made up was the request's."""
        if self._lacking():
            with self._at_once():
                for column in self._lacking():  # another process may have done it meanwhile
                    self._database.execute(f"ALTER TABLE cells ADD COLUMN {column} TEXT")

    def _lacking(self) -> list[str]:
        """Return the columns that came later, and are not there."""
        there = {row[1] for row in self._database.execute("PRAGMA table_info(cells)")}
        return [column for column in ("name", "limits") if column not in there]

    def sweep_outputs(self) -> None:
        """Remove texts of results that were kept for long enough."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self.outputs) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # another process sweeps, too
                    if entry.stat().st_mtime < time.time() - OUTPUTS_KEPT:
                        os.unlink(entry)

    def close(self) -> None:
        """Close the file."""
        self._closed = True
        self._database.close()

    # -- sessions --------------------------------------------------------------------------------------------

    @_telling
    def put(self, record: SessionRecord) -> None:
        """Add a session, or note what has changed of it."""
        self._database.execute(
            "INSERT OR REPLACE INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                record.session_id,
                record.owner,
                str(record.location),
                str(record.spelled),
                json.dumps(record.tools),
                record.python,
                json.dumps(record.env),
                record.kernel_id,
                record.lost,
                record.created,
                record.used,
                json.dumps(record.process),
            ),
        )
        if record.joined is not None:
            joined = record.joined
            self._database.execute(
                "INSERT OR REPLACE INTO joined VALUES (?, ?, ?, ?)",
                (record.session_id, joined.kernel_id, joined.notebook, json.dumps(joined.process)),
            )

    @_telling
    def get(self, session_id: str) -> SessionRecord | None:
        """Return a session."""
        row = self._database.execute(f"{_SESSIONS} WHERE session_id = ?", (session_id,)).fetchone()
        return None if row is None else _session(row)

    @_telling
    def claim(self, session_id: str) -> SessionRecord | None:
        """Make this process the one that has a session open, and return it; of several that do so at once, one is.

        Where another one that lives has it open, that stays so.
        """
        with self._at_once():
            record = self.get(session_id)
            if record is not None and not record.alive_elsewhere:
                record.process = this_process()
                self.put(record)
            return record

    @_telling
    def all(self) -> list[SessionRecord]:
        """Return all sessions, oldest first."""
        return [_session(row) for row in self._database.execute(f"{_SESSIONS} ORDER BY created")]

    @_telling
    def remove(self, session_id: str) -> None:
        """Forget a session and its cells."""
        self._database.execute("DELETE FROM cells WHERE session_id = ?", (session_id,))
        self._database.execute("DELETE FROM joined WHERE session_id = ?", (session_id,))
        self._database.execute("DELETE FROM sessions WHERE session_id = ?", (session_id,))

    @_telling
    def kernels_of(self, session_id: str) -> set[str]:
        """Return the ids of the kernels that a session's cells were given to."""
        rows = self._database.execute(
            "SELECT DISTINCT kernel_id FROM cells WHERE session_id = ? AND kernel_id IS NOT NULL", (session_id,)
        )
        return {str(kernel_id) for (kernel_id,) in rows}

    # -- cells -----------------------------------------------------------------------------------------------

    @_telling
    def begin(self, cell: CellName, session_id: str, kernel_id: str | None, code: str, limits: Limits) -> None:
        """Note that a cell of a session is about to be run, or that it goes to another kernel than was noted first.

        The oldest of too many are forgotten, now and then.
        """
        name = None if cell.cell_id == cell.msg_id else cell.cell_id
        self._database.execute(
            "INSERT INTO cells (cell_id, session_id, kernel_id, code, state, asked, name, limits) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (cell_id) DO UPDATE SET kernel_id = excluded.kernel_id",
            (cell.msg_id, session_id, kernel_id, code, RUNNING, time.time(), name, limits.to_json()),
        )
        if random.randrange(_FORGET_EVERY) == 0:  # not every so many rows: sessions may take turns
            self._database.execute(
                "DELETE FROM cells WHERE session_id = ?1 AND number <= "
                "(SELECT number FROM cells WHERE session_id = ?1 ORDER BY number DESC LIMIT 1 OFFSET ?2)",
                (session_id, MOST_CELLS),
            )

    @contextlib.contextmanager
    def _at_once(self) -> Iterator[None]:
        """Make one change of several: each by itself costs about as much as all together."""
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:  # a full disk has ended it already
                self._database.execute("ROLLBACK")
            raise

    @_telling
    def finish(
        self, msg_id: str, result: Result, session: SessionRecord | None = None, *, still_runs: bool = False
    ) -> None:
        """Note what came of a cell, and what has changed of its session, if that is given.

        Args:
            msg_id: the id of its request.
            result: what came of it.
            session: put on record as well.
            still_runs: whether only its call has ended, and not its code.
        """
        with self._at_once() if session is not None else contextlib.nullcontext():
            if session is not None:
                self.put(session)
            self._database.execute(
                "UPDATE cells SET state = ?, result = ? WHERE cell_id = ?",
                (RUNNING if still_runs else DONE, result.to_json(), msg_id),
            )

    @_telling
    def withdraw(self, msg_id: str) -> None:
        """Note that a cell was not run after all."""
        self._database.execute("DELETE FROM cells WHERE cell_id = ?", (msg_id,))

    @_telling
    def cell(self, session_id: str, cell_id: str) -> CellRecord | None:
        """Return a cell of a session."""
        msg_id = CellName.of(session_id, cell_id).msg_id  # if a caller made its id up; else that is the request's
        row = self._database.execute(
            f"SELECT {_COLUMNS} FROM cells WHERE session_id = ? AND cell_id IN (?, ?)", (session_id, msg_id, cell_id)
        ).fetchone()
        return None if row is None else _cell(row)

    @_telling
    def may_have_run_on(self, session_id: str, kernel_id: str) -> bool:
        """Whether code of a session may have begun on a kernel: a cell says so, or so many are on record that the ones
        that would are forgotten.
        """
        row = self._database.execute(
            "SELECT count(*) >= ? OR max(kernel_id IS ?) FROM cells WHERE session_id = ?",
            (MOST_CELLS, kernel_id, session_id),
        ).fetchone()
        return bool(row[0])

    @_telling
    def cells(self, session_id: str) -> list[CellRecord]:
        """Return the cells of a session, oldest first."""
        rows = self._database.execute(
            f"SELECT {_COLUMNS} FROM cells WHERE session_id = ? ORDER BY number", (session_id,)
        )
        return [_cell(row) for row in rows]


_SESSIONS = (
    "SELECT sessions.*, (SELECT asked FROM cells WHERE cells.session_id = sessions.session_id ORDER BY number DESC "
    "LIMIT 1), joined.kernel_id, notebook, joined.process FROM sessions LEFT JOIN joined USING (session_id)"
)
_COLUMNS = "cell_id, session_id, kernel_id, code, state, asked, result, name, limits"


def _session(row: tuple[Any, ...]) -> SessionRecord:
    (
        session_id,
        owner,
        location,
        spelled,
        tools,
        python,
        env,
        kernel_id,
        lost,
        created,
        used,
        process,
        asked,
        *joined,
    ) = row
    pid, start, boot = json.loads(process)
    return SessionRecord(
        session_id,
        owner,
        Location.parse(location),
        Location.parse(spelled),
        tuple(json.loads(tools)),
        python,
        json.loads(env),
        kernel_id,
        lost,
        created,
        max(used, asked or 0.0),
        (pid, start, boot),
        _joined(*joined),
    )


def _joined(kernel_id: str | None, notebook: str | None, process: str | None) -> Joined | None:
    if kernel_id is None:
        return None
    used = json.loads(process or "null")
    return Joined(kernel_id, notebook, None if used is None else (used[0], used[1], used[2]))


def _cell(row: tuple[Any, ...]) -> CellRecord:
    msg_id, session_id, kernel_id, code, state, asked, result, name, limits = row
    found = None if result is None else json.loads(result)
    return CellRecord(
        name or msg_id, session_id, kernel_id, code, state, asked, found, msg_id, Limits.from_json(limits)
    )
