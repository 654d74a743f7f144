"""The relay: local sockets to which ordinary Jupyter clients connect as if they were the kernel's own.

Messages pass as the raw parts they came in, both ways; nothing is decoded on the way but the headers of requests and
replies on shell, so that whoever waits for a reply can be told when there will be none.
"""

from __future__ import annotations

import asyncio
import hmac
import os
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import UTC, datetime
from typing import Any

import zmq
from jupyter_client.session import Session

from ..bundle.messages import DELIMITER, HEADER, PARENT, json_part
from ..bundle.wire import CONTROL, IOPUB, SHELL, STDIN, Buffer
from .cell_ends import CellEnds
from .endings import in_background
from .endpoints import HEARTBEAT, Addresses
from .front import REPLY_LOST, FrontMaker, Send
from .publisher import PATIENCE, Publisher

_LAST_WORDS = 1000
"""Milliseconds for clients to take what they were told last, where the sockets are closed after that."""

_contexts: dict[int, zmq.Context[zmq.Socket[bytes]]] = {}


def _shared_context() -> zmq.Context[zmq.Socket[bytes]]:
    """Return the one zmq context of all relays of the process; a forked child must not touch its parent's."""
    context = _contexts.get(os.getpid())
    if context is None:
        context = _contexts[os.getpid()] = zmq.Context()
        context.max_sockets = 10_000
        context.blocky = False
    return context


def hand_out_the_rest() -> None:
    """Wait until the clients of closed relays have what was still on its way to them, as far as `linger` allows.

    For a process that ends with its kernel; no relay can be made in it after this.
    """
    context = _contexts.get(os.getpid())
    if context is not None:
        context.term()


def relay_at(endpoints: Addresses, on_shutdown: Callable[[], None] = lambda: None, guests: bool = False) -> FrontMaker:
    """Return what makes a relay with its sockets at `endpoints`; see `Relay` for `on_shutdown` and `guests`."""

    def make(
        key: bytes, scheme: str, send: Send, answers: Callable[[], Awaitable[bool]], paused: Callable[[bool], None]
    ) -> Relay:
        return Relay(endpoints, key, scheme, send, answers, paused, on_shutdown, guests)

    return make


class Relay:
    """One kernel's local sockets; see `Front`. Used on the I/O thread's loop.

    Args:
        endpoints: where they are.
        key: the key that the kernel and its clients sign with.
        signature_scheme: and how.
        send: called with a channel and a message's parts, from a client to the kernel.
        answers: says, within a moment, whether the kernel's host answers.
        paused: called with True when messages for clients should wait because one of them reads too slowly, and with
            False when they may come again.
        on_shutdown: called when a client's request to end the kernel is held back here, as its host does not answer.
        guests: whether its clients may not end the kernel, as it is another's.
    """

    def __init__(
        self,
        endpoints: Addresses,
        key: bytes,
        signature_scheme: str,
        send: Send,
        answers: Callable[[], Awaitable[bool]],
        paused: Callable[[bool], None],
        on_shutdown: Callable[[], None] = lambda: None,
        guests: bool = False,
    ) -> None:
        self.alive = True
        """Whether heartbeats are answered."""
        self.greeting: str | None = None
        """A line for the next cell that is run, on its stderr."""
        self.was_busy = False
        """Whether the kernel ran a cell of somebody else's when we came, and has answered nothing on shell since."""
        self._told_of_it: set[str] | None = None  # sessions that were told that a client has missed something
        self._endpoints = endpoints
        self._linger = 0  # milliseconds
        self._send = send
        self._answers = answers
        self._on_shutdown = on_shutdown
        self._guests = guests
        self._refused = "", datetime.min.replace(tzinfo=UTC)  # whose request to end the kernel was refused, and when
        self._session = Session(key=key, signature_scheme=signature_scheme, username="albedo")
        self._sockets: dict[int, zmq.Socket[bytes]] = {}
        self._asked: dict[str, tuple[list[bytes], dict[str, Any]]] = {}  # by message id: who asked, and the header
        self._ends = CellEnds()
        # By id, requests that were sent on shell and on control: whether one was answered.
        self._asked_twice: dict[str, bool] = {}
        self._probes: dict[str, set[str]] = {}  # by the probe's message id: what had been asked before it
        loop = asyncio.get_running_loop()
        for channel in (SHELL, CONTROL, STDIN, IOPUB, HEARTBEAT):
            early = endpoints.early_socket(channel)
            socket = early or _shared_context().socket(zmq.XPUB if channel == IOPUB else zmq.ROUTER)
            socket.linger = 0
            socket.sndhwm = socket.rcvhwm = 0
            if channel == IOPUB:
                self._publisher = Publisher(socket, paused, self._left_behind, self._idle)
            else:
                socket.router_handover = True  # as ipykernel does: a client that reconnects keeps its identity
            if early is None:
                endpoints.bind(channel, socket)
            self._sockets[channel] = socket
            loop.add_reader(socket.FD, self._take, channel)
            if early is not None:
                loop.call_soon(self._take, channel)  # what has come before is not told of
        endpoints.publish()

    def connection_info(self) -> dict[str, Any]:
        """Return what clients need to connect."""
        self._endpoints.publish()
        return self._endpoints.connection_info(self._session.key, self._session.signature_scheme)

    def close(self) -> None:
        """Close the sockets and remove their files."""
        loop = asyncio.get_running_loop()
        self._publisher.close()
        for socket in self._sockets.values():
            loop.remove_reader(socket.FD)
            socket.close(max(self._linger, self._endpoints.linger))
        self._sockets = {}
        self._endpoints.remove()

    # -- from clients ----------------------------------------------------------------------------------------

    def _take(self, channel: int) -> None:
        """Take all that has come on a channel: zmq's descriptor tells of the first message only."""
        socket = self._sockets.get(channel)
        while socket is not None and _readable(socket):
            parts = socket.recv_multipart(zmq.NOBLOCK)
            if channel == HEARTBEAT:
                if self.alive:
                    socket.send_multipart(parts, zmq.NOBLOCK)
            elif channel != IOPUB:  # what comes there is a subscription, which zmq looks after itself
                if channel == SHELL:
                    self._note_request(parts)
                elif channel == CONTROL and _is_shutdown(parts):
                    in_background(self._pass_shutdown(parts))
                    continue
                self._send(channel, parts)

    async def _pass_shutdown(self, parts: list[bytes]) -> None:
        """Pass a request to end the kernel on, unless it would come much later.

        Ending a kernel is seen to by its provisioner, exactly once. A late one would hit a kernel whose restart was
        refused, or the one that takes a dead kernel's place. A break may not be noticed yet, so the host is asked.
        """
        passes = not self._guests and self.alive and await self._answers()
        if self._was_refused(json_part(parts, HEADER)):
            return  # whoever sent it knows
        if passes:
            self._send(CONTROL, parts)
        else:
            self._on_shutdown()

    def was_interrupted(self, message_ids: Collection[str]) -> None:
        """See `Front`."""
        for message_id in message_ids:
            if message_id in self._asked:
                self._ends.interrupted(message_id)

    def refuse_end(self, session: str) -> None:
        """See `Front`. What was asked for may still be on its way through zmq."""
        self._refused = session, datetime.now(UTC)

    def _was_refused(self, header: dict[str, Any]) -> bool:
        """Whether a request, by its header, is of a client that was refused since."""
        session, when = self._refused
        if header.get("session") != session:
            return False
        try:
            sent = datetime.fromisoformat(str(header.get("date")))
        except ValueError:
            return False  # no manager's, which put the time into all they send
        return (sent if sent.tzinfo else sent.replace(tzinfo=UTC)) <= when

    def _left_behind(self) -> None:
        self._told_of_it = set()

    def _note_request(self, parts: list[bytes]) -> None:
        header = json_part(parts, HEADER)
        # Other messages on shell, such as those of comms, have no reply.
        if self.was_busy and header.get("msg_type") == "kernel_info_request":
            self._ask_on_control(parts, header)
        if "msg_id" in header and str(header.get("msg_type")).endswith("_request"):
            self._asked[header["msg_id"]] = (parts[: parts.index(DELIMITER)], header)
            if header.get("msg_type") == "execute_request":
                self._greet(header)

    def _ask_on_control(self, parts: list[bytes], header: dict[str, Any]) -> None:
        """Ask on control as well what a client asks first of all and waits for; the first answer will be its own.

        On shell, a kernel answers when its cell has ended. A Jupyter Server opens no page's connection before.
        """
        at = parts.index(DELIMITER)
        signature, signed = parts[at + 1], parts[at + 2 : at + 6]
        if len(signed) < 4 or not hmac.compare_digest(signature, self._session.sign(signed)):
            return  # it is no client's
        self._asked_twice[str(header.get("msg_id"))] = False
        signed[2] += b" "  # to the metadata: kernels take no second message with the same signature
        self._send(CONTROL, [*parts[: at + 1], self._session.sign(signed), *signed])

    def _greet(self, header: dict[str, Any]) -> None:
        """Tell with a cell that begins what its client should know."""
        if self.greeting is not None:
            self.tell(header, self.greeting + "\n")
            self.greeting = None
        session = str(header.get("session"))
        if self._told_of_it is not None and session not in self._told_of_it:
            # zmq does not say who was left behind. Whoever runs a cell reads again, and takes this note.
            self._told_of_it.add(session)
            self.tell(
                header,
                f"[albedo] A client of this kernel that read nothing for {PATIENCE:g} s may lack output of earlier "
                "cells; those that did read have it all.\n",
            )

    # -- to clients ------------------------------------------------------------------------------------------

    def deliver(self, channel: int, parts: Sequence[Buffer]) -> None:
        """Hand a message of the kernel to the clients that it is for."""
        if channel == SHELL or (channel == CONTROL and self._asked_twice):
            message_id = json_part(parts, PARENT).get("msg_id", "")
            self.was_busy = self.was_busy and channel != SHELL
            if message_id in self._asked_twice:
                channel = SHELL
                answered, self._asked_twice[message_id] = self._asked_twice[message_id], True
                if answered:
                    del self._asked_twice[message_id]
                    return
        if channel == SHELL:
            if message_id in self._asked:
                self._ends.replied(self._asked.pop(message_id)[1])
            if message_id in self._probes:
                self._probed(self._probes.pop(message_id))
                return
        socket = self._sockets.get(channel)
        if socket is not None:
            if channel == IOPUB:
                if self._ends.published(parts, self._asked):
                    self._publisher.send(parts)
            else:
                socket.send_multipart(parts, zmq.NOBLOCK, copy=False)
            # Sending uses up zmq's sign that something has come.
            if _readable(socket):
                asyncio.get_running_loop().call_soon(self._take, channel)

    @property
    def running(self) -> list[dict[str, Any]]:
        """The headers of the execute requests that have no reply yet, oldest first."""
        return [header for _, header in self._asked.values() if header.get("msg_type") == "execute_request"]

    def tell(self, parent: dict[str, Any], text: str) -> None:
        """Publish a line on stderr as part of a cell's output; `parent` is the header of the cell's request."""
        self._say(IOPUB, [b"stream.stderr"], "stream", {"name": "stderr", "text": text}, parent)

    def probe(self, spare: Collection[str]) -> None:
        """Replies may have been lost: ask the kernel something, and when that is answered give up on what came before.

        Kernels answer shell requests in order, so a reply that is not here by then will never come.
        """
        message = self._session.msg("kernel_info_request", {})
        self._probes[message["header"]["msg_id"]] = set(self._asked).difference(spare)
        self._send(SHELL, self._session.serialize(message, [b"albedo-probe"]))

    def _probed(self, asked_before: set[str]) -> None:
        self.give_up(REPLY_LOST, asked_before)

    def give_up(self, why: str | None, only: set[str] | None = None) -> list[str]:
        """There will be no more replies: have no client wait for one.

        Args:
            why: what the running cells are told, on stderr and in their reply; None tells them nothing.
            only: ids of the requests to give up; None for all.

        Returns:
            the ids of the requests whose clients were told.
        """
        return self._give_up(why, only, "KernelDied" if only is None else "ReplyLost")

    def end(self, why: str, wanted: bool, only: set[str] | None = None) -> list[str]:
        """The kernel has ended; see `Front`. Which client wanted that, if one did, is not known: all are told."""
        for header in self._ends.without_idle():
            self._say_idle(header)
        return self._give_up(why, only, "KernelDied")

    def _give_up(self, why: str | None, only: set[str] | None, ename: str) -> list[str]:
        told = []
        for message_id in [known for known in self._asked if only is None or known in only]:
            identities, header = self._asked.pop(message_id)
            said = self._ends.of(message_id)
            if why is None or header.get("msg_type") != "execute_request":
                continue
            self._linger = _LAST_WORDS
            if said.idle:
                error = said.error or _reply_lost(why, said.interrupted)
            else:
                error = {"ename": ename, "evalue": why, "traceback": [why]}
                self.tell(header, why + "\n")
                if said.error is None:
                    self._say(IOPUB, [b"error"], "error", error, header)
            reply = {**error, "status": "error", "execution_count": 0}
            self._say(SHELL, identities, "execute_reply", reply, header)
            if not said.idle:
                self._say_idle(header)
            told.append(message_id)
        return told

    def _say_idle(self, parent: dict[str, Any]) -> None:
        self.deliver(IOPUB, self._idle(parent))
        self._ends.told(parent["msg_id"])

    def _idle(self, parent: dict[str, Any]) -> list[bytes]:
        return self._message([b"status"], "status", {"execution_state": "idle"}, parent)

    def _say(
        self, channel: int, idents: list[bytes], msg_type: str, content: dict[str, Any], parent: dict[str, Any]
    ) -> None:
        self.deliver(channel, self._message(idents, msg_type, content, parent))

    def _message(
        self, idents: list[bytes], msg_type: str, content: dict[str, Any], parent: dict[str, Any]
    ) -> list[bytes]:
        return self._session.serialize(self._session.msg(msg_type, content, parent={"header": parent}), idents)


def _reply_lost(why: str, interrupted: bool) -> dict[str, Any]:
    """Return the error for a cell that the kernel is done with, of which it published none, and whose reply is lost."""
    came = (
        "This was interrupted, and whether it had come to its end by then is not known: the kernel's reply was lost."
        if interrupted
        else "This came to its end, and only the kernel's reply was lost."
    )
    return {"ename": "ReplyLost", "evalue": f"{came} {why}", "traceback": [f"{came} {why}"]}


def _is_shutdown(parts: Sequence[Buffer]) -> bool:
    return json_part(parts, HEADER).get("msg_type") == "shutdown_request"


def _readable(socket: zmq.Socket[bytes]) -> bool:
    return bool(int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)
