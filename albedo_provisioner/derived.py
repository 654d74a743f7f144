"""SQLite files under `$ALBEDO_HOME` that hold what can be had again: an index, or what hosts said last.

So nothing has to fail for them. One that is damaged is made anew. Where none can be written (a full disk, a directory
that is read-only), this process works on a copy in memory until one can.
"""

from __future__ import annotations

import contextlib
import logging
import random
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from .database import in_memory, is_damaged, is_unwritable, opened, read_only, transaction
from .errors import ConfigError

T = TypeVar("T")

log = logging.getLogger("albedo_provisioner")


class DerivedFile:
    """One such file. Cheap to make; every call opens it anew, from any thread.

    Args:
        path: where it is, or will be.
        schema: `CREATE ... IF NOT EXISTS` statements.
        content: what it holds, for messages: "index of memory".

    Attributes:
        not_kept: why what the last call has written is kept in memory alone; empty when it is in the file.
    """

    def __init__(self, path: Path, schema: str, content: str) -> None:
        self._path = path
        self._schema = schema
        self._content = content
        self.not_kept = ""

    def do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Have something done with the database, in one transaction if it begins one, and return what it returns.

        Args:
            work: may be called again from the start, where what it did the first time has not stayed.

        Raises:
            ConfigError: the file is in use by another process for very long.
        """
        try:
            return self._in_file(work)
        except ConfigError as error:
            if not is_damaged(error):
                return self._in_copy(work, error)
            log.warning("%s It is made anew.", error)
        try:
            for suffix in ("-wal", "-shm", ""):
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
            return self._in_file(work)
        except OSError as error:
            return self._in_copy(work, _not_removed(self._path, self._content, error))
        except ConfigError as error:
            return self._in_copy(work, error)

    def _in_file(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with opened(self._path, self._schema, self._content) as database:
            if self._path in _copies:
                database.execute(f"PRAGMA user_version = {random.getrandbits(31)}")  # can it be written now?
            result = work(database)
        with _lock:
            copy = _copies.pop(self._path, None)
            if copy is not None:
                copy.close()
        self.not_kept = ""
        return result

    def _in_copy(self, work: Callable[[sqlite3.Connection], T], error: ConfigError) -> T:
        if not is_unwritable(error):
            raise error
        with _lock:
            if self._path not in _copies:
                log.warning("%s Until then it is kept in memory.", error)
                _copies[self._path] = self._copy()
            database = _copies[self._path]
            with transaction(database):
                result = work(database)
        self.not_kept = str(error.__cause__)
        return result

    def _copy(self) -> sqlite3.Connection:
        """Return a database in memory with what can be read of the file."""
        copy = in_memory()
        try:
            with contextlib.closing(read_only(self._path, self._schema)) as source:
                source.backup(copy)
            copy.executescript(self._schema)
        except (sqlite3.Error, OSError) as error:
            log.info("%s cannot be read: %s", self._path, error)
            copy.close()
            copy = in_memory()
            copy.executescript(self._schema)
        return copy


def _not_removed(path: Path, content: str, cause: OSError) -> ConfigError:
    error = ConfigError(f"The {content} in {path} is damaged, and cannot be removed: {cause.strerror or cause}.")
    error.__cause__ = cause
    return error


_lock = threading.RLock()

_copies: dict[Path, sqlite3.Connection] = {}
"""Those that stand for files that cannot be written; used under the lock."""
