"""The hosts that a user has: which there are, and what they are. The faces for programs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..location import parse_host
from . import io_thread
from .activity import Activity
from .names import configured_hosts
from .pool import HostPool
from .probe import DEADLINE, HostState, Probes
from .recent import RecentHosts

if TYPE_CHECKING:
    from .doctor.findings import Diagnosis, Finding


@dataclass(frozen=True)
class KnownHost:
    """A host that is known without having been asked.

    Attributes:
        host: as the user spells it.
        source: "recent" when it was used from here, else "config": it has a name in the ssh config.
        used: when it was last used, in seconds since the epoch; None when it never was.
    """

    host: str
    source: str
    used: float | None = None


@dataclass(frozen=True)
class HostStatus:
    """What is known of a host at this moment, without asking it.

    Attributes:
        host: as the user spells it.
        step: "connecting", "staging", "starting" or "asking" while somebody in this process waits for it, else None.
        last: its last answer, if that is recent enough to be believed.
    """

    host: str
    step: str | None
    last: HostState | None


class AsyncHosts:
    """The user's hosts, for programs with an event loop (any one): see `Hosts`.

    Args:
        home: where what must last is kept; None for `$ALBEDO_HOME`, else `albedo/` under Jupyter's data directory.
        timeout: seconds that a host has to answer a probe.
    """

    def __init__(self, home: str | os.PathLike[str] | None = None, timeout: float = DEADLINE) -> None:
        self._home = home
        self._timeout = timeout

    def list(self) -> list[KnownHost]:
        """Return the hosts that were used, newest first, then those that the ssh config names. Nothing is asked.

        Raises:
            ConfigError: the record of hosts cannot be read.
        """
        recent = RecentHosts(self._home).all()
        found = [KnownHost(host, "recent", used) for host, used in recent.items()]
        return found + [KnownHost(host, "config") for host in configured_hosts() if host not in recent]

    async def probe(self, host: str, *, fresh: bool = False) -> HostState:
        """Ask a host what it is; whatever comes of it is a `HostState`, a host out of reach too.

        A probe that is under way is joined. Answers are kept: good ones for a minute, failures for five seconds.

        Args:
            host: `[user@]host`, or "." for this machine.
            fresh: ask, whatever it answered before.

        Raises:
            LocationError: `host` is none.
        """
        name = parse_host(host)

        async def ask() -> HostState:
            return await Probes.get().probe(name, self._timeout, fresh)

        return await io_thread.run(ask())

    async def probe_all(self, hosts: Iterable[str] | None = None, *, fresh: bool = False) -> dict[str, HostState]:
        """Ask several hosts side by side; by default all of `list`.

        Raises:
            LocationError: one of `hosts` is none.
        """
        names = list(dict.fromkeys(hosts if hosts is not None else (known.host for known in self.list())))
        return dict(zip(names, await asyncio.gather(*(self.probe(name, fresh=fresh) for name in names)), strict=True))

    async def diagnose(
        self, place: str, *, python: str | None = None, tell: Callable[[Finding], None] = lambda _: None
    ) -> Diagnosis:
        """Examine a host for all that a kernel there depends on; see `Finding` for what that is.

        It takes some seconds, a minute at most; what is found is never kept, and nothing is put on the host.

        Args:
            place: `[user@]host`, "." for this machine, or a location, whose folder is then looked at too.
            python: the interpreter there, as for a kernel; None for the login shell's `python3`.
            tell: called with each finding as soon as it is known, on another thread.

        Raises:
            LocationError: `place` is neither host nor location.
        """
        from .doctor.diagnose import diagnose, parse_place

        host, folder = parse_place(place)
        return await io_thread.run(diagnose(host, folder, python, tell))

    async def status(self, host: str) -> HostStatus:
        """Return what is going on at a host and what is known of it; nothing is asked.

        Raises:
            LocationError: `host` is none.
        """
        name = parse_host(host)

        async def look() -> HostStatus:
            spelled = HostPool.get().transport_for(name).host
            return HostStatus(spelled, Activity.get().step(spelled), Probes.get().known(name))

        return await io_thread.run(look())


class Hosts:
    """The user's hosts: which there are, and what they are.

    From any thread, also one that runs an event loop; calls block. `AsyncHosts` is the same with awaitable methods.

    Args:
        home: where what must last is kept; None for `$ALBEDO_HOME`, else `albedo/` under Jupyter's data directory.
        timeout: seconds that a host has to answer a probe.
    """

    def __init__(self, home: str | os.PathLike[str] | None = None, timeout: float = DEADLINE) -> None:
        self._hosts = AsyncHosts(home, timeout)

    def list(self) -> list[KnownHost]:
        """Return the hosts that are known; see `AsyncHosts.list`."""
        return self._hosts.list()

    def probe(self, host: str, *, fresh: bool = False) -> HostState:
        """Ask a host what it is; see `AsyncHosts.probe`."""
        return io_thread.run_blocking(self._hosts.probe(host, fresh=fresh))

    def probe_all(self, hosts: Iterable[str] | None = None, *, fresh: bool = False) -> dict[str, HostState]:
        """Ask several hosts side by side; see `AsyncHosts.probe_all`."""
        return io_thread.run_blocking(self._hosts.probe_all(hosts, fresh=fresh))

    def diagnose(
        self, place: str, *, python: str | None = None, tell: Callable[[Finding], None] = lambda _: None
    ) -> Diagnosis:
        """Examine a host for all that a kernel there depends on; see `AsyncHosts.diagnose`."""
        return io_thread.run_blocking(self._hosts.diagnose(place, python=python, tell=tell))

    def status(self, host: str) -> HostStatus:
        """Return what is going on at a host; see `AsyncHosts.status`."""
        return io_thread.run_blocking(self._hosts.status(host))
