"""Playing many rounds, and reporting on each so that it can be replayed."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence

from .campaign import Campaign, Failure
from .clients import ClientError
from .place import Place
from .rounds import ROUNDS

ROUND_TIMEOUT = 150.0


async def run(
    rounds: int,
    seed: str,
    only: Sequence[str] | None = None,
    *,
    first: int = 1,
    keep_going: bool = False,
    seconds: float | None = None,
) -> list[str]:
    """Play rounds and return what failed, in words.

    Args:
        rounds: how many.
        seed: what each round's random numbers depend on, together with its own number.
        only: names of faults; None for all.
        first: the first round's number.
        keep_going: go on after a failure, in a fresh place.
        seconds: begin no further round after so many.
    """
    began = time.monotonic()
    failures: list[str] = []
    played: Counter[str] = Counter()
    number = first
    while number < first + rounds:
        place = Place()
        campaign = Campaign(place)
        names = _names(place, only)
        broken = False
        try:
            while number < first + rounds and not broken:
                if seconds is not None and time.monotonic() - began > seconds:
                    rounds = 0
                    break
                rng = random.Random(f"{seed}/{number}")
                name = rng.choices(names, [ROUNDS[name][1] for name in names])[0]
                at = time.monotonic()
                problem = await _play(campaign, name, rng)
                took = time.monotonic() - at
                notes = "; ".join(campaign.notes)
                print(f"{number} {name} {took:.1f} s: {notes}{': FAILED' if problem else ''}", flush=True)
                played[name] += 1
                if problem:
                    replay = f"--seed {seed} --first {number} --rounds 1" + "".join(f" --only {n}" for n in only or ())
                    failures.append(f"round {number}, {name} ({notes}): {problem}\nreplay: {replay}")
                    print(failures[-1], flush=True)
                    broken = True
                number += 1
            left = [] if broken else await _end(campaign)
        finally:
            if broken:
                print(place.logs(), flush=True)
            try:
                for client in (campaign.client, *campaign.others):
                    await client.kill()
            finally:  # also when we are told to end
                unclean = place.close()
        if not broken and (left or unclean):
            failures.append(f"left on the host at the end: {left or unclean}")
            print(failures[-1], flush=True)
        if broken and not keep_going:
            break
    total = sum(played.values())
    print(
        f"{total} rounds in {time.monotonic() - began:.0f} s, {len(failures)} failed, seed {seed}: "
        + ", ".join(f"{name} {count}" for name, count in sorted(played.items())),
        flush=True,
    )
    return failures


def _names(place: Place, only: Sequence[str] | None) -> list[str]:
    names = list(only or ROUNDS)
    of_disk = [name for name in names if name.endswith("full_disk")]
    if of_disk:
        why = place.mount_disk()
        if why is not None:
            print(f"{' and '.join(of_disk)} left out, as there can be no small file system: {why}", flush=True)
            names = [name for name in names if name not in of_disk]
    return names


async def _play(campaign: Campaign, name: str, rng: random.Random) -> str | None:
    """Play a round and return what was wrong."""
    campaign.notes = []
    try:
        async with asyncio.timeout(ROUND_TIMEOUT):
            await campaign.ensure_kernel()
            await ROUNDS[name][0](campaign, rng)
    except (Failure, ClientError, TimeoutError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return None


async def _end(campaign: Campaign) -> list[str]:
    try:
        return await campaign.end()
    except (ClientError, TimeoutError) as error:
        return [f"the end failed: {error}"]
