"""The room on a connection that is signed in: as many sessions as its server allows (MaxSessions)."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..errors import NoRoomError
from .doors import Waits

T = TypeVar("T")

MOST_AT_ONCE = 4
"""Sessions of ours on one connection that only ask something: kernels want room, too."""

_FREED = 1.0
"""Seconds after the end of a session within which the server may not have noticed it."""

_LOOK_AGAIN = 0.2


class Room:
    """What there is for questions on one connection. Used on the I/O thread alone."""

    def __init__(self) -> None:
        self._sessions = 0
        self._most = MOST_AT_ONCE
        self._ended_at = -math.inf
        self._ended = asyncio.Event()

    async def use(self, ask: Callable[[], Awaitable[T]], waits: Waits) -> T:
        """Return what `ask` does, which takes one session, once there is room for it.

        Args:
            ask: called again when it found no room, as long as that was taken by questions of ours.
            waits: notes how long it was waited for others.

        Raises:
            NoRoomError: others have taken it all.
            Exception: as `ask`.
        """
        while True:
            await self._wait_until(lambda: self._sessions < self._most, waits)
            began = time.monotonic()
            self._sessions += 1
            try:
                answer = await ask()
                self._ended_at = time.monotonic()
                return answer
            except NoRoomError:
                others = self._sessions - 1
                if not others and self._ended_at + _FREED < began:
                    raise
                self._most = max(1, others)
            finally:
                self._sessions -= 1
                self._end()
            if not self._sessions:
                await asyncio.sleep(_LOOK_AGAIN)  # the server is about to notice that the last one has ended

    def _end(self) -> None:
        if not self._sessions:
            self._most = MOST_AT_ONCE  # who knows what others hold next time
        self._ended.set()
        self._ended = asyncio.Event()

    async def _wait_until(self, ready: Callable[[], bool], waits: Waits) -> None:
        waits.begin()
        try:
            while not ready():
                try:
                    async with asyncio.timeout(_LOOK_AGAIN):
                        await self._ended.wait()
                except TimeoutError:
                    continue
        finally:
            waits.end(counts=True)
