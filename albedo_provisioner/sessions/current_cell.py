"""The cell that runs on a session's kernel: whose turn it is, how long it is waited for, and what ends it early.

A cell may outlive its call: its time is over or its caller was cancelled, and it does not obey the interrupt, or the
host is out of reach. It then has to make room for the next one. Everything here runs on the I/O thread's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import AsyncIterator, Callable

from ..bundle.oneshot import INTERRUPT_GRACE
from ..errors import AlbedoError, KernelGoneError, LinkAwayError
from ..kernels.console import Execution
from ..kernels.endings import in_background
from ..kernels.remote import RemoteKernel
from .results import INTERRUPTED, TIMEOUT
from .session_kernel import ANSWER_TIMEOUT, SessionKernel

log = logging.getLogger("albedo_provisioner.sessions")

_FLOOD_GRACE = 30.0
"""Seconds that a cell which was interrupted has in all while its output still comes in: that it has obeyed can only be
heard behind what it had said before, and on a busy host much of that may be under way.
"""

_FLOWS = 5.0
"""Seconds since the last output of a cell within which more of it is taken to be under way; kernels send what a fast
loop prints in pieces that take long.
"""

_LOOK = 0.5
"""Seconds between looks at a cell whose caller was cancelled."""

_ABORT_PAUSE = 0.05
"""Seconds before code is sent again that the kernel threw away; it does so with all that comes within a moment."""


class CurrentCell:
    """See the module's head.

    Args:
        session_id: for the log.
        held: the kernel, whichever it is at the time.

    Attributes:
        running: the cell that runs and is waited for; None when none is.
        since: when it was sent, by the monotonic clock.
    """

    def __init__(self, session_id: str, held: SessionKernel) -> None:
        self.running: Execution | None = None
        self.since = 0.0
        self._session_id = session_id
        self._held = held
        self._turn = asyncio.Lock()  # cells, and whatever begins or ends kernels, one after the other
        self._waiting = 0  # how many wait for their turn
        self._clock: asyncio.Timeout | None = None  # which the cell that runs is waited for by
        self._outlived: Execution | None = None  # a cell that outlived its call
        self._let_go: Execution | None = None  # such a one that took no notice of its interrupt for long enough
        self._interrupted: set[str] = set()
        self._earlier: list[tuple[Execution, float]] = []  # cells of an earlier process, and when they were asked for

    @property
    def earlier(self) -> Execution | None:
        """The cell of an earlier process that still runs, as far as is known."""
        self._earlier = [each for each in self._earlier if not each[0].finished.is_set()]
        return self._earlier[0][0] if self._earlier else None

    @property
    def straggler(self) -> Execution | None:
        """A cell that outlived its call and still runs, as far as is known."""
        if self._outlived is not None and self._outlived.finished.is_set():
            self._outlived = None
        return self._outlived

    @property
    def known(self) -> Execution | None:
        """The cell that runs, whether or not it is waited for."""
        return self.running or self.earlier or self.straggler

    @property
    def known_since(self) -> float:
        """When that was sent, by the monotonic clock."""
        return self._earlier[0][1] if self.running is None and self.earlier is not None else self.since

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until nothing else runs on the session, and hold off all others meanwhile."""
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._turn.release()

    def follow(self, execution: Execution, asked: float, outlives: bool) -> None:
        """Take note of a cell that an earlier process has asked for, and that may run still.

        Args:
            execution: the cell.
            asked: when it was asked for, in seconds since the epoch.
            outlives: whether its call has ended, so that it has to make room for the next one.
        """
        since = time.monotonic() - max(0.0, time.time() - asked)
        if outlives:
            self._outlived, self.since = execution, since
        else:
            self._earlier.append((execution, since))

    async def earlier_over(self) -> None:
        """Wait for the end of what an earlier process had asked for, as for what was asked before in this one."""
        while (earlier := self.earlier) is not None:
            await earlier.finished.wait()

    # -- running one -----------------------------------------------------------------------------------------

    async def run(
        self, kernel: RemoteKernel, send: Callable[[], Execution], timeout: float | None, notes: list[str]
    ) -> tuple[Execution, str | None]:
        """Send a cell to a kernel and wait until it has ended or its time is over, or nobody waits for it any more.

        Args:
            kernel: which runs it.
            send: sends it, maybe once more: the kernel throws it away when another client's code fails.
            timeout: seconds.
            notes: what the result is to say is added here.

        Returns:
            The cell, and how it ended where its reply does not say so.
        """
        began = self.since = time.monotonic()
        connections = None if kernel.away is not None else kernel.connections
        execution = self.running = send()
        try:
            while not await self._waited_for(execution, _left(timeout, began)) or self._was_aborted(execution):
                if not execution.finished.is_set():
                    if self._let_go is execution:
                        self._outlive(execution, notes)
                        return execution, INTERRUPTED
                    if began < execution.began_at and kernel.connections == connections:
                        began = execution.began_at  # its time was the time of another client's code until then
                        continue
                    await self.time_out(kernel, execution, timeout or 0.0, notes)
                    return execution, TIMEOUT
                await asyncio.sleep(_ABORT_PAUSE)
                if execution.msg_id in self._interrupted:  # meanwhile, so it is not sent again
                    break
                execution = self.running = send()
        finally:
            self.running = None
        return execution, None

    async def _waited_for(self, execution: Execution, timeout: float | None) -> bool:
        """Wait at most so long for the cell that runs, or until it is let go of, and say whether it has ended."""
        try:
            async with asyncio.timeout(timeout) as self._clock:
                await execution.finished.wait()
        except TimeoutError:
            return execution.finished.is_set()
        finally:
            self._clock = None
        return True

    def _was_aborted(self, execution: Execution) -> bool:
        """Whether the kernel threw the code away unseen, as it does with all that waits when a notebook's cell fails.

        That another client's code failed is no reason not to run ours.
        """
        aborted = execution.reply is not None and execution.reply.get("status") == "aborted"
        return aborted and execution.msg_id not in self._interrupted

    def _outlive(self, execution: Execution, notes: list[str]) -> None:
        """Have a call end before its cell, which nobody waits for and which did not obey the interrupt."""
        self._outlived = execution
        after = "so the kernel is killed" if self._held.ours else "and runs on, as the kernel is another's"
        notes.append(
            f"The caller was cancelled and the code was interrupted; it did not stop within {INTERRUPT_GRACE:g} s "
            f"while others waited, {after}."
        )

    async def time_out(self, kernel: RemoteKernel, execution: Execution, timeout: float, notes: list[str]) -> None:
        """The cell's time is over: take it back or interrupt it, and kill the kernel if it does not obey."""
        if kernel.withdraw(execution.msg_id):
            notes.append(f"{execution.given_up} It was waited for {timeout:g} s.")
            return
        after = f"The code ran for more than {timeout:g} s and was interrupted"
        later = f"cell({execution.name!r}) tells what came of it"
        behind, asked = False, time.monotonic()
        self._interrupted.add(execution.msg_id)
        try:
            behind = await _interrupt(kernel, execution.msg_id)
        except AlbedoError as error:
            log.info("%s: %s", self._session_id, error)
        if behind and execution.given_up is not None:
            notes.append(
                f"{execution.given_up} It was waited for {timeout:g} s, and the state of earlier calls is kept."
            )
        elif await (finished(execution, 0) if behind else _obeys(kernel, execution)):
            if kernel.poll() is None:
                notes.append(f"{after}; the state of earlier calls is kept.")
        elif behind:
            self._outlived = execution
            notes.append(
                f"The code had not begun after {timeout:g} s, because another client of the kernel runs something. It "
                f"may run yet, and is interrupted as soon as it begins; {later}. The state of earlier calls is kept."
            )
        elif kernel.away is None and not self._held.ours:
            self._outlived = execution
            notes.append(
                f"{after}; it did not stop within {INTERRUPT_GRACE:g} s. The kernel is another's and was not killed, "
                f"so the code runs on; {later}. The state of earlier calls is kept."
            )
        elif kernel.away is not None:
            self._outlived = execution
            notes.append(
                f"The code did not come to its end within {timeout:g} s, and {kernel.host} is out of reach "
                f"({kernel.away}): when the host is back it is interrupted if it runs then, and does not begin if it "
                f"has not; {later}. The state of earlier calls is kept."
            )
        else:
            waited = time.monotonic() - asked
            await self._held.kill("the code had run out of time and did not obey the interrupt")
            notes.append(
                f"{after}; it did not stop within {waited:.0f} s, so the kernel was killed and the state of earlier "
                "calls is lost. The next call starts afresh."
            )

    # -- ending one early ------------------------------------------------------------------------------------

    async def interrupt(self) -> bool:
        """Interrupt the cell that runs now, and no other; False when none does.

        While the host is out of reach the interrupt goes out when it is back, if that cell still runs then. A cell that
        has not gone out yet is taken back and not run, and one that may have is not begun when the host is back.

        Raises:
            AlbedoError: the host did not confirm it.
        """
        kernel, running = self._held.kernel, self.known
        if kernel is None or running is None:
            return False
        self._interrupted.add(running.msg_id)
        if kernel.withdraw(running.msg_id):
            return True
        try:
            await _interrupt(kernel, running.msg_id)
        except KernelGoneError:
            return False  # nothing runs there any more; what became of the cell, its own result says
        return True

    def was_interrupted(self, msg_id: str) -> bool:
        """Whether an interrupt was asked for, of a cell whose result is not known yet."""
        return msg_id in self._interrupted

    def forget(self, msg_id: str) -> None:
        """Forget a cell whose result is known."""
        self._interrupted.discard(msg_id)

    async def give_way(self) -> None:
        """The cell that runs is nobody's any more, as its caller was cancelled: interrupt it.

        If it takes no notice, whoever comes next must not wait for it for ever: it is given some time, by a host that
        can be reached, and then its call ends without it. Until somebody comes it may take what time it likes.
        """
        execution = self.running
        if execution is None:
            return
        try:
            await self.interrupt()
        except AlbedoError as error:
            log.info("%s: %s", self._session_id, error)
        patience = INTERRUPT_GRACE
        while patience > 0:
            look = min(patience, _LOOK)
            if await finished(execution, look) or self.running is not execution:
                return
            kernel = self._held.kernel
            wanted = self._waiting and execution.began and kernel is not None and kernel.away is None
            patience = patience - look if wanted else INTERRUPT_GRACE
        if self._clock is not None:  # else its own time is over as well, and that is being seen to
            self._let_go = execution
            self._clock.reschedule(asyncio.get_running_loop().time())

    async def make_room(self) -> None:
        """See to a cell that outlived its call: it was interrupted, and has to make room for the next one."""
        straggler, kernel = self.straggler, self._held.kernel
        if straggler is None or kernel is None or kernel.away is not None or not straggler.began or not self._held.ours:
            return  # the code goes on after it
        cancelled = straggler is self._let_go
        if not (straggler.finished.is_set() if cancelled else await _obeys(kernel, straggler)):
            which = "whose caller was cancelled" if cancelled else "that had run out of time"
            await self._held.kill(f"a cell {which} did not obey the interrupt")

    async def end(self, *, at_once: bool, patience: float | None = None) -> None:
        """End the cell that runs: by an interrupt if it may have the time for it and obeys, else with its kernel.

        Args:
            at_once: do not interrupt it first.
            patience: seconds that it is given then; None for `INTERRUPT_GRACE`.
        """
        running, kernel = self.running or self.earlier, self._held.kernel
        if running is None or kernel is None:
            return
        if not at_once and kernel.away is None:
            in_background(self.interrupt())
            await finished(running, INTERRUPT_GRACE if patience is None else patience)
        if not running.finished.is_set():
            try:
                await self._held.end()
            except LinkAwayError as error:
                log.info("%s: %s", self._session_id, error)  # it is ended at the next contact


async def finished(execution: Execution, timeout: float | None) -> bool:
    """Wait at most so long for a cell to come to its end, and say whether it has."""
    try:
        async with asyncio.timeout(timeout):
            await execution.finished.wait()
    except TimeoutError:
        return execution.finished.is_set()
    return True


async def _obeys(kernel: RemoteKernel, execution: Execution) -> bool:
    """Wait for the end of a cell that was interrupted, for as long as it may take for that, and say whether it came."""
    began = time.monotonic()
    if await finished(execution, INTERRUPT_GRACE):
        return True
    while time.monotonic() - execution.heard_at < _FLOWS:
        if await finished(execution, _LOOK):
            return True
        if time.monotonic() - began > _FLOOD_GRACE:
            break
    try:
        if await kernel.is_at(execution.msg_id, ANSWER_TIMEOUT) is not False:
            return False
    except AlbedoError:  # what cannot be asked is not waited for
        return execution.finished.is_set()
    return await finished(execution, ANSWER_TIMEOUT)  # it has ended, and that is under way to us


async def _interrupt(kernel: RemoteKernel, msg_id: str) -> bool:
    """Interrupt one cell, and say whether that waits behind another client's.

    A keeper that was killed took the request with it: the one in its place is asked again, once.

    Raises:
        AlbedoError: as `RemoteKernel.signal`.
    """
    try:
        return await kernel.signal(signal.SIGINT, ANSWER_TIMEOUT, msg_id)
    except LinkAwayError:
        if kernel.away is not None:
            raise
        return await kernel.signal(signal.SIGINT, ANSWER_TIMEOUT, msg_id)


def _left(timeout: float | None, began: float) -> float | None:
    """Return how many seconds of a call's time are left."""
    return None if timeout is None else max(0.0, began + timeout - time.monotonic())
