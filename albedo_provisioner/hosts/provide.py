"""Putting packages on a host whose interpreter has no ipykernel: choose, fetch, send.

What is sent is unpacked there (`bundle/staging.py`) and goes behind all that the interpreter has of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from ..errors import KernelStartError, PackagesMissingError, UnreachableError
from ..location import Location
from . import io_thread
from .activity import Activity
from .asking import ask
from .host_python import HostPython
from .io_thread import in_thread
from .joint import Joint
from .package_refusals import lacks_packages, mounted_noexec
from .progress import Progress
from .visit import Visit
from .wheels import FetchError, WheelSet, wheel_set

log = logging.getLogger("albedo_provisioner.hosts")

_ATTEMPTS = 6
_PAUSE = 0.2  # seconds after the first broken connection, doubled after each further one

_PIECE = 1 << 17


class _UnderWay:
    """What is being fetched and put on hosts by this process, so that it is done once."""

    def __init__(self) -> None:
        self.fetches: Joint[WheelSet, None] = Joint()
        self.deliveries: Joint[WheelSet, Progress] = Joint()

    @classmethod
    def get(cls) -> _UnderWay:
        """Return that of the running I/O thread."""
        return io_thread.IOThread.get().only(cls)


def provide_at(
    location: Location, python: str | None, without: dict[str, Any], told: Callable[[Progress], None]
) -> WheelSet:
    """Put ipykernel and what it needs on a location's host; blocking.

    Args:
        location: where.
        python: the interpreter, as for a kernel.
        without: what the host said of it, see `CheckedLocation`.
        told: called on the I/O thread as it goes on.

    Raises:
        HostError: as `provide`.
    """
    lacking = lacks_packages(location.host or "this machine", without)
    return io_thread.run_blocking(provide(location.host, python, lacking, told))


async def provide(
    host: str | None, python: str | None, lacking: PackagesMissingError, told: Callable[[Progress], None]
) -> WheelSet:
    """Put ipykernel and what it needs on a host, for an interpreter that lacks it; on the I/O thread.

    Who asks for the same at the same time shares the work.

    Args:
        host: `[user@]host` as the user spells it; None for this machine.
        python: the interpreter, as for a kernel.
        lacking: the refusal that made it necessary.
        told: called as it goes on.

    Returns:
        what was put there.

    Raises:
        PackagesMissingError: the packages can neither be fetched nor are they kept here, or would be of no use there.
        HostError: the host cannot be reached, or cannot take them.
    """
    try:
        facts = HostPython.from_facts(lacking.report["facts"])
    except (KeyError, ValueError) as error:
        raise KernelStartError(lacking.host, f"{lacking.host} answered what we do not understand: {error}.") from None

    if lacking.report.get("noexec"):
        raise mounted_noexec(lacking.host, lacking.report)

    async def work(tell: Callable[[Progress], None]) -> WheelSet:
        activity, token = Activity.get(), object()

        def going_on(progress: Progress) -> None:
            activity.enter(lacking.host, token, "staging", progress)
            tell(progress)

        try:
            return await _provide(host, python, facts, lacking, going_on)
        finally:
            activity.leave(lacking.host, token)

    return await _UnderWay.get().deliveries.do((host, python, facts.python), work, told)


async def _provide(
    host: str | None,
    python: str | None,
    facts: HostPython,
    lacking: PackagesMissingError,
    tell: Callable[[Progress], None],
) -> WheelSet:
    tell(Progress(0, None))
    try:
        wheels, contents = await _wheels(facts)
    except FetchError as error:
        raise lacks_packages(lacking.host, lacking.report, str(error).rstrip(".")) from None
    for attempt in range(_ATTEMPTS):
        try:
            await _send(host, python, wheels, contents, tell)
            break
        except UnreachableError as error:
            if attempt == _ATTEMPTS - 1:
                raise
            log.info("%s: %s Sending the packages again.", lacking.host, error)
            await asyncio.sleep(_PAUSE * 2**attempt)
    log.info("%s: %d packages for %s are there (%.1f MB)", lacking.host, len(wheels.wheels), facts, wheels.size / 1e6)
    return wheels


async def _wheels(facts: HostPython) -> tuple[WheelSet, list[bytes]]:
    """Return the set for an interpreter, and its content."""

    async def fetch(_: Callable[[None], None]) -> WheelSet:
        return await wheel_set(facts)

    key = (repr(facts.kind), repr(sorted(facts.own.items())))
    for _ in range(2):
        wheels = await _UnderWay.get().fetches.do(key, fetch)
        contents = await in_thread(wheels.read)
        if contents is not None:
            return wheels, contents
        # Damaged, or replaced by a newer one at this moment; it must not be found again.
        await in_thread(wheels.remove)
    raise FetchError(f"the packages kept in {wheels.directory} on this machine are damaged")


async def _send(
    host: str | None,
    python: str | None,
    wheels: WheelSet,
    contents: list[bytes],
    tell: Callable[[Progress], None],
) -> None:
    request = {"do": "stage", "wheels": {"digest": wheels.digest, "files": wheels.wheels}}
    tell(Progress(0, wheels.size))
    await ask(host, request, python, _Wheels(contents, wheels.size, tell))


class _Wheels:
    """The contents of wheels on their way; a `Parcel`."""

    step = "staging"

    def __init__(self, contents: list[bytes], size: int, tell: Callable[[Progress], None]) -> None:
        self._pieces = (
            memoryview(content)[start : start + _PIECE]
            for content in contents
            for start in range(0, len(content), _PIECE)
        )
        self._size = size
        self._tell = tell
        self._visit: Visit | None = None  # once they were asked for
        self._paused = False

    def heard(self, visit: Visit, report: dict[str, Any]) -> bool:
        """Send when asked to, and tell how far it is."""
        if report.get("need") == "wheels":
            self._visit = visit
            self._go_on()
        elif "taken" in report:
            self._tell(Progress(int(report["taken"]), self._size))
        else:
            return False
        return True

    def writable(self, yes: bool) -> None:
        """Pause, or go on."""
        self._paused = not yes
        self._go_on()

    def _go_on(self) -> None:
        while self._visit is not None and not self._paused:
            piece = next(self._pieces, None)
            if piece is None:
                return
            self._visit.write(piece)
