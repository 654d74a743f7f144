"""What a command waits for, said on stderr: to a person at a terminal as it goes on, in one line that is rewritten in
place and goes away at the end; to a pipe or a log only when it takes long, once, and where that is wanted.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..hosts.activity import Activity, Doing
    from ..hosts.progress import Progress

PATIENCE = 3.0
"""Seconds before a pipe or a log is told, by a command that may take minutes."""

_BAR = 24
_ERASE_LINE = "\r\x1b[2K"

_STEPS = {
    "connecting": "connecting",
    "asking": "waiting for its answer",
    "staging": "copying what is needed",
    "starting": "starting",
    "measuring": "measuring the way there",
}


class Waiting:
    """The line, for as long as something is waited for.

    Args:
        text: what is shown while no host is being talked to.
        lively: rewrite it in place.
    """

    def __init__(self, text: str, lively: bool) -> None:
        self._text = text
        self._lively = lively
        self._shown = ""
        self._asides = 0
        self._lock = threading.RLock()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Take the line away while something else is printed."""
        with self._lock:
            self._asides += 1
            if self._shown:
                _write(_ERASE_LINE)
            try:
                yield
            finally:
                sys.stdout.flush()
                self._asides -= 1
                self._draw(self._shown)

    def say(self, text: str) -> None:
        """Show a line; an empty one takes it away."""
        with self._lock:
            if text != self._shown:
                self._draw(text)

    def follow(self, doing: Mapping[str, Doing]) -> None:
        """Show what is going on at the hosts."""
        self.say(_line(doing) or self._text)

    def _draw(self, text: str) -> None:
        self._shown = text
        if self._lively and not self._asides:
            _write(_ERASE_LINE + text[: shutil.get_terminal_size().columns - 1])


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


@contextlib.contextmanager
def waiting(text: str, patience: float | None = None) -> Iterator[Waiting]:
    """Say what is waited for, as long as the block lasts.

    Args:
        text: one line, for as long as nothing more precise is known.
        patience: seconds before a pipe or a log is told; None for never.
    """
    terminal = sys.stderr.isatty()
    if terminal and os.environ.get("TERM") != "dumb":
        line = Waiting(text, True)
        line.say(text)
        with _followed(line):
            yield line
        line.say("")
        return
    if terminal:
        _write(f"{text}\n")
    timer = threading.Timer(patience or 0.0, lambda: _write(f"{text}\n"))
    timer.daemon = True
    if not terminal and patience is not None:
        timer.start()
    try:
        yield Waiting(text, False)
    finally:
        timer.cancel()


@contextlib.contextmanager
def _followed(line: Waiting) -> Iterator[None]:
    """Have a line follow what goes on at the hosts; it is taken away when that fails, too."""
    from ..hosts.activity import Activity
    from ..hosts.io_thread import IOThread

    thread = IOThread.get()
    thread.call_soon(lambda: _activity(Activity).watch(line.follow))
    try:
        yield
    except BaseException:
        line.say("")
        raise
    finally:
        thread.call_soon(lambda: _activity(Activity).unwatch(line.follow))


def _activity(kind: type[Activity]) -> Activity:
    return kind.get()


def _line(doing: Mapping[str, Doing]) -> str:
    """Return what is going on in one line."""
    if len(doing) > 1:
        return f"{len(doing)} hosts: {', '.join(f'{host} ({each.step})' for host, each in doing.items())}"
    for host, each in doing.items():
        if each.progress is not None:
            return f"{host}: {each.progress}{_bar(each.progress)}"
        return f"{host}: {_STEPS.get(each.step, each.step)} ..."
    return ""


def _bar(progress: Progress) -> str:
    if not progress.all or not progress.packages:
        return " ..."
    full = min(_BAR, _BAR * progress.done // progress.all)
    return f"  [{'#' * full}{'-' * (_BAR - full)}]"
