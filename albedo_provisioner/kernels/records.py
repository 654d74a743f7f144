"""The kernels that this account has started from this machine, on record: so that another process can take them up.

One SQLite file under `$ALBEDO_HOME`, in WAL mode, safe for several processes at once. It holds the kernels' keys, so it
is private by its mode.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..bundle import processes
from ..bundle.spawn import boot_id
from ..database import is_unwritable, opened, opened_to_read
from ..errors import ConfigError
from ..home import albedo_home
from ..location import Location
from .notebook_file import FileMark, file_of, is_of, mark_of

LIVE, ENDING = "live", "ending"

NOBODY = (0, 0, "")
"""Stands for the process that has something when none has: it counts as one that has ended."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS kernels (
    kernel_id TEXT PRIMARY KEY,
    location TEXT NOT NULL,
    notebook TEXT NOT NULL,
    state TEXT NOT NULL,
    request TEXT NOT NULL,
    owner TEXT NOT NULL,
    started REAL NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS nodes (kernel_id TEXT PRIMARY KEY, node TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS notebooks (kernel_id TEXT PRIMARY KEY, mark TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS endings (kernel_id TEXT PRIMARY KEY, how TEXT NOT NULL, noted REAL NOT NULL) STRICT;
"""

_ENDINGS_KEPT = 30 * 24 * 3600.0
"""Seconds for which it is known who had a kernel ended: a session may be resumed that much later."""


@dataclass(frozen=True)
class KernelRecord:
    """One kernel on record.

    Attributes:
        kernel_id: its id on its host.
        location: where it runs.
        notebook: the notebook it was started for (`JPY_SESSION_NAME`); empty when there is none.
        state: "live", or "ending" when its end was asked for and is not proven.
        request: what it was started with, see `KernelRequest.to_dict`; it includes the key.
        owner: the process here that is linked to it: pid, start time, boot id; `NOBODY` when it was left.
        started: seconds since the epoch.
    """

    kernel_id: str
    location: Location
    notebook: str
    request: dict[str, Any]
    state: str = LIVE
    owner: tuple[int, int, str] = field(default_factory=lambda: this_process())
    started: float = field(default_factory=time.time)

    @property
    def orphaned(self) -> bool:
        """Whether the process that was linked to it has ended."""
        return process_ended(self.owner)


def process_ended(process: tuple[int, int, str]) -> bool:
    """Whether a process of this machine, as `this_process` tells it, has ended."""
    pid, start, boot = process
    return boot != boot_id() or not processes.still_alive([(pid, start)])


def this_process() -> tuple[int, int, str]:
    """Return what tells this process from all others on this machine, now and later: pid, start time, boot id."""
    identity = processes.identify(os.getpid())
    return os.getpid(), identity[1] if identity else 0, boot_id()


_CONTENT = "kernels' records"


class KernelRecords:
    """The records of one `$ALBEDO_HOME`. Cheap to make; every call opens the file anew, from any thread.

    Args:
        home: see `albedo_home`.
    """

    def __init__(self, home: str | os.PathLike[str] | None = None) -> None:
        self._path = albedo_home(home) / "kernels.sqlite"

    def begin(self, record: KernelRecord) -> None:
        """Put on record a kernel that is being started, maybe under the id of one that has ended.

        What was noted of the end of that one is forgotten.
        """
        self.put(record)
        self._noted_beside(record.kernel_id).unlink(missing_ok=True)
        self.forget_ending(record.kernel_id)

    def put(self, record: KernelRecord) -> None:
        """Add a record, or replace the one of the same kernel; note which file its notebook is."""
        mark = mark_of(file_of(record.notebook))
        with self._open() as database:
            database.execute(
                "INSERT OR REPLACE INTO kernels VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    record.kernel_id,
                    str(record.location),
                    record.notebook,
                    record.state,
                    json.dumps(record.request),
                    json.dumps(record.owner),
                    record.started,
                ),
            )
            _note_mark(database, record.kernel_id, mark)

    def rename(self, kernel_id: str, notebook: str) -> None:
        """Note that the notebook of a kernel on record has this path now, and which file it is."""
        mark = mark_of(file_of(notebook))
        with self._open() as database:
            database.execute("BEGIN IMMEDIATE")
            row = database.execute("SELECT request FROM kernels WHERE kernel_id = ?", (kernel_id,)).fetchone()
            if row is not None:
                request = json.dumps({**json.loads(row[0]), "notebook": notebook})
                database.execute(
                    "UPDATE kernels SET notebook = ?, request = ? WHERE kernel_id = ?", (notebook, request, kernel_id)
                )
                _note_mark(database, kernel_id, mark)

    def claim(self, location: Location, notebook: str, kernel: str | None) -> KernelRecord | None:
        """Make this process the owner of a notebook's newest live kernel whose owner has ended, and return it.

        A kernel of a notebook that was renamed is its kernel, and not that of a new one with the old name, as far as
        the files tell (see `notebook_file.py`).

        Args:
            location: where it runs.
            notebook: the notebook, as Jupyter names it.
            kernel: of which kernelspec of the host it is, see `KernelRequest`.

        Of several processes that claim at once, one gets it.
        """
        with self._open() as database:
            database.execute("BEGIN IMMEDIATE")
            rows = database.execute(
                "SELECT * FROM kernels WHERE location = ? AND state = ? ORDER BY notebook = ? DESC, started DESC",
                (str(location), LIVE, notebook),
            )
            for record in map(self._as_it_is, rows.fetchall()):
                if record.state != LIVE or not record.orphaned or record.request.get("kernel") != kernel:
                    continue
                mark, file = _mark(database, record.kernel_id), file_of(notebook)
                if record.notebook == notebook if file is None else is_of(record.notebook, mark, file):
                    owner = json.dumps(this_process())
                    database.execute("UPDATE kernels SET owner = ? WHERE kernel_id = ?", (owner, record.kernel_id))
                    return record
        return None

    def give_back(self, record: KernelRecord) -> None:
        """Undo a claim that could not be used; `record` is what `claim` returned."""
        with self._open() as database:
            database.execute(
                "UPDATE kernels SET owner = ? WHERE kernel_id = ? AND owner = ?",
                (json.dumps(record.owner), record.kernel_id, json.dumps(this_process())),
            )

    def release(self, kernel_id: str) -> None:
        """Note that this process, if it is a kernel's owner, is it no more, and has left the kernel to others."""
        with self._open() as database:
            database.execute(
                "UPDATE kernels SET owner = ? WHERE kernel_id = ? AND owner = ?",
                (json.dumps(NOBODY), kernel_id, json.dumps(this_process())),
            )

    def set_state(self, kernel_id: str, state: str) -> None:
        """Note that a kernel is "live" or "ending". That one is to end is noted on a full disk, too."""
        try:
            with self._open() as database:
                database.execute("UPDATE kernels SET state = ? WHERE kernel_id = ?", (state, kernel_id))
        except ConfigError as error:
            if state != ENDING or not is_unwritable(error):
                raise
            # An empty file takes a name in a directory, for which there is nearly always room.
            try:
                self._noted_beside(kernel_id).touch(0o600)
            except OSError:
                raise error from error.__cause__

    def remove(self, kernel_id: str) -> None:
        """Forget a kernel: it is known to be gone."""
        with self._open() as database:
            _remove(database, kernel_id)
        self._noted_beside(kernel_id).unlink(missing_ok=True)

    def remove_ended(self, kernel_id: str) -> None:
        """Forget a kernel that was to be ended and is gone; one that has been started since, under its id, stays."""
        beside = self._noted_beside(kernel_id)
        with self._open() as database:
            database.execute("BEGIN IMMEDIATE")
            row = database.execute("SELECT state FROM kernels WHERE kernel_id = ?", (kernel_id,)).fetchone()
            if row is not None and row[0] != ENDING and not beside.exists():
                return
            _remove(database, kernel_id)
        beside.unlink(missing_ok=True)

    def note_ending(self, kernel_id: str, how: str) -> None:
        """Note who is about to end a kernel that others may use; `how` follows "The kernel" in what they are told."""
        now = time.time()
        with self._open() as database:
            database.execute("DELETE FROM endings WHERE noted < ?", (now - _ENDINGS_KEPT,))
            database.execute("INSERT OR REPLACE INTO endings VALUES (?, ?, ?)", (kernel_id, how, now))

    def started_anew(self, kernel_id: str) -> None:
        """Forget what was noted of a kernel's end, which has come: it was restarted, and a fresh one has its id."""
        self._noted_beside(kernel_id).unlink(missing_ok=True)
        with self._open() as database:
            database.execute("UPDATE kernels SET state = ? WHERE kernel_id = ?", (LIVE, kernel_id))
            database.execute("DELETE FROM endings WHERE kernel_id = ?", (kernel_id,))

    def forget_ending(self, kernel_id: str) -> None:
        """Forget who ended a kernel, as another one runs under its id now; who is still to end this one stays known."""
        with self._open() as database:
            database.execute(
                "DELETE FROM endings WHERE kernel_id = ?1"
                " AND NOT EXISTS (SELECT 1 FROM kernels WHERE kernel_id = ?1 AND state = ?2)",
                (kernel_id, ENDING),
            )

    def ending(self, kernel_id: str) -> str | None:
        """Return what was noted of who ended a kernel; None when nothing was. Also where nothing can be written."""
        with self._open_to_read() as database:
            row = database.execute("SELECT how FROM endings WHERE kernel_id = ?", (kernel_id,)).fetchone()
        return None if row is None else str(row[0])

    def set_node(self, kernel_id: str, node: str) -> None:
        """Note on which of the machines behind its host's name a kernel on record runs."""
        with self._open() as database:
            database.execute(
                "INSERT OR REPLACE INTO nodes SELECT kernel_id, ? FROM kernels WHERE kernel_id = ?", (node, kernel_id)
            )

    def node(self, kernel_id: str) -> str:
        """Return on which machine a kernel runs; an empty text when that was not noted."""
        with self._open_to_read() as database:
            row = database.execute("SELECT node FROM nodes WHERE kernel_id = ?", (kernel_id,)).fetchone()
        return "" if row is None else str(row[0])

    def mark(self, kernel_id: str) -> FileMark | None:
        """Return what was noted of the file of a kernel's notebook; None when nothing was."""
        with self._open_to_read() as database:
            return _mark(database, kernel_id)

    def get(self, kernel_id: str) -> KernelRecord | None:
        """Return a kernel's record."""
        with self._open_to_read() as database:
            row = database.execute("SELECT * FROM kernels WHERE kernel_id = ?", (kernel_id,)).fetchone()
        return None if row is None else self._as_it_is(row)

    def all(self) -> list[KernelRecord]:
        """Return all records, oldest first; also where nothing can be written."""
        with self._open_to_read() as database:
            return [self._as_it_is(row) for row in database.execute("SELECT * FROM kernels ORDER BY started")]

    def of_notebook(self, path: str) -> list[KernelRecord]:
        """Return the records of the kernels of a notebook, oldest first: by its name, or by its file (`is_of`)."""
        return [record for record in self.all() if is_of(record.notebook, self.mark(record.kernel_id), path)]

    def _as_it_is(self, row: tuple[Any, ...]) -> KernelRecord:
        """Return a row as the record that it is, with a state that could only be noted beside the file."""
        record = _record(row)
        return replace(record, state=ENDING) if self._noted_beside(record.kernel_id).exists() else record

    def _noted_beside(self, kernel_id: str) -> Path:
        return self._path.with_name(f"{self._path.stem}-{kernel_id}.{ENDING}")

    def _open_to_read(self) -> AbstractContextManager[sqlite3.Connection]:
        return opened_to_read(self._path, _SCHEMA, _CONTENT)

    def _open(self) -> AbstractContextManager[sqlite3.Connection]:
        return opened(self._path, _SCHEMA, _CONTENT)


def _remove(database: sqlite3.Connection, kernel_id: str) -> None:
    for table in ("kernels", "nodes", "notebooks"):
        database.execute(f"DELETE FROM {table} WHERE kernel_id = ?", (kernel_id,))


def _note_mark(database: sqlite3.Connection, kernel_id: str, mark: FileMark | None) -> None:
    """Note which file the notebook of a kernel on record is; what was noted before stays where there is none."""
    if mark is not None:
        noted = json.dumps([mark.inode, mark.born])
        database.execute(
            "INSERT OR REPLACE INTO notebooks SELECT kernel_id, ? FROM kernels WHERE kernel_id = ?", (noted, kernel_id)
        )


def _mark(database: sqlite3.Connection, kernel_id: str) -> FileMark | None:
    row = database.execute("SELECT mark FROM notebooks WHERE kernel_id = ?", (kernel_id,)).fetchone()
    return None if row is None else FileMark(*json.loads(row[0]))


def _record(row: tuple[Any, ...]) -> KernelRecord:
    kernel_id, location, notebook, state, request, owner, started = row
    pid, start, boot = json.loads(owner)
    return KernelRecord(
        kernel_id, Location.parse(location), notebook, json.loads(request), state, (pid, start, boot), started
    )
