"""Which kernels there are: what the hosts say, side by side, put together with what is on record here.

A host out of reach says nothing about its kernels: those on record are told of all the same, in state "unknown".
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .. import kernelspecs
from ..errors import (
    AlbedoError,
    HostError,
    KernelStartError,
    LocationError,
    NoRoomError,
    UnreachableError,
    UnsupportedHostError,
)
from ..hosts import io_thread
from ..hosts.asking import ask
from ..location import Location
from .endings import note_if_possible, prove_endings
from .journal import kernel_facts
from .notebook_file import whereabouts
from .records import ENDING, KernelRecord, KernelRecords

DEADLINE = 30.0
"""Seconds that each host has to answer, unless the caller says otherwise: a login profile that has to be left out takes
half of them (`hosts/login_shell.py`)."""

_SLOW = "Its login profile or the network may be slow: --timeout SECONDS waits longer."

_AT_ONCE = 4
"""Keepers of one host that are asked at the same time; each costs a login there."""

THIS_MACHINE = "this machine"


@dataclass(frozen=True)
class FoundKernel:
    """A kernel as the host and the records tell of it.

    Attributes:
        kernel_id: its id.
        host: as the user spells it; None for this machine.
        folder: the folder it runs in, on its host.
        notebook: path of the notebook it was started for, on the machine that started it; may be empty.
        state: "busy", "idle", "running" (busy or idle: not known), "starting", "exited", "ending", or "unknown".
        note: what else there is to say about the state; may be empty.
        since: when it was started, seconds since the epoch; None when nobody knows.
        memory: bytes of resident memory of the kernel's process; None when nobody knows.
        pid: of its process on its host.
        record: its record on this machine, if it has one.
        python: the interpreter on the host that its requests need; None for the login shell's.
    """

    kernel_id: str
    host: str | None
    folder: str
    notebook: str
    state: str
    note: str = ""
    since: float | None = None
    memory: int | None = None
    pid: int | None = None
    record: KernelRecord | None = None
    python: str | None = None

    @property
    def notebook_now(self) -> str:
        """What became of the notebook's file since, in a few words; empty when it is there, or nobody knows."""
        if self.record is None:
            return ""
        return whereabouts(self.record.notebook, KernelRecords().mark(self.kernel_id))

    @property
    def short_id(self) -> str:
        """Enough of the id to tell it from others, for people."""
        return self.kernel_id[:8]

    @property
    def host_name(self) -> str:
        """The host, in words."""
        return self.host or THIS_MACHINE


@dataclass(frozen=True)
class HostAnswer:
    """What came of asking one host.

    Attributes:
        host: as the user spells it; None for this machine.
        kernels: those on it, or on record for it.
        error: why it could not be asked; None when it has answered.
    """

    host: str | None
    kernels: tuple[FoundKernel, ...]
    error: AlbedoError | None = None


@dataclass
class _Host:
    """A host to be asked: our records of it, and the interpreters that are known to do there."""

    records: list[KernelRecord] = field(default_factory=list)
    pythons: list[str | None] = field(default_factory=list)


def survey(hosts: Sequence[str | None] | None = None, deadline: float = DEADLINE) -> list[HostAnswer]:
    """Ask hosts which kernels of this account they have; blocking.

    Args:
        hosts: whom to ask; None for all that we know: of the records, of our kernelspecs, and this machine.
        deadline: seconds that each host has. All are asked at the same time.

    Returns:
        an answer for each, in the order of `hosts`; no kernel is in two of them.
    """
    return io_thread.run_blocking(survey_on_io_thread(hosts, deadline))


async def survey_on_io_thread(hosts: Sequence[str | None] | None, deadline: float) -> list[HostAnswer]:
    """Do what `survey` does, on the I/O thread."""
    known = _known_hosts()
    asked = list(known) if hosts is None else list(dict.fromkeys(hosts))
    answers = await asyncio.gather(*(_ask_host(host, known.get(host) or _Host(), deadline) for host in asked))
    return _without_doubles(answers)


def known_pythons(host: str | None) -> list[str | None]:
    """Return the interpreters of a host that kernels on record and our kernelspecs name; None is its own `python3`."""
    known = _known_hosts().get(host)
    return [] if known is None else known.pythons


def _known_hosts() -> dict[str | None, _Host]:
    known: dict[str | None, _Host] = {}
    for record in reversed(KernelRecords().all()):
        host = known.setdefault(record.location.host, _Host())
        host.records.append(record)
        host.pythons.append(record.request.get("python"))
    for kernelspec in kernelspecs.find_ours():
        try:
            location = Location.parse(kernelspec.location)
        except LocationError:
            continue  # somebody broke that kernelspec; `jupyter albedo list` shows it
        known.setdefault(location.host, _Host()).pythons.append(_text(kernelspec.config.get("python")))
    known.setdefault(None, _Host())
    return known


async def _ask_host(host: str | None, known: _Host, deadline: float) -> HostAnswer:
    until = asyncio.get_running_loop().time() + deadline
    try:
        async with asyncio.timeout_at(until):
            answer, python = await _list(host, known.pythons)
    except TimeoutError:
        name = host or THIS_MACHINE
        error = UnreachableError(
            name, f"{name} did not answer within {deadline:g} s. {_SLOW}", f"no answer in {deadline:g} s"
        )
        return HostAnswer(host, _unknown(host, known.records, error), error)
    except AlbedoError as error:
        return HostAnswer(host, _unknown(host, known.records, error), error)
    records = {record.kernel_id: record for record in known.records}
    slots = asyncio.Semaphore(_AT_ONCE)
    found = await asyncio.gather(
        *(
            _found(host, python, entry, records.pop(entry["kernel_id"], None), str(answer.get("node")), slots, until)
            for entry in answer["kernels"]
        )
    )
    kernels = [*found, *(_not_there(record, str(answer.get("node"))) for record in records.values())]
    return HostAnswer(host, await _see_to_endings(host, kernels, deadline))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None  # a kernelspec written by hand may hold anything


async def _list(host: str | None, pythons: Iterable[str | None]) -> tuple[dict[str, Any], str | None]:
    """Have a host list its kernels, with the first interpreter that does; return the answer and that interpreter."""
    refusal: AlbedoError | None = None
    for python in dict.fromkeys([*([sys.executable] if host is None else []), *pythons, None]):
        try:
            return await ask(host, {"do": "list"}, python), python
        except (UnsupportedHostError, KernelStartError) as error:
            refusal = refusal or error
    assert refusal is not None
    raise refusal


async def _found(
    host: str | None,
    python: str | None,
    entry: dict[str, Any],
    record: KernelRecord | None,
    node: str,
    slots: asyncio.Semaphore,
    until: float,
) -> FoundKernel:
    """Return a kernel that its host has listed."""
    kernel = FoundKernel(
        kernel_id=entry["kernel_id"],
        host=host,
        folder=entry.get("folder") or (record.location.path if record else ""),
        notebook=(record.notebook if record else "") or entry.get("notebook") or "",
        state="running",
        since=entry.get("started"),
        memory=entry.get("memory"),
        pid=entry.get("pid"),
        record=record,
        python=(record.request.get("python") if record else None) or python,
    )
    if record is not None and record.state == ENDING:
        return replace(kernel, state=ENDING)
    if entry.get("node") not in (None, node):
        # A home that several machines share: this one cannot see the other's processes.
        return replace(kernel, state="unknown", note=f"it runs on {entry['node']}")
    if not entry.get("keeper"):
        note = "its keeper was killed" if entry.get("runs") else "left by a keeper that was killed"
        return replace(kernel, state="running" if entry.get("runs") else "exited", note=note)
    if not entry.get("pid"):
        return replace(kernel, state="starting")
    try:
        async with asyncio.timeout_at(until), slots:
            facts = await kernel_facts(host, kernel.kernel_id, kernel.python)
    except (TimeoutError, AlbedoError):
        # The host has said that it runs, and that stays true; whether it is busy is not known.
        return kernel if entry.get("runs") else replace(kernel, state="exited")
    if facts["state"] != "running":
        return replace(kernel, state=str(facts["state"]))
    note = "" if facts["responsive"] else "does not answer: busy in native code, or stopped"
    return replace(kernel, state="busy" if facts["busy"] else "idle", note=note)


def _not_there(record: KernelRecord, node: str) -> FoundKernel:
    """Return a kernel on record that its host, of which the machine `node` has answered, does not have."""
    kernel = of_record(record)
    runs_on = KernelRecords().node(record.kernel_id)
    if runs_on not in ("", node):
        return replace(kernel, state=ENDING if record.state == ENDING else "unknown", note=f"it runs on {runs_on}")
    if record.state == ENDING:
        return replace(kernel, state=ENDING)
    if not record.orphaned:
        return replace(kernel, state="unknown", note="its host does not have it; it may just be starting")
    note_if_possible(KernelRecords().remove, record.kernel_id)
    return replace(kernel, state="exited", note="its host has it no more")


def _unknown(host: str | None, records: Sequence[KernelRecord], error: AlbedoError) -> tuple[FoundKernel, ...]:
    away = isinstance(error, HostError) and error.state in ("unreachable", "needs_auth")
    note = "host out of reach" if away else "host could not be asked"
    if isinstance(error, NoRoomError):
        note = "no room on the connection that is signed in"
    return tuple(
        replace(of_record(record), state=ENDING if record.state == ENDING else "unknown", note=note)
        for record in records
        if record.location.host == host
    )


def of_record(record: KernelRecord) -> FoundKernel:
    """Return a kernel as far as its record tells of it."""
    return FoundKernel(
        kernel_id=record.kernel_id,
        host=record.location.host,
        folder=record.location.path,
        notebook=record.notebook,
        state="unknown",
        since=record.started,
        record=record,
        python=record.request.get("python"),
    )


async def _see_to_endings(host: str | None, kernels: Sequence[FoundKernel], deadline: float) -> tuple[FoundKernel, ...]:
    """The host can be reached: have those kernels ended there whose end was asked for when it could not be."""
    waiting = [kernel for kernel in kernels if kernel.state == ENDING and kernel.record and kernel.record.orphaned]
    if not waiting:
        return tuple(kernels)
    try:
        async with asyncio.timeout(deadline):
            await prove_endings(host)
    except TimeoutError:
        return tuple(kernels)  # still on record; the next contact goes on with it
    left = {record.kernel_id for record in KernelRecords().all()}
    return tuple(
        replace(kernel, note="ended now") if kernel in waiting and kernel.kernel_id not in left else kernel
        for kernel in kernels
    )


def _without_doubles(answers: Sequence[HostAnswer]) -> list[HostAnswer]:
    """Two names may lead to one host: show each kernel once, under the name that its record has."""
    best: dict[str, FoundKernel] = {}
    for answer in answers:
        for kernel in answer.kernels:
            known = best.get(kernel.kernel_id)
            if known is None or (known.record is None and kernel.record is not None):
                best[kernel.kernel_id] = kernel
    return [
        replace(answer, kernels=tuple(kernel for kernel in answer.kernels if best[kernel.kernel_id] is kernel))
        for answer in answers
    ]


def when(seconds: float | None) -> str:
    """Return a moment for people: the time of today, or date and time."""
    if seconds is None:
        return "-"
    moment = time.localtime(seconds)
    today = time.localtime()
    return time.strftime("%H:%M" if moment[:3] == today[:3] else "%Y-%m-%d %H:%M", moment)
