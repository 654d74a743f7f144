"""All sessions of a process that belong together: whose they are, how many kernels they may have, and for how long.

Everything here runs on the I/O thread's loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
import weakref
from typing import Any

from ..errors import AlbedoError, KernelGoneError
from ..hosts.io_thread import IOThread
from ..kernels.endings import end_by_record, in_background, unproven_ends
from ..kernels.joining import candidates
from ..kernels.records import NOBODY, this_process
from ..location import Location
from ..workspace.asking import known_absolute
from .entries import Joined, SessionRecord
from .records import SessionRecords, closed
from .session import SessionCore
from .tools import SessionTools

log = logging.getLogger("albedo_provisioner.sessions")

_SHORTEST_LOOK, _LONGEST_LOOK = 0.1, 5.0
"""Seconds between looks at kernels that nobody uses; a quarter of the time that they may have lies between."""

_registries: weakref.WeakSet[Registry] = weakref.WeakSet()
"""Those of this process: each has its own links, so a session is open in one of them at most."""

CHILD = "::"
"""Stands in an owner's name between a parent and its child."""


class Registry:
    """The sessions of one `Sessions`.

    Args:
        home: where they are on record, see `albedo_home`.
        max_kernels: how many kernels they may have at the same time; the least recently used one that is not busy goes.
        idle_timeout: seconds after which a kernel is ended that nothing has used: no call, no cell, no job.
    """

    def __init__(self, home: str | os.PathLike[str] | None, max_kernels: int, idle_timeout: float) -> None:
        self.home = home
        self.records = SessionRecords(home)
        self.records.sweep_outputs()
        self._max_kernels = max_kernels
        self._idle_timeout = idle_timeout
        self._sessions: dict[str, SessionCore] = {}
        self._room = asyncio.Lock()
        self._closed = False
        self._upkeep: asyncio.Task[None] | None = None
        _registries.add(self)
        IOThread.get().on_stop(self.leave)

    # -- opening ---------------------------------------------------------------------------------------------

    def open(
        self,
        location: Location,
        owner: str,
        tools: SessionTools,
        python: str | None = None,
        env: dict[str, str] | None = None,
    ) -> SessionCore:
        """Return the owner's session at a location with tools of these names: one that is open here, else one that was
        left, by whatever process, else a new one. Its host is asked nothing, unless code was left running there. The
        functions are those that were given last. Where it has no kernel, its next one has the interpreter and
        environment that are given; one that was left is not taken up for others than it has.

        Raises:
            AlbedoError: they have been closed.
        """
        self._must_be_open()
        key = (owner, tools.names)
        there = [
            each
            for each in self._sessions.values()
            if (each.record.owner, each.record.tools) == key and not each.closed and self._is_at(each.record, location)
        ]
        if there:  # several, where nobody knew that they are at the same place: one of them may have been used since
            session = next((each for each in there if each.record.kernel_id is not None), there[0])
            session.tools.replace(tools)
            if session.record.kernel_id is None and not session.busy:  # the next kernel is to be another one
                session.record.python = python or session.record.python
                session.record.env = dict(env or session.record.env)
            return session
        left = self._left_at(location, owner, tools.names, python, env)
        new = SessionRecord(uuid.uuid4().hex, owner, location, location, tools.names, python, dict(env or {}))
        return self._add(left or new, tools)

    def _is_at(self, record: SessionRecord, location: Location) -> bool:
        """Whether a session, with a kernel of its own, is at a location, as far as homes on hosts are known."""
        if record.joined is not None or record.location.host != location.host:
            return False
        places = {record.location, record.spelled, self._absolute(record.location)}
        return location in places or self._absolute(location) in places

    def _absolute(self, location: Location) -> Location:
        try:
            return known_absolute(location, self.home) or location
        except AlbedoError as error:  # it names somebody else's home, or what is known cannot be read
            log.info("%s: %s", location, error)
            return location

    def _left_at(
        self,
        location: Location,
        owner: str,
        tools: tuple[str, ...],
        python: str | None,
        env: dict[str, str] | None,
    ) -> SessionRecord | None:
        """Return such a session that was left, made this process's own; of several the one that was used last.

        Those of processes that were killed are for `resume` alone: what ran on them may run still, and would have to be
        waited for by somebody who does not know of it.
        """
        for record in sorted(self.records.all(), key=lambda each: each.used, reverse=True):
            if record.process != NOBODY or not self._is_at(record, location):
                continue
            if (record.owner, record.tools) != (owner, tools) or python not in (None, record.python):
                continue
            if env and env != record.env:
                continue
            claimed = self.records.claim(record.session_id)
            if claimed is not None and claimed.process == this_process():  # else another process was faster
                return claimed
        return None

    async def join(self, kernel_id: str | None, notebook: str | None, owner: str, tools: SessionTools) -> SessionCore:
        """Return the owner's session with a kernel that runs already, another's, and with tools of these names; a new
        one if there is none.

        Raises:
            AlbedoError: there is no such kernel, or its host cannot be asked.
        """
        self._must_be_open()
        gone: KernelGoneError | None = None
        for found in await candidates(kernel_id, notebook):
            for session in self._sessions.values():
                joined, key = session.record.joined, (session.record.owner, session.record.tools)
                same = joined is not None and joined.kernel_id == found.kernel_id and key == (owner, tools.names)
                if same and not session.closed:
                    session.tools.replace(tools)
                    return session
            place = Location(found.host, found.folder)
            joined = Joined(found.kernel_id, notebook)
            record = SessionRecord(
                uuid.uuid4().hex, owner, place, place, tools.names, python=found.python, joined=joined
            )
            session = self._add(record, tools)
            try:
                await session.taking_up.link()
            except BaseException as error:
                self.forget(session)
                if not isinstance(error, KernelGoneError):
                    raise
                gone = gone or error
            else:
                return session
        assert gone is not None
        raise gone

    def resume(self, session_id: str, tools: SessionTools) -> SessionCore:
        """Return a session that is on record, to go on with it in this process, and with these tools from now on.

        Raises:
            KeyError: there is none.
            AlbedoError: another process has it open, or other `Sessions` of this one.
        """
        self._must_be_open()
        session = self._sessions.get(session_id)
        if session is not None and not session.closed:
            if tools.names:
                session.tools.replace(tools)
                session.record.tools = tools.names
            return session
        if any(session_id in other._sessions for other in _registries if other is not self):
            raise AlbedoError(f"The session {session_id} is open with other Sessions of this process.")
        record = None if session is not None else self.records.claim(session_id)
        if record is None:
            raise KeyError(f"There is no session {session_id} on record.")
        if record.process != this_process():
            raise AlbedoError(f"The session {session_id} is open in process {record.process[0]}.")
        record.tools = tools.names or record.tools
        return self._add(record, tools)

    def _add(self, record: SessionRecord, tools: SessionTools) -> SessionCore:
        session = SessionCore(record, self, tools)
        self.records.put(record)
        self._sessions[record.session_id] = session
        session.taking_up.link_soon()
        if self._upkeep is None:
            self._upkeep = asyncio.get_running_loop().create_task(self._keep_within_limits())
        return session

    def list(self) -> list[dict[str, Any]]:
        """Return what is known of all sessions on record, oldest first, those of other processes included."""
        found = []
        for record in self.records.all():
            session = self._sessions.get(record.session_id)
            found.append(
                {
                    **(session.status() if session else {}),
                    "session_id": record.session_id,
                    "owner": record.owner,
                    "location": str(record.location),
                    "kernel_id": record.kernel_id,
                    "used": record.used,
                    "open": "here" if session else ("elsewhere" if record.alive_elsewhere else "nowhere"),
                }
            )
        return found

    # -- limits ----------------------------------------------------------------------------------------------

    async def _keep_within_limits(self) -> None:
        """See to the limits also while nobody calls."""
        while True:
            await asyncio.sleep(max(_SHORTEST_LOOK, min(self._idle_timeout / 4, _LONGEST_LOOK)))
            try:
                await self.make_room(None)
            except Exception:  # it is tried again; nobody waits here who could be told
                log.exception("Kernels that nobody uses could not be ended")

    async def make_room(self, wanted: SessionCore | None) -> None:
        """End kernels that nobody has used for long, and the least recently used ones if there are too many.

        Args:
            wanted: the session that is about to use a kernel, if one is.
        """
        async with self._room:
            now = time.time()
            others = [each for each in self._sessions.values() if each is not wanted and (each.has_kernel or each.busy)]
            free = sorted(
                (each for each in others if not each.busy and CHILD not in each.record.owner),
                key=lambda each: each.last_use,
            )
            idle = [each for each in free if now - each.last_use > self._idle_timeout]
            others, free = ([each for each in some if each not in idle] for some in (others, free))
            why = f"nothing had used it for {self._idle_timeout:g} s"
            await _all(*(self._evict(each, why) for each in idle))
            # Kernels that were joined are others' to count, and to end.
            room = self._max_kernels - (wanted is not None and wanted.owns_kernel)
            own, free = ([each for each in some if each.owns_kernel] for some in (others, free))
            while len(own) > room and free:
                session = free.pop(0)
                own.remove(session)
                await self._evict(session, f"there may be {self._max_kernels} kernels and others were used later")

    async def _evict(self, session: SessionCore, why: str) -> None:
        """End a session's kernel. Nobody waits for a host that is out of reach, and what goes wrong is no reason to
        refuse the call that the room is made for.
        """
        if session.away:
            in_background(session.evict(why))
            return
        try:
            await session.evict(why)
        except AlbedoError as error:
            log.info("%s: %s", session.record.session_id, error)

    # -- ending ----------------------------------------------------------------------------------------------

    def forget(self, session: SessionCore) -> None:
        """Take a session that was closed off the records; where that cannot be, it is one without a kernel there."""
        self._sessions.pop(session.record.session_id, None)
        try:
            self.records.remove(session.record.session_id)
        except AlbedoError as error:
            log.warning("%s stays on record: %s", session.record.session_id, error)

    async def close_owner(self, owner: str) -> int:
        """Close all sessions of an owner and of its children, in whatever process they were opened, and count them.

        Raises:
            LinkAwayError: a host is out of reach; its kernels are noted as to be ended. All others are closed.
        """
        here = [each for each in self._sessions.values() if _belongs(each.record.owner, owner)]
        known = {each.record.session_id for each in here}
        left = [
            record
            for record in self.records.all()
            if _belongs(record.owner, owner) and record.session_id not in known and not record.alive_elsewhere
        ]
        await _all(*(each.close() for each in here), *(self._end_left(record) for record in left))
        return len(here) + len(left)

    async def _end_left(self, record: SessionRecord) -> None:
        had = self.records.kernels_of(record.session_id)
        self.records.remove(record.session_id)
        if record.joined is not None:
            return  # others' kernels
        how = f"was ended when process {os.getpid()} closed all sessions of the owner {record.owner!r}"
        left = {*unproven_ends(had), *([record.kernel_id] if record.kernel_id is not None else [])}
        await _all(*(end_by_record(kernel_id, how) for kernel_id in left))

    async def close(self, patience: float | None = None) -> None:
        """Close all sessions that are open here.

        Args:
            patience: see `SessionCore.close`.

        Raises:
            LinkAwayError: as `close_owner`.
        """
        try:
            await _all(*(each.close(patience) for each in list(self._sessions.values())))
        finally:
            self._close_records()

    async def leave(self) -> None:
        """Let go of all sessions as they are, for another process to resume."""
        if self._closed:
            return
        sessions, self._sessions = list(self._sessions.values()), {}
        try:
            await _all(*(self._leave(each) for each in sessions))
        finally:
            self._close_records()

    async def _leave(self, session: SessionCore) -> None:
        if session.closed:
            await session.close()  # which somebody has begun
            return
        try:
            await session.leave()
        finally:
            session.record.process = NOBODY
            self.records.put(session.record)

    def _close_records(self) -> None:
        self._closed = True
        if self._upkeep is not None:
            self._upkeep.cancel()
        self.records.close()

    def _must_be_open(self) -> None:
        if self._closed:
            raise closed()


def _belongs(owner: str, to: str) -> bool:
    return owner == to or owner.startswith(to + CHILD)


async def _all(*work: Any) -> None:
    """Do everything, side by side; then raise the first error, if there was any."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
