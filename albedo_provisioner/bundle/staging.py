"""Taking a set of wheels from a client and unpacking it where kernels of all clients find it (see `wheels.py`).

The client names the wheels with sizes and digests; if the set is not there yet they follow, one behind the other, and
nothing in between. A set appears complete or not at all, and two clients that send the same one both succeed.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import io
import os
import re
import shutil
import signal
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from typing import Any

from .entry import fail, report
from .in_use import LOCK, UNUSED, remove_unused
from .private import is_trusted, set_aside
from .wheels import DIGEST, DIRECTORY, note_path

MOST_BYTES = 256 << 20
"""Bytes that all wheels of a set may have together."""

MOST_UNPACKED = 1 << 30
MOST_FILES = 50_000

_REPORT_EVERY = 1 << 16  # bytes
_BREATH = 1.0  # seconds between signs of life while files are written: there are thousands, and disks are slow
_ABANDONED = 10.0  # seconds after which what is left of a staging without a process is swept away

_LEFT_OUT = (
    "jedi/third_party/typeshed/stubs/",
    "jedi/third_party/typeshed/stdlib/lib2to3/",
    "jedi/third_party/django-stubs/",
)
"""Beginnings of names of files that are left out. With those below they are more than two thirds of all there are, and
making so many is what takes time. Without jedi's, the completion of names in other people's packages goes by the
packages themselves."""

_NOT_RUN = re.compile(r"\.(?:c|cpp|h|hpp|pxd|pxi|pyx)$|^(?:debugpy|ipykernel|psutil|tornado|zmq)/(?:.*/)?tests?/")
"""What is compiled already, and the tests of packages that have none of their users' code among them."""

_TIME_ZONES = "tzdata/zoneinfo/"
"""Taken by programs only where the system has none."""

_SYSTEM_TIME_ZONES = (
    "/usr/share/zoneinfo/UTC",
    "/usr/lib/zoneinfo/UTC",
    "/usr/share/lib/zoneinfo/UTC",
    "/etc/zoneinfo/UTC",
)

_NAME = re.compile(r"[A-Za-z0-9_.+!-]{1,250}\.whl")


def stage(request: dict[str, Any]) -> None:
    """Put a set of wheels here unless it is here, and have this interpreter use it."""
    digest, wheels = _listing(request["wheels"])
    target = os.path.join(DIRECTORY, digest)
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, lambda number, _: sys.exit(128 + number))  # what is half there goes first
    try:
        os.makedirs(DIRECTORY, 0o700, exist_ok=True)
        if os.path.lexists(target) and not is_trusted(target):
            set_aside(target)
        if os.path.isdir(target):
            os.utime(target)  # in use from now on
        else:
            report(need="wheels")
            _sweep(digest)
            _take(wheels, target)
        _note(digest)
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile, zipfile.LargeZipFile) as error:
        fail(
            "staging",
            detail=getattr(error, "strerror", None) or str(error),
            path=getattr(error, "filename", None) or target,
        )
    report(staged=target)


def _listing(wanted: dict[str, Any]) -> tuple[str, list[tuple[str, int, str]]]:
    """Return the digest and the wheels (name, bytes, sha256) of a set that a client names."""
    digest = str(wanted["digest"])
    wheels = [(str(name), int(size), str(sha256)) for name, size, sha256 in wanted["files"]]
    whole = hashlib.sha256("".join(f"{name}\0{sha256}\n" for name, _, sha256 in wheels).encode()).hexdigest()[:16]
    if not DIGEST.fullmatch(digest) or digest != whole:
        fail("staging", detail="the list of wheels does not have the digest it should have", path=DIRECTORY)
    if not all(_NAME.fullmatch(name) and size >= 0 for name, size, _ in wheels):
        fail("staging", detail="the list of wheels names what cannot be one", path=DIRECTORY)
    if sum(size for _, size, _ in wheels) > MOST_BYTES:
        fail("staging", detail=f"the wheels have more than {MOST_BYTES} bytes", path=DIRECTORY)
    return digest, wheels


# -- taking ----------------------------------------------------------------------------------------------------------


def _take(wheels: list[tuple[str, int, str]], target: str) -> None:
    """Receive and unpack all wheels beside `target`, and move them there."""
    fresh = f"{target}.{os.getpid()}.{os.urandom(4).hex()}"
    os.mkdir(fresh, 0o700)
    # Held while we are at it: what nobody holds is left over from somebody who was killed.
    lock = os.open(os.path.join(fresh, LOCK), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        _lock(lock, fcntl.LOCK_EX)
        unpacking, taken, breathe = _Unpacking(fresh), 0, functools.partial(report, taken=0)
        for name, size, sha256 in wheels:
            data = _receive(size, taken)
            taken += size
            if hashlib.sha256(data).hexdigest() != sha256:
                raise ValueError(f"{name} did not arrive as it was sent")
            breathe = functools.partial(report, taken=taken)
            unpacking.add(data, breathe)
        _write_out(fresh, breathe)
        _lock(lock, fcntl.LOCK_SH)
        try:
            os.rename(fresh, target)
        except OSError:
            if not os.path.isdir(target):  # else another client was first, with the same files
                raise
            shutil.rmtree(fresh, ignore_errors=True)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    finally:
        os.close(lock)


def _lock(descriptor: int, kind: int) -> None:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError:
        pass  # a file system without locks: nothing is swept there, since nobody can tell what is in use


def _receive(size: int, before: int) -> bytearray:
    """Take exactly so many bytes, telling the client how many came, the `before` of earlier wheels included."""
    data, told = bytearray(), 0
    while len(data) < size:
        piece = os.read(0, min(size - len(data), 1 << 18))
        if not piece:
            sys.exit(0)  # the client went away
        data += piece
        if len(data) - told >= _REPORT_EVERY or len(data) == size:
            told = len(data)
            report(taken=before + told)
    return data


class _Unpacking:
    """Puts the files of wheels into one directory, as an installer would.

    What belongs elsewhere (scripts, headers, data files) is left out: nothing of it is needed to run a kernel.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._folders = {""}
        self._files = 0
        self._bytes = 0
        self._breathed = time.monotonic()

    def add(self, data: bytes | bytearray, breathe: Callable[[], None] = lambda: None) -> None:
        """Unpack a wheel.

        Args:
            data: the wheel.
            breathe: called every now and then, when it takes long.

        Raises:
            ValueError: it holds a name that leads elsewhere, or too much.
            zipfile.BadZipFile: it is damaged.
            OSError: it cannot be written.
        """
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for member in archive.infolist():
                name = _place(member.filename)
                if name is None:
                    continue
                self._files += 1
                self._bytes += member.file_size
                if self._files > MOST_FILES or self._bytes > MOST_UNPACKED:
                    raise ValueError(f"the wheels hold more than {MOST_FILES} files or {MOST_UNPACKED} bytes")
                self._make_folder(os.path.dirname(name))
                mode = 0o700 if member.external_attr >> 16 & 0o111 else 0o600
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
                file = os.open(os.path.join(self._root, name), flags, mode)
                with os.fdopen(file, "wb") as stream, archive.open(member) as content:
                    shutil.copyfileobj(content, stream, 1 << 20)
                if time.monotonic() - self._breathed > _BREATH:
                    breathe()
                    self._breathed = time.monotonic()

    def _make_folder(self, name: str) -> None:
        if name not in self._folders:
            self._make_folder(os.path.dirname(name))
            os.mkdir(os.path.join(self._root, name), 0o700)
            self._folders.add(name)


def _place(name: str) -> str | None:
    """Return where a file of a wheel goes, relative to the set; None when it is not for there.

    Raises:
        ValueError: it would lead out of the set.
    """
    if name.endswith("/"):
        return None
    parts = name.split("/")
    if "\\" in name or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"a wheel holds a file named {name[:200]!r}")
    if parts[0].endswith(".data"):
        if len(parts) < 3 or parts[1] not in ("purelib", "platlib"):
            return None
        parts = parts[2:]
    place = "/".join(parts)
    return None if place == LOCK or _left_out(place) else place


def _left_out(place: str) -> bool:
    """Whether a file is of no use to a kernel here."""
    if place.startswith(_TIME_ZONES):
        return _has_time_zones()
    return place.startswith(_LEFT_OUT) or _NOT_RUN.search(place) is not None


@functools.cache
def _has_time_zones() -> bool:
    return any(map(os.path.exists, _SYSTEM_TIME_ZONES))


def _write_out(path: str, breathe: Callable[[], None]) -> None:
    """Have all that was written reach the disk before anybody relies on it."""
    failed: list[OSError] = []

    def write_out() -> None:
        try:
            _sync(path)
        except OSError as error:
            failed.append(error)

    # A disk may take its time, and the client must not take that for a broken connection.
    worker = threading.Thread(target=write_out, daemon=True)
    worker.start()
    while worker.is_alive():
        worker.join(_BREATH)
        breathe()
    if failed:
        raise failed[0]


def _sync(path: str) -> None:
    # One call for thousands of files: a call for each takes as long as all the rest.
    try:
        import ctypes

        descriptor = os.open(path, os.O_RDONLY)
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.syncfs(descriptor) != 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code), path)
        finally:
            os.close(descriptor)
    except (ImportError, AttributeError):  # no ctypes, or a C library without it
        os.sync()


def _note(digest: str) -> None:
    """Write down that this interpreter uses a set."""
    path = note_path()
    fresh = f"{path}.{os.getpid()}.{os.urandom(4).hex()}"
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
            file.write(digest)
            file.flush()
            os.fsync(file.fileno())
        os.rename(fresh, path)
    except OSError:
        if os.path.lexists(fresh):
            os.unlink(fresh)
        raise


# -- sweeping --------------------------------------------------------------------------------------------------------


def _sweep(wanted: str) -> None:
    """Remove sets that were not used for long, and what killed stagings left; never what somebody uses."""
    now = time.time()
    for name in os.listdir(DIRECTORY):
        path = os.path.join(DIRECTORY, name)
        digest, _, rest = name.partition(".")
        if not DIGEST.fullmatch(digest) or (digest == wanted and not rest):
            continue
        try:
            if now - os.stat(path).st_mtime > (_ABANDONED if rest else UNUSED):
                remove_unused(path)
        except OSError:
            pass  # somebody else removed it, or it cannot be removed: both are no reason to refuse a kernel
