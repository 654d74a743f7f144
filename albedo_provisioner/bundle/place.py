"""A keeper's place on its host: the run directory and the socket in it, by which its kernel is found.

Somebody who cleans a home up may remove them while keeper and kernel are at work. That ends neither: the keeper makes
them anew. It looks by itself every few seconds; who comes meanwhile finds it among the processes, and makes it look.
"""

from __future__ import annotations

import os
import signal
import socket
import time

from . import processes, rundir

TYPE_CHECKING = False  # not from typing: see processes.py
if TYPE_CHECKING:
    from collections.abc import Callable

KEEPER_NAME = "albedo-keeper"
"""What a keeper's process is called, where processes can say what they are called."""

_REMOVED = " (deleted)"  # what Linux puts behind the path of a directory that is not there any more
_PATIENCE = 5.0
_LOOK_AGAIN = 0.02


class TakenError(Exception):
    """Another keeper has the place."""


class LostError(Exception):
    """There can be no place any more: the home is gone."""


class Place:
    """The place of this process, which is a keeper.

    Args:
        path: the run directory, which is the current one; our socket listens in it.
        kernel_id: the kernel's id.
    """

    def __init__(self, path: str, kernel_id: str) -> None:
        self._path = path
        self._kernel_id = kernel_id
        self._known = self._look()

    @property
    def ours(self) -> bool:
        """Whether both are still those that we made."""
        return self._look() == self._known

    def _look(self) -> tuple[int, int] | None:
        try:
            return os.stat(self._path).st_ino, os.stat(os.path.join(self._path, rundir.SOCKET)).st_ino
        except OSError:
            return None

    def make_anew(self, fill: Callable[[], None]) -> socket.socket:
        """Make what is missing, enter the directory, and return the new socket, listening.

        Args:
            fill: called when the directory is there, to put into it what belongs there; who finds the socket finds all.

        Raises:
            TakenError: another keeper listens there.
            LostError: the home itself is gone.
            OSError: it cannot be made now; it may be later.
        """
        if not os.path.isdir(os.path.expanduser("~")):
            raise LostError
        try:
            rundir.create(self._kernel_id)
        except FileExistsError:
            if os.path.isdir(self._path) and rundir.keeper_lives(self._kernel_id):
                raise TakenError from None
            os.chmod(self._path, 0o700)
        os.chdir(self._path)
        fill()
        if os.path.lexists(rundir.SOCKET):
            os.unlink(rundir.SOCKET)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(rundir.SOCKET)
            listener.listen(16)
            log = rundir.private_file(os.path.join(self._path, rundir.KEEPER_LOG))
            os.dup2(log, 2)
            os.close(log)
        except BaseException:
            listener.close()
            raise
        self._known = self._look()
        return listener


def keeper_of(kernel_id: str) -> processes.Identity | None:
    """Return the keeper of a kernel, found without its place; None when there is none."""
    table = processes.snapshot()
    keepers = _keepers(table) if processes.HAS_PROC else []
    for keeper in keepers:
        if _folder_of(keeper.pid)[0] == kernel_id:
            return keeper.identity
    # A kernel's parent is its keeper, unless it was adopted.
    members = processes.family(table, [], mark=kernel_id).ours
    pids = {each.pid for each in members}
    parents = (table.get(each.ppid) for each in members if each.ppid not in pids and each.ppid > 1)
    found = (each for each in parents if each is not None and (each in keepers or not processes.HAS_PROC))
    return next((each.identity for each in found), None)


def have_all_made_anew() -> None:
    """Have all keepers of this account whose run directories were removed see to it, where processes tell of that."""
    if not processes.HAS_PROC:
        return
    for process in _keepers(processes.snapshot()):
        kernel_id, removed = _folder_of(process.pid)
        if removed:
            try:
                have_made_anew(kernel_id)
            except (TimeoutError, ValueError, OSError):
                pass  # it is stopped, or has no room: nothing can be said of it then, nor was before


def _keepers(table: processes.Table) -> list[processes.Process]:
    return [each for each in table.values() if each.name == KEEPER_NAME and each.uid == os.getuid() and each.alive]


def _folder_of(pid: int) -> tuple[str, bool]:
    """Return the name of a process's current directory, and whether it was removed."""
    try:
        path = os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return "", False
    return os.path.basename(path.removesuffix(_REMOVED)), path.endswith(_REMOVED)


def have_made_anew(kernel_id: str) -> bool:
    """Have a kernel's keeper, if there is one, see to its place, which it has none of; False when there is none.

    Raises:
        TimeoutError: it lives and does not do so, as when it is stopped or there is no room.
    """
    keeper = keeper_of(kernel_id)
    if keeper is None:
        return False
    # What a keeper takes as a reason to look around, and what harms no other program.
    processes.signal_process(keeper, signal.SIGCHLD)
    deadline = time.monotonic() + _PATIENCE
    while not rundir.keeper_lives(kernel_id):
        if not processes.still_alive([keeper]):
            return False
        if time.monotonic() > deadline:
            raise TimeoutError("its run directory was removed, and it has not made it anew yet")
        time.sleep(_LOOK_AGAIN)
    return True
