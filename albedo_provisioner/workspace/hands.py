"""Files that a person's editor or shell writes in place, knowing no lock of ours: who does is waited for, and noticed.

`cat new > memory.md` empties the file and then writes into it. Who replaces the file meanwhile by a changed copy of
what it held just then loses the person's text: the copy is one of a part, and the rest goes into a file that has no
name any more.

Linux tells of it by leases (fcntl(2), F_SETLEASE). A read lease can be had of a file only while nobody has it open for
writing; who opens it for that afterwards waits until we let go of it, and we are told that somebody waits. So a file is
read and replaced under a lease, anew when somebody came before the rename. Who came just then writes into the old file,
which is still open here: that is read again when it has been closed.

Where there are no leases (macOS, some network file systems), a file that stays the same for a moment is taken for one
that nobody writes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from ..errors import MemoryFileError
from .files import MOST_READ, create_empty, open_regular, read_open, stamp_of

log = logging.getLogger("albedo_provisioner.workspace")

PATIENCE = 10.0
"""Seconds that a person's program may have a file open for writing before we give up."""

QUIET = 0.05
"""Seconds for which a file stays the same that nobody writes, where there are no leases."""

_QUIET_EMPTY = 1.0  # of an empty one: it may have been emptied to be written

_LEASES_DOUBTED = 0.25  # seconds after which is asked who has the file open: some file systems refuse each lease

_PAUSE = 0.002


class HeldFile:
    """A file as it was when nobody wrote it, kept open to see whether that stays so.

    Attributes:
        content: what it held.
    """

    def __init__(self, path: Path, descriptor: int, leased: bool) -> None:
        self._path = path
        self._descriptor = descriptor
        self._leased = leased
        self.content = read_open(descriptor, path)

    def is_disturbed(self) -> bool:
        """Whether somebody wants to write it, has written it, or put another in its place."""
        if self._leased and not _has_lease(self._descriptor):
            return True
        return stamp_of(self._path) != self.content.stamp

    def written_after(self) -> bytes | None:
        """Return what somebody wrote into it in the moment when it was replaced; None when nobody did.

        Whoever has it open for writing is waited for, `PATIENCE` seconds at most.
        """
        if self._leased:
            if _has_lease(self._descriptor):
                return None
            let_go(self._descriptor)
        until = time.monotonic() + PATIENCE
        if not _await_writers(self._descriptor, self._path, until, look=not self._leased):
            log.warning("%s is still written by %s after it was replaced", self._path, _writers(self._descriptor))
        # It may be long: it is a person's text that is nowhere else now.
        last = read_open(self._descriptor, self._path, max(MOST_READ, os.fstat(self._descriptor).st_size))
        return None if last.data == self.content.data and not self.content.cut else last.data


@contextlib.contextmanager
def held(path: Path) -> Iterator[HeldFile]:
    """Hold a file for the moment that it takes to replace it; an empty one is made when there is none.

    Raises:
        MemoryFileError: it cannot be read, is no plain file, or somebody has it open for writing all the time.
    """
    until = time.monotonic() + PATIENCE
    created = False
    while (descriptor := open_regular(path)) is None:
        # What a person creates in the meantime would be replaced unseen, if there were nothing to hold.
        created = create_empty(path) or created
    try:
        leased = _await_writers(descriptor, path, until, look=not created)
        if leased is False:
            names = ", ".join(_writers(descriptor)) or "another program"
            raise MemoryFileError(
                f"{path} has been open for writing in {names} for {PATIENCE:g} s, and what is written there would be "
                "lost if we changed it: close it there, and try again."
            )
        yield HeldFile(path, descriptor, leased is True)
    finally:
        let_go(descriptor)
        os.close(descriptor)


def _await_writers(descriptor: int, path: Path, until: float, look: bool) -> bool | None:
    """Wait until nobody writes an open file, and have a lease of it.

    Args:
        descriptor: the file, open for reading.
        path: its name, for messages.
        until: on the monotonic clock, when to give up.
        look: whether, where there are no leases, it is to be watched for some time first.

    Returns:
        Whether there is a lease; False when it is still being written, None when there are no leases.
    """
    doubted = time.monotonic() + _LEASES_DOUBTED
    while (leased := _lease(descriptor)) is False:
        now = time.monotonic()
        if now > doubted:
            if not _writers(descriptor):
                log.debug("nobody seems to have %s open for writing, and no lease of it can be had", path)
                leased = None
                break
            doubted = now + 1
        if now > until:
            return False
        time.sleep(_PAUSE)
    if leased is None and look:
        _await_quiet(descriptor, until)
    return leased


def _await_quiet(descriptor: int, until: float) -> None:
    seen, since = None, time.monotonic()
    while (now := time.monotonic()) < until:
        status = os.fstat(descriptor)
        if (status.st_size, status.st_mtime_ns) != seen:
            seen, since = (status.st_size, status.st_mtime_ns), now
        if now - since > (QUIET if status.st_size else _QUIET_EMPTY):
            return
        time.sleep(_PAUSE)


# -- leases --------------------------------------------------------------------------------------------------


def _lease(descriptor: int) -> bool | None:
    """Take a read lease; False when somebody has the file open for writing, None when there is no lease to be had."""
    if sys.platform != "linux":
        return None
    try:
        # Who comes is told by a signal. The default one, SIGIO, would end this process; this one is ignored.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, 0)  # nor is even that wanted: we ask
    except OSError as error:
        return False if error.errno == errno.EAGAIN else None
    return True


def _has_lease(descriptor: int) -> bool:
    """Whether we have the lease, and nobody waits for us to let go of it."""
    return sys.platform == "linux" and fcntl.fcntl(descriptor, fcntl.F_GETLEASE) == fcntl.F_RDLCK


def let_go(descriptor: int) -> None:
    """Give back the lease of a file, if there is one: a copy of the descriptor in a forked process would keep it."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # there was none
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)


def _writers(descriptor: int) -> list[str]:
    """Return the programs that have a file open for writing, as far as we may know."""
    wanted = os.fstat(descriptor)
    found = {}
    for each in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended, or is another user's
            status = each.stat()
            if (status.st_dev, status.st_ino) != (wanted.st_dev, wanted.st_ino):
                continue
            process = each.parent.parent
            flags = (process / "fdinfo" / each.name).read_text().split("flags:")[1].split()[0]
            if int(flags, 8) & os.O_ACCMODE != os.O_RDONLY:
                found[process.name] = f"{(process / 'comm').read_text().strip()} (process {process.name})"
    return list(found.values())
