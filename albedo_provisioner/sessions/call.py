"""What a caller wants of a session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from .outputs import Limits
from .results import Output
from .tools import MAX_TOOL_CALLS


@dataclass(frozen=True)
class Call:
    """What a caller wants to be run, and how.

    Attributes:
        code: the code.
        timeout: seconds for the cell itself, after which it is interrupted; None for no limit.
        reset: run it on a fresh kernel.
        cell_id: the cell's id; a call whose id is known already is not run again.
        told: called with each output as it comes; on the I/O thread's loop.
        limits: how much output the result carries.
        wait_for_sign_in: whether to wait for a person at a host that wants a sign-in, instead of raising.
        tools: names of the tools that it may call; None for all that the session has.
        max_tool_calls: how many calls of them it may make.
        loop: the caller's event loop, on which tools run that are coroutine functions; None when it has none.
    """

    code: str
    timeout: float | None = None
    reset: bool = False
    cell_id: str | None = None
    told: Callable[[Output], None] | None = None
    limits: Limits = field(default_factory=Limits)
    wait_for_sign_in: bool = True
    tools: tuple[str, ...] | None = None
    max_tool_calls: int = MAX_TOOL_CALLS
    loop: asyncio.AbstractEventLoop | None = None
