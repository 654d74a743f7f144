"""How kernels end: by their host's hand without a link to them, as was promised earlier, and in words."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import AlbedoError, ConfigError, LinkAwayError
from ..hosts.asking import ask
from ..hosts.last_words import NO_MORE_TASKS, cause_in
from .records import ENDING, KernelRecord, KernelRecords, this_process
from .request import KernelRequest

log = logging.getLogger("albedo_provisioner.kernels")

_ABANDONED = (0.5, 2.0, 10.0, 30.0)  # seconds between looks at what a start that was given up may have made

_background: set[asyncio.Task[Any]] = set()  # keeps what runs on its own from being collected
_under_way: set[str] = set()  # ids of the kernels whose ends this process is at


def in_background(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Let something run on its own on the I/O thread's loop, and return its task; what goes wrong in it is logged."""

    def done(task: asyncio.Task[Any]) -> None:
        _background.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.info("%s", task.exception())

    task = asyncio.get_running_loop().create_task(work)
    _background.add(task)
    task.add_done_callback(done)
    return task


def who_ended(kernel_id: str) -> str | None:
    """Return who ended a kernel, in words that follow "The kernel", where that is known on this machine."""
    try:
        return KernelRecords().ending(kernel_id)
    except ConfigError as error:  # that it has ended is told all the same
        log.info("%s: %s", kernel_id, error)
        return None


def note_if_possible(note: Callable[..., None], kernel_id: str, *more: str) -> None:
    """Note something of a kernel's end on record, if that can be: a full disk keeps no kernel alive."""
    try:
        note(kernel_id, *more)
    except ConfigError as error:
        log.warning("Kernel %s: %s", kernel_id, error)


@contextmanager
def seeing_to_end(kernel_id: str) -> Iterator[None]:
    """Note, meanwhile, that this process is at a kernel's end."""
    _under_way.add(kernel_id)
    try:
        yield
    finally:
        _under_way.discard(kernel_id)


def is_ending(kernel_id: str) -> bool:
    """Whether this process is at a kernel's end."""
    return kernel_id in _under_way


async def end_on_host(request: KernelRequest, kernel_id: str, started: float = 0.0) -> dict[str, Any]:
    """End a kernel and its keeper without being linked to it, and return the ladder's report.

    Args:
        request: what it was started with.
        kernel_id: its id.
        started: when it was, as its keeper told, where only that one is to end, and none that was started under its id
            later; 0 for whichever there is.

    Raises:
        AlbedoError: the host cannot be asked, or it did not end.
    """
    return await end_at(request.location.host, request.python, kernel_id, started)


async def end_at(host: str | None, python: str | None, kernel_id: str, started: float = 0.0) -> dict[str, Any]:
    """Do as `end_on_host`, of a kernel of which only the place is known."""
    wanted = {"do": "end", "kernel_id": kernel_id, "node": KernelRecords().node(kernel_id), "started": started}
    return dict((await ask(host, wanted, python))["ended"])


async def end_by_record(kernel_id: str, how: str) -> None:
    """End a kernel of which we have nothing but its record, and forget it.

    Args:
        kernel_id: its id.
        how: who ends it, in words that follow "The kernel", for others who use it.

    Raises:
        LinkAwayError: its host cannot be asked; the kernel is noted as to be ended, and is at the next contact.
    """
    records = KernelRecords()
    record = records.get(kernel_id)
    if record is None:
        return
    note_if_possible(records.note_ending, kernel_id, how)
    records.set_state(kernel_id, ENDING)
    try:
        report = await end_on_host(KernelRequest.from_dict(record.request), kernel_id)
    except AlbedoError as error:
        raise LinkAwayError(f"The kernel {kernel_id} is still to be ended: {error}") from error
    if report["survivors"]:
        raise LinkAwayError(f"Processes of the kernel {kernel_id} are left: {report['survivors']}")
    note_if_possible(records.remove_ended, kernel_id)


def unproven_ends(kernel_ids: Collection[str]) -> list[str]:
    """Return those of these kernels whose end was asked for and is not proven."""
    return [each.kernel_id for each in KernelRecords().all() if each.state == ENDING and each.kernel_id in kernel_ids]


async def prove_endings(host: str | None) -> None:
    """End the kernels on a host whose end was asked for when it could not be reached, and which nobody is at."""
    records = KernelRecords()
    for each in records.all():
        # As it is now: each end takes its time, and somebody may have started another one under the id meanwhile.
        record = records.get(each.kernel_id) if each.state == ENDING and each.location.host == host else None
        if record is not None and record.state == ENDING and _left_undone(record):
            try:
                report = await end_on_host(KernelRequest.from_dict(record.request), record.kernel_id)
            except AlbedoError as error:
                log.info("%s: kernel %s is still to be ended: %s", host, record.kernel_id, error)
                continue
            if report["survivors"]:
                log.warning("%s: processes of kernel %s are left: %s", host, record.kernel_id, report["survivors"])
            else:
                note_if_possible(records.remove_ended, record.kernel_id)
                log.info("%s: kernel %s, which was to be ended, is gone.", host, record.kernel_id)


async def end_abandoned(request: KernelRequest, kernel_id: str) -> None:
    """End what a start that was given up may have made.

    Its command may be under way still and make the kernel only now, so one look is not enough. Where the last one
    fails, or this process ends meanwhile, it is done at the next contact with the host (`prove_endings`).
    """
    proven = False
    with seeing_to_end(kernel_id):
        for pause in _ABANDONED:
            await asyncio.sleep(pause)
            try:
                proven = not (await end_on_host(request, kernel_id))["survivors"]
            except AlbedoError as error:
                log.info("%s: a start that was given up is still to be undone: %s", request.location.host, error)
                proven = False
    if proven:
        note_if_possible(KernelRecords().remove, kernel_id)


def _left_undone(record: KernelRecord) -> bool:
    ours = record.owner == this_process()
    return not is_ending(record.kernel_id) if ours else record.orphaned


def how_it_ended(exit_: dict[str, Any]) -> str:
    """Return how a kernel ended, in words that follow "The kernel on HOST"."""
    code = exit_["code"]
    if exit_.get("asked"):
        return str(exit_["asked"])
    if exit_.get("out_of_memory"):
        return "was killed by the system because memory ran out there"
    if code is None:
        return "has ended; its keeper was killed before, so how is not known" + _beside(exit_)
    if code >= 0:
        return f"ended by itself with exit status {code}{_without_tasks(exit_)}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was ended by {name}{_without_tasks(exit_) or _beside(exit_)}"


def _without_tasks(exit_: dict[str, Any]) -> str:
    """Return what the last words of a kernel add that had too few processes and threads; empty for others."""
    if not NO_MORE_TASKS.search(cause_in(str(exit_.get("words") or ""))):
        return ""
    return "; it was allowed no more processes or threads (ulimit -u), as its last words say"


def _beside(exit_: dict[str, Any]) -> str:
    """Return what else happened there that may have been the cause, where that is all that is known."""
    kills = exit_.get("memory_kills") or 0
    if not kills:
        return ""
    how_many, one = (
        ("one process", "it may have been this one")
        if kills == 1
        else (
            f"{kills} processes",
            "this may have been one of them",
        )
    )
    return (
        f"; at about that time the system killed {how_many} of its memory group because memory ran out there, and {one}"
    )
