"""What a result tells beside its outputs: what became of the state of earlier calls, and what nobody was told yet.

Everything here runs on the I/O thread's loop.
"""

from __future__ import annotations

import logging
from typing import Any

from ..errors import AlbedoError
from ..kernels.remote import RemoteKernel
from ..workspace.workspace import Workspace
from .records import SessionRecord
from .results import KernelReport

log = logging.getLogger("albedo_provisioner.sessions")

RESET = "it was reset."
"""Why the state is gone when a caller wanted it so, on record until that has been told."""

_MOST_LATE = 2000
"""Characters of what threads of earlier cells print that are kept for the next result."""


def tell_loss(lost: str | None, report: KernelReport, notes: list[str]) -> None:
    """Put into a report that the state of earlier calls is gone, and why; None when it is not."""
    if lost == RESET:
        if not report.state_reset:  # else this very call asked for it
            notes.append("The session was reset, so the state of earlier calls is gone.")
        report.state_reset = True
    elif lost is not None:
        report.state_lost = True
        notes.append(f"The state of earlier calls was lost: {lost}")


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

    def hear_late(self, msg_type: str, content: dict[str, Any]) -> None:
        """Take what comes for a cell that has finished."""
        if msg_type == "stream" and sum(map(len, self._late)) < _MOST_LATE:
            self._late.append(str(content.get("text", ""))[:_MOST_LATE])

    def of_loss(self, report: KernelReport, notes: list[str]) -> None:
        """Put into a report that the state of earlier calls is gone, if that has not been told yet; see `told`."""
        tell_loss(self._record.lost, report, notes)

    def told(self) -> None:
        """Take note that somebody gets the report. Until then the loss stays on record: a caller may be cancelled, and
        its whole process killed, and whoever comes next would take the state for kept.
        """
        self._record.lost = None

    def of_end(self, report: KernelReport, notes: list[str], last_words: str) -> None:
        """Put into the report of a cell that its kernel has ended; why, the cell's own note says.

        Args:
            report: the report.
            notes: what its note is made of.
            last_words: what else is to be told of the kernel.
        """
        report.ended = True
        if self._record.lost == RESET:
            self.of_loss(report, notes)
        report.state_lost = report.state_lost or self._record.lost not in (None, RESET)
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

    def of_jobs(self, kernel: RemoteKernel | None) -> list[str]:
        """Return what is to be told of jobs that ended while no cell waited for them; once."""
        if kernel is None:
            return []
        notes, numbers = kernel.jobs.news()
        kernel.jobs_told(numbers)
        return notes
