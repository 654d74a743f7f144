"""One kernel on a host, as seen from this side: start, attach, signal, start anew, end."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..bundle.messages import HEADER, json_part
from ..bundle.wire import CONTROL, Buffer
from ..errors import (
    AlbedoError,
    HostError,
    KernelExistsError,
    KernelGoneError,
    PackagesMissingError,
    UnansweredError,
    UnreachableError,
)
from ..hosts.recent import RecentHosts
from ..hosts.refusals import start_failed
from .ended import LAST_NOTE, EndedKernel
from .endings import end_abandoned, in_background, is_ending, note_if_possible, prove_endings
from .front import FrontMaker
from .link import KernelLink
from .records import ENDING, KernelRecord, KernelRecords
from .request import KernelRequest

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

_NEXT_KERNEL = 10.0
"""Seconds from the word that a kernel is gone, keeper and all, in which Jupyter's restarter, which looks every three
seconds, has one made in its place. Cells that are sent meanwhile are for that one."""


class RemoteKernel(EndedKernel):
    """A kernel, our link to it, and what stands in front of it here. Used on the I/O thread's loop.

    Make one with `start` or `attach`.
    """

    def __init__(
        self, request: KernelRequest, kernel_id: str, make_front: FrontMaker, node: str = "", guest: bool = False
    ) -> None:
        super().__init__(request, kernel_id, node, guest)
        self._started_here = False
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
        kernel._put_record(anew=True)  # first, so that a kernel whose client is killed at any moment can be found again
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
                # A shell that hangs will do so again, and has let nothing be started.
                hangs = isinstance(error, UnansweredError) and not self._link.sent_request
                if last or hangs or not self._link.let_in:
                    raise
                log.info("%s: %s Looking whether the kernel was started.", self.host, error)
            try:
                return await self._link.attach()
            except KernelGoneError:
                continue  # the connection broke before it was started
            except UnreachableError as error:
                if last or isinstance(error, UnansweredError):
                    raise
                await asyncio.sleep(_START_PAUSE * 2**attempt)
        return None

    async def _provide(self, lacking: PackagesMissingError) -> None:
        """Put on the host what its interpreter lacks. Nothing of the kernel is there meanwhile."""
        from ..hosts.provide import provide  # most hosts never need it

        self._link.let_in = self._link.sent_request = False
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
            note_if_possible(
                records.remove, self.kernel_id
            )  # nothing was asked for, or the host itself says that there is nothing
            return
        records.set_state(self.kernel_id, ENDING)
        if self._link.attached:
            try:
                await self._link.call("finish", timeout=10, term_grace=0)
            except AlbedoError as problem:  # the link may have broken since, and is not kept up for this
                log.info("%s: a kernel that could not be used is still to be ended: %s", self.host, problem)
            else:
                note_if_possible(records.remove, self.kernel_id)
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

    def _put_record(self, anew: bool = False) -> None:
        """Put the kernel on record: as one that is being started `anew`, or as one that runs."""
        request, records = self.request, KernelRecords()
        record = KernelRecord(self.kernel_id, request.location, request.notebook, request.to_dict())
        if anew:
            return records.begin(record)
        known = records.get(self.kernel_id)
        if known is not None:
            # One more client of it does not own it: a notebook's kernel is its server's as long as that lives.
            owner = record.owner if known.orphaned else known.owner
            record = dataclasses.replace(record, started=known.started, owner=owner)
        return records.put(record)

    def rename_notebook(self, path: str) -> None:
        """Note, here and on the host, that the kernel's notebook has another path now; on the I/O thread."""
        self.request = dataclasses.replace(self.request, notebook=path)
        KernelRecords().rename(self.kernel_id, path)
        in_background(self._link.call("notebook", path=path))

    def _host_was_reached(self) -> None:
        """See to the kernels there whose end was asked for and could not be proven; and note that the host was used."""
        host = self.request.location.host
        in_background(prove_endings(host))
        if host is not None:
            asyncio.get_running_loop().run_in_executor(None, RecentHosts().note, host)

    # -- what its clients say --------------------------------------------------------------------------------

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

    # -- beginning anew --------------------------------------------------------------------------------------

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
                await self.wait_for_silence(LAST_NOTE)
            # Also where an end was promised while the host was away: that was the old one's, which has ended.
            note_if_possible(KernelRecords().started_anew, self.kernel_id)
            self._expected = self._silent = False
            await self._until_running()
        finally:
            self._relaunching = False
        self._front.alive = True  # not earlier: a request to end that was meant for the old one may still come

    async def _start_over(self) -> None:
        """Have a new keeper made: the host is there without the old one, as after a restart of the host."""
        self._node = ""  # a name that stands for several machines may lead to another one now
        if is_ending(self.kernel_id):
            self.kernel_id = str(uuid.uuid4())
        self._link, self._gone_at = self._new_link(), None
        waiting, self._for_the_next = self._for_the_next, []
        for channel, parts in waiting:
            self._link.send(channel, parts)
        self._put_record(anew=True)
        self._set_state("starting")
        try:
            await self._make()
        except BaseException as error:
            await asyncio.shield(self._undo_start(error))
            await self._link.close()
            self._set_state("exited")
            self._front.give_up(f"The kernel could not be started anew: {error}")
            raise
