"""What a Jupyter Server's page calls a kernel's notebook, followed: by the old name another one might be given the
kernel.
"""

from __future__ import annotations

import asyncio
import logging
import os
import posixpath
import sys
from collections.abc import Callable
from typing import Any

log = logging.getLogger("albedo_provisioner.kernels")

LOOK_INTERVAL = 0.5
"""Seconds between looks. A page renames the file first and tells of it then; the kernel shall soon be on record by the
new name."""


def server() -> Any:
    """Return the Jupyter Server that this process is; None when it is none."""
    module = sys.modules.get("jupyter_server.serverapp")
    return module.ServerApp.instance() if module is not None and module.ServerApp.initialized() else None


class NotebookName:
    """Follows the name of one kernel's notebook. Made and used on the server's loop.

    The restarter asks for the kernel's state too seldom for this, and it may be turned off.

    Args:
        kernel_id: the kernel's id in the server.
        name: the notebook's at the start, as the server gave it.
        renamed: told each new one.
    """

    def __init__(self, kernel_id: str, name: str, renamed: Callable[[str], None]) -> None:
        self._kernel_id = kernel_id
        self._name = name
        self._renamed = renamed
        self._path: str | None = None  # as the page calls it
        self._changes: int | None = None
        self._looking: asyncio.Task[None] | None = None
        self._next: asyncio.TimerHandle | None = None
        self._wait()

    def stop(self) -> None:
        """Follow it no more."""
        if self._next is not None:
            self._next.cancel()
        self._next = None

    def _wait(self) -> None:
        self._next = asyncio.get_running_loop().call_later(LOOK_INTERVAL, self._see)

    def _see(self) -> None:
        self._wait()
        sessions = getattr(server(), "session_manager", None)
        if sessions is None or (self._looking is not None and not self._looking.done()):
            return
        # Most of the time nothing has changed in any session, which costs next to nothing to see.
        changes = getattr(getattr(sessions, "connection", None), "total_changes", None)
        if changes is None or changes != self._changes:
            self._changes = changes
            self._looking = asyncio.get_running_loop().create_task(self._look(sessions))
            self._looking.add_done_callback(_note_failure)

    async def _look(self, sessions: Any) -> None:
        from tornado.web import HTTPError  # a Jupyter Server has it loaded

        try:
            session = await sessions.get_session(kernel_id=self._kernel_id)
            before, self._path = self._path, str(session["path"])
            if self._path == before:
                return
            names = [
                str(sessions.get_kernel_env(self._path, name)["JPY_SESSION_NAME"])
                for name in (posixpath.basename(self._path), session["name"])
            ]
        except HTTPError:
            return  # no page has a session with it (any more)
        if before is None and self._name in names and not self._was_renamed_before(names[0]):
            return  # it is called as it was at the start
        self._name = names[0]
        self._renamed(self._name)

    def _was_renamed_before(self, path: str) -> bool:
        """Whether it was renamed before the first look: a page may tell the new path alone, and not the new name. That
        the two differ is no sign of it; those of a console always do.
        """
        return self._name.endswith(".ipynb") and not os.path.exists(self._name) and os.path.exists(path)


def _note_failure(looking: asyncio.Task[None]) -> None:
    """Have a session manager that is not Jupyter Server's own fail as it likes: the kernel keeps its name then."""
    if not looking.cancelled() and looking.exception() is not None:
        log.info("It could not be seen what a notebook is called now: %s", looking.exception())
