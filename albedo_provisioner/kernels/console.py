"""Running code on a kernel from this very process, without a socket in between."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from jupyter_client.session import Session

from ..bundle.messages import CONTENT, HEADER, PARENT, json_part, raw_part
from ..bundle.wire import CONTROL, IOPUB, SHELL, Buffer
from ..errors import AlbedoError
from .front import REPLY_LOST, Send

log = logging.getLogger("albedo_provisioner.kernels")

Heard = Callable[[str, dict[str, Any]], None]
"""Told a message's type and content."""

_IDENTITY = b"albedo-console"

_STATUS_PATIENCE = 5.0
"""Seconds from the answer to a question to the status that belongs to it, after which that was lost."""


class Execution:
    """An execute request under way. Await `finished`.

    Attributes:
        msg_id: the request's id.
        name: what its asker calls it.
        header: its header.
        reply: the content of the kernel's reply, once it is there.
        began: whether the kernel has said that it runs.
        began_at: when we heard that, by the monotonic clock; 0.0 before.
        heard_at: when anything came for it last, by the monotonic clock; 0.0 before.
        given_up: why there will be no reply, in words; None while there may be one.
        finished: set once both the reply and the idle status have come, or it was given up.
    """

    def __init__(self, msg_id: str, header: dict[str, Any], heard: Heard, name: str | None = None) -> None:
        self.msg_id = msg_id
        self.name = name or msg_id
        self.header = header
        self.heard = heard
        self.reply: dict[str, Any] | None = None
        self.began = False
        self.began_at = 0.0
        self.heard_at = 0.0
        self.given_up: str | None = None
        self.finished = asyncio.Event()
        self._idle = False

    def take_output(self, msg_type: str, content: dict[str, Any]) -> None:
        """Take what the kernel publishes for it."""
        self.heard_at = time.monotonic()
        if msg_type == "execute_input":
            self.began, self.began_at = True, self.heard_at
        elif msg_type == "status":
            self._idle = self._idle or content.get("execution_state") == "idle"
            self._see()
        else:
            self.hear(msg_type, content)

    def hear(self, msg_type: str, content: dict[str, Any]) -> None:
        """Tell whoever listens; that they cannot take it is nobody else's loss."""
        try:
            self.heard(msg_type, content)
        except Exception:
            log.exception("output of cell %s could not be taken", self.msg_id)

    def take_reply(self, content: dict[str, Any]) -> None:
        """Take the kernel's answer; in it may be what a pager is to show."""
        self.reply = content
        self.hear("execute_reply", content)
        self._see()

    def give_up(self, why: str) -> None:
        """Take note that no more will come."""
        self.given_up = why
        self.finished.set()

    def end(self) -> None:
        """Take note that no more will come, where the reply is there: the idle status was lost."""
        self._idle = True
        self._see()

    def _see(self) -> None:
        if self._idle and self.reply is not None:
            self.finished.set()


class Followed(Execution):
    """A cell that an earlier process has asked for: its reply goes to that one, so its idle status is its end."""

    def __init__(self, msg_id: str, name: str) -> None:
        super().__init__(msg_id, {"msg_id": msg_id}, lambda _type, _content: None, name)

    def _see(self) -> None:
        if self._idle:
            self.finished.set()


class _Probe:
    """A question to the kernel, and what had been asked before it.

    What comes on shell and on iopub is in order, and neither waits for the other: all that came of what was asked
    before is here once the answer has come on the one and the idle status on the other.

    Attributes:
        before: ids of what was asked before.
        replied: whether the answer has come.
        idle: whether the status has.
    """

    def __init__(self, before: set[str]) -> None:
        self.before = before
        self.replied = False
        self.idle = False


class Console:
    """A kernel's front for a program in this process; see `Front`.

    Args:
        key: the key that the kernel and its clients sign with.
        signature_scheme: and how.
        send: called with a channel and a message's parts, for the kernel.
        late: told what comes for a cell after it has finished, from threads that it left behind.
    """

    def __init__(self, key: bytes, signature_scheme: str, send: Send, late: Heard | None = None) -> None:
        self.alive = True
        self.greeting: str | None = None
        self.was_busy = False
        self._send = send
        self._late = late
        self._session = Session(key=key, signature_scheme=signature_scheme, username="albedo")
        self._cells: dict[str, Execution] = {}
        self._followed: dict[str, Followed] = {}
        self._replies: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._probes: dict[str, _Probe] = {}
        self._own: dict[str, None] = {}  # ids of the newest cells of ours that have finished
        self._parent = b""
        self._parent_id = ""

    # -- asking ----------------------------------------------------------------------------------------------

    def execute(
        self,
        code: str,
        heard: Heard,
        *,
        msg_id: str | None = None,
        name: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Execution:
        """Have code run after all that was asked before.

        Args:
            code: the code.
            heard: told the type and content of every message of output.
            msg_id: id of the request; None for a fresh one.
            name: what its asker calls it, for themselves; None for the request's id.
            metadata: the request's metadata.
        """
        content = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": False,
        }
        message = self._session.msg("execute_request", content, metadata=metadata)
        if msg_id is not None:
            message["msg_id"] = message["header"]["msg_id"] = msg_id
        header = message["header"]
        execution = Execution(header["msg_id"], header, heard, name)
        self._cells[execution.msg_id] = execution
        if self.greeting is not None:
            execution.hear("stream", {"name": "stderr", "text": self.greeting + "\n"})
            self.greeting = None
        self._send(SHELL, self._session.serialize(message, [_IDENTITY]))
        return execution

    def follow(self, msg_id: str, name: str) -> Followed:
        """Return a cell that an earlier process has asked for, to be told when it has come to its end.

        Args:
            msg_id: id of its request.
            name: what its asker called it.
        """
        self._followed[msg_id] = Followed(msg_id, name)
        return self._followed[msg_id]

    async def request(self, msg_type: str, content: dict[str, Any], channel: int = SHELL) -> dict[str, Any]:
        """Ask the kernel something else, such as `complete_request`, and return the reply's content.

        Raises:
            AlbedoError: there will be no reply.
        """
        message = self._session.msg(msg_type, content)
        reply: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._replies[message["header"]["msg_id"]] = reply
        self._send(channel, self._session.serialize(message, [_IDENTITY]))
        try:
            return await reply
        finally:
            self._replies.pop(message["header"]["msg_id"], None)

    # -- Front -----------------------------------------------------------------------------------------------

    @property
    def running(self) -> list[dict[str, Any]]:
        """The headers of the cells that have no reply yet, oldest first."""
        return [cell.header for cell in self._cells.values() if cell.reply is None]

    def deliver(self, channel: int, parts: Sequence[Buffer]) -> None:
        """Take a message of the kernel."""
        if channel == IOPUB:
            self._take_output(parts)
        elif channel in (SHELL, CONTROL):
            self._take_reply(parts)

    def tell(self, parent: dict[str, Any], text: str) -> None:
        """Take a line for stderr of a cell."""
        cell = self._cells.get(str(parent.get("msg_id")))
        if cell is not None:
            cell.hear("stream", {"name": "stderr", "text": text})

    def probe(self, spare: Collection[str]) -> None:
        """Ask the kernel something, and when that is answered give up on what came before: it answers in order."""
        message = self._session.msg("kernel_info_request", {})
        self._probes[message["header"]["msg_id"]] = _Probe({*self._cells, *self._replies}.difference(spare))
        self._send(SHELL, self._session.serialize(message, [_IDENTITY]))

    def give_up(self, why: str | None, only: set[str] | None = None) -> list[str]:
        """There will be no more replies; see `Front`."""
        told = []
        for msg_id in [known for known in self._cells if only is None or known in only]:
            cell = self._cells[msg_id]
            if cell.reply is None:
                told.append(msg_id)
            self._close(cell)
            cell.give_up(why or "The kernel was ended.")
        for msg_id in [known for known in self._followed if only is None or known in only]:
            followed = self._followed.pop(msg_id)
            followed.give_up(why or "The kernel was ended.")
        for msg_id, reply in self._replies.items():
            if not reply.done() and (only is None or msg_id in only):
                reply.set_exception(AlbedoError(why or "The kernel was ended."))
        return told

    def end(self, why: str, wanted: bool, only: set[str] | None = None) -> list[str]:
        """The kernel has ended; see `Front`. The program that wanted that knows why."""
        return self.give_up(None if wanted else why, only)

    def was_interrupted(self, message_ids: Collection[str]) -> None:
        """A program is told nothing of how far its code came that has no reply."""

    def refuse_end(self, session: str) -> None:
        """Nobody asks for that through it: there are no sockets here."""

    def connection_info(self) -> dict[str, Any]:
        """There are no sockets here.

        Raises:
            AlbedoError: always.
        """
        raise AlbedoError("This kernel is used by a program itself, without sockets for other clients.")

    def close(self) -> None:
        """Have nobody wait any more."""
        self.give_up(None)

    # -- from the kernel -------------------------------------------------------------------------------------

    def _take_output(self, parts: Sequence[Buffer]) -> None:
        raw = raw_part(parts, PARENT)
        if raw is None:
            return
        if raw != self._parent:  # most messages have the same parent as the one before
            self._parent, self._parent_id = raw, str(json_part(parts, PARENT).get("msg_id"))
        cell = self._cells.get(self._parent_id) or self._followed.get(self._parent_id)
        probe = self._probes.get(self._parent_id)
        if cell is None and probe is None and self._parent_id not in self._own:
            return  # another client's
        msg_type = str(json_part(parts, HEADER).get("msg_type"))
        content = json_part(parts, CONTENT)
        if cell is not None:
            cell.take_output(msg_type, content)
            if cell.finished.is_set():
                self._close(cell)
        elif probe is not None:
            probe.idle = probe.idle or content.get("execution_state") == "idle"
            self._see_probe(self._parent_id)
        elif msg_type != "status" and self._late is not None:
            self._late(msg_type, content)

    def _take_reply(self, parts: Sequence[Buffer]) -> None:
        msg_id = str(json_part(parts, PARENT).get("msg_id"))
        if msg_id in self._probes:
            self._probes[msg_id].replied = True
            # Where the status was lost, it is not waited for for ever.
            asyncio.get_running_loop().call_later(_STATUS_PATIENCE, self._see_probe, msg_id, True)
            self._see_probe(msg_id)
        elif msg_id in self._cells:
            cell = self._cells[msg_id]
            cell.take_reply(json_part(parts, CONTENT))
            if cell.finished.is_set():
                self._close(cell)
        elif msg_id in self._replies and not self._replies[msg_id].done():
            self._replies[msg_id].set_result(json_part(parts, CONTENT))

    def _see_probe(self, msg_id: str, in_any_case: bool = False) -> None:
        """Once all has come that was to come before a probe's answer, have nobody wait for it any more."""
        probe = self._probes.get(msg_id)
        if probe is None or not probe.replied or not (probe.idle or in_any_case):
            return
        del self._probes[msg_id]
        for cell in [self._cells[known] for known in probe.before if known in self._cells]:
            if cell.reply is not None:
                cell.end()
                self._close(cell)
        self.give_up(REPLY_LOST, probe.before)

    def _close(self, cell: Execution) -> None:
        self._cells.pop(cell.msg_id, None)
        self._followed.pop(cell.msg_id, None)
        self._own[cell.msg_id] = None
        if len(self._own) > 1000:
            del self._own[next(iter(self._own))]
