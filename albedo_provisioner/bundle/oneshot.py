"""Running code once, without a kernel: in a fresh interpreter, its output sent as it comes, all of it ended at the end.

For a host on which no kernel can be started. The code sees what it would see in a kernel, `__main__`, top-level `await`
and the value of its last expression included, but what needs IPython (`fresh.py`).

The code is asked for, when the interpreter is there: a client that was not asked knows that nothing of it was run. From
then on each byte of the client's is an interrupt, and its end is the code's. The end of the interpreter's own process
ends the run, whoever holds its output open: what the code has left behind ends with it, as with a kernel.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import selectors
import signal
import struct
import subprocess
import sys
import termios
import time
from types import FrameType
from typing import Any

from . import processes
from .entry import fail, folder, report, words_of
from .heap import MemoryDeath
from .ladder import Ladder
from .spawn import MARK, environment
from .texts import text_of

INTERRUPT_GRACE = 5.0
"""Seconds that code which has been interrupted has to come to its end."""

MOST_CODE = 256 << 20
"""Bytes that the code may have."""

_MOST_TOLD = 128 << 20
"""Bytes of the interpreter's word on what came of the code that are taken."""

_ALIVE = 5.0
"""Seconds after which the client is told that there is nothing to tell."""

_READ = 65536
_PIECE = 100_000  # characters of what came of the code that go in one report

_TERM_GRACE = 0.5
"""Seconds for what is left when the interpreter has ended to end on TERM."""

_MOST_NAMES = 20


class _GoneError(Exception):
    """The client has gone away, and nobody waits for the code."""


def run(request: dict[str, Any]) -> None:
    """Run code in the folder `cwd`, with `env` added to the environment, for at most `timeout` seconds (None for no
    limit). Report its output, and at last what came of it.

    Once interrupted, for whatever reason, it has `grace` seconds. When the client goes away it is ended.
    """
    path = folder(request["cwd"])
    # By a child, which has no children: what the account's shells have left running is ours, and not the code's.
    try:
        child = os.fork()
    except OSError as error:
        fail("spawn", program=sys.executable, detail=words_of(error))
    if child:
        os.waitpid(child, 0)
        return
    processes.become_subreaper()
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGHUP, _leave)
    mark = f"once-{os.urandom(8).hex()}"
    env = environment(request.get("env", {}), dict(os.environ))
    env.update({MARK: mark, "PWD": path, "PYTHONUNBUFFERED": "1"})
    done = None
    try:
        with _Interpreter(path, env, request.get("grace", INTERRUPT_GRACE)) as interpreter:
            report(need="code")
            interpreter.give(_take_code())
            interpreter.watch(request.get("timeout"))
            done = interpreter.told()
    except (_GoneError, BrokenPipeError, ConnectionResetError):
        pass  # nobody is there to be told
    finally:
        found = Ladder([], own_children=True, mark=mark, term_grace=_TERM_GRACE, reap=processes.reap).run()
    if done is not None:
        ended = [process.name for process in found.ended if process.how != "exit"]
        left = [f"{process.name} ({process.pid}): {process.why}" for process in (*found.survivors, *found.foreign)]
        report(done={**done, "ended": ended[:_MOST_NAMES], "count": len(ended), "left": left[:_MOST_NAMES]})


def _leave(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)  # what was started ends on the way


def _take_code() -> bytes:
    """Take the code from the client: its length, and that many bytes."""
    size = struct.unpack("!I", _take(4))[0]
    if size > MOST_CODE:
        fail("request", detail=f"code of {size} bytes")
    return _take(size)


def _take(size: int) -> bytes:
    taken = bytearray()
    while len(taken) < size:
        piece = os.read(0, min(size - len(taken), 1 << 20))
        if not piece:
            raise _GoneError
        taken += piece
    return bytes(taken)


class _Interpreter:
    """A fresh interpreter, which is ended on leaving the context.

    Args:
        path: its folder.
        env: its environment.
        grace: seconds from an interrupt to KILL.
    """

    def __init__(self, path: str, env: dict[str, str], grace: float) -> None:
        self._grace = grace
        self._said = bytearray()
        self._texts = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
        self._timed_out = self._interrupted = self._killed = False
        self._kill_at: float | None = None
        self._unsent = False  # whether an interrupt waits for the code to begin
        # Its end must wake us, whatever else there is to wait for: others may hold its output open.
        self._woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._telling, telling = os.pipe()
        giving, self._giving = os.pipe()
        text = text_of("fresh")
        try:
            self._process = subprocess.Popen(
                # -P: nothing of the folder may be imported before the code is run.
                [sys.executable, "-P", "-c", text, str(telling), str(giving)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=path,
                env=env,
                pass_fds=(telling, giving),
                start_new_session=True,
            )
        except OSError as error:
            fail("spawn", program=sys.executable, detail=words_of(error))
        os.close(telling)
        os.close(giving)
        self._memory = MemoryDeath(self._process.pid)

    def __enter__(self) -> _Interpreter:
        return self

    def __exit__(self, *_: object) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()

    def give(self, code: bytes) -> None:
        """Hand the code over, which begins then."""
        try:
            # Longer than a pipe, it is read while it is written: the interpreter reads it before anything else.
            with os.fdopen(self._giving, "wb") as pipe:
                pipe.write(code)
        except BrokenPipeError:
            pass  # the interpreter has ended already, and `told` says so

    def told(self) -> dict[str, Any]:
        """Tell the client what came of the code, and return how the interpreter ended."""
        line = self._said.partition(b"\n")[2]
        if line.endswith(b"\n"):  # else it ended before it could tell
            text = line.decode()
            for start in range(0, len(text), _PIECE):
                report(outcome=text[start : start + _PIECE])
        return {
            "code": self._process.returncode,
            **({} if self._killed else self._memory.facts(self._process.returncode)),
            "timed_out": self._timed_out,
            "interrupted": self._interrupted,
            "killed": self._killed,
        }

    def watch(self, timeout: float | None) -> None:
        """Report the output until the process has ended; interrupt it when its time is over, or when that is asked.

        Raises:
            _GoneError: the client has gone away.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        streams = [(self._process.stdout.fileno(), "stdout"), (self._process.stderr.fileno(), "stderr")]
        with selectors.DefaultSelector() as selector:
            for descriptor, name in (*streams, (self._telling, "told"), (0, "client"), (self._woken, "woken")):
                selector.register(descriptor, selectors.EVENT_READ, name)
            while self._process.poll() is None:
                ready = selector.select(self._pause(deadline))
                for key, _ in ready:
                    data = os.read(key.fd, _READ)
                    if key.data == "client":
                        if not data:
                            raise _GoneError
                        self._interrupted = True
                        self._interrupt()
                    elif not data:
                        selector.unregister(key.fd)
                    else:
                        self._take(key.data, data)
                if not ready:
                    self._memory.renew()
                    report(alive=True)
                if deadline is not None and time.monotonic() >= deadline and not self._timed_out:
                    self._timed_out = True
                    self._interrupt()
                if self._kill_at is not None and time.monotonic() >= self._kill_at and not self._killed:
                    self._killed = True
                    self._signal(signal.SIGKILL)
        # What is there now is the code's. What it has left running may go on writing for as long as it likes.
        for descriptor, name in (*streams, (self._telling, "told")):
            left = _waiting(descriptor)
            while left > 0 and (data := os.read(descriptor, min(left, _READ))):
                left -= len(data)
                self._take(name, data)
        for name, decoder in self._texts.items():
            self._print(name, decoder.decode(b"", True))

    def _take(self, name: str, data: bytes) -> None:
        if name in self._texts:
            self._print(name, self._texts[name].decode(data))
        elif name == "told" and len(self._said) < _MOST_TOLD:
            self._said += data
            if self._unsent:
                self._unsent = False
                self._signal(signal.SIGINT)

    def _print(self, name: str, text: str) -> None:
        if text:
            report(output={"name": name, "text": text})

    def _interrupt(self) -> None:
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._grace
        if self._said:
            self._signal(signal.SIGINT)
        else:
            self._unsent = True  # an interpreter that is not set up yet would end without a word

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:  # not waited for yet, so the group is still its own
            os.killpg(self._process.pid, number)

    def _pause(self, deadline: float | None) -> float:
        due = [each for each in (None if self._timed_out else deadline, self._kill_at) if each is not None]
        return _ALIVE if self._killed or not due else max(0.0, min(_ALIVE, min(due) - time.monotonic()))


def _waiting(descriptor: int) -> int:
    """Return how many bytes there are to be read from a pipe."""
    return int(struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4))[0])
