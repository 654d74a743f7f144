"""How a keeper ends its kernel, and then itself: one ladder at a time, whoever asks for the end."""

from __future__ import annotations

import time
from collections.abc import Callable

from .kernel import Kernel
from .ladder import Ladder, Report
from .reception import Reception
from .relatives import Relatives

_GOODBYE = 3.0
"""Seconds that clients are given to take the news of the end."""


class Ending:
    """See the module's head.

    Args:
        kernel: the kernel.
        clients: who is told of the end.
        relatives: what else is known to be the kernel's.
        subreaper: whether the kernel's orphans become our children.

    Attributes:
        finishing: whether there will be no kernel any more.
        over_at: when, by the monotonic clock, the keeper ends at the latest; None before the kernel has been ended
            for good.
    """

    def __init__(self, kernel: Kernel, clients: Reception, relatives: Relatives, subreaper: bool) -> None:
        self.finishing = False
        self.over_at: float | None = None
        self._kernel = kernel
        self._clients = clients
        self._relatives = relatives
        self._subreaper = subreaper
        self._ladder: Ladder | None = None
        self._ladder_at = 0.0
        self._after: list[Callable[[Report], None]] = []

    @property
    def under_way(self) -> bool:
        """Whether the kernel is being ended, or has been for good."""
        return self.over_at is not None or self._ladder is not None

    @property
    def due(self) -> list[float]:
        """When, by the clock, something is to be done."""
        return [*([] if self.over_at is None else [self.over_at]), *([] if self._ladder is None else [self._ladder_at])]

    def stop(self, term_grace: float, then: Callable[[Report], None]) -> None:
        """End the kernel's whole family, then go on with `then`. A second call joins the ending under way.

        Args:
            term_grace: seconds between SIGTERM and SIGKILL.
            then: called with what was ended, and what could not be.
        """
        self._after.append(then)
        if self._ladder is None:
            self._ladder = Ladder(
                [*([self._kernel.process] if self._kernel.process else []), *self._relatives.known],
                own_children=self._subreaper,
                mark=self._kernel.kernel_id,
                term_grace=term_grace,
                reap=self._kernel.reap,
            )
            self._ladder_at = 0.0

    def finish(self, why: str, then: Callable[[Report], None] | None = None, term_grace: float = 2.0) -> None:
        """End the kernel and then the keeper.

        Args:
            why: told to the clients.
            then: as of `stop`.
            term_grace: as of `stop`.
        """
        self.finishing = True

        def ended(report: Report) -> None:
            if then is not None:
                then(report)
            self._clients.tell_all({"event": "ended", "why": why, "report": report.to_dict()})
            self.over_at = time.monotonic() + _GOODBYE

        self.stop(term_grace, ended)

    def serve(self, now: float) -> None:
        """Go on with the ending under way, if it is time to."""
        if self._ladder is None or now < self._ladder_at:
            return
        pause = self._ladder.step(now)
        if pause is not None:
            self._ladder_at = now + pause
            return
        self._kernel.reap()  # so that those who wanted its end are told of it
        self._kernel.tend(now)  # one that is no child of ours tells nobody of it
        report, self._ladder = self._ladder.report, None
        after, self._after = self._after, []
        for then in after:
            then(report)
