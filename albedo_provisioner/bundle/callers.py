"""The keeper's half of calls out of the kernel (`calls.py`): who may answer them, and that each is answered once.

A call goes to a client that has announced that it answers calls of that kind:

- a "tool" call to the client that its cell names (in its request's metadata, `albedo.server`), and to no other: what
  it may do depends on that cell. Once that cell has its reply it is refused.
- any other kind to the client that asked for the cell, if it answers that kind, else to any that is attached; while
  there is none the call waits.

A call is kept until it is answered or taken back. It travels on the link like everything else, exactly once over any
number of connections. When a client comes that takes the place of one that is away (of the same name, for tools), it
is given the calls of that kind that have no answer, with the same ids: the receiving side knows by them what it has
done. After a keeper was killed, the kernel asks its successor again, with the same ids too.
"""

from __future__ import annotations

import json
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import zmq

from . import rundir
from .client import Client
from .peer import peer_uid
from .reception import Reception
from .wire import CALL, MAX_BLOBS, MAX_CALL, TOOL, Buffer, MessageReader, ProtocolError, encode_message

MOST_CONNECTIONS = 64
"""Calls that may be under way at once; more wait for a connection."""

MOST_HELD = 256 << 20
"""Most bytes of calls without an answer; one that would make it more is refused."""

_READ = 256 * 1024
_MALFORMED = (LookupError, TypeError, ValueError, AttributeError, RecursionError, ProtocolError)


class Call:
    """A call that has no answer yet.

    Attributes:
        id: its id, which stays when it is asked again.
        kind: what kind of call it is.
        cell: the message id of the cell that made it; empty when it is none's.
        arguments: the JSON that goes with it, as bytes.
        blobs: the bytes that go with it.
        client: who was given it; None while it waits for somebody.
    """

    def __init__(self, parts: Sequence[memoryview]) -> None:
        head = json.loads(bytes(parts[0]))
        self.id = str(head["call"])
        self.kind = str(head["kind"])
        self.cell = str(head["cell"])
        self.link = str(head["link"])
        self.server = str(head["server"])
        self.arguments: Buffer = parts[1]
        self.blobs: Sequence[Buffer] = parts[2:]
        self.size = sum(map(len, parts))
        self.client: Client | None = None
        self._deliver: Callable[[list[Buffer]], None] | None = None

    def refuse(self, why: str) -> None:
        """Have the caller get a `CallError` with these words."""
        self.pass_on([json.dumps({"error": why}).encode(), b"{}"])

    def pass_on(self, parts: list[Buffer]) -> None:
        """Answer it with a message as it goes over the wire; of no effect when nobody waits any more."""
        deliver, self._deliver = self._deliver, None
        if deliver is not None:
            deliver(parts)

    def wait_at(self, deliver: Callable[[list[Buffer]], None] | None) -> None:
        """Have the answer delivered there; None when nobody waits any more."""
        self._deliver = deliver


class _Connection:
    """A connection of the kernel's, with at most one call under way."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        self.reader = MessageReader(MAX_CALL + 8 * MAX_BLOBS)
        self.out: deque[Buffer] = deque()
        self.call: Call | None = None
        self.blocked = False


class Callers:
    """Calls out of the kernel.

    Args:
        poller: what the keeper's loop waits on.
        clients: the clients there are.
        ended: whether the cell of a message id is known to have its reply.
    """

    def __init__(self, poller: zmq.Poller, clients: Reception, ended: Callable[[str], bool]) -> None:
        self._poller = poller
        self._clients = clients
        self._ended = ended
        self._serving: dict[str, tuple[frozenset[str], str]] = {}  # kinds and name by the link's id, newest last
        self._calls: dict[str, Call] = {}
        self._held = 0
        self._connections: dict[int, _Connection] = {}
        self._listener = _listen()
        self._listening = False
        self._listen_if_room()

    # -- the kernel's side -----------------------------------------------------------------------------------

    def serve(self, ready: dict[Any, int], now: float) -> None:
        """Take what has come, given what the poller found ready; what is ours is taken out of it."""
        found = [(connection, ready.pop(number)) for number, connection in self._ready(ready)]
        if ready.pop(self._listener.fileno(), None):
            self._accept()
        for connection, happened in found:
            if happened & ~zmq.POLLOUT:
                self._read(connection)
            if happened & zmq.POLLOUT:
                self._write(connection)
        if self._calls:
            self._look_after()

    def _ready(self, ready: dict[Any, int]) -> list[tuple[int, _Connection]]:
        return [(number, connection) for number, connection in self._connections.items() if number in ready]

    def listen_anew(self) -> None:
        """Listen in the current directory, which is another one than before."""
        listener = _listen()
        if self._listening:
            self._poller.unregister(self._listener.fileno())
        self._listener.close()
        self._listener, self._listening = listener, False
        self._listen_if_room()

    def _listen_if_room(self) -> None:
        room = len(self._connections) < MOST_CONNECTIONS
        if room and not self._listening:
            self._poller.register(self._listener.fileno(), zmq.POLLIN)
        elif not room and self._listening:
            self._poller.unregister(self._listener.fileno())
        self._listening = room

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError:
            return  # it went away, or there are no descriptors left: then it waits for one
        if peer_uid(peer) not in (None, os.getuid()):
            peer.close()
            return
        peer.setblocking(False)
        self._connections[peer.fileno()] = _Connection(peer)
        self._poller.register(peer.fileno(), zmq.POLLIN)
        self._listen_if_room()

    def _read(self, connection: _Connection) -> None:
        if connection.peer.fileno() not in self._connections:
            return
        try:
            data = connection.peer.recv(_READ)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._drop(connection)
            return
        try:
            for channel, parts in connection.reader.feed(memoryview(data)):
                if channel != CALL or connection.call is not None:
                    raise ProtocolError("one call at a time on a connection")
                self._take(connection, Call(parts))
        except _MALFORMED as error:
            self._send(connection, [json.dumps({"error": f"that is no call: {error}"}).encode(), b"{}"])
            self._drop(connection)

    def _take(self, connection: _Connection, call: Call) -> None:
        known = self._calls.get(call.id)
        if known is not None:  # asked again
            call = known
        connection.call = call
        call.wait_at(lambda parts: self._answered(connection, call, parts))
        if known is not None:
            return
        if self._held + call.size > MOST_HELD:
            call.refuse(f"calls of more than {MOST_HELD} bytes wait for their answers already")
            return
        self._calls[call.id] = call
        self._held += call.size
        self._route(call)

    def _answered(self, connection: _Connection, call: Call, parts: list[Buffer]) -> None:
        self._forget(call)
        connection.call = None
        self._send(connection, parts)

    def _forget(self, call: Call) -> None:
        if self._calls.pop(call.id, None) is not None:
            self._held -= call.size

    def _send(self, connection: _Connection, parts: list[Buffer]) -> None:
        if connection.peer.fileno() in self._connections:
            connection.out.extend(encode_message(CALL, parts))
            self._write(connection)

    def _write(self, connection: _Connection) -> None:
        number = connection.peer.fileno()
        if number not in self._connections:
            return
        blocked = False
        while connection.out and not blocked:
            data = memoryview(connection.out[0])
            try:
                sent = connection.peer.send(data)
            except (BlockingIOError, InterruptedError):
                blocked = True
            except OSError:
                self._drop(connection)
                return
            else:
                connection.out.popleft()
                if sent < len(data):
                    connection.out.appendleft(data[sent:])
        if blocked != connection.blocked:
            connection.blocked = blocked
            self._poller.register(number, zmq.POLLIN | zmq.POLLOUT if blocked else zmq.POLLIN)

    def _drop(self, connection: _Connection) -> None:
        """The kernel has closed a connection: whatever it asked on it, nobody waits for that any more."""
        number = connection.peer.fileno()
        if self._connections.pop(number, None) is None:
            return
        self._poller.unregister(number)
        connection.peer.close()
        self._listen_if_room()
        call, connection.call = connection.call, None
        if call is not None:
            self._forget(call)
            if call.client is not None:
                _say(call.client, [json.dumps({"cancel": call.id}).encode()])
            call.wait_at(None)

    # -- the clients' side -----------------------------------------------------------------------------------

    def announced(self, client: Client, kinds: Iterable[str], name: str) -> None:
        """Note that a client answers calls of these kinds, under this name; give it what waits for such a one."""
        self._serving.pop(client.link_id, None)
        self._serving = {known: what for known, what in self._serving.items() if self._clients.find(known)}
        self._serving[client.link_id] = frozenset(kinds), name
        for call in list(self._calls.values()):
            if call.client is None or not call.client.attached:
                self._route(call)

    def heard(self, client: Client, parts: Sequence[Buffer]) -> None:
        """Take an answer.

        Raises:
            ProtocolError: it is none.
        """
        try:
            head = json.loads(bytes(parts[0]))
            call = self._calls.get(str(head.pop("call")))
            answer = [json.dumps(head).encode(), *parts[1:]]
            if len(answer) < 2:
                raise ValueError("it has no content")
        except _MALFORMED as error:
            raise ProtocolError(f"that is no answer to a call: {error}") from None
        if call is not None:
            call.pass_on(answer)

    def _look_after(self) -> None:
        """See to calls whose client was forgotten, or that nobody has yet."""
        for call in list(self._calls.values()):
            if call.client is not None and self._clients.find(call.client.link_id) is not call.client:
                call.client = None
            if call.client is None:
                self._route(call)

    def _route(self, call: Call) -> None:
        """Give a call to a client, if there is one for it."""
        if call.kind == TOOL:
            if not call.server:
                call.refuse("this cell was given no tools")
                return
            if self._ended(call.cell):
                call.refuse("the cell that this was called for has ended, and its tools went with it")
                return
        client = self._client_for(call)
        if client is None or client is call.client:
            return
        call.client = client
        head = {"call": call.id, "kind": call.kind, "cell": call.cell}
        _say(client, [json.dumps(head).encode(), call.arguments, *call.blobs])

    def _client_for(self, call: Call) -> Client | None:
        found = [
            (self._clients.find(link_id), name)
            for link_id, (kinds, name) in self._serving.items()
            if call.kind in kinds
        ]
        # The newest first: it took the place of those before it. One that is away gets nothing: the call stays here,
        # and should it be taken back meanwhile, nothing has piled up.
        attached = [(client, name) for client, name in reversed(found) if client is not None and client.attached]
        named = [client for client, name in attached if call.server and name == call.server]
        if call.kind == TOOL:
            return next(iter(named), None)
        asked = [client for client, _ in attached if client.link_id == call.link]
        return next(iter([*asked, *named, *(client for client, _ in attached)]), None)

    def close(self) -> None:
        """End all connections, and take no more."""
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._listener.close()


def _say(client: Client, parts: list[Buffer]) -> None:
    client.link.send(CALL, parts)


def _listen() -> socket.socket:
    """Listen in the run directory, which is the current one; a keeper that was killed has left its socket there."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.unlink(rundir.CALLS)
    except FileNotFoundError:
        pass  # as it should be
    listener.bind(rundir.CALLS)
    listener.listen(64)
    listener.setblocking(False)
    return listener
