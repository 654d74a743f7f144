"""The demonstration's notebook, how it is run, and what is to be read from its outputs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from ..errors import AlbedoError

LINES = 50
"""Lines that the long cell prints."""

CUT_AFTER = 15
"""The line after whose arrival the link is cut."""

CELL_TIMEOUT = 30
"""Seconds a cell may take before the demonstration is given up."""

WHERE, STATE, RICH, LONG, AFTER = range(5)
"""The cells."""

CELLS = (
    'import os, platform\nprint(platform.node(), os.getcwd(), os.path.expanduser("~"), os.getpid(), sep="\\n")',
    "x = sum(n * n for n in range(10))\nx",
    "from IPython.display import HTML, SVG, display\n"
    'display(HTML(f"<table><tr><th>x</th><td>{x}</td></tr></table>"))\n'
    'display(SVG(\'<svg xmlns="http://www.w3.org/2000/svg"><circle r="9"/></svg>\'))',
    # 4.5 s in all, and each line says when it was printed, so that those of the cut can be told from the others.
    "import time\n"
    f"for n in range(1, {LINES + 1}):\n"
    f'    print(f"line {{n}} of {LINES}, printed at {{time.time():.3f}}", flush=True)\n'
    "    time.sleep(0.09)",
    'print(os.getpid(), x, sep="\\n")',
)

X = sum(n * n for n in range(10))
"""What `x` is."""

_LINE = re.compile(rf"line (\d+) of {LINES}, printed at (\d+\.\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Finding:
    """One statement about what happened.

    Attributes:
        text: the statement; where it does not hold, what was the case instead.
        holds: whether it is as it should be.
    """

    text: str
    holds: bool


class NotebookError(AlbedoError):
    """The notebook did not run to its end."""


class Notebook:
    """The notebook on a running kernel.

    Args:
        manager: the kernel's manager; the kernel has been started.
        client: a client of it whose channels are open.
        on_output: called after every output that a cell got, with the cell's number.
    """

    def __init__(self, manager: AsyncKernelManager, client: Any, on_output: Callable[[int], None]) -> None:
        cells = [nbformat.v4.new_code_cell(source) for source in CELLS]  # type: ignore[no-untyped-call]
        self.node: NotebookNode = nbformat.v4.new_notebook(cells=cells)  # type: ignore[no-untyped-call]
        self._manager = manager
        self._runner = _Runner(self.node, manager, on_output)
        self._runner.kc = client
        self._runner.reset_execution_trackers()

    async def run(self, number: int) -> None:
        """Run a cell.

        `NotebookClient.async_execute` runs them all in one go, but takes Ctrl-C for itself meanwhile.

        Raises:
            NotebookError: it failed, the kernel died, or it took too long.
        """
        title = f"Cell {number + 1} of the notebook"
        try:
            await self._runner.async_execute_cell(self.node.cells[number], number)
        except CellExecutionError as error:
            raise NotebookError(f"{title} failed: {error.ename}: {error.evalue}") from error
        except DeadKernelError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise asyncio.CancelledError from error  # Ctrl-C, which nbclient takes for the kernel's end
            provisioner: Any = self._manager.provisioner
            cause = provisioner.status.get("cause") or "The kernel died."
            raise NotebookError(f"{title} did not end. {cause}") from error
        except CellTimeoutError as error:
            raise NotebookError(f"{title} had not ended after {CELL_TIMEOUT} s.") from error

    def text(self, number: int) -> str:
        """Return what a cell has printed on standard output so far."""
        outputs = self.node.cells[number].outputs
        return "".join(each.text for each in outputs if each.output_type == "stream" and each.name == "stdout")

    def printed(self) -> list[tuple[int, float]]:
        """Return the lines of the long cell that have arrived: number, and when the kernel printed it (Unix time)."""
        return [(int(number), float(when)) for number, when in _LINE.findall(self.text(LONG))]

    def where(self, folder: str, home: str, pid: int | None) -> Finding:
        """Compare where the first cell ran with where it was to run."""
        node, *found = (self.text(WHERE) + "\n" * 4).split("\n")[:4]
        if found == [folder, home, str(pid)]:
            return Finding(f"ran on {node} in ~{folder.removeprefix(home)}, home {home}", True)
        return Finding(f"ran in {found[0]} with home {found[1]} and pid {found[2]}, not in {folder} as {pid}", False)

    def state(self) -> Finding:
        """Look at the computation's result."""
        results = [each.data for each in self.node.cells[STATE].outputs if each.output_type == "execute_result"]
        if results == [{"text/plain": str(X)}]:
            return Finding(f"computed x = {X}", True)
        return Finding(f"the second cell's result is {results}, not {X}", False)

    def rich(self) -> Finding:
        """Look at the rich displays."""
        types = {kind for each in self.node.cells[RICH].outputs for kind in each.get("data", {})}
        missing = {"text/html", "image/svg+xml"} - types
        if missing:
            return Finding(f"a display as {' and '.join(sorted(missing))} did not come", False)
        return Finding("displayed a table (text/html) and a picture (image/svg+xml)", True)

    def same_kernel(self, pid: int | None, connections: int) -> Finding:
        """Compare the kernel after the cut with the one before it."""
        found = self.text(AFTER).splitlines()
        if found == [str(pid), str(X)]:
            return Finding(f"the same kernel: pid {pid}, x is still {X}; {connections} connections in all", True)
        return Finding(f"after the cut pid and x were {', '.join(found) or 'not to be had'}, not {pid}, {X}", False)


def complete(lines: Sequence[tuple[int, float]], since: float, until: float) -> Finding:
    """Say whether all lines arrived, once and in order, and how many were printed while the link was down.

    Args:
        lines: those that arrived: number, and when the kernel printed it (Unix time).
        since: when the link was cut.
        until: when it was there again.
    """
    numbers = [number for number, _ in lines]
    missing = sorted(set(range(1, LINES + 1)) - set(numbers))
    if missing:
        return Finding(f"{LINES - len(missing)} of {LINES} lines came; missing: {_ranges(missing)}", False)
    repeated = sorted({number for number in numbers if numbers.count(number) > 1})
    if repeated:
        return Finding(f"of {LINES} lines some came more than once: {_ranges(repeated)}", False)
    if numbers != sorted(numbers):
        return Finding(f"{LINES} of {LINES} lines came, but not in order", False)
    during = sum(since < when < until for _, when in lines)
    if not during:
        return Finding("no line was printed during the cut, so that nothing was shown", False)
    return Finding(f"{LINES} of {LINES} lines, in order, each once; {during} printed during the cut", True)


def _ranges(numbers: Sequence[int]) -> str:
    """Write rising numbers as people do: 3, 7-9."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


class _Runner(NotebookClient):
    """nbclient's client, which also tells of each output."""

    def __init__(self, node: NotebookNode, manager: AsyncKernelManager, on_output: Callable[[int], None]) -> None:
        super().__init__(node, km=manager, timeout=CELL_TIMEOUT)
        self._on_output = on_output

    def process_message(self, msg: dict[str, Any], cell: NotebookNode, cell_index: int) -> NotebookNode | None:
        """Do what nbclient does, then tell."""
        output = super().process_message(msg, cell, cell_index)
        if output is not None:
            self._on_output(cell_index)
        return output
