"""What kernels a host has to offer for a folder: its kernelspecs and its Python environments."""

from __future__ import annotations

import base64
import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..location import Location
from . import io_thread
from .asking import ask
from .check import CheckedLocation

_PNG = b"\x89PNG\r\n\x1a\n"
_ACTIVE_SVG = re.compile(rb"<script|<foreignobject|<!entity|javascript:|\son\w+\s*=", re.IGNORECASE)
_MOST_LOGO = 64 << 10


@dataclass(frozen=True)
class OfferedPython:
    """A Python environment of a host.

    Attributes:
        python: its interpreter's path.
        version: like "3.12.4", or "3.12" where no more is known; None where nothing is.
        ipykernel: the version of ipykernel in it, or None.
        kind: "folder" (it belongs to the folder), "conda", or "login" (the login shell's `python3`).
        name: the environment's name; empty for "login".
    """

    python: str
    version: str | None
    ipykernel: str | None
    kind: str
    name: str


@dataclass(frozen=True)
class OfferedKernelspec:
    """A kernelspec of a host.

    Attributes:
        name: its name.
        kernel: what it is named by in our own kernelspec: the name, or its directory's path off Jupyter's search path.
        directory: where it lies there.
        display_name: what that host's kernel picker shows.
        language: its language.
        interrupt_mode: "signal" or "message".
        debugger: whether its kernel can debug.
        native: it is what an environment's own ipykernel brings along, the same kernel as by its interpreter.
        missing: the program of its command, if that is not there or cannot be run; empty when it can.
        logos: its logos by file name, those that are harmless.
    """

    name: str
    kernel: str
    directory: str
    display_name: str
    language: str
    interrupt_mode: str
    debugger: bool
    native: bool
    missing: str
    logos: Mapping[str, bytes]


@dataclass(frozen=True)
class Offers:
    """All of it.

    Attributes:
        location: the location with its absolute path.
        home: the account's home on the host.
        pythons: the environments: the folder's, the login shell's, conda's.
        kernelspecs: the kernelspecs.
        late: what took too long to be looked at, in words.
        broken: the folder's environments that have no interpreter any more: the directory of each, and why that is so.
        damaged: the kernelspecs that cannot be read: the name (or directory) of each, its directory, and why.
        checked: what a kernel would find with the interpreter that did the looking.
    """

    location: Location
    home: str
    pythons: tuple[OfferedPython, ...]
    kernelspecs: tuple[OfferedKernelspec, ...]
    late: tuple[str, ...]
    broken: tuple[tuple[str, str], ...]
    damaged: tuple[tuple[str, str, str], ...]
    checked: CheckedLocation

    def find_kernelspec(self, name: str) -> OfferedKernelspec | None:
        """Return the kernelspec of a name, or of a directory's path."""
        if "/" not in name:
            return next((spec for spec in self.kernelspecs if spec.kernel == name.lower()), None)
        return next((spec for spec in self.kernelspecs if spec.directory == self._directory(name)), None)

    def why_damaged(self, name: str) -> str | None:
        """Return what is wrong with a kernelspec that cannot be read, and which file that is; None if it is none."""
        for kernel, directory, why in self.damaged:
            if kernel == name.lower() or directory == self._directory(name):
                return f"{directory}/kernel.json: {why}"
        return None

    def _directory(self, name: str) -> str:
        return posixpath.normpath(self.home + name[1:] if name.startswith("~/") else name)


def offers_at(location: Location, python: str | None = None, kernel: str | None = None, provide: bool = True) -> Offers:
    """Ask a host what it has to offer for a folder; blocking.

    Args:
        location: the folder.
        python: the interpreter that does the looking there; None for the login shell's `python3`.
        kernel: a kernelspec that is asked for; by its directory's path it may lie anywhere.
        provide: whether packages that were put there for the interpreter count as what it has, see `check_location`.

    Raises:
        HostError: (a subclass) the host or the folder is not fit; the message says why and what to do.
    """
    request = {"do": "survey", "cwd": location.path, "kernel": kernel, "provide": provide}
    report = io_thread.run_blocking(ask(location.host, request, python))["survey"]
    return Offers(
        Location(location.host, str(report["folder"])),
        str(report["home"]),
        tuple(OfferedPython(**each) for each in report["pythons"]),
        tuple(_kernelspec(each) for each in report["kernelspecs"]),
        tuple(report["late"]),
        tuple((str(each["root"]), str(each["why"])) for each in report["broken"]),
        tuple((str(each["kernel"]), str(each["directory"]), str(each["why"])) for each in report["damaged"]),
        CheckedLocation.from_report(location.host, report["checked"]),
    )


def _kernelspec(report: Mapping[str, Any]) -> OfferedKernelspec:
    shown = {name: "".join(filter(str.isprintable, str(report[name]))) for name in ("display_name", "language")}
    return OfferedKernelspec(**{**report, **shown, "logos": _logos(report["logos"])})


def _logos(encoded: Mapping[str, Any]) -> dict[str, bytes]:
    """Return those logos that are harmless: Jupyter's server hands them to browsers as pages of its own."""
    harmless: dict[str, Callable[[bytes], bool]] = {
        "logo-64x64.png": lambda content: content.startswith(_PNG),
        "logo-svg.svg": lambda content: b"<svg" in content and not _ACTIVE_SVG.search(content),
    }
    found = {name: base64.b64decode(text) for name, text in encoded.items() if name in harmless}
    return {name: content for name, content in found.items() if len(content) <= _MOST_LOGO and harmless[name](content)}
