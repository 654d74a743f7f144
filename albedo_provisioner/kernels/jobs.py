"""A kernel's jobs as far as this side has been told: nothing here asks the host for anything."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..bundle.job_words import sentence

_GOING_ON = ("running", "stopping")
_SPELLED_OUT = 5
_KEYS = ("number", "command", "pid", "state", "exit_code", "timed_out", "stopped", "started", "ended")


class Jobs:
    """The jobs that run on a kernel, and the newest ones that have ended.

    Attributes:
        perished: the commands of those that ended together with the kernel.
    """

    def __init__(self) -> None:
        self.perished: list[str] = []
        self._jobs: dict[int, dict[str, Any]] = {}
        self._told: set[int] = set()

    def take(self, event: dict[str, Any]) -> None:
        """Take the keeper's news; see `bundle/job_watch.py`."""
        if event["all"]:
            self._jobs.clear()
        for job in event["jobs"]:
            self._jobs[job["number"]] = job

    def forget(self) -> None:
        """The keeper was replaced: what there is, the new one tells."""
        self._jobs.clear()

    def perish(self) -> None:
        """The kernel has ended, and its jobs with it."""
        if self._jobs:
            unknown = [job for job in self._jobs.values() if job["state"] != "ended" and not job["seen"]]
            self.perished = [job["command"] for job in unknown]
        self._jobs.clear()
        self._told.clear()

    @property
    def running(self) -> bool:
        """Whether any of them runs."""
        return any(job["state"] in _GOING_ON for job in self._jobs.values())

    def known(self) -> list[dict[str, Any]]:
        """Return what is known of them, oldest first, as plain JSON.

        That is number, command, pid, state ("running", "stopping", "ended" or "lost"), exit_code, timed_out, stopped,
        and when it started and ended, in seconds since the epoch.
        """
        return [{key: job[key] for key in _KEYS} for job in self._jobs.values()]

    def news(self) -> tuple[list[str], list[int]]:
        """Return what is to be told of jobs that ended while nobody waited for them, and their numbers; once."""
        ended = [
            job
            for job in self._jobs.values()
            if job["state"] not in _GOING_ON and not job["seen"] and job["number"] not in self._told
        ]
        self._told |= {job["number"] for job in ended}
        notes = [sentence(job) for job in ended[:_SPELLED_OUT]]
        if len(ended) > _SPELLED_OUT:
            notes.append(f"{len(ended) - _SPELLED_OUT} more jobs have ended.")
        return notes, [job["number"] for job in ended]


def ended_with_kernel(commands: Iterable[str]) -> str:
    """Return what there is to say of jobs that ended together with their kernel; empty when there were none."""
    names = [f"`{command}`" for command in commands]
    if not names:
        return ""
    more = f" and {len(names) - _SPELLED_OUT} more" if len(names) > _SPELLED_OUT else ""
    return f" Its jobs ended with it: {', '.join(names[:_SPELLED_OUT])}{more}."
