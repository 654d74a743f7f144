"""Which file a kernel's notebook is: by its name alone a new notebook would be taken for an old one that was renamed.

What is noted of a file is its inode and when it was made. Jupyter Server writes into the file that is there, so both
stay. Other programs put another file in its place, which is the same notebook to people: so a different file alone says
nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import sys
from dataclasses import dataclass

_MOST_EMPTY = 1 << 14
"""Bytes that the file of a notebook without code may have: what is longer is not read."""

# Of statx(2), which Python has no name for yet (linux/stat.h).
_AT_FDCWD, _STATX_BTIME, _STATX_SIZE, _BTIME_AT = -100, 0x800, 256, 80


@dataclass(frozen=True)
class FileMark:
    """What tells one file from another that takes its name.

    Attributes:
        inode: its number; given away again once the file is removed.
        born: when it was made, nanoseconds since the epoch; None where the system does not say.
    """

    inode: int
    born: int | None

    def differs(self, other: FileMark) -> bool:
        """Whether these are two files for certain."""
        return self.inode != other.inode or (None not in (self.born, other.born) and self.born != other.born)

    def same(self, other: FileMark) -> bool:
        """Whether this is one file for certain."""
        return self.born is not None and self == other


def file_of(name: str) -> str | None:
    """Return the file of a notebook on record; None where its name does not say which one that is."""
    path = name.replace("RTC:", "")  # what JupyterLab's collaboration puts before it
    return path if os.path.isabs(path) else None


def mark_of(path: str | None) -> FileMark | None:
    """Return what to note of a file; None when it is not there."""
    if path is None:
        return None
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return FileMark(found.st_ino, _born(path, found))


def _born(path: str, found: os.stat_result) -> int | None:
    if sys.platform != "linux":
        born = getattr(found, "st_birthtime", None)
        return None if born is None else int(born * 1e9)
    import ctypes

    statx = getattr(ctypes.CDLL(None), "statx", None)
    buffer = ctypes.create_string_buffer(_STATX_SIZE)
    if statx is None or statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, buffer) != 0:
        return None
    if not struct.unpack_from("=I", buffer)[0] & _STATX_BTIME:
        return None
    seconds, nanoseconds = struct.unpack_from("=qI", buffer, _BTIME_AT)
    return int(seconds) * 10**9 + int(nanoseconds)


def is_of(recorded: str, noted: FileMark | None, path: str) -> bool:
    """Whether the notebook of a kernel is this file: by its name, or as the very file that had another name.

    Args:
        recorded: its name, on record.
        noted: what was noted of its file; None when nothing was.
        path: the file.
    """
    if is_named(recorded, path):
        return not _is_new(noted, path)
    here = mark_of(path)
    if noted is None or here is None or not noted.same(here):
        return False
    there = mark_of(file_of(recorded))  # a link to the same file would be no rename
    return there is None or there.differs(noted)


def is_named(recorded: str, path: str) -> bool:
    """Whether a notebook on record has the name of this file.

    Jupyter names it by its absolute path; some versions, and other programs, by one relative to the server's root.
    """
    name = recorded.replace("RTC:", "")
    if not name:
        return False
    if os.path.isabs(name):
        return os.path.realpath(name) == os.path.realpath(path)
    return os.path.abspath(path).endswith("/" + os.path.normpath(name))


def whereabouts(recorded: str, noted: FileMark | None) -> str:
    """Return what became of the notebook of a kernel, in a few words; empty when it is there, or nobody knows."""
    path = file_of(recorded)
    if noted is None or path is None:
        return ""
    here = mark_of(path)
    if here is not None and not here.differs(noted):
        return ""
    renamed = _new_name(path, noted)
    if renamed is not None:
        return f"now {renamed}"
    return "not there any more" if here is None else ""


def _is_new(noted: FileMark | None, path: str) -> bool:
    """Whether a file with the recorded name is another notebook than the recorded one, for certain."""
    here = mark_of(path)
    if noted is None or here is None or not here.differs(noted):
        return False
    return _new_name(path, noted) is not None or _has_no_code(path)


def _new_name(path: str, noted: FileMark) -> str | None:
    """Return which other name in its folder the noted file has now."""
    folder = os.path.dirname(path)
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.inode() == noted.inode and entry.path != path:
                found = mark_of(entry.path)
                if found is not None and found.same(noted):
                    return entry.name
    return None


def _has_no_code(path: str) -> bool:
    """Whether a notebook is as it is made, without anything in its cells."""
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_EMPTY + 1)
        if len(data) > _MOST_EMPTY:
            return False
        return not any("".join(cell["source"]).strip() for cell in json.loads(data)["cells"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return False
