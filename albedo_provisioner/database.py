"""Small SQLite files under `$ALBEDO_HOME`: private, in WAL mode, safe for several processes at once."""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from .errors import ConfigError

# Seconds to wait for another process, and between attempts where SQLite itself does not wait.
_BUSY_TIMEOUT = 10.0
_BUSY_PAUSE = 0.005

_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}

_IN_USE = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}

# What SQLite says of a disk that is full, or that may not be written.
_UNWRITABLE = {
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
}


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
    with (
        contextlib.closing(connect(path, schema, content)) as database,
        _told(path, content),
        transaction(database),
    ):
        yield database


@contextlib.contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """End the transaction that is begun meanwhile, if one is: commit it, or roll it back after an exception."""
    try:
        yield
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise
    if database.in_transaction:
        database.execute("COMMIT")


@contextlib.contextmanager
def opened_to_read(path: Path, schema: str, content: str) -> Iterator[sqlite3.Connection]:
    """Open a file to read it, also where nothing can be written: SQLite itself wants to write beside it for that.

    Args:
        path: as `opened`, like the others. One that is not there is empty.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        database = connect(path, schema, content)
    except ConfigError as error:
        if not is_unwritable(error):
            raise
        with _told(path, content):
            database = read_only(path, schema)
    with contextlib.closing(database), _told(path, content):
        yield database


def read_only(path: Path, schema: str) -> sqlite3.Connection:
    """Open a file as it is on the disk, and write nothing; one that is not there is empty.

    Raises:
        sqlite3.Error: it cannot be read.
    """
    if not path.exists() or not path.stat().st_size:
        database = in_memory()
        database.executescript(schema)
        return database
    # The second one takes no notice of who else uses the file, nor of what they have not written to it yet.
    for number, options in enumerate(("mode=ro", "mode=ro&immutable=1")):
        database = sqlite3.connect(
            f"file:{quote(str(path))}?{options}", uri=True, timeout=_BUSY_TIMEOUT, check_same_thread=False
        )
        try:
            database.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            break
        except sqlite3.Error:
            database.close()
            if number:
                raise
    return database


def in_memory() -> sqlite3.Connection:
    """Return a database that is in no file; it may be used from any thread, by one at a time."""
    return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)


@contextlib.contextmanager
def _told(path: Path, content: str) -> Iterator[None]:
    try:
        yield
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


def is_damaged(error: ConfigError) -> bool:
    """Whether an error of a file's says that what is in it is not what SQLite has written."""
    return _code(error.__cause__) in _DAMAGED


def is_unwritable(error: ConfigError) -> bool:
    """Whether an error of a file's says that nothing can be written there, so that it might be read all the same."""
    return isinstance(error.__cause__, OSError) or _code(error.__cause__) in _UNWRITABLE


def _code(error: BaseException | None) -> int | None:
    """Return SQLite's primary result code (https://sqlite.org/rescode.html); None for other errors."""
    code = getattr(error, "sqlite_errorcode", None) if isinstance(error, sqlite3.Error) else None
    return None if code is None else code & 0xFF


def unusable(path: Path, content: str, error: Exception) -> ConfigError:
    """Return the error for a file that cannot be used, as `opened` and `connect` raise it."""
    if _code(error) in _DAMAGED:
        mending = "The file is damaged: put a copy of it in its place, or remove it, and with it all that it held."
    elif _code(error) in _IN_USE:
        mending = (
            f"Another process has kept it locked for more than {_BUSY_TIMEOUT:g} s: see which one has it open "
            f"(`fuser -v {shlex.quote(str(path))}`), end that if it hangs, and try again."
        )
    else:
        mending = f"Make room in {path.parent} and have it writable, or set ALBEDO_HOME to another directory."
    return ConfigError(f"The {content} in {path} cannot be used: {error}. {mending}")
