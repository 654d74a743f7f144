"""Jump hosts that are reached through themselves, as an ssh config may have it without ssh noticing."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from ..errors import ConfigError, UnreachableError
from .destination import Destination
from .openssh_config import resolve
from .ssh_config import JUMPS_IN_A_CIRCLE, no_jump

_MOST_JUMPS = 16
"""Jump hosts in a row that are looked at."""


class JumpLoopError(Exception):
    """The first jump host of a host, or of such a jump host, is reached through itself.

    Not a `HostError` on its way up: each jump host would put words of its own around it. No `ConfigError` either:
    `ssh -G` finds nothing wrong, and ssh itself would start one process after another.

    Args:
        led: the host, and the first jump hosts found from there, in order.
        hop: the next one, which is among them.
    """

    def __init__(self, led: tuple[Destination, ...], hop: Destination) -> None:
        names = [each.host for each in (*led, hop)]
        super().__init__(", ".join(f"{one} through {other}" for one, other in pairwise(names)))
        self.hop = hop.host

    def told(self, host: str) -> UnreachableError:
        """Return the error for the caller who wants to reach this host."""
        cause = f"{JUMPS_IN_A_CIRCLE} ({self})"
        return UnreachableError(host, f"{host} cannot be reached: {cause}. {no_jump(self.hop)}", cause)


async def find_loop(host: str) -> JumpLoopError | None:
    """Return where the first jump hosts of a host lead in a circle, by ssh's own word; None where they do not.

    Args:
        host: `[user@]host` as the user spells it.
    """
    name = host
    led: tuple[Destination, ...] = (Destination.parse(host),)
    while len(led) <= _MOST_JUMPS:
        try:
            resolved = await asyncio.to_thread(resolve, name)
            if not resolved.is_on("proxyjump"):
                return None
            name = resolved.get("proxyjump").split(",")[0].strip()
            hop = Destination.parse(name)
        except ConfigError:
            return None  # ssh says so itself, wherever it gets to
        if hop in led:
            return JumpLoopError(led, hop)
        led = (*led, hop)
    return None
