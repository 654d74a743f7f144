"""`jupyter albedo recover`: put the outputs that a notebook's file lacks back into its cells."""

from __future__ import annotations

import argparse
import contextlib
import os
import stat
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import AlbedoError, ConfigError, KernelGoneError
from ..light_imports import for_notebooks
from .kernels import add_timeout
from .table import printable, say
from .waiting import waiting

if TYPE_CHECKING:
    from nbformat import NotebookNode

    from ..kernels.journal import JournalCell
    from ..kernels.survey import FoundKernel

_DESCRIPTION = """\
Put outputs that a notebook's file lacks back into its cells, after the Jupyter Server, the program that ran the
notebook, or this machine has gone away in the middle of it.

The kernel's keeper on the host has kept the newest cells with all their outputs (see the settings journal_cells and
journal_bytes). They are matched with the notebook's cells by the cell's id, else by the source where only one cell has
it. Output that is newer than the kept one stays. A cell that still runs gets its output so far; run the command again
later for the rest.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "recover",
        help="put outputs that a notebook lacks back into it",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("notebook", metavar="NOTEBOOK.ipynb", help="the notebook's file")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")
    parser.add_argument(
        "--kernel", metavar="ID", help="the kernel, or the beginning of its id (default: the notebook's)"
    )
    parser.add_argument("--output", metavar="FILE", help="write there, and leave the notebook itself as it is")
    add_timeout(parser)
    parser.set_defaults(run=run)


@dataclass(frozen=True)
class _File:
    """A notebook's file as it was read.

    Attributes:
        path: as the user spells it.
        notebook: what is in it.
        modified: its modification time in nanoseconds.
        mode: its permissions.
    """

    path: str
    notebook: NotebookNode
    modified: int
    mode: int


def run(arguments: argparse.Namespace) -> int:
    """Recover a notebook, and say what was done."""
    with for_notebooks():
        from ..recovery import recover

    file = _read(arguments.notebook)
    with waiting("asking for what the kernel has kept ..."):
        kernel, cells = _journal(arguments)
    recovery = recover(file.notebook, cells, file.modified / 1e9)
    kept = _count(len(cells), "cell")
    say(f"{printable(arguments.notebook)}: kernel {kernel.short_id} on {kernel.host_name} has kept {kept}")
    for change in recovery.changes:
        say(f"  cell {change.number}: {change.text}")
    summary = [f"{_count(recovery.written, 'cell')} {'would be ' if arguments.dry_run else ''}changed"]
    if recovery.left:
        summary.append(f"{recovery.left} left as it is" if recovery.left == 1 else f"{recovery.left} left as they are")
    if recovery.complete:
        summary.append(f"{recovery.complete} complete already")
    if not arguments.dry_run:
        if arguments.output is not None:
            _write(arguments.output, recovery.notebook, file, None)
        elif recovery.written:
            _write(arguments.notebook, recovery.notebook, file, file.modified)
    say(", ".join(summary) + ".")
    return 0


def _count(number: int, word: str) -> str:
    return f"{number} {word}" + ("" if number == 1 else "s")


def _journal(arguments: argparse.Namespace) -> tuple[FoundKernel, list[JournalCell]]:
    """Return the notebook's kernel and what its journal has: of several kernels the newest one that has anything.

    Raises:
        AlbedoError: there is none, or its host cannot be asked.
    """
    from ..hosts import io_thread
    from ..kernels import find
    from ..kernels.journal import read_journal
    from ..kernels.survey import DEADLINE

    deadline = arguments.timeout or DEADLINE
    if arguments.kernel is not None:
        candidates = [find.by_id(arguments.kernel, deadline)]
    else:
        candidates = find.by_notebook(arguments.notebook, deadline)
    empty: FoundKernel | None = None
    gone: KernelGoneError | None = None
    for kernel in candidates:
        try:
            cells = io_thread.run_blocking(read_journal(kernel.host, kernel.kernel_id, kernel.python))
        except KernelGoneError as error:
            gone = gone or error
            continue
        if cells:
            return kernel, cells
        empty = empty or kernel
    if empty is not None:
        return empty, []
    assert gone is not None
    raise gone


def _read(path: str) -> _File:
    """Read a notebook.

    Raises:
        AlbedoError: it cannot be read, or is no notebook of format 4.
    """
    import nbformat

    read: Any = nbformat.reads  # untyped
    try:
        with open(path, encoding="utf-8") as file:
            status = os.fstat(file.fileno())
            text = file.read()
    except OSError as error:
        raise AlbedoError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise AlbedoError(f"{path} is not a notebook: it is not UTF-8 text.") from error
    try:
        notebook = read(text, as_version=nbformat.NO_CONVERT)
        if notebook.nbformat == 4:
            nbformat.validate(notebook)
    except (nbformat.reader.NotJSONError, nbformat.ValidationError, AttributeError, KeyError, TypeError) as error:
        raise AlbedoError(f"{path} is not a notebook: {str(error).splitlines()[0]}.") from error
    if notebook.nbformat != 4:
        raise ConfigError(f"{path} is a notebook of format {notebook.nbformat}; save it with a newer Jupyter first.")
    return _File(path, notebook, status.st_mtime_ns, stat.S_IMODE(status.st_mode))


def _write(path: str, notebook: NotebookNode, file: _File, expected: int | None) -> None:
    """Put a notebook into place whole, with the permissions of the one that was read.

    Args:
        path: where to.
        notebook: what.
        file: the one that was read.
        expected: the modification time that the file at `path` must still have; None for any, or none.

    Raises:
        AlbedoError: it cannot be written, or somebody else has written it meanwhile. Nothing is changed then.
    """
    import nbformat

    from ..kernels.rewritten_notebook import rewriting

    write: Any = nbformat.writes  # untyped
    text = write(notebook, version=nbformat.NO_CONVERT)
    target = os.path.realpath(path)  # a link stays a link
    temporary = ""
    try:
        descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(target), prefix=".", suffix=".albedo-new")
        with os.fdopen(descriptor, "w", encoding="utf-8") as fresh:
            fresh.write(text if text.endswith("\n") else text + "\n")
            os.fchmod(descriptor, file.mode)
            fresh.flush()
            os.fsync(descriptor)
        if expected is not None and os.stat(target).st_mtime_ns != expected:
            raise AlbedoError(f"{path} was saved by somebody else meanwhile; nothing was changed, try again.")
        with rewriting(path):
            os.replace(temporary, target)
            temporary = ""
    except OSError as error:
        raise AlbedoError(f"{path} cannot be written: {error.strerror}.") from error
    finally:
        if temporary:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
