"""Notices that a person has signed in to a host that asks for it: links that wait for the host learn of it at once.

`jupyter albedo login` runs in another process. What it leaves behind is a control socket, or only a line in a
known_hosts file; so both are looked at once in a while.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time

from ..errors import ConfigError
from .control_paths import socket_identity
from .openssh_config import HostSettings
from .reachability import Reachability

log = logging.getLogger("albedo_provisioner.hosts")

EVERY = 0.5
"""Seconds between two looks; each is a handful of `stat` calls."""

LOOK_OUT = 300.0
"""Seconds that are looked through after a sign-in was wanted. Who waits for the host tries again sooner than that."""


class SignInWatch:
    """Looks out for a sign-in to one host, while somebody waits for it. Used on the I/O thread's loop.

    Args:
        host: as its transport spells it.
        settings: what ssh says of it.
    """

    def __init__(self, host: str, settings: HostSettings) -> None:
        self._host = host
        self._settings = settings
        self._until = 0.0
        self._task: asyncio.Task[None] | None = None

    def look_out(self) -> None:
        """Look out from now on, for `LOOK_OUT` seconds."""
        self._until = time.monotonic() + LOOK_OUT
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._look())

    def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _look(self) -> None:
        try:
            sockets, files = await self._places()
        except ConfigError as error:
            log.debug("%s: no sign-in can be looked out for: %s", self._host, error)
            return
        before = _seen(sockets, files)
        while time.monotonic() < self._until:
            await asyncio.sleep(EVERY)
            now = _seen(sockets, files)
            if now - before:
                log.debug("%s: there may have been a sign-in", self._host)
                Reachability.get().announce(self._host)
            before = now

    async def _places(self) -> tuple[list[str], list[str]]:
        """Return the control paths and the known_hosts files of the host."""
        resolved = await self._settings.ask()
        sockets = await self._settings.our_control_paths()
        if resolved.control_path:
            sockets.append(resolved.control_path)
        jump = await self._settings.jump_host()
        if jump is not None:
            sockets += await jump.our_control_paths()
        return sockets, resolved.get("userknownhostsfile").split()


def _seen(sockets: list[str], files: list[str]) -> set[tuple[str, object]]:
    seen: set[tuple[str, object]] = {(path, identity) for path in sockets if (identity := socket_identity(path))}
    for file in files:
        try:
            status = os.stat(os.path.expanduser(file))
        except OSError:
            continue  # none yet
        seen.add((file, (status.st_ino, status.st_mtime_ns, status.st_size)))
    return seen
