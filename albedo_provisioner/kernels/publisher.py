"""Handing output to local clients, at the pace of those that read.

A zmq PUB drops what a slow subscriber has no room for, silently. Here a full queue makes the link wait instead, so
that the host holds what is to come, within its bounds and with its notes about what had to go.

But a client that does not read at all must neither keep the others waiting nor fill the memory: one whose queue had no
room for a while is left behind, as a local kernel would have done at once. One message is then sent without regard to
full queues, and from then on zmq passes over those that it found full, until they have room again. zmq does not say
which ones, so all are told of it, with the next cell; and that a cell ended is said again (reminders.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

import zmq

from ..bundle.wire import Buffer
from .reminders import Reminders

log = logging.getLogger("albedo_provisioner.kernels")

QUEUE = 1000
"""Messages waiting for one client, as with ipykernel's own socket; as many again wait on the client's side."""

QUEUE_BYTES = 256 << 20
"""Bytes of large messages waiting for clients."""

PATIENCE = 15.0
"""Seconds that all wait for a client that does not read. One that reads makes room here for 500 messages at a time, as
zmq counts, which takes a client on a busy machine seconds when they are large: at 5 s one that read lost output."""

_LARGE = 64 * 1024
_TICK = 0.01
_LONGEST_TICK = 0.1


class Publisher:
    """Sends messages on an XPUB socket without losing any for clients that read. Used on the I/O thread's loop.

    Args:
        socket: the socket, not yet bound.
        paused: called with True when what comes should wait, with False when it may go on.
        left_behind: called when a client begins to miss something.
    """

    def __init__(
        self, socket: zmq.Socket[bytes], paused: Callable[[bool], None], left_behind: Callable[[], None]
    ) -> None:
        socket.sndhwm = QUEUE
        socket.setsockopt(zmq.XPUB_NODROP, 1)
        self._socket = socket
        self._paused = paused
        self._left_behind = left_behind
        self._reminders = Reminders(self._try)
        self._waiting: deque[Sequence[Buffer]] = deque()
        self._large: deque[tuple[zmq.MessageTracker, int]] = deque()  # large messages that zmq still holds
        self._large_size = 0
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
        while self._large and self._large[0][0].done:
            self._large_size -= self._large.popleft()[1]
        size = sum(map(len, parts))
        if self._large_size > QUEUE_BYTES:
            return False
        try:
            # Lending small parts to zmq costs more than copying them.
            large = size >= _LARGE
            tracker = self._socket.send_multipart(parts, zmq.NOBLOCK, copy=not large, track=large)
        except zmq.Again:
            return False
        if tracker is not None:
            self._large.append((tracker, size))
            self._large_size += size
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
        self._large.clear()  # held for that client, as the others have had their time
        self._large_size = 0
        self._socket.setsockopt(zmq.XPUB_NODROP, 0)
        parts = self._waiting.popleft()
        self._socket.send_multipart(parts, zmq.NOBLOCK, copy=False)
        self._socket.setsockopt(zmq.XPUB_NODROP, 1)
        self._reminders.published(parts)
