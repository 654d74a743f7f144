"""One kernel on a host, as seen from this side: start, attach, signal, start anew, end."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import signal
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..bundle.messages import HEADER, json_part
from ..bundle.wire import CONTROL, Buffer
from ..errors import (
    AlbedoError,
    ConfigError,
    HostError,
    KernelExistsError,
    KernelGoneError,
    LinkAwayError,
    PackagesMissingError,
    UnreachableError,
)
from ..hosts.recent import RecentHosts
from ..hosts.refusals import start_failed
from .endings import end_abandoned, end_on_host, in_background, is_ending, prove_endings, seeing_to_end
from .front import FrontMaker
from .link import KernelLink
from .records import ENDING, KernelRecord, KernelRecords
from .request import KernelRequest
from .watched import WatchedKernel

if TYPE_CHECKING:
    from ..hosts.progress import Progress

log = logging.getLogger("albedo_provisioner.kernels")

SHUTDOWN_PATIENCE = 2.0
"""Seconds that a client's own request to end the kernel waits for a sign of the host, before it is held back."""

_START_ATTEMPTS = 6
_START_PAUSE = 0.2  # seconds after the first failure, doubled after each further one: 6 s in all

_ATTACH_PATIENCE = 8.0
"""Seconds that taking up a kernel goes on trying while its host is out of reach: client and host may come back
together, as after a walk between two networks."""

_ATTACH_PAUSE = 0.4

_END_GIVEN_UP = 10.0
"""Seconds after the end of a kernel, if that was asked for, in which whoever asked has its keeper ended too, or a new
kernel started. Then they have given up waiting."""

_LAST_NOTE = 2.0
"""Seconds for what a kernel that has ended still had to say to come here, so that its cells hear of the end, too."""

_NEXT_KERNEL = 10.0
"""Seconds from the word that a kernel is gone, keeper and all, in which Jupyter's restarter, which looks every three
seconds, has one made in its place. Cells that are sent meanwhile are for that one."""


_OVERTAKEN = 0.1
"""Seconds that an interrupt waits when no cell is known to run: one that was sent just before passes through zmq, and
the interrupt does not."""


class RemoteKernel(WatchedKernel):
    """A kernel, our link to it, and what stands in front of it here. Used on the I/O thread's loop.

    Make one with `start` or `attach`.

    Attributes:
        guest: whether the kernel is another's: then it is never ended or started anew from here, and its record stays
            as it is.
    """

    def __init__(
        self, request: KernelRequest, kernel_id: str, make_front: FrontMaker, node: str = "", guest: bool = False
    ) -> None:
        super().__init__(request, kernel_id, node)
        self.guest = guest
        self._started_here = False
        self._finishing: asyncio.Task[dict[str, Any]] | None = None
        self._watching_end = False
        self._for_the_next: list[tuple[int, Sequence[Buffer]]] = []  # what was sent since the kernel is gone
        self._front = make_front(  # it outlives a link
            request.key,
            request.signature_scheme,
            self._send,
            lambda: self.answers_within(SHUTDOWN_PATIENCE),
            lambda yes: self._link.pause(yes),
        )

    # -- beginning -------------------------------------------------------------------------------------------

    @classmethod
    async def start(
        cls,
        request: KernelRequest,
        make_front: FrontMaker,
        on_step: Callable[[str], None] | None = None,
        kernel_id: str | None = None,
        on_progress: Callable[[Progress | None], None] | None = None,
        on_let_in: Callable[[], None] | None = None,
    ) -> RemoteKernel:
        """Start a kernel; it listens when this returns.

        Args:
            request: what and where.
            make_front: makes what takes what the kernel says: see `relay_at` for local clients.
            on_step: told each step while it lasts.
            kernel_id: the id that it is to have, if that can be; None for a fresh one.
            on_progress: told how far packages are that the host gets first, and None when they are there.
            on_let_in: told when the host has let us in, at each connection.

        Raises:
            AlbedoError: it could not be started; the message says why and what to do. Nothing is left running.
        """
        if kernel_id is None or is_ending(kernel_id):  # after a start that was given up: what ends that must not hit us
            kernel_id = str(uuid.uuid4())
        kernel = cls(request, kernel_id, make_front)
        kernel._started_here = True
        kernel.on_step = on_step
        kernel.on_progress = on_progress
        kernel.on_let_in = on_let_in
        kernel._put_record()  # first, so that a kernel whose client is killed at any moment can be found again
        try:
            await kernel._make()
            await kernel._until_running()
        except BaseException as error:
            # Also when the caller gave up waiting: a kernel that nobody knows of must not stay.
            await asyncio.shield(kernel._abandon(error))
            raise
        kernel._host_was_reached()
        return kernel

    @classmethod
    async def attach(
        cls,
        request: KernelRequest,
        make_front: FrontMaker,
        kernel_id: str,
        on_step: Callable[[str], None] | None = None,
        guest: bool = False,
        on_let_in: Callable[[], None] | None = None,
    ) -> RemoteKernel:
        """Take up a kernel that runs already, with the key that it was started with.

        Args:
            request: what it was started with; of a guest's, what `kernels/joining.py` found out.
            make_front: see `start`.
            kernel_id: its id.
            on_step: see `start`.
            guest: see the class.
            on_let_in: see `start`.

        Raises:
            KernelGoneError: there is none any more, or it has ended; its keeper, if there is one, stays.
            AlbedoError: the host cannot be reached, nor some seconds later.
        """
        kernel = cls(request, kernel_id, make_front, KernelRecords().node(kernel_id), guest)
        kernel.on_step = on_step
        kernel.on_let_in = on_let_in
        try:
            await kernel._attach_patiently()
            if kernel.state == "exited":  # while nobody was linked to it; its keeper and its journal are still there
                raise KernelGoneError(str(kernel.cause))
            if not guest:
                kernel._put_record()
            await kernel._until_running()
            kernel._front.was_busy = kernel.busy
        except KernelGoneError:
            if not guest:
                KernelRecords().remove(kernel_id)
            await kernel.leave()
            raise
        except BaseException:
            await kernel.leave()
            raise
        kernel._host_was_reached()
        return kernel

    async def _attach_patiently(self) -> None:
        """Attach to the keeper that there is, or was when its host was last heard of."""
        until = asyncio.get_running_loop().time() + _ATTACH_PATIENCE
        while True:
            try:
                return await self._link.attach()
            except UnreachableError as error:
                if asyncio.get_running_loop().time() >= until:
                    raise
                log.info("%s: %s Trying again.", self.host, error)
            await asyncio.sleep(_ATTACH_PAUSE)

    async def _make(self) -> None:
        """Have the kernel made, once, also when the connection breaks while that is under way."""
        names = ("grace", "hold", "notebook", "journal_cells", "journal_bytes", "provide")
        settings = {name: getattr(self.request, name) for name in names}
        provided = False
        for attempt in range(_START_ATTEMPTS):
            last = attempt == _START_ATTEMPTS - 1
            try:
                return await self._link.start(self.request.for_host(), self.request.needs, settings)
            except PackagesMissingError as error:
                if provided or not self.request.provide:
                    raise
                await self._provide(error)
                provided = True
                continue
            except KernelExistsError:
                if attempt == 0:
                    raise
                # An earlier attempt did make it, only later than we looked.
            except UnreachableError as error:
                if last or not self._link.sent_request:
                    raise
                log.info("%s: %s Looking whether the kernel was started.", self.host, error)
            try:
                return await self._link.attach()
            except KernelGoneError:
                continue  # the connection broke before it was started
            except UnreachableError:
                if last:
                    raise
                await asyncio.sleep(_START_PAUSE * 2**attempt)
        return None

    async def _provide(self, lacking: PackagesMissingError) -> None:
        """Put on the host what its interpreter lacks. Nothing of the kernel is there meanwhile."""
        from ..hosts.provide import provide  # most hosts never need it

        self._link.sent_request = False
        self.stepped("staging")
        location = self.request.location
        try:
            await provide(location.host, self.request.python, lacking, self._progressed)
        finally:
            self._progressed(None)

    def _progressed(self, progress: Progress | None) -> None:
        if self.on_progress is not None:
            self.on_progress(progress)

    async def _until_running(self) -> None:
        """Wait until the kernel listens.

        Raises:
            KernelStartError: it ended instead.
            AlbedoError: a newer process has taken our place meanwhile.
        """
        while self.state == "starting":
            if self._replaced:
                raise AlbedoError(str(self.cause))
            self._changed.clear()
            await self._changed.wait()
        if self.state == "exited":
            raise start_failed(self._transport.host, self._exit)

    async def _abandon(self, error: BaseException) -> None:
        """Undo a start that failed with `error`, or is not wanted any more, and let go of the kernel."""
        self._expected = True
        await self._undo_start(error)
        await self.leave()

    async def _undo_start(self, error: BaseException) -> None:
        records = KernelRecords()
        refused = isinstance(error, HostError) and not isinstance(error, UnreachableError)
        if not self._link.sent_request or (refused and not self._link.attached):
            records.remove(self.kernel_id)  # nothing was asked for, or the host itself says that there is nothing
            return
        records.set_state(self.kernel_id, ENDING)
        if self._link.attached:
            try:
                await self._link.call("finish", timeout=10, term_grace=0)
            except AlbedoError as problem:  # the link may have broken since, and is not kept up for this
                log.info("%s: a kernel that could not be used is still to be ended: %s", self.host, problem)
            else:
                records.remove(self.kernel_id)
                return
        in_background(end_abandoned(self.request, self.kernel_id))

    async def give_up(self) -> None:
        """Undo `start` or `attach`: whoever asked for it has given up waiting, and does not have the kernel."""
        if self._started_here:
            await self.finish(term_grace=0)
            return
        await self.leave()
        if not self.guest:
            KernelRecords().release(self.kernel_id)

    def _put_record(self) -> None:
        request, records = self.request, KernelRecords()
        record = KernelRecord(self.kernel_id, request.location, request.notebook, request.to_dict())
        known = records.get(self.kernel_id)
        if known is not None:
            # One more client of it does not own it: a notebook's kernel is its server's as long as that lives.
            owner = record.owner if known.orphaned else known.owner
            record = dataclasses.replace(record, started=known.started, owner=owner)
        records.put(record)

    def rename_notebook(self, path: str) -> None:
        """Note, here and on the host, that the kernel's notebook has another path now; on the I/O thread."""
        self.request = dataclasses.replace(self.request, notebook=path)
        self._put_record()
        in_background(self._link.call("notebook", path=path))

    def _host_was_reached(self) -> None:
        """See to the kernels there whose end was asked for and could not be proven; and note that the host was used."""
        host = self.request.location.host
        in_background(prove_endings(host))
        if host is not None:
            asyncio.get_running_loop().run_in_executor(None, RecentHosts().note, host)

    # -- acting on it ----------------------------------------------------------------------------------------

    async def signal(self, signum: int, timeout: float | None = None, cell: str | None = None) -> bool:
        """Send a signal to the kernel's process group on its host.

        An interrupt is meant for the cell that runs now. While the host is out of reach it is not waited for: it goes
        out when the host is back, if that cell still runs then, and the cell is told.

        Args:
            signum: the signal.
            timeout: seconds to wait for the host's confirmation.
            cell: the id of one cell of ours that it is meant for, and for no other: where another client's runs first,
                it waits for its own to begin. None for the cell of ours that runs now, or whatever runs if none does.

        Returns:
            whether it waits behind another client's cell.

        Raises:
            LinkAwayError: not confirmed in time because the host is out of reach; it stays meant for that cell.
            AlbedoError: it could not be sent.
        """
        return await self._act_on_cell(signum, timeout, cell)

    async def refuse_end(self, session: str, why: str) -> None:
        """Refuse a client the end of the kernel that it has asked for, and have the user told why.

        Args:
            session: the id of the client's session, as in the headers of its messages.
            why: a line for the cell that runs, else for the next one.
        """
        self._front.refuse_end(session)
        await self.tell_user(why)

    async def interrupt_by(self, message: Sequence[Buffer], timeout: float | None = None) -> None:
        """Pass on a request to interrupt, on the control channel, as `signal` passes on an interrupt.

        Raises:
            AlbedoError: as `signal`.
        """
        await self._act_on_cell(signal.SIGINT, timeout, message=[bytes(part).decode("latin-1") for part in message])

    def _send(self, channel: int, parts: Sequence[Buffer]) -> None:
        """Pass on what a client says. When it is to interrupt, that is for the cell that runs now, and for no other."""
        if channel == CONTROL and json_part(parts, HEADER).get("msg_type") == "interrupt_request":
            in_background(self.interrupt_by(parts))
        elif not self._link.ended:
            self._link.send(channel, parts)
        else:
            # Nobody is there to be asked. Whoever asks is answered all the same, by the next kernel or in words.
            if self._gone_at is not None and not self._relaunching:
                self._for_the_next.append((channel, parts))
            loop = asyncio.get_running_loop()
            loop.call_at(max(loop.time(), (self._gone_at or 0.0) + _NEXT_KERNEL), self._refuse_for_good, self._link)

    def _refuse_for_good(self, link: KernelLink) -> None:
        """Tell those who asked a kernel that is gone so, unless another one has taken its place."""
        if self._link is link:
            self._for_the_next.clear()
            self._front.give_up(self.cause or "The kernel ended.")

    async def _act_on_cell(self, signum: int, timeout: float | None, only: str | None = None, **more: Any) -> bool:
        running = self._front.running if signum == signal.SIGINT else []
        if signum == signal.SIGINT and not running and only is None:
            await asyncio.sleep(_OVERTAKEN)
            running = self._front.running
        if only is not None:
            running = [header for header in running if header["msg_id"] == only]
            more["only"] = True
        cell = only or (running[0]["msg_id"] if running else None)
        call = self._link.call("signal", timeout, signum=int(signum), cell=cell, **more)
        if self._link.attached or signum != signal.SIGINT:
            self._link.doubt()  # if the connection is dead, another one is made soon
            try:
                return bool((await call).get("behind"))
            except LinkAwayError:
                self._tell_of_later(running)
                raise
        in_background(call)
        self._tell_of_later(running)
        return False

    def _tell_of_later(self, running: Sequence[dict[str, Any]]) -> None:
        """Tell the cell that runs that its interrupt has to wait for its host."""
        why = self.away or "it does not answer"
        for header in [header for header in running if header in self._front.running][:1]:
            self._front.tell(
                header, f"[albedo] {self.host} is out of reach ({why}): the interrupt is delivered when it is back.\n"
            )

    def withdraw(self, message_id: str) -> bool:
        """Take back a request on shell that has not gone out, as the host is out of reach.

        Whoever waits for its reply is told that there will be none. False when the host may have got it.
        """
        if self._link.attached or not self._link.withdraw(message_id):
            return False
        why = f"This was not run: {self.host} is out of reach ({self.away or 'it does not answer'})."
        self._front.give_up(why, {message_id})
        return True

    async def never_begun(self, message_id: str, timeout: float) -> bool:
        """Say whether it is known of a request on shell that no kernel has begun to do it; none will any more.

        Raises:
            LinkAwayError: the keeper could not be asked in time.
            KernelGoneError: there is none to ask.
        """
        answer = await self._link.call("give_up", timeout, ids=[message_id])
        return message_id in answer.get("never_begun", [])

    async def stop(self, term_grace: float = 2.0, timeout: float | None = None) -> dict[str, Any]:
        """End the kernel's whole process tree and return the report (see `bundle/ladder.py`); its keeper stays.

        Raises:
            AlbedoError: the host could not be asked (in time), or the kernel is another's.
        """
        self._must_be_ours("ended")
        self.expect_end()
        answer = await self._link.call("stop", timeout, term_grace=term_grace)
        return dict(answer["report"])

    async def relaunch(self, request: KernelRequest) -> None:
        """Start the kernel anew, once nothing of the old one is left; clients keep their connections.

        Raises:
            AlbedoError: it could not be started, or is another's.
        """
        if self._replaced:
            raise KernelGoneError(str(self.cause))
        self._must_be_ours("restarted")
        self.expect_end()
        self.request = request
        self._relaunching = True
        try:
            try:
                await self._ask_any_keeper("launch", kernel=request.for_host())
            except KernelGoneError as error:
                log.warning("%s Starting a new one.", error)
                await self._start_over()
            else:
                # What the old one's cells are told of its end comes behind all that it said.
                await self.wait_for_silence(_LAST_NOTE)
            self._expected = self._silent = False
            await self._until_running()
        finally:
            self._relaunching = False
        self._front.alive = True  # not earlier: a request to end that was meant for the old one may still come

    async def _ask_any_keeper(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Ask for what may be done twice without harm: a keeper that was killed took the request with it, so the one in
        its place is asked again. Else a kernel whose end nobody waits for any more would stay for ever.
        """
        while True:
            try:
                return await self._link.call(do, **arguments)
            except LinkAwayError as error:
                log.info("%s Asking again.", error)

    async def _start_over(self) -> None:
        """Have a new keeper made: the host is there without the old one, as after a restart of the host."""
        self._node = ""  # a name that stands for several machines may lead to another one now
        if is_ending(self.kernel_id):
            self.kernel_id = str(uuid.uuid4())
        self._link, self._gone_at = self._new_link(), None
        waiting, self._for_the_next = self._for_the_next, []
        for channel, parts in waiting:
            self._link.send(channel, parts)
        self._put_record()
        self._set_state("starting")
        try:
            await self._make()
        except BaseException as error:
            await asyncio.shield(self._undo_start(error))
            await self._link.close()
            self._set_state("exited")
            self._front.give_up(f"The kernel could not be started anew: {error}")
            raise

    async def finish(self, term_grace: float = 2.0, timeout: float | None = None) -> dict[str, Any]:
        """End the kernel and its keeper, see that nothing is left on the host, and let go of it.

        Returns:
            the ladder's report.

        Raises:
            LinkAwayError: the host is out of reach. The request stays: it is done as soon as the host can be reached
                again, as long as this process lives.
            AlbedoError: the host refused.
        """
        self.expect_end()
        if self._front.running and not self.guest:
            if self.state == "exited" and self.away is None:
                await self.wait_for_silence(_LAST_NOTE)
            self._front.end(
                self.cause or f"The kernel on {self.host} was ended by a client: {self._link.client}.", True
            )
        self._front.close()
        if self.guest:
            await self.leave()
        if self.guest or self._replaced:  # it is another's to end
            return {"survivors": [], "foreign": []}
        if self._finishing is None:
            self._finishing = asyncio.get_running_loop().create_task(self._finish(term_grace))
            self._finishing.add_done_callback(self._note_end)  # nobody may be waiting for it by then
            self._note(lambda: KernelRecords().set_state(self.kernel_id, ENDING))
        done, _ = await asyncio.wait([self._finishing], timeout=timeout)
        if not done:
            raise LinkAwayError(
                f"{self.host} is out of reach ({self.away or 'it does not answer'}); the kernel is ended as soon as it "
                "can be reached again."
            )
        return self._finishing.result()

    def _note_end(self, finishing: asyncio.Task[dict[str, Any]]) -> None:
        if not finishing.cancelled() and finishing.exception() is not None:
            log.info("%s: the kernel's end is not proven: %s", self.host, finishing.exception())

    async def _finish(self, term_grace: float) -> dict[str, Any]:
        report = await self._end_keeper(term_grace)
        await self.leave()
        return report

    async def _end_keeper(self, term_grace: float) -> dict[str, Any]:
        with seeing_to_end(self.kernel_id):
            try:
                report = (await self._ask_any_keeper("finish", term_grace=term_grace))["report"]
            except KernelGoneError:
                # No keeper: what it left, if anything, is ended without one.
                report = await end_on_host(self.request, self.kernel_id)
        self._note(lambda: KernelRecords().remove(self.kernel_id))
        return dict(report)

    def expect_end(self) -> None:
        """Note that the kernel's end is wanted, by somebody who has its keeper ended as well, or a new one started."""
        super().expect_end()
        if self._expected and not self._watching_end and not self.guest:
            self._watching_end = True
            in_background(self._end_given_up())

    async def _end_given_up(self) -> None:
        """Have the keeper end, too, where those who wanted the kernel's end gave up waiting for it half-way.

        What stands in front stays: they may want a new kernel in its place yet.
        """
        await self.wait()
        await asyncio.sleep(_END_GIVEN_UP)
        self._watching_end = False
        unseen = self._finishing is None and not self._relaunching and not self._link.ended
        if unseen and self._expected and self.state == "exited":
            log.info("%s: the kernel has ended, and nobody asks for more; its keeper ends, too.", self.host)
            await self._end_keeper(0.0)

    def _note(self, note: Callable[[], None]) -> None:
        """Note something of its end on record, if that can be: a full disk keeps no kernel alive."""
        try:
            note()
        except ConfigError as error:
            log.warning("Kernel %s: %s", self.kernel_id, error)

    def _must_be_ours(self, done: str) -> None:
        if self.guest:
            raise AlbedoError(
                f"The kernel {self.kernel_id[:8]} on {self.host} belongs to whoever started it, and is not {done} from "
                "here."
            )

    async def leave(self) -> None:
        """Let go of the kernel without touching it."""
        self._calls.close()
        await self._link.close()
        self._front.close()
