"""Who is at the other end of a unix socket."""

from __future__ import annotations

import socket
import struct


def peer_uid(connection: socket.socket) -> int | None:
    """Return the account at the other end, or None where the system does not say (the directory is private anyway)."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    uid: int = struct.unpack("3i", data)[1]
    return uid
