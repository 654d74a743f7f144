"""What a kernel has started and let go of, noted where another keeper finds it.

A keeper is handed every orphan of its kernel, as its subreaper, so it knows them for the kernel's whatever they have
done to hide. Should it be killed they go to the system's first process, and one in a session of its own that has
cleared its environment bears no trace of the kernel any more. So they are noted in the run directory, by pid and start
time. A keeper that has adopted its kernel is handed nothing: it looks at the kernel's descendants instead, and knows
those that it has seen once.

Only where the system lists the children of a process (Linux).
"""

from __future__ import annotations

import json
import os
import time

from . import processes, rundir
from .spawn import boot_id

TYPE_CHECKING = False  # not from typing: see processes.py
if TYPE_CHECKING:
    from .kernel import Kernel
    from .processes import Identity

_LOOK = 1.0
"""Seconds between looks at a kernel that is at work, or adopted."""

_SHARE = 100
"""Looks at a family that is very large come less often: they take no more than this part of the time."""

_MOST = 1000
"""Processes that are noted."""


class Relatives:
    """See the module's head.

    Args:
        path: the run directory.
        kernel: the kernel.
        subreaper: whether its orphans become our children, unless it is adopted.
    """

    def __init__(self, path: str, kernel: Kernel, subreaper: bool) -> None:
        self._path = path
        self._kernel = kernel
        self._subreaper = subreaper
        self._noted = read(path)
        self._written = set(self._noted)
        self._looked_at = time.monotonic()
        self._pause = _LOOK

    @property
    def known(self) -> set[Identity]:
        """Those that were noted, as of now."""
        self.look()
        return set(self._noted)

    @property
    def due(self) -> list[float]:
        """When, by the clock, `serve` has something to do."""
        kernel = self._kernel
        awake = kernel.state == "running" and (kernel.adopted or kernel.active >= self._looked_at)
        return [self._looked_at + self._pause] if awake else []

    def serve(self, now: float) -> None:
        """Look, if it is time to."""
        if any(now >= at for at in self.due):
            self.look()

    def look(self) -> None:
        """See who is there, and note it."""
        self._looked_at = time.monotonic()
        own = set(_children_of(os.getpid())) if self._subreaper else set()
        kernel = self._kernel.process
        if self._kernel.adopted:
            alive = processes.still_alive({*self._noted, *([kernel] if kernel else [])})
            found = alive | own
            fresh = list(found)
            while fresh and len(found) < _MOST:
                below = set(_children_of(fresh.pop()[0])) - found
                found |= below
                fresh += below
        else:
            found = own
        found.discard(kernel or (0, 0))
        self._noted = set(sorted(found)[:_MOST])
        if self._noted != self._written:
            self.write()
        self._pause = max(_LOOK, _SHARE * (time.monotonic() - self._looked_at))

    def write(self) -> None:
        """Write what is noted, also into a run directory that was made anew."""
        fresh = os.path.join(self._path, rundir.RELATIVES + ".new")
        try:
            with os.fdopen(rundir.private_file(fresh), "w") as file:
                json.dump({"boot_id": boot_id(), "processes": sorted(self._noted)}, file)
            os.rename(fresh, os.path.join(self._path, rundir.RELATIVES))
        except OSError:
            return  # no room, or no run directory at the moment: it is tried at every look
        self._written = set(self._noted)


def read(path: str) -> set[Identity]:
    """Return what is noted in a run directory, of processes that may have ended; nothing of before a restart."""
    try:
        with open(os.path.join(path, rundir.RELATIVES)) as file:
            noted = json.load(file)
        if noted["boot_id"] != boot_id():
            return set()
        return {(int(pid), int(start)) for pid, start in noted["processes"][:_MOST]}
    except (OSError, ValueError, LookupError, TypeError):
        return set()


def _children_of(pid: int) -> list[Identity]:
    """Return the living children of a process."""
    found = map(processes.find, processes.children(pid))
    return [each.identity for each in found if each is not None and each.ppid == pid and each.alive]
