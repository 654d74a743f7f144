"""Which cell it is that calls: what `calls.py` tells the keeper of it. Imported by every kernel, so it is small.

A cell's id is in a context variable, set before the cell is run. Tasks and `asyncio.to_thread` carry it along by
themselves. A thread has it from the cell that started the thread, and keeps it when others run later: what a cell
leaves behind does not act in the name of the next one.
"""

from __future__ import annotations

import contextvars
import threading

TYPE_CHECKING = False  # not from typing: see processes.py
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

_ATTRIBUTE = "_albedo_cell"


class Cell:
    """An execute request.

    Attributes:
        id: its message id.
        link: the link that it came over.
        server: the name of the client that answers its calls, as that client announced itself; empty when the request
            names none.
    """

    __slots__ = ("id", "link", "server")

    def __init__(self, message_id: str, link: str, server: str) -> None:
        self.id = message_id
        self.link = link
        self.server = server


socket_path: str | None = None
"""Where the keeper takes calls; None in a process that is no kernel of ours, nor forked from one."""

_current: contextvars.ContextVar[Cell | None] = contextvars.ContextVar("albedo_cell", default=None)


def current() -> Cell | None:
    """Return the cell in whose name the caller acts; None when there is none."""
    return _current.get() or getattr(threading.current_thread(), _ATTRIBUTE, None)


def begin(identities: Sequence[bytes], request: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Note that an execute request is about to be run in this context.

    Returns:
        the name of the client that answers its calls, and what has to be made ready for it first (see `namespace.py`);
        None when there is nothing to make ready.

    Args:
        identities: zmq's, as the kernel got them: the keeper's own, then the id of the link that it put there.
        request: the message.
    """
    header, metadata = request.get("header") or {}, request.get("metadata") or {}
    about = metadata.get("albedo")
    about = about if isinstance(about, dict) else {}
    link = bytes(identities[1]).decode("ascii", "replace") if len(identities) > 1 else ""
    server = str(about.get("server") or "")
    _current.set(Cell(str(header.get("msg_id", "")), link, server))
    return (server, about["prepare"]) if "prepare" in about else None


def follow_threads() -> None:
    """Have threads belong to the cell that starts them."""
    start = threading.Thread.start

    def start_for_cell(self: threading.Thread) -> None:
        setattr(self, _ATTRIBUTE, current())
        start(self)

    start_for_cell.__doc__, start_for_cell.__name__ = start.__doc__, "start"
    threading.Thread.start = start_for_cell  # type: ignore[method-assign]
