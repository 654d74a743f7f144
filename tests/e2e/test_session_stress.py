"""Many sessions at once: whatever threads and tasks do to them side by side, each owner gets its own, counted right.

`pytest --sessions 64` for more than the suite has.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from faces import Embedded, Local
from procs import wait_until

from albedo_provisioner import AsyncSessions, Sessions
from albedo_provisioner.errors import AlbedoError
from albedo_provisioner.kernels.records import KernelRecords
from albedo_provisioner.sessions.results import Result

CALLS = 6
"""Calls for each session, by whom ever."""

THREADS = 4

CODE = """
import json, os
count = globals().get("count", 0) + 1
owner = globals().setdefault("owner", {owner!r})
print(json.dumps([os.getpid(), count, owner]))
"""


@dataclass
class Ledger:
    """What all calls together came to.

    Attributes:
        counts: by kernel, the numbers that its calls have counted.
        owners: by kernel, who was told that it is theirs.
        lost: calls that were lost with their kernel, which may have counted.
        wrong: what must not be, in words.
    """

    counts: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    owners: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    lost: int = 0
    wrong: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, owner: str, result: Result) -> None:
        """Take a call's result."""
        with self.lock:
            if result.status == "lost" or "was closed meanwhile" in str(result.kernel.note):
                self.lost += 1  # the kernel was reset or ended under it, by another call
                return
            if result.status == "interrupted" and "before the code could begin" in str(result.kernel.note):
                return  # the session was reset while the call waited for its kernel
            if result.status != "ok":
                self.wrong.append(f"{owner}: {result.status}: {result.error}, {result.kernel}")
                return
            pid, count, kept_for = json.loads(result.stdout)
            self.counts[pid].append(count)
            self.owners[pid] |= {owner, kept_for}
            if result.kernel.reused != (count > 1):
                self.wrong.append(f"{owner}: reused is {result.kernel.reused} in call {count} of its kernel")
            if count > 1 and (result.kernel.state_lost or result.kernel.state_reset):
                self.wrong.append(f"{owner}: the state is said to be gone in call {count}: {result.kernel}")

    def check(self) -> None:
        """See whether it all fits together: each kernel served one owner, and each call of it counted once."""
        assert not self.wrong, self.wrong
        assert [owners for owners in self.owners.values() if len(owners) > 1] == []
        gaps = 0
        for pid, counts in self.counts.items():
            assert len(set(counts)) == len(counts), f"kernel {pid} was given a call twice: {sorted(counts)}"
            gaps += max(counts) - len(counts)
        assert gaps <= self.lost, "calls have run that nobody was told of"


def descriptors() -> int:
    """Return how many descriptors this process has."""
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.timeout(600)
def test_many_sessions_under_calls_resets_closes_and_evictions(
    embedded_host: Embedded, local_host: Local, request: pytest.FixtureRequest
) -> None:
    """S6, S7, and L3's promise that nothing runs twice."""
    number: int = request.config.getoption("--sessions")
    hosts = (embedded_host, local_host)
    owners = [f"owner-{index}" for index in range(number)]
    plan = [owner for owner in owners for _ in range(CALLS)]
    random.Random(number).shuffle(plan)
    todo = iter(plan)
    ledger = Ledger()

    def one(rng: random.Random, owner: str) -> tuple[str, str, bool]:
        act = rng.choices(("run", "reset", "close"), (16, 2, 1))[0]
        return act, hosts[int(owner.partition("-")[2]) % 2].location(), rng.random() < 0.1

    def in_thread(sessions: Sessions, seed: int) -> None:
        rng = random.Random(seed)
        while (owner := next_owner()) is not None:
            act, location, fresh = one(rng, owner)
            session = sessions.open(location, owner)
            try:
                if act == "reset":
                    session.reset()
                elif act == "close":
                    session.close()
                else:
                    ledger.note(owner, session.execute(CODE.format(owner=owner), reset=fresh, timeout=120))
                session.status()
            except AlbedoError as error:
                closed(owner, error)

    async def in_tasks(sessions: AsyncSessions) -> None:
        async def work(seed: int) -> None:
            rng = random.Random(seed)
            while (owner := next_owner()) is not None:
                act, location, fresh = one(rng, owner)
                session = await sessions.open(location, owner)
                try:
                    if act == "reset":
                        await session.reset()
                    elif act == "close":
                        await session.close()
                    else:
                        ledger.note(owner, await session.execute(CODE.format(owner=owner), reset=fresh, timeout=120))
                    await session.status()
                except AlbedoError as error:
                    closed(owner, error)

        await asyncio.gather(*(work(100 + index) for index in range(number)))

    def next_owner() -> str | None:
        with ledger.lock:
            return next(todo, None)

    def closed(owner: str, error: AlbedoError) -> None:
        if "has been closed" not in str(error):
            with ledger.lock:
                ledger.wrong.append(f"{owner}: {error}")

    with Sessions(max_kernels=max(2, number // 2), idle_timeout=3600) as sessions:
        sessions.open(hosts[0].location(), "first").execute("1")
        sessions.close_owner("first")
        before = descriptors()
        threads = [threading.Thread(target=in_thread, args=(sessions, seed)) for seed in range(THREADS)]
        for thread in threads:
            thread.start()
        asyncio.run(in_tasks(sessions._sessions))
        for thread in threads:
            thread.join()
        ledger.check()
        assert len(ledger.counts) >= number // 2
        for owner in owners:
            sessions.close_owner(owner)
        assert sessions.list() == []
        # An end that takes a busy host longer than a caller waits for it goes on by itself.
        wait_until(lambda: KernelRecords().all() == [], 60, "all ends are proven")
        deadline = time.monotonic() + 20
        while descriptors() > before + 4 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert descriptors() <= before + 4  # a connection to the host more or less
    for host in hosts:
        assert not (Path(host.home) / ".albedo-remote" / "run").exists()
