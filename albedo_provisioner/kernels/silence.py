"""How long nothing has been heard from a keeper, and what that says of the connection."""

from __future__ import annotations

import time

PING_EVERY = 3.0
"""Seconds between looks at whether the keeper is still heard from; after that much silence it is asked."""

SILENCE = 9.0
"""Seconds of silence after which a connection is given up as half-open. With a look every `PING_EVERY` seconds that is
noticed within 12 s, and replaced within the 15 s that users are promised."""

LONGEST_SILENCE = 120.0
"""Seconds of silence after which it is given up all the same while the connection below carries something: a packet
that takes long on a slow link, or the output of another kernel."""


class Silence:
    """The time since a keeper was last heard from.

    Attributes:
        since: when that was, by `time.monotonic`.
    """

    def __init__(self) -> None:
        self.since = 0.0
        self._doubted = 0.0  # when it was last doubted that a connection of before is good for anything

    @property
    def seconds(self) -> float:
        """How long it has lasted."""
        return time.monotonic() - self.since

    @property
    def asks(self) -> bool:
        """Whether it is so long that the keeper should be asked."""
        return self.seconds >= PING_EVERY

    @property
    def carried_after(self) -> float:
        """What the connection below carried since this time shows that it lives, though the keeper says nothing."""
        return max(self._doubted, time.monotonic() - SILENCE)

    def broken(self) -> None:
        """Note that something was heard."""
        self.since = time.monotonic()

    def doubt(self) -> None:
        """Give the keeper less time than otherwise: many connections are dead by now."""
        self._doubted = time.monotonic()
        self.since = min(self.since, self._doubted - SILENCE + PING_EVERY)

    def is_death(self, carries: bool) -> bool:
        """Say whether a connection is to be given up; `carries`: whether it has carried something lately."""
        return self.seconds >= (LONGEST_SILENCE if carries else SILENCE)
