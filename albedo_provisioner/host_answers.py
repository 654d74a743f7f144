"""Whether a kernel's host answers, for those who are about to ask something of it that would else take long."""

from __future__ import annotations

import time

from .hosts import io_thread
from .kernels.remote import RemoteKernel

RESTART_PATIENCE = 2.0
"""Seconds that a restart waits for a host that has only just been lost, before it is refused."""

ANSWER_PATIENCE = 4.5
"""Seconds that a restart or an end waits for a sign of a host that is not known to be lost. A connection that does not
answer is replaced meanwhile."""

_LATELY = 10.0
"""Seconds for which it need not be asked again."""


class HostAnswers:
    """What is known of one kernel's host: when it was last asked, and when it answered."""

    def __init__(self) -> None:
        self._asked_at = self._answered_at = 0.0

    async def ask(self, kernel: RemoteKernel) -> bool:
        """Say whether the host answers, within some seconds."""
        self._asked_at = time.monotonic()
        patience = RESTART_PATIENCE if kernel.lost else ANSWER_PATIENCE
        answers = await io_thread.run(kernel.answers_within(patience))
        if answers:
            self._answered_at = time.monotonic()
        return answers

    async def know(self, kernel: RemoteKernel) -> None:
        """Ask, unless that was done lately."""
        if not self.asked_in_vain(kernel) and time.monotonic() - self._answered_at >= _LATELY:
            await self.ask(kernel)

    def asked_in_vain(self, kernel: RemoteKernel) -> bool:
        """Whether nothing has come from the host since it was asked, which was not long ago."""
        lately = time.monotonic() - self._asked_at < _LATELY
        return lately and max(self._answered_at, kernel.heard_at) < self._asked_at

    def out_of_reach(self, kernel: RemoteKernel) -> bool:
        """Whether the host is out of reach, or has just not answered, so that waiting for it is of no use."""
        return kernel.lost or self.asked_in_vain(kernel)
