"""What is going on at each host just now: the step that the newest visit to it is in."""

from __future__ import annotations

from .io_thread import IOThread


class Activity:
    """Steps of the visits under way. Used on the I/O thread alone; `Activity.get()` returns the process's one."""

    def __init__(self) -> None:
        self._steps: dict[str, dict[object, str]] = {}

    @classmethod
    def get(cls) -> Activity:
        """Return the one that belongs to the running I/O thread."""
        return IOThread.get().only(cls)

    def enter(self, host: str, visit: object, step: str) -> None:
        """Note that a visit has come to a step: "connecting", "staging", "starting" or "asking"."""
        steps = self._steps.setdefault(host, {})
        steps.pop(visit, None)  # so that it becomes the newest
        steps[visit] = step

    def leave(self, host: str, visit: object) -> None:
        """Note that nothing is waited for in a visit any more."""
        steps = self._steps.get(host, {})
        steps.pop(visit, None)
        if not steps:
            self._steps.pop(host, None)

    def step(self, host: str) -> str | None:
        """Return the step of the visit that moved last; None when there is none."""
        steps = self._steps.get(host)
        return next(reversed(steps.values())) if steps else None
