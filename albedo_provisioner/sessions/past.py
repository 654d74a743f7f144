"""What came of a session's cells: from the records, or, of those whose process was killed, from the journal of their
kernel's keeper.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from ..errors import AlbedoError, KernelGoneError
from ..kernels.journal import JournalCell, NoCell, await_cell
from .entries import DONE, CellRecord, SessionRecord
from .losses import is_reset, losses, tell_losses
from .outputs import Outputs
from .records import SessionRecords
from .results import INTERRUPTED, LOST, KernelReport, Result, is_interrupt, status_of

log = logging.getLogger("albedo_provisioner.sessions")

_LATER = 5.0
"""Seconds in which a host may say what came of a cell whose call ended before its code, in an earlier process."""


async def result_of(
    cell: CellRecord, session: SessionRecord, folder: Path, interrupted: Callable[[str], bool]
) -> Result:
    """Return a cell's result once it has come to its end; on the I/O thread.

    What never reached its kernel, or went with it, is "lost", and the note says which of the two.

    Args:
        cell: the cell.
        session: its session.
        folder: where the whole texts of what is cut go.
        interrupted: whether somebody wanted it interrupted, by the id of its request.

    Raises:
        AlbedoError: the host cannot be asked now.
    """
    host = session.location.host
    report = KernelReport(
        reused=True, remote=host is not None, host=host or "this machine", location=str(session.location)
    )
    if cell.kernel_id is None:
        report.note = (
            "The code was being run without a kernel when its caller was cancelled, or the process that had asked for "
            "it ended: it may have run, in part or to its end."
        )
        return Result(LOST, kernel=report, cell_id=cell.cell_id)
    try:
        found: JournalCell | NoCell = await await_cell(host, cell.kernel_id, session.python, cell.msg_id)
    except KernelGoneError as error:
        report.note = f"What came of this call is gone together with its kernel: {error}"
        report.state_lost = report.ended = True
        return Result(LOST, kernel=report, cell_id=cell.cell_id)
    if isinstance(found, NoCell):
        report.note = _why_not_there(found)
        report.state_lost = report.ended = found.ended
        return Result(LOST, kernel=report, cell_id=cell.cell_id)
    outputs, notes = Outputs(cell.limits, folder, cell.msg_id), list[str]()
    reply = {}
    for message in found.messages:
        if message.msg_type == "execute_reply":
            reply = message.content
        outputs.take(message.msg_type, message.content)
    if not is_interrupt(reply):
        outputs.take_error_of(reply)
    outputs.close()
    if not reply and found.state == "done":
        found = replace(found, state="unanswered")
        report.note = "The kernel was done with this call, and gave no answer."
    report.execution_count = reply.get("execution_count") or None
    aborted = reply.get("status") == "aborted"
    if aborted:
        report.note = "This was taken back, or thrown away as other code failed before its turn came: it was not run."
    if found.dropped:
        report.note = f"{found.dropped} messages out of the middle of its output were more than the journal keeps."
    if untold := _untold(cell, session):
        report.reused = False
        tell_losses(untold, report, notes)
    if found.state == "ended":
        report.note = "The kernel ended while the code ran."
        report.state_lost = report.ended = True
    report.note = " ".join(filter(None, [*notes, report.note, *outputs.remarks()])) or None
    status = LOST if found.state != "done" else INTERRUPTED if aborted else status_of(reply)
    if is_interrupt(reply) and (cell.result is not None or interrupted(cell.msg_id)):
        # Where its call had ended before, that is why it was interrupted.
        status = INTERRUPTED if cell.result is None else str(cell.result["status"])
    result = outputs.result(status, cell.cell_id, report)
    if found.finished is not None:
        result.duration = max(0.0, found.finished - found.asked)
    return result


def _untold(cell: CellRecord, session: SessionRecord) -> list[str]:
    """Return the losses that a cell's call would have told: it was the first one after them, and its process ended
    before it could tell anybody.
    """
    first = cell.result is None and cell.kernel_id == session.kernel_id
    return losses(session.lost) if first else []


def _why_not_there(found: NoCell) -> str:
    if found.adopted:
        return (
            "The keeper of its kernel was killed, and what it had noted of this call went with it: the code may have "
            f"run, in part or to its end{'' if found.ended else ', or may run still'}. The kernel "
            f"{'has ended' if found.ended else 'itself lives and has its state'}."
        )
    why = "This call never reached its kernel and was not run."
    if found.given_up:
        why = (
            "This call is not in the journal of its kernel: it never reached it and was not run, or so much was run "
            "since that the journal has given it up."
        )
    return f"{why} The kernel has ended." if found.ended else why


class PastCells:
    """A session's cells on record.

    Args:
        records: the records.
        session: the session.
        under_way: whether this process waits for the end of a cell, by its id, as its call does or did.
        interrupted: whether a cell was to be interrupted, by the id of its request.
        serve: takes up the kernel that a cell of an earlier process runs on.
        heard: told that a call gets what came of a cell of an earlier process, and which of the losses on record that
            tells.
    """

    def __init__(
        self,
        records: SessionRecords,
        session: SessionRecord,
        under_way: Callable[[str], bool],
        interrupted: Callable[[str], bool],
        serve: Callable[[CellRecord], Awaitable[None]],
        heard: Callable[[CellRecord, Result, list[str]], Awaitable[None]],
    ) -> None:
        self._records = records
        self._session = session
        self._under_way = under_way
        self._interrupted = interrupted
        self._serve = serve
        self._heard = heard

    def all(self) -> list[CellRecord]:
        """Return them all, oldest first."""
        return self._records.cells(self._session.session_id)

    async def result(self, cell_id: str, *, to_a_call: bool = False) -> Result:
        """Return what came of a cell, once it has come to its end.

        Of one whose call ended before its code, and whose end nobody knows of yet, it is what the call was told, and
        its note says so; nobody is kept waiting.

        Args:
            cell_id: its id.
            to_a_call: whether that is the result of a call, which tells losses, and not just looked at.

        Raises:
            KeyError: this session has no such cell on record.
            AlbedoError: what came of it cannot be found out (now).
        """
        record = self._records.cell(self._session.session_id, cell_id)
        if record is None:
            raise KeyError(f"The session {self._session.session_id} has no cell {cell_id} on record.")
        untold, result, why = _untold(record, self._session), None, ""
        if record.result is None:
            await self._serve(record)
            # It is known by now where that has found the kernel gone; see `salvage`.
            record = self._records.cell(self._session.session_id, cell_id) or record
            result = self._known(record) or await self._find_out(record)
        elif record.state != DONE and not self._under_way(cell_id):
            try:
                async with asyncio.timeout(_LATER):
                    result = await self._find_out(record)
            except (AlbedoError, TimeoutError) as error:  # what was known then is known still
                why = f": {str(error).rstrip('.')}" if str(error) else ""
        if result is None:
            result = self._known(record)
            assert result is not None
            if record.state != DONE:
                remark = f"(This is what its call was told; what has come of the code since is not known yet{why}.)"
                result.kernel.note = " ".join(filter(None, [result.kernel.note, remark]))
            return result
        if to_a_call:
            await self._heard(record, result, untold)
        return result

    def _known(self, record: CellRecord) -> Result | None:
        """Return what is on record of what came of a cell."""
        if record.result is None:
            return None
        return Result.from_dict(record.result, str(self._records.outputs), record.msg_id)

    def may_have_run_on(self, kernel_id: str) -> bool:
        """Whether code of the session may have begun on a kernel; where nobody can tell, it may."""
        try:
            return self._records.may_have_run_on(self._session.session_id, kernel_id)
        except AlbedoError as error:
            log.info("%s: %s", self._session.session_id, error)
            return True

    async def salvage(self, kernel_id: str, line: str | None = None) -> None:
        """Find out what came of the cells that a kernel which has ended was given, before nobody knows any more.

        Args:
            kernel_id: its id.
            line: what was noted of its end, see `losses.py`.
        """
        for record in self.unfinished(kernel_id):
            try:
                await self._find_out(record, line)
            except AlbedoError as error:
                log.info("%s: %s: %s", self._session.session_id, record.cell_id, error)

    def unfinished(self, kernel_id: str) -> list[CellRecord]:
        """Return the cells that an earlier process gave to a kernel, and of whose end nobody knows, oldest first."""
        return [
            record
            for record in self.all()
            if record.kernel_id == kernel_id and record.state != DONE and not self._under_way(record.cell_id)
        ]

    async def _find_out(self, record: CellRecord, line: str | None = None) -> Result:
        """Return what came of a cell of an earlier process, and put it on record; `line` is as of `salvage`."""
        result = await result_of(record, self._session, self._records.outputs, self._interrupted)
        now = self._records.cell(self._session.session_id, record.cell_id)
        known = self._known(now) if now is not None and now.state == DONE else None
        if known is not None:
            return known  # somebody else who asked was faster, and may know more
        report = result.kernel
        if line is not None and report.ended:
            report.state_lost = report.state_lost and not is_reset(line)
            notes = [str(report.note)]
            tell_losses([line], report, notes)
            report.note = " ".join(notes)
        self._records.finish(record.msg_id, result)
        return result
