"""The private directory of one kernel on its host: `~/.albedo-remote/run/<kernel id>/`.

It holds the keeper's sockets, the kernel's ipc sockets and connection file, and the log. Everything is made private
by its mode, never by the umask, because the kernel inherits the umask and must get the user's own.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from typing import Any

from .private import why_foreign

SOCKET = "keeper"
CALLS = "calls"
LOG = "kernel.log"
KEEPER_LOG = "keeper.log"
CONNECTION = "connection.json"
RECORD = "kernel.json"
BEGUN = "begun"
RELATIVES = "relatives.json"
TAKEN_BACK = "taken-back"
LOCK = "lock"

SEVERED = "severed"
"""In a record: whether the kernel's sockets were removed, so that no other keeper can reach it."""

_SHORT = "short"

MOST_TAKEN_BACK = 1 << 16
"""Bytes that the ids of cells may have which a kernel is not to run; it reads them before each cell."""

MOST_LOG = 4 << 20
"""Bytes that a kernel's log may have before it is begun anew."""

# A unix socket's path has about 104 bytes (108 on Linux, 104 on macOS and the BSDs); the longest name that is added
# to the directory here is "/k-jobs".
_LONGEST = 95

_LOOK_AGAIN = 0.02

_WRITTEN = 16 << 10
"""Bytes that are written for a try: what lies in a run directory at first is smaller."""

_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def root() -> str:
    """Return the directory of all run directories of this account."""
    return os.path.join(os.path.expanduser("~"), ".albedo-remote", "run")


def path_of(kernel_id: str) -> str:
    """Return a kernel's run directory, which need not exist.

    Raises:
        ValueError: the id could not be the name of a directory of ours.
    """
    if not _ID.fullmatch(kernel_id):
        raise ValueError(f"a kernel id has letters, digits, '_', '.' and '-' only, not {kernel_id!r}")
    return os.path.join(root(), kernel_id)


def create(kernel_id: str) -> str:
    """Make a kernel's run directory and return its path.

    Raises:
        FileExistsError: there is one already.
        OSError: it cannot be made.
    """
    path = path_of(kernel_id)
    _make(path)
    return path


def try_room() -> None:
    """See that a run directory can be made and filled; nothing is left of it.

    Raises:
        OSError: it cannot be.
    """
    # As doctor's: the name is no id, so that nobody takes it for a kernel's.
    path = os.path.join(root(), f".try-{os.urandom(8).hex()}")
    try:
        _make(path)
        file = private_file(os.path.join(path, LOG))
        try:
            left = _WRITTEN
            while left > 0:
                left -= os.write(file, b"\0" * left)
        finally:
            os.close(file)  # some file systems say only now that there was no room
    finally:
        remove(path)


def _make(path: str) -> None:
    for folder in (os.path.dirname(root()), root()):  # `makedirs` would make the first one open to others
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            pass  # as is usual
    os.mkdir(path, 0o700)


def socket_base(path: str) -> str:
    """Return the prefix for the kernel's ipc sockets in this run directory, short enough for any socket call.

    Under a very long home it leads through a symbolic link in a private directory below the temporary one, which
    `remove` takes away as well.

    Raises:
        OSError: such a link was needed and could not be made.
    """
    if len(os.fsencode(path)) <= _LONGEST:
        return os.path.join(path, "k")
    note = os.path.join(path, _SHORT)
    try:
        with open(note) as file:
            link = file.read()
    except FileNotFoundError:
        import tempfile

        base = tempfile.gettempdir()
        if len(os.fsencode(base)) > _LONGEST - 20:
            base = "/tmp"
        link = os.path.join(tempfile.mkdtemp(prefix="albedo-", dir=base), "r")
        os.symlink(path, link)
        with open(note, "w") as file:
            file.write(link)
    return os.path.join(link, "k")


def private_file(path: str) -> int:
    """Open a fresh file that only we can read, for appending, and return its descriptor."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def bound_log(path: str) -> None:
    """Empty a run directory's log if it has grown too long; it is open for appending, so writers go on at its start."""
    file = os.path.join(path, LOG)
    try:
        if os.stat(file).st_size > MOST_LOG:
            os.truncate(file, 0)
    except OSError:
        pass  # it went with its directory, which the keeper looks after by itself


def write_record(path: str, record: dict[str, Any]) -> None:
    """Write down what a kernel is, for a keeper that may have to adopt it and for whoever lists kernels."""
    fresh = os.path.join(path, RECORD + ".new")
    with os.fdopen(private_file(fresh), "w") as file:
        json.dump(record, file)
    os.rename(fresh, os.path.join(path, RECORD))


def read_record(path: str) -> dict[str, Any] | None:
    """Return what `write_record` wrote, or None when there is nothing (that can be read)."""
    try:
        with open(os.path.join(path, RECORD)) as file:
            record = json.load(file)
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def read_connection(path: str) -> bytes:
    """Return the kernel's connection file, which has its key; empty when it is not there."""
    try:
        with open(os.path.join(path, CONNECTION), "rb") as file:
            return file.read()
    except OSError:
        return b""


def write_connection(path: str, content: bytes) -> None:
    """Write what `read_connection` has read."""
    with os.fdopen(private_file(os.path.join(path, CONNECTION)), "wb") as file:
        file.write(content)


def keep_short(path: str, base: str) -> None:
    """Note in a run directory that was made anew which way to it `socket_base` has made, if it has."""
    link = os.path.dirname(base)
    if link != path:
        with open(os.path.join(path, _SHORT), "w") as file:
            file.write(link)


def begun(path: str) -> str | None:
    """Return the id of the cell that the kernel began last (an empty text: none), as our launcher notes it; None when
    the kernel has no launcher of ours, or could not note it.
    """
    try:
        with open(os.path.join(path, BEGUN), "rb") as file:
            return file.read(1024).decode("utf-8", "replace").strip()
    except OSError:
        return None


def take_back(path: str, cell: str, afresh: bool) -> bool:
    """Have a kernel that was given a cell not run it, and say whether that is certain: our launcher looks here when it
    has noted that a cell begins, so one that it has not noted by now is not run.

    Args:
        path: the run directory.
        cell: the cell's id.
        afresh: whether those that were taken back before are done with.
    """
    line = cell.encode() + b"\n"
    try:
        # Not made here: there is none where the launcher would not look.
        file = os.open(os.path.join(path, TAKEN_BACK), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if afresh:
            os.truncate(file, 0)
        if os.fstat(file).st_size + len(line) > MOST_TAKEN_BACK or os.write(file, line) < len(line):
            return False
    except OSError:  # the disk is full
        return False
    finally:
        os.close(file)
    return begun(path) not in (cell, None)


def kernel_ids() -> list[str]:
    """Return the ids of all kernels that have a run directory."""
    try:
        with os.scandir(root()) as entries:
            return sorted(entry.name for entry in entries if _ID.fullmatch(entry.name) and not why_foreign(entry.path))
    except FileNotFoundError:
        return []


def connect(patience: float) -> socket.socket:
    """Connect to the keeper that listens in the current directory. (A name without a directory is short enough.)

    Args:
        patience: seconds to wait for room among the connections that a keeper has not accepted yet: one that is
            stopped accepts none.

    Raises:
        TimeoutError: there was none.
        OSError: nobody listens there.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    deadline = time.monotonic() + patience
    try:
        connection.setblocking(False)
        while True:
            try:
                connection.connect(SOCKET)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise TimeoutError("it takes no connections, as if it was stopped") from None
                time.sleep(_LOOK_AGAIN)
        connection.setblocking(True)
    except BaseException:
        connection.close()
        raise
    return connection


def keeper_lives(kernel_id: str) -> bool:
    """Whether a keeper listens in a kernel's run directory. Uses the current directory for a moment."""
    before = os.open(".", os.O_RDONLY)
    try:
        os.chdir(path_of(kernel_id))
        connect(0.0).close()
        return True
    except TimeoutError:
        return True
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        return False
    finally:
        os.chdir(before)
        os.close(before)


def remove(path: str) -> None:
    """Remove a run directory and what `socket_base` made for it; nothing happens when it is gone already."""
    try:
        with open(os.path.join(path, _SHORT)) as file:
            link = file.read()
    except OSError:
        link = ""
    if link:
        try:
            os.unlink(link)
            os.rmdir(os.path.dirname(link))
        except OSError:
            pass  # gone already, or somebody else's: either way not ours to remove any more
    import shutil

    shutil.rmtree(path, ignore_errors=True)
    try:
        os.rmdir(os.path.dirname(path))
    except OSError:
        pass  # other kernels live there
