"""The newest cells, whole: request, every output, reply. What a client that was not there can ask for.

The parts of a message are shared with the links' outboxes, so that a cell costs its memory once while both hold it.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from typing import Any

from .messages import CONTENT, HEADER, METADATA, PARENT, json_part, raw_part
from .wire import SHELL, Buffer

Message = tuple[int, Sequence[Buffer]]
"""A channel and raw parts."""

MOST_CELLS = 200
MOST_BYTES = 32 << 20

_SHARE = 2  # one cell may have half of all bytes: half of that for its beginning, half for its end


class Cell:
    """One execute request and what came of it.

    Attributes:
        request: the raw parts of the request, from the delimiter on.
        dropped: messages that were not kept because there were too many, out of its middle.
        state: "queued", "running" or "done".
    """

    __slots__ = ("_head", "_tail", "_tail_size", "asked", "dropped", "finished", "header", "request", "size", "state")

    def __init__(self, request: Sequence[Buffer], header: dict[str, Any]) -> None:
        self.request = request
        self.header = header
        self._head: list[Message] = []
        self._tail: deque[Message] = deque()
        self._tail_size = 0
        self.dropped = 0
        self.size = sum(map(len, request))
        self.state = "queued"
        self.asked = time.time()
        self.finished: float | None = None

    def add(self, channel: int, parts: Sequence[Buffer], most: int) -> int:
        """Add a message, within so many bytes for the whole cell; return by how much the cell has grown."""
        size = sum(map(len, parts))
        before = self.size
        self.size += size
        if not self._tail and self.size <= most // 2:
            self._head.append((channel, parts))
            return size
        self._tail.append((channel, parts))
        self._tail_size += size
        while self._tail_size > most // 2:
            dropped = sum(map(len, self._tail.popleft()[1]))
            self.dropped += 1
            self._tail_size -= dropped
            self.size -= dropped
        return self.size - before

    def messages(self, first: int = 0) -> Iterator[tuple[int, Message]]:
        """Yield what is kept of what the kernel said for it, in order, with numbers that stay: from number `first` on.

        The request itself is number 0. Numbers are missing where messages were dropped.
        """
        numbered = [(0, (SHELL, self.request))]
        numbered += [(1 + index, message) for index, message in enumerate(self._head)]
        behind = 1 + len(self._head) + self.dropped
        numbered += [(behind + index, message) for index, message in enumerate(self._tail)]
        return (row for row in numbered if row[0] >= first)

    def summary(self) -> dict[str, Any]:
        """Return what is known of the cell without its outputs; plain JSON."""
        return {
            "msg_id": self.header.get("msg_id"),
            "session": self.header.get("session"),
            "cell_id": json_part(self.request, METADATA).get("cellId"),
            "code": json_part(self.request, CONTENT).get("code", ""),
            "state": self.state,
            "asked": self.asked,
            "finished": self.finished,
            "outputs": len(self._head) + len(self._tail),
            "dropped": self.dropped,
            "bytes": self.size,
        }


class Journal:
    """The newest cells of a kernel.

    Args:
        most_cells: how many to keep.
        most_bytes: most bytes to keep, over all cells; one cell keeps half of them, of its beginning and its end.
    """

    def __init__(self, most_cells: int = MOST_CELLS, most_bytes: int = MOST_BYTES) -> None:
        self._most_cells = most_cells
        self._most_bytes = most_bytes
        self._cells: OrderedDict[str, Cell] = OrderedDict()
        self._by_parent: dict[bytes, Cell | None] = {}
        self._size = 0
        self.given_up = False
        """Whether cells had to make room for newer ones."""

    def asked(self, parts: Sequence[Buffer]) -> None:
        """Note a request on shell; only those to execute something are cells."""
        header = json_part(parts, HEADER)
        if header.get("msg_type") != "execute_request" or json_part(parts, CONTENT).get("silent"):
            return
        cell = Cell([bytes(part) for part in parts], header)
        self._cells[str(header.get("msg_id"))] = cell
        self._size += cell.size
        self._trim()

    def heard(self, channel: int, parts: Sequence[Buffer]) -> None:
        """Note what the kernel says on iopub or shell."""
        cell = self._cell_of(parts)
        if cell is None:
            return
        if channel == SHELL:
            cell.state, cell.finished = "done", time.time()
        elif cell.state == "queued":
            cell.state = "running"
        self._size += cell.add(channel, parts, self._most_bytes // _SHARE)
        if self._size > self._most_bytes:
            self._trim()

    def unanswered(self, message_id: str) -> None:
        """Note that a cell has ended without a reply."""
        cell = self._cells.get(message_id)
        if cell is not None:
            cell.state, cell.finished = "done", time.time()

    def forget(self, message_id: str) -> None:
        """Forget a cell that no kernel was given, and none will be."""
        cell = self._cells.pop(message_id, None)
        if cell is not None:
            self._size -= cell.size
            self._by_parent.clear()

    def list(self) -> list[dict[str, Any]]:
        """Return the cells' summaries, oldest first."""
        return [cell.summary() for cell in self._cells.values()]

    def find(self, message_id: str) -> Cell | None:
        """Return a cell by the id of its request."""
        return self._cells.get(message_id)

    def _cell_of(self, parts: Sequence[Buffer]) -> Cell | None:
        # All messages of a cell carry its request's header, byte for byte: no need to parse it for each of them.
        raw = raw_part(parts, PARENT)
        if raw is None:
            return None
        if raw not in self._by_parent:
            if len(self._by_parent) > 2 * self._most_cells:
                self._by_parent.clear()
            self._by_parent[raw] = self._cells.get(str(json_part(parts, PARENT).get("msg_id")))
        return self._by_parent[raw]

    def _trim(self) -> None:
        while len(self._cells) > self._most_cells or (self._size > self._most_bytes and len(self._cells) > 1):
            _, cell = self._cells.popitem(last=False)
            self.given_up = True
            self._size -= cell.size
            cell.size = 0
            self._by_parent = {raw: known for raw, known in self._by_parent.items() if known is not cell}
