"""Sets of wheels for interpreters on hosts: ipykernel and all it needs, fetched once and kept.

They are kept under `wheels/` in `albedo_home()`, one directory a set. A set fits an interpreter when it was fetched for
one of the same kind that has the same versions of the packages in it, or none of them, as its own.
"""

from __future__ import annotations

import asyncio
import email.parser
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from ..bundle.private import is_trusted
from ..errors import AlbedoError
from ..home import albedo_home
from .host_python import HostPython
from .io_thread import in_thread
from .missing_wheels import index_is_left_out, missing_wheels
from .pip import PipError, download

log = logging.getLogger("albedo_provisioner.hosts")

ROOT_REQUIREMENT = "ipykernel>=6"
"""An old one is better than none where the host's own packages allow no other."""

FETCH_TIMEOUT = 300.0
"""Seconds that fetching a set may take."""

FRESH = 30 * 86400.0
"""Seconds after which a set is fetched anew, if that is possible, when it is wanted again."""

TRIAL_TIMEOUT = 12.0
"""Seconds after which it stays unknown whether a set could be fetched."""

_ROUNDS = 6
_LISTING = "set.json"
_NO_INDEX = "pip is told to ask no package index"
_NEW = ".new-"


class FetchError(AlbedoError):
    """Wheels could not be fetched; the text says why, to follow a colon."""


@dataclass(frozen=True)
class WheelSet:
    """Some wheels on this machine's disk.

    Attributes:
        directory: where they lie.
        wheels: their file names, sizes in bytes and digests (sha256, hexadecimal).
    """

    directory: Path
    wheels: tuple[tuple[str, int, str], ...]

    @property
    def digest(self) -> str:
        """16 hexadecimal digits over all of it: the name of the unpacked set on a host."""
        return hashlib.sha256("".join(f"{name}\0{sha}\n" for name, _, sha in self.wheels).encode()).hexdigest()[:16]

    @property
    def size(self) -> int:
        """Bytes of all the wheels."""
        return sum(size for _, size, _ in self.wheels)

    @property
    def names(self) -> list[str]:
        """The packages, by canonical name."""
        return [_package(name) for name, _, _ in self.wheels]

    def read(self) -> list[bytes] | None:
        """Return the contents of the wheels; None when they are not what they were any more. Blocking."""
        contents = []
        for name, _, sha256 in self.wheels:
            try:
                content = (self.directory / name).read_bytes()
            except OSError:
                return None
            if hashlib.sha256(content).hexdigest() != sha256:
                return None
            contents.append(content)
        return contents

    def remove(self) -> None:
        """Give the set up: it is not what it was. Blocking."""
        shutil.rmtree(self.directory, ignore_errors=True)


async def wheel_set(python: HostPython) -> WheelSet:
    """Return the set for an interpreter, from what is kept or from the package index.

    Raises:
        FetchError: it is neither kept here nor can it be fetched.
        ConfigError: our directory cannot be made.
    """
    if not python.platforms():
        raise FetchError(f"which packages fit {python} is not known")
    root = await in_thread(_root)
    kept, fresh = await in_thread(_find, root, python)
    if kept is not None and fresh:
        return kept
    try:
        return await _fetch(root, python)
    except FetchError as error:
        if kept is None:
            raise
        log.info("An older set of packages is used for %s: %s", python, error)
        return kept


def kept_set(python: HostPython) -> WheelSet | None:
    """Return the set for an interpreter if one is kept here, of any age; nothing is fetched. Blocking.

    Raises:
        FetchError: our directory cannot be made.
        ConfigError: as `wheel_set`.
    """
    return _find(_root(), python)[0]


async def trial(python: HostPython) -> str | None:
    """Find out whether a set for an interpreter could be fetched, by two of its packages, which are not kept.

    Returns:
        why not, to follow a colon; empty when it could, None when that was not known in time.

    Raises:
        FetchError: our directory cannot be made.
        ConfigError: as `wheel_set`.
    """
    work = Path(tempfile.mkdtemp(prefix=_NEW, dir=await in_thread(_root)))
    try:
        async with asyncio.timeout(TRIAL_TIMEOUT):
            if await in_thread(index_is_left_out):
                names = await in_thread(missing_wheels, python)
                return f"{_NO_INDEX}, and wheels are missing of {', '.join(names)}" if names else ""
            await download([ROOT_REQUIREMENT, "pyzmq"], python, work, alone=True)
            return ""
    except TimeoutError:
        return None
    except PipError as error:
        return await _why_not(error, python)
    finally:
        await in_thread(lambda: shutil.rmtree(work, ignore_errors=True))


# -- kept ------------------------------------------------------------------------------------------------------------


def _root() -> Path:
    root = albedo_home() / "wheels"
    try:
        if os.path.lexists(root) and not is_trusted(str(root), link=True):
            # Others could have put packages there, which would be run on hosts.
            root.unlink() if root.is_symlink() else shutil.rmtree(root)
        root.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise FetchError(f"{root} on this machine cannot be made ({error.strerror})") from None
    return root


def _find(root: Path, python: HostPython) -> tuple[WheelSet | None, bool]:
    """Return the newest set that fits and only we can change, and whether it is new enough to be taken as it is."""
    best, newest = None, 0.0
    for directory in root.iterdir():
        if not is_trusted(str(directory)):
            continue
        try:
            listing = json.loads((directory / _LISTING).read_text())
            found = WheelSet(directory, tuple((str(n), int(size), str(sha)) for n, size, sha in listing["wheels"]))
            fetched = float(listing["fetched"])
            fits = listing["kind"] == python.kind and listing["own"] == _own(found, python)
        except (OSError, ValueError, KeyError, TypeError):
            continue  # half made, half removed, or of another version of ours
        if fits and fetched > newest and all((directory / name).is_file() for name in (n for n, _, _ in found.wheels)):
            best, newest = found, fetched
    return best, time.time() - newest < FRESH


def _own(wheels: WheelSet, python: HostPython) -> dict[str, str]:
    """Return the versions of an interpreter's own packages that come before those of a set."""
    return {name: python.own[name] for name in wheels.names if name in python.own}


def _keep(root: Path, python: HostPython, paths: Iterable[Path]) -> WheelSet:
    """Put wheels into a set of their own."""
    listed = tuple(
        (path.name, path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(paths, key=lambda path: path.name)
    )
    fresh = Path(tempfile.mkdtemp(prefix=_NEW, dir=root))  # 0700
    wheels = WheelSet(fresh, listed)
    listing = {"kind": python.kind, "own": _own(wheels, python), "wheels": listed}
    name = hashlib.sha256(json.dumps(listing, sort_keys=True).encode()).hexdigest()[:16]
    for path in paths:
        path.rename(fresh / path.name)
    (fresh / _LISTING).write_text(json.dumps({**listing, "fetched": time.time()}))
    target = root / name
    try:
        if target.exists():  # an older one with the same wheels, or of another process at this moment
            target.rename(root / f"{_NEW}{name}-{os.urandom(4).hex()}")
        fresh.rename(target)
    except OSError:
        if not (target / _LISTING).is_file():
            raise
        shutil.rmtree(fresh, ignore_errors=True)
    _tidy(root)
    return WheelSet(target, listed)


def _tidy(root: Path) -> None:
    """Remove what nobody will use: leftovers of a day ago, and sets that were not fetched for long."""
    for directory in root.iterdir():
        limit = 86400.0 if directory.name.startswith(_NEW) else 6 * FRESH
        try:
            if time.time() - directory.stat().st_mtime > limit:
                shutil.rmtree(directory)
        except OSError:
            pass  # somebody else did, or may: it is only about space


# -- fetching --------------------------------------------------------------------------------------------------------


async def _fetch(root: Path, python: HostPython) -> WheelSet:
    began = time.monotonic()
    try:
        work = Path(await in_thread(lambda: tempfile.mkdtemp(prefix=_NEW, dir=root)))
        try:
            async with asyncio.timeout(FETCH_TIMEOUT):
                paths = await _resolve(python, work)
            found = await in_thread(_keep, root, python, paths)
        finally:
            await in_thread(lambda: shutil.rmtree(work, ignore_errors=True))
    except TimeoutError:
        raise FetchError(f"fetching them took longer than {FETCH_TIMEOUT:g} s") from None
    except PipError as error:
        raise FetchError(await _why_not(error, python)) from None
    except (OSError, zipfile.BadZipFile) as error:
        raise FetchError(f"{root} on this machine: {getattr(error, 'strerror', None) or error}") from None
    log.info(
        "%d packages (%.1f MB) for %s were fetched in %.1f s",
        *(len(found.wheels), found.size / 1e6, python, time.monotonic() - began),
    )
    return found


async def _why_not(error: PipError, python: HostPython) -> str:
    """Return why pip could not fetch something: without an index, all that is missing, and not what was first."""
    if not error.offline and not await in_thread(index_is_left_out):
        return str(error)
    names = await in_thread(missing_wheels, python)
    if not names:
        return str(error)  # it is about versions, then
    cause = "the package index cannot be reached" if error.offline else _NO_INDEX
    return f"{cause}, and wheels are missing of {', '.join(names)}"


async def _resolve(python: HostPython, work: Path) -> list[Path]:
    """Fetch a set into a directory: one that goes with the interpreter's own packages, if there is such a one."""
    if python.own:
        constraints = work / "constraints.txt"
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in sorted(python.own.items())))
        try:
            return await _resolve_with(python, work / "constrained", constraints)
        except PipError as error:
            if error.offline:
                raise
            why = error
        paths = await _resolve_with(python, work / "free", None)
        log.warning("No packages go with those that %s has of its own (%s); newer ones are taken", python.python, why)
        return paths
    return await _resolve_with(python, work / "free", None)


async def _resolve_with(python: HostPython, directory: Path, constraints: Path | None) -> list[Path]:
    """Fetch a set that is whole for the other interpreter, whatever this one is (see `download`)."""
    requirements = [ROOT_REQUIREMENT]
    for number in range(_ROUNDS):
        target = directory / str(number)
        target.mkdir(mode=0o700, parents=True)
        await download(requirements, python, target, constraints)
        paths, missing = await in_thread(_needed, target, python)
        if not missing:
            return paths
        requirements += sorted(missing)
    raise PipError(f"what {', '.join(requirements)} require has no end")


def _needed(directory: Path, python: HostPython) -> tuple[list[Path], set[str]]:
    """Return those wheels in a directory that the interpreter needs, and what it needs and is not there."""
    wheels = {_package(path.name): path for path in directory.glob("*.whl")}
    needed: dict[tuple[str, str], None] = {}
    missing: set[str] = set()
    waiting = [Requirement(ROOT_REQUIREMENT)]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        if name not in wheels:
            wanted.marker = None
            missing.add(str(wanted))
            continue
        for extra in ("", *wanted.extras):
            if (name, extra) not in needed:
                needed[name, extra] = None
                waiting += _requirements(wheels[name], extra, python)
    return [wheels[name] for name in {name for name, _ in needed}], missing


def _requirements(wheel: Path, extra: str, python: HostPython) -> list[Requirement]:
    """Return what a wheel requires for an interpreter."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.parser.BytesHeaderParser().parsebytes(archive.read(name))
    found = []
    for text in metadata.get_all("Requires-Dist", []):
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue  # pip has taken it or left it
        marker = requirement.marker
        if marker is None or marker.evaluate({**python.markers, "extra": extra}):
            found.append(requirement)
    return found


def _package(wheel: str) -> str:
    try:
        return parse_wheel_filename(wheel)[0]
    except InvalidWheelFilename as error:
        raise ValueError(str(error)) from None
