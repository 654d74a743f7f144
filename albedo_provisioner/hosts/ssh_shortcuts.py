"""Two shortcuts through asyncssh, for speed: bulk output straight to its channel, and no decoy packets.

Bulk output. asyncssh takes a packet through a dozen copies and about as many calls. That is a third of its time for
bulk output (measured: 2.4 s of processor time per GB with, 1.7 s without), and the I/O thread is what bounds the speed
of output end to end. Here, bytes are received into one buffer, cut at the packets' bounds, and the one kind of packet
that output is made of, channel data, is decrypted and handed to its channel directly. Everything else goes to asyncssh
as ever, as does all of it when anything is out of the ordinary. What a packet is can be seen only by decrypting it;
asyncssh's cipher state is advanced only when the packet was ours, so that giving one back is always possible.

Decoys. Before each packet asyncssh sends an empty one, a defence of the old CBC ciphers (RFC 4251, 9.3.1). With any
other cipher it only doubles the packets, system calls and wake-ups of a small message.

This needs asyncssh's insides. They are looked at by name, in this file alone, and only for versions that the tests
have seen; with any other version `protocol_for` returns asyncssh's own protocol and all works, more slowly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import asyncssh
from asyncssh.encryption import GCMEncryption
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

# asyncssh's insides have kept their shape from pyproject's oldest version up to this one (exclusive).
FIRST_UNTESTED = (2, 25)

# Smaller packets are not worth it, and their way stays the ordinary one.
BULK = 64

# Room for many packets, so that one system call brings as much as the socket holds; and small enough for the cache.
BUFFER_SIZE = 512 * 1024

# A packet larger than this is none; asyncssh's own limit is about the same.
MAX_SIZE = BUFFER_SIZE // 2

# Length field and authentication tag of an AES-GCM packet (RFC 5647): bytes around what the length counts.
FRAME = 4 + 16

# RFC 4250, 4.1.2.
MSG_IGNORE = 2
MSG_CHANNEL_DATA = 94


def protocol_for(connection: Any) -> asyncio.BaseProtocol:
    """Return the protocol that feeds an asyncssh connection from its socket: the fast one where it is understood."""
    version = tuple(int(part) for part in asyncssh.__version__.split(".")[:2])
    if version >= FIRST_UNTESTED:
        return cast(asyncio.BaseProtocol, connection)
    _send_no_decoys(connection)
    return Inbound(connection)


def _send_no_decoys(connection: Any) -> None:
    """Have the connection send empty packets only where they serve a purpose."""
    send_packet = connection.send_packet

    def send(pkttype: int, *args: bytes, **options: Any) -> None:
        if pkttype == MSG_IGNORE and not str(connection.get_extra_info("send_cipher")).endswith("-cbc"):
            return
        send_packet(pkttype, *args, **options)

    connection.send_packet = send


class Inbound(asyncio.BufferedProtocol):
    """Stands between a socket and asyncssh's connection.

    Args:
        connection: the `SSHClientConnection`; all its own rules stay in force.

    Attributes:
        bulk_packets: how many packets took the short way.
        count: called with the number of bytes whenever some come, whole packets or not.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._buffer = bytearray(BUFFER_SIZE)
        self._view = memoryview(self._buffer)
        # Bytes at the buffer's start that are the beginning of a packet.
        self._held = 0
        # Bytes that asyncssh still has to get before the next packet begins.
        self._owed = 0
        self._encryption: Any = None
        self._decrypt: Any = None
        self.bulk_packets = 0
        self.count: Callable[[int], None] = lambda _: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Pass it on."""
        self._connection.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass it on."""
        self._connection.connection_lost(exc)

    def eof_received(self) -> None:
        """Pass it on."""
        self._connection.eof_received()

    def pause_writing(self) -> None:
        """Pass it on."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Pass it on."""
        self._connection.resume_writing()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go: behind the beginning of a packet, if one is held."""
        return self._view[self._held :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take bytes from the socket."""
        self.count(nbytes)
        end = self._held + nbytes
        self._held = 0
        # Up to `start` everything has been dealt with; from there to `position` are packets for asyncssh.
        start = position = 0
        if self._owed:
            position = min(self._owed, end)
            self._owed -= position
            self._give(0, position)
            start = position
        if not self._in_step():
            self._give(start, end)
            return
        bulk_before = self.bulk_packets
        size = 0
        while end - position >= 4:
            size = int.from_bytes(self._buffer[position : position + 4], "big") + FRAME
            if size > MAX_SIZE:
                # Against the protocol; asyncssh shall say so.
                self._give(start, end)
                return
            if position + size > end:
                break
            if size >= BULK:
                if start < position:
                    self._give(start, position)
                    start = position
                    if not self._in_step():
                        break
                if self._take_data(position, size):
                    start += size
            position += size
        self._give(start, position)
        self._keep(position, end, size, whole=position > 0)
        if self.bulk_packets > bulk_before:
            # asyncssh takes note that the host is alive (its keepalive timer).
            self._connection.data_received(b"")

    def _keep(self, position: int, end: int, size: int, *, whole: bool) -> None:
        """Dispose of what is left at the end: the beginning of a packet, if anything."""
        rest = end - position
        if not rest:
            return
        if self._in_step() and (whole or rest < 4):
            self._view[:rest] = self._view[position:end]
            self._held = rest
            return
        # Not even one whole packet: the link is slow, and asyncssh should see that bytes keep coming.
        if rest >= 4:
            self._owed = size - rest
        self._give(position, end)

    def _give(self, start: int, end: int) -> None:
        """Let asyncssh have these bytes."""
        if start < end:
            self._connection.data_received(bytes(self._view[start:end]))

    def _in_step(self) -> bool:
        """Return whether asyncssh is at the start of a packet, signed in, with a cipher that we understand."""
        connection = self._connection
        return (
            not self._owed
            and not connection._inpbuf
            and connection._recv_handler == connection._recv_pkthdr
            and connection._auth_complete
            and type(connection._recv_encryption) is GCMEncryption
            and connection._decompressor is None
            and connection._transport is not None
        )

    def _take_data(self, position: int, size: int) -> bool:
        """Hand a packet to its channel when it is channel data; return False, with nothing changed, when not."""
        connection = self._connection
        encryption = connection._recv_encryption
        if encryption is not self._encryption:
            self._encryption = encryption
            self._decrypt = AESGCM(encryption._cipher._key).decrypt
        cipher = encryption._cipher
        body = position + 4
        try:
            packet = self._decrypt(cipher._iv, self._view[body : position + size], self._view[position:body])
        except InvalidTag:
            return False
        # RFC 4253 and 4254: padding length (1), type (1), channel (4), length (4), data, padding.
        length = int.from_bytes(packet[6:10], "big")
        channel = connection._channels.get(int.from_bytes(packet[2:6], "big"))
        if (
            packet[1] != MSG_CHANNEL_DATA
            or channel is None
            or channel._recv_state != "open"
            or length > channel._recv_window
            or 10 + length + packet[0] != len(packet)
        ):
            return False
        cipher._update_iv()
        connection._recv_seq = (connection._recv_seq + 1) & 0xFFFFFFFF
        self.bulk_packets += 1
        channel._accept_data(packet[10 : 10 + length])
        return True
