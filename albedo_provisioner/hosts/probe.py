"""What a host is, and whether a kernel could run there: asked briefly, side by side, and remembered for a while.

Nothing is put on a host for it.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
import time
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import AlbedoError, ConfigError, HostError, in_words
from .activity import Activity
from .asking import ask
from .doors import Doors
from .io_thread import IOThread
from .openssh_config import sign_in_path
from .pool import HostPool
from .refusals import old_python
from .remote import RemoteTransport
from .room import Room

log = logging.getLogger("albedo_provisioner.hosts")

READY, UNSUPPORTED, NEEDS_AUTH, UNREACHABLE = "ready", "unsupported", "needs_auth", "unreachable"

READY_FOR = 60.0
"""Seconds for which it is believed that a host is ready (or that it has no Python that would do)."""

FAILED_FOR = 5.0
"""Seconds for which it is believed that a host cannot be used."""

DEADLINE = 20.0
"""Seconds that a host has to answer, unless the caller says otherwise."""

OLDEST_PYTHON = (3, 11)


@dataclass(frozen=True)
class HostState:
    """What is known of a host.

    Attributes:
        host: as the user spells it; "this machine" for the local one.
        state: "ready", "unsupported" (it lets us in, and cannot run a kernel), "needs_auth" (a person could get in, we
            cannot) or "unreachable".
        detail: the cause in ssh's or the host's own words; empty when it is ready.
        advice: a sentence or two with the cause and what to do; empty when it is ready.
        os: its kind, as `uname -s` says: "Linux", "Darwin". This and the following are None when nobody could ask.
        arch: its processor, as `uname -m` says: "x86_64", "aarch64".
        home: the account's home there.
        cores: processors that the account may use.
        python: path of the login shell's `python3` there.
        python_version: its version, like "3.12.4".
        control_path: where `jupyter albedo login` leaves a connection for a host that needs one: the user's own path,
            or ours, which ends in "/%C"; None in all other states.
        asked: when this was found out, in seconds since the epoch.
    """

    host: str
    state: str
    detail: str = ""
    advice: str = ""
    os: str | None = None
    arch: str | None = None
    home: str | None = None
    cores: int | None = None
    python: str | None = None
    python_version: str | None = None
    control_path: str | None = None
    asked: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return asdict(self)


class Probes:
    """The answers of hosts, cached and shared. Used on the I/O thread alone; `Probes.get()` is the process's one."""

    def __init__(self) -> None:
        self._known: dict[str | None, tuple[HostState, float]] = {}
        self._under_way: dict[str | None, asyncio.Task[HostState]] = {}
        self._rooms: dict[str, Room] = {}

    @classmethod
    def get(cls) -> Probes:
        """Return the one that belongs to the running I/O thread."""
        return IOThread.get().only(cls)

    async def probe(self, host: str | None, timeout: float = DEADLINE, fresh: bool = False) -> HostState:
        """Ask a host, join those who are asking it already, or return what it answered a moment ago.

        Args:
            host: `[user@]host` as the user spells it; None for this machine.
            timeout: seconds after which a host that has not answered is unreachable, for this caller; waiting for this
                process's other connections to the same server does not count.
            fresh: do without what was answered before.
        """
        known = self.known(host)
        if known is not None and not fresh:
            return known
        task = self._under_way.get(host)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._ask(host))
            self._under_way[host] = task
            task.add_done_callback(lambda _: self._under_way.pop(host, None))
        # A caller that gives up takes nothing from the others, and the answer is remembered for the next.
        name = HostPool.get().transport_for(host).host
        waits = Doors.get().waits(name)
        until = time.monotonic() + timeout - waits.seconds
        while (left := until + waits.seconds - time.monotonic()) > 0:
            done, _ = await asyncio.wait([task], timeout=left)
            if done:
                return task.result()
        step = Activity.get().step(name) or "connecting"
        cause = f"no answer within {timeout:g} s, while {step}"
        advice = f"{name} cannot be reached: {cause}."
        if step == "asking":
            advice += (
                f" It let us in; `jupyter albedo doctor {shlex.quote(host or '.')}` says what takes so long there."
            )
        return HostState(name, UNREACHABLE, cause, advice, asked=time.time())

    def known(self, host: str | None) -> HostState | None:
        """Return what a host answered, if that is recent enough to be believed."""
        state, until = self._known.get(host, (None, 0.0))
        return state if time.monotonic() < until else None

    async def _ask_in_turn(self, host: str | None) -> dict[str, Any]:
        """Ask a host, with few others at a time where they all go over the same connection that is signed in."""
        transport = HostPool.get().transport_for(host)
        way = await transport.way() if isinstance(transport, RemoteTransport) else None
        if way is None or not way.master:
            return await ask(host, {"do": "probe"})
        room = self._rooms.setdefault(way.master, Room())
        return await room.use(lambda: ask(host, {"do": "probe"}), Doors.get().waits(transport.host))

    async def _ask(self, host: str | None) -> HostState:
        name = HostPool.get().transport_for(host).host
        try:
            state = _state(name, (await self._ask_in_turn(host))["probed"])
        except HostError as error:
            path = await sign_in_path(name) if error.state == NEEDS_AUTH else None
            state = HostState(name, error.state, error.detail, str(error), control_path=path, asked=time.time())
        except ConfigError as error:
            state = HostState(name, UNREACHABLE, str(error), str(error), asked=time.time())
        except AlbedoError as error:
            state = HostState(name, UNSUPPORTED, str(error), str(error), asked=time.time())
        except Exception as error:
            # Whoever asks many hosts loses nothing of the others by a fault of ours at one.
            log.debug("the probe of %s failed", name, exc_info=True)
            cause = in_words(error)
            advice = f"{name} could not be asked: {cause}. That is a fault of albedo_provisioner; please report it."
            state = HostState(name, UNREACHABLE, cause, advice, asked=time.time())
        lasts = FAILED_FOR if state.state in (UNREACHABLE, NEEDS_AUTH) else READY_FOR
        self._known[host] = (state, time.monotonic() + lasts)
        return state


def _state(name: str, facts: dict[str, Any]) -> HostState:
    """Return what a host that has answered is."""
    version = str(facts["python_version"])
    state, detail, advice = READY, "", ""
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_PYTHON:
        error = old_python(name, facts["python"], version)
        state, detail, advice = UNSUPPORTED, error.detail, str(error)
    return HostState(
        name,
        state,
        detail,
        advice,
        os=facts["os"],
        arch=facts["arch"],
        home=facts["home"],
        cores=facts["cores"],
        python=facts["python"],
        python_version=version,
        asked=time.time(),
    )
