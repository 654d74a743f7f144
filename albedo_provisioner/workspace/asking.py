"""Asking hosts about workspaces: once for all who want to know, with a bound for each of them.

Everything here runs on the I/O thread.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from ..bundle import gather as on_host
from ..errors import AlbedoError, FolderError, HostError, SignInError, UnreachableError, UnsupportedHostError
from ..hosts.activity import Activity
from ..hosts.asking import ask
from ..hosts.io_thread import IOThread, in_thread
from ..hosts.pool import HostPool
from ..hosts.probe import NEEDS_AUTH, READY, UNREACHABLE, UNSUPPORTED, HostState, Probes
from ..location import Location
from .links import link_id
from .mirror import Mirror

T = TypeVar("T")

EVERY = 5.0
"""Seconds between two looks into a workspace, whoever wants them."""

GATHER_TIMEOUT = 25.0
"""Seconds that a look into a workspace may take, connecting included. Nobody has to wait for it."""

PATIENCE = 5.0
"""Seconds that each host has to say whether its folders are there."""

HOPELESS = 10.0
"""Seconds after which a question is asked anew beside the one that has no answer: the connection that it went over may
be dead, and there may be a better one by now."""

FOLDER_GONE = "gone"

GONE, UNREACHABLE_BADGE, SIGN_IN, CONNECTING = "gone", "unreachable", "sign in", "connecting"
NO_PERMISSION = "no permission"


@dataclass(frozen=True)
class LinkedWorkspace:
    """A workspace that is linked with another, and whether its folder is there.

    Attributes:
        id: by which it can be unlinked.
        location: where it is.
        badge: empty when its folder is there; "gone" when its host says that it is not; "no permission" when it says
            that the account may not enter it, or not find out whether it is there; else "unreachable", "sign in" (a
            person has to sign in to the host first), "unsupported" (there is no Python that could look) or
            "connecting" (the host has not answered in time).
        detail: why, in ssh's or the host's words; empty when the badge is.
    """

    id: str
    location: Location
    badge: str = ""
    detail: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return {"id": self.id, "location": str(self.location), "badge": self.badge, "detail": self.detail}


class _UnderWay:
    """What is being asked just now; a caller that gives up takes nothing from the others."""

    def __init__(self) -> None:
        self._tasks: dict[Hashable, tuple[asyncio.Task[Any], float]] = {}

    def begin(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """Return the task under a key, beginning it unless there is one that may still get an answer."""
        now = asyncio.get_running_loop().time()
        task, began = self._tasks.get(key, (None, now))
        if task is None or now - began > HOPELESS:
            task = asyncio.get_running_loop().create_task(work())
            self._tasks[key] = task, now
            task.add_done_callback(lambda done: self._forget(key, done))
        return task

    def _forget(self, key: Hashable, done: asyncio.Task[Any]) -> None:
        now, _ = self._tasks.get(key, (None, 0.0))
        if now is done:  # else it was superseded, and the one after it may have ended before
            del self._tasks[key]
        if not done.cancelled():
            done.exception()  # whoever wanted to know has seen it


# -- homes ---------------------------------------------------------------------------------------------------


async def absolute(location: Location, home: str | os.PathLike[str] | None = None) -> Location:
    """Return a location with its absolute path; the host is asked for its home once, and never again.

    Raises:
        LocationError: it names another user's home.
        HostError: the home is not known, and the host cannot be asked.
    """
    location = location.expanded()
    if location.host is None or not location.needs_home:
        return location
    found = await in_thread(lambda: known_absolute(location, home))
    if found is not None:
        return found
    state = await Probes.get().probe(location.host)
    if state.home is None:
        raise _host_error(state)
    there = state.home
    await in_thread(lambda: Mirror(home).put_home(str(location.host), there))
    return location.resolved(there)


def known_absolute(location: Location, home: str | os.PathLike[str] | None = None) -> Location | None:
    """Return a location with its absolute path, if that is known without asking anybody."""
    location = location.expanded()
    if location.host is None or not location.needs_home:
        return location
    there = Mirror(home).home_of(location.host)
    return None if there is None else location.resolved(there)


async def learn_home(asked: Location, found: Location, home: str | os.PathLike[str] | None = None) -> None:
    """Keep what a visit to a folder has told of the home on its host.

    Args:
        asked: the location as it was spelled; nothing is learnt of one that does not begin with a home.
        found: the same with its absolute path.
        home: see `albedo_home`.
    """
    there = asked.home_if_at(found.path)
    if asked.host is not None and there is not None:
        host = asked.host
        await in_thread(lambda: Mirror(home).put_home(host, there))


def _host_error(state: HostState) -> HostError:
    kinds: dict[str, type[HostError]] = {NEEDS_AUTH: SignInError, UNSUPPORTED: UnsupportedHostError}
    return kinds.get(state.state, UnreachableError)(state.host, state.advice or state.detail, state.detail)


# -- whether folders are there -------------------------------------------------------------------------------


async def look_at(locations: Iterable[Location], home: str | os.PathLike[str] | None = None) -> list[LinkedWorkspace]:
    """Look whether workspaces are there: all hosts at the same time, each with `PATIENCE` seconds to answer."""
    wanted = list(locations)
    by_host: dict[str | None, list[str]] = {}
    for location in wanted:
        by_host.setdefault(location.host, []).append(location.path)
    answers = await asyncio.gather(*(_look_at(host, tuple(paths), PATIENCE) for host, paths in by_host.items()))
    found = {(host, path): seen for host, answer in zip(by_host, answers, strict=True) for path, seen in answer.items()}
    rows = [LinkedWorkspace(link_id(each), each, *found[each.host, each.path]) for each in wanted]
    if rows:
        await in_thread(lambda: Mirror(home).put_badges((row.location, row.badge, row.detail) for row in rows))
    return rows


async def _look_at(host: str | None, paths: tuple[str, ...], patience: float) -> dict[str, tuple[str, str]]:
    async def look() -> list[list[str]]:
        if host is None:
            return await in_thread(lambda: on_host.look(paths))
        request = {"do": "look", "folders": list(paths)}
        seen = (await _by_any_python(host, None, lambda each: ask(host, request, each)))["looked"]
        if len(seen) != len(paths):
            raise UnsupportedHostError(host, f"{host} answered what we do not understand.")
        return [[str(state), str(detail)] for state, detail in seen]

    task = IOThread.get().only(_UnderWay).begin(("look", host, paths), look)
    done, _ = await asyncio.wait([task], timeout=patience)
    if not done:
        step = Activity.get().step(HostPool.get().transport_for(host).host) or "connecting"
        return dict.fromkeys(paths, (CONNECTING, f"no answer within {patience:g} s, while {step}"))
    try:
        seen = task.result()
    except SignInError as error:
        return dict.fromkeys(paths, (SIGN_IN, error.detail))
    except UnsupportedHostError as error:
        return dict.fromkeys(paths, (UNSUPPORTED, error.detail))
    except HostError as error:
        return dict.fromkeys(paths, (UNREACHABLE_BADGE, error.detail))
    except AlbedoError as error:
        return dict.fromkeys(paths, (UNREACHABLE_BADGE, str(error)))
    badges = {on_host.THERE: "", on_host.GONE: GONE, on_host.CLOSED: NO_PERMISSION, on_host.UNKNOWN: UNREACHABLE_BADGE}
    return {
        path: (badges.get(state, UNREACHABLE_BADGE), detail) for path, (state, detail) in zip(paths, seen, strict=True)
    }


# -- what a workspace has ------------------------------------------------------------------------------------


async def refresh(location: Location, python: str | None = None, home: str | os.PathLike[str] | None = None) -> None:
    """Have the mirror show what a workspace has now, unless somebody has done so within `EVERY` seconds.

    Whatever comes of it is in the mirror, a host out of reach too.

    Args:
        location: the workspace, with an absolute path.
        python: the interpreter that does the looking on the host; None for the login shell's `python3`.
        home: see `albedo_home`.
    """
    await (
        IOThread.get().only(_UnderWay).begin(("refresh", str(home), location), lambda: _refresh(location, python, home))
    )


async def _refresh(location: Location, python: str | None, home: str | os.PathLike[str] | None) -> None:
    if not await in_thread(lambda: Mirror(home).may_ask(location, EVERY)):
        return
    try:
        if location.host is None:
            facts = await in_thread(lambda: _gather_here(location.path))
        else:
            facts = await _gather_there(location.host, location.path, python)
            await in_thread(lambda: Mirror(home).put_home(str(location.host), facts["home"]))
    except AlbedoError as error:
        state = getattr(error, "state", UNREACHABLE)
        if isinstance(error, FolderError):
            # The host is there; of the folder it says that it is gone, or that it cannot be entered.
            row = (await look_at([location], home))[0]
            state = FOLDER_GONE if row.badge == GONE else READY if row.badge in ("", NO_PERMISSION) else UNREACHABLE
        detail = getattr(error, "detail", str(error))
        await in_thread(lambda: Mirror(home).put_state(location, state, detail))
        return
    await in_thread(lambda: Mirror(home).put_facts(location, facts))


def _gather_here(path: str) -> dict[str, Any]:
    state, detail = on_host.look([path])[0]
    if state != on_host.THERE:
        raise FolderError("this machine", f"The folder {path} on this machine cannot be used: {detail}.", detail)
    return on_host.gather(path)


async def _gather_there(host: str, path: str, python: str | None) -> dict[str, Any]:
    from ..browse import visit  # a program that runs a cell has no need of it

    answer = await _by_any_python(
        host, python, lambda each: visit.ask_at_length(host, {"do": "gather", "cwd": path}, each, GATHER_TIMEOUT)
    )
    try:  # it is a host's word, and will be read by programs that take it for what it should be
        return {
            **{name: "".join(filter(str.isprintable, str(answer[name]))) for name in ("os", "arch")},
            "home": str(answer["home"]),
            "folder": str(answer["folder"]),
            "root": None if answer["root"] is None else str(answer["root"]),
            **{
                name: [
                    {"path": str(each["path"]), "text": str(each["text"]), "cut": bool(each["cut"])}
                    for each in answer[name]
                ]
                for name in ("files", "skills")
            },
            "problems": [{"path": str(each["path"]), "detail": str(each["detail"])} for each in answer["problems"]],
            "late": bool(answer["late"]),
        }
    except (LookupError, TypeError) as error:
        raise UnsupportedHostError(host, f"{host} answered what we do not understand: {error!r}.") from error


async def _by_any_python(host: str, python: str | None, work: Callable[[str | None], Awaitable[T]]) -> T:
    """Have a host answer by the first interpreter that does, of those that are known: its `python3` may be too old.

    Raises:
        AlbedoError: none does.
    """
    from ..kernels.survey import known_pythons

    refusal: UnsupportedHostError | None = None
    for each in dict.fromkeys([python, *(await in_thread(lambda: known_pythons(host)))]):
        try:
            return await work(each)
        except UnsupportedHostError as error:
            refusal = refusal or error
    assert refusal is not None
    raise refusal


async def within(seconds: float, work: Iterable[Awaitable[Any]]) -> None:
    """Wait at most so long for work that goes on in any case."""
    tasks = [asyncio.ensure_future(each) for each in work]
    if tasks:
        await asyncio.wait(tasks, timeout=seconds)
