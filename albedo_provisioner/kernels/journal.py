"""Reading a keeper's journal: what ran on a kernel and all that came of it, whoever asked and whoever was away.

A reader is one more client of the kernel for a moment. It sends the kernel nothing, and others notice nothing of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from ..bundle.messages import CONTENT, HEADER, METADATA, json_part
from ..bundle.wire import IOPUB, Buffer
from ..errors import AlbedoError, KernelGoneError, LinkAwayError
from ..hosts.pool import HostPool
from .link import KernelLink
from .records import KernelRecords

CALL_TIMEOUT = 60.0
"""Seconds to wait for each of the keeper's answers; they are small, and the link may have to reattach meanwhile."""

_AT_ONCE = 8
"""Cells that are asked for at the same time, so that a distant host is not waited for once per cell."""

_LOOK_AGAIN = 5.0
"""Seconds after which a cell that is waited for is looked at again, should no news have come."""


@dataclass(frozen=True)
class Message:
    """A message of the kernel.

    Attributes:
        msg_type: such as "stream" or "execute_reply".
        content: its content.
        date: when the kernel sent it, by the clock of its host, ISO 8601; empty when it does not say.
    """

    msg_type: str
    content: dict[str, Any]
    date: str = ""


@dataclass(frozen=True)
class JournalCell:
    """One execute request and what the journal has of what came of it.

    Attributes:
        msg_id: the request's id.
        code: what was to be executed.
        cell_id: the notebook cell that the client named in the request's metadata (`cellId`), if it did.
        state: "queued", "running", "done", or "ended" when its kernel ended before it did.
        asked: when the keeper got the request: seconds since the epoch by the clock of the kernel's host.
        sent: when the client sent it, by the client's clock, ISO 8601; empty when it does not say.
        finished: when the reply came, as `asked`; None before.
        dropped: messages that were not kept because they were too many.
        store_history: whether it was to be counted; what is not comes from tools, not from a notebook's cell.
        messages: what the kernel said, in order, the reply among it.
    """

    msg_id: str
    code: str
    cell_id: str | None = None
    state: str = "done"
    asked: float = 0.0
    sent: str = ""
    finished: float | None = None
    dropped: int = 0
    store_history: bool = True
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True)
class NoCell:
    """A journal without the cell that was asked for.

    Attributes:
        adopted: the keeper has the kernel from one that was killed, and with it the journal until then went.
        given_up: older cells had to make room for newer ones.
        ended: the kernel has ended.
    """

    adopted: bool = False
    given_up: bool = True
    ended: bool = False


class _Visitor:
    """Owns a link for a question or two: takes the greeting and lets everything else pass (see `LinkOwner`)."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}
        self.lacks = NoCell()
        """What a cell means that the journal has not got."""
        self.news = asyncio.Event()
        """Set when a cell has come to its end, or the kernel's state has changed."""

    def received(self, channel: int, parts: list[memoryview]) -> None:
        """Output of the kernel; the journal has it too."""
        if channel == IOPUB and json_part(parts, HEADER).get("msg_type") == "status":
            self.news.set()

    def greeted(self, hello: dict[str, Any]) -> None:
        """Note what the kernel is doing."""
        self.facts = dict(hello["kernel"])
        if isinstance(known := hello.get("journal"), dict):  # keepers of before did not say
            self.lacks = NoCell(bool(known.get("adopted")), bool(known.get("given_up")))

    def told(self, event: dict[str, Any]) -> None:
        """Take the news, should there be some meanwhile."""
        if event.get("event") == "kernel":
            self.facts = dict(event["kernel"])
            self.news.set()

    def stepped(self, step: str, size: int = 0) -> None:
        """Nobody watches."""

    def let_in(self) -> None:
        """Nobody watches that either."""

    def forgotten(self, unsent: Collection[str]) -> None:
        """Nothing was asked of the kernel that could be missing."""

    def refused(self, error: AlbedoError) -> None:
        """Whoever waits for the call under way is told by its timeout."""

    def gone(self, error: KernelGoneError) -> None:
        """The call under way fails with this."""

    def replaced(self, why: str) -> None:
        """The call under way fails with this."""


@asynccontextmanager
async def visiting(
    host: str | None, kernel_id: str, python: str | None, client: str = "jupyter albedo"
) -> AsyncIterator[tuple[KernelLink, _Visitor]]:
    """Link to a kernel's keeper for a moment, as a client of this name; on the I/O thread.

    Yields:
        the link, for calls, and the visitor, who has the kernel's facts (see `bundle/kernel.py`).

    Raises:
        KernelGoneError: the host has no such kernel.
        AlbedoError: the host cannot be asked.
    """
    visitor = _Visitor()
    node = KernelRecords().node(kernel_id)
    link = KernelLink(HostPool.get().transport_for(host), kernel_id, client, python, visitor, node)
    try:
        await link.attach()
        yield link, visitor
    finally:
        await link.close()


async def kernel_facts(host: str | None, kernel_id: str, python: str | None) -> dict[str, Any]:
    """Return what a kernel's keeper says of it (see `bundle/kernel.py`); on the I/O thread.

    Raises:
        AlbedoError: as `visiting`.
    """
    async with visiting(host, kernel_id, python) as (_, visitor):
        return visitor.facts


async def read_journal(host: str | None, kernel_id: str, python: str | None) -> list[JournalCell]:
    """Return all cells that a kernel's journal has, oldest first, with their messages; on the I/O thread.

    Raises:
        KernelGoneError: the host has no such kernel.
        AlbedoError: the host cannot be asked, or broke off and did not come back in time.
    """
    async with visiting(host, kernel_id, python) as (link, visitor):
        facts = visitor.facts
        summaries = (await link.call("cells", CALL_TIMEOUT))["cells"]
        slots = asyncio.Semaphore(_AT_ONCE)

        async def read(summary: dict[str, Any]) -> JournalCell | None:
            async with slots:
                return await _read_cell(link, summary["msg_id"], facts)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_quietly(read(summary))) for summary in summaries]
    cells = []
    for task in tasks:
        found = task.result()
        if isinstance(found, AlbedoError):
            raise found
        if found is not None:
            cells.append(found)
    return cells


async def await_cell(host: str | None, kernel_id: str, python: str | None, msg_id: str) -> JournalCell | NoCell:
    """Return a cell of a kernel's journal once it has come to its end, or what it means that it is not there.

    Raises:
        KernelGoneError: the host has no such kernel.
        AlbedoError: the host cannot be asked, or broke off and did not come back in time.
    """
    async with visiting(host, kernel_id, python) as (link, visitor):
        while True:
            visitor.news.clear()
            cell = await _read_cell(link, msg_id, visitor.facts)
            if cell is None:
                # A keeper that has the kernel from another one may not have noticed yet that it is gone.
                facts = (await link.call("status", CALL_TIMEOUT))["kernel"]
                return replace(visitor.lacks, ended=facts["state"] == "exited")
            if cell.state in ("done", "ended"):
                return cell
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_AGAIN):
                    await visitor.news.wait()


async def _quietly(reading: Coroutine[Any, Any, JournalCell | None]) -> JournalCell | AlbedoError | None:
    """Await, and return our errors instead of raising them: out of a task group they would come wrapped in a group."""
    try:
        return await reading
    except AlbedoError as error:
        return error


async def _read_cell(link: KernelLink, msg_id: str, facts: dict[str, Any]) -> JournalCell | None:
    """Read one cell, page by page; None when the journal has given it up meanwhile."""
    rows: list[Sequence[Buffer]] = []
    first: int | None = 0
    summary: dict[str, Any] = {}
    while first is not None:
        try:
            answer = await link.call("cell", CALL_TIMEOUT, msg_id=msg_id, first=first)
        except (KernelGoneError, LinkAwayError):
            raise
        except AlbedoError:
            return None  # the keeper's refusal: newer cells took its place between two pages
        summary = answer["cell"]
        parts = answer["parts"]
        at = 0
        for _, count in answer["messages"]:
            rows.append(parts[at : at + count])
            at += count
        first = answer.get("next")
    return decode_cell(summary, rows, facts)


def decode_cell(summary: dict[str, Any], rows: Sequence[Sequence[Buffer]], facts: dict[str, Any]) -> JournalCell:
    """Return a cell from what the keeper says of it and the raw parts of its messages, the request first.

    Args:
        summary: see `bundle/journal.py`.
        rows: the messages.
        facts: the kernel's, see `bundle/kernel.py`.
    """
    request, messages = rows[0], rows[1:]
    state = str(summary["state"])
    if state != "done" and (facts.get("state") == "exited" or float(facts.get("started") or 0) > summary["asked"]):
        state = "ended"  # the process that it was given to is not there any more, or is another one
    cell_id = json_part(request, METADATA).get("cellId")
    content = json_part(request, CONTENT)
    return JournalCell(
        msg_id=str(summary["msg_id"]),
        code=str(content.get("code", "")),
        cell_id=cell_id if isinstance(cell_id, str) else None,
        state=state,
        asked=float(summary["asked"]),
        sent=str(json_part(request, HEADER).get("date") or ""),
        finished=summary["finished"],
        dropped=int(summary["dropped"]),
        store_history=bool(content.get("store_history", True)),
        messages=tuple(_message(parts) for parts in messages),
    )


def _message(parts: Sequence[Buffer]) -> Message:
    header = json_part(parts, HEADER)
    return Message(str(header.get("msg_type", "")), json_part(parts, CONTENT), str(header.get("date") or ""))
