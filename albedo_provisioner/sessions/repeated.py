"""A call that is repeated after its process was killed, or has left: it is not run again, and ends as it would have.

Everything here runs on the I/O thread's loop.
"""

from __future__ import annotations

import asyncio
import dataclasses

from ..kernels.endings import in_background
from .call import Call
from .current_cell import CurrentCell, finished
from .entries import CellName
from .on_record import OnRecord
from .results import INTERRUPTED, LOST, TIMEOUT, KernelReport, Result
from .session_kernel import ANSWER_TIMEOUT, SessionKernel


class Repeated:
    """See the module's head.

    Args:
        call: the call.
        cell: its cell.
        asked: returns what came of the cell, once it has come to its end.
        current: the cell that runs.
        held: the session's kernel.
        on_record: puts on record what came of it.
    """

    def __init__(
        self,
        call: Call,
        cell: CellName,
        asked: asyncio.Task[Result],
        current: CurrentCell,
        held: SessionKernel,
        on_record: OnRecord,
    ) -> None:
        self._call = call
        self._cell = cell
        self._asked = asked
        self._current = current
        self._held = held
        self._on_record = on_record

    async def result(self, report: KernelReport) -> Result:
        """Return what came of it. Its time counts anew; when that is over, or the caller is cancelled, it is
        interrupted.

        Args:
            report: for a result that cannot be had in time.

        Raises:
            AlbedoError: what came of it cannot be found out (now).
            KeyError: it was never run.
        """
        try:
            await asyncio.wait([self._asked], timeout=self._call.timeout)
            if not self._asked.done():
                return await self._time_out(self._call.timeout or 0.0, report)
            return self._asked.result()
        except asyncio.CancelledError:
            if self._runs:
                in_background(self._current.interrupt())
            raise
        finally:
            self._asked.cancel()

    @property
    def _runs(self) -> bool:
        earlier = self._current.earlier
        return earlier is not None and earlier.msg_id == self._cell.msg_id

    async def _time_out(self, timeout: float, report: KernelReport) -> Result:
        kernel, earlier, notes = self._held.kernel, self._current.earlier, list[str]()
        if kernel is None or earlier is None or not self._runs:
            report.note = (
                f"This call was sent before, by an earlier process, and what came of it could not be found out within "
                f"{timeout:g} s; cell({self._cell.cell_id!r}) tells."
            )
            return Result(TIMEOUT, kernel=report, cell_id=self._cell.cell_id)
        await self._current.time_out(kernel, earlier, timeout, notes)
        if self._held.kernel is not kernel:  # it was killed
            await finished(earlier, ANSWER_TIMEOUT)
        if not earlier.finished.is_set():
            report.note = " ".join(notes)
            return Result(TIMEOUT, kernel=report, cell_id=self._cell.cell_id)
        result = await self._asked
        if result.status in (INTERRUPTED, LOST):
            note = " ".join(filter(None, [*notes, result.kernel.note]))
            result = dataclasses.replace(result, status=TIMEOUT, kernel=dataclasses.replace(result.kernel, note=note))
            self._on_record.finish(self._cell, result)
        return result
