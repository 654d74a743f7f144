"""Interrupts that came before the cell that they are for.

Control traffic overtakes requests. When a cell and its interrupt were both asked for while the link was away, the
interrupt is here first; it waits for the cell to begin then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from .kernel import Kernel
from .messages import HEADER, PARENT, json_part
from .wire import Buffer

PAUSE = 0.1
"""Seconds from a cell's beginning to its interrupt. A kernel that has only just said that it begins may not be within
the cell's code yet, and take the interrupt for its own."""

_MOST = 64

Answer = Callable[..., None]


class _Waiting:
    __slots__ = ("answer", "at", "request")

    def __init__(self, request: dict[str, Any], answer: Answer) -> None:
        self.request = request
        self.answer = answer
        self.at: float | None = None
        """When to send it, once its cell has begun."""


class EarlySignals:
    """What waits for its cell.

    Args:
        kernel: the kernel.
        send: called with a request and its answer when it is time, or there is nothing to wait for any more.
    """

    def __init__(self, kernel: Kernel, send: Callable[[dict[str, Any], Answer], None]) -> None:
        self._kernel = kernel
        self._send = send
        self._waiting: dict[str, _Waiting] = {}

    def put(self, cell: str, request: dict[str, Any], answer: Answer) -> None:
        """Keep a request to signal until its cell begins; of too many, the oldest goes."""
        before = self._waiting.pop(cell, None)
        if before is not None:
            before.answer({"skipped": "a newer one for the same cell took its place"})
        elif len(self._waiting) >= _MOST:
            oldest = self._waiting.pop(next(iter(self._waiting)))
            oldest.answer({"skipped": "the cell that it was meant for never came"})
        self._waiting[cell] = _Waiting(request, answer)

    def heard(self, parts: Sequence[Buffer]) -> None:
        """Look at a message on iopub: whether it says that a cell begins which something waits for."""
        if self._waiting and json_part(parts, HEADER).get("msg_type") == "execute_input":
            waiting = self._waiting.get(str(json_part(parts, PARENT).get("msg_id")))
            if waiting is not None and waiting.at is None:
                waiting.at = time.monotonic() + PAUSE

    def serve(self, now: float) -> None:
        """Send what is due, and let go of what is for cells that have ended."""
        for cell, waiting in list(self._waiting.items()):
            due = waiting.at is not None and now >= waiting.at
            if due or self._kernel.exit is not None or self._kernel.is_asked(cell) is False:
                del self._waiting[cell]
                self._send(waiting.request, waiting.answer)

    @property
    def due(self) -> list[float]:
        """When, by the clock, `serve` has something to do."""
        return [waiting.at for waiting in self._waiting.values() if waiting.at is not None]
