"""Changes of this machine's network, as the system tells them: an address, a link or a route came or went.

Linux tells them on a netlink socket (rtnetlink(7)), macOS and the BSDs on a routing socket (route(4)); neither needs
a privilege. What is told is not decoded: that something changed is all that anybody here wants to know. A system, or
a sandbox, that has no such socket just tells nothing.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

log = logging.getLogger("albedo_provisioner.hosts")

# RTMGRP_LINK, _IPV4_IFADDR, _IPV4_ROUTE, _IPV6_IFADDR and _IPV6_ROUTE of <linux/rtnetlink.h>.
_GROUPS = 0x1 | 0x10 | 0x40 | 0x100 | 0x400


class NetworkWatch:
    """Calls a function when the network has changed. Used on the I/O thread's loop.

    Args:
        changed: called without arguments, once for what the system told in one go.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        try:
            self._socket = _open()
        except OSError as error:
            log.debug("changes of the network are not told here: %s", error)
        if self._socket is not None:
            self._loop.add_reader(self._socket, self._readable)

    def close(self) -> None:
        """Watch no more."""
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _readable(self) -> None:
        assert self._socket is not None
        while True:
            try:
                self._socket.recv(65536)
            except BlockingIOError:
                break
            except OSError:
                break  # ENOBUFS: more was told than fits, so there is all the more reason to say so
        self._changed()


def _open() -> socket.socket | None:
    """Return a non-blocking socket that becomes readable when the network changes; None where there is no such thing.

    Raises:
        OSError: it is not allowed here.
    """
    if hasattr(socket, "AF_NETLINK"):
        watch = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, getattr(socket, "NETLINK_ROUTE", 0))
        address: tuple[int, int] | None = (0, _GROUPS)
    elif hasattr(socket, "AF_ROUTE"):
        watch, address = socket.socket(socket.AF_ROUTE, socket.SOCK_RAW, 0), None
    else:
        return None
    try:
        watch.setblocking(False)
        if address is not None:
            watch.bind(address)
    except OSError:
        watch.close()
        raise
    return watch
