"""A kernel and our link to it: how it is ended, with proof, and let go of."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from ..errors import AlbedoError, KernelGoneError, LinkAwayError
from .endings import end_on_host, in_background, note_if_possible, seeing_to_end
from .records import ENDING, KernelRecords
from .request import KernelRequest
from .signalled import SignalledKernel

log = logging.getLogger("albedo_provisioner.kernels")

_END_GIVEN_UP = 10.0
"""Seconds after the end of a kernel, if that was asked for, in which whoever asked has its keeper ended too, or a new
kernel started. Then they have given up waiting."""

LAST_NOTE = 2.0
"""Seconds for what a kernel that has ended still had to say to come here, so that its cells hear of the end, too."""


class EndedKernel(SignalledKernel):
    """A kernel that is ended when that is wanted, unless it is another's. Used on the I/O thread alone.

    Attributes:
        guest: whether the kernel is another's: then it is never ended or started anew from here, and its record stays
            as it is.
    """

    def __init__(self, request: KernelRequest, kernel_id: str, node: str = "", guest: bool = False) -> None:
        super().__init__(request, kernel_id, node)
        self.guest = guest
        self._finishing: asyncio.Task[dict[str, Any]] | None = None
        self._watching_end = False

    async def stop(self, term_grace: float = 2.0, timeout: float | None = None) -> dict[str, Any]:
        """End the kernel's whole process tree and return the report (see `bundle/ladder.py`); its keeper stays.

        Raises:
            AlbedoError: the host could not be asked (in time), or the kernel is another's.
        """
        self._must_be_ours("ended")
        self.expect_end()
        answer = await self._link.call("stop", timeout, term_grace=term_grace)
        return dict(answer["report"])

    async def finish(self, term_grace: float = 2.0, timeout: float | None = None) -> dict[str, Any]:
        """End the kernel and its keeper, see that nothing is left on the host, and let go of it.

        Args:
            term_grace: seconds from TERM to KILL.
            timeout: seconds to wait for the proof; 0 when the host is known not to answer, None for as long as it
                takes.

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
                await self.wait_for_silence(LAST_NOTE)
            self._tell_of_end("it does not answer" if timeout == 0 else None)
        self._front.close()
        if self.guest:
            await self.leave()
        if self.guest or self._replaced:  # it is another's to end
            return {"survivors": [], "foreign": []}
        if self._finishing is None:
            self._finishing = asyncio.get_running_loop().create_task(self._finish(term_grace))
            self._finishing.add_done_callback(self._note_end)  # nobody may be waiting for it by then
            note_if_possible(KernelRecords().set_state, self.kernel_id, ENDING)
        done, _ = await asyncio.wait([self._finishing], timeout=timeout)
        if not done:
            raise LinkAwayError(
                f"{self.host} is out of reach ({self.away or 'it does not answer'}); the kernel is ended as soon as it "
                "can be reached again."
            )
        return self._finishing.result()

    def _tell_of_end(self, silent: str | None) -> None:
        """Tell the cells that have no reply what becomes of the kernel; nobody hears any more of it here.

        Args:
            silent: why nothing is heard of the host, where that is known to whoever has the kernel ended.
        """
        away = self.away or silent
        if away is None or self.state == "exited":
            by = f"The kernel on {self.host} is being ended by a client: {self._link.client}."
            self._front.end(self.cause or by, True)
        else:
            words = (
                f"The end of the kernel on {self.host} was asked for by a client: {self._link.client}. {self.host} is "
                f"out of reach ({away}): it is ended as soon as the host can be reached again, and runs on until then."
            )
            self._front.give_up(words, {header["msg_id"] for header in self._front.running})

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
                report = await end_on_host(self.request, self.kernel_id, self.started)
        note_if_possible(KernelRecords().remove, self.kernel_id)
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

    async def _ask_any_keeper(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Ask for what may be done twice without harm: a keeper that was killed took the request with it, so the one in
        its place is asked again. Else a kernel whose end nobody waits for any more would stay for ever.
        """
        while True:
            try:
                return await self._link.call(do, **arguments)
            except LinkAwayError as error:
                log.info("%s Asking again.", error)
