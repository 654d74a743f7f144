"""Programs that a cell starts and does not have to wait for: `from albedo_bundle import run`.

    build = run("make", "-j8", cwd="src", timeout=3600)
    build.tail()            # the last lines of what it has said so far
    build.wait()            # or `await build`: its exit code
    run("grep", "-c", "warning", stdin=build).wait()

A job belongs to its kernel, not to the cell: it goes on when the cell has ended or was interrupted, and while the link
to the host is away. It ends by itself, by `stop`, or together with its kernel, then with all that it has started.
"""

from __future__ import annotations

import asyncio
import errno
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Generator, Mapping
from typing import IO, Any

from . import job_calls
from .job_calls import SupervisorLostError
from .job_output import KEEP, excerpt
from .job_words import duration, how_it_ended

OUTPUT = 256 * 1024
"""Bytes that `Job.output` returns at most."""

_Word = str | bytes | os.PathLike[str] | os.PathLike[bytes]

_PATIENCE = 60.0

_GOING_ON = ("running", "stopping")


class JobError(Exception):
    """Something could not be done with a job; the message says why."""


class Job:
    """A program that was started with `run`. The handle stays good when the program has ended, and when others run.

    Attributes:
        number: by which `find` finds it again.
        argv: the program and its arguments.
        cwd: the folder it was started in.
        pid: its process id on the host, which is also that of its process group and session.
    """

    def __init__(self, argv: list[str], cwd: str, facts: dict[str, Any]) -> None:
        self.number: int = facts["number"]
        self.argv = argv
        self.cwd = cwd
        self.pid: int = facts["pid"]
        self._facts = facts

    # -- how it is -------------------------------------------------------------------------------------------

    @property
    def exit_code(self) -> int | None:
        """Its exit code; minus the signal's number where a signal ended it. None while it runs, and for a job that was
        lost.
        """
        code: int | None = self._look()["exit_code"]
        return code

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return self._look()["state"] in _GOING_ON

    @property
    def timed_out(self) -> bool:
        """Whether it was stopped because its time was over."""
        return bool(self._look()["timed_out"])

    @property
    def _known(self) -> bool:
        """Whether it has ended and we have been told."""
        return self._facts["state"] not in _GOING_ON and bool(self._facts["seen"])

    def _look(self) -> dict[str, Any]:
        """Return what is known of it now."""
        if not self._known:
            try:
                self._take(job_calls.converse({"do": "facts", "job": self.number}))
            except SupervisorLostError as error:
                self._lose(error)
        return self._facts

    def _take(self, answer: dict[str, Any]) -> dict[str, Any]:
        error = answer.get("error")
        if error and "errno" in error:
            raise OSError(error["errno"], error["words"], error["filename"])
        if error:
            raise (SupervisorLostError if error.get("unknown") else JobError)(error["words"])
        if "job" in answer:
            self._facts = answer["job"]
        return answer

    def _lose(self, error: SupervisorLostError) -> None:
        if self._facts["state"] not in _GOING_ON:
            self._facts = {**self._facts, "seen": True}
            return
        problem = f"the process that looks after jobs is gone ({error}), so what became of this one is not known"
        self._facts = {**self._facts, "state": "lost", "seen": True, "problem": problem}

    def __repr__(self) -> str:
        facts = self._look()
        if facts["state"] in _GOING_ON:
            how = f"runs for {duration(time.time() - facts['started'])}"
        else:
            how = how_it_ended(facts)
            if facts["ended"] is not None:  # of one that was lost we know not when, and the keeper tells
                how += f" after {duration(facts['ended'] - facts['started'])}"
        text = f"job {self.number} `{facts['command']}` {how}, pid {self.pid}, {facts['bytes']} bytes of output"
        return f"<{text}; {facts['problem']}>" if facts["problem"] else f"<{text}>"

    # -- waiting ---------------------------------------------------------------------------------------------

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended, and return its exit code. An interrupt ends the wait, and not the job.

        Args:
            timeout: seconds to wait at most; None for as long as it takes. (`run` has a timeout for the job itself.)

        Raises:
            TimeoutError: it runs on.
            JobError: it was lost; the message says why.
        """
        if not self._known:
            try:
                self._take(job_calls.converse({"do": "wait", "job": self.number}, timeout=timeout))
            except SupervisorLostError as error:
                self._lose(error)
            except TimeoutError:
                raise TimeoutError(f"Job {self.number} did not end within {timeout:g} s; it runs on.") from None
            except KeyboardInterrupt:
                raise KeyboardInterrupt(self._runs_on) from None
        return self._code()

    def __await__(self) -> Generator[Any, None, int]:
        """Wait as `wait` does, while the event loop goes on."""
        return self._wait_async().__await__()

    async def _wait_async(self) -> int:
        if not self._known:
            try:
                self._take(await job_calls.converse_async({"do": "wait", "job": self.number}))
            except SupervisorLostError as error:
                self._lose(error)
            except asyncio.CancelledError:
                raise asyncio.CancelledError(self._runs_on) from None
        return self._code()

    @property
    def _runs_on(self) -> str:
        return f"The wait was interrupted. Job {self.number} `{self._facts['command']}` runs on; its stop() ends it."

    def _code(self) -> int:
        code: int | None = self._facts["exit_code"]
        if code is None:
            raise JobError(f"Job {self.number} was lost: {self._facts['problem']}.")
        return code

    # -- output ----------------------------------------------------------------------------------------------

    @property
    def output(self) -> str:
        """What it has said so far: on both of its outputs, or on its standard output alone with `merge_stderr=False`.

        Beyond 256 KiB that is the beginning and the end, with a line between them that says what is missing; the file
        `output_path` has more. What is no UTF-8 comes as "\\ufffd". A FileNotFoundError says that it is not kept any
        more.
        """
        return self._text("output")

    @property
    def errors(self) -> str:
        """What it has said on its standard error, as `output`; empty unless started with `merge_stderr=False`."""
        return self._text("errors") if "errors" in self._facts["paths"] else ""

    @property
    def output_path(self) -> str:
        """The file with its output, on the host. It goes with the kernel, or when 200 later jobs have ended."""
        path: str = self._facts["paths"]["output"]
        return path

    @property
    def errors_path(self) -> str | None:
        """The file with what it said on its standard error; None where that is in the output."""
        path: str | None = self._facts["paths"].get("errors")
        return path

    def tail(self, lines: int = 10) -> str:
        """Return the last lines of `output`."""
        if lines < 1:
            return ""
        return "".join(self.output.splitlines(keepends=True)[-lines:])

    def _text(self, stream: str) -> str:
        self._look()
        try:
            head, missing, tail = self._read(stream)
        except FileNotFoundError as error:
            words = f"the output of job {self.number} is not kept any more"
            raise FileNotFoundError(error.errno, words, self._facts["paths"][stream]) from None
        text = tail.decode(errors="replace")
        if missing:
            path = self._facts["paths"][stream]
            text = f"{head.decode(errors='replace')}\n[{missing} bytes are left out here; see {path}]\n{text}"
        if self._facts["lost"]:
            text += f"\n[{self._facts['lost']} bytes could not be kept: {self._facts['problem']}]\n"
        return text

    def _read(self, stream: str) -> tuple[bytes, int, bytes]:
        """Return what `excerpt` does, by the hand of the supervisor, which may be writing, as long as it is there."""
        try:
            request = {"do": "read", "job": self.number, "stream": stream, "most": OUTPUT}
            answer = self._take(job_calls.converse(request))
            return answer["head"].encode("latin-1"), answer["missing"], answer["tail"].encode("latin-1")
        except SupervisorLostError:
            return excerpt(self._facts["paths"][stream], OUTPUT, self._facts["cut"][stream])

    # -- acting on it ----------------------------------------------------------------------------------------

    def stop(self, grace: float = 5.0) -> int | None:
        """End it and all that it has started, and see that nothing is left; return its exit code.

        It gets SIGINT, as by Ctrl-C; what is left of it a second later SIGTERM; what is left `grace` seconds after that
        SIGKILL. What a program that has ended left behind is ended as well.

        Args:
            grace: seconds; 0 sends SIGKILL at once.

        Raises:
            JobError: something of it could not be ended, or what became of it is not known; the message says why.
        """
        try:
            answer = self._take(job_calls.converse({"do": "stop", "job": self.number, "grace": grace}))
        except SupervisorLostError as error:
            self._lose(error)
            raise JobError(f"Job {self.number} cannot be stopped: {self._facts['problem']}.") from None
        report = answer["report"] or {}
        left = [f"{each['pid']} ({each['name']}): {each['why']}" for each in report.get("survivors", [])]
        left += [f"{each['pid']} ({each['name']}): {each['why']}" for each in report.get("foreign", [])]
        if left:
            raise JobError(f"Of job {self.number} these processes are left: {'; '.join(left)}.")
        return self._facts["exit_code"]  # type: ignore[no-any-return]

    def pipe(self, *argv: _Word, **options: Any) -> Job:
        """Start another job that reads this one's `output`, from its beginning: `run(*argv, stdin=self, ...)`.

        This one waits when the other is slow, as in a shell's pipeline. With `merge_stderr=False` it hands on its
        standard output alone. The other's input ends when this program has ended, whatever it left behind says later.
        """
        return run(*argv, stdin=self, **options)


def run(
    *argv: _Word,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str | None] | None = None,
    stdin: str | bytes | os.PathLike[str] | IO[Any] | Job | None = None,
    timeout: float | None = None,
    merge_stderr: bool = True,
    keep: int = KEEP,
) -> Job:
    """Start a program on the kernel's host, in a process group of its own, and return a handle at once. No shell.

    Args:
        argv: the program and its arguments, one by one: `run("make", "-j8")`.
        cwd: the folder to start it in; None for the kernel's current one.
        env: variables to add to the kernel's environment, or to take out of it (None).
        stdin: what it reads: text (as UTF-8) or bytes; a file that is open for reading, from where that is; a path;
            another job, whose output it reads from the beginning. None for nothing.
        timeout: seconds after which it is stopped, as by `stop`; None for no limit.
        merge_stderr: whether what it says on its standard error is part of its output, or kept apart in `errors`.
        keep: bytes of output that are kept on the host's disk, at least 1 MiB: beyond them the first half and the last
            quarter.

    Raises:
        FileNotFoundError: there is no such program, or folder. Other kinds of OSError: it cannot be run, and why.
        ValueError: that is no program with its arguments; the message says how it is written.
        JobError: it was refused; the message says why.
    """
    words = _words(argv)
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout is {timeout!r}, and has to be seconds above zero, or None for no limit")
    environment = {**os.environ, **(env or {})}
    folder = os.path.abspath(os.getcwd() if cwd is None else os.path.expanduser(cwd))
    kind, descriptors = _input(stdin)
    key = uuid.uuid4().hex
    request = {
        "do": "run",
        "key": key,
        "argv": words,
        "cwd": folder,
        "env": {name: value for name, value in environment.items() if value is not None},
        "stdin": kind,
        "timeout": timeout,
        "merge": merge_stderr,
        "keep": keep,
    }
    try:
        answer = job_calls.converse(request, descriptors, start=True)
    except SupervisorLostError as error:
        raise JobError(f"{words[0]!r} was not started: what looks after jobs ended at once ({error}).") from None
    except KeyboardInterrupt:
        # In a thread, which no further interrupt reaches.
        threading.Thread(target=_abandon, args=(key,), name="albedo-abandon", daemon=True).start()
        raise
    refusal = answer.get("error")
    if refusal and "errno" in refusal:
        raise OSError(refusal["errno"], _why(refusal, words[0], folder, environment), refusal["filename"] or words[0])
    if refusal:
        raise JobError(f"{words[0]!r} was not started: {refusal['words']}.")
    return Job(words, folder, answer["job"])


def find(number: int) -> Job:
    """Return a job of this kernel by its number, should the handle be lost.

    Raises:
        LookupError: there is none.
    """
    for job in every():
        if job.number == number:
            return job
    raise LookupError(f"this kernel has no job {number}")


def every() -> list[Job]:
    """Return all jobs of this kernel, oldest first, those that have ended included."""
    try:
        jobs = job_calls.converse({"do": "list"})["jobs"]
    except SupervisorLostError:
        return []
    return [Job(facts["argv"], facts["cwd"], facts) for facts in jobs]


def _words(argv: tuple[_Word, ...]) -> list[str]:
    words = [os.fsdecode(word) for word in argv]
    if not words or not words[0]:
        raise ValueError('there is nothing to run: run("make", "-j8")')
    if len(words) == 1 and len(words[0].split()) > 1 and not os.path.exists(words[0]):
        parts = ", ".join(f'"{word}"' for word in words[0].split())
        raise ValueError(
            f"run takes the program and its arguments one by one, as there is no shell: run({parts}); "
            f'or, for a shell, run("sh", "-c", {words[0]!r})'
        )
    return words


def _input(stdin: Any) -> tuple[str | int | None, tuple[int, ...]]:
    """Return what the supervisor is told about the standard input, and the descriptor for it."""
    if stdin is None:
        return None, ()
    if isinstance(stdin, Job):
        return stdin.number, ()
    if isinstance(stdin, str | bytes | bytearray | memoryview):
        # In a file without a name, not a pipe: nobody has to stay and write it.
        with tempfile.TemporaryFile() as file:
            file.write(stdin.encode() if isinstance(stdin, str) else stdin)
            file.flush()
            file.seek(0)
            return "file", (os.dup(file.fileno()),)
    if isinstance(stdin, os.PathLike):
        return "file", (os.open(stdin, os.O_RDONLY | os.O_CLOEXEC),)
    try:
        descriptor = os.dup(stdin.fileno())
    except AttributeError:
        raise TypeError(
            f"stdin is text, bytes, a path (pathlib.Path), an open file or a job, not {type(stdin).__name__}"
        ) from None
    try:
        if stdin.seekable():
            os.lseek(descriptor, stdin.tell(), os.SEEK_SET)  # what Python has read ahead is still to be read
    except (AttributeError, OSError, OverflowError):
        pass  # such a file is read from where the system has it, as subprocess would
    return "file", (descriptor,)


def _abandon(key: str) -> None:
    """The call was interrupted before the handle was there: nothing may run that nobody has a handle of."""
    try:
        job_calls.converse({"do": "abandon", "key": key}, timeout=_PATIENCE)
    except (SupervisorLostError, TimeoutError):
        pass  # then it runs no jobs any more, or will never have read the request


def _why(error: dict[str, Any], program: str, folder: str, environment: Mapping[str, str | None]) -> str:
    if error["filename"] == folder:
        return f"the folder to run it in: {error['words']}"
    if error["filename"] == program and error["errno"] == errno.ENOENT and "/" not in program:
        return f"no such program on the PATH {environment.get('PATH')}"
    return str(error["words"])
