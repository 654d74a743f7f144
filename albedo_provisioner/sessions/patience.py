"""How long a call waits for its host before its code can begin: for a person who signs in there, or for any answer.

Everything here runs on the I/O thread's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import time
from collections.abc import Iterator
from typing import Any

from .call import Call
from .session_kernel import SessionKernel

CONTACT_GRACE = 5.0
"""Seconds beyond its own time that a call gives a host which has not answered yet: signing in somewhere takes a moment,
and with a short time for the code alone there would never be a kernel.
"""

_LOOK = 0.1
"""Seconds between looks at what a call waits for."""


class NotInTimeError(Exception):
    """The time of a call is over, and its host could not be used by then."""


class Patience:
    """The patience of one call.

    Args:
        call: the call.
        held: the session's kernel.

    Attributes:
        over: why the call was not run, once its time is over; None before.
    """

    def __init__(self, call: Call, held: SessionKernel) -> None:
        self.over: str | None = None
        self._call = call
        self._held = held
        self._since = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None

    async def acquire(self, turn: asyncio.Lock) -> None:
        """Wait for the session's turn, which another call has that may wait for the host itself.

        Raises:
            SignInError: a person has to sign in, and the call is not to wait for that.
            NotInTimeError: the call's time is over, and the one before it waits for the host.
        """
        if self._call.wait_for_sign_in and self._call.timeout is None:
            await turn.acquire()
            return
        acquiring = asyncio.get_running_loop().create_task(turn.acquire())
        try:
            while not acquiring.done():
                await asyncio.wait([acquiring], timeout=_LOOK)
                if not acquiring.done():
                    self._look()
        except BaseException:
            if not acquiring.cancel():
                turn.release()
            raise

    def _look(self) -> None:
        kernel = self._held.kernel
        sign_in = self._held.sign_in if kernel is None else kernel.shut_out
        if sign_in is not None and not self._call.wait_for_sign_in:
            raise copy.copy(sign_in)
        if self._is_over():
            raise NotInTimeError(self.over)

    @contextlib.contextmanager
    def guard(self, work: asyncio.Task[Any]) -> Iterator[None]:
        """Cancel work that waits for the host when the call's time is over."""
        self._since = time.monotonic()
        self._watch(work)
        try:
            yield
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _watch(self, work: asyncio.Task[Any]) -> None:
        if self._call.timeout is None:
            return
        if self._is_over():
            work.cancel()
            return
        self._timer = asyncio.get_running_loop().call_later(_LOOK, self._watch, work)

    def _is_over(self) -> bool:
        """Whether the call's time is over while its host cannot be used. One that is starting a kernel is used."""
        timeout, kernel = self._call.timeout, self._held.kernel
        waited = time.monotonic() - self._since
        if timeout is None or waited < timeout:
            return False
        if kernel is not None:
            why = None if kernel.away is None else f"{kernel.host} is out of reach ({kernel.away})"
        elif self._held.step != "connecting" or self._held.let_in:
            why = None
        elif self._held.sign_in is not None:
            why = f"waiting for a sign-in at {self._held.sign_in.host}: {self._held.sign_in}"
        else:
            why = f"{self._held.host} has not let us in yet" if waited >= timeout + CONTACT_GRACE else None
        if why is None:
            return False
        self.over = f"The call waited for {waited:.3g} s and the code was not run: {why.rstrip('.')}."
        return True
