"""What the kernel has said of the ends of cells, so that each has one end, whoever tells it: the kernel, or we for it.

A kernel that is restarted is interrupted first. Its cell's error and idle status may come then, and the reply be lost
with the kernel (ipykernel's shell channel ends before it has passed the reply on, in a local kernel as well); or the
reply come, and the idle status be lost; or the error alone come.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

from ..bundle.messages import CONTENT, DELIMITER, HEADER, PARENT, json_part, raw_part
from ..bundle.wire import Buffer

_MOST_TOLD = 1000
"""Ids to remember of cells whose end we have told ourselves."""

_STATUS, _ERROR = "status", "error"


def _kind(parts: Sequence[Buffer]) -> str:
    """Return the type of a message if it is one of those that are about a cell's end, else nothing."""
    topic = bytes(parts[0][-len(DELIMITER) :])  # by which most kernels' are told without parsing them
    if topic == DELIMITER:  # what is sent without one
        kind = str(json_part(parts, HEADER).get("msg_type"))
        return kind if kind in (_STATUS, _ERROR) else ""
    return next((kind for kind in (_STATUS, _ERROR) if topic.endswith(kind.encode())), "")


@dataclass
class Said:
    """What is known of the end of a cell that has no reply.

    Attributes:
        idle: whether the kernel has said that it is done with it.
        error: the content of the error that it has published; None when it has published none.
        interrupted: whether it was interrupted meanwhile, as far as we know.
    """

    idle: bool = False
    error: dict[str, Any] | None = None
    interrupted: bool = False


class CellEnds:
    """The ends of one kernel's cells, by their message ids."""

    def __init__(self) -> None:
        self._said: dict[str, Said] = {}  # of those without a reply
        self._replied: dict[str, dict[str, Any]] = {}  # headers of those with a reply, of which it has not said so
        self._told: dict[str, None] = {}  # those whose end we have told, oldest first

    def published(self, parts: Sequence[Buffer], asked: Container[str]) -> bool:
        """Take note of what is about to be published; False when it must not be, as that end was told before.

        Args:
            parts: the message.
            asked: ids of the requests without a reply.
        """
        kind = _kind(parts)
        if not kind:
            return True
        message_id = str(json_part(parts, PARENT).get("msg_id"))
        if message_id in self._told:
            return False
        if kind == _ERROR:
            if message_id in asked:
                self._of(message_id).error = json_part(parts, CONTENT)
        elif b'"idle"' in (raw_part(parts, CONTENT) or b""):
            if message_id in asked:
                self._of(message_id).idle = True
            self._replied.pop(message_id, None)
        return True

    def replied(self, header: dict[str, Any]) -> None:
        """Note that the request with this header has its reply."""
        if not self.of(header["msg_id"]).idle and header.get("msg_type") == "execute_request":
            self._replied[header["msg_id"]] = header

    def interrupted(self, message_id: str) -> None:
        """Note that a cell without a reply was interrupted."""
        self._of(message_id).interrupted = True

    def of(self, message_id: str) -> Said:
        """Return, and forget, what is known of the end of a request that had no reply until now."""
        return self._said.pop(message_id, None) or Said()

    def _of(self, message_id: str) -> Said:
        return self._said.setdefault(message_id, Said())

    def told(self, message_id: str) -> None:
        """Note that we have told a cell's end: what the kernel still says of it means nothing any more."""
        self._told[message_id] = None
        if len(self._told) > _MOST_TOLD:
            del self._told[next(iter(self._told))]

    def without_idle(self) -> list[dict[str, Any]]:
        """Return, and forget, the headers of the cells that have their reply, and of which the kernel, which has ended,
        has not said that it is done.
        """
        found = list(self._replied.values())
        self._replied.clear()
        return found
