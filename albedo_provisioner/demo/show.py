"""The demonstration itself: start a kernel, run the notebook, cut the link, look what is left."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_client.manager import AsyncKernelManager
from jupyter_core.paths import jupyter_runtime_dir
from traitlets.config import Config

from ..errors import AlbedoError, KernelStartError
from ..kernelspecs import Kernelspec
from . import leftovers
from .notebook import AFTER, CUT_AFTER, LINES, LONG, RICH, STATE, WHERE, Finding, Notebook, NotebookError, complete
from .screen import Screen
from .server import EmbeddedHost

DOWN = 1.5
"""Seconds for which the host refuses connections."""

READY_TIMEOUT = 60.0
"""Seconds for a started kernel to answer."""

REATTACH_TIMEOUT = 15.0
"""Seconds from the host's return until the kernel has to be attached again."""

STOP_TIMEOUT = 5.0
"""Seconds for an orderly end after Ctrl-C. The host kills what is left after that."""


@dataclass
class Outage:
    """The cut; Unix times in seconds.

    Attributes:
        began: when the link was cut.
        ended: when the host accepted connections again.
        reattached: when the kernel was attached again.
    """

    began: float
    ended: float
    reattached: float


class Show:
    """One demonstration.

    Args:
        screen: where it is shown.
        host: the host, up and fresh.
        kernelspec: the kernelspec for a folder on it.
        hold: bytes of output that the host may hold while the link is down; None for the product's default.

    Attributes:
        failures: what was not as it should be.
    """

    def __init__(self, screen: Screen, host: EmbeddedHost, kernelspec: Kernelspec, hold: int | None) -> None:
        self.failures: list[str] = []
        self._screen = screen
        self._host = host
        self._kernelspec = kernelspec
        config = Config() if hold is None else Config({"AlbedoProvisioner": {"hold": hold}})
        self._runtime = Path(jupyter_runtime_dir())
        # By default the connection file would lie in the temporary directory, where nobody could tell whose it is.
        connection_file = str(self._runtime / f"kernel-{host.alias}.json")
        self._manager = AsyncKernelManager(kernel_name=kernelspec.name, connection_file=connection_file, config=config)
        self._client: Any = None
        self._line_came = asyncio.Event()
        self._down = False
        self._cell_over = False

    async def run(self) -> None:
        """Show it all.

        Raises:
            AlbedoError: the kernel could not be started.
        """
        over = False
        try:
            await self._start()
            await self._run_notebook()
            over = True
        finally:
            # Whatever happens, Ctrl-C too: the kernel is ended first, while the host can still be asked to.
            if self._client is not None:
                self._client.stop_channels()
            if not over:
                await self._stop_quietly()
        await self._shut_down()
        self._look_for_leftovers()

    async def _start(self) -> None:
        self._screen.under_way("kernel", "starts ...")
        began = time.monotonic()
        await self._manager.start_kernel()
        self._client = self._manager.client()
        self._client.start_channels()
        try:
            await self._client.wait_for_ready(timeout=READY_TIMEOUT)
        except RuntimeError as error:
            raise KernelStartError(self._host.alias, f"The kernel on {self._host.alias}: {error}.") from error
        seconds = time.monotonic() - began
        self._screen.step("kernel", f"started and ready, pid {self._status['pid']}", seconds=seconds)

    @property
    def _status(self) -> dict[str, Any]:
        provisioner: Any = self._manager.provisioner
        status: dict[str, Any] = provisioner.status
        return status

    def _judge(self, label: str, finding: Finding, seconds: float | None = None) -> None:
        """Show a finding and note it when it does not hold."""
        self._screen.step(label, finding.text, seconds=seconds, mark="good" if finding.holds else "bad")
        if not finding.holds:
            self.failures.append(finding.text)

    # The notebook

    async def _run_notebook(self) -> None:
        notebook = Notebook(self._manager, self._client, lambda number: self._progress(notebook, number))
        began = time.monotonic()
        try:
            await self._run_cells(notebook)
        except NotebookError as error:
            self._judge("notebook", Finding(str(error), False))
        else:
            self._screen.step("notebook", "ran to its end", seconds=time.monotonic() - began)

    async def _run_cells(self, notebook: Notebook) -> None:
        home, pid = str(self._host.home), self._status["pid"]
        folder = str(self._kernelspec.location).partition(":")[2]
        self._screen.under_way("notebook", "runs ...")
        await notebook.run(WHERE)
        self._judge("cell 1", notebook.where(folder, home, pid))
        await notebook.run(STATE)
        self._judge("cell 2", notebook.state())
        await notebook.run(RICH)
        self._judge("cell 3", notebook.rich())
        outage = await self._run_with_outage(notebook)
        self._judge("cell 4", complete(notebook.printed(), outage.began, outage.reattached))
        await notebook.run(AFTER)
        self._judge("cell 5", notebook.same_kernel(pid, self._status["connections"]))

    async def _run_with_outage(self, notebook: Notebook) -> Outage:
        """Run the long cell and cut the link in the middle of it.

        Raises:
            NotebookError: the cell failed, or the kernel was not attached again.
        """
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._run_long_cell(notebook))
                cutting = both.create_task(self._cut(notebook))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        return cutting.result()

    async def _run_long_cell(self, notebook: Notebook) -> None:
        await notebook.run(LONG)
        self._cell_over = True
        self._line_came.set()

    async def _cut(self, notebook: Notebook) -> Outage:
        """Cut the link once the long cell is under way, and wait until it is there again.

        Raises:
            NotebookError: it is not, in time, or the cell ended too early.
        """
        await self._line_came.wait()
        if self._cell_over:
            raise NotebookError(f"Cell {LONG + 1} of the notebook ended, and line {CUT_AFTER} had not come.")
        connections = self._status["connections"]
        began = time.time()
        try:
            await self._be_down(notebook)
        except RuntimeError as error:
            raise NotebookError(f"The link could not be cut and mended: {' '.join(str(error).split())}") from error
        ended = time.time()
        # There is no event to wait for: a provisioner says where it stands when it is asked.
        while self._status["step"] != "attached" or self._status["connections"] == connections:
            if time.time() - ended > REATTACH_TIMEOUT:
                raise NotebookError(f"The kernel was not attached again: {self._status['away']}.")
            await asyncio.sleep(0.005)
        self._down = False
        outage = Outage(began, ended, time.time())
        self._screen.step(
            "reattach",
            f"by itself, {outage.reattached - ended:.2f} s after the host could be reached again",
            seconds=outage.reattached - began,
        )
        return outage

    async def _be_down(self, notebook: Notebook) -> None:
        """Cut all connections and let none in for a while.

        Raises:
            RuntimeError: the host is not there any more.
        """
        came = len(notebook.printed())
        self._down = True
        broken = self._host.cut()
        try:
            self._host.down()
            text = f"the link, after line {came} of {LINES}: {broken} connection broken, no way in"
            self._screen.step("cut", text, mark="event")
            self._progress(notebook, LONG)
            await asyncio.sleep(DOWN)
        finally:
            # Also after Ctrl-C: the kernel is then ended the orderly way.
            self._host.up()

    def _progress(self, notebook: Notebook, number: int) -> None:
        if number != LONG:
            return
        came = len(notebook.printed())
        if came >= CUT_AFTER:
            self._line_came.set()
        bar = "#" * (came // 2) + "." * ((LINES + 1) // 2 - came // 2)
        away = "  link down, cell goes on" if self._down else ""
        self._screen.under_way("cell 4", f"[{bar}] {came:2} of {LINES}{away}")

    # The end

    async def _stop_quietly(self) -> None:
        try:
            async with asyncio.timeout(STOP_TIMEOUT):
                await self._manager.shutdown_kernel(now=True)
        except (AlbedoError, TimeoutError):
            pass  # the host kills all its processes in a moment; this was only the orderly way

    async def _shut_down(self) -> None:
        self._screen.under_way("shutdown", "...")
        began = time.monotonic()
        finding = Finding("the kernel and its keeper have ended", True)
        try:
            await self._manager.shutdown_kernel()
        except AlbedoError as error:
            finding = Finding(f"The kernel could not be shut down: {error}", False)
        self._judge("shutdown", finding, time.monotonic() - began)

    def _look_for_leftovers(self) -> None:
        began = time.monotonic()
        left = leftovers.on_host(self._host, self._manager.kernel_id)
        text = "on the host: no process, no run directory, nothing but the bundle"
        self._judge("left over", Finding("; ".join(left) or text, not left))
        left = leftovers.on_this_side(self._runtime)
        text = "on this side: no process, no file"
        self._judge("left over", Finding("; ".join(left) or text, not left), time.monotonic() - began)
