"""Close everything in the middle of a cell, come back, and the output is there."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from crash import albedo, code, crash, listed, read, running_client, text, until_state, write_notebook
from faces import Embedded, Host
from kernels import add_kernelspec
from nbclient import NotebookClient
from nbformat import NotebookNode, from_dict
from notebook_server import NotebookServer

from albedo_provisioner.kernels.records import KernelRecords

if TYPE_CHECKING:
    from conftest import Workspace

LONG = """\
import os, time
for i in range(1500):
    print(f"line {i}")
    if i < 800: sys.stdout.flush()  # as many messages: more than one answer of the keeper can carry
print("BEGUN", flush=True)
while not os.path.exists("go"):
    time.sleep(0.02)
for i in range(1500, 1600):
    print(f"line {i}")
i"""


def lines(count: int) -> list[str]:
    return [f"line {i}" for i in range(count)]


async def run_last_cell(book: NotebookNode, kernelspec: str, path: Path) -> None:
    """Run a notebook's last cell as nbclient does, and end the kernel."""
    client = NotebookClient(book, kernel_name=kernelspec)
    async with client.async_setup_kernel(env={**os.environ, "JPY_SESSION_NAME": str(path)}):
        await client.async_execute_cell(book.cells[-1], len(book.cells) - 1)


@pytest.fixture
def notebook(workspace: Workspace) -> Path:
    """Return a notebook whose outputs are to come."""
    return write_notebook(
        workspace.root / "täglich.ipynb",
        code("import sys\nx = 41", id="first"),
        code(LONG, id="long"),
        code("x + 1", id="last"),
    )


def test_the_output_of_a_cell_whose_client_was_killed_comes_back_whole(any_host: Host, notebook: Path) -> None:
    """And what ran before it; while it still runs its output so far; and the notebook can be gone on with."""
    folder = any_host.make_folder("proj")
    kernelspec = add_kernelspec(any_host.location("proj"))
    notebook.chmod(0o640)
    crash(kernelspec, notebook, [("first", "import sys\nx = 41"), ("long", LONG)])
    kernel = until_state("busy")
    assert (kernel["host"], kernel["folder"], kernel["notebook"]) == (any_host.alias, str(folder), str(notebook))

    said = albedo("recover", notebook)
    first, long, last = read(notebook).cells
    assert text(long).splitlines() == [*lines(1500), "BEGUN"]
    assert (first.execution_count, long.execution_count, last.outputs) == (1, None, [])
    assert "cell 2: 1501 lines of In [2] put in; it still runs, this is its output so far" in said
    assert "2 cells changed" in said

    any_host.write("proj/go", "")
    until_state("idle")
    before = notebook.read_bytes()
    assert "1 cell would be changed" in albedo("recover", "--dry-run", notebook)
    assert notebook.read_bytes() == before
    said = albedo("recover", notebook)
    long = read(notebook).cells[1]
    assert text(long).splitlines() == [*lines(1500), "BEGUN", *lines(1600)[1500:]]
    assert (long.execution_count, long.outputs[-1].data["text/plain"]) == (2, "1599")
    assert notebook.stat().st_mode & 0o777 == 0o640

    after = notebook.stat()
    assert "0 cells changed, 2 complete already." in albedo("recover", notebook)
    assert notebook.stat() == after

    # nbclient goes on with the recovered notebook, on the kernel that has its variables.
    book = read(notebook)
    asyncio.run(run_last_cell(book, kernelspec, notebook))
    assert book.cells[2].outputs[-1].data["text/plain"] == "42"
    assert listed() == []


def test_a_kernel_is_named_for_a_notebook_that_it_did_not_run_for(embedded_host: Embedded, notebook: Path) -> None:
    """One that was copied, or was run by a program that gives its kernels no notebook."""
    crash(add_kernelspec(embedded_host.location()), notebook, [("first", "x = 41\nprint('BEGUN')")])
    kernel = until_state("idle")
    moved = notebook.with_name("copy.ipynb")
    moved.write_bytes(notebook.read_bytes())
    assert "recover --kernel ID" in albedo("recover", moved, status=1)
    assert "nonsense" in albedo("recover", moved, "--kernel", "nonsense", status=1)
    assert "cell 1: 1 line of In [1] put in" in albedo("recover", moved, "--kernel", kernel["kernel_id"][:8])
    assert text(read(moved).cells[0]) == "BEGUN\n"
    albedo("stop", kernel["kernel_id"])


def test_in_jupyter_server_too(workspace: Workspace, embedded_host: Embedded) -> None:
    """The server is killed, and the file was saved with the beginning of the output."""
    root = workspace.root / "notebooks"
    (root / "sub").mkdir(parents=True)
    notebook = write_notebook(root / "sub" / "a.ipynb", code("import sys", id="first"), code(LONG, id="long"))
    server = NotebookServer(root)
    try:
        content = {
            "path": "sub/a.ipynb",
            "name": "a.ipynb",
            "type": "notebook",
            "kernel": {"name": add_kernelspec(embedded_host.location())},
        }
        answer = server.ask("POST", "api/sessions", content)
        assert answer.status == 201, answer
        channels = server.open(answer.content["kernel"]["id"])
        channels.run("import sys")
        header = {
            "msg_id": uuid.uuid4().hex,
            "msg_type": "execute_request",
            "session": "test",
            "username": "test",
            "version": "5.3",
            "date": "",
        }
        request = {"code": LONG, "silent": False, "store_history": True, "allow_stdin": False, "user_expressions": {}}
        channels.sock.send(
            json.dumps(
                {"header": header, "parent_header": {}, "metadata": {"cellId": "long"}, "channel": "shell"}
                | {"content": request}
            )
        )
        channels.until(lambda: "BEGUN" in channels.text(header["msg_id"]))
        channels.close()
        book = read(notebook)
        book.cells[1].outputs = [{"output_type": "stream", "name": "stdout", "text": "line 0\nline 1\nli"}]
        assert server.ask("PUT", "api/contents/sub/a.ipynb", {"type": "notebook", "content": book}).status == 200
    finally:
        server.kill()
    embedded_host.write("go", "")
    until_state("idle")
    said = albedo("recover", notebook)
    first, long = read(notebook).cells
    assert text(long).splitlines() == [*lines(1500), "BEGUN", *lines(1600)[1500:]]
    assert (first.execution_count, long.execution_count) == (1, 2)
    assert "in the place of older output" in said
    assert "Ended" in albedo("stop", "--notebook", notebook)
    assert listed() == []


def test_newer_output_stays_and_a_kernel_started_elsewhere_is_found(embedded_host: Embedded, notebook: Path) -> None:
    embedded_host.write("go", "")
    crash(add_kernelspec(embedded_host.location()), notebook, [(None, "import sys\nx = 41"), (None, LONG)])
    kernel = until_state("idle")
    KernelRecords().remove(kernel["kernel_id"])
    book = read(notebook)
    newer = from_dict({"output_type": "stream", "name": "stdout", "text": "newer"})
    book.cells[1].update(outputs=[newer], execution_count=99)
    write_notebook(notebook, *book.cells)
    said = albedo("recover", notebook)
    assert "cell 2: left as it is: its output is of In [99], the journal's of In [2]" in said
    assert "1 cell changed, 1 left as it is." in said  # the first one's number
    assert read(notebook).cells[1].outputs == [newer]

    # The same into another file, from an older notebook.
    book.cells[1].update(outputs=[newer], execution_count=1)
    write_notebook(notebook, *book.cells)
    before, other = notebook.read_bytes(), notebook.with_name("other.ipynb")
    albedo("recover", notebook, "--kernel", kernel["kernel_id"][:6], "--output", other)
    assert notebook.read_bytes() == before
    assert text(read(other).cells[1]).splitlines()[:1500] == lines(1500)
    albedo("stop", kernel["kernel_id"][:6])


def test_other_clients_notice_nothing_of_it(
    new_embedded_host: Callable[..., Embedded], workspace: Workspace, notebook: Path
) -> None:
    """A reader is forgotten when it leaves: many of them push no client out that is away."""
    host = new_embedded_host()
    with running_client(add_kernelspec(host.location()), notebook, [("first", "import sys"), ("long", LONG)]) as client:
        for _ in range(6):
            assert "still runs" in albedo("recover", "--dry-run", notebook)
        assert client.poll() is None
        (kernel,) = listed()
        assert kernel["state"] == "busy"
    albedo("stop", kernel["kernel_id"])


def test_the_journal_is_bounded_by_settings(embedded_host: Embedded, notebook: Path) -> None:
    kernelspec = add_kernelspec(embedded_host.location(), {"journal_cells": 2})
    cells = [(None, f"print({i})") for i in range(4)]
    crash(kernelspec, notebook, [*cells, (None, "print('BEGUN')")])
    kernel = until_state("idle")
    assert "has kept 2 cells" in albedo("recover", notebook)
    albedo("stop", kernel["kernel_id"])


def test_a_notebook_that_was_renamed_keeps_its_kernel_when_its_file_is_written_anew(
    embedded_host: Embedded, workspace: Workspace
) -> None:
    """L3: by its file alone it is known whose kernel it is, and `recover` puts another one in its place."""
    kernelspec = add_kernelspec(embedded_host.location())
    old = write_notebook(
        workspace.root / "q5.ipynb",
        code("x = 41\nprint('BEGUN')", id="first"),
        code("print('BEGUN', x)", id="last"),
    )
    crash(kernelspec, old, [("first", "x = 41\nprint('BEGUN')")])
    until_state("idle")
    new = old.rename(old.with_name("z5.ipynb"))
    assert "q5.ipynb (now z5.ipynb)" in albedo("kernels")
    assert "1 cell changed" in albedo("recover", new)
    before = new.stat().st_ino
    assert listed()[0]["notebook"] == str(new)
    assert " (" not in albedo("kernels").splitlines()[1]
    assert "1 complete already" in albedo("recover", new)

    elsewhere = new.rename(new.with_name("elsewhere.ipynb"))  # the new file is on record, too
    assert "z5.ipynb (now elsewhere.ipynb)" in albedo("kernels")
    assert elsewhere.stat().st_ino == before
    crash(kernelspec, elsewhere, [("last", "print('BEGUN', x)")])
    until_state("idle")
    albedo("recover", elsewhere)
    assert text(read(elsewhere).cells[1]).endswith("BEGUN 41\n")

    (record,) = KernelRecords().all()
    KernelRecords().remove(record.kernel_id)  # as to another machine of the user's
    (kernel,) = listed()
    assert (kernel["kernel_id"], kernel["notebook"]) == (record.kernel_id, str(elsewhere))
    albedo("stop", record.kernel_id)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("no json", "is not a notebook"),
        ("{}", "is not a notebook"),
        ('{"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": []}', "format 3"),
        (None, "No such file"),
    ],
)
def test_what_cannot_be_recovered_is_refused_in_a_sentence(
    workspace: Workspace, content: str | None, words: str
) -> None:
    path = workspace.root / "a.ipynb"
    if content is not None:
        path.write_text(content)
    said = albedo("recover", path, status=1)
    assert words in said
    assert len(said.splitlines()) == 1


def test_a_notebook_that_never_ran_is_told_so(workspace: Workspace) -> None:
    path = write_notebook(workspace.root / "a.ipynb", code("1"))
    said = albedo("recover", path, status=1)
    assert "No kernel is known to have run for" in said


def test_a_host_out_of_reach_is_told_in_its_words(embedded_host: Embedded, notebook: Path) -> None:
    crash(add_kernelspec(embedded_host.location()), notebook, [("first", "print('BEGUN')")])
    before = notebook.read_bytes()
    embedded_host.down()
    said = albedo("recover", notebook, status=1)
    assert embedded_host.alias in said
    assert "refused" in said
    assert notebook.read_bytes() == before
    embedded_host.up()
    albedo("stop", "--notebook", notebook)


def test_a_kernel_whose_end_is_to_come_has_its_journal_until_then(embedded_host: Embedded, notebook: Path) -> None:
    """Its end was asked for while the host was out of reach. Then it is as with one that was ended at once."""
    printing = (
        "print('BEGUN', flush=True)\nimport os, time\nwhile not os.path.exists('go'): time.sleep(0.02)\nprint('END')"
    )
    crash(add_kernelspec(embedded_host.location()), notebook, [("first", printing)])
    kernel = until_state("busy")
    embedded_host.down()
    assert "is to be ended" in albedo("stop", kernel["kernel_id"], status=1)
    embedded_host.write("go", "")
    embedded_host.up()
    assert "cell 1: 2 lines of In [1] put in" in albedo("recover", notebook)
    assert text(read(notebook).cells[0]) == "BEGUN\nEND\n"
    assert "ending (ended now)" in albedo("kernels")
    later = albedo("recover", notebook, status=1)

    crash(add_kernelspec(embedded_host.location()), notebook, [("first", "print('BEGUN')")])
    albedo("stop", until_state("idle")["kernel_id"])
    assert albedo("recover", notebook, status=1) == later
    assert "that has not been ended" in later
