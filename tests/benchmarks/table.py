"""The table, in plain text or Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .hosts import LOCAL, NAMES
from .measures import Measure, Result, Row

_PEER = "sshpyk"


def render(
    measures: Sequence[Measure], results: Mapping[str, Mapping[str, Result]], columns: Sequence[str], markdown: bool
) -> str:
    """Return the table of what was measured.

    Args:
        measures: in which order.
        results: by row key and column name.
        columns: those that were measured.
        markdown: as Markdown instead of plain text.
    """
    names = [name for name in NAMES if name in columns]
    lines = [["", *(name.replace("peer", _PEER) for name in names)]]
    for measure in measures:
        for row in measure.rows:
            if row.key in results:
                lines.append([row.title, *(_cell(row, results[row.key], name) for name in names)])
    notes = [measure.note for measure in measures if measure.note and measure.rows[0].key in results]
    widths = [max(len(line[index]) for line in lines) for index in range(len(lines[0]))]
    if markdown:
        rule = ["---", *("---:" for _ in names)]
        return "\n".join(f"| {' | '.join(line)} |" for line in [lines[0], rule, *lines[1:]]) + "\n\n" + "\n".join(notes)
    text = [
        line[0].ljust(widths[0])
        + "".join("  " + cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
        for line in lines
    ]
    text.insert(1, "-" * (sum(widths) + 2 * len(names)))
    return "\n".join(text) + "\n\n" + "\n".join(notes)


def _cell(row: Row, results: Mapping[str, Result], name: str) -> str:
    result = results.get(name, Result())
    if not result.samples:
        return f"failed: {result.failures[0][:60]}" if result.failures else "–"
    value = row.reduce(result.samples)
    text = _figure(value, row.unit)
    local = results.get(LOCAL, Result())
    if name != LOCAL and local.samples and row.compare:
        base = row.reduce(local.samples)
        if row.compare == "ratio":
            text += f" (×{value / base:.2f})"
        else:
            text += f" ({'+' if value >= base else '-'}{_figure(abs(value - base), row.unit).split()[0]})"
    if result.failures:
        text += f" [{len(result.failures)} failed]"
    return text


def _figure(value: float, unit: str) -> str:
    digits = {"s": 3 if value < 1 else 2, "ms": 2 if value < 10 else 1, "MB/s": 0, "MiB": 1}.get(unit, 0)
    return f"{value:.{digits}f} {unit}".strip()
