"""The soak: one kernel, one client, a cut every few seconds; the memory and the descriptors of both ends."""

from __future__ import annotations

import asyncio
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

from .campaign import Campaign, Failure
from .clients import ClientError
from .faults import block_port, cut, kill_bridge, kill_sessions
from .place import Place

_EVERY = 10.0
"""Seconds between measurements."""

_TOLERANCE = 8 << 20
"""Bytes by which the median of the last third may be above that of the second, and the end, with an empty journal,
above the end of the first third. (Not above the very beginning: what the allocator keeps of a full journal stays.)"""

_EMPTY_CELLS = 220
"""Cells without output that fill a keeper's journal, so that it holds nothing of those before (it keeps 200)."""

_GIVEN_BACK = 25.0
"""Seconds in which an idle keeper has given memory back to the system (it does every ten)."""


@dataclass(frozen=True)
class Sample:
    """What the two ends have at a moment: resident bytes and descriptors, the keeper's and the client's."""

    seconds: float
    keeper: int
    keeper_files: int
    client: int
    client_files: int

    def __str__(self) -> str:
        return (
            f"{self.seconds:6.0f} s  keeper {self.keeper / 1e6:6.1f} MB {self.keeper_files:3} descriptors, "
            f"client {self.client / 1e6:6.1f} MB {self.client_files:3} descriptors"
        )


async def soak(seconds: float, seed: str) -> int:
    """Run, print a line every ten seconds and a verdict; return the exit status."""
    place = Place()
    campaign = Campaign(place)
    rng = random.Random(seed)
    samples: list[Sample] = []
    cuts = cells = 0
    problem = ""
    began = time.monotonic()
    try:
        await campaign.ensure_kernel()
        warm: Sample | None = None
        next_sample = began
        while time.monotonic() - began < seconds:
            chosen = await campaign.some_cells(rng, 3)
            ids = await campaign.send_cells(rng, chosen)
            await rng.choice([cut, cut, kill_bridge, kill_sessions, block_port])(campaign, rng)
            await campaign.finish_cells(ids, chosen)
            campaign.place.proxy.heal()
            await campaign.check()
            cuts += 1
            cells += len(ids)
            campaign.notes.clear()
            if warm is None and time.monotonic() - began >= seconds / 3:
                warm = await _measure_empty(campaign, began)
                print(f"{warm}, with an empty journal", flush=True)
            if time.monotonic() >= next_sample:
                samples.append(_measure(campaign, time.monotonic() - began))
                print(samples[-1], flush=True)
                next_sample += _EVERY
        # Most of what a keeper has is the journal. What it has without that must not have grown.
        last = await _measure_empty(campaign, began)
        print(f"{last}, with an empty journal", flush=True)
        left = await campaign.end()
        if left:
            problem = f"left on the host at the end: {left}"
        elif warm is not None and last.keeper - warm.keeper > _TOLERANCE:
            problem = f"it grows: with an empty journal the keeper went from {warm.keeper} to {last.keeper}"
    except (Failure, ClientError, OSError) as error:  # a TimeoutError is an OSError
        problem = f"{type(error).__name__}: {error}"
    finally:
        try:
            await campaign.client.kill()
        finally:  # also when we are told to end
            place.close()
    print(f"{cells} cells under {cuts} faults in {time.monotonic() - began:.0f} s, seed {seed}")
    verdict = problem or _verdict(samples)
    print(verdict)
    return 0 if verdict.startswith("flat") else 1


async def _measure_empty(campaign: Campaign, began: float) -> Sample:
    """Fill the journal with cells that have no output, and measure what the ends have then."""
    for _ in range(_EMPTY_CELLS):
        await campaign.settle()
    campaign.forget()
    campaign.ledger.read()
    await asyncio.sleep(_GIVEN_BACK)  # nothing tells when it has been done
    return _measure(campaign, time.monotonic() - began)


def _measure(campaign: Campaign, seconds: float) -> Sample:
    (keeper,) = campaign.place.keepers()
    client = campaign.client.pid
    return Sample(seconds, _resident(keeper.pid), _files(keeper.pid), _resident(client), _files(client))


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _verdict(samples: list[Sample]) -> str:
    """Compare the second third with the last one; the first is the time to get warm."""
    third = len(samples) // 3
    if third < 3:
        return "flat as far as so few measurements tell"
    found = []
    for name in ("keeper", "keeper_files", "client", "client_files"):
        values = [getattr(sample, name) for sample in samples]
        middle, last = sorted(values[third : 2 * third])[third // 2], sorted(values[-third:])[third // 2]
        most = 2 if name.endswith("files") else _TOLERANCE
        if last - middle > most:
            found.append(f"{name.replace('_', ' ')} went from {middle} to {last}")
    return "it grows: " + "; ".join(found) if found else "flat: neither memory nor descriptors grow once warm"
