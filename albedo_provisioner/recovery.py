"""Putting outputs back into a notebook that lacks them: notebook + journal -> notebook + what was done. Pure.

Never over newer output. What tells, in this order, is
1. the moments that JupyterLab and nbclient may have noted in the cell's metadata (`execution`), which are the kernel's
   own and so exact;
2. whether the file's outputs are what the journal's run had shown at some moment on its way: then they are older;
3. whether the file was saved before the run began: then all that it has is older;
4. the execution count: the same or a higher one is left as it is;
5. for outputs without a count, whether the file was saved after the kernel's last word about the run: then they stay.
"""

from __future__ import annotations

import copy
import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nbformat import NotebookNode

from .kernels.journal import JournalCell
from .replay import Replay, equal

_A_DAY = 86400.0

WRITTEN, LEFT = "written", "left"


@dataclass(frozen=True)
class Change:
    """What was done with one cell, or why nothing was.

    Attributes:
        number: the cell's, counted from 1 over all cells of the notebook.
        action: "written" or "left".
        text: what, in words that follow "cell 3: ".
    """

    number: int
    action: str
    text: str


@dataclass(frozen=True)
class Recovery:
    """What came of a recovery.

    Attributes:
        notebook: the notebook with its outputs; a copy.
        changes: cells that were changed or deliberately left, in the notebook's order.
        complete: how many cells had all that the journal has of them.
    """

    notebook: NotebookNode
    changes: tuple[Change, ...]
    complete: int

    @property
    def written(self) -> int:
        """How many cells were changed."""
        return sum(change.action == WRITTEN for change in self.changes)

    @property
    def left(self) -> int:
        """How many cells were deliberately left as they are."""
        return len(self.changes) - self.written


def recover(notebook: NotebookNode, cells: Sequence[JournalCell], saved: float | None = None) -> Recovery:
    """Put into a notebook what its cells lack and a journal has.

    Args:
        notebook: of format 4; it is not changed.
        cells: the journal's, oldest first.
        saved: when the notebook was saved last, by this machine's clock, in seconds since the epoch; None when that is
            not known.
    """
    result = copy.deepcopy(notebook)
    if saved is not None:
        saved += _clock_ahead(cells)
    runs, changes = _match(result.cells, cells)
    target = {id(run): index for index, found in runs.items() for run in found}
    displays: dict[str, list[Replay]] = {}
    replays: dict[int, list[Replay]] = {}
    for cell in cells:
        index = target.get(id(cell))
        replay = Replay(cell, [] if index is None else result.cells[index].outputs, displays)
        replay.run()
        if index is not None:
            replays.setdefault(index, []).append(replay)
    complete = 0
    for index, found in replays.items():
        change = _settle(index, result.cells[index], found, saved)
        if change is None:
            complete += 1
        else:
            changes.append(change)
    return Recovery(result, tuple(sorted(changes, key=lambda change: change.number)), complete)


# ------------------------------------------------------------------------------------------------------ matching


def _match(
    cells: Sequence[NotebookNode], journal: Sequence[JournalCell]
) -> tuple[dict[int, list[JournalCell]], list[Change]]:
    """Return which runs belong to which cell, oldest first, and what could not be told."""
    by_id: dict[str, int] = {}
    by_source: dict[str, list[int]] = {}
    for index, cell in enumerate(cells):
        if cell.cell_type == "code":
            if cell.get("id"):
                by_id[cell.id] = index
            by_source.setdefault(cell.source, []).append(index)
    runs: dict[int, list[JournalCell]] = {}
    others: list[JournalCell] = []
    for run in journal:
        if not run.store_history or not run.code.strip() or run.state == "queued":
            continue
        named = by_id.get(run.cell_id or "")
        if named is None:
            others.append(run)
        else:
            runs.setdefault(named, []).append(run)
    # A cell that is known by its id is not also given what another cell with the same text did.
    certain = set(runs)
    unclear: dict[int, Change] = {}
    for run in others:
        found = by_source.get(run.code, [])
        if len(found) == 1:
            if found[0] not in certain:
                runs.setdefault(found[0], []).append(run)
            continue
        for index in found:
            if not cells[index].outputs and index not in certain:
                text = "left as it is: other cells have the same source, and the journal does not say which one ran"
                unclear[index] = Change(index + 1, LEFT, text)
    return runs, list(unclear.values())


# ------------------------------------------------------------------------------------------------------ deciding


def _settle(index: int, cell: NotebookNode, replays: Sequence[Replay], saved: float | None) -> Change | None:
    """Bring one cell up to date if that is right; return what was done, or None when there was nothing to do."""
    run = replays[-1]
    outputs = run.outputs()
    # A cell that still runs has no count in the file, as in JupyterLab: so it is known as unfinished the next time.
    count = run.count if run.cell.state in ("done", "ended") else None
    same = equal(cell.outputs, outputs)
    if same and (cell.execution_count is not None or count is None):
        return None
    if not outputs and cell.outputs:
        return None  # it ran without output; that is no reason to take away what the file has
    if not same and (reason := _newer(cell, replays, saved)):
        return Change(index + 1, LEFT, f"left as it is: {reason}")
    before = len(cell.outputs)
    if not same:
        cell.outputs = outputs
    cell.execution_count = count
    if "execution" in cell.metadata and run.times:
        cell.metadata.execution = dict(run.times)  # else the new outputs would bear an older run's times
    return Change(index + 1, WRITTEN, _describe(cell, outputs, run, before))


def _newer(cell: NotebookNode, replays: Sequence[Replay], saved: float | None) -> str:
    """Return why a cell's own outputs may be newer than the journal's; empty when they are not."""
    run = replays[-1]
    noted = cell.metadata.get("execution") or {}
    theirs, ours = _seconds(noted.get("iopub.execute_input")), _seconds(run.times.get("iopub.execute_input"))
    if theirs is not None and ours is not None and cell.outputs:
        if theirs < ours:
            return ""
        if theirs > ours:
            return "its output is from a later run"
        if noted.get("shell.execute_reply"):
            return "its output is of the same run and complete, by its times"
    if any(replay.went_through_saved for replay in replays):
        return ""
    if saved is not None and saved < run.cell.asked:
        return ""
    if cell.execution_count is None:
        if not cell.outputs:
            return ""
        latest = _seconds(run.latest)
        if saved is not None and latest is not None and saved < latest:
            return ""
        return "it has output without a number, and the file was saved after this run"
    if run.count is not None and (
        cell.execution_count < run.count or (cell.execution_count == run.count and not cell.outputs)
    ):
        return ""
    if cell.execution_count == run.count:
        return f"its output is of In [{run.count}], as the journal's, and the journal's run had shown none like it"
    return f"its output is of In [{cell.execution_count}], the journal's of In [{_number(run.count)}]"


def _clock_ahead(cells: Sequence[JournalCell]) -> float:
    """Return by how many seconds the kernel's host is ahead of the clients that asked for these cells.

    A request arrives after it was sent, so the smallest difference is nearest to the truth. More than a day is no clock
    that is wrong but a client that makes its dates up, or a link that was away.
    """
    ahead = [cell.asked - sent for cell in cells if (sent := _seconds(cell.sent)) is not None]
    return min((seconds for seconds in ahead if abs(seconds) < _A_DAY), default=0.0)


def _seconds(date: Any) -> float | None:
    """Return an ISO date as seconds since the epoch; None when it is none."""
    if not isinstance(date, str):
        return None
    try:
        moment = datetime.datetime.fromisoformat(date)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)  # all Jupyter dates are in UTC
    return moment.timestamp()


# ---------------------------------------------------------------------------------------------------- in words


def _describe(cell: NotebookNode, outputs: Sequence[NotebookNode], run: Replay, before: int) -> str:
    what = _contents(outputs)
    number = f"In [{_number(run.count)}]"
    text = f"{what} of {number} {'put in' if not before else 'put in the place of older output'}"
    if not outputs:
        text = f"{number} ran without output; its number put in"
    if run.cell.state == "running":
        text += "; it still runs, this is its output so far"
    elif run.cell.state == "ended":
        text += "; its kernel ended while it ran"
    if run.cell.dropped:
        dropped = run.cell.dropped
        text += f"; {dropped} {'message was' if dropped == 1 else 'messages were'} more than the journal keeps"
    if run.cell.code != cell.source:
        text += "; its source was changed since it ran"
    return text


def _number(count: int | None) -> str:
    return " " if count is None else str(count)


def _contents(outputs: Sequence[NotebookNode]) -> str:
    lines = sum(output.text.count("\n") or 1 for output in outputs if output.output_type == "stream")
    parts = [f"{lines} line{'s' if lines != 1 else ''}"] if lines else []
    for kind, word in (("display_data", "display"), ("execute_result", "result"), ("error", "error")):
        number = sum(output.output_type == kind for output in outputs)
        if number:
            parts.append(f"{number} {word}{'s' if number != 1 else ''}")
    return ", ".join(parts)
