"""Processes on the host: who is there, who belongs to a kernel, and signals that cannot hit the wrong one.

A pid alone names nobody: the moment its process has been waited for, the system may give it to a stranger. So a process
is known here by its **identity**, `(pid, start time)`, and is only ever signalled by it. The start time's unit is the
platform's own (clock ticks since boot on Linux, seconds since the epoch elsewhere); it is only compared.

Where `/proc` has it, all is read from there; elsewhere from `ps`. Runs on the host: standard library only, and the
costly modules are imported where they are used.
"""

from __future__ import annotations

import errno
import os
import signal
import sys

TYPE_CHECKING = False  # not from typing: the keeper is started often, and this saves it one large import
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from typing import TypeGuard

MARK = "ALBEDO_KERNEL_ID"
"""Environment variable that a kernel's processes inherit; its value is the kernel's id."""

HAS_PROC = sys.platform == "linux" and os.path.exists("/proc/self/stat")
"""Whether processes are read from /proc. Tests switch it off to exercise the `ps` side."""

Identity = tuple[int, int]
"""(pid, start time)."""

Table = dict[int, "Process"]
"""Every process that was there at one moment, by pid."""


class Process:
    """One process as it was when the table was read.

    Attributes:
        pid, ppid, pgid, sid: its own, its parent's, its process group's and its session's id.
        start: start time, see the module's head.
        uid: effective user id (real, where `ps` was asked).
        state: the system's letter: R, S, D (U on macOS: a wait that no signal ends), T (stopped), Z (zombie), ...
        threads: number of threads; 1 where it is not known.
        name: the program's short name, for people. It may hold anything.
    """

    __slots__ = ("name", "pgid", "pid", "ppid", "sid", "start", "state", "threads", "uid")

    def __init__(
        self,
        pid: int,
        ppid: int,
        pgid: int,
        sid: int,
        start: int,
        uid: int,
        state: str,
        name: str,
        threads: int = 1,
    ) -> None:
        self.pid = pid
        self.ppid = ppid
        self.pgid = pgid
        self.sid = sid
        self.start = start
        self.uid = uid
        self.state = state
        self.name = name
        self.threads = threads

    def __repr__(self) -> str:
        return f"<Process {self.pid} {self.name!r} of {self.ppid}, state {self.state}>"

    @property
    def identity(self) -> Identity:
        """(pid, start time)."""
        return (self.pid, self.start)

    @property
    def alive(self) -> bool:
        """Whether it can still run anything.

        A zombie cannot; but where only the main thread has ended, the system says Z too while the others run on.
        """
        return self.state not in ("Z", "X") or self.threads > 1


class Family:
    """The living processes that belong to a kernel, oldest first (so a parent comes before its children).

    Attributes:
        ours: those that this account may end.
        foreign: those of another account (a `sudo` in a cell): never signalled, only told.
    """

    __slots__ = ("foreign", "ours")

    def __init__(self, ours: list[Process], foreign: list[Process]) -> None:
        self.ours = ours
        self.foreign = foreign


# ---------------------------------------------------------------------------------------------------- the table


_MOST_LOOKS = 20
"""How often at most it is looked for newcomers: on a busy host some always come."""


def snapshot() -> Table:
    """Read the whole process table.

    Raises:
        OSError: it could not be read (out of file descriptors, no `ps`). Never an empty table instead: that would
            "prove" that nothing is left.
    """
    return _snapshot_proc() if HAS_PROC else _snapshot_ps()


def find(pid: int) -> Process | None:
    """The process that has this pid now, zombies included; None when there is none."""
    return _read_proc(pid) if HAS_PROC else _snapshot_ps(pid).get(pid)


def identify(pid: int) -> Identity | None:
    """The identity of the process that has this pid now, or None. Take it while you know whose pid it is."""
    process = find(pid)
    return None if process is None else process.identity


def children(pid: int) -> list[int]:
    """The pids of a process's children, as the system lists them; none where it does not, or the process has ended."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, _read_file(f"/proc/{pid}/task/{thread}/children").split())
    except OSError:
        return found  # it, or a thread of it, has ended just now; or the system was built without these lists
    return found


def resident_bytes(pid: int) -> int | None:
    """Bytes of memory that a process has resident, or None where that is not to be had."""
    if not HAS_PROC:
        return None
    try:
        pages = int(_read_file(f"/proc/{pid}/statm").split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def still_alive(identities: Iterable[Identity]) -> set[Identity]:
    """Those of the given processes that still run; far cheaper than `snapshot` for a few."""
    if HAS_PROC:
        found = {identity: _read_proc(identity[0]) for identity in identities}
    else:
        table = _snapshot_ps()
        found = {identity: table.get(identity[0]) for identity in identities}
    return {identity for identity, process in found.items() if _is(process, identity) and process.alive}


def _is(process: Process | None, identity: Identity) -> TypeGuard[Process]:
    if process is None or process.pid != identity[0]:
        return False
    # ps derives the start from the clock on some systems, where it may come out a second apart between two calls.
    return abs(process.start - identity[1]) <= (0 if HAS_PROC else 1)


def _snapshot_proc() -> Table:
    table = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            process = _read_proc(int(entry))
            if process is not None:
                table[process.pid] = process
    return table


def _read_proc(pid: int) -> Process | None:
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
        data = _read_file(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None  # ended meanwhile, or hidden from us by the hidepid mount option
    # "pid (comm) state ppid ...": the name may hold spaces and parentheses, so it ends at the *last* one.
    head, _, tail = data.rpartition(b")")
    name = head.partition(b"(")[2].decode("utf-8", "replace")
    fields = tail.split()  # fields[0] is field 3 of proc(5)
    return Process(
        pid=pid,
        ppid=int(fields[1]),
        pgid=int(fields[2]),
        sid=int(fields[3]),
        start=int(fields[19]),
        uid=uid,
        state=fields[0].decode(),
        name=name,
        threads=int(fields[17]),
    )


def _read_file(path: str) -> bytes:
    # Plain descriptors: half the time of open(), and a table has thousands of files.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(fd, 65536):
            parts.append(part)
            if len(part) < 4096:
                break
        return b"".join(parts)
    finally:
        os.close(fd)


def _snapshot_ps(pid: int | None = None) -> Table:
    from . import ps

    return {row[0]: Process(*row) for row in ps.rows(pid)}


# ------------------------------------------------------------------------------------------------- who belongs


def family(
    table: Table,
    roots: Iterable[Identity],
    *,
    own_children: bool = False,
    mark: str | None = None,
    marks: Collection[str] = (),
    exclude: Collection[int] = (),
) -> Family:
    """All living processes that belong to a kernel.

    They are found by every trace there is, until no trace leads further: the roots; children of members; members of a
    session or process group that a member made; children of the caller (to which, as the subreaper, every orphan
    comes); and processes that inherited the mark. What is never included, whatever the traces say: the caller, its
    ancestors (unless given as a root), pid 1, and `exclude`.

    Args:
        table: as `snapshot` gave it.
        roots: the kernel's process, and others known to belong to it. One that has ended, or whose pid is another
            process's by now, leads to nothing.
        own_children: the caller is the kernel's keeper and subreaper: all its children, but `exclude`, are the
            kernel's.
        mark: the kernel's id, to find processes by `ALBEDO_KERNEL_ID=<mark>` in their environment. Needed where there
            is no subreaper (macOS) or the keeper is gone. It also finds what a cell handed to another service together
            with its environment, such as an `at` or batch job.
        marks: the same with other variables, as "NAME=value".
        exclude: pids of the keeper's own helpers.
    """
    entries = {*marks, *([] if mark is None else [f"{MARK}={mark}"])}
    marked = _marked(table, entries) if entries else []
    if (entries or own_children) and HAS_PROC:
        newcomers = _newcomers(table, entries)
        table = {**table, **{process.pid: process for process, _ in newcomers}}
        marked += [process for process, has_mark in newcomers if has_mark]
    children: dict[int, list[Process]] = {}
    sessions: dict[int, list[Process]] = {}
    groups: dict[int, list[Process]] = {}
    for process in table.values():
        children.setdefault(process.ppid, []).append(process)
        sessions.setdefault(process.sid, []).append(process)
        groups.setdefault(process.pgid, []).append(process)

    roots = set(roots)
    me = os.getpid()
    protected = (_ancestors(table, me) - {pid for pid, _ in roots}) | {0, 1, me} | set(exclude)
    # That somebody is in the caller's own session or group is no trace of anything.
    shared = {0, 1, os.getsid(0), os.getpgid(0)}

    members: dict[int, Process] = {}
    fresh: list[Process] = []

    def add(found: Iterable[Process]) -> None:
        for process in found:
            if process.pid not in protected and process.pid not in members:
                members[process.pid] = process
                fresh.append(process)

    # Not the session of a root that has ended: its number may be another session's by now.
    add(table[root[0]] for root in roots if _is(table.get(root[0]), root))
    if own_children:
        add(children.get(me, ()))
    add(marked)
    while fresh:
        process = fresh.pop()
        add(children.get(process.pid, ()))
        for leader, gathered in ((process.sid, sessions), (process.pgid, groups)):
            # A leader outside the family: the process was born into somebody else's session. Should the leader turn
            # out to be a member later, then its own turn adds the session.
            # A leader that has ended: its number stays taken while the session has members, and this one is a member.
            if leader not in shared and (leader in members or leader not in table):
                add(gathered.get(leader, ()))

    living = sorted((p for p in members.values() if p.alive), key=lambda p: (p.start, p.pid))
    ours = [process for process in living if _is_ours(process)]
    mine = {process.pid for process in ours}
    return Family(ours, [process for process in living if process.pid not in mine])


def _ancestors(table: Table, pid: int) -> set[int]:
    found: set[int] = set()
    while pid in table and table[pid].ppid not in found:
        pid = table[pid].ppid
        found.add(pid)
    return found


def _is_ours(process: Process) -> bool:
    me = os.getuid()
    if process.uid == me or not HAS_PROC:
        return process.uid == me
    # A setuid program started by us (ping) has another effective user; the real one decides who may signal it.
    try:
        status = _read_file(f"/proc/{process.pid}/status")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    for line in status.splitlines():
        if line.startswith(b"Uid:"):
            return int(line.split()[1]) == me
    return False


def _marked(table: Table, entries: Collection[str]) -> list[Process]:
    """Processes of this account whose environment holds one of these; those that may not be read do not count."""
    if HAS_PROC:
        wanted = {entry.encode() for entry in entries}
        mine = [process for process in table.values() if process.uid == os.getuid()]
        return [process for process in mine if not wanted.isdisjoint(_environment(process.pid).split(b"\0"))]
    from . import ps

    pids = {pid for entry in entries for pid in ps.with_environment(entry)}
    return [table[pid] for pid in pids if pid in table and table[pid].uid == os.getuid()]


def _newcomers(table: Table, entries: Collection[str]) -> list[tuple[Process, bool]]:
    """This account's processes that have come since the table was read, and whether each is marked.

    One that forks and ends all the time has gone by the time that its environment is read, and its child is not in the
    table. So those that are not in there are looked at as soon as they are seen, until there are no more.
    """
    wanted = {entry.encode() for entry in entries}
    known = {str(pid) for pid in table}
    found = []
    for _ in range(_MOST_LOOKS):
        fresh = [entry for entry in os.listdir("/proc") if entry.isdigit() and entry not in known]
        if not fresh:
            break
        known.update(fresh)
        for entry in fresh:
            has_mark = bool(wanted) and not wanted.isdisjoint(_environment(int(entry)).split(b"\0"))
            process = _read_proc(int(entry))
            if process is not None and _is_ours(process):
                found.append((process, has_mark))
    return found


def _environment(pid: int) -> bytes:
    try:
        return _read_file(f"/proc/{pid}/environ")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""


# ------------------------------------------------------------------------------------------- signals and waiting


def signal_process(identity: Identity, signum: int) -> bool:
    """Send a signal to exactly this process.

    On Linux the process is pinned by a pidfd before its start time is checked, so not even a pid that is reused between
    the two can be hit. Elsewhere the check comes right before the signal.

    Returns:
        Whether it was sent: False when the process has ended (zombies included), the pid is another process's by now,
        or it is pid 1 or the caller.

    Raises:
        PermissionError: the process is there, but this account may not signal it.
    """
    pid = identity[0]
    if pid <= 1 or pid == os.getpid():
        return False
    try:
        descriptor = open_pidfd(pid)
        try:
            process = find(pid)
            if not _is(process, identity) or not process.alive:
                return False
            if sys.platform == "linux" and descriptor is not None:
                signal.pidfd_send_signal(descriptor, signum)
            else:
                os.kill(pid, signum)
        finally:
            if descriptor is not None:
                os.close(descriptor)
    except ProcessLookupError:
        return False
    return True


def open_pidfd(pid: int) -> int | None:
    """Return a descriptor that stands for the process, whatever becomes of its pid, and is readable once that has
    ended; None where there is no such thing.

    Raises:
        ProcessLookupError: there is no such process.
    """
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        # A kernel before 5.3, or a container's filter that does not know the call.
        if error.errno in (errno.ENOSYS, errno.EPERM):
            return None
        raise


def become_subreaper() -> bool:
    """Make every orphaned descendant this process's child, so that none is lost from sight. Linux only.

    Returns:
        Whether it is so now. False elsewhere; then only the mark finds daemons.
    """
    if sys.platform != "linux":
        return False
    import ctypes

    pr_set_child_subreaper = 36
    return int(ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)) == 0


def reap() -> dict[int, int]:
    """Wait for every child that has ended, without blocking.

    For a process that has no other `wait` anywhere (a `subprocess.Popen` that is waited for elsewhere would lose its
    status to this one).

    Returns:
        wait status (see `os.waitstatus_to_exitcode`) by pid.
    """
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status
