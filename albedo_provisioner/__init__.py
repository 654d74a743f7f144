"""Jupyter kernels on other hosts over ssh that behave like local ones and lose nothing when the link breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .location import Location

if TYPE_CHECKING:
    from .hosts.hosts import AsyncHosts, Hosts
    from .sessions.faces import AsyncSession, AsyncSessions, Session, Sessions

__version__ = "0.1.0.dev0"
__all__ = ["AsyncHosts", "AsyncSession", "AsyncSessions", "Hosts", "Location", "Session", "Sessions"]


def __getattr__(name: str) -> Any:
    # What needs ssh is imported when it is used: the command line has to answer at once.
    if name in ("AsyncHosts", "Hosts"):
        from .hosts import hosts

        return getattr(hosts, name)
    if name in ("AsyncSession", "AsyncSessions", "Session", "Sessions"):
        from .sessions import faces

        return getattr(faces, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
