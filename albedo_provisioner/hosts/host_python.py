"""An interpreter on a host, as far as it has to be known to choose wheels for it; plain data, no I/O.

What fits is said by the platform compatibility tags of the packaging specifications. The library `packaging` computes
them for the interpreter that it runs in; here it is another one, so they are made from what the host told of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

_TAG = re.compile(r"[A-Za-z0-9_]{1,64}")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")

# Names that some versions of glibc had before wheels named the version itself (PEP 600).
_OLD_MANYLINUX = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}

# Linux distributions for other machines never had an older glibc than this (PEP 600 has these from 2.17 on).
_OLDEST_GLIBC = {"x86_64": 5, "i686": 5}


@dataclass(frozen=True)
class HostPython:
    """An interpreter on a host.

    Attributes:
        python: its path there.
        version: its version, three numbers.
        implementation: "cpython" or another.
        abis: ABIs of extension modules that it loads, as wheels name them, the best first.
        system: its `sys.platform`: "linux" or "darwin" or another.
        machine: "x86_64", "aarch64", ...
        libc: "glibc", "musl" or nothing.
        libc_version: its version, or that of macOS; two numbers.
        markers: the environment for markers (PEP 508).
        own: versions of what is installed for it, by canonical name.
    """

    python: str
    version: tuple[int, int, int]
    implementation: str
    abis: tuple[str, ...]
    system: str
    machine: str
    libc: str
    libc_version: tuple[int, ...]
    markers: dict[str, str]
    own: dict[str, str]

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> HostPython:
        """Return it from what the host says (`bundle/wheels.py`, `facts`).

        Raises:
            ValueError: that is not what a host would say. Some of it ends up on a command line, so it is looked at.
        """
        try:
            major, minor, micro = (int(number) for number in facts["version"])
            found = cls(
                python=str(facts["python"]),
                version=(major, minor, micro),
                implementation=str(facts["implementation"]),
                abis=tuple(str(abi) for abi in facts["abis"]),
                system=str(facts["system"]),
                machine=str(facts["machine"]),
                libc=str(facts["libc"]),
                libc_version=tuple(int(number) for number in facts["libc_version"]),
                markers={str(name): str(value) for name, value in facts["markers"].items()},
                own=dict(_sound(facts["own"])),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it is not said what the interpreter is: {error}") from None
        for text in (found.implementation, *found.abis, found.system, found.machine):
            if not _TAG.fullmatch(text):
                raise ValueError(f"{text!r} cannot be part of a wheel's name")
        return found

    def __str__(self) -> str:
        libc = f", {self.libc} {'.'.join(map(str, self.libc_version))}" if self.libc else ""
        return f"Python {'.'.join(map(str, self.version))} ({self.system} {self.machine}{libc})"

    @property
    def kind(self) -> dict[str, Any]:
        """What decides which wheels fit, as plain JSON."""
        return {
            "version": list(self.version[:2]),
            "implementation": self.implementation,
            "abis": list(self.abis),
            "platforms": self.platforms(),
        }

    def platforms(self) -> list[str]:
        """Return the platforms that wheels may be for, the best first; none when we know of none."""
        if self.implementation != "cpython":
            return []
        if self.system == "darwin" and self.libc_version:
            major, minor = (*self.libc_version, 0)[:2]
            if (major, minor) == (10, 16):  # what macOS 11 and later say to programs that they take for old ones
                major, minor = 11, 0
            return [f"macosx_{major}_{minor}_{self.machine}"]  # pip goes down from there by itself
        if self.system == "linux":
            return [*self._libc_platforms(), f"linux_{self.machine}"]
        return []

    def _libc_platforms(self) -> Iterator[str]:
        if len(self.libc_version) != 2:
            return
        major, newest = self.libc_version[0], min(self.libc_version[1], 200)
        if self.libc == "musl":
            for minor in range(newest, -1, -1):
                yield f"musllinux_{major}_{minor}_{self.machine}"
        elif self.libc == "glibc" and major == 2:
            for minor in range(newest, _OLDEST_GLIBC.get(self.machine, 17) - 1, -1):
                yield f"manylinux_2_{minor}_{self.machine}"
                if minor in _OLD_MANYLINUX:
                    yield f"{_OLD_MANYLINUX[minor]}_{self.machine}"


def _sound(packages: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield names and versions of packages, those that are some."""
    for name, version in packages.items():
        if _NAME.fullmatch(name):
            try:
                yield canonicalize_name(name), str(Version(str(version)))
            except InvalidVersion:
                continue  # a distribution's own idea of a version: no requirement could name it
