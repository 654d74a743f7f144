"""All hosts of the process: one transport for each, so that connections are shared by all who talk to a host."""

from __future__ import annotations

import asyncio

from .io_thread import IOThread
from .local import LocalTransport
from .remote import RemoteTransport
from .transport import Transport


class HostPool:
    """The transports of a process. Used on the I/O thread alone; `HostPool.get()` returns the process's pool."""

    def __init__(self) -> None:
        self._transports: dict[str | None, Transport] = {}
        IOThread.get().on_stop(self.close_all)

    @classmethod
    def get(cls) -> HostPool:
        """Return the pool that belongs to the running I/O thread (a forked child gets one of its own).

        Raises:
            RuntimeError: called elsewhere than on the I/O thread.
        """
        return IOThread.get().only(cls)

    def transport_for(self, host: str | None) -> Transport:
        """Return the transport to a host; nothing is connected before its `open`.

        Args:
            host: `[user@]host` as the user spells it; None for this machine.
        """
        transport = self._transports.get(host)
        if transport is None:
            transport = LocalTransport() if host is None else RemoteTransport(host)
            self._transports[host] = transport
        return transport

    async def close_all(self) -> None:
        """Close all connections and the channels on them. The pool can be used again afterwards."""
        transports = list(self._transports.values())
        self._transports.clear()
        await asyncio.gather(*(transport.close() for transport in transports))
