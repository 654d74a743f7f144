"""The ladder: end a kernel's whole process tree, each rung checked, and prove that nothing is left.

    asked    the kernel has been asked by message; its process may leave by itself, for `ask_grace` seconds
    term     TERM to all that belong to it, then `term_grace` seconds in which they may clean up
    freeze   STOP to all, over and over, until a look at the table finds nobody new
    kill     KILL to all, then `kill_grace` seconds in which the system must let them go
    done     `report` says what ended how, and what did not

Why freeze before KILL. Between reading the table and signalling, a process can fork, and a supervisor answers each
death with a new child; killing one by one also gives back the slots that a fork bomb at its limit waits for. A process
that has a STOP pending cannot complete a fork (Linux aborts it), and a stopped one still fills its slot. So once a
table, read after everyone in the last one was sent STOP, shows no newcomer, nobody can be born any more and the KILL
reaches all. A chain in which every process forks and exits at once can outrun any reader of the table; after
`kill_grace` it is given up, and told.

Nothing here blocks: a keeper calls `step` from its poll loop and goes on serving its links in between.
"""

from __future__ import annotations

import signal
import time

from . import processes

TYPE_CHECKING = False  # see processes.py
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from .processes import Family, Identity, Process

_SHORTEST_PAUSE = 0.005
_LONGEST_PAUSE = 0.1
# Rounds of freezing within one step. More would keep the links waiting, fewer would give a fork bomb time in between.
_ROUNDS = 5


class Ended:
    """One process that ended: its `pid`, its `name`, and `how`: "exit" (no signal of ours), "TERM" or "KILL"."""

    __slots__ = ("how", "name", "pid")

    def __init__(self, pid: int, name: str, how: str) -> None:
        self.pid = pid
        self.name = name
        self.how = how


class Survivor:
    """One process that did not end: its `pid`, its `name`, and `why`, in words for a person."""

    __slots__ = ("name", "pid", "why")

    def __init__(self, pid: int, name: str, why: str) -> None:
        self.pid = pid
        self.name = name
        self.why = why


class Report:
    """What became of a kernel's processes. Complete once the ladder is done.

    Attributes:
        ended: the processes that are gone, in the order in which that was noticed.
        survivors: this account's processes that did not end.
        foreign: processes of other accounts, which are not ours to end and were not signalled.
    """

    __slots__ = ("ended", "foreign", "survivors")

    def __init__(self) -> None:
        self.ended: list[Ended] = []
        self.survivors: list[Survivor] = []
        self.foreign: list[Survivor] = []

    @property
    def clean(self) -> bool:
        """Whether nothing at all was left."""
        return not self.survivors and not self.foreign

    def to_dict(self) -> dict[str, list[dict[str, int | str]]]:
        """Plain JSON: {"ended": [{pid, name, how}], "survivors": [{pid, name, why}], "foreign": [...]}."""
        return {
            "ended": [{"pid": p.pid, "name": p.name, "how": p.how} for p in self.ended],
            "survivors": [{"pid": p.pid, "name": p.name, "why": p.why} for p in self.survivors],
            "foreign": [{"pid": p.pid, "name": p.name, "why": p.why} for p in self.foreign],
        }


class Ladder:
    """One ending of one kernel. Call `step` until it gives None, then read `report`; or call `run`.

    Args:
        roots: identities of the kernel's process and of others known to be its own.
        own_children, mark, marks, exclude: see `processes.family`.
        ask_grace: seconds the roots may take to leave by themselves. 0 when nobody asked them.
        term_grace: seconds between TERM and KILL. 0 goes straight to KILL.
        kill_grace: seconds that freezing may take, and then dying; what is left is given up and reported.
        reap: called at the start of every step to wait for children that have ended (`processes.reap`, or the keeper's
            own). Zombies count as ended, so a missing hook does not keep the ladder from finishing.

    Attributes:
        report: what is known so far.
        rung: "asked", "term", "freeze", "kill" or "done".
    """

    def __init__(
        self,
        roots: Iterable[Identity],
        *,
        own_children: bool = False,
        mark: str | None = None,
        marks: Collection[str] = (),
        exclude: Collection[int] = (),
        ask_grace: float = 0.0,
        term_grace: float = 5.0,
        kill_grace: float = 5.0,
        reap: Callable[[], object] | None = None,
    ) -> None:
        self.report = Report()
        self.rung = "asked"
        self._roots = set(roots)
        self._own_children = own_children
        self._mark = mark
        self._marks = marks
        self._exclude = exclude
        self._ask_grace = ask_grace
        self._term_grace = term_grace
        self._kill_grace = kill_grace
        self._reap = reap
        # Everyone who ever belonged. Who was seen once stays a member, also when its parent has gone and nothing else
        # ties it to the kernel.
        self._members: dict[Identity, Process] = {}
        self._alive: set[Identity] = set()
        self._signalled: dict[Identity, str] = {}
        self._stopped: set[Identity] = set()
        self._denied: set[Identity] = set()
        self._deadline: float | None = None
        self._give_up: float | None = None
        self._pause = _SHORTEST_PAUSE

    def run(self) -> Report:
        """Climb down to the end, blocking, and return the report."""
        while (pause := self.step(time.monotonic())) is not None:
            time.sleep(pause)
        return self.report

    def step(self, now: float) -> float | None:
        """Do what is due. Takes a few milliseconds (a read of the process table).

        Args:
            now: `time.monotonic()`.

        Returns:
            Seconds from now after which to call again; sooner is harmless and useful when a child has just ended. None
            when the ladder is done.

        Raises:
            OSError: the process table cannot be read. Call again later: nothing is lost.
        """
        if self._reap is not None:
            self._reap()
        rungs = {"asked": self._asked, "term": self._term, "freeze": self._freeze, "kill": self._kill}
        while self.rung != "done":
            before = self.rung
            pause = rungs[before](now)
            if pause is not None:
                return pause
            if self.rung != before:
                self._pause = _SHORTEST_PAUSE
        return None

    # Each rung returns seconds to wait, or None when the next rung (or the same, again) is to be taken at once.

    def _asked(self, now: float) -> float | None:
        if self._deadline is None:
            self._deadline = now + self._ask_grace
            self._look()
        else:
            self._notice()
        if now < self._deadline and processes.still_alive(self._roots):
            return self._wait(now, self._deadline)
        self._deadline = now + self._term_grace
        self.rung = "term" if self._term_grace > 0 else "freeze"
        return None

    def _term(self, now: float) -> float | None:
        assert self._deadline is not None
        self._notice()
        # The first look may be as old as ask_grace, so TERM goes by a new one.
        if (not self._signalled or not self._endable()) and not self._look():
            self._finish()
            return None
        if now >= self._deadline:
            self.rung = "freeze"
            return None
        # Once the earlier ones are gone, newcomers get their TERM. Not before: a child born of a TERM handler is most
        # likely cleaning up.
        if not self._alive & self._signalled.keys():
            for identity in self._endable():
                if self._send(identity, signal.SIGTERM):
                    self._signalled[identity] = "TERM"
                    self._send(identity, signal.SIGCONT)  # a stopped process takes no TERM until it goes on
        return self._wait(now, self._deadline)

    def _freeze(self, now: float) -> float | None:
        if self._give_up is None:
            self._give_up = now + self._kill_grace
        for _ in range(_ROUNDS):
            self._look()
            newcomers = [identity for identity in self._endable() if identity not in self._stopped]
            if not newcomers:
                break
            for identity in newcomers:
                self._stopped.add(identity)
                self._send(identity, signal.SIGSTOP)
        else:
            if now < self._give_up:
                return 0.0  # they fork as fast as we look; the links get their turn, then we look again
        # Youngest first: so no death leaves a stopped process group orphaned, which the system would set going again.
        for identity in reversed(self._endable()):
            if self._send(identity, signal.SIGKILL):
                self._signalled[identity] = "KILL"
        self._deadline = now + self._kill_grace
        self.rung = "kill"
        return None

    def _kill(self, now: float) -> float | None:
        assert self._deadline is not None
        assert self._give_up is not None
        self._notice()
        if not self._endable():
            if not self._look():
                self._finish()
                return None
            if now < self._give_up:
                self.rung = "freeze"
                return None
        if now >= self._deadline:
            self._finish()
            return None
        return self._wait(now, self._deadline)

    def _finish(self) -> None:
        family = self._scan()
        self.report.survivors = [Survivor(process.pid, process.name, self._why(process)) for process in family.ours]
        self.report.foreign = [
            Survivor(process.pid, process.name, f"it belongs to user id {process.uid} and is not ours to end")
            for process in family.foreign
        ]
        self.rung = "done"

    def _why(self, process: Process) -> str:
        if process.identity in self._denied:
            return "this account may not signal it"
        if process.state in ("D", "U"):
            return (
                f"it is in a wait that no signal ends (state {process.state}), mostly for a disk or network"
                " file system, and ends when that answers"
            )
        if self._signalled.get(process.identity) != "KILL":
            return "its family forks faster than it can be caught"
        return f"it did not end within {self._kill_grace:g} s of KILL (state {process.state})"

    def _scan(self) -> Family:
        family = processes.family(
            processes.snapshot(),
            self._roots | self._members.keys(),
            own_children=self._own_children,
            mark=self._mark,
            marks=self._marks,
            exclude=self._exclude,
        )
        for process in family.ours:
            self._members.setdefault(process.identity, process)
        self._settle({process.identity for process in family.ours})
        return family

    def _look(self) -> bool:
        """Read the whole table; whether anyone is left whom we can end."""
        self._scan()
        return bool(self._endable())

    def _notice(self) -> None:
        """Note who of those we know has ended, without reading the whole table."""
        self._settle(processes.still_alive(self._alive))

    def _settle(self, alive: set[Identity]) -> None:
        for identity in sorted(self._alive - alive):
            how = self._signalled.get(identity, "exit")
            self.report.ended.append(Ended(identity[0], self._members[identity].name, how))
        self._alive = alive

    def _endable(self) -> list[Identity]:
        """The living whom we may signal, as far as we know, oldest first."""
        return sorted(self._alive - self._denied, key=lambda identity: (identity[1], identity[0]))

    def _send(self, identity: Identity, signum: int) -> bool:
        try:
            return processes.signal_process(identity, signum)
        except PermissionError:
            self._denied.add(identity)
            return False

    def _wait(self, now: float, deadline: float) -> float:
        pause = self._pause
        self._pause = min(2 * pause, _LONGEST_PAUSE)
        return max(0.0, min(pause, deadline - now))
