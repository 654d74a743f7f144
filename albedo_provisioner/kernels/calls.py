"""Answering what a kernel's code asks of us: the calls that its keeper passes on (`bundle/callers.py`).

Each call is done once. It may come again, by the same id: when the keeper was killed before our answer had passed, the
kernel asks that keeper's successor. Then the work that is under way goes on, or its answer is given again.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..bundle.wire import MAX_BLOBS, MAX_CALL, Buffer
from ..errors import AlbedoError, in_words

log = logging.getLogger("albedo_provisioner.kernels")

_MOST_KNOWN = 10_000
"""Ids to remember of calls that were answered."""

_MOST_KEPT = 8 << 20
"""Bytes of answers to keep, should they be asked for again; the newest is kept whatever its size."""


@dataclass(frozen=True)
class Call:
    """A call of a kernel's code.

    Attributes:
        id: its id; the same when it is asked again, of whatever process.
        kind: what kind of call it is.
        cell: the message id of the cell in whose name it is made; empty when it is none's. What a thread calls is in
            the name of the cell that started the thread.
        arguments: what goes with it.
        blobs: bytes that go with it.
    """

    id: str
    kind: str
    cell: str
    arguments: dict[str, Any]
    blobs: tuple[bytes, ...] = ()


Handler = Callable[[Call], Awaitable[tuple[dict[str, Any], Sequence[Buffer]]]]
"""Does a call, on the I/O thread's loop, and returns the answer: JSON and blobs. The words of an `AlbedoError` are what
the caller is told as a refusal. It is cancelled when nobody waits any more, as after an interrupt of the cell."""


class Calls:
    """The calls of one kernel that this process answers. Used on the I/O thread's loop.

    Args:
        send: called with the parts of each answer.
    """

    def __init__(self, send: Callable[[list[Buffer]], None]) -> None:
        self.name = ""
        """Under which our cells name us, and a process in our place will be known."""
        self._send = send
        self._handlers: dict[str, Handler] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._answers: OrderedDict[str, list[Buffer] | None] = OrderedDict()  # None: it is not kept any more
        self._kept = 0

    @property
    def kinds(self) -> list[str]:
        """The kinds of calls that are answered here."""
        return sorted(self._handlers)

    def serve(self, kind: str, handler: Handler) -> None:
        """Have calls of a kind answered by `handler`."""
        self._handlers[kind] = handler

    def take(self, parts: Sequence[memoryview]) -> None:
        """Take a call, or word that nobody waits for one any more."""
        head = json.loads(bytes(parts[0]))
        if "cancel" in head:
            task = self._tasks.get(head["cancel"])
            if task is not None:
                task.cancel()
            return
        call_id = str(head["call"])
        if call_id in self._tasks:
            return  # asked again; its answer goes to whoever asks when it is there
        if call_id in self._answers:
            self._send(self._answers[call_id] or self._refusal(call_id, "it was done, but its answer was lost"))
            return
        task = self._tasks[call_id] = asyncio.get_running_loop().create_task(self._do(head, parts))
        task.add_done_callback(lambda _: self._tasks.pop(call_id, None))

    def close(self) -> None:
        """Give up on what is under way."""
        for task in self._tasks.values():
            task.cancel()

    async def _do(self, head: dict[str, Any], parts: Sequence[memoryview]) -> None:
        call_id, kind = str(head["call"]), str(head["kind"])
        try:
            answer = await self._answer(Call(call_id, kind, str(head["cell"]), *_content(parts)))
        except AlbedoError as error:
            answer = self._refusal(call_id, str(error))
        except Exception as error:
            log.exception("a call of kind %s failed", kind)
            answer = self._refusal(call_id, f"answering it failed: {in_words(error)}")
        self._keep(call_id, answer)
        self._send(answer)

    async def _answer(self, call: Call) -> list[Buffer]:
        handler = self._handlers.get(call.kind)
        if handler is None:
            raise AlbedoError(f"nobody answers calls of kind {call.kind} here")
        result, blobs = await handler(call)
        answer: list[Buffer] = [json.dumps({"call": call.id}).encode(), json.dumps(result).encode(), *blobs]
        if (size := _size(answer)) > MAX_CALL or len(blobs) > MAX_BLOBS:
            raise AlbedoError(
                f"the answer is too large: {size} bytes in {len(blobs)} blobs, and {MAX_CALL} bytes in {MAX_BLOBS} "
                "blobs are the most"
            )
        return answer

    @staticmethod
    def _refusal(call_id: str, why: str) -> list[Buffer]:
        return [json.dumps({"call": call_id, "error": why}).encode(), b"{}"]

    def _keep(self, call_id: str, parts: list[Buffer]) -> None:
        self._answers[call_id] = parts
        self._kept += _size(parts)
        for known, kept in self._answers.items():
            if self._kept <= _MOST_KEPT or known == call_id:
                break
            if kept is not None:
                self._kept -= _size(kept)
                self._answers[known] = None
        while len(self._answers) > _MOST_KNOWN:
            _, dropped = self._answers.popitem(last=False)
            self._kept -= _size(dropped or [])


def _content(parts: Sequence[memoryview]) -> tuple[dict[str, Any], tuple[bytes, ...]]:
    """Return a call's arguments and blobs. They are the kernel's own words: nobody has looked at them on the way."""
    try:
        arguments = json.loads(bytes(parts[1]))
    except (ValueError, RecursionError) as error:
        raise AlbedoError(f"the call's arguments are no JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise AlbedoError("the call's arguments are no JSON object")
    return arguments, tuple(bytes(part) for part in parts[2:])


def _size(parts: Sequence[Buffer]) -> int:
    return sum(map(len, parts))
