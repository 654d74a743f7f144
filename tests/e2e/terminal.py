"""A person at a terminal: a command runs in a pseudo-terminal of its own, and is answered when it asks."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import subprocess
import sys
import termios
import time
from types import TracebackType


class Terminal:
    """A command in a terminal, for the time of a `with` block; it is ended when the block ends.

    Args:
        arguments: the command.

    Attributes:
        shown: all that was shown so far.
    """

    def __init__(self, *arguments: str) -> None:
        self.shown = ""
        self._seen = 0
        self._terminal, theirs = pty.openpty()

        def take_terminal() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self._process = subprocess.Popen(
            arguments,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=take_terminal,
        )
        os.close(theirs)

    def expect(self, text: str, seconds: float = 30) -> None:
        """Wait until a text is shown, after what was waited for before."""
        deadline = time.monotonic() + seconds
        while (at := self.shown.find(text, self._seen)) < 0:
            if not self._read(deadline - time.monotonic()):
                raise AssertionError(f"{text!r} was not shown within {seconds:g} s, but: {self.shown}")
        self._seen = at + len(text)

    def type(self, text: str) -> None:
        """Type a line."""
        self.press(f"{text}\n")

    def press(self, keys: str) -> None:
        """Press keys, such as "\\t"."""
        os.write(self._terminal, keys.encode())

    def end(self, seconds: float = 60) -> int:
        """Wait for the end and return the exit status; all that was shown is in `shown`."""
        deadline = time.monotonic() + seconds
        while self._process.poll() is None:
            self._read(0.05)
            assert time.monotonic() < deadline, f"it does not end: {self.shown}"
        while self._read(0):
            pass
        return self._process.returncode

    def _read(self, seconds: float) -> bool:
        """Take what is shown within so many seconds; False when that is nothing."""
        ready, _, _ = select.select([self._terminal], [], [], max(seconds, 0))
        if not ready:
            return False
        try:
            data = os.read(self._terminal, 65536)
        except OSError:  # nobody has the terminal open any more
            return False
        self.shown += data.decode(errors="replace")
        return bool(data)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._terminal)


def albedo(*arguments: str) -> list[str]:
    """Return the command line of `jupyter albedo`."""
    return [sys.executable, "-m", "albedo_provisioner", *arguments]
