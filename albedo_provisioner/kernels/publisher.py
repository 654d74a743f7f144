"""Handing output to local clients, at the pace of those that read.

A zmq PUB drops what a slow subscriber has no room for, silently. Here a full queue makes the link wait instead, so
that the host holds what is to come, within its bounds and with its notes about what had to go.

But a client that does not read at all must neither keep the others waiting nor fill the memory: one that takes nothing
from a full queue for a while is left behind, as a local kernel would have done at once. One message is then sent
without regard to full queues, and from then on zmq passes over those that it found full, until they have room again.
zmq does not say which ones, so all are told of it, with the next cell; and that a cell ended is said again
(reminders.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from ..bundle.wire import Buffer
from .reminders import Reminders

log = logging.getLogger("albedo_provisioner.kernels")

QUEUE = 1000
"""Messages waiting for one client, as with ipykernel's own socket; as many again wait on the client's side."""

QUEUE_BYTES = 256 << 20
"""Bytes of messages waiting for clients."""

PATIENCE = 15.0
"""Seconds that all wait for a client that does not read. One on a busy machine may take seconds for a large message."""

_LARGE = 64 * 1024
_WATCH_EVERY, _WATCH_BYTES = 64, 256 * 1024
"""Of so many messages, or bytes of them, one is watched on its way out: zmq tells of room only once a client has taken
500, and one that reads slowly must not be thought to read nothing meanwhile."""

_TICK = 0.01
_LONGEST_TICK = 0.1


class Publisher:
    """Sends messages on an XPUB socket without losing any for clients that read. Used on the I/O thread's loop.

    Args:
        socket: the socket, not yet bound.
        paused: called with True when what comes should wait, with False when it may go on.
        left_behind: called when a client begins to miss something.
        idle: makes a message which says that the request with this header is done.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        paused: Callable[[bool], None],
        left_behind: Callable[[], None],
        idle: Callable[[dict[str, Any]], Sequence[Buffer]],
    ) -> None:
        socket.sndhwm = QUEUE
        socket.setsockopt(zmq.XPUB_NODROP, 1)
        self._socket = socket
        self._paused = paused
        self._left_behind = left_behind
        self._reminders = Reminders(lambda cell: self._try(idle(cell)))
        self._waiting: deque[Sequence[Buffer]] = deque()
        # Those that zmq still holds, oldest first, with the bytes up to each.
        self._watched: deque[tuple[zmq.MessageTracker, int]] = deque()
        self._watched_size = 0
        self._unwatched = self._unwatched_size = 0  # messages since the last that is watched, and their bytes
        self._timer: asyncio.TimerHandle | None = None
        self._silent = 0.0  # seconds for which no client has made room, in which it was looked for
        self._looked_at = 0.0

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send a message, now or when there is room for it; the order is kept."""
        if self._timer is None and self._try(parts):
            self._reminders.published(parts)
            return
        self._waiting.append(parts)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._silent, self._looked_at = 0.0, loop.time()
            self._timer = loop.call_later(_TICK, self._go_on)
            self._paused(True)

    def close(self) -> None:
        """Send nothing more."""
        self._reminders.close()
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _try(self, parts: Sequence[Buffer]) -> bool:
        while self._watched and self._watched[0][0].done:
            self._watched_size -= self._watched.popleft()[1]
            self._silent = 0.0
        size = sum(map(len, parts))
        if self._watched_size > QUEUE_BYTES:
            return False
        large = size >= _LARGE
        frame = None
        if self._unwatched + 1 >= _WATCH_EVERY or self._unwatched_size + size >= _WATCH_BYTES:
            at = max(range(len(parts)), key=lambda at: len(parts[at]))
            frame = zmq.Frame(parts[at] if large else bytes(parts[at]), track=True, copy=False)
        try:
            # Lending small parts to zmq costs more than copying them.
            sent = parts if frame is None else [*parts[:at], frame, *parts[at + 1 :]]
            self._socket.send_multipart(sent, zmq.NOBLOCK, copy=not large)
        except zmq.Again:
            return False
        self._unwatched += 1
        self._unwatched_size += size
        if frame is not None and frame.tracker is not None:
            self._watched.append((frame.tracker, self._unwatched_size))
            self._watched_size += self._unwatched_size
            self._unwatched = self._unwatched_size = 0
        return True

    def _go_on(self) -> None:
        """See whether there is room again; called every `_TICK` seconds while something waits."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        # While we were not running either, on a machine that is too busy, a client is not to blame.
        self._silent += min(now - self._looked_at, _LONGEST_TICK)
        self._looked_at = now
        while self._waiting and self._try(self._waiting[0]):
            self._reminders.published(self._waiting.popleft())
            self._silent = 0.0
        if self._silent >= PATIENCE:
            self._leave_behind()
            self._silent = 0.0
        if self._waiting:
            self._timer = loop.call_later(_TICK, self._go_on)
        else:
            self._timer = None
            self._paused(False)

    def _leave_behind(self) -> None:
        log.warning(
            "A client of a kernel has read nothing for %g s: it misses what its queue has no room for.", PATIENCE
        )
        self._left_behind()
        self._reminders.begin()
        self._watched.clear()  # held for that client, as the others have had their time
        self._watched_size = 0
        self._socket.setsockopt(zmq.XPUB_NODROP, 0)
        parts = self._waiting.popleft()
        self._socket.send_multipart(parts, zmq.NOBLOCK, copy=False)
        self._socket.setsockopt(zmq.XPUB_NODROP, 1)
        self._reminders.published(parts)
