"""Small SQLite files under `$ALBEDO_HOME`: private, in WAL mode, safe for several processes at once."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from .errors import ConfigError

_BUSY_TIMEOUT = 10.0


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
    try:
        if not path.exists():
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        with contextlib.closing(sqlite3.connect(path, timeout=_BUSY_TIMEOUT, isolation_level=None)) as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute(schema)
            try:
                yield database
            except BaseException:
                if database.in_transaction:
                    database.execute("ROLLBACK")
                raise
            if database.in_transaction:
                database.execute("COMMIT")
    except (sqlite3.Error, OSError) as error:
        raise ConfigError(
            f"The {content} in {path} cannot be used: {error}. Set ALBEDO_HOME to a directory that can be written."
        ) from error
