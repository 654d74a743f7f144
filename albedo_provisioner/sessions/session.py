"""One session: an owner's use of one kernel, whatever becomes of kernels, links and processes.

Everything here runs on the I/O thread's loop. The faces that callers hold are in `faces.py`.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import logging
import time
from typing import TYPE_CHECKING, Any

from ..bundle.wire import TOOL
from ..errors import AlbedoError, KernelGoneError, KernelStartError, LinkAwayError, StagingError
from ..kernels.calls import Handler
from ..kernels.endings import in_background
from ..kernels.remote import RemoteKernel
from ..location import Location
from ..workspace.serving import KIND as MEMORY
from ..workspace.serving import memory_of
from ..workspace.workspace import Workspace
from .call import Call
from .cell_runs import CellRuns
from .current_cell import CurrentCell
from .entries import CellName, CellRecord, SessionRecord
from .joined_kernel import JoinedKernel
from .losses import note_loss
from .on_record import OnRecord
from .past import PastCells
from .patience import KERNEL, ROOM, TURN, Patience
from .repeated import Repeated
from .results import KernelReport, Result
from .session_kernel import SessionKernel, job_news
from .taking_up import TakingUp
from .telling import Telling
from .tools import SessionTools

if TYPE_CHECKING:
    from .registry import Registry

log = logging.getLogger("albedo_provisioner.sessions")

_VERDICT_TIMEOUT = 3.0
"""Seconds that a host which is out of reach is given to say whether a person has to sign in."""


class SessionCore:
    """A session; see the module's head.

    Args:
        record: what is on record of it.
        registry: the sessions that it belongs to.
        tools: what its cells may call.
    """

    def __init__(self, record: SessionRecord, registry: Registry, tools: SessionTools) -> None:
        self.record = record
        self.tools = tools
        self.closed = False
        self.workspace = Workspace(lambda: record.location, registry.home, lambda: record.python)
        self._registry = registry
        self._calls: dict[str, asyncio.Task[Result]] = {}  # those that have not returned yet, by their cells' ids
        handlers: dict[str, Handler] = {
            TOOL: lambda call: self.tools.answer(call),
            MEMORY: memory_of(lambda: record.location, registry.home),
        }
        self._on_record = OnRecord(registry.records, record, lambda: self.closed)
        self._past = PastCells(
            registry.records,
            record,
            lambda cell: cell in self._calls or self._runs.outlives(cell),
            lambda msg_id: self._cell.was_interrupted(msg_id),
            self._serve_cell,
            self._heard_of_cell,
        )
        kind = SessionKernel if record.joined is None else JoinedKernel
        self._telling = Telling(record, self.workspace)
        self._held = kind(record, self._put, self._telling.hear_late, self._past, handlers)
        self._cell = CurrentCell(record.session_id, self._held)
        self.taking_up = TakingUp(record, self._past, self._held, self._cell)
        self._runs = CellRuns(self._on_record, self._held, self._cell, self._telling, tools)
        self._next: tuple[CellName, float] | None = None  # whose turn it is, and since when
        self._closing: asyncio.Event | None = None  # set once it is closed; None while nobody closes it
        self._patiences: dict[str, Patience] = {}  # those of the calls, by their cells' ids, in the calls' order
        self._readying: Patience | None = None  # of the call that has its kernel started, or taken up

    # -- what is known ---------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a call is under way, or a cell or a job of it still runs."""
        cell = self._cell.earlier is not None or self._cell.straggler is not None or self._runs.any_outlives
        return bool(self._calls) or cell or self._held.jobs_run

    @property
    def last_use(self) -> float:
        """When it was used last, in seconds since the epoch: the end of a cell or of a job is a use as well."""
        kernel = self._held.kernel
        return max(self.record.used, kernel.jobs.last_end if kernel is not None else 0.0)

    @property
    def owns_kernel(self) -> bool:
        """Whether its kernel, if it has one, is its own, and not another's that it has joined."""
        return self._held.ours

    @property
    def away(self) -> bool:
        """Whether the host of its kernel is known to be out of reach."""
        return self._held.kernel is not None and self._held.kernel.away is not None

    @property
    def has_kernel(self) -> bool:
        """Whether it has a kernel that is not known to be dead."""
        return self._held.alive

    def status(self) -> dict[str, Any]:
        """Return what is known of it at this moment, as plain JSON; nothing is asked."""
        kernel, running = self._held.kernel, self._cell.known
        state = None
        if self._readying is not None:
            state = "starting"
        elif self._runs.alone is not None:
            state = "busy"
        elif kernel is not None and kernel.poll() is None:
            state = "busy" if running is not None else ("starting" if kernel.state == "starting" else "idle")
        cell_id, since = (running.name, self._cell.known_since) if running else (None, 0.0)
        if running is None and self._next is not None:
            cell_id, since = self._next[0].cell_id, self._next[1]
        elif running is None and (left := self.taking_up.left) is not None:
            state, cell_id, since = "busy", left.cell_id, time.monotonic() - (time.time() - left.asked)
        sign_in = self._held.sign_in or (kernel.shut_out if kernel else None)
        return {
            "session_id": self.record.session_id,
            "owner": self.record.owner,
            "location": str(self.record.location),
            "host": self._host,
            "link": self._held.step,
            "step": self._held.step,
            "away": (sign_in.detail if sign_in else None) or (kernel.away if kernel else None),
            "advice": str(sign_in) if sign_in else None,
            "process": None if kernel is None else {"pid": kernel.pid, "state": kernel.state, "cause": kernel.cause},
            "responsive": None if kernel is None else kernel.responsive,
            "kernel_id": self.record.kernel_id,
            "joined": not self._held.ours,
            "execution_state": state,
            "cell_id": cell_id,
            "tools": list(self.tools.names),
            "running_for": time.monotonic() - since if cell_id else None,
            "jobs": [] if kernel is None else kernel.jobs.known(),
            "used": self.record.used,
        }

    # -- running ---------------------------------------------------------------------------------------------

    async def execute(self, call: Call) -> Result:
        """Run a cell after all that was asked before, and return what came of it.

        When the caller is cancelled the cell is interrupted, and what becomes of it is on record.

        Raises:
            AlbedoError: it was not run, and why; a `SignInError` or `UnreachableError` says so of the host.
        """
        if self.tools.inside():
            raise AlbedoError(
                "A tool cannot run code on the session whose cell waits for it; it would wait for itself."
            )
        session_id, records = self.record.session_id, self._registry.records
        cell = CellName.of(session_id, call.cell_id or None)
        cell_id = cell.cell_id
        if call.cell_id and (cell_id in self._calls or records.cell(session_id, cell_id) is not None):
            try:
                return self._told_again(call, await self._again(call, cell))
            except AlbedoError as error:  # of all others it means that the code was not run
                error.args = (f"The code was sent before, and what came of it cannot be told now: {error}",)
                raise
            except KeyError:
                pass  # the caller of the one before was cancelled before it began, so it was not run: this one is
        work = asyncio.get_running_loop().create_task(self._execute(call, cell))
        self._calls[cell_id] = work
        work.add_done_callback(lambda done: self._call_done(cell_id, done))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if work.cancelled():
                self._must_be_open()
            if not work.done():
                self._runs.not_heard(cell_id)
            if self._cell.running is not None and self._cell.running.msg_id == cell.msg_id:
                in_background(self._cell.give_way())
            elif self._runs.alone is None or self._runs.alone.cell_id != cell_id or not self._runs.alone.interrupt():
                work.cancel()  # it has not begun, and will not
            raise

    async def _again(self, call: Call, cell: CellName) -> Result:
        """Return what came of a call that is repeated, once it has come to its end."""
        if cell.cell_id in self._calls:
            return await self.cell(cell.cell_id, to_a_call=True)
        asked = asyncio.create_task(self.cell(cell.cell_id, to_a_call=True))
        return await Repeated(call, cell, asked, self._cell, self._held, self._on_record).result(self._report())

    def _told_again(self, call: Call, result: Result) -> Result:
        """Return what came of a call, to one that repeats its `cell_id`."""
        known = self._registry.records.cell(self.record.session_id, result.cell_id)
        if known is None or known.code == call.code:
            return result
        other = f"(This is what came of other code with the cell_id {result.cell_id!r}, which was run before.)"
        note = " ".join(filter(None, [result.kernel.note, other]))
        return dataclasses.replace(result, kernel=dataclasses.replace(result.kernel, note=note))

    def _call_done(self, cell_id: str, work: asyncio.Task[Result]) -> None:
        del self._calls[cell_id]
        self._runs.returned(cell_id)
        if not work.cancelled() and (error := work.exception()) is not None:
            log.debug("%s: %s", self.record.session_id, error)

    async def _execute(self, call: Call, cell: CellName) -> Result:
        report, notes = self._report(), list[str]()
        patience = Patience(call, self._held, lambda: self._readying is not None)
        self._patiences[cell.cell_id] = patience
        patience.wait()
        try:
            async with self._cell.turn():
                self._next = (cell, time.monotonic())
                try:
                    return await self._in_turn(call, cell, patience, report, notes)
                finally:
                    self._next = None
        except asyncio.CancelledError:
            if not patience.given_up():
                raise
            return self._runs.never_begun(call, cell, report, notes, patience.over)
        finally:
            patience.stop()
            del self._patiences[cell.cell_id]

    async def _in_turn(
        self, call: Call, cell: CellName, patience: Patience, report: KernelReport, notes: list[str]
    ) -> Result:
        self._must_be_open()
        self.record.used = time.time()
        patience.waits_for = ROOM
        await self._registry.make_room(self)
        patience.waits_for = KERNEL
        report.location = str(self.record.location)  # it may have been moved meanwhile
        self._telling.begin(call.reset)
        if call.reset:
            self._held.must_be_ours("restarted")
            self._put()  # where that cannot be, the call cannot be run either, and the state had better stay
            report.state_reset = True
            await self._reset()
        for _ in range(3):
            self._must_be_open()
            self._readying = None if self._held.alive else patience  # else there is little to do
            try:
                await self._ready(call, patience, report, notes)
            except (KernelStartError, StagingError) as error:
                if not self._held.ours or self.record.kernel_id is not None:
                    raise  # there is a kernel, or may be
                self._readying = None
                await patience.begin()
                return await self._runs.without_kernel(call, cell, report, notes, error)
            finally:
                self._readying = None
            await patience.begin()
            result = await self._runs.run(call, cell, report, notes)
            if result is not None:
                return result
            patience.wait()
            if self._cell.was_interrupted(cell.msg_id):  # nobody wants it to begin on another kernel
                self._cell.forget(cell.msg_id)
                return self._runs.never_begun(call, cell, report, notes)
        raise AlbedoError(
            f"Three kernels in a row ended on {self._host} before they ran the code: {self._held.last_end}"
        )

    def _must_be_open(self) -> None:
        if self.closed:
            raise AlbedoError(f"The session {self.record.session_id} has been closed, or left to another process.")

    def _report(self) -> KernelReport:
        location = self.record.location
        return KernelReport(remote=location.is_remote, host=self._host, location=str(location))

    @property
    def _host(self) -> str:
        return self._held.host

    # -- the kernel ------------------------------------------------------------------------------------------

    async def _ready(self, call: Call, patience: Patience, report: KernelReport, notes: list[str]) -> None:
        """See that there is a kernel, and note in the report what became of the one before."""
        held = self._held
        await self.taking_up.take_up(call.wait_for_sign_in)
        if held.kernel is not None and not call.wait_for_sign_in:
            await _must_let_us_in(held.kernel)
        if self._cell.earlier is not None:
            self._readying, patience.waits_for = None, TURN
            await self._cell.earlier_over()
            self._readying, patience.waits_for = patience, KERNEL
        await self._cell.make_room()
        if held.alive:
            report.reused, held.fresh = self.record.lost is None and not held.fresh, False
            self._telling.of_loss(report, notes)
            return
        if held.kernel is not None:
            held.lose(held.kernel.cause or "its kernel ended")
        report.reused = False
        await held.start(call.wait_for_sign_in)
        await self.workspace.visited(self.record.spelled)
        self._telling.of_loss(report, notes)
        report.location = str(self.record.location)
        self._put()

    async def _reset(self) -> None:
        """End the kernel because that was asked for; the next result that somebody hears says so."""
        held = self._held
        had_state = held.has_state
        if held.kernel is not None and not held.alive:
            held.lose(held.kernel.cause or "its kernel ended")  # which is told as well
        if had_state:
            held.note_reset()
        try:
            await held.end()
        except LinkAwayError as error:
            log.info("%s: %s", self.record.session_id, error)  # it is ended at the next contact

    # -- acting on it ----------------------------------------------------------------------------------------

    async def interrupt(self) -> bool:
        """Interrupt the cell that runs now, else the call that waits to be the next, and no other; False when there is
        none. What waits has not begun then, and does not.

        While the host is out of reach the interrupt goes out when it is back: a cell that runs then is interrupted, and
        one that has not reached the kernel does not begin.

        Raises:
            AlbedoError: the host did not confirm it.
        """
        if self._runs.alone is not None:
            return self._runs.alone.interrupt()
        if self._cell.running is None and self._cell.earlier is None:
            waiting = next((each for each in self._patiences.values() if each.waiting), None)
            if waiting is not None:
                return waiting.interrupt()
        await self.taking_up.link_to_what_runs()
        return await self._cell.interrupt()

    async def reset(self) -> None:
        """End the kernel now, under whatever runs on it; the next call starts a fresh one. A call that waits for its
        kernel is interrupted.

        Raises:
            AlbedoError: the kernel is another's.
        """
        self._held.must_be_ours("restarted")
        running = self._cell.running or self._cell.earlier
        if running is not None and not running.finished.is_set():
            self._held.note_reset()
            await self._cell.end(at_once=True)
            return
        if self._runs.alone is not None:
            self._runs.alone.interrupt()
        elif self._readying is not None:
            self._readying.interrupt()  # it may wait for a person who never signs in
        async with self._cell.turn():
            await self._reset()

    async def move(self, location: Location) -> None:
        """Start a kernel in another place, and end the one in the old place with proof.

        Raises:
            AlbedoError: no kernel could be started there; everything stays as it was.
        """
        async with self._cell.turn():
            self._must_be_open()
            self._held.must_be_ours("moved")
            await self._registry.make_room(self)
            await self._held.move(location)

    async def close(self, patience: float | None = None) -> None:
        """End the kernel, prove that nothing of it is left on its host, nor of those before it that were to be ended
        (by a reset, a move, for room) while their hosts were out of reach, and forget the session.

        Args:
            patience: seconds that a cell is given to obey its interrupt; None for `INTERRUPT_GRACE`.

        Raises:
            LinkAwayError: the host is out of reach; the kernel is noted as to be ended, and is at the next contact.
        """
        if self.closed:
            if self._closing is not None:  # by another, such as its own cell's tool
                await self._closing.wait()
                await self._held.prove_ends(())
            return
        self.closed, self._closing = True, asyncio.Event()
        try:
            await self.taking_up.stop()
            for cell_id, work in self._calls.items():
                if self._cell.running is None or cell_id != self._cell.running.name:
                    work.cancel()
            await self._cell.end(at_once=False, patience=patience)
            if self._calls:
                await asyncio.wait(list(self._calls.values()))
            async with self._cell.turn():
                await self._held.end()
                await self._held.prove_ends(self._registry.records.kernels_of(self.record.session_id))
        finally:
            self._registry.forget(self)
            self._closing.set()

    async def evict(self, why: str) -> None:
        """End the kernel because others need the room, or nobody needs it; the next call is told.

        Raises:
            LinkAwayError: as `close`.
        """
        if self.busy:
            return  # its call waits for the room that is being made, and must not be waited for
        async with self._cell.turn():
            if self.busy or not self.has_kernel:
                return
            if self._held.ours and self._held.has_state:
                untold = " ".join(job_news(self._held.kernel))  # nobody could be told any more
                note_loss(self.record, f"its kernel was ended because {why}", untold)
            await self._held.end()

    async def leave(self) -> None:
        """Let go of the kernel as it is, for another process to take up."""
        self.closed = True
        calls = list(self._calls.values())
        for work in calls:
            work.cancel()
        await self.taking_up.stop()
        if calls:  # what became of their cells is for the next process to find out
            await asyncio.wait(calls)
        await self._held.leave()

    # -- on record -------------------------------------------------------------------------------------------

    def cells(self) -> list[CellRecord]:
        """Return the cells on record, oldest first."""
        return self._past.all()

    async def cell(self, cell_id: str, *, to_a_call: bool = False) -> Result:
        """Return what came of a cell, once it has come to its end, whoever asked for it; see `PastCells.result`."""
        while (work := self._calls.get(cell_id)) is not None:
            await asyncio.wait([work])
            if not work.cancelled():
                return work.result()
        return await self._past.result(cell_id, to_a_call=to_a_call)

    async def _serve_cell(self, record: CellRecord) -> None:
        """Take up the kernel that a cell of an earlier process runs on: its code may wait for what we answer."""
        if self._held.kernel is not None or record.kernel_id != self.record.kernel_id:
            return
        async with self._cell.turn():
            try:
                await self.taking_up.take_up(wait_for_sign_in=False)
            except KernelGoneError as error:  # one that was joined; what became of the cell is told as of any other
                log.info("%s: %s", self.record.session_id, error)

    async def _heard_of_cell(self, record: CellRecord, result: Result, told: list[str]) -> None:
        """A call gets what came of a cell of an earlier process: the losses that this tells are not told again.

        The end of the cell's kernel is one of them. Its cause, which the journal does not know, is put into the result.
        """
        report = result.kernel
        lost_now = report.ended and record.kernel_id == self.record.kernel_id
        if not (report.state_lost or report.state_reset) or (self._calls and not lost_now):
            return  # a call that is under way tells them, or has told them
        async with self._cell.turn():
            if lost_now:
                await self._held.settle(record.kernel_id, _VERDICT_TIMEOUT)
            lost, line = self._held.last_loss
            if report.ended and lost == record.kernel_id and line is not None:
                told = [*told, line]
                if line not in str(report.note):
                    report.note = f"{report.note} {line}"
            self._telling.told_otherwise(told)
            self._on_record.finish(CellName(record.cell_id, record.msg_id), result)

    def _put(self) -> None:
        self._on_record.put()


async def _must_let_us_in(kernel: RemoteKernel) -> None:
    """See that no person has to sign in before a kernel can be reached again.

    Raises:
        SignInError: one has to.
    """
    await kernel.tried(_VERDICT_TIMEOUT)
    if kernel.shut_out is not None:
        raise copy.copy(kernel.shut_out)
