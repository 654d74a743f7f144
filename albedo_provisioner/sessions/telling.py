"""What a result tells beside its outputs: what became of the state of earlier calls, and what nobody was told yet.

Everything here runs on the I/O thread's loop.
"""

from __future__ import annotations

import logging
from typing import Any

from ..errors import AlbedoError
from ..workspace.workspace import Workspace
from .entries import SessionRecord
from .losses import is_reset, losses, tell_losses
from .results import KernelReport

log = logging.getLogger("albedo_provisioner.sessions")

_MOST_LATE = 2000
"""Characters of what threads of earlier cells print that are kept for the next result."""


class Telling:
    """What is still to be told to a session's callers, each thing once.

    Args:
        record: what is on record of the session.
        workspace: its workspace.
    """

    def __init__(self, record: SessionRecord, workspace: Workspace) -> None:
        self._record = record
        self._workspace = workspace
        self._late: list[str] = []  # what threads of earlier cells printed since
        self._reported = 0  # how many of the losses on record are in the report of the call under way
        self._reset_asked = False  # whether that call asked for a fresh kernel itself

    def hear_late(self, msg_type: str, content: dict[str, Any]) -> None:
        """Take what comes for a cell that has finished."""
        if msg_type == "stream" and sum(map(len, self._late)) < _MOST_LATE:
            self._late.append(str(content.get("text", ""))[:_MOST_LATE])

    def begin(self, reset_asked: bool) -> None:
        """Take note that the next report is for another call, which asked for a fresh kernel itself or did not."""
        self._reported, self._reset_asked = 0, reset_asked

    def of_loss(self, report: KernelReport, notes: list[str]) -> None:
        """Put into a report that the state of earlier calls is gone, if that has not been told yet; see `told`."""
        lines = losses(self._record.lost)
        tell_losses(lines[self._reported :], report, notes, asked=self._reset_asked)
        self._reported = len(lines)

    def told(self) -> None:
        """Take note that somebody gets the report. Until then the loss stays on record: a caller may be cancelled, and
        its whole process killed, and whoever comes next would take the state for kept.
        """
        self._record.lost = None
        self._reported = 0

    def told_otherwise(self, lines: list[str]) -> None:
        """Take note that somebody got these losses with what came of an earlier call, while no report is under way."""
        rest = losses(self._record.lost)
        for line in lines:
            if line in rest:
                rest.remove(line)
        self._record.lost = "\n".join(rest) or None

    def of_end(self, report: KernelReport, notes: list[str], last_words: str) -> None:
        """Put into the report of a cell that its kernel has ended; why, the cell's own note says.

        Args:
            report: the report.
            notes: what its note is made of.
            last_words: what else is to be told of the kernel.
        """
        report.ended = True
        meanwhile = losses(self._record.lost)[self._reported :]
        tell_losses([line for line in meanwhile if is_reset(line)], report, notes)
        report.state_lost = report.state_lost or not all(map(is_reset, meanwhile))
        notes += [last_words.strip()] * bool(last_words)

    def of_late_output(self) -> list[str]:
        """Return what threads of earlier cells printed since the last call."""
        if not self._late:
            return []
        printed = "".join(self._late).rstrip()
        self._late.clear()
        return [f"Since the last call, what earlier cells had left running printed: {printed}"]

    def of_links(self) -> list[str]:
        """Return what became of the workspace's links since the last result, whoever linked it."""
        try:
            return self._workspace.news()
        except AlbedoError as error:  # a result is worth more
            log.warning("%s: %s", self._record.session_id, error)
            return []
