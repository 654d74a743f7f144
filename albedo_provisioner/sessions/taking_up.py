"""Taking up the kernel that an earlier process has left to a session, together with the cells that still run on it.

Everything here runs on the I/O thread's loop.
"""

from __future__ import annotations

import asyncio
import logging

from ..errors import AlbedoError
from ..kernels.console import Followed
from ..kernels.endings import in_background
from ..kernels.remote import RemoteKernel
from .current_cell import CurrentCell, finished
from .entries import CellRecord, SessionRecord
from .past import PastCells
from .session_kernel import ANSWER_TIMEOUT, SessionKernel

log = logging.getLogger("albedo_provisioner.sessions")

_LOOK_AGAIN = 5.0
"""Seconds after which the keeper is asked again about a cell whose end we have not seen."""


class TakingUp:
    """See the module's head.

    Args:
        record: what is on record of the session.
        past: its cells on record.
        held: its kernel, whichever it is at the time.
        cell: told which cells run.
    """

    def __init__(self, record: SessionRecord, past: PastCells, held: SessionKernel, cell: CurrentCell) -> None:
        self._record = record
        self._past = past
        self._held = held
        self._cell = cell
        self._linking: asyncio.Task[None] | None = None
        self._left: CellRecord | None = None

    async def take_up(self, wait_for_sign_in: bool) -> None:
        """Link to the kernel on record, if there is one and we are not; the caller has the session's turn.

        Raises:
            AlbedoError: its host cannot be asked; of a kernel that was joined, that it is gone.
        """
        before = self._held.kernel
        await self._held.take_up(wait_for_sign_in)
        if self._held.kernel is not None and self._held.kernel is not before:
            await self._follow()

    async def link(self) -> None:
        """The same, before anything is run.

        Raises:
            AlbedoError: as `take_up`.
        """
        async with self._cell.turn():
            await self.take_up(wait_for_sign_in=False)

    def link_soon(self) -> None:
        """The same in the background, if code of an earlier process may run there: its calls are to be answered, and it
        can be waited for and interrupted. Where that is not possible now, the next call finds out.
        """
        kernel_id = self._record.kernel_id
        unfinished = [] if kernel_id is None else self._past.unfinished(kernel_id)
        if unfinished:
            self._left = next((each for each in unfinished if each.result is None), None)
            self._linking = in_background(self.link())

    @property
    def left(self) -> CellRecord | None:
        """The cell that is on record as running, while it is being found out whether it does."""
        return self._left if self._linking is not None and not self._linking.done() else None

    async def link_to_what_runs(self) -> None:
        """The same now, if code of an earlier process may run there.

        Raises:
            AlbedoError: as `take_up`.
        """
        if self._held.kernel is None and self._may_run:
            await self.link()

    async def stop(self) -> None:
        """Have nothing done in the background any more."""
        if self._linking is not None:
            self._linking.cancel()
            await asyncio.wait([self._linking])

    @property
    def _may_run(self) -> bool:
        kernel_id = self._record.kernel_id
        return kernel_id is not None and bool(self._past.unfinished(kernel_id))

    async def _follow(self) -> None:
        """Find out which cells still run, and see to it that their ends are noticed."""
        kernel, console = self._held.kernel, self._held.console
        assert kernel is not None
        assert console is not None
        cells = []
        for record in self._past.unfinished(kernel.kernel_id):
            # Followed first: its end may come while the keeper is asked.
            cells.append(console.follow(record.msg_id, record.cell_id))
            self._cell.follow(cells[-1], record.asked, outlives=record.result is not None)
        if cells:
            await self._look(kernel, cells)
            in_background(self._see_to_the_end(kernel, cells))

    async def _see_to_the_end(self, kernel: RemoteKernel, cells: list[Followed]) -> None:
        while cells and self._held.kernel is kernel:
            if not await finished(cells[0], _LOOK_AGAIN) and kernel.away is None:
                await self._look(kernel, cells)
            cells = [cell for cell in cells if not cell.finished.is_set()]

    async def _look(self, kernel: RemoteKernel, cells: list[Followed]) -> None:
        """Ask the keeper which of them have come to their ends."""
        asking = [kernel.is_at(cell.msg_id, ANSWER_TIMEOUT) for cell in cells]
        answers = await asyncio.gather(*asking, return_exceptions=True)
        for cell, answer in zip(cells, answers, strict=True):
            if isinstance(answer, AlbedoError):  # it is asked again, or there is no kernel any more
                log.info("%s: %s: %s", self._record.session_id, cell.name, answer)
            elif isinstance(answer, BaseException):
                raise answer
            elif answer is False:
                cell.end()
            elif answer:
                cell.began = True
            elif not cell.began:
                cell.began = True
                in_background(self._until_answered(cell))

    async def _until_answered(self, cell: Followed) -> None:
        """Ask the kernel something: once that is answered, it is done with a cell that it was asked for before."""
        assert self._held.console is not None
        await self._held.console.request("kernel_info_request", {})
        cell.end()
