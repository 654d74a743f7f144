"""What is measured. Every measure is taken in rounds, one column after the other in each, because the machine's speed
changes while a run lasts: what is compared was measured within seconds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from . import processes
from .columns import Column, MeasureError
from .hosts import LOCAL, NAMES, OURS
from .repository import repository

LOOKS = ("list", "repo", "preview")

Samples = dict[str, list[float]]
"""By row key, what one round of a measure gave."""


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
        key: its name in `Samples` and in the JSON.
        title: what stands before it.
        unit: "s", "ms", "MB/s", "MiB" or "".
        reduce: makes one figure of all samples.
        compare: "difference", "ratio" or "" to the local column.
    """

    key: str
    title: str
    unit: str
    reduce: Callable[[Sequence[float]], float] = statistics.median
    compare: str = "difference"


@dataclass(frozen=True)
class Measure:
    """One measure, of one or several rows.

    Attributes:
        name: for `--only`.
        rounds: how many rounds of it, in a full run and in a quick one.
        take: takes it once in one column; the second argument says whether the run is quick.
        rows: its rows.
        columns: in which columns.
        note: what to know about it, for below the table.
    """

    name: str
    rounds: tuple[int, int]
    take: Callable[[Column, bool], Samples]
    rows: Sequence[Row]
    columns: Sequence[str] = NAMES
    note: str = ""


@dataclass
class Result:
    """What a row gave in one column: samples, or why there are none."""

    samples: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    rounds: int = 0


def percentile99(samples: Sequence[float]) -> float:
    """Return the 99th percentile (the largest of fewer than a hundred)."""
    return sorted(samples)[min(len(samples) - 1, int(0.99 * len(samples)))]


def _first(column: Column, quick: bool) -> Samples:
    samples: Samples = {}
    for until in ("reply", "ready"):
        column.renew(forget=True)
        samples[f"first-{until}"] = [column.call("start", until=until)[until]]
    column.renew()  # the client's first start, which loads modules, is part of a first visit and not of a later one
    column.call("start", until="reply")
    return samples


def _warm(column: Column, quick: bool) -> Samples:
    samples: Samples = {"shutdown": []}
    for until in ("reply", "ready"):
        taken = column.call("start", until=until)
        samples[f"warm-{until}"] = [taken[until]]
        samples["shutdown"].append(taken["shutdown"])
    return samples


def _round_trips(column: Column, quick: bool) -> Samples:
    times = [1000 * seconds for seconds in column.call("round_trips", count=50 if quick else 100)]
    return {"round-trip": times, "round-trip-p99": times}


def _memory(column: Column, quick: bool) -> Samples:
    column.call("open")
    samples: Samples = {"rss": [0.0], "pss": [0.0]}
    for process in column.host_processes:
        rss, pss = (size / 2**20 for size in processes.memory(process))
        samples["rss"][0] += rss
        samples["pss"][0] += pss
        name = {"albedo-keeper": "keeper", "cat": "bridge"}.get(process.name())
        if name:
            samples[f"{name}-rss"], samples[f"{name}-pss"] = [rss], [pss]
    return samples


def _idle(columns: Sequence[Column], quick: bool) -> dict[str, Samples]:
    """Watch all columns over the same time: an idle one takes nothing from the others."""
    taken: dict[str, Samples] = {}
    watched = {}
    for column in columns:
        try:
            column.call("open")
        except MeasureError:
            continue  # its cell stays empty; why it cannot start is told in the rows above
        watched[column.name] = (column.host_processes, column.client_processes)
    time.sleep(1)
    before = {name: [processes.cpu_seconds(side) for side in sides] for name, sides in watched.items()}
    seconds = 10 if quick else 30
    time.sleep(seconds)
    for name, sides in watched.items():
        used = [processes.cpu_seconds(side) - was for side, was in zip(sides, before[name], strict=True)]
        taken[name] = {
            key: [1000 * use * 30 / seconds] for key, use in zip(("idle-host", "idle-client"), used, strict=True)
        }
    return taken


def _lines(column: Column, quick: bool) -> Samples:
    return {"lines": [column.call("lines", count=20_000)]}


def _megabytes(column: Column, quick: bool) -> Samples:
    return {"megabytes": [100 / column.call("megabytes", displays=20, size=5_000_000)]}


def _interrupt(column: Column, quick: bool) -> Samples:
    return {"interrupt": [column.call("interrupt")]}


def _flood(column: Column, quick: bool) -> Samples:
    return {"flood": [column.call("flood", seconds=1 if quick else 3)]}


def _cut(column: Column, quick: bool) -> Samples:
    return {f"cut-{what}": [column.call("cut", what=what)] for what in ("bridge", "session")}


def _many(column: Column, quick: bool) -> Samples:
    column.call("close")
    taken = column.call("many", count=10, deadline=180)
    return {"many": [taken["seconds"]], "connections": [taken["connections"]]}


def _sessions(column: Column, quick: bool) -> Samples:
    taken = column.call("session_round_trips", count=50 if quick else 200)
    over = [one - other for one, other in zip(taken["session"], taken["link"], strict=True)]
    return {**{f"trip-{name}": times for name, times in taken.items()}, "trip-over": over}


def _first_result(column: Column, quick: bool) -> Samples:
    return {"first-result": [column.call("first_result")]}


def _session_memory(column: Column, quick: bool) -> Samples:
    return {"session-memory": [column.call("session_memory", deadline=300) / 2**20]}


def _memory_calls(column: Column, quick: bool) -> Samples:
    times = column.call("memory_calls", count=30 if quick else 100, deadline=120)
    return {f"memory-{name}": samples for name, samples in times.items()}


def _browse(column: Column, quick: bool) -> Samples:
    folder = repository(column.host.root)
    location = f"{column.host.alias}:{folder}" if column.host.alias else str(folder)
    samples = {f"browse-{what}": [column.call("browse", what=what, location=location)] for what in LOOKS}
    if column.host.kind == LOCAL:
        samples["browse-git"] = [column.call("git", folder=str(folder))]
    return samples


_OURS = tuple(name for name in NAMES if name.startswith(OURS))
_REMOTE = tuple(name for name in NAMES if name != LOCAL)

MEASURES = (
    Measure(
        "first",
        (3, 1),
        _first,
        (
            Row("first-reply", "first visit: start to kernel_info_reply", "s"),
            Row("first-ready", "first visit: start to wait_for_ready", "s"),
        ),
        note="First visit: a new client process, no connection, an empty home on the host.",
    ),
    Measure(
        "warm",
        (7, 3),
        _warm,
        (
            Row("warm-reply", "warm start to kernel_info_reply", "s"),
            Row("warm-ready", "warm start to wait_for_ready", "s"),
            Row("shutdown", "graceful shutdown", "s"),
        ),
        note="Warm start: host visited before, connection open. wait_for_ready ends with a fixed 0.2 s of flushing.",
    ),
    Measure(
        "round-trip",
        (10, 4),
        _round_trips,
        (
            Row("round-trip", "execute `1`, round trip, median", "ms"),
            Row("round-trip-p99", "execute `1`, round trip, p99", "ms", percentile99),
        ),
        note="Round trip: from the request until reply and idle status have come; blocking client, nothing subtracted.",
    ),
    Measure(
        "memory",
        (1, 1),
        _memory,
        (
            Row("rss", "beside the kernel on the host, RSS", "MiB", compare=""),
            Row("pss", "beside the kernel on the host, PSS", "MiB", compare=""),
            Row("keeper-rss", "  keeper, RSS", "MiB", compare=""),
            Row("keeper-pss", "  keeper, PSS", "MiB", compare=""),
            Row("bridge-rss", "  bridge, RSS", "MiB", compare=""),
            Row("bridge-pss", "  bridge, PSS", "MiB", compare=""),
        ),
        columns=_REMOTE,
        note="Memory: after the executes above (1,000 in a full run, 200 in a quick one).",
    ),
    Measure("lines", (5, 3), _lines, (Row("lines", "20,000 printed lines", "s", compare="ratio"),)),
    Measure("megabytes", (5, 3), _megabytes, (Row("megabytes", "100 MB in 20 displays", "MB/s", compare="ratio"),)),
    Measure("interrupt", (5, 2), _interrupt, (Row("interrupt", "interrupt a sleeping cell", "s"),)),
    Measure(
        "flood",
        (3, 1),
        _flood,
        (Row("flood", "interrupt a flood of output", "s"),),
        note="Interrupts: from interrupt_kernel() until the error reply and the idle status have come.",
    ),
    Measure(
        "cut",
        (3, 1),
        _cut,
        (
            Row("cut-bridge", "reattach after the bridge was killed", "s", compare=""),
            Row("cut-session", "reattach after sshd's session was killed", "s", compare=""),
        ),
        columns=_OURS,
        note="Reattach: in the middle of a cell, whose every line must arrive nevertheless.",
    ),
    Measure(
        "many",
        (2, 1),
        _many,
        (
            Row("many", "10 kernels at once, until all have answered", "s", compare="ratio"),
            Row("connections", "  connections to the host", "", compare=""),
        ),
    ),
    Measure(
        "browse",
        (7, 5),
        _browse,
        (
            Row("browse-list", "browse.list of 10,000 files in 100 folders", "s"),
            Row("browse-repo", "browse.repo of them", "s"),
            Row("browse-preview", "browse.preview of them", "s"),
            Row("browse-git", "  of that `git status`, by itself", "s", compare=""),
        ),
        columns=(LOCAL, *_OURS),
        note="Browse: host visited before, connection open. Local means a folder of this machine, not a kernel.",
    ),
    Measure(
        "sessions",
        (3, 2),
        _sessions,
        (
            Row("trip-session", 'session.execute("1"), median', "ms", compare=""),
            Row("trip-link", "  the same by the session's link alone", "ms", compare=""),
            Row("trip-over", "  what the session adds, median of pairs", "ms", compare=""),
            Row("trip-client", "  the same by an ordinary client of that kernel", "ms", compare=""),
        ),
        columns=_OURS,
        note="Sessions: all three on one kernel, in turns.",
    ),
    Measure(
        "first-result",
        (7, 3),
        _first_result,
        (Row("first-result", "first result of a new session", "s"),),
        columns=(LOCAL, *_OURS),
        note="First result: host visited before; locally jupyter_client's start_new_kernel and its first result.",
    ),
    Measure(
        "session-memory",
        (1, 1),
        _session_memory,
        (Row("session-memory", "memory here of an idle session", "MiB", compare=""),),
        columns=_OURS,
    ),
    Measure(
        "memory-calls",
        (3, 1),
        _memory_calls,
        (
            Row("memory-append", "memory.append in a cell", "ms", compare=""),
            Row("memory-read", "memory.read in a cell", "ms", compare=""),
        ),
        columns=_OURS,
    ),
)

IDLE = Measure(
    "idle",
    (1, 1),
    lambda column, quick: {},
    (
        Row("idle-host", "processor time in 30 s idle, host, beside the kernel", "ms", compare=""),
        Row("idle-client", "processor time in 30 s idle, client", "ms", compare=""),
    ),
    note="Idle: heartbeats of one ordinary client go on; a quick run watches 10 s and multiplies.",
)


def take(measure: Measure, columns: Sequence[Column], quick: bool) -> dict[str, dict[str, Result]]:
    """Take a measure in all its columns, round by round; return results by row key and column name."""
    results = {row.key: {column.name: Result() for column in columns} for row in measure.rows}
    wanted = [column for column in columns if column.name in measure.columns]
    if measure is IDLE:
        for name, samples in _idle(wanted, quick).items():
            for key, values in samples.items():
                results[key][name].samples += values
        return results
    for _ in range(measure.rounds[quick]):
        for column in wanted:
            try:
                samples = measure.take(column, quick)
            except MeasureError as error:
                for row in measure.rows:
                    results[row.key][column.name].failures.append(str(error))
                continue
            for key, values in samples.items():
                results[key][column.name].samples += values
    return results
