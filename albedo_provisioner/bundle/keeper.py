"""The keeper: owns one kernel, talks to its channels, and remembers for each link what was not confirmed.

One thread, one poll loop. In each turn urgent things come first: requests of clients, then the control, shell and
stdin channels, then a limited amount of output; then each client is sent what it can take.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import zmq

from . import processes, rundir
from .channels import KernelChannels
from .client import SILENCE, Client
from .ladder import Ladder, Report
from .messages import HEADER, PARENT, json_part
from .protocol import Attached, Event, Failed, LinkLostError, Parted, Received
from .spawn import boot_id, folder_path, last_words, spawn
from .wire import CONTROL, IOPUB, KEEPER, NOTE, SHELL, STDIN

HOLD = 64 << 20
"""Bytes held for a client that is away, unless the request says otherwise."""

GRACE = 24 * 3600.0
"""Seconds that an idle kernel without any client is kept, unless the request says otherwise."""

MOST_AWAY = 4
"""Links without a connection that are remembered; a client that was killed never says goodbye."""

UNCLAIMED = 120.0
"""Seconds after which a kernel that no client ever linked to is ended: its start was given up on the way."""

_TURN = {CONTROL: 1 << 30, SHELL: 1 << 30, STDIN: 1 << 30, IOPUB: 4 << 20}
"""Channels in the order in which they are served, and the bytes to take in one turn: output is the only one that
floods, and an interrupt's answer must not wait for it."""

_HOUSEKEEPING = 10.0
_START_POLL = 0.004
_DRAIN = 0.02
_GOODBYE = 3.0

Reply = dict[str, Any]


class Keeper:
    """One kernel's keeper.

    Args:
        path: the run directory, which is the current directory.
        request: the start request, see `kernels/remote.py`.
        listener: our socket, to which bridges connect.
        wake: descriptor that gets a byte for each signal to us.
        subreaper: whether the kernel's orphans become our children.
        pid: the kernel's process.
    """

    def __init__(
        self, path: str, request: dict[str, Any], listener: socket.socket, wake: int, subreaper: bool, pid: int
    ) -> None:
        self.path = path
        self.kernel_id = request["kernel_id"]
        self.identity = os.urandom(8).hex()
        self._inode = os.stat(path).st_ino
        self._hold = int(request.get("hold") or HOLD)
        self._grace = float(request.get("grace") or GRACE)
        self._subreaper = subreaper
        self._listener = listener
        self._wake = wake
        self._arriving: dict[int, socket.socket] = {}
        self._clients: dict[str, Client] = {}
        self._by_descriptor: dict[int, Client] = {}
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.blocky = False
        self._channels = KernelChannels(self._context, rundir.socket_base(path))
        self._poller = zmq.Poller()
        self._waiting: list[tuple[str, int, list[bytes | memoryview]]] = []  # requests for a kernel that is starting
        self._asked: dict[str, str] = {}  # requests on shell without a reply yet, oldest first: message id and type
        self._active = time.monotonic()
        self._ladder: Ladder | None = None
        self._ladder_at = 0.0
        self._after_ladder: list[Callable[[Report], None]] = []
        self._tended_at = 0.0
        self._drained_at: float | None = None
        self._over_at: float | None = None
        self._folder = folder_path(request["kernel"]["cwd"])
        self._born(pid)
        listener.setblocking(False)
        for descriptor in (wake, listener.fileno()):
            self._poller.register(descriptor, zmq.POLLIN)

    # -- the loop --------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the kernel has been ended and everybody knows."""
        while self._over_at is None or (
            time.monotonic() < self._over_at and not all(client.settled for client in self._clients.values())
        ):
            ready = dict(self._poller.poll(self._pause()))
            now = time.monotonic()
            self._turn(ready, now)
            for client in list(self._clients.values()):
                if client.attached:
                    client.tick(now)
                    self._flush(client, now)
        for client in list(self._clients.values()):
            self._detach(client, time.monotonic())
        self._listener.close()
        rundir.remove(self.path)

    def _pause(self) -> int:
        """Milliseconds until something is due by the clock."""
        now = time.monotonic()
        due = [self._tended_at + _HOUSEKEEPING]
        if self.state == "starting":
            due.append(now + _START_POLL)
        if self._ladder is not None:
            due.append(self._ladder_at)
        due += [at for at in (self._over_at, self._drained_at) if at is not None]
        due += [client.ack_at for client in self._clients.values() if client.ack_at is not None]
        return math.ceil(max(0.0, min(due) - now) * 1000)

    def _turn(self, ready: dict[Any, int], now: float) -> None:
        if ready.pop(self._wake, None):
            self._take_signals()
        if ready.pop(self._listener.fileno(), None):
            self._accept()
        for descriptor in [d for d in ready if d in self._arriving]:
            del ready[descriptor]
            self._arrive(descriptor, now)
        for descriptor, happened in list(ready.items()):
            client = self._by_descriptor.get(descriptor)
            if client is None:
                continue
            # POLLHUP and POLLERR come unasked, on the output side too. A bridge never speaks: its POLLIN is its end.
            if descriptor == client.descriptors[0] and happened & zmq.POLLIN:
                if not client.read(now, lambda event, client=client: self._on_event(client, event)):  # type: ignore[misc]
                    self._detach(client, now)
            elif not happened & zmq.POLLOUT:
                self._detach(client, now)
        self._serve_kernel(now)
        if self.state == "starting" and self._channels.bound:
            self._up()
        if self._ladder is not None and now >= self._ladder_at:
            self._climb(now)
        if now - self._tended_at >= _HOUSEKEEPING:
            self._tend(now)

    def _serve_kernel(self, now: float) -> None:
        heard = False
        for channel, most in _TURN.items():
            for parts in self._channels.receive(channel, most):
                heard = True
                self._pass_on(channel, parts)
        if heard:
            self._active = now
        if self._drained_at is not None:
            if heard:
                self._drained_at = now + _DRAIN
            elif now >= self._drained_at:
                self._drained_at = None
                self._drained()

    def _pass_on(self, channel: int, parts: list[bytes]) -> None:
        if channel == IOPUB:
            for client in self._clients.values():
                client.pass_on(IOPUB, parts)
            return
        if channel == SHELL:
            self._asked.pop(json_part(parts, PARENT).get("msg_id", ""), None)
        # The first part is the link's id, which we put before the client's own identities.
        asker = self._clients.get(parts[0].decode("ascii", "replace"))
        if asker is not None:
            asker.pass_on(channel, parts[1:])

    # -- the kernel's process --------------------------------------------------------------------------------

    def _born(self, pid: int) -> None:
        self.pid = pid
        self.process = processes.identify(pid)
        self.state = "starting"
        self.exit: dict[str, Any] | None = None
        self.started = time.time()

    def facts(self) -> dict[str, Any]:
        """Return what clients are told about the kernel's process."""
        return {
            "state": self.state,
            "pid": self.pid,
            "exit": self.exit,
            "started": self.started,
            "folder": self._folder,
        }

    def _up(self) -> None:
        """The kernel listens: connect, and pass on what was asked of it meanwhile."""
        self._channels.open()
        for socket_ in self._channels.sockets.values():
            self._poller.register(socket_, zmq.POLLIN)
        self.state = "running"
        self._tell_all({"event": "kernel", "kernel": self.facts()})
        waiting, self._waiting = self._waiting, []
        for link_id, channel, parts in waiting:
            self._ask(link_id, channel, parts)

    def _take_signals(self) -> None:
        while True:
            try:
                numbers = os.read(self._wake, 512)
            except BlockingIOError:
                break
            if signal.SIGTERM in numbers:
                self._finish("the keeper was told to end (SIGTERM)")
        self._reap()

    def _reap(self) -> None:
        status = processes.reap().get(self.pid)
        if status is None or self.exit is not None:
            return
        code = os.waitstatus_to_exitcode(status)
        self.exit = {"code": code, "words": last_words(self.path)}
        self.state = "exited"
        self._asked.clear()
        # Its last messages may still be on their way through zmq: what comes within a moment is waited for.
        self._drained_at = time.monotonic() + _DRAIN
        self._tell_all({"event": "kernel", "kernel": self.facts()})

    def _drained(self) -> None:
        """The dead kernel's last message was passed on: mark the place in the output, for whoever waits for more."""
        for socket_ in self._channels.sockets.values():
            self._poller.unregister(socket_)
        self._channels.close()
        note = json.dumps({"note": "exited", "exit": self.exit}).encode()
        for client in self._clients.values():
            client.link.send(NOTE, [note])

    def _ask(self, link_id: str, channel: int, parts: list[bytes | memoryview]) -> None:
        """Pass a client's message on to the kernel, or keep it until the kernel listens."""
        if self.state == "running":
            if channel == SHELL:
                header = json_part(parts, HEADER)
                self._asked[str(header.get("msg_id"))] = str(header.get("msg_type"))
            self._channels.send(channel, [link_id.encode(), *parts])
        else:
            self._waiting.append((link_id, channel, parts))

    # -- ending ----------------------------------------------------------------------------------------------

    def _stop(self, ask_grace: float, term_grace: float, then: Callable[[Report], None]) -> None:
        """End the kernel's whole family, then go on with `then`. A second call joins the ending under way."""
        self._after_ladder.append(then)
        if self._ladder is None:
            self._ladder = Ladder(
                [self.process] if self.process else [],
                own_children=self._subreaper,
                mark=self.kernel_id,
                ask_grace=ask_grace,
                term_grace=term_grace,
                reap=self._reap,
            )
            self._ladder_at = 0.0

    def _climb(self, now: float) -> None:
        assert self._ladder is not None
        pause = self._ladder.step(now)
        if pause is not None:
            self._ladder_at = now + pause
            return
        report, self._ladder = self._ladder.report, None
        after, self._after_ladder = self._after_ladder, []
        for then in after:
            then(report)

    def _finish(self, why: str, then: Callable[[Report], None] | None = None, term_grace: float = 2.0) -> None:
        """End the kernel and then the keeper."""

        def ended(report: Report) -> None:
            if then is not None:
                then(report)
            self._tell_all({"event": "ended", "why": why, "report": report.to_dict()})
            self._over_at = time.monotonic() + _GOODBYE

        self._stop(0.0, term_grace, ended)

    def _tend(self, now: float) -> None:
        """Look after what nobody asks about: silent clients, forgotten ones, an unwanted kernel."""
        self._tended_at = now
        for client in list(self._clients.values()):
            if client.attached and now - client.heard > SILENCE:
                self._detach(client, now)
        away = sorted((c for c in self._clients.values() if not c.attached), key=lambda c: c.away_since)
        for client in away[:-MOST_AWAY]:
            del self._clients[client.link_id]
        if self._over_at is not None or self._ladder is not None:
            return
        try:
            there = os.stat(self.path).st_ino == self._inode
        except OSError:
            there = False
        if not there:
            self._finish("its run directory disappeared")
        elif not self._clients and now - self._active > UNCLAIMED:
            self._finish("the client that wanted it never came")
        elif len(away) == len(self._clients) and not self._asked:
            last = max([self._active, *(client.away_since for client in away)])
            if now - last > self._grace:
                self._finish(f"nobody was linked to it for {self._grace:g} s")

    # -- clients ---------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                bridge, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            if _peer_uid(bridge) not in (None, os.getuid()):
                bridge.close()
                continue
            bridge.setblocking(False)
            self._arriving[bridge.fileno()] = bridge
            self._poller.register(bridge.fileno(), zmq.POLLIN)

    def _arrive(self, descriptor: int, now: float) -> None:
        """A bridge hands over its connection."""
        bridge = self._arriving.pop(descriptor)
        self._poller.unregister(descriptor)
        descriptors: list[int] = []
        try:
            data, descriptors, _, _ = socket.recv_fds(bridge, 1 << 16, 2)
            offer = json.loads(data[4 : 4 + struct.unpack_from("!I", data)[0]])
            link_id, name, fresh = str(offer["link"]), str(offer["client"]), bool(offer["fresh"])
            greeting = offer["hello"].encode("latin-1")
            if len(descriptors) != 2 or not link_id.isalnum() or len(link_id) > 64:
                raise ValueError(link_id)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error):
            # No bridge of ours, or one that was killed on the way.
            for leftover in descriptors:
                os.close(leftover)
            bridge.close()
            return
        client = self._clients.get(link_id)
        if client is None:
            client = self._clients[link_id] = Client(link_id, name, self._hold)
        elif client.attached:
            client.link.farewell("replaced", "a newer connection of the same client took over")
            client.flush()
            self._detach(client, now)
        client.attach(bridge, descriptors, self._hello(), now)
        for number in {descriptors[0], bridge.fileno()}:
            self._poller.register(number, zmq.POLLIN)
            self._by_descriptor[number] = client
        self._by_descriptor[descriptors[1]] = client
        if not fresh and client.link.fresh:
            client.link.farewell("unknown", "this keeper does not know the link")
            client.flush()
            self._forget(client)
        else:
            client.take(greeting, now, lambda event: self._on_event(client, event))

    def _forget(self, client: Client) -> None:
        self._clients.pop(client.link_id, None)
        self._detach(client, time.monotonic())

    def _hello(self) -> dict[str, Any]:
        return {
            "keeper": self.identity,
            "kernel_id": self.kernel_id,
            "kernel": self.facts(),
            "node": os.uname().nodename,
            "boot_id": boot_id(),
        }

    def _detach(self, client: Client, now: float) -> None:
        for descriptor in [d for d, owner in self._by_descriptor.items() if owner is client]:
            del self._by_descriptor[descriptor]
            try:
                self._poller.unregister(descriptor)
            except KeyError:
                pass  # the output side is only polled while it is blocked
        client.detach(now)

    def _flush(self, client: Client, now: float) -> None:
        was_blocked = client.blocked
        if not client.flush():
            self._detach(client, now)
        elif client.blocked != was_blocked:
            incoming, outgoing = client.descriptors
            if client.blocked:
                self._poller.register(outgoing, zmq.POLLOUT)
            elif outgoing != incoming:
                self._poller.unregister(outgoing)

    def _tell_all(self, content: dict[str, Any]) -> None:
        for client in self._clients.values():
            client.tell(content)

    def _on_event(self, client: Client, event: Event) -> None:
        if isinstance(event, Received):
            if event.channel in (SHELL, CONTROL, STDIN):
                self._ask(client.link_id, event.channel, list(event.parts))
            elif event.channel == KEEPER:
                self._on_request(client, bytes(event.parts[0]))
        elif isinstance(event, Attached):
            pass  # the reply is our own greeting, which is on its way
        elif isinstance(event, Parted):
            self._forget(client)
        elif isinstance(event, Failed):
            code = "unknown" if isinstance(event.error, LinkLostError) else "protocol"
            client.link.farewell(code, str(event.error))
            client.flush()
            if code == "unknown":
                self._forget(client)
            else:
                self._detach(client, time.monotonic())

    # -- what clients ask of the keeper itself ---------------------------------------------------------------

    def _on_request(self, client: Client, data: bytes) -> None:
        request = json.loads(data)
        number = request["id"]

        def reply(content: Reply) -> None:
            client.tell({"id": number, **content})

        actions: dict[str, Callable[[dict[str, Any], Callable[[Reply], None]], None]] = {
            "signal": self._do_signal,
            "stop": self._do_stop,
            "launch": self._do_launch,
            "finish": self._do_finish,
            "status": lambda _, reply: reply({"kernel": self.facts()}),
        }
        action = actions.get(request["do"])
        if action is None:
            reply({"error": f"this keeper cannot do {request['do']!r}"})
        else:
            action(request, reply)

    def _do_signal(self, request: dict[str, Any], reply: Callable[[Reply], None]) -> None:
        """Signal the kernel's process group, as a terminal would, or its process alone.

        With `cell`, the message id of an execute request, only while that one has no reply: what was meant for a cell
        must not hit a later one because the link was away meanwhile.
        """
        if self.exit is not None:
            return reply({"error": "the kernel has ended"})
        cell = request.get("cell")
        if cell is not None and cell not in self._asked and not self._is_waiting(cell):
            return reply({"skipped": "the cell that it was meant for had ended"})
        # It is our own child and not waited for yet, so the pid cannot have been given to another process.
        try:
            if request.get("group", True):
                os.killpg(self.pid, request["signum"])
            else:
                os.kill(self.pid, request["signum"])
        except OSError as error:
            return reply({"error": f"the signal could not be sent: {error.strerror}"})
        return reply({})

    def _is_waiting(self, message_id: str) -> bool:
        return any(json_part(parts, HEADER).get("msg_id") == message_id for _, _, parts in self._waiting)

    def _do_stop(self, request: dict[str, Any], reply: Callable[[Reply], None]) -> None:
        self._stop(
            float(request.get("ask_grace", 0)),
            float(request.get("term_grace", 2)),
            lambda report: reply({"report": report.to_dict(), "kernel": self.facts()}),
        )

    def _do_finish(self, request: dict[str, Any], reply: Callable[[Reply], None]) -> None:
        self._finish(
            "its client ended it",
            lambda report: reply({"report": report.to_dict(), "kernel": self.facts()}),
            float(request.get("term_grace", 2)),
        )

    def _do_launch(self, request: dict[str, Any], reply: Callable[[Reply], None]) -> None:
        """Start the kernel anew, in the same place, once nothing of the old one is left."""

        def launch(report: Report) -> None:
            if report.survivors:
                return reply({"error": "the old kernel could not be ended", "report": report.to_dict()})
            if self._drained_at is not None:
                self._drained_at = None
                self._drained()
            self._channels.remove_files()
            try:
                self._born(spawn(self.path, self.kernel_id, request["kernel"]))
            except OSError as error:
                where = f"{error.filename}: " if error.filename else ""
                return reply({"error": f"it could not be started: {where}{error.strerror or error}"})
            return reply({"kernel": self.facts()})

        self._stop(0.0, float(request.get("term_grace", 0)), launch)


def _peer_uid(connection: socket.socket) -> int | None:
    """Return the account at the other end, or None where the system does not say (the directory is private anyway)."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    uid: int = struct.unpack("3i", data)[1]
    return uid
