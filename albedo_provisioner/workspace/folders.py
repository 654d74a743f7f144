"""Where the memory of a workspace is: `$ALBEDO_HOME/memories/<slug>/`, a folder that a person can find and edit.

The slug is the workspace's location with everything but letters and digits turned into `-`. Two locations may have the
same one (`gpu:/a-b` and `gpu:/a/b`), on some file systems also two that differ in case alone. So the file `location`
in each folder says whose it is: who comes second gets `<slug>-2`, and so on. A folder without that file, as a person
may have made it, belongs to whoever asks for it first.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..errors import MemoryFileError
from ..home import albedo_home
from ..location import Location
from .files import locked, make_private, read_regular, replace

OWNER = "location"
"""The file that says whose a folder is."""

_LONGEST = 200  # bytes of a slug: file systems allow 255 in a name, and a number may follow


def slug_of(location: Location) -> str:
    """Return the name of a location's folder, if no other location has it."""
    slug = "".join(character if character.isalnum() else "-" for character in str(location))
    return slug.encode()[:_LONGEST].decode("utf-8", "ignore")


def memory_folder(location: Location, home: str | os.PathLike[str] | None = None, make: bool = True) -> Path | None:
    """Return the folder of a workspace's memory.

    Args:
        location: the workspace, with an absolute path.
        home: see `albedo_home`.
        make: whether to make it if there is none; else None is returned.

    Raises:
        MemoryFileError: it cannot be made or read, or something else is in its place.
        ValueError: the location's home is not known, so it might be one that has another spelling as well.
    """
    if location.needs_home:
        raise ValueError(f"{location} has no memory before its home is known")
    root = albedo_home(home) / "memories"
    folder = _find(root, location)
    free = root / slug_of(location)
    if folder is None and (make or _is_free(free)):
        try:
            make_private(root)
            with locked(root):  # two processes must not take one folder for two locations
                folder = _find(root, location) or _take(root, location)
        except MemoryFileError:
            if make:
                raise
            folder = free  # it can be read, though nothing can be written there
    return folder


def _find(root: Path, location: Location) -> Path | None:
    """Return the folder that says it is the location's."""
    like = re.compile(re.escape(slug_of(location)) + r"(-\d+)?", re.IGNORECASE)
    try:
        names = [name for name in os.listdir(root) if like.fullmatch(name)]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise MemoryFileError(f"The memory in {root} cannot be used (read): {error.strerror}.") from error
    return next((root / name for name in sorted(names) if _owner(root / name) == str(location)), None)


def _take(root: Path, location: Location) -> Path:
    """Make the first folder that is nobody's the location's."""
    slug, number = slug_of(location), 1
    folder = root / slug
    while os.path.lexists(folder) and not _is_free(folder):
        number += 1
        folder = root / f"{slug}-{number}"
    make_private(folder)
    replace(folder / OWNER, f"{location}\n".encode())
    return folder


def _is_free(folder: Path) -> bool:
    return folder.is_dir() and not _owner(folder)


def _owner(folder: Path) -> str:
    """Return whose a folder is; empty when it does not say so."""
    if folder.is_symlink():
        make_private(folder)  # which says what is wrong
    return read_regular(folder / OWNER).text.strip("\n") if folder.is_dir() else "no folder"
