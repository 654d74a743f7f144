"""The kernel of a session: started when it is wanted, taken up from an earlier process, ended, moved.

Everything here runs on the I/O thread's loop.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from ..errors import AlbedoError, KernelGoneError, LinkAwayError, SignInError
from ..hosts.reachability import Reachability
from ..kernels.calls import Handler
from ..kernels.console import Console, Heard
from ..kernels.endings import end_by_record, end_on_host, in_background, unproven_ends, who_ended
from ..kernels.records import KernelRecords
from ..kernels.remote import RemoteKernel
from ..kernels.request import KernelRequest
from ..location import Location
from .entries import SessionRecord
from .losses import note_loss, note_move, note_reset
from .past import PastCells

log = logging.getLogger("albedo_provisioner.sessions")

ANSWER_TIMEOUT = 10.0
"""Seconds that a keeper's answer is waited for."""

SIGN_IN_POLL = 5.0
"""Seconds between attempts at a host that wants a sign-in; something may tell of it earlier."""


class SessionKernel:
    """A session's kernel, and what becomes of it.

    Args:
        record: what is on record of the session; kept up to date here.
        put: called when it has changed.
        late: told what comes for cells that have finished.
        past: the session's cells on record: what ran on a kernel, and what its keeper knows before that is given up.
        handlers: what answers the calls of its code, by their kinds.

    Attributes:
        kernel: the kernel, dead or alive; None when there is none.
        console: its front; None with it.
        step: the step that its link is in.
        let_in: whether its host has let us in since we began to connect.
        sign_in: what a person has to do before there can be one, while that is waited for.
        last_words: what `lose` has added to its reason, of jobs that ended with the kernel; until there is another one.
        last_end: why the last one that was lost has ended.
        fresh: whether it is another process than the last result was of, as its owner has restarted it.
        last_loss: its id, and the line that was noted of its loss; none was where it had no state.
    """

    ours = True
    """Whether the kernel is the session's own, and not one of somebody else that it has joined."""

    def __init__(
        self,
        record: SessionRecord,
        put: Callable[[], None],
        late: Heard,
        past: PastCells,
        handlers: Mapping[str, Handler],
    ) -> None:
        self.kernel: RemoteKernel | None = None
        self.console: Console | None = None
        self.step = "ended"
        self.let_in = False
        self.sign_in: SignInError | None = None
        self.last_words = ""
        self.last_end = ""
        self.fresh = False
        self.last_loss: tuple[str | None, str | None] = (None, None)
        self._record = record
        self._put = put
        self._late = late
        self._past = past
        self._handlers = handlers
        self._end_noted: tuple[str | None, str | None] = (None, None)  # as `last_loss`, also where it was wanted
        self._to_prove: list[RemoteKernel] = []  # whose ends were asked for, and may not be proven

    @property
    def alive(self) -> bool:
        """Whether there is one that is not known to be dead."""
        return self.kernel is not None and self.kernel.poll() is None

    @property
    def host(self) -> str:
        """Its host, as the user spells it."""
        return self._record.location.host or "this machine"

    @property
    def jobs_run(self) -> bool:
        """Whether jobs run on it."""
        return self.kernel is not None and self.kernel.jobs.running

    @property
    def has_state(self) -> bool:
        """Whether earlier calls may have put something into it; not where it was ended before code was given to it."""
        kernel_id = self._record.kernel_id
        return kernel_id is not None and self._past.may_have_run_on(kernel_id)

    # -- having one ------------------------------------------------------------------------------------------

    async def take_up(self, wait_for_sign_in: bool) -> None:
        """Take up the kernel that an earlier process started for the session, if there is one on record and it lives.

        Raises:
            AlbedoError: the host cannot be asked.
        """
        kernel_id = self._record.kernel_id
        if self.kernel is not None or kernel_id is None:
            return
        known = KernelRecords().get(kernel_id)
        if known is None:
            how = who_ended(kernel_id)
            self.lose(f"The kernel {how}" if how else "its kernel is gone")
            return
        request = KernelRequest.from_dict(known.request)

        async def attach() -> None:
            self._register(
                await RemoteKernel.attach(
                    request, self._make_console, kernel_id, self._stepped, on_let_in=self._was_let_in
                )
            )

        try:
            await self._patiently(attach, wait_for_sign_in)
        except KernelGoneError as error:
            await self._past.salvage(kernel_id)
            self.lose(str(error))
            in_background(end_on_host(request, kernel_id))

    async def start(self, wait_for_sign_in: bool) -> None:
        """Start one.

        Raises:
            AlbedoError: it could not be started.
        """
        await self._patiently(self._start, wait_for_sign_in)

    async def _start(self) -> None:
        request = KernelRequest(
            location=self._record.location,
            key=uuid.uuid4().hex.encode(),
            python=self._record.python,
            env=self._record.env,
            kernel_name="albedo-session",
        )
        # On record before it is started: when this process is killed meanwhile, the next one takes the kernel up.
        kernel_id = self._record.kernel_id = str(uuid.uuid4())
        try:
            self._put()
            kernel = await RemoteKernel.start(
                request, self._make_console, self._stepped, kernel_id, on_let_in=self._was_let_in
            )
        except BaseException:
            self._record.kernel_id = None
            self._put_if_possible()
            raise
        self._register(kernel)

    async def _patiently(self, work: Callable[[], Awaitable[None]], wait_for_sign_in: bool) -> None:
        """Do what needs the host; where a person has to sign in first, wait until that has been done."""
        while True:
            try:
                await work()
            except SignInError as error:
                if not wait_for_sign_in:
                    raise
                if self.sign_in is None:
                    log.info("%s waits for a sign-in: %s", self._record.session_id, error)
                self.sign_in = error
                self._stepped("connecting")
                await _rest(error.host)
            else:
                self.sign_in = None
                return

    def _register(self, kernel: RemoteKernel) -> None:
        self.kernel, self.last_words = kernel, ""
        for kind, handler in self._handlers.items():
            kernel.serve(kind, handler, self._record.session_id)
        self._record.kernel_id = kernel.kernel_id
        self._record.location = dataclasses.replace(self._record.location, path=kernel.folder)
        self._put()

    def _make_console(self, key: bytes, scheme: str, send: Any, _reachable: Any, _paused: Any) -> Console:
        self.console = Console(key, scheme, send, self._late)
        return self.console

    def _stepped(self, step: str) -> None:
        self.step = step
        if step == "connecting":
            self.let_in = False

    def _was_let_in(self) -> None:
        self.let_in = True

    def must_be_ours(self, done: str) -> None:
        """See to it that nothing is done to a kernel that only its owner may do; `done` says what."""

    # -- having none -----------------------------------------------------------------------------------------

    def lose(self, why: str) -> None:
        """What earlier calls had put into the kernel, if any had, is gone, for this reason: to be told with the next
        result.
        """
        self.last_end = why
        if self.kernel is not None:
            self.last_words = self.kernel.jobs.last_words
        if self.has_state:
            line = note_loss(self._record, why, "" if self.kernel is None else self.last_words)
            self.last_loss = self._end_noted = (self._record.kernel_id, line)
        kernel = self._let_go()
        if kernel is not None:
            in_background(self._prove(kernel))

    def note_reset(self) -> None:
        """What earlier calls had put into the kernel is gone, as a caller wanted: to be told with the next result."""
        self._end_noted = (self._record.kernel_id, note_reset(self._record, " ".join(job_news(self.kernel))))

    async def settle(self, kernel_id: str | None, patience: float) -> None:
        """Lose a kernel whose keeper says that it has ended, if it is still ours; we may hear of that a moment later.

        Args:
            kernel_id: its id.
            patience: seconds that we wait for that.
        """
        if self._record.kernel_id != kernel_id:
            return
        try:
            await self.take_up(wait_for_sign_in=False)
            async with asyncio.timeout(patience):
                if self.kernel is not None and self.ours:
                    await self.kernel.wait()
        except (AlbedoError, TimeoutError) as error:  # it is told by the next result, then
            log.info("%s: %s", self._record.session_id, error)
        if self.kernel is not None and not self.alive:
            self.lose(self.kernel.cause or "its kernel ended")

    def _let_go(self) -> RemoteKernel | None:
        """Have no kernel any more, and return the one there was."""
        kernel, self.kernel, self.console = self.kernel, None, None
        self._record.kernel_id = None
        self.step = "ended"
        self._put_if_possible()  # a full disk keeps no kernel alive
        return kernel

    def _put_if_possible(self) -> None:
        try:
            self._put()
        except AlbedoError as error:
            log.warning("%s: %s", self._record.session_id, error)

    async def kill(self, why: str) -> None:
        """Kill it, for this reason."""
        assert self.kernel is not None
        try:
            await self.kernel.stop(0.0, ANSWER_TIMEOUT)
        except AlbedoError as error:
            log.warning("%s: %s", self._record.session_id, error)
        self.lose(f"the kernel was killed, because {why}")

    async def end(self) -> None:
        """End it with proof, if there is one.

        Raises:
            LinkAwayError: the host is out of reach; the kernel is noted as to be ended, and is at the next contact.
        """
        kernel_id = self._record.kernel_id
        await self._end(self._let_go(), kernel_id)

    async def _end(self, kernel: RemoteKernel | None, kernel_id: str | None) -> None:
        if kernel is not None:
            await self._prove(kernel)
        elif kernel_id is not None:
            await end_by_record(kernel_id, self._ended_by)

    async def _prove(self, kernel: RemoteKernel) -> None:
        """End a kernel that the session has let go of, or wait for the proof that it has ended.

        Raises:
            LinkAwayError: as `end`; `prove_ends` asks again.
        """
        if kernel not in self._to_prove:
            self._to_prove.append(kernel)
        await self._save_cells(kernel)
        try:
            await kernel.finish(term_grace=0.5, timeout=ANSWER_TIMEOUT)
        except LinkAwayError:
            raise
        except AlbedoError as error:  # what was tried for it failed, and is not tried again by itself
            log.info("%s: %s", self._record.session_id, error)
            await end_by_record(kernel.kernel_id, self._ended_by)
        if kernel in self._to_prove:  # else another who waited for the same was faster
            self._to_prove.remove(kernel)

    async def _save_cells(self, kernel: RemoteKernel) -> None:
        """Put on record what came of an earlier process's cells: what the keeper knows of them goes with it."""
        if not self.ours or kernel.away is not None or not self._past.unfinished(kernel.kernel_id):
            return
        line = self._end_noted[1] if self._end_noted[0] == kernel.kernel_id else None
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                await kernel.stop(0.5)  # else their ends would be waited for
                await self._past.salvage(kernel.kernel_id, line)
        except (AlbedoError, TimeoutError) as error:
            log.info("%s: what came of its cells is not known: %s", self._record.session_id, error)

    async def prove_ends(self, had: Collection[str]) -> None:
        """See that nothing is left of the kernels that the session had before, whoever was asked to end them.

        Args:
            had: ids of kernels that earlier processes may have had for the session.

        Raises:
            LinkAwayError: a host is out of reach; what is left there is ended at the next contact.
        """
        ours = list(self._to_prove)
        others = unproven_ends(set(had) - {kernel.kernel_id for kernel in ours})
        work = [*map(self._prove, ours), *(end_by_record(each, self._ended_by) for each in others)]
        for outcome in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    @property
    def _ended_by(self) -> str:
        return f"was ended by process {os.getpid()}, whose session it was"

    async def leave(self) -> None:
        """Let go of it as it is, for another process to take up."""
        if self.kernel is not None:
            await self.kernel.leave()
            if self.ours:
                KernelRecords().release(self.kernel.kernel_id)

    async def move(self, location: Location) -> None:
        """Start one in another place, and end the one in the old place with proof.

        Raises:
            AlbedoError: none could be started there; everything stays as it was.
        """
        record = self._record
        before, console, step = self.kernel, self.console, self.step
        place, spelled, kernel_id, lost = record.location, record.spelled, record.kernel_id, record.lost
        record.location = record.spelled = location
        note_move(record, place, location)  # by now: this process may be killed as soon as it is in the new place
        try:
            await self._start()
        except BaseException:
            if self.kernel is not before and self.kernel is not None:  # it runs, and cannot be put on record
                in_background(self.kernel.finish(term_grace=0.5))
            self.kernel, self.console, self.step = before, console, step
            record.location, record.spelled, record.kernel_id, record.lost = place, spelled, kernel_id, lost
            self._put_if_possible()
            raise
        record.lost = lost
        note_move(record, place, record.location, " ".join(job_news(before)))
        self._put_if_possible()
        try:
            await self._end(before, kernel_id)
        except LinkAwayError as error:
            log.info("%s: %s", record.session_id, error)  # it is ended at the next contact


def job_news(kernel: RemoteKernel | None) -> list[str]:
    """Return what is to be told of jobs that ended while no cell waited for them; once."""
    if kernel is None:
        return []
    notes, numbers = kernel.jobs.news()
    kernel.jobs_told(numbers)
    return notes


async def _rest(host: str) -> None:
    """Wait before the next attempt at a host that wants a sign-in."""
    news = asyncio.Event()
    unsubscribe = Reachability.get().subscribe(host, news.set)
    try:
        async with asyncio.timeout(SIGN_IN_POLL):
            await news.wait()
    except TimeoutError:
        pass  # nothing was told, so it is tried again by the clock
    finally:
        unsubscribe()
