"""The jobs' supervisor: starts the programs that a kernel's cells run as jobs, is their parent, takes their output.

A process of its own, made by the kernel at its first job (`job_calls.py`). In the kernel, native code could keep a
job's end from being noticed; in the keeper, a job that floods output would keep the links waiting, and all exit codes
would be lost with a keeper that is killed. So it is neither: whatever kernel and keeper are at, exit codes are
collected, pipes emptied and timeouts kept, and a keeper that takes another's place finds it by its socket.

When the kernel's process is gone the supervisor ends all jobs, with all that belongs to them, and itself. When it is
killed the keeper ends the jobs (`job_watch.py`). And a keeper that ends its kernel ends everything that descends from
it or bears its mark, jobs and supervisor alike (`ladder.py`).

One thread, one loop; nothing in it waits.
"""

from __future__ import annotations

import os
import resource
import selectors
import signal
import socket
import sys
import time

from . import ROOT, in_use, processes, rundir
from .job_output import excerpt
from .job_process import JobProcess, Order
from .job_wire import MARK, Talk, TalkError
from .ladder import Ladder
from .peer import peer_uid

TYPE_CHECKING = False  # not from typing: see processes.py
if TYPE_CHECKING:
    from typing import Any, NoReturn

MOST_RUNNING = 200
"""Jobs that may run at once."""

_SPARE = 100
"""Descriptors that are left for other things than jobs."""

MOST_FILES, MOST_BYTES = 200, 1 << 30
"""Jobs that have ended whose output is kept, and how much altogether; the oldest goes first."""

MOST_KNOWN = 1000
"""Jobs that have ended of which is known how."""

MOST_TOLD = 100
"""Of them, those that are told of in a list."""

MOST_EXCERPT = 1 << 20

MOST_KEYS = 1000

_LOOK = 1.0
"""Seconds between looks whether the kernel is there, where the system cannot tell when it goes."""

_END_GRACE = 2.0

_MALFORMED = (LookupError, TypeError, ValueError, AttributeError, OverflowError)


class RefusedError(Exception):
    """A request cannot be done; the words say why."""


class UnknownJobError(RefusedError):
    """It is about a job that is not known here: of an earlier supervisor, or too long ago."""


class Supervisor:
    """See the module's head.

    Args:
        folder: the directory for output.
        mark: what the marks of the jobs begin with: the kernel's id.
        kernel: the kernel's process.
        listener: our socket, listening.
        wake: descriptor that gets a byte whenever a child has ended.
    """

    def __init__(self, folder: str, mark: str, kernel: processes.Identity, listener: socket.socket, wake: int) -> None:
        self._folder = folder
        self._mark = mark
        self._kernel = kernel
        self._looked_at = time.monotonic()
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._jobs: dict[int, JobProcess] = {}
        self._running: set[int] = set()
        self._files: dict[int, JobProcess] = {}  # those that have ended and whose output is there, oldest first
        taken = [name.partition(".")[0] for name in os.listdir(folder)]  # by an earlier one that was killed
        self._next = 1 + max((int(number) for number in taken if number.isdigit()), default=0)
        self._talks: dict[Talk, int] = {}  # and what each is waited on for
        self._watchers: list[Talk] = []
        self._keys: dict[str, int] = {}  # of the newest requests to run something, and the jobs that they made
        self._waiting: dict[int, list[Talk]] = {}  # for the ends of jobs
        self._over = False
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, lambda _: self._accept())
        self._selector.register(wake, selectors.EVENT_READ, lambda _: self._woken(wake))
        self._watch_kernel()

    def run(self) -> None:
        """Serve until the kernel has gone; nothing of the jobs is left then."""
        while not self._over:
            for key, events in self._selector.select(self._pause()):
                now_there = self._selector.get_map().get(key.fd)
                if now_there is not None and now_there.data is key.data:  # else what was done for another one closed it
                    key.data(events)
            now = time.monotonic()
            for job in list(self._jobs.values()):
                if job.due is not None and job.due <= now:
                    job.tick(now)
            if now - self._looked_at >= _LOOK and self._kernel_watched is None:
                self._look(now)
            self._flush()
        running = [self._jobs[number].identity for number in self._running]
        marks = {f"{MARK}={self._mark}.{number}" for number in self._jobs}
        Ladder(running, marks=marks, term_grace=_END_GRACE, reap=processes.reap).run()

    def _pause(self) -> float | None:
        due = [job.due for job in self._jobs.values()]
        if self._kernel_watched is None:
            due.append(self._looked_at + _LOOK)
        times = [at for at in due if at is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    # -- the kernel and the children -------------------------------------------------------------------------

    def _watch_kernel(self) -> None:
        """Have the kernel's end noticed. A process that ends makes its pidfd readable."""
        self._kernel_watched: int | None = None
        try:
            self._kernel_watched = processes.open_pidfd(self._kernel[0])
        except ProcessLookupError:
            self._over = True
        if self._kernel_watched is not None:
            self._selector.register(self._kernel_watched, selectors.EVENT_READ, lambda _: self._kernel_gone())
        self._look(time.monotonic())  # it may have gone already, and the pid be another's

    def _look(self, now: float) -> None:
        self._looked_at = now
        if not processes.still_alive([self._kernel]):
            self._kernel_gone()

    def _kernel_gone(self) -> None:
        self._over = True

    def _woken(self, wake: int) -> None:
        try:
            os.read(wake, 512)
        except BlockingIOError:
            pass  # it has been seen to already
        self._reap()

    def _reap(self) -> None:
        ended = processes.reap()
        for job in [job for job in self._jobs.values() if job.exit_code is None and job.pid in ended]:
            job.reaped(ended[job.pid])

    # -- connections -----------------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # it went away, or there are no descriptors left
        if peer_uid(connection) not in (None, os.getuid()):
            connection.close()
            return
        talk = Talk(connection)
        self._talks[talk] = selectors.EVENT_READ
        self._selector.register(connection, selectors.EVENT_READ, lambda events: self._ready(talk, events))

    def _ready(self, talk: Talk, events: int) -> None:
        if not events & selectors.EVENT_READ:
            return  # there is room again: `_flush` sees to that
        try:
            for request in talk.hear():
                self._on_request(talk, request)
        except (EOFError, TalkError):
            self._hang_up(talk)

    def _hang_up(self, talk: Talk) -> None:
        """Nobody is there any more who waits for answers on this connection."""
        if self._talks.pop(talk, None) is None:
            return
        self._selector.unregister(talk.connection)
        talk.close()
        if talk in self._watchers:
            self._watchers.remove(talk)
        for number in list(self._waiting):
            self._waiting[number] = [each for each in self._waiting[number] if each is not talk]

    def _flush(self) -> None:
        # The keeper hears first what the kernel will know.
        for talk in sorted(self._talks, key=lambda talk: talk not in self._watchers):
            if talk.waiting and not talk.flush():
                self._hang_up(talk)
                continue
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if talk.waiting else 0)
            if wanted != self._talks[talk]:
                self._talks[talk] = wanted
                self._selector.modify(talk.connection, wanted, self._selector.get_key(talk.connection).data)

    # -- requests --------------------------------------------------------------------------------------------

    def _on_request(self, talk: Talk, request: dict[str, Any]) -> None:
        actions = {
            "run": self._do_run,
            "wait": self._do_wait,
            "abandon": self._do_abandon,
            "stop": self._do_stop,
            "facts": self._do_facts,
            "read": self._do_read,
            "list": lambda talk, _: talk.say({"jobs": [job.facts() for job in self._newest()]}),
            "watch": self._do_watch,
            "seen": self._do_seen,
        }
        try:
            actions[request["do"]](talk, request)
        except RefusedError as error:
            talk.say({"error": {"words": str(error), "unknown": isinstance(error, UnknownJobError)}})
        except OSError as error:
            talk.say({"error": {"errno": error.errno, "words": error.strerror, "filename": error.filename}})
        except _MALFORMED as error:
            talk.say({"error": {"words": f"{type(error).__name__}: {error}"}})

    def _job(self, request: dict[str, Any]) -> JobProcess:
        job = self._jobs.get(int(request["job"]))
        if job is None:
            raise UnknownJobError(f"job {request['job']} is not known to the one that is there now")
        return job

    def _do_run(self, talk: Talk, request: dict[str, Any]) -> None:
        given = talk.descriptors.popleft() if request["stdin"] == "file" else None
        try:
            order, source = Order(request), None
            if isinstance(request["stdin"], int):
                source = self._job({"job": request["stdin"]})
                if not source.whole or not os.path.exists(source.path):
                    raise RefusedError(
                        f"job {source.number} has said more than is kept of it, or it is not kept any more, so "
                        "another job cannot read it all: start that one earlier, or have more kept (keep=)"
                    )
            self._must_have_room()
            feeding = None
            if source is not None:
                given, feeding = os.pipe()
            try:
                job = JobProcess(
                    self._next,
                    order,
                    given,
                    self._folder,
                    f"{self._mark}.{self._next}",
                    self._selector,
                    self._changed,
                    self._reap,
                )
            except BaseException:
                if feeding is not None:
                    os.close(feeding)
                raise
        finally:
            if given is not None:
                os.close(given)
        self._next += 1
        self._jobs[job.number] = job
        self._running.add(job.number)
        self._keys[str(request["key"])] = job.number
        while len(self._keys) > MOST_KEYS:
            del self._keys[next(iter(self._keys))]
        if source is not None and feeding is not None:
            source.feed(feeding, job)
        self._changed(job)
        talk.say({"job": job.facts()})

    def _must_have_room(self) -> None:
        if len(self._running) >= MOST_RUNNING:
            raise RefusedError(f"{MOST_RUNNING} jobs run already, which is the most")
        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # Nearly all that we wait on is a job's, and has a file beside it.
        if 2 * len(self._selector.get_map()) + _SPARE > allowed:
            raise RefusedError(
                f"{len(self._running)} jobs run, and for more the limit of {allowed} open files is too low"
            )

    def _do_abandon(self, talk: Talk, request: dict[str, Any]) -> None:
        """End what a request made whose asker was interrupted before the answer came: nobody has a handle of it."""
        job = self._jobs.get(self._keys.get(str(request["key"]), 0))
        if job is not None:
            self._see(job)
            job.stop(0)
        talk.say({})

    def _do_wait(self, talk: Talk, request: dict[str, Any]) -> None:
        job = self._job(request)
        if job.ended:
            self._do_facts(talk, request)
        else:
            self._waiting.setdefault(job.number, []).append(talk)

    def _do_stop(self, talk: Talk, request: dict[str, Any]) -> None:
        job = self._job(request)

        def stopped() -> None:
            self._see(job)
            report = None if job.report is None else job.report.to_dict()
            if talk in self._talks:
                talk.say({"job": job.facts(), "report": report})

        job.stop(float(request["grace"]), stopped)

    def _do_facts(self, talk: Talk, request: dict[str, Any]) -> None:
        job = self._job(request)
        if job.ended:
            self._see(job)
        talk.say({"job": job.facts()})

    def _do_read(self, talk: Talk, request: dict[str, Any]) -> None:
        file = self._job(request).streams[request["stream"]].file
        head, missing, tail = excerpt(file.path, min(int(request["most"]), MOST_EXCERPT), file.cut)
        talk.say({"head": head.decode("latin-1"), "missing": missing, "tail": tail.decode("latin-1")})

    def _do_watch(self, talk: Talk, _: dict[str, Any]) -> None:
        self._watchers.append(talk)
        talk.say({"jobs": [job.summary() for job in self._newest()]})

    def _newest(self) -> list[JobProcess]:
        ended = [number for number in self._jobs if number not in self._running]
        return [self._jobs[number] for number in sorted([*ended[-MOST_TOLD:], *self._running])]

    def _do_seen(self, _: Talk, request: dict[str, Any]) -> None:
        for number in request["jobs"]:
            if number in self._jobs:
                self._see(self._jobs[number])

    # -- what becomes of jobs --------------------------------------------------------------------------------

    def _see(self, job: JobProcess) -> None:
        if not job.seen:
            job.seen = True
            self._tell(job)

    def _changed(self, job: JobProcess) -> None:
        waiting = self._waiting.pop(job.number, []) if job.ended else []
        job.seen = job.seen or bool(waiting)
        self._tell(job)
        for talk in waiting:
            talk.say({"job": job.facts()})
        if job.ended and job.number in self._running:
            self._running.discard(job.number)
            self._bound(job)

    def _tell(self, job: JobProcess) -> None:
        for talk in self._watchers:
            talk.say({"job": job.summary()})

    def _bound(self, job: JobProcess) -> None:
        """Keep no more of jobs that have ended than there may be, now that this one has."""
        self._files[job.number] = job
        size = sum(each.size for each in self._files.values())
        while len(self._files) > MOST_FILES or (size > MOST_BYTES and len(self._files) > 1):
            oldest = self._files.pop(next(iter(self._files)))
            size -= oldest.size
            oldest.remove_files()
        if len(self._jobs) > MOST_KNOWN + MOST_RUNNING:
            del self._jobs[next(number for number, each in self._jobs.items() if each.ended)]


def main() -> NoReturn:
    """Be the supervisor; started by `job_calls.py` in the run directory, with the listening socket and a pipe.

    The pipe gets a byte when the supervisor serves. What goes wrong goes to its standard error, a file.
    """
    in_use.hold(ROOT)
    listener = socket.socket(fileno=int(sys.argv[1]))
    record = rundir.read_record(".") or {}
    kernel = (int(record["pid"]), int(record["start"]))
    wake, alarm = os.pipe()
    for descriptor in (wake, alarm):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    supervisor = Supervisor(_own_folder(sys.argv[2], kernel), os.environ[processes.MARK], kernel, listener, wake)
    _tell_keeper(record)
    supervisor.run()
    sys.exit(0)


def _own_folder(parent: str, kernel: processes.Identity) -> str:
    """Return the folder for the output of this kernel's jobs; that of a kernel before it goes."""
    own = f"{kernel[0]}-{kernel[1]}"
    for name in os.listdir(parent):
        if name != own:
            import shutil

            shutil.rmtree(os.path.join(parent, name), ignore_errors=True)
    path = os.path.join(parent, own)
    os.makedirs(path, 0o700, exist_ok=True)
    return path


def _tell_keeper(record: dict[str, Any]) -> None:
    """Have the keeper look for our socket: it does whenever it is told that a child has ended."""
    keeper = record.get("keeper")
    if keeper:
        processes.signal_process((int(keeper[0]), int(keeper[1])), signal.SIGCHLD)
