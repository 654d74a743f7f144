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
from ..errors import AlbedoError, HostError, KernelGoneError, KernelStartError, LinkAwayError, StagingError
from ..kernels.calls import Handler
from ..kernels.console import Execution
from ..kernels.endings import in_background
from ..kernels.remote import RemoteKernel
from ..location import Location
from ..workspace.serving import KIND as MEMORY
from ..workspace.serving import memory_of
from ..workspace.workspace import Workspace
from .call import Call
from .current_cell import CurrentCell
from .joined_kernel import JoinedKernel
from .outputs import Outputs
from .past import PastCells
from .records import CellName, CellRecord, SessionRecord
from .results import ERROR, INTERRUPTED, LOST, KernelReport, Result, is_interrupt, status_of
from .session_kernel import ANSWER_TIMEOUT, SessionKernel
from .telling import RESET, Telling
from .tools import SessionTools
from .without_kernel import RunAlone

if TYPE_CHECKING:
    from .registry import Registry

log = logging.getLogger("albedo_provisioner.sessions")

NAMES = ("tools", "memory", "run")
"""What cells have without an import; see `albedo_bundle`."""


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
        self._unheard: set[str] = set()  # ids of cells under way whose callers were cancelled
        self._outlived: set[str] = set()  # ids of cells whose calls have ended, and whose code runs on
        self._past = PastCells(
            registry.records, record, lambda cell: cell in self._calls or cell in self._outlived, self._serve_cell
        )
        kind = SessionKernel if record.joined is None else JoinedKernel
        self._telling = Telling(record, self.workspace)
        self._held = kind(record, self._put, self._telling.hear_late, self._past.salvage, handlers)
        self._cell = CurrentCell(record.session_id, self._held)
        self._next: tuple[CellName, float] | None = None  # whose turn it is, and since when
        self._readying: asyncio.Task[None] | None = None  # what has to be done before its code can begin
        self._alone: RunAlone | None = None  # the code that runs without a kernel
        self._on_record: tuple[Any, ...] = ()  # what was put there last, see `SessionRecord.lasting`
        self._prepared: tuple[Any, ...] = ()  # the kernel whose cells have what we offer, and which tools

    # -- what is known ---------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a call is under way, or a cell or a job of it still runs."""
        return bool(self._calls) or self._cell.straggler is not None or self._held.jobs_run

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
        elif self._alone is not None:
            state = "busy"
        elif kernel is not None and kernel.poll() is None:
            state = "busy" if running is not None else ("starting" if kernel.state == "starting" else "idle")
        cell_id, since = (running.name, self._cell.since) if running else (None, 0.0)
        if running is None and self._next is not None:
            cell_id, since = self._next[0].cell_id, self._next[1]
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
                return self._told_again(call, await self.cell(cell_id))
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
                self._unheard.add(cell_id)
            if self._cell.running is not None and self._cell.running.msg_id == cell.msg_id:
                in_background(self._cell.give_way())
            elif self._alone is None or self._alone.cell_id != cell_id or not self._alone.interrupt():
                work.cancel()  # it has not begun, and will not
            raise

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
        self._unheard.discard(cell_id)
        if not work.cancelled() and (error := work.exception()) is not None:
            log.debug("%s: %s", self.record.session_id, error)

    async def _execute(self, call: Call, cell: CellName) -> Result:
        async with self._cell.turn():
            self._next = (cell, time.monotonic())
            try:
                return await self._in_turn(call, cell)
            finally:
                self._next = None

    async def _in_turn(self, call: Call, cell: CellName) -> Result:
        self._must_be_open()
        self.record.used = time.time()
        await self._registry.make_room(self)
        report = self._report()
        notes: list[str] = []
        if call.reset:
            self._held.must_be_ours("restarted")
            report.state_reset = True
            await self._reset()
        for _ in range(3):
            self._must_be_open()
            try:
                if not await self._made_ready(call, report, notes):
                    return self._never_begun(call, cell, report, notes)
            except (KernelStartError, StagingError) as error:
                if not self._held.ours or self.record.kernel_id is not None:
                    raise  # there is a kernel, or may be
                return await self._without_kernel(call, cell, report, notes, error)
            result = await self._run(call, cell, report, notes)
            if result is not None:
                return result
            if self._cell.was_interrupted(cell.msg_id):  # nobody wants it to begin on another kernel
                self._cell.forget(cell.msg_id)
                return self._never_begun(call, cell, report, notes)
        raise AlbedoError(f"Three kernels in a row ended on {self._host} before they ran the code: {self.record.lost}")

    async def link(self) -> None:
        """Link to the kernel that is on record, before anything is run.

        Raises:
            AlbedoError: it is gone, or its host cannot be asked.
        """
        async with self._cell.turn():
            await self._held.take_up(wait_for_sign_in=False)

    def _must_be_open(self) -> None:
        if self.closed:
            raise AlbedoError(f"The session {self.record.session_id} has been closed, or left to another process.")

    def _report(self) -> KernelReport:
        location = self.record.location
        return KernelReport(remote=location.is_remote, host=self._host, location=str(location))

    @property
    def _host(self) -> str:
        return self.record.location.host or "this machine"

    # -- the kernel ------------------------------------------------------------------------------------------

    async def _made_ready(self, call: Call, report: KernelReport, notes: list[str]) -> bool:
        """Do what `_ready` does, and say whether that was not interrupted."""
        if self._held.alive:  # there is little to do
            await self._ready(call, report, notes)
            return True
        self._readying = work = asyncio.get_running_loop().create_task(self._ready(call, report, notes))
        try:
            await work
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return False
        finally:
            self._readying = None
        return True

    def _never_begun(self, call: Call, cell: CellName, report: KernelReport, notes: list[str]) -> Result:
        """Return what comes of a call that was interrupted before its code could begin."""
        records = self._registry.records
        records.begin(cell, self.record.session_id, None, call.code, call.limits)
        report.reused, report.ended = False, not self.has_kernel
        report.note = " ".join([*notes, "The call was interrupted before the code could begin, and it was not run."])
        result = Outputs(call.limits, records.outputs, cell.msg_id).result(INTERRUPTED, cell.cell_id, report)
        self._finish(cell, result)
        return result

    async def _ready(self, call: Call, report: KernelReport, notes: list[str]) -> None:
        """See that there is a kernel, and note in the report what became of the one before."""
        held = self._held
        await held.take_up(call.wait_for_sign_in)
        if held.kernel is not None and not call.wait_for_sign_in:
            await _must_let_us_in(held.kernel)
        await self._cell.make_room()
        if held.alive:
            report.reused = held.fresh is None and self.record.lost is None
            self._telling.of_loss(report, notes)
            if held.fresh is not None and held.fresh not in notes:
                report.state_reset = True
                notes.append(held.fresh)
            return
        if held.kernel is not None:
            held.lose(held.kernel.cause or "its kernel ended")
        report.reused = False
        await held.start(call.wait_for_sign_in)
        self._telling.of_loss(report, notes)
        report.location = str(self.record.location)
        self._put()

    async def _reset(self) -> None:
        """End the kernel because that was asked for; the next result that somebody hears says so."""
        had_one = self.record.kernel_id is not None or self.record.lost is not None
        self.record.lost = RESET if had_one else None
        try:
            await self._held.end()
        except LinkAwayError as error:
            log.info("%s: %s", self.record.session_id, error)  # it is ended at the next contact

    async def _without_kernel(
        self, call: Call, cell: CellName, report: KernelReport, notes: list[str], error: HostError
    ) -> Result:
        """No kernel can be started on a host that can be used otherwise: run the code once without one.

        Once the code may have begun there is a result, and it is on record: it must not run again.

        Raises:
            KernelStartError: that cannot be done either.
        """
        log.warning("%s runs code without a kernel: %s", self.record.session_id, error)
        records = self._registry.records
        records.begin(cell, self.record.session_id, None, call.code, call.limits)
        outputs = Outputs(call.limits, records.outputs, cell.msg_id, call.told)
        alone = self._alone = RunAlone(self.record, call.code, call.timeout, outputs, cell.cell_id)
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
            self._alone = None
        report.reused, report.ended = False, True
        self._telling.of_loss(report, notes)
        so = ", so the code was run once without one, and nothing that it defined is kept" if alone.begun else ""
        notes.append(f"No kernel could be started{so}. {str(error).rstrip('.')}.")
        notes += alone.notes
        if self.tools.names and alone.begun:
            notes.append("It could call no tools.")
        notes += outputs.remarks()
        if cell.cell_id not in self._unheard:
            notes += self._telling.of_links()
            self._told()
        report.note = " ".join(notes)
        result.duration = time.monotonic() - alone.since
        self._finish(cell, result)
        return result

    # -- one cell --------------------------------------------------------------------------------------------

    async def _run(self, call: Call, cell: CellName, report: KernelReport, notes: list[str]) -> Result | None:
        """Run the cell on the kernel; None when the kernel ended before it had begun the cell."""
        kernel, console, records = self._held.kernel, self._held.console, self._registry.records
        assert kernel is not None
        assert console is not None
        outputs = Outputs(call.limits, records.outputs, cell.msg_id, call.told)
        records.begin(cell, self.record.session_id, kernel.kernel_id, call.code, call.limits)
        before = kernel.connections - (kernel.away is None)  # connections that cannot have carried it
        began = time.monotonic()
        grant = self.tools.grant(cell.msg_id, call.tools, call.max_tool_calls, call.loop)
        offered = (kernel.kernel_id, kernel.pid, self.tools.descriptions)
        about: dict[str, Any] = {"server": self.record.session_id}
        if offered != self._prepared:
            about["prepare"] = {"tools": self.tools.descriptions, "names": NAMES}
        request: dict[str, Any] = {"msg_id": cell.msg_id, "name": cell.cell_id, "metadata": {"albedo": about}}
        try:
            execution, status = await self._cell.run(
                kernel, lambda: console.execute(call.code, outputs.take, **request), call.timeout, notes
            )
        finally:
            self.tools.end(cell.msg_id)
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
                self._held.lose(kernel.cause or execution.given_up)
                return None
            status = INTERRUPTED if kernel.poll() is None and self._cell.was_interrupted(cell.msg_id) else LOST
            notes.append(execution.given_up)
        if self._held.kernel is kernel and kernel.poll() is not None:
            self._held.lose(kernel.cause or execution.given_up or "its kernel ended")
        result = self._result(cell, status, execution, outputs, report, notes)
        result.duration = time.monotonic() - began
        result.tool_calls_made = grant.made
        self._finish(cell, result, still_runs=outlived)
        if outlived:
            self._outlived.add(cell.cell_id)
            in_background(self._see_to_the_end(cell, execution, outputs, result, began))
        return result

    async def _see_to_the_end(
        self, cell: CellName, execution: Execution, outputs: Outputs, told: Result, began: float
    ) -> None:
        """Put on record what came of code whose call had ended before, with this result."""
        await execution.finished.wait()
        self._outlived.discard(cell.cell_id)
        outputs.close()
        if self.closed:
            return  # it is for the next process to find out, if there is one
        reply = execution.reply or {}
        by_itself = execution.given_up is None and not is_interrupt(reply)
        report = dataclasses.replace(told.kernel, execution_count=reply.get("execution_count") or None)
        after = execution.given_up or ("It came to its end." if by_itself else "It was interrupted then.")
        remarks = [remark for remark in outputs.remarks() if remark not in str(report.note)]
        report.note = " ".join([str(report.note), after, *remarks])
        result = outputs.result(status_of(reply) if by_itself else told.status, cell.cell_id, report)
        result.duration = time.monotonic() - began
        result.tool_calls_made = told.tool_calls_made
        self._finish(cell, result)

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
        self._cell.forget(cell.msg_id)
        report.execution_count = reply.get("execution_count") or None
        if not self.has_kernel:
            self._telling.of_end(report, notes, self._held.last_words)
        heard = cell.cell_id not in self._unheard  # else what there is to tell is for the next one
        if heard:
            notes += self._telling.of_late_output()
        if self.closed:
            notes.append("The session was closed meanwhile.")
        notes += outputs.remarks()
        if heard:
            notes += [*self._telling.of_jobs(self._held.kernel), *self._telling.of_links()]
            self._told()
        report.note = " ".join(notes) or None
        return outputs.result(status, cell.cell_id, report)

    def _told(self) -> None:
        """Take note that somebody gets the result that says what became of the state."""
        self._telling.told()
        self._held.fresh = None

    # -- acting on it ----------------------------------------------------------------------------------------

    async def interrupt(self) -> bool:
        """Interrupt the cell that runs now, or waits for its kernel, and no other; False when none does.

        While the host is out of reach the interrupt goes out when it is back, if that cell still runs then.

        Raises:
            AlbedoError: the host did not confirm it.
        """
        if self._alone is not None:
            return self._alone.interrupt()
        if self._cell.known is None and self._readying is not None:
            return self._readying.cancel()
        return await self._cell.interrupt()

    async def reset(self) -> None:
        """End the kernel now, under whatever runs on it; the next call starts a fresh one. A call that waits for its
        kernel is interrupted.

        Raises:
            AlbedoError: the kernel is another's.
        """
        self._held.must_be_ours("restarted")
        running = self._cell.running
        if running is not None and not running.finished.is_set():
            self.record.lost = RESET
            await self._cell.end(at_once=True)
            return
        if self._alone is not None:
            self._alone.interrupt()
        elif self._readying is not None:
            self._readying.cancel()  # it may wait for a person who never signs in
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
        """End the kernel, prove that nothing of it is left on its host, and forget the session.

        Args:
            patience: seconds that a cell is given to obey its interrupt; None for `INTERRUPT_GRACE`.

        Raises:
            LinkAwayError: the host is out of reach; the kernel is noted as to be ended, and is at the next contact.
        """
        if self.closed:
            return
        self.closed = True
        try:
            for cell_id, work in self._calls.items():
                if self._cell.running is None or cell_id != self._cell.running.name:
                    work.cancel()
            await self._cell.end(at_once=False, patience=patience)
            if self._calls:
                await asyncio.wait(list(self._calls.values()))
            async with self._cell.turn():
                await self._held.end()
        finally:
            self._registry.forget(self)

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
            if self._held.ours:
                self.record.lost = f"its kernel was ended because {why}."
            await self._held.end()

    async def leave(self) -> None:
        """Let go of the kernel as it is, for another process to take up."""
        self.closed = True
        calls = list(self._calls.values())
        for work in calls:
            work.cancel()
        if calls:  # what became of their cells is for the next process to find out
            await asyncio.wait(calls)
        await self._held.leave()

    # -- on record -------------------------------------------------------------------------------------------

    def cells(self) -> list[CellRecord]:
        """Return the cells on record, oldest first."""
        return self._past.all()

    async def cell(self, cell_id: str) -> Result:
        """Return what came of a cell, once it has come to its end, whoever asked for it; see `PastCells.result`."""
        while (work := self._calls.get(cell_id)) is not None:
            await asyncio.wait([work])
            if not work.cancelled():
                return work.result()
        return await self._past.result(cell_id)

    async def _serve_cell(self, record: CellRecord) -> None:
        """Take up the kernel that a cell of an earlier process runs on: its code may wait for what we answer."""
        if self._held.kernel is not None or record.kernel_id != self.record.kernel_id:
            return
        async with self._cell.turn():
            try:
                await self._held.take_up(wait_for_sign_in=False)
            except KernelGoneError as error:  # one that was joined; what became of the cell is told as of any other
                log.info("%s: %s", self.record.session_id, error)

    def _finish(self, cell: CellName, result: Result, *, still_runs: bool = False) -> None:
        """Put a cell's result on record, and what has changed of the session."""
        self.record.used = time.time()
        lasting = self.record.lasting
        changed = not self.closed and lasting != self._on_record
        try:
            session = self.record if changed else None
            self._registry.records.finish(cell.msg_id, result, session, still_runs=still_runs)
        except AlbedoError as error:  # a result is worth more
            log.warning("%s: what came of a cell is not on record: %s", self.record.session_id, error)
            result.kernel.note = " ".join(
                [*([result.kernel.note] if result.kernel.note else []), f"(Not kept: {error})"]
            )
        else:
            self._on_record = lasting

    def _put(self) -> None:
        if not self.closed:
            self._registry.records.put(self.record)
            self._on_record = self.record.lasting


async def _must_let_us_in(kernel: RemoteKernel) -> None:
    """See that no person has to sign in before a kernel can be reached again.

    Raises:
        SignInError: one has to.
    """
    await kernel.tried(_VERDICT_TIMEOUT)
    if kernel.shut_out is not None:
        raise copy.copy(kernel.shut_out)
