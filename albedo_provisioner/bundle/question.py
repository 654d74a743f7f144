"""What the kernel's code asks a person (`input()`) and waits for: whether anybody is there who could answer.

The question goes to the client whose cell it is. When that one is gone, the cell waits for ever; those who come to the
kernel later do not get the question, but can be told of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .messages import CONTENT, HEADER, PARENT, json_part
from .wire import SHELL, STDIN, Buffer

_MOST_PROMPT = 200


class Question:
    """The question that is open, if one is.

    Args:
        there: whether the client of a link, by its id, has a connection.
    """

    def __init__(self, there: Callable[[str], bool]) -> None:
        self._there = there
        self._link = ""
        self._cell = ""
        self._prompt = ""

    def heard(self, channel: int, link_id: str, parts: Sequence[Buffer]) -> bool:
        """Take what the kernel says to a link; whether there is news of a question that nobody is there to answer."""
        if channel == STDIN and json_part(parts, HEADER).get("msg_type") == "input_request":
            self._link, self._cell = link_id, str(json_part(parts, PARENT).get("msg_id"))
            self._prompt = str(json_part(parts, CONTENT).get("prompt", ""))[:_MOST_PROMPT]
            return self.lost is not None
        if channel == SHELL and self._cell:
            return self.settled(str(json_part(parts, PARENT).get("msg_id")))
        return False

    def settled(self, cell: str | None = None) -> bool:
        """Note that it was answered, or that the cell that asked it has ended; whether it had been a lost one."""
        if not self._cell or cell not in (None, self._cell):
            return False
        was_lost = self.lost is not None
        self._cell = ""
        return was_lost

    @property
    def lost(self) -> dict[str, Any] | None:
        """The question, if there is one that nobody is there to answer: its cell's message id, and the prompt."""
        if not self._cell or self._there(self._link):
            return None
        return {"cell": self._cell, "prompt": self._prompt}
