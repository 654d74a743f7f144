"""What clients ask of the keeper itself: to signal, end or start the kernel, and to tell what it knows."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from .callers import Callers
from .client import Client
from .ending import Ending
from .interrupts import Answer, Interrupts
from .job_watch import JobWatch
from .journal import Journal, Message
from .kernel import Kernel
from .kernelspecs import UnknownKernelspecError
from .ladder import Report
from .spawn import folder_path
from .wire import CONTROL, KEEPER, MAX_PARTS, Buffer, ProtocolError

_PAGE_PARTS = 2048
_PAGE_BYTES = 1 << 20
"""What an answer with messages of the journal may have: well below what a message can, and no obstacle for others."""

_MALFORMED = (LookupError, TypeError, ValueError, AttributeError, OverflowError)
"""What comes of a request whose contents are not what they should be."""

_ENDINGS = {"stop": "was ended", "launch": "was restarted", "finish": "was ended"}
"""What clients may ask that ends the kernel, in words."""


class Requests:
    """See the module's head.

    Args:
        kernel: the kernel.
        ending: what ends it.
        journal: what is known of its cells.
        jobs: its jobs.
        callers: its code's calls to clients.
        unanswered: told of a cell which the kernel is done with and has not answered, and whether it was interrupted.
        keep_place: sees to it that the run directory is there.
        facts: what clients are told about the kernel.

    Attributes:
        interrupts: those that wait for their cells.
    """

    def __init__(
        self,
        kernel: Kernel,
        ending: Ending,
        journal: Journal,
        jobs: JobWatch,
        callers: Callers,
        unanswered: Callable[[str, bool], None],
        keep_place: Callable[[], None],
        facts: Callable[[], dict[str, Any]],
    ) -> None:
        self.interrupts = Interrupts(kernel, self._send_signal, unanswered)
        self._kernel = kernel
        self._ending = ending
        self._journal = journal
        self._jobs = jobs
        self._callers = callers
        self._keep_place = keep_place
        self._facts = facts

    def take(self, client: Client, parts: Sequence[Buffer]) -> None:
        """Do what a client asks. What is no request at all breaks the protocol; one that lacks something is refused."""
        try:
            request = json.loads(bytes(parts[0]))
            number, do = int(request["id"]), str(request["do"])
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise ProtocolError(f"that is no request to a keeper: {type(error).__name__}: {error}") from None

        def answer(content: dict[str, Any], parts: list[bytes] | None = None) -> None:
            client.link.send(KEEPER, [json.dumps({"id": number, **content}).encode(), *(parts or [])])

        actions: dict[str, Callable[[dict[str, Any], Answer], None]] = {
            "signal": self._signal,
            "stop": self._stop,
            "launch": self._launch,
            "finish": self._finish,
            "give_up": self._give_up,
            "status": self._status,
            "cells": lambda _, answer: answer({"cells": self._journal.list()}),
            "cell": self._cell,
            "serve": self._serve,
            "seen": self._seen,
            "notebook": self._notebook,
        }
        action = actions.get(do)
        if action is None:
            answer({"error": f"this keeper cannot do {do!r}"})
            return
        if do in _ENDINGS:
            self._kernel.end_asked(f"{_ENDINGS[do]} by a client: {client.name}", again=do == "stop")
        request["link"] = client.link_id
        request["client"] = client
        try:
            action(request, answer)
        except _MALFORMED as error:
            answer({"error": f"the request to {do} is malformed: {type(error).__name__}: {error}"})

    def _signal(self, request: dict[str, Any], answer: Answer) -> None:
        """Signal the kernel's process group, as a terminal would, or its process alone; or, with `message`, have the
        kernel asked to interrupt by that one, on its control channel.

        With `cell`, the message id of an execute request, only while that one has no reply: what was meant for a cell
        must not hit a later one because the link was away meanwhile. If that one has not begun yet, it waits for it
        (see `interrupts.py`, also for `only`).
        """
        if self._kernel.exit is not None:
            return answer({"error": "the kernel has ended", "ended": True})
        cell = request.get("cell")
        if cell is not None:

            def answer_for_cell(content: dict[str, Any]) -> None:
                if content.get("unseen"):
                    self._journal.forget(str(cell))
                answer(content)

            return self.interrupts.put(str(cell), request, answer_for_cell)
        if self._kernel.state == "starting" and request["signum"] == signal.SIGINT:
            # A kernel that does not listen yet runs nothing, and an interpreter on its way up would end by it.
            return answer({"skipped": "the kernel is only starting"})
        return self._send_signal(request, answer)

    def _send_signal(self, request: dict[str, Any], answer: Answer) -> None:
        if "message" in request:
            parts: list[bytes | memoryview] = [str(part).encode("latin-1") for part in request["message"]]
            self._kernel.ask(request["link"], CONTROL, parts)
            self.interrupts.sent()
            return answer({})
        # It is our own child and not waited for yet, so the pid cannot have been given to another process.
        try:
            if request.get("group", True):
                os.killpg(self._kernel.pid, request["signum"])
            else:
                os.kill(self._kernel.pid, request["signum"])
        except OSError as error:
            return answer({"error": f"the signal could not be sent: {error.strerror}"})
        if request["signum"] == signal.SIGINT:
            self.interrupts.sent()
        return answer({})

    def _status(self, request: dict[str, Any], answer: Answer) -> None:
        """Tell how the kernel is; with `cell`, whether it may still be at that request, whoever passed it on."""
        self._kernel.look(time.monotonic())  # it may have ended since we looked last
        cell = request.get("cell")
        asked = self._kernel.exit is None and cell is not None and self._kernel.is_asked(str(cell)) is True
        answer({"kernel": self._facts(), "asked": asked})

    def _stop(self, request: dict[str, Any], answer: Answer) -> None:
        self._ending.stop(
            float(request.get("term_grace", 2)),
            lambda report: answer({"report": report.to_dict(), "kernel": self._facts()}),
        )

    def _finish(self, request: dict[str, Any], answer: Answer) -> None:
        self._ending.finish(
            "its client ended it",
            lambda report: answer({"report": report.to_dict(), "kernel": self._facts()}),
            float(request.get("term_grace", 2)),
        )

    def _give_up(self, request: dict[str, Any], answer: Answer) -> None:
        ids = [str(message_id) for message_id in request["ids"]]
        never = [message_id for message_id in ids if self._kernel.never_begun(message_id)]
        self._kernel.give_up(ids)
        answer({"never_begun": never})

    def _launch(self, request: dict[str, Any], answer: Answer) -> None:
        """Start the kernel anew, in the same place, once nothing of the old one is left.

        Where the keeper itself ends, because somebody asked for that as well, there is no answer: who asks has another
        keeper made when this one has gone. A kernel that was started now would be left without one, and be ended as
        that.
        """

        def launch(report: Report) -> None:
            if self._ending.finishing:
                return None
            if report.survivors:
                return answer({"error": "the old kernel could not be ended", "report": report.to_dict()})
            self._keep_place()
            try:
                self._kernel.spawn(request["kernel"], folder_path(request["kernel"]["cwd"]))
            except OSError as error:
                where = f"{error.filename}: " if error.filename else ""
                return answer({"error": f"it could not be started: {where}{error.strerror or error}"})
            except UnknownKernelspecError as error:
                return answer({"error": f"it could not be started: {error}"})
            except _MALFORMED as error:
                return answer({"error": f"it could not be started: {type(error).__name__}: {error}"})
            return answer({"kernel": self._facts()})

        if not self._ending.finishing:
            self._ending.stop(float(request.get("term_grace", 0)), launch)

    def _cell(self, request: dict[str, Any], answer: Answer) -> None:
        """Give a cell's messages out of the journal: after the answer come their parts, all in one row.

        The first one is the request. A cell has more of them than one answer can carry: this one begins with number
        `first`, and its own `next` says which one to ask for then, or is None when there are no more.
        """
        cell = self._journal.find(str(request.get("msg_id")))
        if cell is None:
            return answer({"error": "the journal does not have that cell (any more)"})
        page: list[Message] = []
        after = None
        count = size = 0
        for number, (channel, parts) in cell.messages(int(request.get("first", 0))):
            count += len(parts)
            size += sum(map(len, parts))
            if page and (count > _PAGE_PARTS or size > _PAGE_BYTES):
                after = number
                break
            if len(parts) < MAX_PARTS:  # one that could not travel to a client either is passed over
                page.append((channel, parts))
        return answer(
            {
                "cell": cell.summary(),
                "messages": [[channel, len(parts)] for channel, parts in page],
                "next": after,
            },
            [bytes(part) for _, parts in page for part in parts],
        )

    def _serve(self, request: dict[str, Any], answer: Answer) -> None:
        """Note which kinds of calls out of the kernel the client answers, and under which name (`callers.py`)."""
        kinds = {str(kind) for kind in request["kinds"]}
        self._callers.announced(request["client"], kinds, str(request["name"]))
        answer({})

    def _seen(self, request: dict[str, Any], answer: Answer) -> None:
        """Note that a client has told its user how these jobs ended."""
        self._jobs.seen([int(number) for number in request["jobs"]])
        answer({})

    def _notebook(self, request: dict[str, Any], answer: Answer) -> None:
        """Note that the kernel's notebook has another path now."""
        self._kernel.rename(str(request["path"]))
        answer({})
