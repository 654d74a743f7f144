"""What a link tells whoever has it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

from ..errors import AlbedoError, KernelGoneError


class LinkOwner(Protocol):
    """What a link tells its owner, on the I/O thread's loop."""

    def received(self, channel: int, parts: list[memoryview]) -> None:
        """Take a message of a Jupyter channel, or a NOTE."""

    def greeted(self, hello: dict[str, Any]) -> None:
        """Take what the keeper says at the beginning of each connection."""

    def told(self, event: dict[str, Any]) -> None:
        """Take what the keeper says unasked."""

    def stepped(self, step: str, size: int = 0) -> None:
        """Take the step that the link is in: connecting, staging, starting, attached, reattaching, ended; and how many
        bytes of our files are copied in it.
        """

    def let_in(self) -> None:
        """Note that the host has let us in; what was asked of it there may take its time."""

    def forgotten(self, unsent: Collection[str]) -> None:
        """Note that messages may be missing: the keeper did not know the link any more, and it begins anew.

        Args:
            unsent: ids of the requests on shell that had not gone out; they do now.
        """

    def refused(self, error: AlbedoError) -> None:
        """Note that an attempt to reach the keeper again was refused, for a reason that only a person can mend: a
        sign-in, a full disk, a config. The link goes on trying.
        """

    def gone(self, error: KernelGoneError) -> None:
        """Note that the host answered and has no keeper for this kernel. The link has ended."""

    def replaced(self, why: str) -> None:
        """Note that a newer process uses this link: `why` says so. The kernel lives, and the link has ended for us."""
