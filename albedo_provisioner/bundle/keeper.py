"""The keeper: owns one kernel, talks to its channels, and remembers for each link what was not confirmed.

One thread, one poll loop. In each turn urgent things come first: what clients ask, then the kernel's control, shell and
stdin channels, then a limited amount of output; then each client is sent what it can take.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from . import in_use, rundir
from .callers import Callers
from .client import Client
from .heap import give_back
from .interrupts import Answer, Interrupts
from .job_watch import JobWatch
from .journal import MOST_BYTES, MOST_CELLS, Journal, Message
from .kernel import Kernel
from .kernelspecs import UnknownKernelspecError
from .ladder import Ladder, Report
from .messages import CONTENT, HEADER, json_part
from .place import LostError, Place, TakenError
from .protocol import Attached, Event, Received
from .question import Question
from .reception import Reception
from .spawn import boot_id, folder_path
from .wire import CALL, CONTROL, IOPUB, KEEPER, MAX_PARTS, NOTE, SHELL, STDIN, TOLD_TO_END, Buffer, ProtocolError

HOLD = 64 << 20
"""Bytes held for a client that is away, unless the request says otherwise."""

GRACE = 24 * 3600.0
"""Seconds that an idle kernel without any client is kept, unless the request says otherwise."""

UNCLAIMED = 120.0
"""Seconds after which a kernel that no client ever linked to is ended: its start was given up on the way."""

_PAGE_PARTS = 2048
_PAGE_BYTES = 1 << 20
"""What an answer with messages of the journal may have: well below what a message can, and no obstacle for others."""

_MALFORMED = (LookupError, TypeError, ValueError, AttributeError, OverflowError)
"""What comes of a request whose contents are not what they should be."""

_ENDINGS = {"stop": "was ended", "launch": "was restarted", "finish": "was ended"}
"""What clients may ask that ends the kernel, in words."""

_HOUSEKEEPING = 10.0
_GOODBYE = 3.0


class Keeper:
    """One kernel's keeper.

    Args:
        path: the run directory, which is the current directory.
        request: the start request, see `kernels/request.py`.
        listener: our socket, to which bridges connect.
        wake: descriptor that gets a byte for each signal to us.
        subreaper: whether the kernel's orphans become our children.
    """

    def __init__(self, path: str, request: dict[str, Any], listener: socket.socket, wake: int, subreaper: bool) -> None:
        self.path = path
        self.kernel_id = request["kernel_id"]
        self.identity = os.urandom(8).hex()
        self.warning: str | None = None
        """What threatens the kernel on this host, in words that follow the host's name; told to every client."""
        self._place = Place(path, self.kernel_id)
        self._grace = float(request.get("grace") or GRACE)
        self._subreaper = subreaper
        self._wake = wake
        self._poller = zmq.Poller()
        self._poller.register(wake, zmq.POLLIN)
        settings = {name: request.get(name) for name in ("grace", "hold", "journal_cells", "journal_bytes", "notebook")}
        self.kernel = Kernel(
            path,
            self.kernel_id,
            str(request.get("notebook") or ""),
            settings,
            self._poller,
            self._heard,
            self._changed,
            self._drained,
        )
        self.clients = Reception(listener, self._poller, int(request.get("hold") or HOLD), self._hello, self._received)
        self.question = Question(self.clients.is_attached)
        self.callers = Callers(self._poller, self.clients, lambda cell: self.kernel.is_asked(cell) is False)
        self.journal = Journal(
            int(request.get("journal_cells") or MOST_CELLS), int(request.get("journal_bytes") or MOST_BYTES)
        )
        self.jobs = JobWatch(
            rundir.socket_base(path), self.kernel_id, self._poller, self._tell_of_jobs, self.kernel.reap
        )
        self.jobs.look()  # of a kernel that is adopted
        self._ladder: Ladder | None = None
        self._ladder_at = 0.0
        self._finishing = False  # whether there will be no kernel any more
        self._after_ladder: list[Callable[[Report], None]] = []
        self._interrupts = Interrupts(self.kernel, self._send_signal, self._unanswered)
        self._interrupted: list[str] = []  # ids of the cells that a kernel was interrupted in, and ended with
        self._tended_at = time.monotonic()
        self._over_at: float | None = None

    # -- the loop --------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the kernel has been ended and everybody knows."""
        while self._over_at is None or (time.monotonic() < self._over_at and not self.clients.settled):
            ready = dict(self._poller.poll(self._pause()))
            now = time.monotonic()
            if ready.pop(self._wake, None):
                self._take_signals()
            self.callers.serve(ready, now)
            self.jobs.serve(ready, now)  # before the kernel: a cell's reply must not be there before what it did
            self.clients.serve(ready, now)
            self.kernel.serve(ready, now)
            self._interrupts.serve(now)
            if self._ladder is not None and now >= self._ladder_at:
                self._climb(now)
            if now - self._tended_at >= _HOUSEKEEPING:
                self._tend(now)
            self.clients.flush(now)
        self.clients.close(time.monotonic())
        self.callers.close()
        self.jobs.close()
        if self._place.ours:
            rundir.remove(self.path)

    def _keep_place(self) -> None:
        """See to it that the run directory is there; nothing happens when it is."""
        if self._place.ours or self._over_at is not None or self._ladder is not None:
            return
        try:
            self.clients.listen_at(self._place.make_anew(self._fill_place))
        except TakenError:
            self.kernel.end_asked("was ended because another keeper has its run directory")
            self._finish("another keeper has its run directory")
        except LostError:
            self.kernel.end_asked("was ended because its home was removed")
            self._finish("its home was removed")
        except OSError as error:  # a full disk, say: those who are linked to it are served all the same
            print(f"The run directory cannot be made anew: {error}", file=sys.stderr, flush=True)
        else:
            self.jobs.begin_anew()

    def _fill_place(self) -> None:
        self.callers.listen_anew()
        self.kernel.write_files()

    def _pause(self) -> int:
        """Milliseconds until something is due by the clock."""
        now = time.monotonic()
        due = [self._tended_at + _HOUSEKEEPING, *self.clients.due, *self._interrupts.due, *self.jobs.due]
        due += [at for at in (self._over_at, self.kernel.due(now)) if at is not None]
        if self._ladder is not None:
            due.append(self._ladder_at)
        return math.ceil(max(0.0, min(due) - now) * 1000)

    def _take_signals(self) -> None:
        while True:
            try:
                numbers = os.read(self._wake, 512)
            except BlockingIOError:
                break
            if signal.SIGTERM in numbers:
                self.kernel.end_asked(TOLD_TO_END)
                self._finish("the keeper was told to end (SIGTERM)")
        self.kernel.reap()
        self._keep_place()  # who finds no way to us sends a signal
        self.jobs.look()  # the jobs' supervisor tells us in this way that it is there

    def _tend(self, now: float) -> None:
        """Look after what nobody asks about: silent clients, forgotten ones, an unwanted kernel, freed memory."""
        freed = self.clients.tend(now)
        if freed or self.kernel.active >= self._tended_at:
            give_back()
        self._tended_at = now
        self.kernel.tend(now)
        self.jobs.look()
        in_use.renew(now)
        if self._over_at is not None or self._ladder is not None:
            return
        self._keep_place()
        if self.clients.attached or self.kernel.asked or self.jobs.running:
            return
        if now - max(self.kernel.active, self.jobs.ended_at, self.clients.away_since or 0.0) > (
            self._grace if self.clients.ever else UNCLAIMED
        ):
            self._finish("nobody was linked to it any more" if self.clients.ever else "its client never came")

    # -- between the kernel and its clients ------------------------------------------------------------------

    def _hello(self) -> dict[str, Any]:
        return {
            "keeper": self.identity,
            "kernel_id": self.kernel_id,
            "kernel": self._facts(),
            "journal": {"adopted": self.kernel.adopted, "given_up": self.journal.given_up},
            "node": os.uname().nodename,
            "boot_id": boot_id(),
            "warning": self.warning,
        }

    def _facts(self) -> dict[str, Any]:
        return {**self.kernel.facts(), "question": self.question.lost}

    def _heard(self, channel: int, parts: list[Buffer]) -> None:
        if channel == IOPUB:
            self.journal.heard(channel, parts)
            self._interrupts.heard(parts)
            for client in self.clients:
                client.pass_on(IOPUB, parts)
            return
        # The first part is the link's id, which went before the client's own identities in the request.
        if channel == SHELL:
            self.journal.heard(channel, parts[1:])
        link_id = bytes(parts[0]).decode("ascii", "replace")
        asker = self.clients.find(link_id)
        if asker is not None:
            asker.pass_on(channel, parts[1:])
        if self.question.heard(channel, link_id, parts[1:]):
            self._changed()

    def _changed(self) -> None:
        if self.kernel.exit is not None:
            self.question.settled()
        self.clients.tell_all({"event": "kernel", "kernel": self._facts()})
        if self.kernel.exit is not None:
            self.jobs.forget()
            self._interrupted = self._interrupts.interrupted or self._interrupted

    def _tell_of_jobs(self, news: dict[str, Any]) -> None:
        """Tell who is there. Who is away gets to know how it is then: however many jobs there were, none piles up."""
        for client in self.clients:
            if client.attached:
                client.tell(news)

    def _drained(self) -> None:
        """The dead kernel's last message was passed on: mark the place in the output, for whoever waits for more."""
        ended = {"exit": self.kernel.exit, "died": self.kernel.died, "interrupted": self._interrupted}
        note = json.dumps({"note": "exited", **ended}).encode()
        for client in self.clients:
            client.link.send(NOTE, [note])

    def _received(self, client: Client, event: Event) -> None:
        if isinstance(event, Attached) and self.jobs.ever:
            client.tell(self.jobs.news())
        if not isinstance(event, Received):
            return
        if event.channel == KEEPER:
            self._on_request(client, event.parts)
        elif event.channel == CALL:
            self.callers.heard(client, event.parts)
        elif event.channel not in (IOPUB, NOTE):
            if event.channel == SHELL and self._finishing:
                return  # the end overtakes what was sent before it: nobody is to do that any more
            if event.channel == STDIN and self.question.settled():
                self._changed()
            elif event.channel == CONTROL and json_part(event.parts, HEADER).get("msg_type") == "shutdown_request":
                restart = json_part(event.parts, CONTENT).get("restart") is True
                self.kernel.end_asked(f"was {'restarted' if restart else 'shut down'} by a client: {client.name}")
            if self.kernel.ask(client.link_id, event.channel, list(event.parts)) and event.channel == SHELL:
                self.journal.asked(event.parts)

    # -- ending ----------------------------------------------------------------------------------------------

    def _stop(self, term_grace: float, then: Callable[[Report], None]) -> None:
        """End the kernel's whole family, then go on with `then`. A second call joins the ending under way."""
        self._after_ladder.append(then)
        if self._ladder is None:
            self._ladder = Ladder(
                [self.kernel.process] if self.kernel.process else [],
                own_children=self._subreaper,
                mark=self.kernel_id,
                term_grace=term_grace,
                reap=self.kernel.reap,
            )
            self._ladder_at = 0.0

    def _climb(self, now: float) -> None:
        assert self._ladder is not None
        pause = self._ladder.step(now)
        if pause is not None:
            self._ladder_at = now + pause
            return
        self.kernel.reap()  # so that those who wanted its end are told of it
        self.kernel.tend(now)  # one that is no child of ours tells nobody of it
        report, self._ladder = self._ladder.report, None
        after, self._after_ladder = self._after_ladder, []
        for then in after:
            then(report)

    def _finish(self, why: str, then: Callable[[Report], None] | None = None, term_grace: float = 2.0) -> None:
        """End the kernel and then the keeper."""
        self._finishing = True

        def ended(report: Report) -> None:
            if then is not None:
                then(report)
            self.clients.tell_all({"event": "ended", "why": why, "report": report.to_dict()})
            self._over_at = time.monotonic() + _GOODBYE

        self._stop(term_grace, ended)

    # -- what clients ask of the keeper itself ---------------------------------------------------------------

    def _on_request(self, client: Client, parts: Sequence[Buffer]) -> None:
        """Do what a client asks. What is no request at all breaks the protocol; one that lacks something is refused."""
        try:
            request = json.loads(bytes(parts[0]))
            number, do = int(request["id"]), str(request["do"])
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise ProtocolError(f"that is no request to a keeper: {type(error).__name__}: {error}") from None

        def answer(content: dict[str, Any], parts: list[bytes] | None = None) -> None:
            client.link.send(KEEPER, [json.dumps({"id": number, **content}).encode(), *(parts or [])])

        actions: dict[str, Callable[[dict[str, Any], Answer], None]] = {
            "signal": self._do_signal,
            "stop": self._do_stop,
            "launch": self._do_launch,
            "finish": self._do_finish,
            "give_up": self._do_give_up,
            "status": self._do_status,
            "cells": lambda _, answer: answer({"cells": self.journal.list()}),
            "cell": self._do_cell,
            "serve": self._do_serve,
            "seen": self._do_seen,
            "notebook": self._do_notebook,
        }
        action = actions.get(do)
        if action is None:
            answer({"error": f"this keeper cannot do {do!r}"})
            return
        if do in _ENDINGS:
            self.kernel.end_asked(f"{_ENDINGS[do]} by a client: {client.name}", again=do == "stop")
        request["link"] = client.link_id
        request["client"] = client
        try:
            action(request, answer)
        except _MALFORMED as error:
            answer({"error": f"the request to {do} is malformed: {type(error).__name__}: {error}"})

    def _do_signal(self, request: dict[str, Any], answer: Answer) -> None:
        """Signal the kernel's process group, as a terminal would, or its process alone; or, with `message`, have the
        kernel asked to interrupt by that one, on its control channel.

        With `cell`, the message id of an execute request, only while that one has no reply: what was meant for a cell
        must not hit a later one because the link was away meanwhile. If that one has not begun yet, it waits for it
        (see `interrupts.py`, also for `only`).
        """
        if self.kernel.exit is not None:
            return answer({"error": "the kernel has ended", "ended": True})
        cell = request.get("cell")
        if cell is not None:

            def answer_for_cell(content: dict[str, Any]) -> None:
                if content.get("unseen"):
                    self.journal.forget(str(cell))
                answer(content)

            return self._interrupts.put(str(cell), request, answer_for_cell)
        if self.kernel.state == "starting" and request["signum"] == signal.SIGINT:
            # A kernel that does not listen yet runs nothing, and an interpreter on its way up would end by it.
            return answer({"skipped": "the kernel is only starting"})
        return self._send_signal(request, answer)

    def _send_signal(self, request: dict[str, Any], answer: Answer) -> None:
        if "message" in request:
            parts: list[bytes | memoryview] = [str(part).encode("latin-1") for part in request["message"]]
            self.kernel.ask(request["link"], CONTROL, parts)
            self._interrupts.sent()
            return answer({})
        # It is our own child and not waited for yet, so the pid cannot have been given to another process.
        try:
            if request.get("group", True):
                os.killpg(self.kernel.pid, request["signum"])
            else:
                os.kill(self.kernel.pid, request["signum"])
        except OSError as error:
            return answer({"error": f"the signal could not be sent: {error.strerror}"})
        if request["signum"] == signal.SIGINT:
            self._interrupts.sent()
        return answer({})

    def _unanswered(self, cell: str, interrupted: bool) -> None:
        """The kernel is done with a cell and has not answered it: have nobody wait for that."""
        self.kernel.answered(cell)
        self.journal.unanswered(cell)
        note = json.dumps({"note": "unanswered", "cell": cell, "interrupted": interrupted}).encode()
        for client in self.clients:
            client.link.send(NOTE, [note])

    def _do_status(self, _request: dict[str, Any], answer: Answer) -> None:
        self.kernel.look(time.monotonic())  # it may have ended since we looked last
        answer({"kernel": self._facts()})

    def _do_stop(self, request: dict[str, Any], answer: Answer) -> None:
        self._stop(
            float(request.get("term_grace", 2)),
            lambda report: answer({"report": report.to_dict(), "kernel": self._facts()}),
        )

    def _do_finish(self, request: dict[str, Any], answer: Answer) -> None:
        self._finish(
            "its client ended it",
            lambda report: answer({"report": report.to_dict(), "kernel": self._facts()}),
            float(request.get("term_grace", 2)),
        )

    def _do_give_up(self, request: dict[str, Any], answer: Answer) -> None:
        ids = [str(message_id) for message_id in request["ids"]]
        never = [message_id for message_id in ids if self.kernel.never_begun(message_id)]
        self.kernel.give_up(ids)
        answer({"never_begun": never})

    def _do_launch(self, request: dict[str, Any], answer: Answer) -> None:
        """Start the kernel anew, in the same place, once nothing of the old one is left."""

        def launch(report: Report) -> None:
            if report.survivors:
                return answer({"error": "the old kernel could not be ended", "report": report.to_dict()})
            self._keep_place()
            try:
                self.kernel.spawn(request["kernel"], folder_path(request["kernel"]["cwd"]))
            except OSError as error:
                where = f"{error.filename}: " if error.filename else ""
                return answer({"error": f"it could not be started: {where}{error.strerror or error}"})
            except UnknownKernelspecError as error:
                return answer({"error": f"it could not be started: {error}"})
            except _MALFORMED as error:
                return answer({"error": f"it could not be started: {type(error).__name__}: {error}"})
            return answer({"kernel": self._facts()})

        self._stop(float(request.get("term_grace", 0)), launch)

    def _do_cell(self, request: dict[str, Any], answer: Answer) -> None:
        """Give a cell's messages out of the journal: after the answer come their parts, all in one row.

        The first one is the request. A cell has more of them than one answer can carry: this one begins with number
        `first`, and its own `next` says which one to ask for then, or is None when there are no more.
        """
        cell = self.journal.find(str(request.get("msg_id")))
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

    def _do_serve(self, request: dict[str, Any], answer: Answer) -> None:
        """Note which kinds of calls out of the kernel the client answers, and under which name (`callers.py`)."""
        kinds = {str(kind) for kind in request["kinds"]}
        self.callers.announced(request["client"], kinds, str(request["name"]))
        answer({})

    def _do_seen(self, request: dict[str, Any], answer: Answer) -> None:
        """Note that a client has told its user how these jobs ended."""
        self.jobs.seen([int(number) for number in request["jobs"]])
        answer({})

    def _do_notebook(self, request: dict[str, Any], answer: Answer) -> None:
        """Note that the kernel's notebook has another path now."""
        self.kernel.rename(str(request["path"]))
        answer({})
