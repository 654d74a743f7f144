"""What is on record of sessions and their cells; `records.py` keeps it."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from ..kernels.records import process_ended, this_process
from ..location import Location
from .outputs import Limits

RUNNING, DONE = "running", "done"


@dataclass
class Joined:
    """The kernel of another that a session has joined.

    Attributes:
        kernel_id: its id.
        notebook: path of the notebook on this machine that it was joined by; None when it was by its id.
        process: which process of it was used last: the kernel's id, pid and start time there; None before the first.
    """

    kernel_id: str
    notebook: str | None = None
    process: tuple[str, int, float] | None = None


@dataclass
class SessionRecord:
    """One session.

    Attributes:
        session_id: its id.
        owner: whose it is.
        location: where it runs; its path is absolute once a kernel was there.
        spelled: the location as it was asked for.
        tools: the names of its tools.
        python: interpreter on the host; None for the login shell's `python3`.
        env: variables for its kernels.
        kernel_id: its kernel, None while it has none.
        lost: why what earlier calls had put into a kernel is gone, until that has been told.
        created: when it was opened, in seconds since the epoch.
        used: when it was used last, in seconds since the epoch; of another process's, when its newest call began.
        process: the process that has it open: pid, start time, boot id; `NOBODY` when it was left.
        joined: the kernel that it has joined; None for a session with a kernel of its own.
    """

    session_id: str
    owner: str
    location: Location
    spelled: Location
    tools: tuple[str, ...] = ()
    python: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    kernel_id: str | None = None
    lost: str | None = None
    created: float = field(default_factory=time.time)
    used: float = field(default_factory=time.time)
    process: tuple[int, int, str] = field(default_factory=this_process)
    joined: Joined | None = None

    @property
    def lasting(self) -> tuple[Any, ...]:
        """What has to be on record when it changes: all but when it was used, which the newest cell tells as well."""
        return tuple(
            (value.kernel_id, value.process) if isinstance(value, Joined) else value
            for name, value in vars(self).items()
            if name != "used"
        )

    @property
    def alive_elsewhere(self) -> bool:
        """Whether another process that lives has it open."""
        return self.process != this_process() and not process_ended(self.process)


@dataclass(frozen=True)
class CellRecord:
    """One cell of a session.

    Attributes:
        cell_id: its id, by which its session's callers know it.
        session_id: the session.
        kernel_id: the kernel that it was given to; None when it ran without one.
        code: what was to be run.
        state: "running" until its end, then "done".
        asked: when it was asked for, in seconds since the epoch.
        result: what came of it, see `Result.to_dict`; None while its call is under way. Where the call ended before the
            code, what it was told.
        msg_id: the id of its request to the kernel.
        limits: how much output its result carries, as its call said.
    """

    cell_id: str
    session_id: str
    kernel_id: str | None
    code: str
    state: str
    asked: float
    result: dict[str, Any] | None = None
    msg_id: str = ""
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class CellName:
    """What a cell is called.

    Attributes:
        cell_id: its id in its session, where a caller may make it up.
        msg_id: the id of its request to the kernel. No other cell of any session has it: kernels are shared by those
            who join them, and the files with the whole texts of results by all.
    """

    cell_id: str
    msg_id: str

    @classmethod
    def of(cls, session_id: str, cell_id: str | None) -> CellName:
        """Return the name of the cell that a session's caller calls so; None for a fresh one."""
        if cell_id is None:
            fresh = uuid.uuid4().hex
            return cls(fresh, fresh)
        return cls(cell_id, uuid.uuid5(uuid.UUID(session_id), cell_id).hex)
