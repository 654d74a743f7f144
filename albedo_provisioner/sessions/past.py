"""What came of a cell whose process was killed: read from the journal of its kernel's keeper."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..errors import KernelGoneError
from ..kernels.journal import JournalCell, await_cell
from .outputs import Limits, Outputs
from .records import CellRecord, SessionRecord
from .results import LOST, KernelReport, Result, status_of

_EVERYTHING = Limits(stdout=50_000_000, stderr=50_000_000, displays=200_000_000)
"""The limits of the call that asked for it are not on record; the journal is bounded itself."""


async def result_of(cell: CellRecord, session: SessionRecord, folder: Path) -> Result:
    """Return a cell's result once it has come to its end; on the I/O thread.

    What never reached its kernel, or went with it, is "lost", and the note says which of the two.

    Raises:
        AlbedoError: the host cannot be asked now.
    """
    host = session.location.host
    report = KernelReport(
        reused=True, remote=host is not None, host=host or "this machine", location=str(session.location)
    )
    if cell.kernel_id is None:
        report.note = (
            "The code was being run without a kernel when the process that had asked for it ended: it may have run, "
            "in part or to its end."
        )
        return Result(LOST, kernel=report, cell_id=cell.cell_id)
    try:
        found: JournalCell | None = await await_cell(host, cell.kernel_id, session.python, cell.cell_id)
    except KernelGoneError as error:
        report.note = f"What came of this call is gone together with its kernel: {error}"
        report.state_lost = True
        return Result(LOST, kernel=report, cell_id=cell.cell_id)
    if found is None:
        report.note = (
            "This call is not in the journal of its kernel: it never reached it and was not run, or so much was run "
            "since that the journal has given it up."
        )
        return Result(LOST, kernel=report, cell_id=cell.cell_id)
    outputs = Outputs(_EVERYTHING, folder, cell.cell_id)
    reply = {}
    for message in found.messages:
        if message.msg_type == "execute_reply":
            reply = message.content
        else:
            outputs.take(message.msg_type, message.content)
    outputs.close()
    if not reply and found.state == "done":
        found = replace(found, state="unanswered")
        report.note = "The kernel was interrupted when it was about to answer this call, and gave no answer."
    report.execution_count = reply.get("execution_count") or None
    if found.dropped:
        report.note = f"{found.dropped} messages out of the middle of its output were more than the journal keeps."
    if found.state == "ended":
        report.note = "The kernel ended while the code ran."
        report.state_lost = True
    result = outputs.result(status_of(reply) if found.state == "done" else LOST, cell.cell_id, report)
    if found.finished is not None:
        result.duration = max(0.0, found.finished - found.asked)
    return result
