"""Memory on the host: whether the system ended a process for the lack of it, and giving back what we do not need."""

from __future__ import annotations

import os
import sys

from .kernel_log import KernelLog

TYPE_CHECKING = False  # not from typing: see processes.py
if TYPE_CHECKING:
    from typing import Any


def give_back() -> None:
    """Return freed memory to the system. The C library keeps it, between blocks that are in use still: after some
    hours of large outputs that is several times what is held.
    """
    if sys.platform == "linux":
        import ctypes

        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; others have no need of it
        if trim is not None:
            trim(0)


class MemoryDeath:
    """Tells of a process that has ended whether that was because memory ran out; made while it runs.

    Args:
        pid: the process.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._group = OutOfMemoryWatch(pid)
        self._log = KernelLog()

    def renew(self) -> None:
        """See how things are; call it every few seconds while the process lives."""
        self._group.renew()

    def facts(self, code: int | None) -> dict[str, Any]:
        """Return what is known, once, of the end of the process.

        Args:
            code: its exit code, minus the signal; None when it is not known.

        Returns:
            `out_of_memory`, whether the system is known to have killed it for that; and where that is not known,
            `memory_kills`, how many processes of its group it has killed at about that time: one or none of them is it.
        """
        logged = self._log.killed_for_memory(self._pid)
        self._log.close()
        if code not in (-9, None):
            return {"out_of_memory": False, "memory_kills": 0}
        return {"out_of_memory": bool(logged), "memory_kills": self._group.kills() if logged is None else 0}


class OutOfMemoryWatch:
    """Watches the control group of a process (Linux, cgroup v2 or v1) for kills by the system.

    The group may hold more than that process, such as what a cell has started. What was killed in it long before the
    process's own end is no cause of that, so the watch is to be renewed while the process lives.

    The count is of the whole group, so it does not say who was killed; `kernel_log.py` may know that. Where there is no
    such count, or it cannot be read, `kills` says none: a guess would be worse than nothing.

    Args:
        pid: the process, which must be running.
        proc: where processes are shown.
        groups: where control groups are mounted.
    """

    def __init__(self, pid: int, proc: str = "/proc", groups: str = "/sys/fs/cgroup") -> None:
        self._file, self._key = _events_file(f"{proc}/{pid}/cgroup", groups)
        self._now = self._before = self._count()

    def renew(self) -> None:
        """Forget the kills before the last renewal; call it every few seconds while the process lives."""
        self._before, self._now = self._now, self._count()

    def kills(self) -> int:
        """Return how many processes of the group the system has killed since the renewal before the last one."""
        now = self._count()
        return 0 if self._before is None or now is None else max(0, now - self._before)

    def _count(self) -> int | None:
        if not self._file:
            return None
        try:
            with open(self._file) as file:
                for line in file:
                    name, _, number = line.partition(" ")
                    if name == self._key:
                        return int(number)
        except (OSError, ValueError):
            pass  # no such file (the group went with its last process), or no such format: not known
        return None


def _events_file(memberships: str, root: str) -> tuple[str, str]:
    """Return where the kills in a process's group are counted, and under which name; empty when it is not known.

    Args:
        memberships: the file that tells which groups a process is in, as /proc/<pid>/cgroup does.
        root: where control groups are mounted.
    """
    try:
        with open(memberships) as file:
            groups = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return "", ""
    for hierarchy, controllers, path in groups:
        if hierarchy == "0":
            found = f"{root}{path.rstrip('/')}/memory.events"
        elif "memory" in controllers.split(","):
            found = f"{root}/memory{path.rstrip('/')}/memory.oom_control"
        else:
            continue
        if os.access(found, os.R_OK):
            return found, "oom_kill"
    return "", ""
