"""The system's own log (Linux): whether it has killed a process because memory ran out, which it tells with the pid.

Not everybody may read it. Then nothing is known, and nothing is claimed.
"""

from __future__ import annotations

import os
import re

_KILLED = re.compile(rb"^[^;]*;[^\n]*Killed process (\d+) \(")
"""A record begins with its priority, number and time: `3,1234,5678901,-;Memory cgroup out of memory: Killed …`."""

_FACILITIES = 8
"""Priorities below this are the system's own; programs that may write into the log have others."""

_INITIAL_NAMESPACE = "pid:[4026531836]"
"""The log has pids as all of the machine sees them (PROC_PID_INIT_INO in linux/proc_ns.h); a container's are others."""

_MOST_RECORD = 8192  # what a read needs room for, see Documentation/ABI/testing/dev-kmsg


class KernelLog:
    """The system's log from now on.

    Args:
        path: where it is read.
        namespace: what tells which pids are seen here.
    """

    def __init__(self, path: str = "/dev/kmsg", namespace: str = "/proc/self/ns/pid") -> None:
        self._file: int | None = None
        try:
            if os.readlink(namespace) == _INITIAL_NAMESPACE:
                self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.lseek(self._file, 0, os.SEEK_END)
        except OSError:
            self.close()  # no such log, or it is not for us

    def close(self) -> None:
        """Read it no more."""
        if self._file is not None:
            os.close(self._file)
        self._file = None

    def killed_for_memory(self, pid: int) -> bool | None:
        """Whether the system killed this process because memory ran out, since this was made or asked last; None where
        that cannot be known.
        """
        known: bool | None = False
        while self._file is not None:
            try:
                record = os.read(self._file, _MOST_RECORD)
            except BlockingIOError:
                return known  # that is all
            except BrokenPipeError:
                known = None  # records have been lost; it goes on with the oldest that there is
                continue
            except OSError:
                return None
            found = _KILLED.match(record)
            if found is not None and int(found[1]) == pid and _is_systems(record):
                return True
            if not record:
                return known
        return None


def _is_systems(record: bytes) -> bool:
    priority = record.partition(b",")[0]
    return priority.isdigit() and int(priority) < _FACILITIES
