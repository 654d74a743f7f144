"""Interrupts that are meant for one cell: sent when it can take them, once more when it may not have, and to no other.

Three things keep an interrupt from simply being sent when it comes:

- Control traffic overtakes requests. When a cell and its interrupt were both asked for while the link was away, or at
  the same moment, the interrupt is here first; it waits for the cell to begin then. One that is meant for that cell
  alone has it not begin at all: the keeper passes it on to no kernel.
- A kernel has several clients. What is meant for a cell that waits behind another client's must not hit that one.
- A kernel that has only just said that it begins may not be within the cell's code yet. ipykernel takes an interrupt
  for its own then: it is logged there, and the cell runs on (ipykernel issues 666 and 845). So there is a short pause,
  and an interrupt of a cell that had just begun, and had printed nothing yet, is repeated if the cell goes on. One that
  came later is never repeated: the cell may be putting things in order.

And one that comes when a cell is just about to be answered may cost it its reply: ipykernel says that it is idle then,
and nothing more. So it is with a cell after which the reply itself cannot be made. Whoever waits for the reply is told
that there will be none.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from .kernel import Kernel
from .messages import CONTENT, HEADER, PARENT, json_part, raw_part
from .wire import Buffer

PAUSE = 0.1
"""Seconds from a cell's beginning to its interrupt."""

YOUNG = 1.0
"""Seconds from a cell's beginning during which it may not be within its own code yet; on a busy host it takes long."""

AGAIN = (0.5, 1.0, 2.0)
"""Seconds from one attempt to the next, for a cell that was interrupted while it was so young."""

UNSEEN = 2.0
"""Seconds after which a cell that has not said that it begins is interrupted all the same, if no other one runs."""

SILENT = 2.0
"""Seconds after which a cell that was interrupted, and whose kernel is idle, has no reply to wait for any more."""

MUTE = 5.0
"""The same for a cell that was not interrupted, while the kernel does nothing else that may hold up the reply."""

_MOST = 64

Answer = Callable[..., None]


class _Cell:
    """A cell that has begun.

    Attributes:
        at: when it began, by the monotonic clock.
        spoke: whether it has published anything of its own since.
        interrupted: whether the kernel was interrupted meanwhile.
        idle: when the kernel said, after that if it was interrupted, that it is done with it; None before.
    """

    __slots__ = ("at", "idle", "interrupted", "spoke")

    def __init__(self) -> None:
        self.at = time.monotonic()
        self.spoke = False
        self.interrupted = False
        self.idle: float | None = None


class _Meant:
    """An interrupt for a cell.

    Attributes:
        request: what its client asked for.
        answer: takes the answer, until it was given.
        at: when it is due, by the monotonic clock; None while nobody knows.
        sent: how often it was sent.
    """

    __slots__ = ("answer", "at", "request", "sent")

    def __init__(self, request: dict[str, Any], answer: Answer | None, at: float | None) -> None:
        self.request = request
        self.answer = answer
        self.at = at
        self.sent = 0


class Interrupts:
    """What is meant for cells.

    Args:
        kernel: the kernel.
        send: called with a request and its answer to have the signal sent now.
        unanswered: called with the id of a cell that will have no reply, and whether it was interrupted.
    """

    def __init__(
        self, kernel: Kernel, send: Callable[[dict[str, Any], Answer], None], unanswered: Callable[[str, bool], None]
    ) -> None:
        self._kernel = kernel
        self._send = send
        self._unanswered = unanswered
        self._meant: dict[str, _Meant] = {}
        self._begun: dict[str, _Cell] = {}  # those without a reply
        self._parent = b""  # of the message before
        self._current: _Cell | None = None  # whose it was
        self._idle_at = 0.0  # when the kernel was done with a cell last, whosever that was

    # -- what the kernel says --------------------------------------------------------------------------------

    def heard(self, parts: Sequence[Buffer]) -> None:
        """Look at a message on iopub: whether it says that a cell begins, or is a cell's first output."""
        parent = raw_part(parts, PARENT)
        if parent is None:
            return
        if parent != self._parent:  # most messages have the same parent as the one before
            self._parent = parent
            self._current = self._cell(str(json_part(parts, PARENT).get("msg_id")))
        current = self._current
        if current is None or (current.spoke and b'"status"' not in (raw_part(parts, HEADER) or b"")):
            return  # most messages, so they are not looked at more closely
        kind = json_part(parts, HEADER).get("msg_type")
        if kind == "status":
            if json_part(parts, CONTENT).get("execution_state") == "idle":
                current.idle = self._idle_at = time.monotonic()
        elif kind != "execute_input":
            current.spoke = True

    def sent(self) -> None:
        """Note that the kernel was interrupted just now."""
        for cell in self._begun.values():
            cell.interrupted = True

    @property
    def interrupted(self) -> list[str]:
        """The ids of the cells without a reply that were interrupted, as far as is known yet."""
        return [cell for cell, begun in self._begun.items() if begun.interrupted]

    def _cell(self, cell: str) -> _Cell | None:
        asked = self._kernel.asked.get(cell) == "execute_request" or cell in self._meant  # of an earlier keeper, these
        if cell not in self._begun and asked:
            self._begun = {known: begun for known, begun in self._begun.items() if known in self._kernel.asked}
            self._begun[cell] = _Cell()
            meant = self._meant.get(cell)
            if meant is not None:
                meant.at = self._begun[cell].at + PAUSE
        return self._begun.get(cell)

    def _another_runs(self, cell: str) -> bool:
        return any(known != cell and known in self._kernel.asked for known in self._begun)

    # -- what clients ask for --------------------------------------------------------------------------------

    def put(self, cell: str, request: dict[str, Any], answer: Answer) -> None:
        """Take a request to signal a cell, and see that it is done at the right moment.

        With `only` in the request no other cell may be hit; one that has not come yet is taken back, as is one that
        waits behind another client's, if the kernel can do that. Without it, what runs instead of a cell that has not
        begun is hit in its place, as with a kernel that has one client.
        """
        asked = self._kernel.is_asked(cell)
        if asked is False:
            return answer({"skipped": "the cell that it was meant for had ended"})
        if asked is None and request.get("only") and request["signum"] == signal.SIGINT:
            # Whoever asks for this wants no more of the cell. It may have been lost with a connection, and come yet.
            self._kernel.give_up([cell])
            return answer({"behind": True, "taken_back": True, "cell": cell, "unseen": True})
        if asked is None:
            return self._wait(cell, _Meant(request, answer, None))
        if request["signum"] != signal.SIGINT:
            return self._send(request, answer)
        if cell not in self._kernel.asked:
            return self._put_for_adopted(cell, request, answer)
        now = time.monotonic()
        begun = self._begun.get(cell)
        if begun is not None:
            self._wait(cell, _Meant(request, answer, begun.at + PAUSE))
            return self.serve(now)
        if not self._another_runs(cell):
            return self._wait(cell, _Meant(request, answer, now + UNSEEN))
        if not request.get("only"):
            return self._send(request, answer)
        taken_back = self._kernel.take_back(cell)
        answer({"behind": True, "taken_back": taken_back})
        return None if taken_back else self._wait(cell, _Meant(request, None, None))

    def _put_for_adopted(self, cell: str, request: dict[str, Any], answer: Answer) -> None:
        """An earlier keeper may have passed the cell on, and nobody here knows; or it is only going to come."""
        begun = self._kernel.begun
        if begun == cell:
            return self._send(request, answer)
        if begun is None:  # this kernel does not note what it begins: it may be at it
            self._send(request, answer)
            return self._wait(cell, _Meant(request, None, None))
        return self._wait(cell, _Meant(request, answer, None))

    def _wait(self, cell: str, meant: _Meant) -> None:
        before = self._meant.pop(cell, None)
        if before is not None:
            self._answer(before, {"skipped": "a newer one for the same cell took its place"})
        elif len(self._meant) >= _MOST:
            oldest = self._meant.pop(next(iter(self._meant)))
            self._answer(oldest, {"skipped": "the cell that it was meant for never came"})
        self._meant[cell] = meant

    def _answer(self, meant: _Meant, content: dict[str, Any]) -> None:
        answer, meant.answer = meant.answer, None
        if answer is not None:
            answer(content)

    def serve(self, now: float) -> None:
        """Send what is due, and let go of what is for cells that have ended."""
        for cell, begun in list(self._begun.items()):
            if cell not in self._kernel.asked:
                del self._begun[cell]
            elif begun.idle is not None and now >= self._mute_at(cell, begun, begun.idle):
                del self._begun[cell]
                self._unanswered(cell, begun.interrupted)
        for cell, meant in list(self._meant.items()):
            if self._kernel.exit is not None or self._kernel.is_asked(cell) is False:
                del self._meant[cell]
                why = "the kernel has ended" if self._kernel.exit is not None else "the cell had ended"
                self._answer(meant, {"skipped": why})
            elif meant.at is not None and now >= meant.at:
                self._due(cell, meant, now)
            elif meant.at is None and meant.answer is not None and self._came_behind(cell, meant):
                del self._meant[cell]
                self.put(cell, meant.request, meant.answer)

    def _came_behind(self, cell: str, meant: _Meant) -> bool:
        """Whether a cell that came after what is meant for it, and for it only, has to wait for another client's."""
        asked = cell in self._kernel.asked and cell not in self._begun
        return asked and bool(meant.request.get("only")) and self._another_runs(cell)

    def _mute_at(self, cell: str, begun: _Cell, idle: float) -> float:
        """Return when a cell that the kernel is done with has no reply to wait for any more."""
        if begun.interrupted:
            return idle + SILENT
        # What another cell runs may keep the kernel from sending anything, this reply included, until it has ended.
        others = (other for known, other in self._begun.items() if known != cell and known in self._kernel.asked)
        return math.inf if any(other.idle is None for other in others) else max(idle, self._idle_at) + MUTE

    def _due(self, cell: str, meant: _Meant, now: float) -> None:
        begun = self._begun.get(cell)
        if begun is None and meant.request.get("only") and self._another_runs(cell):
            meant.at = None  # until it begins
            return
        young = begun is None or (now - begun.at < YOUNG and not begun.spoke)
        again = (young or meant.sent) and "message" not in meant.request and meant.sent < len(AGAIN)
        if again:
            meant.at = now + AGAIN[meant.sent]
            meant.sent += 1
        else:
            del self._meant[cell]
        self._send(meant.request, lambda content: self._answer(meant, content))

    @property
    def due(self) -> list[float]:
        """When, by the clock, `serve` has something to do."""
        idle = [self._mute_at(cell, begun, begun.idle) for cell, begun in self._begun.items() if begun.idle is not None]
        return [at for at in idle if at < math.inf] + [
            meant.at for meant in self._meant.values() if meant.at is not None
        ]
