"""Jobs: programs that cells start on their kernel's host, what becomes of them, and how that is told."""

from __future__ import annotations

import os
import signal
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faces import Embedded, Host, Local, Real, keeper_of
from kernels import started
from procs import Process, alive, send, wait_until

from albedo_provisioner import Location, Result, Session, Sessions
from albedo_provisioner.bundle.job_words import duration
from albedo_provisioner.hosts import io_thread
from albedo_provisioner.kernels.console import Console
from albedo_provisioner.kernels.remote import RemoteKernel
from albedo_provisioner.kernels.request import KernelRequest


def value(session: Session, code: str) -> Any:
    """Run code and return the value of its last expression, which is written as Python writes it."""
    result = session.execute(code)
    assert result.status == "ok", result.traceback
    return eval(str(result.full_value()), {})


def note(session: Session, code: str = "1") -> str:
    """Run code and return what the user is told."""
    result = session.execute(code)
    assert result.status == "ok", result.traceback
    return result.kernel.note or ""


def jobs(session: Session) -> list[dict[str, Any]]:
    """Return the session's jobs as its status has them."""
    found: list[dict[str, Any]] = session.status()["jobs"]
    return found


def states(session: Session) -> list[str]:
    return [job["state"] for job in jobs(session)]


def supervisor_of(host: Host) -> Process:
    """Return the process that looks after the jobs on a host."""
    (found,) = [process for process in host.processes() if any("import supervisor" in word for word in process.argv)]
    return found


def sleepers(host: Host, seconds: int) -> list[Process]:
    """Return the processes of a host that sleep for so many seconds."""
    return [process for process in host.processes() if process.argv[-2:] == ("sleep", str(seconds))]


FAMILY = """
import os, subprocess
subprocess.Popen(["sleep", "7771"])
if os.fork() == 0:
    os.setsid()  # a daemon: neither of the group nor a child
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "7772"])
    os._exit(0)
print("all there", flush=True)
subprocess.run(["sleep", "7773"])
"""
"""A program with a child, a daemon, and one that it waits for."""


def start_family(session: Session, host: Host) -> None:
    """Have a job with children and a daemon."""
    session.execute(f"family = run({str(host.python)!r}, '-c', {FAMILY!r})")
    wait_until(lambda: "all there" in str(session.execute("family.output").value), what="it has started its family")
    assert len(family(host)) == 3


def family(host: Host) -> list[Process]:
    """Return what is left of it."""
    return [process for seconds in (7771, 7772, 7773) for process in sleepers(host, seconds)]


class TestHandles:
    def test_a_program_runs_on_the_host_and_its_handle_says_what_came_of_it(
        self, any_host: Host, sessions: Sessions
    ) -> None:
        folder = any_host.make_folder("proj")
        session = sessions.open(any_host.location("proj"))
        first = session.execute(
            "job = run('sh', '-c', 'pwd; echo $PWD; echo $A $B; echo no >&2; exit 3', env={'A': '1'})"
        )
        assert (first.status, first.execution_count) == ("ok", 1)
        assert value(session, "job.wait(), job.exit_code, await job, job.running") == (3, 3, 3, False)
        assert value(session, "job.output") == f"{folder}\n{folder}\n1\nno\n"
        assert value(session, "job.tail(2), job.tail(0), job.errors") == ("1\nno\n", "", "")
        assert "`sh -c 'pwd; " in repr(session.execute("job").value)
        path = Path(value(session, "job.output_path"))
        assert path.read_text() == f"{folder}\n{folder}\n1\nno\n"
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        code = "apart = run('sh', '-c', 'echo out; echo err >&2', cwd='/', merge_stderr=False)\napart.wait()"
        assert value(session, f"{code}\napart.output, apart.errors, apart.cwd") == ("out\n", "err\n", "/")
        pid = (
            value(session, "os.environ['B'] = '2'\nlong = run('sh', '-c', 'echo $B; exec sleep 7777')\nlong.pid")
            if (session.execute("import os").ok)
            else 0
        )
        assert [process.pid for process in sleepers(any_host, 7777)] == [pid]
        assert os.getpgid(pid) == os.getsid(pid) == pid
        assert value(session, "long.output, long.running, long.exit_code") == ("2\n", True, None)
        assert value(session, "from albedo_bundle.jobs import find\nfind(long.number).stop(), long.running") == (
            -2,
            False,
        )
        assert value(session, "job.exit_code, job.output[-3:]") == (3, "no\n")

    def test_what_a_program_reads_may_be_text_bytes_a_file_a_path_or_another_job(
        self, embedded_host: Embedded, sessions: Sessions
    ) -> None:
        file = embedded_host.write("input", "one\ntwo\nthree\n")
        session = sessions.open(embedded_host.location())
        session.execute("def cat(stdin):\n    job = run('cat', stdin=stdin)\n    job.wait()\n    return job.output")
        assert value(session, "cat('hällo'), cat(b'\\xff'), cat(None)") == ("hällo", "\ufffd", "")
        assert value(session, f"file = open({str(file)!r})\nfile.readline(), cat(file)") == ("one\n", "two\nthree\n")
        assert value(session, f"from pathlib import Path\ncat(Path({str(file)!r}))") == "one\ntwo\nthree\n"
        assert value(session, "len(cat('x' * 200_000))") == 200_000
        session.execute("import os\nreading, writing = os.pipe()\njob = run('cat', stdin=os.fdopen(reading))")
        assert value(session, "os.write(writing, b'typed')\nos.close(writing)\njob.wait(), job.output") == (0, "typed")
        assert value(
            session, "end = run('echo', 'b\\na').pipe('sort').pipe('tr', 'a-z', 'A-Z')\nend.wait(), end.output"
        ) == (
            0,
            "A\nB\n",
        )

    def test_a_pipe_has_all_of_a_long_output_and_makes_the_first_program_wait(
        self, embedded_host: Embedded, sessions: Sessions
    ) -> None:
        session = sessions.open(embedded_host.location())
        code = (
            "import os\nos.mkfifo('go')\n"  # it says nothing before its output is taken
            "source = run('sh', '-c', 'cat go; yes | head -c 40000000', keep=1 << 20)\n"
            "slow = source.pipe('sh', '-c', 'sleep 1; wc -c')\nopen('go', 'w').close()\n"
            "source.wait(), slow.wait(), slow.output"
        )
        assert value(session, code) == (0, 0, "40000000\n")
        refused = session.execute("source.pipe('wc', '-c')")
        assert "said more than is kept" in str(refused.error)
        code = (
            "taker = run('sh', '-c', 'cat go; exec yes', stdin='', keep=1 << 20)\n"
            "head = taker.pipe('head', '-c', '4')\nopen('go', 'w').close()\nhead.wait()"
        )
        assert value(session, code) == 0
        session.execute("taker.stop()")

    def test_what_cannot_be_run_is_said_at_once(self, embedded_host: Embedded, sessions: Sessions) -> None:
        script = embedded_host.write("script", "#!/bin/sh\n")
        session = sessions.open(embedded_host.location())
        for code, kind, words in [
            ("run('nosuch')", "FileNotFoundError", "no such program on the PATH"),
            ("run('./nosuch')", "FileNotFoundError", "'./nosuch'"),
            ("run('ls', cwd='/no/folder')", "FileNotFoundError", "the folder to run it in"),
            ("run('ls', cwd='/etc/passwd')", "NotADirectoryError", "the folder to run it in"),
            (f"run({str(script)!r})", "PermissionError", "Permission denied"),
            ("run('make -j8')", "ValueError", 'run("make", "-j8")'),
            ("run()", "ValueError", "nothing to run"),
            ("run('ls', '\\0')", "JobError", "null byte"),
            ("run('ls', 5)", "TypeError", "int"),
            ("run('ls', stdin=5)", "TypeError", "an open file or a job"),
            ("run('ls', timeout=0)", "ValueError", "above zero"),
            ("run('echo', 'x' * 9_000_000)", "ValueError", "bytes are more than"),
            ("run('echo', 'x' * 200_000)", "OSError", "too long"),
        ]:
            error = str(session.execute(code).error)
            assert error.startswith(kind), (code, error)
            assert words in error, (code, error)
        assert jobs(session) == []


class TestWaiting:
    def test_an_interrupt_ends_the_wait_and_not_the_job(self, any_host: Host, sessions: Sessions) -> None:
        session = sessions.open(any_host.location())
        session.execute("job = run('sleep', '7777')")
        # An interrupt that seems to have had no effect is repeated, and IPython's first traceback takes its time.
        session.execute("job.wait(0.1)")
        for code in ("job.wait()", "await job"):
            result = session.execute(code, timeout=1)
            assert result.status == "timeout"
            assert "`sleep 7777` runs on" in str(result.error)
            assert "kept" in str(result.kernel.note)
        threading.Timer(0.5, session.interrupt).start()
        assert session.execute("await job").status == "interrupted"
        result = session.execute("job.wait(0.1)")
        assert result.error == "TimeoutError: Job 1 did not end within 0.1 s; it runs on."
        assert len(sleepers(any_host, 7777)) == 1
        assert states(session) == ["running"]

    def test_a_job_whose_time_is_over_is_stopped(self, embedded_host: Embedded, sessions: Sessions) -> None:
        session = sessions.open(embedded_host.location())
        session.execute("job = run('sh', '-c', 'sleep 7777 & sleep 7777', timeout=0.5)")
        wait_until(lambda: states(session) == ["ended"], what="it is stopped")
        assert "ran out of its time and was ended by SIGINT" in note(session)
        assert value(session, "job.timed_out, job.exit_code") == (True, -signal.SIGINT)
        wait_until(lambda: not sleepers(embedded_host, 7777), what="its child has gone as well")

    def test_stopping_it_ends_all_that_it_has_started(self, any_host: Host, sessions: Sessions) -> None:
        session = sessions.open(any_host.location())
        start_family(session, any_host)
        assert value(session, "family.stop()") == -signal.SIGINT
        assert not family(any_host)

    def test_one_that_does_not_listen_is_killed_and_what_it_left_behind_as_well(
        self, embedded_host: Embedded, sessions: Sessions
    ) -> None:
        session = sessions.open(embedded_host.location())
        session.execute("deaf = run('sh', '-c', 'trap \"\" INT TERM; echo deaf; while :; do sleep 0.1; done')")
        wait_until(lambda: value(session, "deaf.output") == "deaf\n", what="it does not listen")
        assert value(session, "deaf.stop(grace=0.2)") == -signal.SIGKILL
        code = "left = run('sh', '-c', 'sleep 7777 & echo gone')\nleft.wait(), left.output"
        assert value(session, code) == (0, "gone\n"), "a child that holds the output open is not waited for"
        assert len(sleepers(embedded_host, 7777)) == 1
        assert value(session, "left.stop()") == 0
        assert not sleepers(embedded_host, 7777)

    def test_a_hundred_at_once(self, embedded_host: Embedded, sessions: Sessions) -> None:
        session = sessions.open(embedded_host.location())
        session.execute("def start(i): return run('sh', '-c', f'read x; echo {i}; exit {i}', stdin='go\\n')")
        session.execute("import os, asyncio, concurrent.futures\npool = concurrent.futures.ThreadPoolExecutor(8)")
        session.execute("all = list(pool.map(start, range(100)))")
        assert value(session, "await asyncio.gather(*all) == list(range(100))") is True
        assert value(session, "[int(job.output) for job in all] == list(range(100))") is True
        assert len(jobs(session)) == 100
        session.execute("for _ in range(101): run('true').wait()")
        session.execute("gone = [job for job in all if not os.path.exists(job.output_path)]")
        assert "the output of job" in str(session.execute("gone[0].output").error)
        assert value(session, "len(gone), gone[0].exit_code in range(100)") == (1, True)
        session.execute("all = [run('sleep', '7777') for _ in range(100)]")
        assert len(sleepers(embedded_host, 7777)) == 100
        session.close()
        assert not sleepers(embedded_host, 7777)
        wait_until(lambda: not embedded_host.processes(), what="nothing is left")

    def test_one_whose_start_is_interrupted_does_not_run_without_a_handle(
        self, embedded_host: Embedded, sessions: Sessions
    ) -> None:
        session = sessions.open(embedded_host.location())
        session.execute("run('true').wait()\n1 / 0")
        supervisor = supervisor_of(embedded_host)
        send(supervisor, signal.SIGSTOP)
        code = "print('now', flush=True)\nrun('sleep', '7777')"
        result = session.execute(code, on_output=lambda _: threading.Timer(1.0, session.interrupt).start())
        assert result.status == "interrupted"
        send(supervisor, signal.SIGCONT)
        wait_until(lambda: states(session) == ["ended", "ended"], what="it was started, and ended")
        assert not sleepers(embedded_host, 7777)
        assert note(session) == ""


class TestNotebooks:
    async def test_have_jobs_by_import_also_after_a_restart_and_in_forked_children(self, sshd_host: Real) -> None:
        async with started(sshd_host.location()) as kernel:
            await kernel.run("from albedo_bundle import run\nimport os\ndel os.environ['ALBEDO_KERNEL_ID']")
            await kernel.run("job = run('sleep', '7777', env={'ALBEDO_KERNEL_ID': None})\nrun('sleep', '7777')")
            assert len(sleepers(sshd_host, 7777)) == 2
            output = await kernel.json("job.output_path")
            assert await kernel.value(f"os.path.exists({output!r})") == "True"
            await kernel.manager.restart_kernel()
            assert not sleepers(sshd_host, 7777)
            code = "pid = os.fork()\nif not pid: os._exit(run('sh', '-c', 'exit 9').wait())\nos.waitpid(pid, 0)[1] >> 8"
            assert await kernel.value(f"from albedo_bundle import run\nimport os\n{code}") == "9"
            assert await kernel.value(f"os.path.exists({output!r})") == "False", "it went with the kernel it was of"
            cell = await kernel.run(
                "found = __import__('albedo_bundle.jobs').jobs.every()\nfound[-1].exit_code, len(found)"
            )
            assert cell.value == "(9, 1)"


class TestTelling:
    def test_the_end_of_a_job_that_nobody_waits_for_is_told_once(self, any_host: Host, sessions: Sessions) -> None:
        session = sessions.open(any_host.location())
        (any_host.home / "go").unlink(missing_ok=True)
        session.execute("import os\nos.mkfifo('go')\njob = run('sh', '-c', 'cat go; exit 2')")
        (known,) = jobs(session)
        assert (known["command"], known["state"], known["exit_code"]) == ("sh -c 'cat go; exit 2'", "running", None)
        assert note(session) == ""
        (any_host.home / "go").write_text("went\n")
        wait_until(lambda: states(session) == ["ended"], what="it has ended")
        assert jobs(session)[0]["exit_code"] == 2
        assert note(session).startswith("The job `sh -c 'cat go; exit 2'` ended with exit code 2 after ")
        assert note(session) == ""
        assert note(session, "job.output") == ""

    def test_what_a_cell_knows_already_is_not_told(self, embedded_host: Embedded, sessions: Sessions) -> None:
        session = sessions.open(embedded_host.location())
        for code in ("run('false').wait()", "await run('false')", "run('sleep', '7777').stop()"):
            for _ in range(5):
                assert note(session, code) == "", code
        code = "import time\njob = run('false')\nwhile job.exit_code is None: time.sleep(0.01)"
        assert note(session, code) == ""
        many = "jobs = [run('false') for _ in range(9)]\nwhile any(j['state'] == 'running' for j in listed()): pass"
        session.execute(
            "from albedo_bundle import job_calls\nlisted = lambda: job_calls.converse({'do': 'list'})['jobs']"
        )
        told = note(session, many)
        assert told.count("`false` ended with exit code 1") == 5
        assert "4 more jobs have ended." in told

    def test_an_exit_code_is_known_while_the_kernel_does_not_listen(
        self, embedded_host: Embedded, sessions: Sessions
    ) -> None:
        session = sessions.open(embedded_host.location())
        session.execute("job = run('sh', '-c', 'sleep 0.5; exit 7')")
        # Native code that lets no thread of the interpreter run meanwhile.
        busy = threading.Thread(target=session.execute, args=("import ctypes\nctypes.PyDLL(None).sleep(3)",))
        busy.start()
        wait_until(lambda: states(session) == ["ended"], what="its end is known")
        assert (jobs(session)[0]["exit_code"], busy.is_alive()) == (7, True)
        busy.join()

    def test_a_job_goes_on_while_the_host_is_away_and_is_told_afterwards(
        self, remote_host: Host, sessions: Sessions
    ) -> None:
        session = sessions.open(remote_host.location())
        session.execute("import os\nos.mkfifo('go')\njob = run('sh', '-c', 'cat go; seq 50; exit 2')")
        remote_host.down()
        wait_until(lambda: session.status()["link"] == "reattaching", what="the link is away")
        began = time.monotonic()
        assert states(session) == ["running"]
        assert time.monotonic() - began < 1
        (remote_host.home / "go").write_text("went\n")
        remote_host.up()
        wait_until(lambda: states(session) == ["ended"], what="its end is told by itself")
        assert "ended with exit code 2" in note(session)
        assert value(session, "job.output") == "went\n" + "".join(f"{i}\n" for i in range(1, 51))

    def test_who_goes_on_with_a_session_that_was_left_is_told(self, embedded_host: Embedded) -> None:
        first = Sessions()
        session = first.open(embedded_host.location())
        session.execute("import os\nos.mkfifo('go')\njob = run('sh', '-c', 'cat go; exit 2')")
        first.leave()
        (embedded_host.home / "go").write_text("went\n")
        with Sessions() as second:
            session = second.resume(session.id)
            told = note(session) + note(session)
            assert told.count("ended with exit code 2") == 1
            assert value(session, "job.wait(), job.output") == (2, "went\n")

    def test_a_session_with_a_running_job_is_not_ended_for_others(self, embedded_host: Embedded) -> None:
        """S7."""
        with Sessions(max_kernels=1) as sessions:
            one, other = (sessions.open(embedded_host.location(), owner) for owner in ("one", "other"))
            one.execute("job = run('sleep', '7777')")
            other.execute("1")
            assert len(sleepers(embedded_host, 7777)) == 1
            assert value(one, "job.stop()") == -signal.SIGINT
            assert not one.execute("1").kernel.state_lost
            one.execute("job = run('sh', '-c', 'sleep 0.5; exit 3')")
            wait_until(lambda: states(one) == ["ended", "ended"])
            other.execute("1")
            told = note(one)
            assert "others were used later" in told
            assert told.count("The job `sh -c 'sleep 0.5; exit 3'` ended with exit code 3") == 1

    def test_a_job_that_ends_does_not_take_its_kernel_with_it(self, embedded_host: Embedded) -> None:
        """S7: the time without use begins when the job ends, and what became of it is told in any case."""
        unused = 2.0
        with Sessions(idle_timeout=unused) as sessions:
            session = sessions.open(embedded_host.location())
            session.execute("job = run('sh', '-c', 'sleep 3; exit 3')")
            pid = session.status()["process"]["pid"]
            wait_until(lambda: states(session) == ["ended"], 60)
            ended = time.monotonic()
            wait_until(lambda: not alive(pid), 60)
            assert time.monotonic() - ended > unused / 2
            told = note(session)
            assert "nothing had used it for 2 s" in told
            assert told.count("`sh -c 'sleep 3; exit 3'` ended with exit code 3") == 1
            assert "exit code" not in note(session)


class TestOutput:
    def test_is_bounded_and_the_rest_is_on_the_hosts_disk(self, embedded_host: Embedded, sessions: Sessions) -> None:
        session = sessions.open(embedded_host.location())
        session.execute("job = run('sh', '-c', 'echo first; yes | head -c 9000000; echo last', keep=1 << 20)")
        text = value(session, "job.wait()\njob.output")
        assert text.startswith("first\ny\n")
        assert text.endswith("y\nlast\n")
        assert len(text) < 300_000
        kept = Path(value(session, "job.output_path")).read_text()
        assert kept.startswith("first\ny\n")
        assert kept.endswith("y\nlast\n")
        assert len(kept) <= 1_100_000
        missing = int(text.partition("\n[")[2].partition(" ")[0])
        assert missing + len(text.replace(text[text.index("\n[") : text.index("]\n") + 2], "")) == 9_000_011
        assert value(session, "job.tail(1)") == "last\n"

    def test_that_the_disk_cannot_take_is_told_and_the_program_runs_on(
        self, sshd_host: Real, full_home: Callable[[int], None], sessions: Sessions
    ) -> None:
        full_home(12 << 20)
        session = sessions.open(sshd_host.location())
        result = session.execute("job = run('sh', '-c', 'yes | head -c 30000000; exit 5')\njob.wait(), job")
        assert "exit code 5" in str(result.value)
        assert "No space left on device" in str(result.value)
        assert "bytes could not be kept: No space left on device" in value(session, "job.output")
        session.execute("run('rm', job.output_path).wait()")
        code = "taker = run('sh', '-c', 'yes | head -c 30000000').pipe('wc', '-c')\ntaker.wait(), taker"
        assert "not all of its input could be kept" in str(session.execute(code).value)
        assert value(session, "run('true').wait()") == 0


class TestEndings:
    """K6."""

    @pytest.mark.parametrize("ending", ["close", "reset", "move"])
    def test_nothing_of_a_job_outlives_its_kernel(
        self, any_host: Host, local_host: Local, sessions: Sessions, ending: str
    ) -> None:
        session = sessions.open(any_host.location())
        start_family(session, any_host)
        if ending == "close":
            session.close()
        elif ending == "reset":
            session.reset()
        else:
            local_host.make_folder("other")
            session.move(local_host.location("other"))
        assert not family(any_host)
        if ending == "move":
            assert jobs(session) == []
        else:
            wait_until(lambda: not any_host.processes(), what="nothing is left")

    def test_a_kernel_that_is_killed_takes_its_jobs_along_also_when_nobody_is_there_to_see(
        self, any_host: Host, sessions: Sessions
    ) -> None:
        session = sessions.open(any_host.location())
        start_family(session, any_host)
        os.kill(session.status()["process"]["pid"], signal.SIGKILL)
        wait_until(lambda: not family(any_host), what="its jobs are gone")
        told = note(session)
        assert "SIGKILL. Its jobs ended with it: `" in told
        # Under a call, which tells of those as well that ended before and that nobody knows of.
        session.execute(
            "import os\nos.mkfifo('go')\njob = run('sleep', '500')\nends = run('sh', '-c', 'cat go; exit 3')"
        )
        busy = threading.Thread(target=lambda: results.append(session.execute("open('begun', 'w')\nwhile True: pass")))
        results: list[Result] = []
        busy.start()
        wait_until((any_host.home / "begun").exists, what="the cell runs")
        (any_host.home / "go").write_text("went\n")
        wait_until(lambda: states(session) == ["running", "ended"], what="one of them has ended")
        os.kill(session.status()["process"]["pid"], signal.SIGKILL)
        busy.join()
        told = str(results[0].kernel.note)
        assert (
            "SIGKILL. Its jobs ended with it: `sleep 500`. The job `sh -c 'cat go; exit 3'` ended with exit code 3 "
            in told
        )
        assert note(session) == ""
        start_family(session, any_host)
        for process in (keeper_of(any_host), *[p for p in any_host.processes() if is_kernel(p)]):
            send(process, signal.SIGKILL)
        wait_until(lambda: not family(any_host), what="its jobs are gone")
        assert session.execute("1").kernel.state_lost

    def test_a_keeper_that_is_killed_costs_no_exit_code(self, remote_host: Host, sessions: Sessions) -> None:
        session = sessions.open(remote_host.location())
        session.execute(
            "import os\nos.mkfifo('go')\njob = run('sh', '-c', 'cat go; exit 2')\nmore = run('sleep', '7777')"
        )
        send(keeper_of(remote_host), signal.SIGKILL)
        (remote_host.home / "go").write_text("went\n")
        wait_until(lambda: states(session) == ["ended", "running"], 30, what="its successor tells of them")
        assert "ended with exit code 2" in note(session)
        assert value(session, "more.stop(), job.wait(), job.output") == (-2, 2, "went\n")

    def test_a_first_job_can_be_begun_after_the_keeper_was_killed(self, remote_host: Host, sessions: Sessions) -> None:
        """The new keeper holds no lock that the beginning of a supervisor needs."""
        session = sessions.open(remote_host.location())
        session.execute("x = 41")
        send(keeper_of(remote_host), signal.SIGKILL)
        wait_until(lambda: session.execute("1").status == "ok", 30, "another keeper has the kernel")
        assert value(session, "run('echo', 'went').wait(), x") == (0, 41)

    def test_jobs_whose_supervisor_is_killed_are_ended_and_told_as_lost(
        self, embedded_host: Embedded, sessions: Sessions
    ) -> None:
        session = sessions.open(embedded_host.location())
        session.execute("done = run('echo', 'kept')\ndone.wait()")
        start_family(session, embedded_host)
        send(supervisor_of(embedded_host), signal.SIGKILL)
        wait_until(lambda: not family(embedded_host), what="its jobs are gone")
        wait_until(lambda: states(session) == ["ended", "lost"], what="that is told")
        result = session.execute("family.wait()")
        assert str(result.error).startswith("JobError: Job 2 was lost")
        lost = jobs(session)[1]
        assert f"was lost after {duration(lost['ended'] - lost['started'])}; " in str(result.kernel.note)
        assert "was lost, pid " in value(session, "repr(family)"), "when that was is not known there"
        assert value(session, "done.exit_code, done.output, family.exit_code") == (0, "kept\n", None)
        assert value(session, "again = run('echo', 'again')\nagain.wait(), again.output, again.number") == (
            0,
            "again\n",
            3,
        )
        assert value(session, "done.output") == "kept\n"

    def test_a_job_keeps_a_kernel_that_nobody_is_linked_to(self, embedded_host: Embedded) -> None:
        async def leave_a_job() -> None:
            request = KernelRequest(Location.parse(embedded_host.location()), uuid.uuid4().hex.encode(), grace=1)
            kernel = await RemoteKernel.start(request, lambda key, scheme, send, *_: Console(key, scheme, send))
            console = kernel._front
            assert isinstance(console, Console)
            code = "from albedo_bundle import run\nrun('sh', '-c', 'sleep 11; echo > done')"
            await console.execute(code, lambda *_: None).finished.wait()
            await kernel.leave()

        io_thread.run_blocking(leave_a_job())
        # Looked at every ten seconds: once while the job runs, and once more.
        wait_until((embedded_host.home / "done").exists, 30, "the job has come to its end")
        wait_until(lambda: not embedded_host.processes(), 30, "the kernel has ended then")


def is_kernel(process: Process) -> bool:
    return any(word.endswith("/launcher.py") for word in process.argv) and alive(process.pid)
