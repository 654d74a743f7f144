"""How far what a host is given is on its way; plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """How far something is on its way to a host.

    Attributes:
        done: bytes that the host has.
        all: bytes that it is to have; None while they are still being fetched.
        packages: whether it is the packages that a kernel needs; else it is our own files, which are few.
    """

    done: int
    all: int | None
    packages: bool = True

    @property
    def quarter(self) -> int:
        """How many quarters of the way are done."""
        return 4 * self.done // self.all if self.all else 0

    def __str__(self) -> str:
        if self.all is None:
            return "fetching ipykernel and what it needs"
        if not self.packages:
            return f"copying {self.all / 1e3:.0f} kB of our own files"
        return f"{self.done / 1e6:.1f} of {self.all / 1e6:.1f} MB of packages are there"
