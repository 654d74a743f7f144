"""Runs a session's cells, on its kernel or once without one, and makes their results.

Everything here runs on the I/O thread's loop.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from typing import Any

from ..errors import AlbedoError, HostError, KernelGoneError, KernelStartError
from ..kernels.console import Execution
from ..kernels.endings import in_background
from ..kernels.remote import RemoteKernel
from .call import Call
from .current_cell import CurrentCell
from .entries import CellName
from .on_record import OnRecord
from .outputs import Outputs
from .results import ERROR, INTERRUPTED, LOST, TIMEOUT, KernelReport, Result, is_interrupt, status_of
from .session_kernel import ANSWER_TIMEOUT, SessionKernel, job_news
from .telling import Telling
from .tools import SessionTools
from .without_kernel import RunAlone

log = logging.getLogger("albedo_provisioner.sessions")

NAMES = ("tools", "memory", "run")
"""What cells have without an import; see `albedo_bundle`."""


class CellRuns:
    """See the module's head.

    Args:
        on_record: puts on record what came of them.
        held: the kernel, whichever it is at the time.
        cell: the one that runs.
        telling: what results tell beside their outputs.
        tools: what cells may call.

    Attributes:
        alone: the code that runs without a kernel; None when none does.
    """

    def __init__(
        self, on_record: OnRecord, held: SessionKernel, cell: CurrentCell, telling: Telling, tools: SessionTools
    ) -> None:
        self.alone: RunAlone | None = None
        self._on_record = on_record
        self._record = on_record.session
        self._held = held
        self._cell = cell
        self._telling = telling
        self._tools = tools
        self._unheard: set[str] = set()  # ids of cells under way whose callers were cancelled
        self._outlived: set[str] = set()  # ids of cells whose calls have ended, and whose code runs on
        self._prepared: tuple[Any, ...] = ()  # the kernel whose cells have what we offer, and which tools

    def not_heard(self, cell_id: str) -> None:
        """Take note that nobody gets the result of a call under way: its caller was cancelled."""
        self._unheard.add(cell_id)

    def returned(self, cell_id: str) -> None:
        """Take note that a call is under way no more."""
        self._unheard.discard(cell_id)

    def outlives(self, cell_id: str) -> bool:
        """Whether a cell's code runs on after its call."""
        return cell_id in self._outlived

    @property
    def any_outlives(self) -> bool:
        """Whether code of any cell runs on after its call."""
        return bool(self._outlived)

    async def run(self, call: Call, cell: CellName, report: KernelReport, notes: list[str]) -> Result | None:
        """Run the cell on the kernel; None when the kernel ended before it had begun the cell."""
        kernel, console, records = self._held.kernel, self._held.console, self._on_record.records
        assert kernel is not None
        assert console is not None
        if kernel.poll() is not None:  # by now: what is sent to it would wait for a kernel in its place
            self._held.lose(kernel.cause or "its kernel ended")
            return None
        outputs = Outputs(call.limits, records.outputs, cell.msg_id, call.told)
        records.begin(cell, self._record.session_id, kernel.kernel_id, call.code, call.limits)
        before = kernel.connections - (kernel.away is None)  # connections that cannot have carried it
        began = time.monotonic()
        grant = self._tools.grant(cell.msg_id, call.tools, call.max_tool_calls, call.loop)
        offered = (kernel.kernel_id, kernel.pid, self._tools.descriptions)
        about: dict[str, Any] = {"server": self._record.session_id}
        if offered != self._prepared:
            about["prepare"] = {"tools": self._tools.descriptions, "names": NAMES}
        request: dict[str, Any] = {"msg_id": cell.msg_id, "name": cell.cell_id, "metadata": {"albedo": about}}
        try:
            execution, status = await self._cell.run(
                kernel, lambda: console.execute(call.code, outputs.take, **request), call.timeout, notes
            )
        finally:
            self._tools.end(cell.msg_id)
        if execution.began:
            self._prepared = offered
        outlived = not execution.finished.is_set() and self._held.kernel is kernel
        if outlived:
            outputs.tell_nobody()
        else:
            outputs.close()
        if execution.given_up is not None and status is None:
            by_us = self._held.kernel is not kernel  # closed, or reset
            if not by_us and kernel.poll() is not None and not await self._had_begun(kernel, execution, before):
                records.withdraw(cell.msg_id)
                outputs.tell_nobody()
                self._held.lose(kernel.cause or execution.given_up)
                return None
            status = INTERRUPTED if kernel.poll() is None and self._cell.was_interrupted(cell.msg_id) else LOST
            notes.append(execution.given_up)
        if self._held.kernel is kernel and kernel.poll() is not None:
            self._held.lose(kernel.cause or execution.given_up or "its kernel ended")
        ended = time.monotonic()
        try:
            await outputs.all_told()
        finally:  # also when nobody waits for that any more
            result = self._result(cell, status, execution, outputs, report, notes)
            result.duration = ended - began
            result.tool_calls_made = grant.made
            self._on_record.finish(cell, result, still_runs=outlived)
        if outlived:
            self._outlived.add(cell.cell_id)
            in_background(self._see_to_the_end(kernel, cell, execution, outputs, result, began))
        return result

    async def _see_to_the_end(
        self,
        kernel: RemoteKernel,
        cell: CellName,
        execution: Execution,
        outputs: Outputs,
        told: Result,
        began: float,
    ) -> None:
        """Put on record what came of code whose call had ended before, with this result."""
        await execution.finished.wait()
        self._outlived.discard(cell.cell_id)
        outputs.close()
        if self._on_record.closed():
            return  # it is for the next process to find out, if there is one
        reply = execution.reply or {}
        by_itself = execution.given_up is None and not is_interrupt(reply)
        if by_itself:
            outputs.take_error_of(reply)
        report = dataclasses.replace(told.kernel, execution_count=reply.get("execution_count") or None)
        after = execution.given_up or ("It came to its end." if by_itself else "It was interrupted then.")
        if execution.given_up is not None and self._held.kernel is not kernel:
            begun = "The code had begun." if execution.began else "Whether the code had begun is not known."
            after = f"{after} {begun}"
        remarks = [remark for remark in outputs.remarks() if remark not in str(report.note)]
        report.note = " ".join([str(report.note), after, *remarks])
        result = outputs.result(status_of(reply) if by_itself else told.status, cell.cell_id, report)
        result.duration = time.monotonic() - began
        result.tool_calls_made = told.tool_calls_made
        self._on_record.finish(cell, result)

    async def _had_begun(self, kernel: RemoteKernel, execution: Execution, before: int) -> bool:
        """Whether a kernel that has ended had begun the cell. When nobody can say, it may have."""
        if execution.began:
            return True
        try:
            return not await kernel.never_begun(execution.msg_id, ANSWER_TIMEOUT)
        except KernelGoneError:
            # No keeper to ask. If no connection has been up since the cell was sent, nobody can have got it.
            return kernel.connections > before
        except AlbedoError:
            return True

    def _result(
        self,
        cell: CellName,
        status: str | None,
        execution: Execution,
        outputs: Outputs,
        report: KernelReport,
        notes: list[str],
    ) -> Result:
        reply = execution.reply or {}
        if status is None:
            status = status_of(reply)
            if status == ERROR and self._cell.was_interrupted(cell.msg_id) and is_interrupt(reply):
                status = INTERRUPTED
        if status == ERROR:
            outputs.take_error_of(reply)
        self._cell.forget(cell.msg_id)
        report.execution_count = reply.get("execution_count") or None
        if not self._held.alive:
            self._telling.of_end(report, notes, self._held.last_words)
        heard = cell.cell_id not in self._unheard  # else what there is to tell is for the next one
        if heard:
            notes += self._telling.of_late_output()
        if self._on_record.closed():
            notes.append("The session was closed meanwhile.")
        notes += outputs.remarks()
        if heard:
            notes += [*job_news(self._held.kernel), *self._telling.of_links()]
            self._told()
        report.note = " ".join(notes) or None
        return outputs.result(status, cell.cell_id, report)

    def _told(self) -> None:
        """Take note that somebody gets the result that says what became of the state."""
        self._telling.told()

    # -- otherwise -------------------------------------------------------------------------------------------

    def never_begun(
        self, call: Call, cell: CellName, report: KernelReport, notes: list[str], over: str | None = None
    ) -> Result:
        """Return what comes of a call that was interrupted before its code could begin, or whose time was over: `over`
        says so then.
        """
        records = self._on_record.records
        records.begin(cell, self._record.session_id, None, call.code, call.limits)
        report.reused, report.ended = False, not self._held.alive and self._record.kernel_id is None
        why = over or "The call was interrupted before the code could begin, and it was not run."
        report.note = " ".join([*notes, why])
        outputs = Outputs(call.limits, records.outputs, cell.msg_id)
        result = outputs.result(INTERRUPTED if over is None else TIMEOUT, cell.cell_id, report)
        self._on_record.finish(cell, result)
        return result

    async def without_kernel(
        self, call: Call, cell: CellName, report: KernelReport, notes: list[str], error: HostError
    ) -> Result:
        """No kernel can be started on a host that can be used otherwise: run the code once without one.

        Once the code may have begun there is a result, and it is on record: it must not run again.

        Raises:
            KernelStartError: that cannot be done either.
        """
        log.warning("%s runs code without a kernel: %s", self._record.session_id, error)
        records = self._on_record.records
        records.begin(cell, self._record.session_id, None, call.code, call.limits)
        outputs = Outputs(call.limits, records.outputs, cell.msg_id, call.told)
        alone = self.alone = RunAlone(self._record, call.code, call.timeout, outputs, cell.cell_id)
        try:
            result = await alone.run(report)
        except AlbedoError as second:
            records.withdraw(cell.msg_id)
            raise KernelStartError(
                error.host,
                f"{str(error).rstrip('.')}. Nor could the code be run without a kernel: {second}",
                error.detail,
            ) from error
        except asyncio.CancelledError:
            if not alone.begun:
                records.withdraw(cell.msg_id)
            raise
        finally:
            self.alone = None
        report.reused, report.ended = False, True
        self._telling.of_loss(report, notes)
        so = ", so the code was run once without one, and nothing that it defined is kept" if alone.begun else ""
        notes.append(f"No kernel could be started{so}. {str(error).rstrip('.')}.")
        notes += alone.notes
        if self._tools.names and alone.begun:
            notes.append("It could call no tools.")
        result.duration = time.monotonic() - alone.since
        await outputs.all_told()
        notes += outputs.remarks()
        if cell.cell_id not in self._unheard:
            notes += self._telling.of_links()
            self._told()
        report.note = " ".join(notes)
        self._on_record.finish(cell, result)
        return result
