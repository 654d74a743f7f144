"""One workspace as sessions and commands use it: its memory, its links, its context. Runs on the I/O thread."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ..errors import AlbedoError, HostError, WorkspaceLinkError
from ..hosts.io_thread import in_thread
from ..location import Location, place
from .asking import LinkedWorkspace, absolute, known_absolute, learn_home, look_at, refresh, within
from .context import INSTRUCTION_CHARS, MEMORY_CHARS, WorkspaceContext, compose
from .links import LinkNews, WorkspaceGroups, link_id
from .memory import WorkspaceMemory
from .mirror import Mirror

T = TypeVar("T")

log = logging.getLogger("albedo_provisioner.workspace")

_LOCAL_PATIENCE = 2.0
"""Seconds that a folder of this machine is waited for; no host is."""


class Workspace:
    """The workspace of a session, or of a location.

    Args:
        where: returns where it is; sessions move.
        home: see `albedo_home`.
        python: returns the interpreter that looks at its folder; None for the login shell's `python3`.
    """

    def __init__(
        self,
        where: Callable[[], Location],
        home: str | os.PathLike[str] | None = None,
        python: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._where = where
        self._home = home
        self._python = python
        self._news = LinkNews(home)
        self._background: set[asyncio.Task[Any]] = set()

    async def visited(self, asked: Location) -> None:
        """Take note that its host has told where it is, which was asked for as `asked`."""
        try:
            await learn_home(asked, self._where(), self._home)
        except AlbedoError as error:  # it is told again
            log.info("%s: %s", self._where(), error)

    # -- memory ----------------------------------------------------------------------------------------------

    async def with_memory(self, work: Callable[[WorkspaceMemory], T]) -> T:
        """Do something with its memory.

        Raises:
            HostError: its location begins with a home that is not known, and the host cannot be asked.
            AlbedoError: whatever `work` raises.
        """
        location = await absolute(self._where(), self._home)
        return await in_thread(lambda: work(WorkspaceMemory(location, self._home)))

    # -- links -----------------------------------------------------------------------------------------------

    async def linked(self) -> list[LinkedWorkspace]:
        """Return the workspaces linked with it, and look at all of them at the same time.

        Raises:
            AlbedoError: its location is not known, or the record cannot be used.
        """
        location = await absolute(self._where(), self._home)
        return await look_at(await in_thread(lambda: self._groups.group(location)), self._home)

    async def link(self, other: Location) -> None:
        """Link another workspace with it.

        Raises:
            WorkspaceLinkError: they cannot be linked.
            HostError: one of them begins with a home that is not known, and the host cannot be asked.
        """
        one, there = await asyncio.gather(absolute(self._where(), self._home), absolute(other, self._home))
        await in_thread(lambda: self._groups.link(one, there))

    async def unlink(self, other: str | None = None) -> Location:
        """Take a workspace out of the group, and return which.

        Args:
            other: a linked one's location or id; None for this one.

        Raises:
            WorkspaceLinkError: it is not linked with this one.
        """
        location = await absolute(self._where(), self._home)
        if other is None:
            leaving = location
        else:
            members = {link_id(each): each for each in await in_thread(lambda: self._groups.group(location))}
            found = members.get(other)
            leaving = found if found is not None else await absolute(place(other), self._home)
            if leaving not in (*members.values(), location):
                raise WorkspaceLinkError(f"{leaving} is not linked with {location}.")
        await in_thread(lambda: self._groups.unlink(leaving))
        return leaving

    def news(self) -> list[str]:
        """Return what became of its links since this was asked last, a sentence each.

        Raises:
            ConfigError: the record cannot be used.
        """
        location = known_absolute(self._where(), self._home)
        return [] if location is None else self._news.take(location)

    @property
    def _groups(self) -> WorkspaceGroups:
        return WorkspaceGroups(self._home)

    # -- context ---------------------------------------------------------------------------------------------

    async def context(
        self, wait: float = 0.0, memory_chars: int = MEMORY_CHARS, instruction_chars: int = INSTRUCTION_CHARS
    ) -> WorkspaceContext:
        """Return what an agent should know, as far as it is known now, and ask the hosts for what is new.

        Args:
            wait: seconds to wait for their answers at most.
            memory_chars: see `compose`.
            instruction_chars: see `compose`.

        Raises:
            ConfigError: what is on record here cannot be used.
        """
        folder, linked = self._in_background(self._look()), self._in_background(self._look_at_linked())
        if not self._where().is_remote:  # what is on this machine is there at once, as a rule
            await within(max(wait, _LOCAL_PATIENCE), [folder])
        await within(wait, [folder, linked])
        return await in_thread(lambda: compose(self._where(), self._home, memory_chars, instruction_chars))

    async def _look(self) -> None:
        """Have the mirror show what the folder has, or why its host does not say so."""
        where = self._where()
        try:
            try:
                location = await absolute(where, self._home)
            except HostError as error:
                state, detail = error.state, error.detail
                await in_thread(lambda: Mirror(self._home).put_state(where, state, detail))
                return
            await refresh(location, self._python(), self._home)
        except AlbedoError as error:
            log.info("%s: %s", self._where(), error)  # what is not known is said to be unknown

    async def _look_at_linked(self) -> None:
        """Have the mirror show whether the folders of linked workspaces are there."""
        try:
            await self.linked()
        except AlbedoError as error:
            log.info("%s: %s", self._where(), error)

    def _in_background(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task
