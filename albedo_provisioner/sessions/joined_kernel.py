"""The kernel of a session that has joined it: another's, such as the one of a notebook that a person has open.

It is used, and never ended, restarted or replaced: letting go of it is all that is done from here. Everything here runs
on the I/O thread's loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from ..errors import AlbedoError, KernelGoneError
from ..kernels.endings import who_ended
from ..kernels.joining import known_kernel, request_of
from ..kernels.records import ENDING, KernelRecords
from ..kernels.remote import RemoteKernel
from ..kernels.survey import FoundKernel, of_record
from ..location import Location
from .entries import Joined
from .losses import losses, note_loss
from .session_kernel import SessionKernel

log = logging.getLogger("albedo_provisioner.sessions")

RESTART_PATIENCE = 6.0
"""Seconds that a kernel which has ended is given to be started anew by its owner: Jupyter's restarter looks every 3 s.
"""

_PAUSE = 0.3

_TOLD = ("", 0, 0.0)
"""Stands for the process that was used last, once its loss is noted: another one in its place is no further loss."""


class JoinedKernel(SessionKernel):
    """Another's kernel, as the session's record says; see `SessionKernel`."""

    ours = False

    @property
    def _joined(self) -> Joined:
        assert self._record.joined is not None
        return self._record.joined

    @property
    def jobs_run(self) -> bool:
        """Whether it must not be ended for its jobs' sake: it is not ended from here anyway."""
        return False

    @property
    def has_state(self) -> bool:
        """It had its owner's state before any call of ours, and was joined for that."""
        return True

    async def take_up(self, wait_for_sign_in: bool) -> None:
        """See that we are linked to it; what earlier calls had put into it may be gone, which is noted.

        Raises:
            KernelGoneError: it has ended, and nobody has started it anew.
            AlbedoError: its host cannot be asked.
        """
        if self.alive:
            self._look_for_restart()
            return
        if self.kernel is not None:
            self.lose(self.kernel.cause or "its kernel ended")
        await self._patiently(self._join, wait_for_sign_in)
        self._look_for_restart()

    async def _join(self) -> None:
        """Link to the kernel that was joined; if that is gone and was a notebook's, to the one that it has now."""
        until = asyncio.get_running_loop().time() + RESTART_PATIENCE
        while True:
            gone: KernelGoneError | None = None
            for found in self._candidates():
                try:
                    return await self._attach(found)
                except KernelGoneError as error:
                    gone = gone or error
            assert gone is not None
            if self._joined.process is None or asyncio.get_running_loop().time() >= until:
                raise self._gone(gone) from gone
            log.info("%s: %s Waiting for its restart.", self._record.session_id, gone)
            await asyncio.sleep(_PAUSE)

    def _candidates(self) -> list[FoundKernel]:
        """Return the kernel that was joined, and others of its notebook that are on record here, the newest first."""
        joined, place = self._joined, self._record.location
        first = known_kernel(joined.kernel_id, place, self._record.python)
        if joined.notebook is None:
            return [first]
        others = [
            of_record(record)
            for record in reversed(KernelRecords().of_notebook(joined.notebook))
            if record.kernel_id != joined.kernel_id and record.state != ENDING
        ]
        return [first, *others]

    async def _attach(self, found: FoundKernel) -> None:
        request = await request_of(found)
        kernel = await RemoteKernel.attach(
            request, self._make_console, found.kernel_id, self._stepped, True, self._was_let_in
        )
        if found.kernel_id != self._joined.kernel_id:
            await self._past.salvage(self._joined.kernel_id)
            self._joined.kernel_id = found.kernel_id
        self._record.location = Location(found.host, request.location.path)
        self._record.python = found.python
        self._register(kernel)

    def _gone(self, error: KernelGoneError) -> KernelGoneError:
        what = f"of {self._joined.notebook}" if self._joined.notebook else self._joined.kernel_id[:8]
        how = who_ended(self._joined.kernel_id)
        why = f"It {how}." if how else (losses(self._record.lost) or [str(error)])[-1]
        return KernelGoneError(
            f"The kernel {what}, which this session has joined, has ended, so nothing was run: {why} Join the one "
            "that runs now, or open a session with a kernel of its own."
        )

    def _look_for_restart(self) -> None:
        """Note the process that we use, and the loss when it is another one than before."""
        assert self.kernel is not None
        process = (self.kernel.kernel_id, self.kernel.pid or 0, self.kernel.started)
        if process == self._joined.process:
            return
        if self._joined.process is not None and self._joined.process != _TOLD:
            assert self.console is not None
            self.console.greeting = None  # it would say the same, on stderr
            line = note_loss(self._record, "The kernel that this session has joined was restarted, or is a new one.")
            self.last_loss = (self._joined.process[0], line)
        self.fresh = self._joined.process is not None
        self._joined.process = process
        self._put()

    def lose(self, why: str) -> None:
        """What earlier calls had put into the kernel is gone, for this reason: to be told with the next result."""
        self._joined.process = _TOLD
        super().lose(why)  # as its guests we end nothing

    async def start(self, wait_for_sign_in: bool) -> None:
        """There is nothing to start.

        Raises:
            KernelGoneError: always.
        """
        raise self._gone(KernelGoneError((losses(self._record.lost) or ["It is not there."])[-1]))

    async def kill(self, why: str) -> None:
        """Leave it: it is not ours to kill.

        Raises:
            AlbedoError: always.
        """
        self.must_be_ours("killed")

    async def end(self) -> None:
        """Let go of it; it goes on."""
        kernel = self._let_go()
        if kernel is not None:
            await kernel.leave()

    async def prove_ends(self, had: Collection[str]) -> None:
        """There is nothing to prove: all of them were others', to end as they like."""

    async def move(self, location: Location) -> None:
        """Refuse: it is not ours to end.

        Raises:
            AlbedoError: always.
        """
        self.must_be_ours("moved")

    def must_be_ours(self, done: str) -> None:
        """See to it that nothing is done to the kernel that only its owner may do.

        Raises:
            AlbedoError: always; `done` says what was to be done to it.
        """
        whose = f"the notebook {self._joined.notebook}" if self._joined.notebook else "whoever started it"
        raise AlbedoError(
            f"This session has joined a kernel that belongs to {whose}: it is not {done} from here. Its owner can do "
            "that, for example in JupyterLab; `sessions.open` gives a kernel of your own."
        )
