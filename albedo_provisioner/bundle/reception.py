"""Where clients come in: bridges that bring connections, the links they belong to, and who is away for how long."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import zmq

from .client import SILENCE, Client
from .peer import peer_uid
from .protocol import Attached, Event, Failed, LinkLostError, Parted
from .wire import ProtocolError

MOST_AWAY = 4
"""Links without a connection that are remembered; a client that was killed never says goodbye."""


TAKEN = b"."
"""What a bridge is sent when its connection has been taken."""

MOST_ARRIVING = 32
ARRIVAL = 10.0
"""Connections to our socket that have not handed anything over: how many there may be, and for how many seconds."""


class Reception:
    """A keeper's clients.

    Args:
        listener: the keeper's socket, listening.
        poller: what the keeper's loop waits on.
        hold: bytes held for a client that is away.
        hello: called for what to greet a client with.
        received: called with a client and what it says (`Received` and `Attached` only). Its `ProtocolError` ends
            that client's connection.
    """

    def __init__(
        self,
        listener: socket.socket,
        poller: zmq.Poller,
        hold: int,
        hello: Callable[[], dict[str, Any]],
        received: Callable[[Client, Event], None],
    ) -> None:
        self.ever = False
        """Whether any client has ever said anything: one that gave its start up left no more than a greeting."""
        self._listener = listener
        self._poller = poller
        self._hold = hold
        self._hello = hello
        self._received = received
        self._arriving: dict[int, tuple[socket.socket, float]] = {}  # and when they came; oldest first
        self._clients: dict[str, Client] = {}
        self._by_descriptor: dict[int, Client] = {}
        self.listen_at(listener)

    def listen_at(self, listener: socket.socket) -> None:
        """Take connections at this socket, which listens, and no more at the one before."""
        if self._listener is not listener:
            self._poller.unregister(self._listener.fileno())
            self._listener.close()
        listener.setblocking(False)
        self._poller.register(listener.fileno(), zmq.POLLIN)
        self._listener = listener

    def __iter__(self) -> Iterator[Client]:
        return iter(list(self._clients.values()))

    def find(self, link_id: str) -> Client | None:
        """Return the client of a link, attached or away."""
        return self._clients.get(link_id)

    def is_attached(self, link_id: str) -> bool:
        """Whether the client of a link has a connection."""
        client = self._clients.get(link_id)
        return client is not None and client.attached

    @property
    def away_since(self) -> float | None:
        """When the last client went away; None while one is attached or none is remembered."""
        if any(client.attached for client in self._clients.values()):
            return None
        return max((client.away_since for client in self._clients.values()), default=None)

    @property
    def attached(self) -> bool:
        """Whether any client has a connection."""
        return any(client.attached for client in self._clients.values())

    @property
    def settled(self) -> bool:
        """Whether every client has confirmed all it was told, or cannot now."""
        return all(client.settled for client in self._clients.values())

    @property
    def due(self) -> list[float]:
        """When, by the clock, `flush` has something to do."""
        return [client.ack_at for client in self._clients.values() if client.ack_at is not None]

    def tell_all(self, content: dict[str, Any]) -> None:
        """Say something to every client on the keeper's own channel."""
        for client in self._clients.values():
            client.tell(content)

    def serve(self, ready: dict[Any, int], now: float) -> None:
        """Take what has come, given what the poller found ready."""
        if ready.get(self._listener.fileno()):
            self._accept(now)
        for descriptor in [d for d in ready if d in self._arriving]:
            self._arrive(descriptor, now)
            ready.pop(descriptor)
        for descriptor, happened in ready.items():
            client = self._by_descriptor.get(descriptor)
            if client is None:
                continue
            # POLLHUP and POLLERR come unasked, on the output side too. A bridge never speaks: its POLLIN is its end.
            if descriptor == client.descriptors[0] and happened & zmq.POLLIN:
                if client.read(now, self._taker(client, now)):
                    self.ever = True
                else:
                    self._detach(client, now)
            elif not happened & zmq.POLLOUT:
                self._detach(client, now)

    def flush(self, now: float) -> None:
        """Send every client what it can take."""
        for client in list(self._clients.values()):
            if client.attached:
                client.tick(now)
                self._flush(client, now)

    def tend(self, now: float) -> bool:
        """Give up connections that are silent or hand nothing over, links that nobody comes back to, and what is held
        over the bound for clients that are away; say whether memory may have become free by it.
        """
        for descriptor in [number for number, (_, since) in self._arriving.items() if now - since > ARRIVAL]:
            self._turn_away(descriptor)
        for client in list(self._clients.values()):
            if client.attached and now - client.heard > SILENCE:
                self._detach(client, now)
        away = sorted((c for c in self._clients.values() if not c.attached), key=lambda c: c.away_since)
        freed = len(away) > MOST_AWAY
        for client in away[:-MOST_AWAY]:
            del self._clients[client.link_id]
        for client in self._clients.values():
            freed = client.settle_down(now) or freed
        return freed

    def close(self, now: float) -> None:
        """End all connections, and take no more."""
        for client in list(self._clients.values()):
            self._detach(client, now)
        for descriptor in list(self._arriving):
            self._turn_away(descriptor)
        self._listener.close()

    # -- arriving --------------------------------------------------------------------------------------------

    def _accept(self, now: float) -> None:
        while True:
            try:
                bridge, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError:  # no descriptors left: those that hold them for nothing have to go
                if self._arriving:
                    self._turn_away(next(iter(self._arriving)))
                return
            if peer_uid(bridge) not in (None, os.getuid()):
                bridge.close()
                continue
            bridge.setblocking(False)
            if len(self._arriving) >= MOST_ARRIVING:
                self._turn_away(next(iter(self._arriving)))
            self._arriving[bridge.fileno()] = bridge, now
            self._poller.register(bridge.fileno(), zmq.POLLIN)

    def _turn_away(self, descriptor: int) -> None:
        bridge, _ = self._arriving.pop(descriptor)
        self._poller.unregister(descriptor)
        bridge.close()

    def _arrive(self, descriptor: int, now: float) -> None:
        """A bridge hands over its connection."""
        bridge, _ = self._arriving.pop(descriptor)
        self._poller.unregister(descriptor)
        descriptors: list[int] = []
        try:
            data, descriptors, flags, _ = socket.recv_fds(bridge, 1 << 16, 2)
            for number in descriptors:
                os.set_blocking(number, False)
                os.set_inheritable(number, False)  # no kernel that is started later may keep the connection open
            offer = json.loads(data[4 : 4 + struct.unpack_from("!I", data)[0]])
            link_id, name, fresh = str(offer["link"]), str(offer["client"]), bool(offer["fresh"])
            greeting = offer["hello"].encode("latin-1")
            process, number = offer.get("attempt") or ("", 0)
            attempt = str(process)[:64], int(number)
            if len(descriptors) != 2 or flags & socket.MSG_CTRUNC:
                raise ValueError(f"{len(descriptors)} descriptors")
            if not (link_id.isascii() and link_id.isalnum()) or len(link_id) > 64:
                raise ValueError(link_id)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error):
            # No bridge of ours, or one that was killed on the way.
            for leftover in descriptors:
                os.close(leftover)
            bridge.close()
            return
        client = self._clients.get(link_id)
        if client is not None and client.has_come_since(attempt):
            # The connection broke while its command was under way, and the client is here by a newer one already.
            for descriptor in descriptors:
                os.close(descriptor)
            bridge.close()
            return
        try:
            bridge.send(TAKEN)
        except OSError:
            pass  # it has ended, which is noticed like at any other time
        known = client is not None
        if client is None:
            client = self._clients[link_id] = Client(link_id, name, self._hold)
        elif client.attached:
            client.link.farewell("replaced", "a newer connection of the same client took over")
            client.flush()
            self._detach(client, now)
        client.attempt = attempt
        client.attach(bridge, descriptors, self._hello(), now)
        for number in (descriptors[0], bridge.fileno()):
            self._poller.register(number, zmq.POLLIN)
            self._by_descriptor[number] = client
        self._by_descriptor[descriptors[1]] = client
        if not fresh and not known:  # a known one may have said things of which nothing arrived: they come again
            client.link.farewell("unknown", "this keeper does not know the link")
            client.flush()
            self._forget(client, now)
        else:
            client.take(greeting, now, self._taker(client, now))

    # -- leaving ---------------------------------------------------------------------------------------------

    def _taker(self, client: Client, now: float) -> Callable[[Event], None]:
        def take(event: Event) -> None:
            if isinstance(event, Parted):
                self._forget(client, now)
            elif isinstance(event, Failed):
                self._refuse(client, event.error, now)
            else:
                client.greeted = client.greeted or isinstance(event, Attached)
                try:
                    self._received(client, event)
                except ProtocolError as error:
                    self._refuse(client, error, now)

        return take

    def _refuse(self, client: Client, error: ProtocolError, now: float) -> None:
        """Tell a client what was wrong with what it said, and end its connection."""
        lost = isinstance(error, LinkLostError)
        client.link.farewell("unknown" if lost else "protocol", str(error))
        client.flush()
        if lost:
            self._forget(client, now)
        else:
            self._detach(client, now)

    def _flush(self, client: Client, now: float) -> None:
        was_blocked = client.blocked
        if not client.flush():
            self._detach(client, now)
        elif client.blocked != was_blocked:
            outgoing = client.descriptors[1]
            if client.blocked:
                self._poller.register(outgoing, zmq.POLLOUT)
            else:
                self._poller.unregister(outgoing)

    def _detach(self, client: Client, now: float) -> None:
        for descriptor in [d for d, owner in self._by_descriptor.items() if owner is client]:
            del self._by_descriptor[descriptor]
            try:
                self._poller.unregister(descriptor)
            except KeyError:
                pass  # the output side is only polled while it is blocked
        client.detach(now)
        if not client.greeted:  # it never was a client: nothing is held for it
            self._clients.pop(client.link_id, None)

    def _forget(self, client: Client, now: float) -> None:
        self._clients.pop(client.link_id, None)
        self._detach(client, now)
