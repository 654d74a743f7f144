"""How many connections knock at an ssh server at the same time, and what is done when it turns one away.

OpenSSH's server begins to drop new connections at random once ten of them have not signed in yet, whoever's they are
(MaxStartups), and it is all the same to it whether they are for itself or for hosts behind it. So few of a process's
connections are under way to one address at a time; the others wait for them. What other processes do is not known:
a connection that is dropped before the server has said anything is tried again after a moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import weakref
from collections.abc import AsyncIterator, Hashable, Iterator
from dataclasses import dataclass, field

MOST_AT_ONCE = 6
"""Connections to one address that are under way: from before they are made until they are signed in."""

PATIENCE = 3.0
"""Seconds after which nobody waits any longer at a door where nothing moves: there is no server to be spared."""

AT_ONCE = 2.0
"""Seconds within which a server that has too many connections turns one away; one that takes longer is in trouble."""

_PAUSES = (0.2, 0.4, 0.8)
"""About how long to wait before each new try, in seconds."""


def pauses() -> Iterator[float]:
    """Return how many seconds to wait before each further try at a server that turns connections away."""
    return (pause * random.uniform(0.5, 1.5) for pause in _PAUSES)  # not all of those who were dropped at once


def door_of(name: str, port: int | str, command: str = "", via: str = "") -> Hashable:
    """Return what the server is known by that a connection comes to first, as far as this process sees.

    Args:
        name: the name or address that is dialled.
        port: the port.
        command: the ProxyCommand that the connection goes through: one that serves several hosts may lead all of them
            through one server.
        via: the jump host that it goes through and that is signed in to already.
    """
    if command:
        return command.replace(name, "%h").replace(str(port), "%p")
    return (via, name.lower(), str(port))


@dataclass
class Knock:
    """A connection that is under way; `door` is its address's."""

    door: _Door
    began: float = field(default_factory=time.monotonic)

    @property
    def lasted(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began

    def moved(self) -> None:
        """Note that the server has answered something."""
        self.door.moved_at = time.monotonic()


class _Door:
    def __init__(self) -> None:
        self.free = asyncio.Semaphore(MOST_AT_ONCE)
        self.moved_at = time.monotonic()

    async def enter(self) -> bool:
        """Wait for a place; False where it is no use waiting, as those who have one get no answer."""
        while self.free.locked():
            until = self.moved_at + PATIENCE
            left = until - time.monotonic()
            if left <= 0:
                return False
            try:
                async with asyncio.timeout(left):
                    await self.free.acquire()
                    break
            except TimeoutError:
                continue
        else:
            await self.free.acquire()
        self.moved_at = time.monotonic()
        return True

    def leave(self) -> None:
        self.moved_at = time.monotonic()
        self.free.release()


class Waits:
    """How long one host's connections have waited for those of others."""

    def __init__(self) -> None:
        self._total = 0.0
        self._waiting = 0
        self._since = 0.0

    def begin(self) -> None:
        """One of them begins to wait."""
        self._since = self._since if self._waiting else time.monotonic()
        self._waiting += 1

    def end(self, counts: bool) -> None:
        """One of them waits no more; whether it was for others."""
        self._waiting -= 1
        if not self._waiting and counts:
            self._total += time.monotonic() - self._since

    @property
    def seconds(self) -> float:
        """How long in all so far."""
        return self._total + (time.monotonic() - self._since if self._waiting else 0.0)


class Doors:
    """The doors of one event loop; `Doors.get()` returns those of the running one."""

    def __init__(self) -> None:
        self._doors: dict[Hashable, _Door] = {}
        self._waits: dict[str, Waits] = {}

    @classmethod
    def get(cls) -> Doors:
        """Return those of the running event loop."""
        return _by_loop.setdefault(asyncio.get_running_loop(), cls())

    @contextlib.asynccontextmanager
    async def knock(self, address: Hashable, host: str, limit: asyncio.Timeout | None = None) -> AsyncIterator[Knock]:
        """Have a place at a server's door inside of the block, which is for connecting and signing in.

        Args:
            address: what the server is known by.
            host: the host that all this is for, as the user spells it; see `waits`.
            limit: what bounds the time for connecting, put off for as long as others are let in one by one.
        """
        door = self._doors.setdefault(address, _Door())
        until = limit.when() if limit is not None else None
        waits, began, placed = self.waits(host), time.monotonic(), False
        waits.begin()
        if limit is not None:
            limit.reschedule(None)
        try:
            placed = await door.enter()
        finally:
            waits.end(placed)
            if limit is not None and until is not None:
                limit.reschedule(until + (time.monotonic() - began if placed else 0.0))
        try:
            yield Knock(door)
        finally:
            if placed:
                door.leave()

    def waits(self, host: str) -> Waits:
        """Return how long the connections for a host, as the user spells it, have waited."""
        return self._waits.setdefault(host, Waits())


_by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Doors] = weakref.WeakKeyDictionary()
