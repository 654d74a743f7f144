"""Looking at a location before anything is set up for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ..bundle.wire import Frame, FrameReader, ProtocolError
from ..errors import HostError, KernelStartError
from ..location import Location
from . import io_thread
from .activity import Activity
from .pool import HostPool
from .progress import Progress
from .refusals import refused
from .transport import Exit
from .visit import Visit

ANSWER_TIMEOUT = 30.0
"""Seconds for an answer once a command runs on the host, a slow login profile included."""


@dataclass(frozen=True)
class CheckedLocation:
    """What a kernel at a location would find.

    Attributes:
        location: the location with its absolute path.
        home: the account's home on the host.
        python: path of the interpreter there.
        python_version: its version, like "3.12.4".
        ipykernel_version: the version of ipykernel that it has or was given, or None.
        warning: what would threaten a kernel there, in words that follow the host's name; None for nothing.
        without: what the host says of the interpreter when it lacks packages (`without` in `bundle/entry.py`).
    """

    location: Location
    home: str
    python: str
    python_version: str
    ipykernel_version: str | None
    without: dict[str, Any] | None
    warning: str | None = None

    @classmethod
    def from_report(cls, host: str | None, found: dict[str, Any]) -> CheckedLocation:
        """Take what a host says (`checked` in `bundle/entry.py`)."""
        return cls(
            Location(host, found["folder"]),
            found["home"],
            found["python"],
            found["python_version"],
            found["ipykernel_version"],
            found["without"],
            found["warning"],
        )

    def for_keeper(self) -> CheckedLocation:
        """Return the same for a kernel that is another program's: of the interpreter only pyzmq is needed then."""
        lacks = self.without is not None and "zmq" in self.without["lacking"]
        return replace(self, without={**self.without, "lacking": ["zmq"]} if self.without and lacks else None)


def check_location(
    location: Location, python: str | None = None, needs: Sequence[str] = ("ipykernel", "zmq")
) -> CheckedLocation:
    """Go to a location's host and see whether a kernel could start there; blocking.

    Args:
        location: where.
        python: the interpreter to use there; None for the login shell's `python3`.
        needs: packages that it must have.

    Raises:
        HostError: (a subclass) the host, the folder or the interpreter is not fit; the message says why and what to do.
    """
    return io_thread.run_blocking(_check(location, python, needs))


async def _check(location: Location, python: str | None, needs: Sequence[str]) -> CheckedLocation:
    report = await ask(location.host, {"do": "check", "cwd": location.path, "needs": list(needs)}, python)
    return CheckedLocation.from_report(location.host, report["checked"])


class Parcel(Protocol):
    """Something that goes with a request, once the host asks for it, or that comes in pieces before the answer.

    Attributes:
        step: what is going on meanwhile, for `Activity`.
    """

    step: str

    def heard(self, visit: Visit, report: dict[str, Any]) -> bool:
        """Take what the host says on the way to its answer; False for what is the answer."""

    def writable(self, yes: bool) -> None:
        """Pause sending, or go on."""


async def ask(
    host: str | None, request: dict[str, Any], python: str | None = None, parcel: Parcel | None = None
) -> dict[str, Any]:
    """Have a host answer a request that needs no keeper; on the I/O thread.

    Raises:
        AlbedoError: as `check_location`.
    """
    answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
    reader = FrameReader()

    def received(data: bytes) -> None:
        try:
            frames = [frame.json() for frame in reader.feed(data) if isinstance(frame, Frame)]
        except ProtocolError as error:
            visit.close()
            if not answer.done():
                answer.set_exception(
                    KernelStartError(visit.host, f"{visit.host} answered what we do not understand: {error}.")
                )
            return
        for report in frames:
            if report.get("need") == "bundle":
                activity.enter(visit.host, visit, "staging", Progress(0, visit.send_bundle(), packages=False))
            elif parcel is not None and parcel.heard(visit, report):
                visit.goes_on()
            elif not answer.done():
                answer.set_result(report)

    def closed(_: Exit, error: HostError) -> None:
        if not answer.done():
            answer.set_exception(error)

    visit = Visit(
        HostPool.get().transport_for(host),
        request,
        python,
        received=received,
        closed=closed,
        writable=parcel.writable if parcel is not None else lambda _: None,
    )
    activity = Activity.get()
    activity.enter(visit.host, visit, "connecting")
    try:
        await visit.open()
        activity.enter(visit.host, visit, "asking" if parcel is None else parcel.step)
        report = await visit.wait_for(answer, ANSWER_TIMEOUT)
        if report.get("error") == "elsewhere":
            visit.retire()  # the next connection may lead to the right machine
    except TimeoutError:
        if parcel is not None:
            visit.suspect()  # the host was answering until then
        raise visit.took_too_long(ANSWER_TIMEOUT) from None
    finally:
        visit.close()
        activity.leave(visit.host, visit)
    if "error" in report:
        raise refused(visit.host, report, python)
    return report
