"""A kernel and our link to it: what is done to its cells, wherever its host is."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Sequence
from typing import Any

from ..bundle.wire import Buffer
from ..errors import AlbedoError, KernelGoneError, LinkAwayError
from .endings import in_background
from .watched import WatchedKernel

_OVERTAKEN = 0.1
"""Seconds that an interrupt waits when no cell is known to run: one that was sent just before passes through zmq, and
the interrupt does not."""

_BEYOND = 1 << 40
"""More messages than a cell has: of those from there on, none is sent."""


class SignalledKernel(WatchedKernel):
    """A kernel whose cells are interrupted, taken back and told things. Used on the I/O thread alone."""

    _told_of_later: tuple[int, str] | None = None
    """In which break, counted by connections, which cell was told that its interrupt has to wait."""

    async def signal(self, signum: int, timeout: float | None = None, cell: str | None = None) -> bool:
        """Send a signal to the kernel's process group on its host.

        An interrupt is meant for the cell that runs now. While the host is out of reach it is not waited for: it goes
        out when the host is back, if that cell still runs then, and the cell is told.

        Args:
            signum: the signal.
            timeout: seconds to wait for the host's confirmation.
            cell: the id of one cell of ours that it is meant for, and for no other: where it has not reached the kernel
                yet (it may have gone out over a connection that was dead), or another client's runs first, it is taken
                back, of which whoever waits for its reply is told, or it waits for its own to begin,
                if the kernel cannot do that. None for the cell of ours that runs now, or whatever runs if none does.

        Returns:
            whether it waits behind another client's cell.

        Raises:
            LinkAwayError: not confirmed in time because the host is out of reach; it stays meant for that cell.
            AlbedoError: it could not be sent.
        """
        return await self._act_on_cell(signum, timeout, cell)

    async def interrupt_by(self, message: Sequence[Buffer], timeout: float | None = None) -> None:
        """Pass on a request to interrupt, on the control channel, as `signal` passes on an interrupt.

        Raises:
            AlbedoError: as `signal`.
        """
        await self._act_on_cell(signal.SIGINT, timeout, message=[bytes(part).decode("latin-1") for part in message])

    async def refuse_end(self, session: str, why: str) -> None:
        """Refuse a client the end of the kernel that it has asked for, and have the user told why.

        Args:
            session: the id of the client's session, as in the headers of its messages.
            why: a line for the cell that runs, else for the next one.
        """
        self._front.refuse_end(session)
        await self.tell_user(why)

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
                answer = await call
            except LinkAwayError:
                self._tell_of_later(running)
                raise
            if only is not None:
                self._take_word_of_cell({"cell": only, **answer})
            return bool(answer.get("behind"))
        in_background(self._hear_later(call, only))
        self._tell_of_later(running)
        return False

    async def _hear_later(self, call: Coroutine[Any, Any, dict[str, Any]], only: str | None) -> None:
        answer = await call
        if only is not None:
            self._take_word_of_cell({"cell": only, **answer})

    def told(self, event: dict[str, Any]) -> None:
        """Take the keeper's news, and its answers that nobody waits for any more."""
        if event.get("taken_back"):
            self._take_word_of_cell(event)
        else:
            super().told(event)

    def _take_word_of_cell(self, answer: dict[str, Any]) -> None:
        """Have nobody wait for a cell that the keeper has taken back."""
        if answer.get("taken_back") and isinstance(cell := answer.get("cell"), str):
            when = "before it had reached the kernel" if answer.get("unseen") else "while another client's code ran"
            self._front.give_up(f"This was not run: it was taken back {when}.", {cell})

    def _tell_of_later(self, running: Sequence[dict[str, Any]]) -> None:
        """Tell the cell that runs that its interrupt has to wait for its host."""
        why = self.away or "it does not answer"
        for header in [header for header in running if header in self._front.running][:1]:
            told = self.connections, header["msg_id"]
            if told == self._told_of_later:
                return  # who is impatient, and asks again, has read it
            self._told_of_later = told
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

    async def is_at(self, message_id: str, timeout: float) -> bool | None:
        """Say whether a cell, whoever asked for it, was asked of the kernel and has not come to its end.

        None when nobody can tell, as the keeper that knew it was killed: it has come to its end when the kernel answers
        what is asked from now on.

        Raises:
            LinkAwayError: the keeper could not be asked in time.
            KernelGoneError: there is none to ask.
        """
        try:
            answer = await self._link.call("cell", timeout, msg_id=message_id, first=_BEYOND)
        except (KernelGoneError, LinkAwayError):
            raise
        except AlbedoError:
            # The keeper's refusal: its journal has no such cell (any more).
            known = await self._link.call("status", timeout, cell=message_id)
            return None if known.get("asked") else False
        cell = answer["cell"]
        if self.state == "exited" or self.started > float(cell["asked"]):
            return False  # the process that it was given to is not there any more, or is another one
        return cell["state"] in ("queued", "running")
