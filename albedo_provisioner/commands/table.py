"""Tables and lines on a terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from typing import TextIO

_GAP = "  "
_NARROWEST = 8
"""Characters below which no column is cut."""


def printable(text: str) -> str:
    """Return a text that stands in a line of a terminal and does nothing else there, whatever a file is called."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def say(text: object, file: TextIO | None = None) -> None:
    """Print what is meant for people, in its lines, and nothing that does anything else on a terminal: what hosts,
    files and notebooks are called, and what hosts say, may hold anything.

    Args:
        text: the text.
        file: standard output if it is None.
    """
    print("\n".join("\t".join(map(printable, line.split("\t"))) for line in str(text).split("\n")), file=file)


def print_table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows below a heading, in columns: whole, or as wide as the terminal when standard output is one."""
    for line in in_columns([heading, *rows], terminal_width()):
        print(line)


def terminal_width() -> int | None:
    """Return how many characters a line of standard output may have; None when that is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def in_columns(rows: Sequence[Sequence[str]], width: int | None = None) -> list[str]:
    """Return rows as lines, in columns as wide as they need to be; the last one is not padded.

    Args:
        rows: cells, the same number in each; see `printable`. The first one of a row is what it is known by, and is
            never cut.
        width: characters that a line may have: the widest cells lose their middle then. None for as many as it takes.
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    over = sum(widths) + len(_GAP) * (len(widths) - 1) - width if width is not None else 0
    while over > 0:
        widest = max(range(1, len(widths)), key=lambda column: widths[column], default=0)
        if widest == 0 or widths[widest] <= _NARROWEST:
            break
        widths[widest] -= 1
        over -= 1
    return [
        _GAP.join(_cut(cell, width).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _cut(cell: str, width: int) -> str:
    """Return a cell that is too long without its middle: of a path, both ends tell the most."""
    if len(cell) <= width:
        return cell
    end = (width - 1) // 2
    return f"{cell[: width - 1 - end]}…{cell[len(cell) - end :]}"
