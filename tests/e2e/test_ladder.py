"""Ending a kernel's processes: real process trees, a real subreaper, real signals (scenario K6's ground)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from albedo_provisioner.bundle import ladder, processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the subreaper and /proc are Linux's")

# Stands in for the keeper: becomes the subreaper, starts the "kernel", and runs the ladder when told to on stdin.
KEEPER = """
import json, os, subprocess, sys
from albedo_provisioner.bundle import ladder, processes
setup = json.loads(sys.argv[1])
processes.HAS_PROC = setup["proc"]
if setup["subreaper"]:
    assert processes.become_subreaper()
kernel = subprocess.Popen([sys.executable, "-c", setup["code"]], start_new_session=True, stdin=subprocess.DEVNULL)
root = processes.identify(kernel.pid)
options = json.loads(sys.stdin.readline())
reap = processes.reap if options.pop("reap", True) else None
report = ladder.Ladder([root], own_children=setup["subreaper"], reap=reap, **options).run()
print("report", json.dumps(report.to_dict()), flush=True)
sys.stdin.readline()
"""

# What every "kernel" starts with: `say` tells the test who is ready, by name and pid.
PRELUDE = """
import os, signal, sys, time
def say(name):
    os.write(1, f"{name} {os.getpid()}\\n".encode())
def ignore_term():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
def child(run, session=False):
    pid = os.fork()
    if pid == 0:
        if session:
            os.setsid()
        run()
        os._exit(0)
    return pid
def daemon(run):
    def middle():
        child(run)
    os.waitpid(child(middle, session=True), 0)
def sleep(name):
    say(name)
    time.sleep(600)
"""


class Keeper:
    """A keeper with its kernel, started for one test."""

    def __init__(self, code: str, subreaper: bool, proc: bool) -> None:
        setup = {"code": PRELUDE + code, "subreaper": subreaper, "proc": proc}
        self.process = subprocess.Popen(
            [sys.executable, "-c", KEEPER, json.dumps(setup)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=Path(__file__).parents[2],
        )
        self.seen: dict[str, psutil.Process] = {}

    def wait_for(self, *names: str) -> list[psutil.Process]:
        """Wait until these have said that they are ready; their processes, held by identity."""
        while not set(names) <= self.seen.keys():
            name, pid = self._line().split()
            self.seen[name] = psutil.Process(int(pid))
        return [self.seen[name] for name in names]

    def end(self, **options: Any) -> dict[str, list[dict[str, Any]]]:
        """Run the ladder to its end; its report as a dictionary."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(options) + "\n")
        self.process.stdin.flush()
        while not (line := self._line()).startswith("report "):
            pass
        report: dict[str, list[dict[str, Any]]] = json.loads(line.removeprefix("report "))
        return report

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the keeper died"
        return line

    def left(self) -> list[psutil.Process]:
        """Living descendants of the keeper (its orphans too, as it is the subreaper)."""
        return [p for p in psutil.Process(self.process.pid).children(recursive=True) if lives(p)]

    def close(self) -> None:
        with self.process:  # closes the pipes and waits for it alone: whatever escaped still holds their other ends
            for process in [*self.left(), *self.seen.values()]:
                if process.is_running():
                    process.kill()  # psutil checks the start time
            self.process.kill()


def lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def how(report: dict[str, list[dict[str, Any]]], process: psutil.Process) -> str:
    (found,) = [entry["how"] for entry in report["ended"] if entry["pid"] == process.pid]
    return str(found)


StartKeeper = Callable[..., Keeper]


@pytest.fixture
def start() -> Iterator[StartKeeper]:
    keepers = []

    def start_keeper(code: str, *, subreaper: bool = True, proc: bool = True) -> Keeper:
        keepers.append(Keeper(code, subreaper, proc))
        return keepers[-1]

    yield start_keeper
    for keeper in keepers:
        keeper.close()


@pytest.fixture
def sleeper() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Processes that are no descendants of any kernel."""
    started = []

    def start_sleeper(**environment: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(["sleep", "600"], env={**os.environ, **environment}, start_new_session=True)
        started.append(process)
        return process

    yield start_sleeper
    for process in started:
        process.kill()
        process.wait()


# ------------------------------------------------------------------------------------------------ whole families


@pytest.mark.parametrize("proc", [True, False], ids=["proc", "ps"])
def test_children_and_their_children_end_with_the_kernel(start: StartKeeper, proc: bool) -> None:
    keeper = start("child(lambda: (child(lambda: sleep('grandchild')), sleep('child')))\nsleep('kernel')", proc=proc)
    family = keeper.wait_for("kernel", "child", "grandchild")
    report = keeper.end()
    assert [how(report, process) for process in family] == ["TERM"] * 3
    assert len(report["ended"]) == 3
    assert not report["survivors"]
    assert not report["foreign"]
    assert not any(lives(process) for process in family)


@pytest.mark.parametrize("proc", [True, False], ids=["proc", "ps"])
def test_a_daemon_that_left_session_group_and_parent_ends_too(start: StartKeeper, proc: bool) -> None:
    keeper = start(
        "daemon(lambda: sleep('daemon'))\nchild(lambda: sleep('apart'), session=True)\nsleep('kernel')", proc=proc
    )
    daemon, apart, _ = keeper.wait_for("daemon", "apart", "kernel")
    assert daemon.ppid() == keeper.process.pid
    report = keeper.end()
    assert how(report, daemon) == how(report, apart) == "TERM"
    assert keeper.left() == []


def test_a_daemon_that_cleared_its_environment_ends_too(start: StartKeeper) -> None:
    code = "daemon(lambda: os.execve('/bin/sh', ['sh', '-c', 'echo bare $$; exec sleep 600'], {}))\nsleep('kernel')"
    keeper = start(code)
    bare, _ = keeper.wait_for("bare", "kernel")
    assert how(keeper.end(mark="some-kernel"), bare) == "TERM"
    assert not lives(bare)


def test_jobs_of_a_kernel_that_is_gone_already_are_found(start: StartKeeper) -> None:
    keeper = start("child(lambda: sleep('job'), session=True)\nsay('kernel')")
    job, kernel = keeper.wait_for("job", "kernel")
    while lives(kernel):
        time.sleep(0.005)
    assert how(keeper.end(), job) == "TERM"
    assert not lives(job)


def test_who_ignores_term_is_killed_after_the_grace_and_the_others_are_not(start: StartKeeper) -> None:
    keeper = start("child(lambda: sleep('polite'))\nchild(lambda: (ignore_term(), sleep('stubborn')))\nsleep('kernel')")
    polite, stubborn, _ = keeper.wait_for("polite", "stubborn", "kernel")
    began = time.monotonic()
    report = keeper.end(term_grace=0.5)
    assert time.monotonic() - began >= 0.5
    assert (how(report, polite), how(report, stubborn)) == ("TERM", "KILL")
    assert not report["survivors"]
    assert keeper.left() == []


def test_a_kernel_that_was_asked_may_leave_by_itself(start: StartKeeper) -> None:
    # It takes its time, so that it is still there when the ladder first looks.
    leave = "signal.signal(signal.SIGUSR1, lambda *_: (time.sleep(0.5), sys.exit()))"
    keeper = start(f"{leave}\nchild(lambda: sleep('job'))\nsleep('kernel')")
    job, kernel = keeper.wait_for("job", "kernel")
    kernel.send_signal(signal.SIGUSR1)
    began = time.monotonic()
    report = keeper.end(ask_grace=60)
    assert time.monotonic() - began < 30, "the grace ends when the kernel has"
    assert (how(report, kernel), how(report, job)) == ("exit", "TERM")


def test_a_kernel_that_does_not_leave_when_asked_gets_term(start: StartKeeper) -> None:
    keeper = start("sleep('kernel')")
    (kernel,) = keeper.wait_for("kernel")
    assert how(keeper.end(ask_grace=0.2), kernel) == "TERM"


def test_a_stopped_process_takes_its_term(start: StartKeeper) -> None:
    keeper = start("child(lambda: (say('job'), os.kill(os.getpid(), signal.SIGSTOP)))\nsleep('kernel')")
    job, _ = keeper.wait_for("job", "kernel")
    while job.status() != psutil.STATUS_STOPPED:
        time.sleep(0.005)
    assert how(keeper.end(term_grace=60), job) == "TERM"


def test_a_term_handler_may_start_helpers_to_clean_up(start: StartKeeper, tmp_path: Path) -> None:
    done = tmp_path / "cleaned"
    code = f"""
def clean(*_):
    os.waitpid(child(lambda: os.execvp("sh", ["sh", "-c", "sleep 0.5; touch {done}"])), 0)
    sys.exit()
signal.signal(signal.SIGTERM, clean)
sleep("kernel")
"""
    keeper = start(code)
    (kernel,) = keeper.wait_for("kernel")
    assert how(keeper.end(term_grace=30), kernel) == "TERM"
    assert done.exists()


RESPAWNING = """
ignore_term()
until = time.monotonic() + 60
def worker():
    # Each worker has short-lived children of its own, all the time.
    while time.monotonic() < until:
        os.waitpid(child(lambda: time.sleep(0.002)), 0)
def supervise():
    for number in range(12):
        child(worker, session=number % 2)
    say('supervisor')
    while time.monotonic() < until:
        os.wait()
        child(worker, session=True)
child(supervise)
sleep('kernel')
"""


@pytest.mark.parametrize("subreaper", [True, False], ids=["subreaper", "tree-only"])
def test_a_supervisor_that_replaces_every_dead_worker_loses(start: StartKeeper, subreaper: bool) -> None:
    keeper = start(RESPAWNING, subreaper=subreaper)
    supervisor, _ = keeper.wait_for("supervisor", "kernel")
    sessions = {os.getsid(p.pid) for p in [supervisor, *supervisor.children()]}
    report = keeper.end(term_grace=0.2, kill_grace=20)
    assert how(report, supervisor) == "KILL"
    assert not report["survivors"]
    assert keeper.left() == []
    assert not [p for p in processes.snapshot().values() if p.sid in sessions and p.alive]


BOMB = """
ignore_term()
until = time.monotonic() + 60
def burst():
    # A new process at every turn, each as busy as its parent, until 200 are there.
    while time.monotonic() < until:
        if count() < 200:
            os.fork()
        time.sleep(0.001)
def count():
    session = os.getsid(0)
    found = 0
    for entry in os.listdir('/proc'):
        try:
            found += entry.isdigit() and os.getsid(int(entry)) == session
        except OSError:
            pass
    return found
child(burst, session=True)
sleep('kernel')
"""


def test_a_fork_bomb_is_stopped_before_it_is_killed(start: StartKeeper) -> None:
    keeper = start(BOMB)
    keeper.wait_for("kernel")
    while len(keeper.left()) < 50:
        time.sleep(0.01)
    report = keeper.end(term_grace=0.1, kill_grace=20)
    assert not report["survivors"]
    assert keeper.left() == []


# ----------------------------------------------------------------------------------------------- nobody else ever


@pytest.mark.parametrize("proc", [True, False], ids=["proc", "ps"])
def test_the_mark_finds_strays_and_nothing_but_its_own(
    monkeypatch: pytest.MonkeyPatch, sleeper: Callable[..., subprocess.Popen[bytes]], proc: bool
) -> None:
    mark = uuid.uuid4().hex
    stray, other, plain = sleeper(ALBEDO_KERNEL_ID=mark), sleeper(ALBEDO_KERNEL_ID=mark + "1"), sleeper()
    lookalike = subprocess.Popen(["sh", "-c", "read line", f"ALBEDO_KERNEL_ID={mark}"], stdin=subprocess.PIPE)
    monkeypatch.setenv(processes.MARK, mark)  # as a keeper may hold it
    monkeypatch.setattr(processes, "HAS_PROC", proc)
    family = processes.family(processes.snapshot(), [], mark=mark)
    assert [process.pid for process in family.ours] == [stray.pid]
    report = ladder.Ladder([], mark=mark, reap=None).run()
    assert [(entry.pid, entry.how) for entry in report.ended] == [(stray.pid, "TERM")]
    assert other.poll() is plain.poll() is lookalike.poll() is None
    lookalike.communicate()


@pytest.mark.parametrize("proc", [True, False], ids=["proc", "ps"])
def test_a_pid_that_is_another_process_by_now_is_never_signalled(
    monkeypatch: pytest.MonkeyPatch, sleeper: Callable[..., subprocess.Popen[bytes]], proc: bool
) -> None:
    monkeypatch.setattr(processes, "HAS_PROC", proc)
    stranger = sleeper()
    pid, began = processes.identify(stranger.pid) or (0, 0)
    assert pid == stranger.pid
    for wrong in (began - 2, began + 2, 0):
        assert processes.signal_process((pid, wrong), signal.SIGKILL) is False
        report = ladder.Ladder([(pid, wrong)], term_grace=0.1).run()
        assert report.to_dict() == {"ended": [], "survivors": [], "foreign": []}
    assert stranger.poll() is None
    assert processes.signal_process((pid, began), signal.SIGKILL) is True
    assert stranger.wait(10) == -signal.SIGKILL
    assert processes.signal_process((pid, began), signal.SIGKILL) is False


def test_without_pidfds_the_start_time_is_still_checked(
    monkeypatch: pytest.MonkeyPatch, sleeper: Callable[..., subprocess.Popen[bytes]]
) -> None:
    def missing(pid: int, flags: int = 0) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", missing)
    process = sleeper()
    pid, began = processes.identify(process.pid) or (0, 0)
    assert processes.signal_process((pid, began + 1), signal.SIGTERM) is False
    assert processes.signal_process((pid, began), signal.SIGTERM) is True
    assert process.wait(10) == -signal.SIGTERM


def test_the_caller_its_ancestors_and_init_are_never_members(monkeypatch: pytest.MonkeyPatch) -> None:
    table = processes.snapshot()
    roots = [table[pid].identity for pid in (1, os.getpid())]
    family = processes.family(table, roots, own_children=True, mark=os.environ.get(processes.MARK))
    found = {process.pid for process in family.ours + family.foreign}
    assert not found & {1, os.getpid(), os.getppid()}
    assert processes.signal_process(table[1].identity, 0) is False
    assert processes.signal_process(table[os.getpid()].identity, 0) is False


def test_a_session_that_a_member_was_born_into_is_not_the_familys() -> None:
    """A table of our own making: a user's shell in whose session the kernel runs beside a neighbour."""
    shell, kernel, neighbour = stuck(9001, 1, "S"), stuck(9002, 9001, "S"), stuck(9003, 9001, "S")
    for process in (kernel, neighbour):
        process.sid = process.pgid = 9001
    table = {process.pid: process for process in (shell, kernel, neighbour)}
    assert [p.pid for p in processes.family(table, [kernel.identity]).ours] == [9002]
    assert [p.pid for p in processes.family(table, [shell.identity]).ours] == [9001, 9002, 9003]


def test_who_shares_only_the_callers_own_session_is_no_member() -> None:
    """As above, but the session is the caller's, whose leader has ended."""
    kernel, neighbour = stuck(9002, 1, "S"), stuck(9003, 1, "S")
    for process in (kernel, neighbour):
        process.sid, process.pgid = os.getsid(0), os.getpgid(0)
    table = {process.pid: process for process in (kernel, neighbour)}
    assert [p.pid for p in processes.family(table, [kernel.identity]).ours] == [9002]


def test_members_of_a_session_that_the_kernel_made_are_found_without_it() -> None:
    """Orphans beside a job that is still known, where there is no subreaper: the leader of their session has ended."""
    job, orphan = stuck(9002, 1, "S"), stuck(9003, 1, "S")
    for process in (job, orphan):
        process.sid = 9001
    table = {process.pid: process for process in (job, orphan)}
    assert [p.pid for p in processes.family(table, [job.identity]).ours] == [9002, 9003]


def test_helpers_of_the_keeper_can_be_left_out(sleeper: Callable[..., subprocess.Popen[bytes]]) -> None:
    helper, job = sleeper(), sleeper()
    family = processes.family(processes.snapshot(), [], own_children=True, exclude=[helper.pid])
    found = {process.pid for process in family.ours}
    assert job.pid in found
    assert helper.pid not in found


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a process of another account")
def test_a_process_of_another_account_is_told_and_not_signalled(start: StartKeeper) -> None:
    keeper = start("child(lambda: (os.setresuid(65534, 65534, 65534), sleep('theirs')))\nsleep('kernel')")
    theirs, kernel = keeper.wait_for("theirs", "kernel")
    report = keeper.end(term_grace=0.5)
    assert lives(theirs)
    assert not lives(kernel)
    assert [entry["pid"] for entry in report["foreign"]] == [theirs.pid]
    assert "65534" in report["foreign"][0]["why"]
    assert theirs.pid not in [entry["pid"] for entry in report["ended"] + report["survivors"]]


# ----------------------------------------------------------------------------------------------- what is still alive


def test_zombies_count_as_ended_when_nobody_reaps_them(start: StartKeeper) -> None:
    keeper = start("child(lambda: sleep('job'))\nsleep('kernel')")
    job, kernel = keeper.wait_for("job", "kernel")
    began = time.monotonic()
    report = keeper.end(reap=False, term_grace=30, kill_grace=30)
    assert time.monotonic() - began < 20
    assert how(report, job) == how(report, kernel) == "TERM"


def test_a_process_whose_main_thread_has_ended_still_lives(start: StartKeeper) -> None:
    code = """
import ctypes, threading
threading.Thread(target=ctypes.CDLL(None).sleep, args=[600], daemon=True).start()
say('kernel')
ctypes.CDLL(None).pthread_exit(None)
"""
    keeper = start(code)
    (kernel,) = keeper.wait_for("kernel")
    while (process := processes.find(kernel.pid)) is not None and process.state != "Z":
        time.sleep(0.005)
    assert process is not None
    assert process.alive
    assert how(keeper.end(term_grace=0.5), kernel) in ("TERM", "KILL")
    assert processes.still_alive([process.identity]) == set()


def test_a_name_with_spaces_and_parentheses_does_not_confuse_the_table(start: StartKeeper) -> None:
    keeper = start("open('/proc/self/comm', 'w').write('a) Z 1 (b) c')\nsleep('kernel')")
    (kernel,) = keeper.wait_for("kernel")
    process = processes.find(kernel.pid)
    assert process is not None
    assert (process.name, process.ppid) == ("a) Z 1 (b) c", keeper.process.pid)
    assert process.alive
    assert keeper.end()["ended"][0]["name"] == "a) Z 1 (b) c"


def test_proc_and_ps_see_the_same(monkeypatch: pytest.MonkeyPatch, start: StartKeeper) -> None:
    keeper = start("child(lambda: sleep('job'), session=True)\nsleep('kernel')")
    for known in keeper.wait_for("job", "kernel"):
        while known.status() != psutil.STATUS_SLEEPING:
            time.sleep(0.005)
        from_proc = processes.find(known.pid)
        with monkeypatch.context() as patch:
            patch.setattr(processes, "HAS_PROC", False)
            from_ps = processes.find(known.pid)
        assert from_proc is not None
        assert from_ps is not None
        for field in ("pid", "ppid", "pgid", "sid", "uid", "state", "name"):
            assert getattr(from_ps, field) == getattr(from_proc, field), field
        assert abs(from_ps.start - known.create_time()) <= 2


# ------------------------------------------------------------------------------------------------------ the steps


class World:
    """A process table of our own making, for what no test may do to a real system."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *table: processes.Process) -> None:
        self.table = {process.pid: process for process in table}
        self.signals: list[tuple[int, int]] = []
        self.refuse = False
        monkeypatch.setattr(processes, "snapshot", lambda: dict(self.table))
        monkeypatch.setattr(processes, "still_alive", self.still_alive)
        monkeypatch.setattr(processes, "signal_process", self.signal_process)

    def still_alive(self, identities: set[processes.Identity]) -> set[processes.Identity]:
        return set(identities) & {process.identity for process in self.table.values()}

    def signal_process(self, identity: processes.Identity, signum: int) -> bool:
        if self.refuse:
            raise PermissionError(1, "Operation not permitted")
        self.signals.append((identity[0], signum))
        return True


def stuck(pid: int, ppid: int, state: str) -> processes.Process:
    return processes.Process(pid, ppid, pid, pid, 7 * pid, os.getuid(), state, f"p{pid}")


def climb(climbing: ladder.Ladder) -> tuple[ladder.Report, float]:
    """Step to the end on a clock of our own; the report and the seconds that passed on it."""
    now = 100.0
    while (pause := climbing.step(now)) is not None:
        assert 0 <= pause <= 0.1
        now += pause
    assert climbing.step(now) is None, "done stays done"
    return climbing.report, now - 100.0


def test_what_no_signal_ends_is_reported_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, stuck(9001, 1, "D"), stuck(9002, 9001, "R"))
    report, seconds = climb(ladder.Ladder([(9001, 7 * 9001)], ask_grace=1, term_grace=2, kill_grace=3))
    assert seconds == pytest.approx(1 + 2 + 3, abs=0.2)
    assert not report.clean
    assert [entry.pid for entry in report.survivors] == [9001, 9002]
    assert "state D" in report.survivors[0].why
    assert "within 3 s of KILL" in report.survivors[1].why
    # Everyone is stopped before anyone is killed, and the youngest is killed first.
    last = [entry for entry in world.signals if entry[1] in (signal.SIGSTOP, signal.SIGKILL)]
    stop, kill = signal.SIGSTOP, signal.SIGKILL
    assert last == [(9001, stop), (9002, stop), (9002, kill), (9001, kill)]


def test_what_may_not_be_signalled_is_reported_without_waiting_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, stuck(9001, 1, "S"))
    world.refuse = True
    report, seconds = climb(ladder.Ladder([(9001, 7 * 9001)]))
    assert seconds < 1
    assert [entry.why for entry in report.survivors] == ["this account may not signal it"]


def test_a_family_that_grows_at_every_look_is_given_up_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, stuck(9001, 1, "R"))

    def growing() -> processes.Table:
        youngest = max(world.table)
        world.table[youngest + 1] = stuck(youngest + 1, youngest, "R")
        return dict(world.table)

    monkeypatch.setattr(processes, "snapshot", growing)
    climbing = ladder.Ladder([(9001, 7 * 9001)], term_grace=0, kill_grace=3)
    for now in range(100, 110):
        if climbing.step(float(now)) is None:
            break
    assert climbing.rung == "done"
    assert "faster" in climbing.report.survivors[-1].why


def test_an_unreadable_table_is_an_error_and_never_an_empty_family(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> processes.Table:
        raise OSError(24, "Too many open files")

    World(monkeypatch, stuck(9001, 1, "R"))
    climbing = ladder.Ladder([(9001, 7 * 9001)], term_grace=0, kill_grace=0)
    with monkeypatch.context() as patch:
        patch.setattr(processes, "snapshot", fail)
        with pytest.raises(OSError, match="Too many"):
            climbing.step(0.0)
    while climbing.step(1.0) is not None:
        pass
    assert [entry.pid for entry in climbing.report.survivors] == [9001]


def test_the_ladder_is_quick_to_import() -> None:
    """Its import must not drag in what the keeper has no use for."""
    code = (
        "import sys; before = set(sys.modules); sys.path.insert(0, 'albedo_provisioner')\n"
        "import bundle.ladder; print(*(set(sys.modules) - before))"
    )
    command = [sys.executable, "-I", "-S", "-c", code.replace("'albedo_provisioner'", "sys.argv[1]")]
    package = Path(ladder.__file__).parents[1]
    output = subprocess.run([*command, str(package)], capture_output=True, text=True, check=True).stdout
    assert not set(output.split()) & {
        "typing",
        "subprocess",
        "asyncio",
        "dataclasses",
        "ctypes",
        "collections.abc",
        "zmq",
    }


HOPPING = """
import os, time
until = time.monotonic() + 60
while time.monotonic() < until:
    if os.fork():
        os._exit(0)
    os.setsid()
    time.sleep(0.005)
"""


def test_a_process_that_becomes_another_all_the_time_is_never_taken_for_ended() -> None:
    """It has another parent, session and pid whenever the process table is read."""
    mark = uuid.uuid4().hex
    subprocess.run([sys.executable, "-S", "-c", HOPPING], env={**os.environ, processes.MARK: mark}, check=True)
    for _ in range(200):
        assert processes.family(processes.snapshot(), [], mark=mark).ours
    report = ladder.Ladder([], mark=mark, reap=None, term_grace=0.2, kill_grace=20).run()
    assert bool(report.survivors) == bool(processes.family(processes.snapshot(), [], mark=mark).ours)


@pytest.mark.skipif(sys.platform != "linux", reason="there is no subreaper")
def test_one_without_the_mark_is_found_as_the_subreapers_child_and_ended() -> None:
    """K6: it ignores TERM as well."""
    hopping = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + HOPPING
    keeper = (
        "import subprocess, sys\n"
        "from albedo_provisioner.bundle import ladder, processes\n"
        "assert processes.become_subreaper()\n"
        "subprocess.run([sys.executable, '-S', '-c', sys.argv[1]], env={}, check=True)\n"
        "looks = [processes.family(processes.snapshot(), [], own_children=True).ours for _ in range(200)]\n"
        "report = ladder.Ladder([], own_children=True, reap=processes.reap, term_grace=0.2, kill_grace=20).run()\n"
        "left = processes.family(processes.snapshot(), [], own_children=True).ours\n"
        "print(all(looks), len(report.ended) > 0, len(report.survivors), len(left))"
    )
    output = subprocess.run([sys.executable, "-c", keeper, hopping], capture_output=True, text=True, check=True).stdout
    assert output.split() == ["True", "True", "0", "0"]
