"""Jupyter kernels on other hosts over ssh that behave like local ones and lose nothing when the link breaks."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .location import Location

if TYPE_CHECKING:
    from .hosts.hosts import AsyncHosts, Hosts
    from .sessions.blocking import Session, Sessions
    from .sessions.entries import CellRecord
    from .sessions.faces import AsyncSession, AsyncSessions
    from .sessions.outputs import Limits
    from .sessions.results import KernelReport, Result

__version__ = "0.1.0.dev0"
__all__ = [
    "AsyncHosts",
    "AsyncSession",
    "AsyncSessions",
    "CellRecord",
    "Hosts",
    "KernelReport",
    "Limits",
    "Location",
    "Result",
    "Session",
    "Sessions",
]

_MODULES = {
    "hosts.hosts": ("AsyncHosts", "Hosts"),
    "sessions.blocking": ("Session", "Sessions"),
    "sessions.faces": ("AsyncSession", "AsyncSessions"),
    "sessions.outputs": ("Limits",),
    "sessions.entries": ("CellRecord",),
    "sessions.results": ("KernelReport", "Result"),
}


def __getattr__(name: str) -> Any:
    # What needs ssh is imported when it is used: the command line has to answer at once.
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
