"""Telling a caller of outputs as they come, on a thread of its own: no other waits when it takes its time."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable

from ..errors import in_words
from .results import Output

log = logging.getLogger("albedo_provisioner.sessions")

PATIENCE = 10.0
"""Seconds that the caller's function may take with one output while the call's result waits for that."""

MOST_WAITING = 64 << 20
"""Bytes of outputs that may wait for the caller's function."""

_LOOK = 0.5


class Listener:
    """Calls a caller's function with outputs, in their order, on a thread of its own.

    Args:
        told: the function. What it raises is noted and changes nothing else.
        name: the cell's, for the log.

    Attributes:
        problem: what went wrong first: a sentence; None while nothing has.
    """

    def __init__(self, told: Callable[[Output], None], name: str) -> None:
        self.problem: str | None = None
        self._told = told
        self._name = name
        self._outputs: queue.SimpleQueue[tuple[Output, int] | None] = queue.SimpleQueue()
        self._waiting = 0  # bytes
        self._taken = 0  # bytes
        self._thread: threading.Thread | None = None
        self._moved_at = 0.0  # when it was called last, or was done with that
        self._loop = asyncio.get_running_loop()
        self._done = asyncio.Event()

    def tell(self, output: Output, size: int) -> None:
        """Have it called with an output of so many bytes."""
        if self._waiting - self._taken > MOST_WAITING:
            self.problem = self.problem or (
                f"on_output is slower than the output: beyond {MOST_WAITING:,} bytes that waited for it, it was not "
                "told of what came."
            )
            return
        if self._thread is None:
            self._moved_at = time.monotonic()
            self._thread = threading.Thread(target=self._run, name="albedo on_output", daemon=True)
            self._thread.start()
        self._waiting += size
        self._outputs.put((output, size))

    async def close(self) -> None:
        """Wait until it has been called with all of them; one that takes too long is waited for no more."""
        if self._thread is None:
            return
        self._outputs.put(None)
        while not self._done.is_set():
            if time.monotonic() - self._moved_at > PATIENCE:
                self.problem = self.problem or (
                    f"on_output had taken more than {PATIENCE:g} s with one output, and was waited for no longer."
                )
                return
            try:
                async with asyncio.timeout(_LOOK):
                    await self._done.wait()
            except TimeoutError:
                continue

    def abandon(self) -> None:
        """Let it be called with what there is, and with nothing that comes later."""
        self._outputs.put(None)

    def _run(self) -> None:
        while (item := self._outputs.get()) is not None:
            output, size = item
            self._moved_at = time.monotonic()
            try:
                self._told(output)
            except BaseException as error:
                if self.problem is None:
                    words = in_words(error)[:500]
                    self.problem = f"on_output failed with {words}; the code and its result are not affected."
                    log.exception("on_output of cell %s failed; it is told further outputs all the same", self._name)
            self._moved_at = time.monotonic()
            self._taken += size
        try:
            self._loop.call_soon_threadsafe(self._done.set)
        except RuntimeError:  # its process ends, and nobody waits
            log.debug("nobody waits for on_output of cell %s", self._name)
