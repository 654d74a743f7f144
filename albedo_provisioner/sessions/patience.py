"""How long a call waits before its code can begin: behind other calls, for room, for its host, or for a person who
signs in there; and that it can be given up meanwhile.

Everything here runs on the I/O thread's loop.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable

from ..errors import AlbedoError
from .call import Call
from .session_kernel import SessionKernel

CONTACT_GRACE = 5.0
"""Seconds beyond its own time that a call gives a host which has not answered yet: signing in somewhere takes a moment,
and with a short time for the code alone there would never be a kernel.
"""

_LOOK = 0.1
"""Seconds between looks at what a call waits for."""

TURN, ROOM, KERNEL = "turn", "room", "kernel"
"""What a call waits for: what came before on its session, kernels of others that have to go, its own one."""


class Patience:
    """The patience of one call. It is made, and used, by the task that does the call's work.

    What ends the waiting early cancels that task where it waits; `given_up` tells such a cancellation from others.

    Args:
        call: the call.
        held: the session's kernel.
        starting: says whether a call of the session has a kernel started, or taken up, just now.

    Attributes:
        waits_for: `TURN`, `ROOM` or `KERNEL`.
        over: why the call was not run, once its time is over; None before.
    """

    def __init__(self, call: Call, held: SessionKernel, starting: Callable[[], bool]) -> None:
        self.waits_for = TURN
        self.over: str | None = None
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._call = call
        self._held = held
        self._starting = starting
        self._waited = 0.0  # what counts of it
        self._looked = 0.0
        self._refused: AlbedoError | None = None
        self._waiting = False
        self._gave_up = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> bool:
        """Whether its code cannot begin yet, and it may be given up."""
        return self._waiting and not self._gave_up

    def wait(self) -> None:
        """Take note that the call waits from now on."""
        self._waiting, self._looked = True, time.monotonic()
        if self._call.timeout is not None or not self._call.wait_for_sign_in:
            self._timer = asyncio.get_running_loop().call_later(_LOOK, self._look)

    async def begin(self) -> None:
        """Take note that the call waits no more: its code begins now, unless the call was given up in this moment."""
        if self._gave_up:
            await asyncio.sleep(0)  # the cancellation is on its way
        self.stop()

    def stop(self) -> None:
        """Look no more."""
        self._waiting = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def interrupt(self) -> bool:
        """Give the call up because somebody wants that; False when it does not wait (any more)."""
        if not self.waiting:
            return False
        self._give_up()
        return True

    def given_up(self) -> bool:
        """Say, of the cancellation that is being handled, whether the call itself was given up.

        Raises:
            SignInError: it was, as a person has to sign in, and it is not to wait for that.
        """
        if not self._gave_up or self._task.uncancel() > 0:
            return False
        if self._refused is not None:
            raise self._refused
        return True

    def _give_up(self) -> None:
        self._gave_up = True
        self._task.cancel()

    def _look(self) -> None:
        kernel = self._held.kernel
        sign_in = self._held.sign_in if kernel is None else kernel.shut_out
        if self.waits_for == TURN and sign_in is not None and not self._call.wait_for_sign_in:
            self._refused = copy.copy(sign_in)
        elif self._call.timeout is not None:
            self._look_at_the_time(self._call.timeout)
        if self._refused is not None or self.over is not None:
            self._give_up()
        else:
            self._timer = asyncio.get_running_loop().call_later(_LOOK, self._look)

    def _look_at_the_time(self, timeout: float) -> None:
        """See whether the call's time is over. A host that starts a kernel may take what time it likes."""
        now = time.monotonic()
        why, grace = self._hindrance()
        if why is not None:
            self._waited += now - self._looked
            if self._waited >= timeout + grace:
                self.over = f"The call waited for {self._waited:.3g} s and the code was not run: {why.rstrip('.')}."
        self._looked = now

    def _hindrance(self) -> tuple[str | None, float]:
        """Return what the call waits for, in words, and how much longer than its time it may; None if for ever."""
        held, kernel = self._held, self._held.kernel
        if kernel is not None and kernel.away is not None:
            return f"{kernel.host} is out of reach ({kernel.away})", 0.0
        if kernel is None and self._starting():
            if held.step != "connecting" or held.let_in:
                return None, 0.0
            if held.sign_in is not None:
                return f"waiting for a sign-in at {held.sign_in.host}: {held.sign_in}", 0.0
            return f"{held.host} has not let us in yet", CONTACT_GRACE
        if self.waits_for == TURN:
            return "what was asked of this session before was not done yet", 0.0
        return ("kernels of other sessions had to make room first" if self.waits_for == ROOM else None), 0.0
