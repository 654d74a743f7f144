"""When to try again to reach a host that is out of reach."""

from __future__ import annotations

import asyncio
import time

from ..hosts.reachability import Reachability

_FIRST_RETRY = 0.05
_LONGEST_PAUSE = ((20.0, 0.4), (60.0, 2.0), (float("inf"), 30.0))
"""Until so many seconds after the break, the longest pause between two attempts, in seconds. At first it is short, so
that a host that answers again is noticed within half a second."""

_SIGN_IN_PAUSE, _LONGEST_SIGN_IN_PAUSE = 5.0, 120.0
"""Seconds between two attempts at a host that does not let us in, at first and in the long run: only a person can
change that, which is noticed by itself, and servers shut out who fails to sign in too often."""


class Retries:
    """The pauses between attempts to reach one host. Used on the I/O thread's loop.

    Args:
        host: the host, as the user spells it.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._wanted = asyncio.Event()
        self._began = self._pause = 0.0

    def begin(self) -> None:
        """Note that the host has just been lost."""
        self._began = time.monotonic()
        self._pause = _FIRST_RETRY

    def now(self) -> None:
        """Have the present pause end, or the next one if an attempt is under way."""
        self._wanted.set()

    def attempt(self) -> None:
        """Note that an attempt begins; what made it wanted so far is done with."""
        self._wanted.clear()

    async def rest(self, shut_out: bool) -> None:
        """Wait before the next attempt, or until there is reason to think that it may succeed.

        Args:
            shut_out: whether the host does not let us in.
        """
        if shut_out:
            self._pause = max(self._pause, _SIGN_IN_PAUSE)
        unsubscribe = Reachability.get().subscribe(self._host, self.now)
        try:
            async with asyncio.timeout(self._pause):
                await self._wanted.wait()
        except TimeoutError:
            pass  # nobody was in a hurry
        finally:
            unsubscribe()
        passed = time.monotonic() - self._began
        longest = next(longest for until, longest in _LONGEST_PAUSE if passed < until)
        self._pause = min(self._pause * 2, _LONGEST_SIGN_IN_PAUSE if shut_out else longest)
