"""What kernel to start, and where: plain data, which can be put on record and taken up by another process."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from ..location import Location

ARGV = ("{python}", "{launcher}", "-f", "{connection_file}")
"""The Python kernel; the words in braces are filled in on the host (`bundle/spawn.py`)."""

NEEDS = ("ipykernel",)
"""Packages that its interpreter must have."""


@dataclass(frozen=True)
class KernelRequest:
    """What kernel to start, and where.

    Attributes:
        location: the folder it runs in.
        key: the key that it and its clients sign messages with.
        signature_scheme: and how.
        python: interpreter on the host, a path or a name; None for the login shell's `python3`.
        env: variables to add to the host's login environment; `$NAME` stands for a variable of that environment.
        arguments: words to add to the kernel's command line.
        kernel_name: the kernelspec's name, for the kernel's connection file.
        grace: seconds to keep it, idle, with no client; None for the keeper's default (a day).
        hold: bytes the keeper holds for a client that is away; None for its default (64 MiB).
        notebook: path of the notebook that it is for, if any; a later client finds it by this.
        journal_cells: how many of the newest cells the keeper's journal keeps; None for its default (200).
        journal_bytes: bytes that they may have altogether; None for its default (32 MiB).
        provide: whether ipykernel is put on a host whose interpreter has none.
        kernel: a kernelspec of the host, its name or its directory's path; None for the Python kernel of `python`.
    """

    location: Location
    key: bytes
    signature_scheme: str = "hmac-sha256"
    python: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    kernel_name: str = ""
    grace: float | None = None
    hold: int | None = None
    notebook: str = ""
    journal_cells: int | None = None
    journal_bytes: int | None = None
    provide: bool = True
    kernel: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON, the key included."""
        return {
            **dataclasses.asdict(self),
            "location": str(self.location),
            "key": self.key.decode(),
            "arguments": list(self.arguments),
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> KernelRequest:
        """Return what `to_dict` was made from."""
        return cls(
            **{
                **content,
                "location": Location.parse(content["location"]),
                "key": content["key"].encode(),
                "arguments": tuple(content["arguments"]),
            }
        )

    @property
    def needs(self) -> tuple[str, ...]:
        """Packages that `python` must have, beside what the keeper needs itself."""
        return NEEDS if self.kernel is None else ()

    def for_host(self) -> dict[str, Any]:
        """Return what the host is told about the kernel itself."""
        if self.kernel is None:
            what: dict[str, Any] = {"argv": [*ARGV, *self.arguments]}
        else:
            what = {"kernelspec": self.kernel, "arguments": list(self.arguments)}
        return {
            **what,
            "cwd": self.location.path,
            "env": self.env,
            "key": self.key.decode(),
            "signature_scheme": self.signature_scheme,
            "kernel_name": self.kernel_name,
        }
