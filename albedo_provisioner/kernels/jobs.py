"""A kernel's jobs as far as this side has been told: nothing here asks the host for anything."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from ..bundle.job_words import sentence

_GOING_ON = ("running", "stopping")
_SPELLED_OUT = 5
_KEYS = ("number", "command", "pid", "state", "exit_code", "timed_out", "stopped", "started", "ended")


class Jobs:
    """The jobs that run on a kernel, and the newest ones that have ended.

    Attributes:
        last_words: what there is to say of those that ended with the kernel, or before it and nobody was told:
            sentences that follow others, or an empty text.
        last_end: when we were told of the newest end of one, in seconds since the epoch by this machine's clock, which
            a host's need not agree with; 0.0 before the first.
    """

    def __init__(self) -> None:
        self.last_words = ""
        self.last_end = 0.0
        self._jobs: dict[int, dict[str, Any]] = {}
        self._told: set[int] = set()

    def take(self, event: dict[str, Any]) -> None:
        """Take the keeper's news; see `bundle/job_watch.py`."""
        before = {number for number, job in self._jobs.items() if job["state"] not in _GOING_ON}
        if event["all"]:
            self._jobs.clear()
        for job in event["jobs"]:
            self._jobs[job["number"]] = job
            if job["state"] not in _GOING_ON and job["number"] not in before:
                self.last_end = time.time()

    def forget(self) -> None:
        """The keeper was replaced: what there is, the new one tells."""
        self.last_end = time.time()  # what runs is not known until then, and must not count as unused
        self._jobs.clear()

    def perish(self) -> None:
        """The kernel has ended, and its jobs with it."""
        if self._jobs:  # else it has been told of the end before
            # What looks after jobs may have been ended a moment before the kernel was: they are told as lost then.
            with_it = [job for job in self._jobs.values() if job["state"] != "ended" and not self._was_told(job)]
            self._told |= {job["number"] for job in with_it}
            notes, _ = self.news()
            self.last_words = _ended_with_kernel(job["command"] for job in with_it) + "".join(
                f" {note}" for note in notes
            )
        self._jobs.clear()
        self._told.clear()

    def _was_told(self, job: dict[str, Any]) -> bool:
        return job["seen"] or job["number"] in self._told

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
        ended = [job for job in self._jobs.values() if job["state"] not in _GOING_ON and not self._was_told(job)]
        self._told |= {job["number"] for job in ended}
        notes = [sentence(job) for job in ended[:_SPELLED_OUT]]
        if len(ended) > _SPELLED_OUT:
            notes.append(f"{len(ended) - _SPELLED_OUT} more jobs have ended.")
        return notes, [job["number"] for job in ended]


def _ended_with_kernel(commands: Iterable[str]) -> str:
    names = [f"`{command}`" for command in commands]
    if not names:
        return ""
    more = f" and {len(names) - _SPELLED_OUT} more" if len(names) > _SPELLED_OUT else ""
    return f" Its jobs ended with it: {', '.join(names[:_SPELLED_OUT])}{more}."
