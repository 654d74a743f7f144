"""Agents that are killed at any moment of a call, and others that take over: no call runs twice, none is lost.

Each round runs one call that counts on the host, kills the agent that makes it (often more than once), and has a last
one finish. Then what the host saw is compared with what the session says.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from procs import send

from .campaign import Failure
from .place import ALIAS, Place

_AGENT = Path(__file__).with_name("agent.py")
_PATIENCE = 90.0

CODE = """
open({path!r}, "a").write("{cell}\\n")
import time
for i in range(15):
    print(i, flush=True)
    time.sleep(0.02)
counter = globals().get("counter", 0) + 1
counter
"""


class _Agent:
    """One agent process."""

    def __init__(self, place: Place, session_id: str, cell_id: str, code: str) -> None:
        location = f"{ALIAS}:{place.work}"
        self._process = subprocess.Popen(
            [sys.executable, str(_AGENT), location, sys.executable, session_id, cell_id, code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=open(place.root / "agent.log", "ab"),  # noqa: SIM115 - the child has it
            env=place.environ,
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._rest = b""

    def read(self, timeout: float) -> dict[str, Any] | None:
        """Return what it says next; None when it says nothing in that time."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout
        while b"\n" not in self._rest:
            piece = self._process.stdout.read()
            if piece:
                self._rest += piece
            elif piece == b"" and self._process.poll() is not None:
                raise Failure(f"the agent ended by itself, with status {self._process.returncode}")
            elif time.monotonic() > deadline:
                return None
            else:
                time.sleep(0.005)
        line, _, self._rest = self._rest.partition(b"\n")
        return dict(json.loads(line))

    def until(self, key: str) -> Any:
        """Return what it says of that kind."""
        deadline = time.monotonic() + _PATIENCE
        while (said := self.read(max(0.0, deadline - time.monotonic()))) is not None:
            if key in said:
                return said[key]
        raise Failure(f"the agent did not come to {key!r} within {_PATIENCE:g} s")

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def leave(self) -> None:
        self._process.communicate(b"", timeout=_PATIENCE)


class Agents:
    """A row of agents with one session."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._ledger = place.root / "ran"
        self._ledger.touch()
        self._session = ""
        self._counter = 0
        self.told: Counter[str] = Counter()
        """How often sessions told each status."""

    def play(self, number: int, rng: random.Random) -> str:
        """Play one round, and return what was done in it.

        Raises:
            Failure: the session and the host disagree.
        """
        cell = f"cell-{number}"
        code = CODE.format(path=str(self._ledger), cell=cell)
        notes = []
        kernel_killed = bool(self._session) and rng.random() < 0.15
        if kernel_killed:
            for kernel in self._place.kernels():
                send(kernel, signal.SIGKILL)
            notes.append("kernel killed before")
        kills = rng.choice([1, 1, 1, 2, 3])
        for _ in range(kills):
            agent = _Agent(self._place, self._session, cell, code)
            self._session = agent.until("session")
            agent.until("sending")
            away = rng.random() < 0.25
            if away:
                self._place.proxy.block()
            pause = rng.choice([0.0, rng.uniform(0, 0.3), rng.uniform(0, 1.5)])
            time.sleep(pause)
            agent.kill()
            if away:
                self._place.proxy.heal()
            notes.append(f"killed after {pause:.2f} s{', host away' if away else ''}")
        agent = _Agent(self._place, self._session, cell, code)
        result = agent.until("result")
        agent.leave()
        self._compare(cell, result, kernel_killed)
        return "; ".join(notes)

    def _compare(self, cell: str, result: dict[str, Any], kernel_killed: bool) -> None:
        ran = self._ledger.read_text().split().count(cell)
        kernel, status = result["kernel"], result["status"]
        told = f"status {status}, value {result['value']}, ran {ran} times, {kernel}"
        self.told[status] += 1
        if ran > 1:
            raise Failure(f"it ran more than once: {told}")
        if status == "ok":
            if kernel_killed and self._counter:
                self._counter = 0
            expected = self._counter + 1
            if ran != 1 or result["stdout"] != "".join(f"{i}\n" for i in range(15)):
                raise Failure(f"it is not whole: {told}, {result['stdout']!r}")
            if result["value"] != str(expected):
                raise Failure(f"the state is not what it should be, {expected} was expected: {told}")
            self._counter = expected
        elif status == "lost":
            if ran:
                raise Failure(f"it ran, and is said to be lost: {told}")
            if kernel_killed:
                self._counter = 0
        else:
            raise Failure(f"that cannot be: {told}")


def run_agents(rounds: int, seed: str) -> int:
    """Play rounds, print a line for each, and return the exit status: 1 after a failure, which ends it."""
    place = Place()
    began = time.monotonic()
    try:
        agents = Agents(place)
        for number in range(1, rounds + 1):
            try:
                print(f"{number} {agents.play(number, random.Random(f'{seed}/{number}'))}", flush=True)
            except Failure as failure:
                log = (place.root / "agent.log").read_text(errors="replace")[-6000:]
                print(f"{number} FAILED (seed {seed}): {failure}\n{place.logs()}\n{log}", flush=True)
                return 1
        print(f"{rounds} rounds in {time.monotonic() - began:.0f} s, 0 failed, seed {seed}; told: {dict(agents.told)}")
    finally:
        place.close()
    return 0
