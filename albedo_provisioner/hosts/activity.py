"""What is going on at each host just now: the step that the newest visit to it is in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .io_thread import IOThread
from .progress import Progress


@dataclass(frozen=True)
class Doing:
    """What a visit is doing.

    Attributes:
        step: "connecting", "staging", "starting", "asking" or "measuring".
        progress: how far what it brings is on its way; None where it brings nothing.
    """

    step: str
    progress: Progress | None = None


class Activity:
    """Steps of the visits under way. Used on the I/O thread alone; `Activity.get()` returns the process's one."""

    def __init__(self) -> None:
        self._steps: dict[str, dict[object, Doing]] = {}
        self._watching: dict[object, Callable[[dict[str, Doing]], None]] = {}

    @classmethod
    def get(cls) -> Activity:
        """Return the one that belongs to the running I/O thread."""
        return IOThread.get().only(cls)

    def enter(self, host: str, visit: object, step: str, progress: Progress | None = None) -> None:
        """Note that a visit has come to a step, and how far what it brings is on its way; see `Doing`."""
        steps = self._steps.setdefault(host, {})
        steps.pop(visit, None)  # so that it becomes the newest
        steps[visit] = Doing(step, progress)
        self._tell()

    def leave(self, host: str, visit: object) -> None:
        """Note that nothing is waited for in a visit any more."""
        steps = self._steps.get(host, {})
        steps.pop(visit, None)
        if not steps:
            self._steps.pop(host, None)
        self._tell()

    def step(self, host: str) -> str | None:
        """Return the step of the visit that moved last; None when there is none."""
        steps = self._steps.get(host)
        return next(reversed(steps.values())).step if steps else None

    def watch(self, callback: Callable[[dict[str, Doing]], None]) -> None:
        """Have `callback` called, now and after each change, with what the newest visit to each host is doing."""
        self._watching[callback] = callback
        self._tell()

    def unwatch(self, callback: Callable[[dict[str, Doing]], None]) -> None:
        """Call it no more."""
        self._watching.pop(callback, None)

    def _tell(self) -> None:
        if self._watching:
            newest = {host: next(reversed(steps.values())) for host, steps in self._steps.items()}
            for callback in list(self._watching.values()):
                callback(newest)
