"""What both ends of a campaign write down about a message. Standard library only at import: a kernel runs this text.

The kernel's messages are taken at the zmq socket by which they leave, and not at `Session.send`: there is one such
place for all of them, and the order in which they pass it is the order on the wire.
"""

import hashlib
import json
import os
import struct

DELIMITER = b"<IDS|MSG>"
IOPUB = 4
CHANNELS = {1: 1, 2: 4, 3: 3, 4: 2}  # by the port in the kernel's connection file: as in `bundle/wire.py`


def digest(parts):
    # type: (list[bytes]) -> str
    """Return what stands for these parts and no others."""
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        found.update(struct.pack("!Q", len(part)))
        found.update(part)
    return found.hexdigest()


def describe(channel, parts, inbound=False):
    # type: (int, list[bytes], bool) -> dict[str, object]
    """Return a message's line: channel, whose (`to`), parent's or own id (`id`), type, digest, size."""
    at = parts.index(DELIMITER)
    header = json.loads(parts[at + 2])
    owner = header if inbound else json.loads(parts[at + 3])
    return {
        "channel": channel,
        "inbound": inbound,
        "to": parts[at - 1].decode("latin-1") if at and channel != IOPUB else "",
        "id": owner.get("msg_id", ""),
        "type": header["msg_type"],
        # On iopub the topic goes all the way; elsewhere what stands before the delimiter changes from hop to hop.
        "digest": digest(parts if channel == IOPUB else parts[at:]),
        "size": sum(map(len, parts)),
    }


def install(path):
    # type: (str) -> None
    """In a kernel: write a line to `path` for each message that comes or goes on its channels, from now on."""
    import zmq

    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    owner = os.getpid()
    channels = {}  # type: dict[int, int]
    plain_send = zmq.sugar.socket.Socket.send_multipart
    plain_receive = zmq.sugar.socket.Socket.recv_multipart

    def channel_of(socket):
        # type: (object) -> int
        known = channels.get(id(socket))
        if known is None:
            end = socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0")
            port = int(end[-1:]) if end.startswith(b"ipc://") and end[-2:-1] == b"-" else 0
            known = channels[id(socket)] = CHANNELS.get(port, 0)
        return known

    def note(socket, parts, inbound):
        # type: (object, list[object], bool) -> None
        if os.getpid() != owner:
            return
        channel = channel_of(socket)
        raw = [part if isinstance(part, bytes) else bytes(getattr(part, "buffer", part)) for part in parts]
        if channel and DELIMITER in raw:
            os.write(log, json.dumps(describe(channel, raw, inbound)).encode() + b"\n")

    def send(self, msg_parts, *args, **kwargs):
        # type: (object, list[object], object, object) -> object
        msg_parts = list(msg_parts)
        note(self, msg_parts, False)
        return plain_send(self, msg_parts, *args, **kwargs)

    def receive(self, *args, **kwargs):
        # type: (object, object, object) -> object
        parts = plain_receive(self, *args, **kwargs)
        if isinstance(parts, list):
            note(self, parts, True)
        return parts

    zmq.sugar.socket.Socket.send_multipart = send
    zmq.sugar.socket.Socket.recv_multipart = receive
