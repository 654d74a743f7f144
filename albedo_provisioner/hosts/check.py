"""Looking at a location before anything is set up for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..location import Location
from . import io_thread
from .asking import ask
from .package_refusals import cannot_import
from .refusals import few_files


@dataclass(frozen=True)
class CheckedLocation:
    """What a kernel at a location would find.

    Attributes:
        location: the location with its absolute path.
        home: the account's home on the host.
        python: path of the interpreter there.
        python_version: its version, like "3.12.4".
        ipykernel_version: the version of ipykernel that it has or was given, or None.
        few_files: how many files a process may open there, where a Python kernel needs more; else None.
        pip: whether pip may install into that interpreter.
        broken: why ipykernel and pyzmq, which it has, cannot be imported there; None when they can.
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
    few_files: int | None = None
    pip: bool = False
    broken: str | None = None

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
            found["few_files"],
            found["pip"],
            found["broken"],
        )

    def for_keeper(self) -> CheckedLocation:
        """Return the same for a kernel that is another program's: of the interpreter only pyzmq is needed then."""
        lacks = self.without is not None and "zmq" in self.without["lacking"]
        lacking = {**self.without, "lacking": ["zmq"]} if self.without and lacks else None
        return replace(self, without=lacking, few_files=None, broken=None)  # what others take is not known

    def must_do(self) -> None:
        """See that a Python kernel would get to its first cell there.

        Raises:
            KernelStartError: it would not, and why.
        """
        if self.few_files is not None:
            raise few_files(self.location.host or "this machine", self.few_files)
        if self.broken is not None:
            raise cannot_import(self.location.host or "this machine", self.python, self.broken, self.pip)


def check_location(
    location: Location,
    python: str | None = None,
    needs: Sequence[str] = ("ipykernel", "zmq"),
    provide: bool = True,
) -> CheckedLocation:
    """Go to a location's host and see whether a kernel could start there; blocking.

    Args:
        location: where.
        python: the interpreter to use there; None for the login shell's `python3`.
        needs: packages that it must have.
        provide: whether those count that were put there for it.

    Raises:
        HostError: (a subclass) the host, the folder or the interpreter is not fit; the message says why and what to do.
    """
    return io_thread.run_blocking(_check(location, python, needs, provide))


async def _check(location: Location, python: str | None, needs: Sequence[str], provide: bool) -> CheckedLocation:
    request = {"do": "check", "cwd": location.path, "needs": list(needs), "provide": provide}
    report = await ask(location.host, request, python)
    return CheckedLocation.from_report(location.host, report["checked"])
