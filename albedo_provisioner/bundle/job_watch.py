"""The keeper's view of its kernel's jobs: what their supervisor tells, for clients and for the keeper's own decisions.

The supervisor is found by its socket in the run directory, also by a keeper that takes the place of another one. Should
it be killed while the kernel lives, nobody reads its jobs' output or learns how they end: they are ended here, and are
told as lost.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import Any

import zmq

from .job_wire import MARK, SOCKET, Talk, TalkError
from .ladder import Ladder

MOST = 200
"""Jobs that are remembered beside those that run."""

_TERM_GRACE = 2.0

_LOST = "the process that looks after jobs was killed, so the job was ended and its exit code is not known"


class JobWatch:
    """The jobs of a kernel.

    Args:
        base: the run directory's prefix for sockets.
        kernel_id: the kernel's id.
        poller: what the keeper's loop waits on.
        tell: called with what clients have to know: {"event": "jobs", "jobs": [summary, ...], "all": bool}. With `all`
            there are no others; without, the others are as they were.
        reap: waits for children that have ended.
    """

    def __init__(
        self,
        base: str,
        kernel_id: str,
        poller: zmq.Poller,
        tell: Callable[[dict[str, Any]], None],
        reap: Callable[[], None],
    ) -> None:
        self.ever = False
        """Whether there have been any."""
        self.ended_at = 0.0
        """When one of them ended last, by the clock that only goes forward."""
        self._path = base + SOCKET
        self._mark = f"{MARK}={kernel_id}"
        self._poller = poller
        self._tell = tell
        self._reap = reap
        self._talk: Talk | None = None
        self._jobs: dict[int, dict[str, Any]] = {}  # their summaries, oldest first
        self._ladder: Ladder | None = None
        self._ladder_at = 0.0

    @property
    def running(self) -> bool:
        """Whether any of them runs."""
        return any(job["state"] in ("running", "stopping") for job in self._jobs.values())

    def news(self) -> dict[str, Any]:
        """Return what a client that comes has to know."""
        return {"event": "jobs", "jobs": list(self._jobs.values()), "all": True}

    def look(self) -> None:
        """Connect to the supervisor if there is one by now."""
        if self._talk is not None or not os.path.exists(self._path):
            return
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            connection.connect(self._path)
        except OSError:  # it was killed, or is busy: then there is a next time
            connection.close()
            return
        self._talk = Talk(connection)
        self._poller.register(connection.fileno(), zmq.POLLIN)
        self._talk.say({"do": "watch"})
        self._talk.flush()

    def serve(self, ready: dict[Any, int], now: float) -> None:
        """Take what the supervisor has said, given what the poller found ready, and do what is due by the clock."""
        talk = self._talk
        if talk is not None and ready.pop(talk.connection.fileno(), 0):
            try:
                for frame in talk.hear():
                    self._take(frame)
            except (EOFError, TalkError, LookupError, TypeError):
                self._lose()
        if self._ladder is not None and now >= self._ladder_at:
            self._climb(now)

    @property
    def due(self) -> list[float]:
        """When, by the clock, `serve` has something to do."""
        return [] if self._ladder is None else [self._ladder_at]

    def begin_anew(self) -> None:
        """The supervisor's socket was removed, so that new jobs go to another one: look for that, unless jobs run."""
        if not self.running:
            self.close()

    def seen(self, numbers: list[int]) -> None:
        """Note that a client has told its user how these ended."""
        for number in numbers:
            if number in self._jobs:
                self._jobs[number]["seen"] = True
        if self._talk is not None:
            self._talk.say({"do": "seen", "jobs": numbers})
            self._talk.flush()

    def forget(self) -> None:
        """The kernel has ended, and its jobs with it."""
        if self._jobs:
            self._jobs.clear()
            self._tell(self.news())

    def close(self) -> None:
        """Watch no more."""
        if self._talk is not None:
            self._poller.unregister(self._talk.connection.fileno())
            self._talk.close()
            self._talk = None

    # -- what is told ----------------------------------------------------------------------------------------

    def _take(self, frame: dict[str, Any]) -> None:
        if "job" in frame:
            self._put(frame["job"])
            self._tell({"event": "jobs", "jobs": [frame["job"]], "all": False})
        elif "jobs" in frame:
            for job in frame["jobs"]:
                self._put(job)
            if self._jobs:
                self._tell(self.news())

    def _put(self, job: dict[str, Any]) -> None:
        self.ever = True
        self._jobs[job["number"]] = job
        if job["state"] == "ended":
            self.ended_at = time.monotonic()
            ended = [number for number, each in self._jobs.items() if each["state"] not in ("running", "stopping")]
            for number in ended[:-MOST]:
                del self._jobs[number]

    def _lose(self) -> None:
        """The supervisor is gone."""
        self.close()
        lost = [number for number, job in self._jobs.items() if job["state"] in ("running", "stopping")]
        for number in lost:
            self._jobs[number].update(state="lost", ended=time.time(), problem=_LOST)
        if lost:
            self._tell(self.news())
            self._ladder = Ladder(
                [], marks=[f"{self._mark}.{number}" for number in lost], term_grace=_TERM_GRACE, reap=self._reap
            )
            self._ladder_at = 0.0

    def _climb(self, now: float) -> None:
        assert self._ladder is not None
        pause = self._ladder.step(now)
        if pause is None:
            self._ladder = None
        else:
            self._ladder_at = now + pause
