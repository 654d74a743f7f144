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
from typing import Any

import zmq

from . import in_use, rundir
from .callers import Callers
from .client import Client
from .ending import Ending
from .heap import give_back
from .job_watch import JobWatch
from .journal import MOST_BYTES, MOST_CELLS, Journal
from .kernel import Kernel
from .messages import CONTENT, HEADER, json_part
from .place import LostError, Place, TakenError
from .protocol import Attached, Event, Received
from .question import Question
from .reception import Reception
from .relatives import Relatives
from .requests import Requests
from .spawn import boot_id
from .wire import CALL, CONTROL, IOPUB, KEEPER, NOTE, SHELL, STDIN, TOLD_TO_END, Buffer

HOLD = 64 << 20
"""Bytes held for a client that is away, unless the request says otherwise."""

GRACE = 24 * 3600.0
"""Seconds that an idle kernel without any client is kept, unless the request says otherwise."""

UNCLAIMED = 120.0
"""Seconds after which a kernel that no client ever linked to is ended: its start was given up on the way."""

_HOUSEKEEPING = 10.0


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
        self._relatives = Relatives(path, self.kernel, subreaper)
        self._ending = Ending(self.kernel, self.clients, self._relatives, subreaper)
        self._requests = Requests(
            self.kernel,
            self._ending,
            self.journal,
            self.jobs,
            self.callers,
            self._unanswered,
            self._keep_place,
            self._facts,
        )
        self._interrupts = self._requests.interrupts
        self._interrupted: list[str] = []  # ids of the cells that a kernel was interrupted in, and ended with
        self._tended_at = time.monotonic()

    # -- the loop --------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the kernel has been ended and everybody knows."""
        ending = self._ending
        while ending.over_at is None or (time.monotonic() < ending.over_at and not self.clients.settled):
            ready = dict(self._poller.poll(self._pause()))
            now = time.monotonic()
            if ready.pop(self._wake, None):
                self._take_signals()
            self.callers.serve(ready, now)
            self.jobs.serve(ready, now)  # before the kernel: a cell's reply must not be there before what it did
            self.clients.serve(ready, now)
            self.kernel.serve(ready, now)
            self._interrupts.serve(now)
            ending.serve(now)
            self._relatives.serve(now)
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
        if self._place.ours or self._ending.under_way:
            return
        try:
            self.clients.listen_at(self._place.make_anew(self._fill_place))
        except TakenError:
            self.kernel.end_asked("was ended because another keeper has its run directory")
            self._ending.finish("another keeper has its run directory")
        except LostError:
            self.kernel.end_asked("was ended because its home was removed")
            self._ending.finish("its home was removed")
        except OSError as error:  # a full disk, say: those who are linked to it are served all the same
            print(f"The run directory cannot be made anew: {error}", file=sys.stderr, flush=True)
        else:
            self.jobs.begin_anew()

    def _fill_place(self) -> None:
        self.callers.listen_anew()
        self.kernel.write_files()
        self._relatives.write()

    def _pause(self) -> int:
        """Milliseconds until something is due by the clock."""
        now = time.monotonic()
        due = [self._tended_at + _HOUSEKEEPING, *self.clients.due, *self._interrupts.due, *self.jobs.due]
        due += [*self._ending.due, *self._relatives.due]
        if (at := self.kernel.due(now)) is not None:
            due.append(at)
        return math.ceil(max(0.0, min(due) - now) * 1000)

    def _take_signals(self) -> None:
        while True:
            try:
                numbers = os.read(self._wake, 512)
            except BlockingIOError:
                break
            if signal.SIGTERM in numbers:
                self.kernel.end_asked(TOLD_TO_END)
                self._ending.finish("the keeper was told to end (SIGTERM)")
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
        self._relatives.look()
        self.jobs.look()
        in_use.renew(now)
        if self._ending.under_way:
            return
        self._keep_place()
        if self.clients.attached or self.kernel.asked or self.jobs.running:
            return
        if now - max(self.kernel.active, self.jobs.ended_at, self.clients.away_since or 0.0) > (
            self._grace if self.clients.ever else UNCLAIMED
        ):
            self._ending.finish("nobody was linked to it any more" if self.clients.ever else "its client never came")

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
            self._requests.take(client, event.parts)
        elif event.channel == CALL:
            self.callers.heard(client, event.parts)
        elif event.channel not in (IOPUB, NOTE):
            if event.channel == SHELL and self._ending.finishing:
                return  # the end overtakes what was sent before it: nobody is to do that any more
            if event.channel == STDIN and self.question.settled():
                self._changed()
            elif event.channel == CONTROL and json_part(event.parts, HEADER).get("msg_type") == "shutdown_request":
                restart = json_part(event.parts, CONTENT).get("restart") is True
                self.kernel.end_asked(f"was {'restarted' if restart else 'shut down'} by a client: {client.name}")
            if self.kernel.ask(client.link_id, event.channel, list(event.parts)) and event.channel == SHELL:
                self.journal.asked(event.parts)

    def _unanswered(self, cell: str, interrupted: bool) -> None:
        """The kernel is done with a cell and has not answered it: have nobody wait for that."""
        self.kernel.answered(cell)
        self.journal.unanswered(cell)
        note = json.dumps({"note": "unanswered", "cell": cell, "interrupted": interrupted}).encode()
        for client in self.clients:
            client.link.send(NOTE, [note])
