"""The hosts that were used from this account, newest first: what a person most likely wants again."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from contextlib import AbstractContextManager

from ..database import opened, opened_to_read
from ..errors import ConfigError
from ..home import albedo_home

log = logging.getLogger("albedo_provisioner.hosts")

_SCHEMA = "CREATE TABLE IF NOT EXISTS hosts (host TEXT PRIMARY KEY, used REAL NOT NULL) STRICT"

_CONTENT = "record of hosts"

_MOST = 100
"""Hosts that are remembered."""


class RecentHosts:
    """The record of one `$ALBEDO_HOME`. Cheap to make; every call opens the file anew, from any thread.

    Args:
        home: see `albedo_home`.
    """

    def __init__(self, home: str | os.PathLike[str] | None = None) -> None:
        self._path = albedo_home(home) / "hosts.sqlite"

    def note(self, host: str) -> None:
        """Note that a host is being used now. What cannot be noted is logged: nobody's work fails for it.

        Args:
            host: `[user@]host` as the user spells it.
        """
        try:
            with self._open() as database:
                database.execute("BEGIN IMMEDIATE")
                database.execute("INSERT OR REPLACE INTO hosts VALUES (?, ?)", (host, time.time()))
                database.execute(
                    "DELETE FROM hosts WHERE host NOT IN (SELECT host FROM hosts ORDER BY used DESC LIMIT ?)", (_MOST,)
                )
        except ConfigError as error:
            log.warning("%s", error)

    def all(self) -> dict[str, float]:
        """Return the hosts and when each was used last (seconds since the epoch), newest first.

        Raises:
            ConfigError: the record cannot be read.
        """
        with opened_to_read(self._path, _SCHEMA, _CONTENT) as database:
            return dict(database.execute("SELECT host, used FROM hosts ORDER BY used DESC, host"))

    def _open(self) -> AbstractContextManager[sqlite3.Connection]:
        return opened(self._path, _SCHEMA, _CONTENT)
