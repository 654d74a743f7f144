"""Plain files that a person edits by hand and several processes change: read, replaced and locked with care.

A file is never changed in place: the new content is written beside it and renamed over it, so that at any moment it is
the old one or the new one, whatever breaks off. Symbolic links are not followed: a rename would put a file in their
place.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import MemoryFileError

LOCK = ".lock"

LOCK_PATIENCE = 30.0
"""Seconds that another process's turn is waited for; a turn takes milliseconds."""

MOST_READ = 8 << 20
"""Bytes that are read of a file. We write none that is longer, but a person may."""

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of renameat2(2)

Stamp = tuple[int, int, int, int, int]
"""What differs between two contents of a file: device, inode, size, times of change."""


@dataclass(frozen=True)
class Content:
    """A file's content.

    Attributes:
        data: its bytes; none when there is no such file.
        stamp: tells this content from others; None when there is no such file.
        cut: whether there are more than `MOST_READ`.
    """

    data: bytes
    stamp: Stamp | None
    cut: bool = False

    @property
    def text(self) -> str:
        """The bytes as text; what is no UTF-8 is shown as �."""
        return self.data.decode("utf-8", "replace").removeprefix("\ufeff")


def read_regular(path: Path) -> Content:
    """Read a file.

    Raises:
        MemoryFileError: it cannot be read, or is no plain file.
    """
    descriptor = open_regular(path)
    if descriptor is None:
        return Content(b"", None)
    try:
        return read_open(descriptor, path)
    finally:
        os.close(descriptor)


def open_regular(path: Path) -> int | None:
    """Open a file for reading; None when there is none.

    Raises:
        MemoryFileError: it cannot be read, or is no plain file.
    """
    with _told("read", path):
        try:
            # Without O_NONBLOCK a pipe of that name would make us wait for its other end.
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_plain(path)
    return descriptor


def read_open(descriptor: int, path: Path, most: int = MOST_READ) -> Content:
    """Read an open file from its beginning, `most` bytes at most; see `read_regular`."""
    status = os.fstat(descriptor)
    with _told("read", path), open(descriptor, "rb", closefd=False) as file:
        file.seek(0)
        data = file.read(most + 1)
    return Content(data[:most], _stamp(status), len(data) > most)


def create_empty(path: Path) -> bool:
    """Make an empty file (0600), and return whether there was none.

    Raises:
        MemoryFileError: it cannot be made.
    """
    with _told("write", path):
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            return False
    return True


def stamp_of(path: Path) -> Stamp | None:
    """Return what `read_regular` would give as the stamp; None when there is no such plain file."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return _stamp(status) if stat.S_ISREG(status.st_mode) else None


def is_same_file(one: Stamp | None, other: Stamp | None) -> bool:
    """Whether two stamps are of one file, whatever it held at either time."""
    return one is not None and other is not None and one[:2] == other[:2]


def write_beside(path: Path, data: bytes) -> None:
    """Write a new file (0600) that is to be renamed, down to the disk. It is removed again when that fails.

    Raises:
        MemoryFileError: the disk is full, or the like.
    """
    with _told("write", path):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            sync_folder(path.parent)
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def swap(fresh: Path, path: Path) -> None:
    """Put a file in another's place, down to the disk, and the other one in its place where the system can do that.

    Raises:
        MemoryFileError: that cannot be done; nothing has changed.
    """

    def move() -> None:
        if not _exchange(fresh, path):
            os.rename(fresh, path)

    _put(path, move)


def _exchange(one: Path, other: Path) -> bool:
    """Have two files take each other's name in one step; False when the system has no such step (Linux alone has)."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None
    if renameat2 is None:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):  # the file system's or the kernel's answer
        return False
    raise OSError(code, os.strerror(code), str(other))


def rename(fresh: Path, path: Path) -> None:
    """Put a file in another's place, down to the disk.

    Raises:
        MemoryFileError: that cannot be done; nothing has changed.
    """
    _put(path, lambda: os.rename(fresh, path))


def _put(path: Path, move: Callable[[], object]) -> None:
    with _told("write", path):
        if path.is_symlink():
            raise _not_plain(path)
        move()
    sync_folder(path.parent)


def replace(path: Path, data: bytes) -> None:
    """Write a file anew, at once.

    Raises:
        MemoryFileError: it stays as it is.
    """
    fresh = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    write_beside(fresh, data)
    try:
        rename(fresh, path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk, too; some file systems cannot be asked for that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def make_private(folder: Path) -> None:
    """Make a folder (0700) if there is none.

    Raises:
        MemoryFileError: it cannot be made, or something else is in its place.
    """
    with _told("make", folder):
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.is_symlink():
            raise _not_plain(folder)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Have a folder's turn: nobody else who asks for it, in any process or thread, has it meanwhile.

    Raises:
        MemoryFileError: it cannot be had, or not in time.
    """
    until = time.monotonic() + LOCK_PATIENCE
    while True:
        with _told("lock", folder):
            descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with _told("lock", folder):
                _lock(descriptor, folder, until)
            if _is_still(descriptor, folder / LOCK):  # else somebody has removed the folder meanwhile
                yield
                return
        finally:
            os.close(descriptor)
        if time.monotonic() > until:
            raise MemoryFileError(f"{folder} could not be locked: it vanishes again and again.")


def _lock(descriptor: int, folder: Path, until: float) -> None:
    pause = 0.001
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise MemoryFileError(
                    f"{folder} is in use by another process for more than {LOCK_PATIENCE:g} s; end that one "
                    f"(fuser {folder / LOCK} names it)."
                ) from None
        time.sleep(pause)
        pause = min(2 * pause, 0.02)


def _is_still(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _not_plain(path: Path) -> MemoryFileError:
    what = "a symbolic link" if path.is_symlink() else "no plain file"
    return MemoryFileError(f"{path} is {what}, and memory is kept in plain files and folders: put one in its place.")


@contextlib.contextmanager
def _told(what: str, path: Path) -> Iterator[None]:
    """Turn the system's errors into ours."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _not_plain(path) from error
        raise MemoryFileError(f"The memory in {path} cannot be used ({what}): {error.strerror or error}.") from error
