"""Control paths: the sockets of ssh connections that a person has signed in to, the user's own and ours.

`jupyter albedo login` leaves such a connection (a ControlMaster) behind where the user's config names a ControlPath,
else below a private directory of ours. Every process of the user finds it there.
"""

from __future__ import annotations

import glob
import os
import re
import socket
import stat
from pathlib import Path

from ..errors import AlbedoError, ConfigError
from ..home import albedo_home, albedo_home_path

# sockaddr_un has 104 bytes for the path on macOS and the BSDs, 108 on Linux; ssh binds the socket under a name that
# is 17 characters longer first, and %C is 40. Two more are for further connections, see `names`.
_LONGEST_DIRECTORY = 104 - 1 - 17 - 40 - 2 - 1

_MOST_CONNECTIONS = 5

Identity = tuple[int, int]
"""What tells one socket of a name from the next one: inode and time of creation."""


def our_directories(route: str = "") -> list[Path]:
    """Return where our control sockets may lie, the preferred place first; existing or not.

    Below ALBEDO_HOME, where all processes that share the records of kernels find it, unless its path is too long for a
    socket's name.

    Args:
        route: that of the host, see `Resolved.route`.
    """
    places = [albedo_home_path() / "ssh"]
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    places.append(Path(runtime) / "albedo" if runtime else Path(f"/tmp/albedo-{os.getuid()}"))
    return [place / route for place in places if len(os.fsencode(place / route)) <= _LONGEST_DIRECTORY]


def names(first: str) -> list[str]:
    """Return the names of all sockets of ours for one host.

    A server limits the sessions on a connection (MaxSessions). When there is no room any more, a person may sign in
    once more, for another connection.

    Args:
        first: that of the first one, what ssh makes of "%C".
    """
    return [first, *(f"{first}-{number}" for number in range(2, _MOST_CONNECTIONS + 1))]


def make_our_directory(route: str = "") -> Path:
    """Return the directory for a new socket of ours, made private if it had to be made.

    Args:
        route: as for `our_directories`.

    Raises:
        AlbedoError: there is none that is ours alone.
    """
    for place in our_directories(route):
        root = place.parent if route else place
        try:
            if root.parent == albedo_home_path():
                albedo_home()
            root.mkdir(mode=0o700, exist_ok=True)
            if is_private(root):
                place.mkdir(mode=0o700, exist_ok=True)
        except (OSError, ConfigError):
            continue
        if is_private(root) and is_private(place):
            return place
    places = " or ".join(map(str, our_directories(route)))
    raise AlbedoError(
        f"There is no private directory for the connection's socket ({places} cannot be made, or others may write "
        "there); set ALBEDO_HOME to a short path."
    )


def is_private(directory: Path) -> bool:
    """Whether a directory is there and nobody else can enter it."""
    try:
        status = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def socket_identity(path: str) -> Identity | None:
    """Return the identity of a control socket, None when there is none or it is another user's."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.getuid():
        return None
    return status.st_ino, status.st_ctime_ns


def is_listened_to(path: str) -> bool:
    """Whether a process listens at a control socket, be it that it takes no notice of who comes; at once."""
    with socket.socket(socket.AF_UNIX) as caller:
        caller.setblocking(False)
        try:
            caller.connect(path)
        except BlockingIOError:
            return True  # so many wait for it already
        except OSError:
            return False
        return True


def listeners(path: str) -> list[int]:
    """Return the processes that listen at a control socket, where the system tells (Linux)."""
    # ssh binds the socket under a longer name and then moves it, which the system takes no note of.
    bound = re.compile(rf"{re.escape(path)}(?:\.\w{{16}})?")
    try:
        lines = [line.split(maxsplit=7) for line in Path("/proc/net/unix").read_text(errors="replace").splitlines()]
    except OSError:
        return []
    sockets = {f"socket:[{line[6]}]" for line in lines if len(line) == 8 and bound.fullmatch(line[7])}
    found = set()
    for link in glob.iglob("/proc/[0-9]*/fd/*"):
        try:
            if os.readlink(link) in sockets:
                found.add(int(link.split("/")[2]))
        except OSError:
            continue  # another account's, or it has ended
    return sorted(found)


def holds_something(directory: Path) -> bool:
    """Whether anything lies in a directory of ours that is private, or in one for a route in it."""
    try:
        with os.scandir(directory) as entries:
            found = any(not entry.is_dir(follow_symlinks=False) or os.listdir(entry.path) for entry in entries)
        return found and is_private(directory)
    except OSError:
        return False
