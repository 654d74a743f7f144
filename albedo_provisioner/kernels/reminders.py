"""Telling clients that were left behind that their cells have ended.

zmq passes over a subscriber that does not read, and does not say which one that was nor when it reads again. Output
that it missed is gone for it, but one thing must not be: that a cell ended, for it would wait for that for ever. So the
idle statuses of cells that ended since are said again, while the kernel is idle: soon, then after pauses that double,
for about an hour. Whoever reads again hears of the end within as long as it did not read. The others hear it twice,
which means nothing to them, as it is true; but each time in a message of its own, because jupyter_client refuses one
whose signature it has seen, with an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from ..bundle.messages import CONTENT, HEADER, PARENT, json_part
from ..bundle.wire import Buffer

FIRST_PAUSE = 1.0
REPEATS = 12
"""Seconds before the first repetition, and how many there are: the last after 4,095 s."""

MOST_CELLS = 32
"""The newest cells whose ends are said again."""


class Reminders:
    """Says again that cells have ended. Used on the I/O thread's loop.

    Args:
        say_idle: tells all clients that have room for it that the request with this header is done.
    """

    def __init__(self, say_idle: Callable[[dict[str, Any]], object]) -> None:
        self._say_idle = say_idle
        self._wanted = False
        self._idle = True
        self._ends: dict[str, dict[str, Any]] = {}  # headers of the requests to run cells, by their message ids
        self._pause = 0.0
        self._left = 0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Note that a client has just been left behind."""
        self._wanted = True
        self._begin_anew()

    def published(self, parts: Sequence[Buffer]) -> None:
        """Look at a message that has just been sent to all clients that have room for it."""
        if not self._wanted:
            return
        if json_part(parts, HEADER).get("msg_type") != "status":
            return
        self._idle = json_part(parts, CONTENT).get("execution_state") == "idle"
        cell = json_part(parts, PARENT)
        if self._idle and cell.get("msg_type") == "execute_request":
            self._ends[str(cell.get("msg_id"))] = cell
            while len(self._ends) > MOST_CELLS:
                del self._ends[next(iter(self._ends))]
            self._begin_anew()

    def close(self) -> None:
        """Say nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def _begin_anew(self) -> None:
        self.close()
        self._pause, self._left = FIRST_PAUSE, REPEATS
        self._timer = asyncio.get_running_loop().call_later(self._pause, self._remind)

    def _remind(self) -> None:
        if self._idle:
            for cell in self._ends.values():
                self._say_idle(cell)
        self._left -= 1
        self._pause *= 2
        if self._left:
            self._timer = asyncio.get_running_loop().call_later(self._pause, self._remind)
        else:
            self._wanted, self._ends = False, {}
