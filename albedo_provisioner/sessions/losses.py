"""Why what earlier calls had put into a session's kernels is gone: on record until somebody has been told, in order.

It is a text of a line for each thing that happened, as one may follow another before anybody hears of the first: a
kernel was killed, the one after it had to make room, and the session was moved.
"""

from __future__ import annotations

from .entries import SessionRecord
from .results import KernelReport

_RESET = "it was reset."
_MOVED = "The session was moved "
"""With these begin lines about what a caller wanted; all others are about losses."""

_MOST = 8
"""Things that are told; of more, those in the middle are only counted."""


def note_loss(record: SessionRecord, why: str, news: str = "") -> str:
    """Note that the state is gone although nobody asked for that, and return the line for it.

    Args:
        record: what is on record of the session.
        why: why, in words that follow "The state of earlier calls was lost:".
        news: what else is to be told: sentences.
    """
    return _note(record, why if why.endswith(".") else f"{why}.", news)


def note_reset(record: SessionRecord, news: str = "") -> str:
    """Note that the state is gone because a caller wanted a fresh kernel, and return the line; see `note_loss`."""
    return _note(record, _RESET, news)


def note_move(record: SessionRecord, before: object, after: object, news: str = "") -> None:
    """Note that the session was moved, and has a fresh kernel in the new place; see `note_loss`."""
    _note(record, f"{_MOVED}from {before} to {after}; it has a fresh kernel.", news)


def _note(record: SessionRecord, why: str, news: str) -> str:
    words = f"{why} {news}".encode("utf-8", "backslashreplace").decode()  # what is on record has to be text
    line = " ".join(words.split())
    record.lost = line if record.lost is None else f"{record.lost}\n{line}"
    return line


def losses(lost: str | None) -> list[str]:
    """Return what has been noted, a line for each, oldest first; there is nothing in None."""
    return [] if lost is None else lost.split("\n")


def is_reset(line: str) -> bool:
    """Whether a line is about a reset."""
    return line.startswith(_RESET)


def tell_losses(lines: list[str], report: KernelReport, notes: list[str], *, asked: bool = False) -> None:
    """Put into a report that the state of earlier calls is gone, and why.

    Args:
        lines: as `losses` returns them.
        report: the report.
        notes: what its note is made of.
        asked: whether the last reset was asked for by the very call that the report is for, so that it needs no words.
    """
    resets = [number for number, line in enumerate(lines) if is_reset(line)]
    own = resets[-1] if asked and resets else None
    said: list[str] = []
    for number, line in enumerate(lines):
        if is_reset(line):
            report.state_reset = True
            words = "" if number == own else "The session was reset, so the state of earlier calls is gone."
            said.append(f"{words}{line.removeprefix(_RESET)}".strip())
        elif line.startswith(_MOVED):
            report.state_reset = True
            said.append(line)
        else:
            report.state_lost = True
            said.append(f"The state of earlier calls was lost: {line}")
    said = [words for words, before in zip(said, ["", *said], strict=False) if words and words != before]
    if len(said) > _MOST:
        said[_MOST // 2 : -_MOST // 2] = [f"(And {len(said) - _MOST} times more.)"]
    notes += said
