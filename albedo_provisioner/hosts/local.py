"""The local transport: a command on this machine, with the same interface as one over ssh.

A kernel in a local folder gets the same keeper and the same bridge as a remote one; only the transport differs.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from ..errors import UnreachableError
from .process_channel import ProcessChannel, start_process
from .transport import Channel, ChannelReceiver


class LocalTransport:
    """Runs commands on this machine by `/bin/sh -c`, each in a session of its own, in the home directory."""

    def __init__(self) -> None:
        self._channels: set[ProcessChannel] = set()

    @property
    def host(self) -> str:
        """The name used in messages."""
        return "this machine"

    async def open(self, command: str, receiver: ChannelReceiver) -> Channel:
        """Run `command`; see `Transport.open`.

        Raises:
            UnreachableError: the process could not be started (no more processes or descriptors).
        """
        try:
            home = Path.home()
            process, pipes = start_process(["/bin/sh", "-c", command], directory=home if home.is_dir() else Path("/"))
        except OSError as error:
            raise UnreachableError(
                self.host, f"No command could be started on this machine: {error.strerror or error}."
            ) from error
        channel = ProcessChannel(process, receiver, pipes)
        self._channels.add(channel)
        channel.reaped.add_done_callback(lambda _: self._channels.discard(channel))
        channel.start()
        return channel

    async def close(self) -> None:
        """End all commands' processes, and wait until they have ended."""
        for channel in self._channels:
            channel.close()
        await asyncio.gather(*(channel.reaped for channel in self._channels))
