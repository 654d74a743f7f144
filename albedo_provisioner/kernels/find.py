"""Finding the kernel that somebody means: by the beginning of its id, or by its notebook."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import AlbedoError
from ..hosts import io_thread
from .notebook_file import is_of
from .records import KernelRecords
from .survey import FoundKernel, HostAnswer, of_record, survey_on_io_thread

_SURE = 8
"""Characters of an id, as the table shows them, that are taken for unique without asking all hosts."""

_LISTED = "`jupyter albedo kernels` lists those there are."
_MOST_SHOWN, _MOST_HOSTS = 40, 8  # characters of what was typed, and names of hosts, in a message


def by_id(prefix: str, deadline: float) -> FoundKernel:
    """Return the kernel whose id begins like this: of those on record, and of those that the hosts have; blocking.

    Raises:
        AlbedoError: there is none, or more than one.
    """
    return io_thread.run_blocking(by_id_on_io_thread(prefix, deadline))


async def by_id_on_io_thread(prefix: str, deadline: float) -> FoundKernel:
    """Do what `by_id` does, on the I/O thread."""
    found, errors, unasked = await _by_ids([prefix], deadline)
    if errors:
        raise AlbedoError(f"{errors[0]} {unasked or _LISTED}")
    return found[0]


def by_ids(prefixes: Sequence[str], deadline: float) -> tuple[list[FoundKernel], list[str]]:
    """Return the kernels whose ids begin like these, as `by_id` does; blocking. The hosts are asked once for all.

    Returns:
        the kernels, each once, and a short line about each beginning that is no one kernel's; a last one says where
        else such a kernel may be, or be seen.
    """
    found, errors, unasked = io_thread.run_blocking(_by_ids(prefixes, deadline))
    return found, [*errors, *([unasked or _LISTED] if errors else [])]


async def _by_ids(prefixes: Sequence[str], deadline: float) -> tuple[list[FoundKernel], list[str], str]:
    """Return the kernels, what is wrong with the other beginnings, and which hosts could not be asked."""
    records = KernelRecords().all()
    answers: list[HostAnswer] | None = None
    found: dict[str, FoundKernel] = {}
    errors = []
    for prefix in dict.fromkeys(prefixes):
        recorded = [record for record in records if record.kernel_id.startswith(prefix)]
        if len(recorded) == 1 and len(prefix) >= _SURE:
            found[recorded[0].kernel_id] = of_record(recorded[0])
            continue
        if answers is None:
            answers = list(await survey_on_io_thread(None, deadline))
        kernels = [each for answer in answers for each in answer.kernels if each.kernel_id.startswith(prefix)]
        if not prefix or not kernels:
            errors.append(f"No kernel has an id that begins with {_shown(prefix)}.")
        elif len(kernels) > 1:
            which = ", ".join(f"{kernel.kernel_id} on {kernel.host_name}" for kernel in kernels)
            errors.append(f"Several kernels have an id that begins with {_shown(prefix)}: {which}.")
        else:
            found[kernels[0].kernel_id] = kernels[0]
    return list(found.values()), errors, _unasked(answers or ())


def _shown(prefix: str) -> str:
    return repr(prefix if len(prefix) <= _MOST_SHOWN else f"{prefix[:_MOST_SHOWN]}…")


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
    records = KernelRecords()
    found = list(map(of_record, records.of_notebook(path)))
    if not found:
        answers = await survey_on_io_thread(None, deadline)
        found = [
            kernel
            for answer in answers
            for kernel in answer.kernels
            if is_of(kernel.notebook, records.mark(kernel.kernel_id), path)
        ]
        if not found:
            raise AlbedoError(
                f"No kernel is known to have run for {path} that has not been ended, with all that it had kept; "
                "`jupyter albedo kernels` lists those there are, and `jupyter albedo recover --kernel ID` takes any of "
                "them."
                f" {_unasked(answers)}".rstrip()
            )
    return sorted(found, key=lambda kernel: kernel.since or 0.0, reverse=True)


def _unasked(answers: Sequence[HostAnswer]) -> str:
    """Return which hosts could not be asked, in a sentence; empty when all were."""
    names = sorted(answer.host or "this machine" for answer in answers if answer.error is not None)
    if not names:
        return ""
    shown = ", ".join(names[:_MOST_HOSTS]) + (f" and {len(names) - _MOST_HOSTS} more" if names[_MOST_HOSTS:] else "")
    return f"Not every host could be asked ({shown}); `jupyter albedo kernels` says why."
