"""Notebooks run by nbclient, as automation does it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import nbformat
import pytest
from faces import Embedded, Host
from kernels import add_kernelspec, eventually
from leaks import settled
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError


def notebook(*cells: str) -> nbformat.NotebookNode:
    """Return a notebook with these cells."""
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])


def client_for(book: nbformat.NotebookNode, host: Host, **options: Any) -> NotebookClient:
    """Return an nbclient for a notebook on a host."""
    return NotebookClient(book, kernel_name=add_kernelspec(host.location()), timeout=60, **options)


def printed(cell: nbformat.NotebookNode, name: str = "stdout") -> str:
    """Return what a cell printed."""
    return "".join(output["text"] for output in cell.outputs if output.output_type == "stream" and output.name == name)


class TestRuns:
    def test_all_outputs_are_in_the_notebook_and_the_kernel_is_gone(self, any_host: Host) -> None:
        """K4, K8."""
        book = notebook(
            "import os\nprint(os.getcwd())\nx = 41",
            "from IPython.display import display, HTML\nhandle = display(HTML('<i>a</i>'), display_id='d')\n"
            "handle.update(HTML('<b>b</b>'))\nx + 1",
            "import subprocess\nsubprocess.Popen(['sleep', '7777'], start_new_session=True)\n1 / 0",
            "print('after')",
        )
        client_for(book, any_host, allow_errors=True).execute()
        first, second, third, fourth = book.cells
        assert printed(first) == f"{any_host.home}\n"
        assert second.outputs[0].data["text/html"] == "<b>b</b>"
        assert second.outputs[1].data["text/plain"] == "42"
        assert third.outputs[-1].ename == "ZeroDivisionError"
        assert printed(fourth) == "after\n"
        assert [cell.execution_count for cell in book.cells] == [1, 2, 3, 4]
        assert settled(any_host.leftovers) == []

    def test_an_error_ends_the_run_and_the_kernel(self, embedded_host: Embedded) -> None:
        """K8."""
        book = notebook("1 / 0", "print('never')")
        with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
            client_for(book, embedded_host).execute()
        assert book.cells[1].outputs == []
        assert settled(embedded_host.leftovers) == []

    def test_input_is_refused(self, embedded_host: Embedded) -> None:
        """K4."""
        with pytest.raises(CellExecutionError, match="StdinNotImplementedError"):
            client_for(notebook("input('?')"), embedded_host).execute()

    def test_widgets_end_up_in_the_notebooks_metadata(self, embedded_host: Embedded) -> None:
        """K4."""
        book = notebook(
            "import ipywidgets\nslider = ipywidgets.IntSlider(value=3)\nslider",
            "slider.value = 7",
            "out = ipywidgets.Output()\nwith out: print('inside')\nout",
        )
        client_for(book, embedded_host).execute()
        states = book.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"].values()
        assert [each["state"]["value"] for each in states if each["model_name"] == "IntSliderModel"] == [7]
        outputs = [each["state"]["outputs"] for each in states if each["model_name"] == "OutputModel"]
        assert outputs[0][0]["text"] == "inside\n"

    async def test_a_cut_in_the_middle_costs_nothing(self, remote_host: Host) -> None:
        """L2."""
        book = notebook(
            "import time\nfor i in range(100):\n    print(i, flush=True)\n    time.sleep(0.02)",
            "print(len('x' * i))",
            "i",
        )
        client = client_for(book, remote_host)
        run = asyncio.create_task(client.async_execute())
        await eventually(lambda: "20\n" in printed(book.cells[0]) or run.done())
        remote_host.down()
        await eventually(lambda: client.km is not None and client.km.provisioner.status["step"] == "reattaching")
        remote_host.up()
        await run
        assert printed(book.cells[0]).split() == [str(i) for i in range(100)]
        assert printed(book.cells[1]) == "99\n"
        assert book.cells[2].outputs[0].data["text/plain"] == "99"
        assert settled(remote_host.leftovers) == []

    def test_two_runs_at_once_do_not_mix(self, embedded_host: Embedded) -> None:
        """K4."""
        books = [notebook(f"x = {n}", "import time; time.sleep(0.1)", "x") for n in range(3)]

        async def all_of_them() -> None:
            await asyncio.gather(*(client_for(book, embedded_host).async_execute() for book in books))

        asyncio.run(all_of_them())
        assert [book.cells[2].outputs[0].data["text/plain"] for book in books] == ["0", "1", "2"]


class TestDeaths:
    @pytest.mark.parametrize(
        ("code", "cause"),
        [("import os\nos._exit(5)", "exit status 5"), ("import os\nos.kill(os.getpid(), 9)", "SIGKILL")],
    )
    def test_a_kernel_that_dies_ends_the_run_with_the_cause(self, remote_host: Host, code: str, cause: str) -> None:
        """K5."""
        began = time.monotonic()
        with pytest.raises((CellExecutionError, DeadKernelError)) as caught:
            client_for(notebook("x = 1", code, "x"), remote_host).execute()
        assert time.monotonic() - began < 30
        assert cause in str(caught.value)
        assert str(remote_host.alias) in str(caught.value)
        assert settled(remote_host.leftovers) == []

    def test_a_cell_that_takes_too_long_is_ended_with_its_kernel(self, embedded_host: Embedded) -> None:
        """K6."""
        client = client_for(notebook("import time\ntime.sleep(600)"), embedded_host)
        client.timeout = 1
        with pytest.raises(TimeoutError):
            client.execute()
        assert settled(embedded_host.leftovers) == []
