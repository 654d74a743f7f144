"""Tables on a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def print_table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows below a heading, in columns."""
    for line in in_columns([heading, *rows]):
        print(line)


def in_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines, in columns as wide as they need to be; the last one is not padded."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True)).rstrip() for row in rows
    ]
