"""Directories on this host that many processes use, and that go some time after the last one has used them: the bundles
of all versions there were, and sets of packages (`wheels.py`).

The directory's time of change says when it was last used: each visit sets it, and keepers do now and then. Kernels and
supervisors of jobs cannot, so they hold a shared lock on a file in it for as long as they live. Nothing else takes it:
where a home lies on a network whose locks do not work, asking for one may take for ever (flock(2), "NFS details"). The
launcher imports this file, so it is cheap to import.
"""

from __future__ import annotations

import fcntl
import os
import time

from . import ROOT

LOCK = ".in-use"
"""The file that is locked."""

UNUSED = 30 * 86400.0
"""Seconds after which what nobody used may be removed."""

_ABANDONED = 86400.0  # seconds after which what is half there belongs to nobody any more
_RENEW_EVERY = 3600.0

_held: dict[str, int] = {}  # by directory, a descriptor of its lock, open for as long as this process lives
_renewed = 0.0


def hold(path: str) -> bool:
    """Keep a directory from being removed for as long as this process lives; False when that is just being done.

    A directory without such a file is not removed by anybody who goes by it.
    """
    try:
        lock = os.open(os.path.join(path, LOCK), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return os.path.isdir(path)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return False
    except OSError:
        pass  # a file system without locks: the time has to do
    _held[path] = lock
    note_use(path)
    return True


def renew(now: float) -> None:
    """Say that what this process uses is still used, now and then.

    Args:
        now: the monotonic clock.
    """
    global _renewed
    if now - _renewed > _RENEW_EVERY:
        _renewed = now
        for path in {ROOT, *_held}:
            note_use(path)


def note_use(path: str) -> None:
    """Say that a directory is used now."""
    try:
        os.utime(path)
    except OSError:
        pass  # it was removed, or is on a disk that is read-only by now: neither keeps anybody from using it


def remove_unused(path: str) -> None:
    """Remove a directory, at once for all who look; if it has no lock, nobody can be using it.

    Raises:
        BlockingIOError: somebody holds it.
        OSError: it cannot be removed.
    """
    try:
        lock = os.open(os.path.join(path, LOCK), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        _remove(path)
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while somebody holds it
        _remove(path)
    finally:
        os.close(lock)


def _remove(path: str) -> None:
    import shutil  # takes some milliseconds

    folder, name = os.path.split(path)
    gone = os.path.join(folder, f"{name.partition('.')[0]}.{os.getpid()}.{os.urandom(4).hex()}")
    os.rename(path, gone)  # so that nobody begins to use what is half there
    shutil.rmtree(gone)


def sweep_bundles(root: str, kept: str) -> None:
    """Remove what was left of bundles of other versions that nobody used for long.

    Args:
        root: the directory of all bundles.
        kept: the name of the one that stays.
    """
    from . import rundir
    from .private import is_of_ours, why_foreign

    now = time.time()
    for name in os.listdir(root):
        path = os.path.join(root, name)
        digest, _, rest = name.partition(".")
        if not is_of_ours(name) or digest in (kept, "wheels", "run") or why_foreign(path):
            continue
        try:
            if now - os.stat(path).st_mtime < (_ABANDONED if rest else UNUSED):
                continue
            # Versions before locks hold none. They are at work for as long as a kernel is, on whatever machine.
            if not rest and not os.path.exists(os.path.join(path, LOCK)) and rundir.kernel_ids():
                continue
            remove_unused(path)
        except OSError:
            pass  # in use, removed by somebody else, or not to be removed: none is a reason to refuse a kernel
