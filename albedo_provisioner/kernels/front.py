"""What stands in front of a kernel on this side: sockets for Jupyter's clients, or a program in this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Protocol

from ..bundle.wire import Buffer

Send = Callable[[int, Sequence[Buffer]], None]


REPLY_LOST = (
    "What came of this is not known, because the kernel's keeper was killed meanwhile: it may have run, in part or to "
    "its end, or not at all. The kernel itself lives and has its state."
)
"""What is told of a request whose reply will not come."""


class Front(Protocol):
    """Takes what a kernel says. Used on the I/O thread's loop."""

    alive: bool
    """Whether the kernel is not known to be dead."""

    greeting: str | None
    """A line for the next cell that is run, on its stderr."""

    was_busy: bool
    """Whether the kernel ran a cell of somebody else's when we came, and has answered nothing on shell since."""

    @property
    def running(self) -> list[dict[str, Any]]:
        """The headers of the execute requests that have no reply yet, oldest first."""

    def deliver(self, channel: int, parts: Sequence[Buffer]) -> None:
        """Take a message of the kernel."""

    def tell(self, parent: dict[str, Any], text: str) -> None:
        """Take a line for stderr of a cell; `parent` is the header of the cell's request."""

    def probe(self, spare: Collection[str]) -> None:
        """Replies may have been lost: find out which of them will never come, and give up on those.

        Args:
            spare: ids of the requests that the kernel is only going to be asked.
        """

    def give_up(self, why: str | None, only: set[str] | None = None) -> list[str]:
        """There will be no more replies: have nobody wait for one.

        Args:
            why: what the running cells are told; None tells them nothing.
            only: ids of the requests to give up; None for all.

        Returns:
            the ids of the requests whose askers were told.
        """

    def end(self, why: str, wanted: bool, only: set[str] | None = None) -> list[str]:
        """The kernel has ended: have nobody wait for what it was asked.

        Args:
            why: what the cells are told that have no reply.
            wanted: whether its end was asked for from here, by one of those who are in front of it.
            only: ids of the requests that ended with it; None for all.

        Returns:
            the ids of the requests whose askers were told.
        """

    def was_interrupted(self, message_ids: Collection[str]) -> None:
        """Take note that these cells were interrupted: one that the kernel was done with need not have been run to its
        end, then.
        """

    def refuse_end(self, session: str) -> None:
        """A client was told that the kernel does not end: what it has asked for until now must not reach the kernel.

        Args:
            session: the id of its session, by which its messages are known.
        """

    def connection_info(self) -> dict[str, Any]:
        """Return what Jupyter's clients need to connect.

        Raises:
            AlbedoError: they cannot connect to this one.
        """

    def close(self) -> None:
        """Take nothing more."""


FrontMaker = Callable[[bytes, str, Send, Callable[[], Awaitable[bool]], Callable[[bool], None]], Front]
"""Makes a front from the key and the signature scheme of the kernel's messages, and from three functions: one to send a
message to the kernel, one that says whether its host answers, and one to have messages wait (True) or come."""
