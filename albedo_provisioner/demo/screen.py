"""What the demonstration shows: one line a step, each as it happens, in a screenful of 80 columns.

On a terminal the step under way is shown too and rewritten in place. Elsewhere (a pipe, a log), with `NO_COLOR` set
or on a dumb terminal, only finished lines are written, and no escape sequence ever.
"""

from __future__ import annotations

import os
import shutil
from typing import Literal, TextIO

WIDTH = 79
_LABEL = 9
_ERASE_LINE = "\r\x1b[2K"
_COLOURS = {"good": "32", "bad": "31", "event": "33", "plain": "0"}

Mark = Literal["good", "bad", "event", "plain"]


class Screen:
    """Writes step lines to a stream.

    Args:
        stream: where to; its encoding decides how marks look.

    Attributes:
        lively: the stream is a terminal that takes colours and rewriting.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lively = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._open = False  # whether an unfinished line stands at the bottom
        try:
            "✓✗".encode(stream.encoding or "ascii")
            self._marks = {"good": "✓", "bad": "✗", "event": "!", "plain": " "}
        except UnicodeEncodeError:
            self._marks = {"good": "+", "bad": "X", "event": "!", "plain": " "}

    def under_way(self, label: str, text: str) -> None:
        """Show a step that is not finished; the next line takes its place. Nothing happens but on a terminal."""
        if not self.lively:
            return
        columns = min(WIDTH, shutil.get_terminal_size().columns - 1)
        self._open = True
        self._stream.write(f"{_ERASE_LINE}{self._compose(' ', label, text, columns)}")
        self._stream.flush()

    def step(self, label: str, text: str, *, seconds: float | None = None, mark: Mark = "good") -> None:
        """Write the line of a finished step.

        Args:
            label: one word.
            text: what happened; clipped to the screen's width.
            seconds: how long it took.
            mark: "bad" for what should have been otherwise, "event" for what was done on purpose, "plain" for none.
        """
        time = "" if seconds is None else f" {seconds:.1f} s"
        line = self._compose(self._marks[mark], label, text, WIDTH - len(time)).ljust(WIDTH - len(time)) + time
        line = line.rstrip()
        if self.lively:
            # The mark's own colour, and the rest in the terminal's: readable on any background.
            line = f" \x1b[{_COLOURS[mark]}m{line[1]}\x1b[0m{line[2:]}" if len(line) > 1 else line
        self.say(line)

    def say(self, text: str = "") -> None:
        """Write a line as it is."""
        self.clear()
        self._stream.write(text + "\n")
        self._stream.flush()

    def clear(self) -> None:
        """Take the unfinished line away."""
        if self._open:
            self._open = False
            self._stream.write(_ERASE_LINE)
            self._stream.flush()

    @staticmethod
    def _compose(mark: str, label: str, text: str, width: int) -> str:
        line = f" {mark} {label:<{_LABEL}} {text}"
        return line if len(line) <= width else line[: width - 3] + "..."
