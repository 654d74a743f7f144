"""One job as its supervisor holds it: the program's process, its output, what its output goes to, its end."""

from __future__ import annotations

import os
import selectors
import shlex
import signal
import subprocess
import time

from . import processes
from .job_streams import READ, Feeder, Stream
from .job_wire import MARK
from .ladder import Ladder

TYPE_CHECKING = False  # not from typing: see processes.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .ladder import Report

ASK_GRACE = 1.0
"""Seconds after SIGINT in which a job that is to stop may leave by itself."""

TERM_GRACE = 5.0
"""Seconds between TERM and KILL for a job whose time is over."""

_DRAIN = 1.0
"""Seconds that a program's last output may take to be read, should others flood it or nobody take it."""

_READS = 16  # in one turn: other jobs want theirs too
_LONGEST_COMMAND = 200


class Order:
    """What is to be run, as the kernel's request says it (`jobs.py`).

    Raises:
        LookupError, TypeError, ValueError: it does not.
    """

    def __init__(self, request: dict[str, Any]) -> None:
        self.argv: list[str] = [str(word) for word in request["argv"]]
        self.cwd = str(request["cwd"])
        self.env: dict[str, str] = {str(name): str(value) for name, value in request["env"].items()}
        self.timeout = None if request["timeout"] is None else float(request["timeout"])
        self.merge = bool(request["merge"])
        self.keep = int(request["keep"])


class JobProcess:
    """A program that was started as a job, and what came of it.

    Args:
        number: the job's number.
        order: what to run.
        given: descriptor of its standard input; None for nothing to read.
        folder: where its output goes.
        mark: value of `MARK` for its processes.
        selector: what the supervisor's loop waits on; its data are functions to call with what is ready.
        changed: called when `summary` has changed.
        reap: waits for children that have ended.

    Raises:
        OSError: it cannot be started; `filename` says what it was about.
    """

    def __init__(
        self,
        number: int,
        order: Order,
        given: int | None,
        folder: str,
        mark: str,
        selector: selectors.BaseSelector,
        changed: Callable[[JobProcess], None],
        reap: Callable[[], None],
    ) -> None:
        self.number = number
        self.selector = selector
        self.exit_code: int | None = None
        self.seen = False
        """Whether somebody in the kernel knows of its end, or a client has been told."""
        self.report: Report | None = None
        """What became of its processes, once it has been stopped."""
        self.input_problem = ""
        """Why it did not get all of another job's output."""
        self.feeders: list[Feeder] = []
        self.streams: dict[str, Stream] = {}
        self._argv, self._cwd = order.argv, order.cwd
        self._command = _shortened(shlex.join(order.argv))
        self._mark = f"{MARK}={mark}"
        self._changed = changed
        self._reap = reap
        self._ended = False
        self._timed_out = self._stopped = False
        self._ended_at: float | None = None
        self._drain_until: float | None = None
        self._ladder: Ladder | None = None
        self._ladder_at = 0.0
        self._after_ladder: list[Callable[[], None]] = []
        try:
            for name in ("output",) if order.merge else ("output", "errors"):
                self.streams[name] = Stream(os.path.join(folder, f"{number}.{name}"), order.keep)
            self.pid = self._start(order, given, mark)
        except BaseException:
            for stream in self.streams.values():
                stream.close()
                os.unlink(stream.file.path)
            raise
        finally:
            for stream in self.streams.values():
                os.close(stream.outgoing)
        self.identity = processes.identify(self.pid) or (self.pid, 0)
        self._started = time.time()
        self._deadline = None if order.timeout is None else time.monotonic() + order.timeout
        for stream in self.streams.values():
            self._register(stream)

    def _start(self, order: Order, given: int | None, mark: str) -> int:
        errors = self.streams.get("errors")
        marks = {processes.MARK: mark.rpartition(".")[0], MARK: mark}
        process = subprocess.Popen(
            order.argv,
            cwd=order.cwd,
            env={**order.env, **marks, "PWD": order.cwd},
            stdin=subprocess.DEVNULL if given is None else given,
            stdout=self.streams["output"].outgoing,
            stderr=subprocess.STDOUT if errors is None else errors.outgoing,
            start_new_session=True,
        )
        process.returncode = 0  # it is waited for by us
        return process.pid

    # -- what is known ---------------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether the program has ended and what it said has been read."""
        return self._ended

    @property
    def read_up(self) -> bool:
        """Whether all that the program itself has said on its standard output has been read."""
        return self.streams["output"].read_up

    def summary(self) -> dict[str, Any]:
        """Return what clients are told; it changes seldom."""
        return {
            "number": self.number,
            "command": self._command,
            "pid": self.pid,
            "state": "ended" if self._ended else ("running" if self._ladder is None else "stopping"),
            "exit_code": self.exit_code,
            "timed_out": self._timed_out,
            "stopped": self._stopped,
            "started": self._started,
            "ended": self._ended_at,
            "seen": self.seen,
        }

    def facts(self) -> dict[str, Any]:
        """Return what the kernel is told when it asks."""
        files = {name: stream.file for name, stream in self.streams.items()}
        return {
            **self.summary(),
            "argv": self._argv,
            "cwd": self._cwd,
            "paths": {name: file.path for name, file in files.items()},
            "bytes": sum(file.total for file in files.values()),
            "cut": {name: file.cut for name, file in files.items()},
            "lost": sum(file.lost for file in files.values()),
            "problem": "; ".join(filter(None, [*(file.problem for file in files.values()), self.input_problem])),
        }

    @property
    def path(self) -> str:
        """The file with its output."""
        return self.streams["output"].file.path

    @property
    def whole(self) -> bool:
        """Whether all of its output so far is there, for another job to read."""
        return self.streams["output"].file.whole

    @property
    def size(self) -> int:
        """Bytes of output that are kept."""
        return sum(stream.file.size for stream in self.streams.values())

    # -- output ----------------------------------------------------------------------------------------------

    def _register(self, stream: Stream) -> None:
        self.selector.register(stream.incoming, selectors.EVENT_READ, lambda _: self._read(stream))

    def _read(self, stream: Stream) -> None:
        for _ in range(_READS):
            try:
                data = os.read(stream.incoming, READ)
            except (BlockingIOError, InterruptedError):
                stream.read_up = self.exit_code is not None
                break
            if not data:
                if self._listens(stream):
                    self.selector.unregister(stream.incoming)
                stream.close()
                stream.read_up = True
                break
            stream.file.append(data)
            if self._far_ahead:
                break
        for feeder in self.feeders[:]:
            feeder.look()
        self.throttle()
        self._settle()

    def _listens(self, stream: Stream) -> bool:
        return stream.incoming in self.selector.get_map()

    def throttle(self) -> None:
        """Read no more while another job is far behind, as a pipe makes its writer wait, or go on reading."""
        stream = self.streams["output"]
        if stream.incoming < 0:
            return
        listens = self._listens(stream)
        if listens and self._far_ahead:
            self.selector.unregister(stream.incoming)
        elif not listens and not self._far_ahead:
            self._register(stream)

    @property
    def _far_ahead(self) -> bool:
        """Whether a job that reads the output is so far behind that the middle might be cut before it has read that."""
        file = self.streams["output"].file
        return any(file.total - feeder.position > file.lag // 2 for feeder in self.feeders)

    def feed(self, descriptor: int, reader: JobProcess) -> None:
        """Write the output, which must be `whole`, to another job's input, and close that at the end."""
        feeder = Feeder(self, descriptor, reader)
        self.feeders.append(feeder)
        feeder.look()
        self.throttle()

    def remove_files(self) -> None:
        """Remove the output of a job that has ended."""
        for stream in self.streams.values():
            try:
                os.unlink(stream.file.path)
            except FileNotFoundError:
                pass  # the user did

    # -- the end ---------------------------------------------------------------------------------------------

    def reaped(self, status: int) -> None:
        """Take the program's exit status."""
        self.exit_code = os.waitstatus_to_exitcode(status)
        self._ended_at = time.time()
        self._drain_until = time.monotonic() + _DRAIN
        for stream in self.streams.values():
            if stream.incoming >= 0 and self._listens(stream):
                self._read(stream)
        self._settle()

    def _settle(self) -> None:
        """See whether it has come to its end. Children that it left behind may go on writing."""
        if self._ended or self.exit_code is None or self._drain_until is None:
            return
        if all(stream.read_up for stream in self.streams.values()) or time.monotonic() >= self._drain_until:
            self._ended, self._drain_until = True, None
            self._changed(self)

    def stop(self, grace: float, then: Callable[[], None] | None = None) -> None:
        """End all its processes, those it left behind as well: SIGINT, a second later TERM, `grace` seconds later KILL;
        only KILL when `grace` is 0.
        """
        if then is not None:
            self._after_ladder.append(then)
        if self._ladder is not None:
            return
        running = self.exit_code is None
        self._stopped = running
        if running and grace > 0:
            try:
                os.killpg(self.pid, signal.SIGINT)  # not waited for yet, so the group is still its own
            except (ProcessLookupError, PermissionError):
                pass  # it is about to end, or another account's now: the ladder tells which
        self._ladder = Ladder(
            [self.identity],
            marks=[self._mark],
            ask_grace=ASK_GRACE if running and grace > 0 else 0.0,
            term_grace=grace,
            reap=self._reap,
        )
        self._ladder_at = 0.0
        self._changed(self)

    @property
    def due(self) -> float | None:
        """When, by the clock, `tick` has something to do."""
        times = [self._deadline if self.exit_code is None else None, self._drain_until]
        times.append(None if self._ladder is None else self._ladder_at)
        return min((at for at in times if at is not None), default=None)

    def tick(self, now: float) -> None:
        """Do what is due."""
        if self._deadline is not None and now >= self._deadline:
            self._deadline = None
            if self.exit_code is None:
                self._timed_out = True
                self.stop(TERM_GRACE)
        if self._drain_until is not None and now >= self._drain_until:
            self._settle()
        if self._ladder is not None and now >= self._ladder_at:
            self._climb(now)

    def _climb(self, now: float) -> None:
        assert self._ladder is not None
        try:
            pause = self._ladder.step(now)
        except OSError:  # out of descriptors: nothing is lost by looking again
            pause = 0.1
        if pause is not None:
            self._ladder_at = now + pause
            return
        self._reap()
        self.report, self._ladder = self._ladder.report, None
        after, self._after_ladder = self._after_ladder, []
        self._changed(self)
        for then in after:
            then()


def _shortened(command: str) -> str:
    return command if len(command) <= _LONGEST_COMMAND else command[: _LONGEST_COMMAND - 1] + "…"
