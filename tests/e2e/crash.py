"""A client that runs a notebook's cells and is killed in the middle, and `jupyter albedo` as a person runs it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from kernels import PATIENCE
from procs import wait_until

_CLIENT = """
import asyncio, json, os, sys
from jupyter_client.manager import AsyncKernelManager

async def main(kernelspec, notebook, cells):
    manager = AsyncKernelManager(kernel_name=kernelspec)
    await manager.start_kernel(env={**os.environ, "JPY_SESSION_NAME": notebook})
    client = manager.client()
    client.start_channels()
    await client.wait_for_ready(timeout=60)
    for cell_id, code in cells:
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": True, "user_expressions": {}}
        metadata = {} if cell_id is None else {"cellId": cell_id}
        client.shell_channel.send(client.session.msg("execute_request", content, metadata=metadata))
    while True:
        message = await client.iopub_channel.get_msg(timeout=None)
        if message["msg_type"] == "stream" and "BEGUN" in message["content"]["text"]:
            print("begun", flush=True)

asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
"""


@contextmanager
def running_client(
    kernelspec: str, notebook: Path | str, cells: Sequence[tuple[str | None, str]]
) -> Iterator[subprocess.Popen[str]]:
    """Start a kernel for a notebook as Jupyter would, in another process, and run cells until one prints BEGUN.

    It would let them ask something, and answers nothing.

    The process goes on until it is killed; at the end it is.
    """
    arguments = [kernelspec, str(notebook), json.dumps(list(cells))]
    with subprocess.Popen([sys.executable, "-c", _CLIENT, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            yield process
        finally:
            process.kill()
            process.wait()


def crash(kernelspec: str, notebook: Path | str, cells: Sequence[tuple[str | None, str]]) -> None:
    """Run cells in a process that is killed as soon as one of them has printed BEGUN."""
    with running_client(kernelspec, notebook, cells):
        pass


def albedo(*arguments: str | os.PathLike[str], status: int = 0) -> str:
    """Run `jupyter albedo` in a process of its own and return what it printed, on stdout and then on stderr.

    That it waits for something, as it says when that takes long, is left out.
    """
    found = subprocess.run(
        [sys.executable, "-m", "albedo_provisioner", *map(os.fspath, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    said = found.stdout + re.sub(r"^[a-z ,]+ \.\.\.\n", "", found.stderr, flags=re.MULTILINE)
    assert "Traceback" not in said, said
    assert found.returncode == status, said
    return said


def listed(*hosts: str) -> list[dict[str, Any]]:
    """Return the kernels that `jupyter albedo kernels --json` tells of."""
    printed = albedo("kernels", "--json", *hosts)  # with what is said on stderr when hosts take their time
    answer, _ = json.JSONDecoder().raw_decode(printed, printed.index("{"))
    kernels: list[dict[str, Any]] = answer["kernels"]
    return kernels


def until_state(state: str) -> dict[str, Any]:
    """Wait until the only kernel is in a state, and return it."""

    def look() -> dict[str, Any] | None:
        (kernel,) = listed()
        return kernel if kernel["state"] == state else None

    found = wait_until(look, PATIENCE, f"the kernel is {state}")
    assert found is not None
    return found


def write_notebook(path: Path, *cells: nbformat.NotebookNode) -> Path:
    """Write a notebook of these cells."""
    nbformat.write(nbformat.v4.new_notebook(cells=list(cells)), path)
    return path


def code(source: str, **more: Any) -> nbformat.NotebookNode:
    """Return a code cell."""
    made: nbformat.NotebookNode = nbformat.v4.new_code_cell(source, **more)
    return made


def read(path: Path) -> nbformat.NotebookNode:
    """Read a notebook, which must be sound."""
    found: nbformat.NotebookNode = nbformat.read(path, nbformat.NO_CONVERT)
    nbformat.validate(found)
    return found


def text(cell: nbformat.NotebookNode, name: str = "stdout") -> str:
    """Return what a cell printed."""
    return "".join(each.text for each in cell.outputs if each.output_type == "stream" and each.name == name)
