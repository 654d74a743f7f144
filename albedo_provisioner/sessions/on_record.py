"""What a session puts on record: itself, when something of it has changed, and what came of its cells.

Everything here runs on the I/O thread's loop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from ..errors import AlbedoError
from .entries import CellName, SessionRecord
from .records import SessionRecords
from .results import Result

log = logging.getLogger("albedo_provisioner.sessions")


class OnRecord:
    """See the module's head.

    Args:
        records: where it is put.
        session: the session.
        closed: says whether the session is closed, or left to another process, whose it is to put on record then.
    """

    def __init__(self, records: SessionRecords, session: SessionRecord, closed: Callable[[], bool]) -> None:
        self.records = records
        self.session = session
        self.closed = closed
        self._last: tuple[Any, ...] = ()  # what was put there last, see `SessionRecord.lasting`

    def put(self) -> None:
        """Put the session on record."""
        if not self.closed():
            self.records.put(self.session)
            self._last = self.session.lasting

    def finish(self, cell: CellName, result: Result, *, still_runs: bool = False) -> None:
        """Put a cell's result on record, and what has changed of the session."""
        self.session.used = time.time()
        lasting = self.session.lasting
        changed = not self.closed() and lasting != self._last
        try:
            self.records.finish(cell.msg_id, result, self.session if changed else None, still_runs=still_runs)
        except AlbedoError as error:  # a result is worth more
            log.warning("%s: what came of a cell is not on record: %s", self.session.session_id, error)
            result.kernel.note = " ".join(filter(None, [result.kernel.note, f"(Not kept: {error})"]))
        else:
            self._last = lasting
