"""What the words of a program that has ended tell of its cause."""

from __future__ import annotations

import re

from ..bundle.shadows import MARK

FATAL = "Fatal Python error: "
"""How a Python begins that dies at its start."""


def death_in(printed: str) -> str:
    """Return what a Python that died at its start said of it, in one line; empty if that is not what was printed.

    Args:
        printed: what the host printed, its last part.
    """
    lines = ["".join(filter(str.isprintable, line)).strip() for line in printed.splitlines()]
    at = max((number for number, line in enumerate(lines) if line.startswith(FATAL)), default=-1)
    if at < 0:
        return ""
    home = next((line for line in lines[:at] if line.startswith("PYTHONHOME = '")), "")
    causes = [line for line in lines[at + 1 :] if re.match(r"(?:\w+\.)*\w*(?:Error|Exception)\b", line)]
    return " / ".join([lines[at], *causes[-1:], *([home] if home else [])])[:_MOST_CAUSE]


NO_MORE_TASKS = re.compile("can't start new thread|Resource temporarily unavailable")
"""What programs say that are allowed no more processes or threads."""

_OUR_FRAME = 'File "<string>", line '
_FRAME = re.compile(r'^ *File "(/[^"\n]+)", line \d+', re.MULTILINE)


def module_in_the_way(printed: str) -> str:
    """Return the file in the place of a module of Python's own that ended our code: what `bundle/shadows.py` says, or
    the module that ended the first lines, which import the standard library alone; empty if that was not printed.

    Args:
        printed: what the host printed, its last part.
    """
    told = re.findall(rf"^{re.escape(MARK)}(/.+)$", printed, re.MULTILINE)
    if told:
        return "".join(filter(str.isprintable, told[-1])).strip()
    _, ours, trace = printed.rpartition(_OUR_FRAME)
    return _FRAME.findall(trace)[-1] if ours and _FRAME.search(trace) else ""


_ERROR = re.compile(r"\S*(?:error|exception)\b|(?:\S+:? )?(?:fatal|error|panic)\b", re.IGNORECASE)
_MOST_CAUSE = 300


def cause_in(words: str) -> str:
    """Return what tells why a program ended, of what it printed at its end: from the last line on that begins as errors
    do, else the last line; in one line, and not a long one.

    (R ends with "Execution halted", behind what was wrong; Python's last line is what was wrong.)
    """
    lines = [line for line in words.splitlines() if line.strip()]
    at = max((number for number, line in enumerate(lines) if _ERROR.match(line)), default=len(lines) - 1)
    cause = " / ".join("".join(filter(str.isprintable, line)).strip() for line in lines[max(0, at) :])
    return cause if len(cause) <= _MOST_CAUSE else f"{cause[:_MOST_CAUSE]} …"
