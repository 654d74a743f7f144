"""Finding the kernel that somebody means: by the beginning of its id, or by its notebook."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..errors import AlbedoError
from ..hosts import io_thread
from .records import KernelRecords
from .survey import FoundKernel, HostAnswer, of_record, survey_on_io_thread

_SURE = 8
"""Characters of an id, as the table shows them, that are taken for unique without asking all hosts."""


def by_id(prefix: str, deadline: float) -> FoundKernel:
    """Return the kernel whose id begins like this: of those on record, and of those that the hosts have; blocking.

    Raises:
        AlbedoError: there is none, or more than one.
    """
    return io_thread.run_blocking(by_id_on_io_thread(prefix, deadline))


async def by_id_on_io_thread(prefix: str, deadline: float) -> FoundKernel:
    """Do what `by_id` does, on the I/O thread."""
    recorded = [record for record in KernelRecords().all() if record.kernel_id.startswith(prefix)]
    if len(recorded) == 1 and len(prefix) >= _SURE:
        return of_record(recorded[0])
    answers = await survey_on_io_thread(None, deadline)
    found = [kernel for answer in answers for kernel in answer.kernels if kernel.kernel_id.startswith(prefix)]
    if not prefix or not found:
        raise AlbedoError(
            f"No kernel has an id that begins with {prefix!r}; `jupyter albedo kernels` lists them.{_unasked(answers)}"
        )
    if len(found) > 1:
        which = ", ".join(f"{kernel.kernel_id} on {kernel.host_name}" for kernel in found)
        raise AlbedoError(f"Several kernels have an id that begins with {prefix!r}: {which}.")
    return found[0]


def by_notebook(path: str, deadline: float) -> list[FoundKernel]:
    """Return the kernels of a notebook, the newest first: those on record, else those that the hosts tell of; blocking.

    Args:
        path: the notebook's file; it need not exist.
        deadline: seconds that each host has.

    Raises:
        AlbedoError: there is none.
    """
    return io_thread.run_blocking(by_notebook_on_io_thread(path, deadline))


async def by_notebook_on_io_thread(path: str, deadline: float) -> list[FoundKernel]:
    """Do what `by_notebook` does, on the I/O thread."""
    found = [of_record(record) for record in KernelRecords().all() if is_notebook(record.notebook, path)]
    if not found:
        answers = await survey_on_io_thread(None, deadline)
        found = [kernel for answer in answers for kernel in answer.kernels if is_notebook(kernel.notebook, path)]
        if not found:
            raise AlbedoError(
                f"No kernel is known to have run for {path}; `jupyter albedo kernels` lists those there are, and "
                "`jupyter albedo recover --kernel ID` takes any of them."
                f"{_unasked(answers)}"
            )
    return sorted(found, key=lambda kernel: kernel.since or 0.0, reverse=True)


def is_notebook(recorded: str, path: str) -> bool:
    """Whether a notebook on record is this file.

    Jupyter names it by its absolute path; some versions, and other programs, by one relative to the server's root.
    """
    name = recorded.replace("RTC:", "")  # what JupyterLab's collaboration puts before it
    if not name:
        return False
    if os.path.isabs(name):
        return os.path.realpath(name) == os.path.realpath(path)
    return os.path.abspath(path).endswith("/" + os.path.normpath(name))


def _unasked(answers: Sequence[HostAnswer]) -> str:
    errors = [str(answer.error) for answer in answers if answer.error is not None]
    return f" Not every host could be asked: {' '.join(errors)}" if errors else ""
