"""Tables on a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def print_table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows below a heading, in columns as wide as they need to be; the last one is not padded."""
    lines = [heading, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heading) - 1)]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, [*widths, 0], strict=True)]
        print("  ".join(cells).rstrip())
