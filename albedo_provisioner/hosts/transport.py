"""The only thing we need from a host: run a command there, with byte streams and an exit status.

Everything above this file (staging, links, probes) works on `Transport` and `Channel` and knows nothing of ssh.
All of it is used on the I/O thread's loop alone (see `hosts/io_thread.py`).
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True)
class Exit:
    """How a channel ended.

    Attributes:
        status: the command's exit status; None when it was killed by a signal or the connection broke first.
        signal: the signal's name without "SIG" ("KILL") when one ended the command, else None; "unknown" where the
            transport cannot tell which.
        error: what broke when the connection did, else None.
    """

    status: int | None
    signal: str | None = None
    error: Exception | None = None

    @property
    def killed_by(self) -> str | None:
        """The name of the signal that ended the command, as far as that is known; a shell tells of it by its status."""
        if self.signal is not None or self.status is None or not 128 < self.status < 128 + signal.NSIG:
            return self.signal
        try:
            return signal.Signals(self.status - 128).name.removeprefix("SIG")
        except ValueError:
            return None

    @property
    def words(self) -> str:
        """How the command ended, for messages."""
        return f"exit status {self.status}" if self.status is not None else f"signal {self.signal or 'unknown'}"


class ChannelReceiver(Protocol):
    """What a channel tells its user. Called on the I/O thread's loop, never re-entrantly from `write`."""

    def data_received(self, data: bytes) -> None:
        """Take bytes of the command's standard output."""

    def stderr_received(self, data: bytes) -> None:
        """Take bytes of the command's standard error."""

    def pause_writing(self) -> None:
        """Stop writing until `resume_writing`: what was written is not leaving fast enough."""

    def resume_writing(self) -> None:
        """Go on writing."""

    def closed(self, how: Exit) -> None:
        """Take the end of the channel; called exactly once, and nothing is called after it."""


class Channel(Protocol):
    """One running command on a host."""

    @property
    def carried_at(self) -> float | None:
        """When the connection below, whoever's bytes they were, last carried more than keepalives and their like, by
        `time.monotonic`. A packet that is half here counts, so a slow link can be told from a dead one. None where that
        cannot be told, or when it has not yet.
        """

    @property
    def scarce(self) -> bool:
        """Whether its connection is one for which a person has signed in, so that the room on it is not to be taken for
        what can be done without.
        """

    def write(self, *buffers: Buffer) -> None:
        """Send bytes to the command's standard input. Never blocks; after the end it does nothing.

        A memoryview counts its length in bytes (format "B"). All buffers may be used again once this has returned.
        """

    def write_eof(self) -> None:
        """End the command's standard input."""

    def pause_reading(self) -> None:
        """Stop taking output; the host is slowed down once its window is full."""

    def resume_reading(self) -> None:
        """Go on taking output."""

    def close(self) -> None:
        """End the channel now. `closed` follows."""

    def kill(self) -> None:
        """Close, and end the command and what it has started, as far as the way there can tell the host to."""

    def retire(self) -> None:
        """Open nothing new on this channel's connection, where that can be chosen; what runs on it goes on."""

    def suspect(self) -> None:
        """Close, and give up this channel's connection: it does not answer any more (half-open).

        Nothing new is opened on it, and the other channels on it are closed at once as well.
        """


class Transport(Protocol):
    """A way to run commands on one host."""

    @property
    def host(self) -> str:
        """The host as the user spells it, for messages: "gpu", "ann@gpu", "this machine" for the local one."""

    async def open(self, command: str, receiver: ChannelReceiver) -> Channel:
        """Run `command` with the host's shell for the account.

        Nothing is called on `receiver` before this has returned the channel to the task that awaits it.

        Raises:
            HostError: the host cannot be reached or does not let us in (the subclass says which).
        """

    async def close(self) -> None:
        """Close all connections to the host."""


def join(buffers: Sequence[Buffer]) -> bytes:
    """Return the buffers as one bytes object; no copy when there is but one and it is bytes already."""
    if len(buffers) == 1 and isinstance(buffers[0], bytes):
        return buffers[0]
    return b"".join(buffers)
