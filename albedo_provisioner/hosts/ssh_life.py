"""Whether a connection carries anything, below the packets of ssh: the sign of life of a slow link.

A channel hears whole packets only, of 32 KiB mostly. At 3 kB/s one takes eleven seconds, and while a large request is
on its way up, nothing comes down at all. Such a connection is slow and not dead: bytes pass all the time, and to give
it up would lose the packet that is half here, again and again.

Small talk (keepalives, answers to pings) is not enough of a sign: it passes also where one channel of many is dead.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
import time

import asyncssh

LOOK_EVERY = 2.0
"""Seconds between looks."""

ENOUGH = 600
"""Bytes between two looks, in either direction, that are more than small talk."""


class SignsOfLife:
    """When a connection to a host last carried more than small talk. Used on the I/O thread's loop."""

    def __init__(self) -> None:
        self.carried_at: float | None = None
        """When it did, by `time.monotonic`; None when it has not yet."""
        self._connections: list[tuple[asyncssh.SSHClientConnection, int]] = []
        self._asking = True  # whether they ask for answers
        self._transport: asyncio.Transport | None = None
        self._received = 0
        self._received_before = 0
        self._received_at = 0.0
        self._unsent_before = 0

    @property
    def carries(self) -> bool:
        """Whether it did lately."""
        return self.carried_at is not None and time.monotonic() - self.carried_at < 3 * LOOK_EVERY

    def received(self, count: int) -> None:
        """Note that so many bytes came from the network."""
        self._received += count
        self._received_at = time.monotonic()

    def watch(self, transport: asyncio.Transport) -> None:
        """Look after the byte stream that goes to the network."""
        self._transport = transport
        asyncio.get_running_loop().call_later(LOOK_EVERY, self._look)

    def keep(self, connection: asyncssh.SSHClientConnection, interval: int) -> None:
        """Have a connection over this byte stream ask whether the host is there only while it carries nothing.

        Else the question waits behind what it carries, and the connection is given up for want of an answer.

        Args:
            connection: the connection.
            interval: seconds without a word of the host after which it asks.
        """
        # What it took to connect and sign in says nothing of what the connection carries from now on.
        self.carried_at, self._received_before = None, self._received
        self._connections.append((connection, interval))
        connection.set_keepalive(interval if self._asking else 0)

    def _look(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            self._connections.clear()
            return
        came = self._received - self._received_before
        unsent = _unsent(transport)
        went = self._unsent_before - unsent
        self._received_before, self._unsent_before = self._received, unsent
        if came >= ENOUGH:
            self.carried_at = self._received_at
        elif went >= ENOUGH:
            self.carried_at = time.monotonic()
        if self._asking == self.carries:
            self._asking = not self._asking
            for connection, interval in self._connections:
                if not connection.is_closed():
                    connection.set_keepalive(interval if self._asking else 0)
        asyncio.get_running_loop().call_later(LOOK_EVERY, self._look)


def _unsent(transport: asyncio.Transport) -> int:
    """Return how many bytes wait to be sent, those that the other side's system has not confirmed included."""
    try:
        queued = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, b"\0" * 4)
    except OSError:  # not every system tells
        return transport.get_write_buffer_size()
    return int(struct.unpack("i", queued)[0]) + transport.get_write_buffer_size()
