"""Small SQLite files under `$ALBEDO_HOME`: private, in WAL mode, safe for several processes at once."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from .errors import ConfigError

# Seconds to wait for another process, and between attempts where SQLite itself does not wait.
_BUSY_TIMEOUT = 10.0
_BUSY_PAUSE = 0.005


@contextlib.contextmanager
def opened(path: Path, schema: str, content: str) -> Iterator[sqlite3.Connection]:
    """Open a file, making it if need be; commit at the end, roll back after an exception, close.

    Args:
        path: the file; private by its mode (0600) when it is made here.
        schema: a `CREATE TABLE IF NOT EXISTS` statement.
        content: what it holds, for the message: "kernels' records".

    Raises:
        ConfigError: it cannot be used.
    """
    with contextlib.closing(connect(path, schema, content)) as database:
        try:
            try:
                yield database
            except BaseException:
                if database.in_transaction:
                    database.execute("ROLLBACK")
                raise
            if database.in_transaction:
                database.execute("COMMIT")
        except sqlite3.Error as error:
            raise unusable(path, content, error) from error


def connect(path: Path, schema: str, content: str) -> sqlite3.Connection:
    """Open a file to keep it open; every statement is committed at once, unless a transaction is begun.

    A commit survives the death of this process, and with a machine that loses power the newest may be lost.

    Args:
        path: as `opened`, like the others; the schema may have several statements.

    Raises:
        ConfigError: it cannot be used.
    """
    try:
        if not path.exists():
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        database = sqlite3.connect(path, timeout=_BUSY_TIMEOUT, isolation_level=None, check_same_thread=False)
        try:
            _turn_to_wal(database)
            database.execute("PRAGMA synchronous = NORMAL")
            database.executescript(schema)
        except sqlite3.Error:
            database.close()
            raise
    except (sqlite3.Error, OSError) as error:
        raise unusable(path, content, error) from error
    return database


def _turn_to_wal(database: sqlite3.Connection) -> None:
    """Set WAL mode, also while other processes do so with the same new file.

    SQLite refuses at once one of two that both read the file and then both want to write it, whatever the busy timeout:
    waiting would be a deadlock (https://sqlite.org/rescode.html#busy).
    """
    deadline = time.monotonic() + _BUSY_TIMEOUT
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(_BUSY_PAUSE * random.uniform(0.5, 1.5))


def unusable(path: Path, content: str, error: Exception) -> ConfigError:
    """Return the error for a file that cannot be used, as `opened` and `connect` raise it."""
    return ConfigError(
        f"The {content} in {path} cannot be used: {error}. Set ALBEDO_HOME to a directory that can be written."
    )
