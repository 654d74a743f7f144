"""S2: where no kernel can be started, code is run in a fresh interpreter: once, and what became of it is told."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from faces import Embedded, Host, Real
from procs import wait_until

from albedo_provisioner import AsyncSessions, Limits, Session, Sessions
from albedo_provisioner.errors import KernelStartError
from albedo_provisioner.sessions import without_kernel


def broken(host: Host) -> dict[str, str]:
    """Return an environment in which no kernel of a host comes up."""
    host.write("broken/ipykernel/__init__.py", "raise ImportError('half installed')\n")
    return {"PYTHONPATH": str(host.home / "broken")}


@pytest.fixture
def session(embedded_host: Embedded, sessions: Sessions) -> Session:
    return sessions.open(embedded_host.location(), env=broken(embedded_host))


def note(session: Session, code: str, timeout: float | None = 60) -> str:
    """Run code that works, and return what there is to say of it."""
    result = session.execute(code, timeout=timeout)
    assert (result.status, result.stdout) == ("ok", "x\n")
    return str(result.kernel.note)


def test_the_result_says_so(any_host: Host, sessions: Sessions) -> None:
    any_host.write("json.py", "raise ImportError('the folder has a module of that name')\n")
    session = sessions.open(any_host.location(), env={**broken(any_host), "A": "1"})
    result = session.execute(
        "import os, sys\nprint('out')\nprint('err', file=sys.stderr)\nos.environ['A'], os.getcwd(), __name__"
    )
    assert (result.status, result.stdout, result.stderr) == ("ok", "out\n", "err\n")
    assert result.value == repr(("1", str(any_host.home), "__main__"))
    assert (result.kernel.reused, result.kernel.ended, result.kernel.state_lost) == (False, True, False)
    assert "without one" in str(result.kernel.note)
    assert "half installed" in str(result.kernel.note)
    assert session.status()["kernel_id"] is None
    assert session.cell(result.cell_id).value == result.value
    wait_until(lambda: not any_host.processes(), what="nothing is left")


def test_also_where_there_are_no_packages_for_a_kernel(
    embedded_host: Embedded, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    made = embedded_host.run([str(embedded_host.python), "-m", "venv", "--without-pip", "bare"])
    assert made.returncode == 0
    session = sessions.open(embedded_host.location(), python=str(embedded_host.home / "bare" / "bin" / "python3"))
    result = session.execute("import importlib.util\nimportlib.util.find_spec('ipykernel')\n1 + 1")
    assert (result.status, result.value) == ("ok", "2")
    assert "has no ipykernel" in str(result.kernel.note)


def test_a_kernel_that_can_be_started_later_is(embedded_host: Embedded, session: Session) -> None:
    result = session.execute("'ran'")
    assert (result.value, result.kernel.ended) == ("'ran'", True)
    (embedded_host.home / "broken" / "ipykernel" / "__init__.py").unlink()
    (embedded_host.home / "broken" / "ipykernel").rename(embedded_host.home / "mended")
    again = session.execute("x = 41\nx")
    assert (again.value, again.kernel.ended, again.execution_count) == ("41", False, 1)


def test_the_disk_may_be_full(sshd_host: Real, full_home: Callable[[int], None], sessions: Sessions) -> None:
    """H5: nothing is written for it."""
    full_home(128 << 10)
    session = sessions.open(sshd_host.location())
    result = session.execute("import os\nos.getcwd()")
    assert (result.status, result.value) == ("ok", repr(str(sshd_host.home)))
    assert "could not be put" in str(result.kernel.note)
    assert not list(sshd_host.home.rglob("*.py"))
    subprocess.run(["mount", "-o", "remount,size=8m", sshd_host.home], check=True)
    with_kernel = session.execute("1 + 1")
    assert (with_kernel.value, with_kernel.kernel.ended) == ("2", False)
    sshd_host.run(["sh", "-c", "cat /dev/zero > filler"])
    session.reset()
    assert session.execute("1 + 1").value == "2"


class TestWhatCameOfIt:
    def test_is_told_as_by_a_kernel(self, session: Session) -> None:
        error = session.execute("def f(): 1 / 0\nf()")
        assert (error.status, error.error) == ("error", "ZeroDivisionError: division by zero")
        assert "in f\n    def f(): 1 / 0" in str(error.traceback)
        assert "fresh" not in str(error.traceback)
        assert session.execute("this is no Python").error.startswith("SyntaxError")  # type: ignore[union-attr]
        awaited = session.execute("import asyncio\ntask = asyncio.create_task(asyncio.sleep(0, 5))\nawait task")
        assert (awaited.status, awaited.value) == ("ok", "5")
        assert session.execute("import asyncio\nasyncio.run(asyncio.sleep(0, 6))").value == "6"
        large = session.execute("'\u00e4\"' * 800_000")
        assert large.full_value() == repr('\u00e4"' * 800_000)
        cut = session.execute("'v' * 3000", limits=Limits(displays=100))
        assert (cut.value_clipped, cut.full_value()) == (True, repr("v" * 3000))
        assert "The value has 3,002 characters and is cut" in str(cut.kernel.note)
        assert session.execute(f"x = {'1 + ' * 50_000} 1\nx").status in ("ok", "error")
        fast = session.execute("import pickle\nclass A: pass\npickle.loads(pickle.dumps(A)) is A")
        assert fast.value == "True"

    def test_is_told_when_the_code_ends_its_interpreter(self, session: Session) -> None:
        killed = session.execute("import os\nos.kill(os.getpid(), 9)")
        assert (killed.status, killed.traceback) == ("error", None)
        assert "was ended by SIGKILL" in str(killed.error)
        assert str(killed.error) in str(killed.kernel.note)
        assert "exit status 7" in str(session.execute("import os\nos._exit(7)").error)
        left = session.execute("print('x')\nimport sys\nsys.exit('bye')")
        assert (left.status, left.error, left.stderr) == ("error", "SystemExit: bye", "bye\n")
        assert session.execute("import sys\nsys.exit()").status == "ok"
        closed = session.execute("print('x', flush=True)\nimport os\nos.closerange(3, 99)\n5")
        assert (closed.status, closed.value) == ("ok", None)
        assert "had not told what came of the code" in str(closed.kernel.note)


class TestWhatItLeavesRunning:
    def test_ends_with_it_and_is_named(self, embedded_host: Embedded, session: Session) -> None:
        detached = "import subprocess\nsubprocess.Popen(['sleep', '321'], start_new_session=True, env={})\nprint('x')"
        assert "ended with it: sleep." in note(session, detached, timeout=30)
        forked = "import os, time\nif not os.fork():\n    time.sleep(300)\nprint('x')"
        assert "ended with it: python" in note(session, forked, timeout=30)
        # Written at once: `print` writes the end of a line by itself, and others may come between.
        flooding = "import subprocess, sys\nsubprocess.Popen(['yes'], stderr=1)\nsys.stdout.write('x\\n')"
        result = session.execute(flooding, timeout=30)
        assert (result.status, "x\n" in result.full_stdout()) == ("ok", True)
        assert "ended with it: yes." in str(result.kernel.note)
        wait_until(lambda: not embedded_host.processes(), what="nothing is left")

    def test_is_not_waited_for_when_nothing_holds_the_code(self, session: Session) -> None:
        """A thread or a child that the code waits for is the code."""
        late = "import threading, time\nthreading.Timer(0.5, lambda: print('x')).start()\n"
        assert "ended with it" not in note(session, late)
        child = "import os\nif os.fork():\n    os.wait()\nelse:\n    print('x')\nos.getpid()"
        assert "ended with it" not in note(session, child)

    def test_tells_nothing_in_its_place(self, session: Session) -> None:
        """A forked child comes to the end of the code as well."""
        code = "import os\nchild = not os.fork()\nif child:\n    1 / 0\nelse:\n    os.wait()\n'the parent'"
        result = session.execute(code)
        assert (result.status, result.value, result.error) == ("ok", "'the parent'", None)
        assert "ZeroDivisionError" in result.stderr


class TestItsTime:
    def test_when_it_is_over_the_code_is_interrupted_and_then_killed(
        self, embedded_host: Embedded, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(without_kernel, "INTERRUPT_GRACE", 0.5)
        code = "import subprocess, time\nsubprocess.Popen(['sleep', '7777'])\nprint('begun')\ntime.sleep(600)"
        late = session.execute(code, timeout=0.5)
        assert (late.status, late.stdout) == ("timeout", "begun\n")
        assert "ran for more than 0.5 s and was interrupted." in str(late.kernel.note)
        deaf = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('begun')\ntime.sleep(600)"
        late = session.execute(deaf, timeout=0.5)
        assert (late.status, late.stdout) == ("timeout", "begun\n")
        assert "did not stop within 0.5 s, so it was killed" in str(late.kernel.note)
        wait_until(lambda: not embedded_host.processes(), what="nothing is left")

    def test_may_be_ended_by_an_interrupt(self, session: Session) -> None:
        code = "import time\ntry:\n    print('begun\\n', end='')\n    time.sleep(600)\nfinally:\n    print('x')"
        begun = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(session.execute, code, on_output=lambda _: begun.set())
            assert begun.wait(60)
            status = session.status()
            assert session.interrupt()
            result = call.result()
        assert (result.status, result.stdout) == ("interrupted", "begun\nx\n")
        assert (status["execution_state"], status["cell_id"]) == ("busy", result.cell_id)
        assert not session.interrupt()

    def test_an_interrupt_that_comes_before_the_code_has_it_not_run(
        self, embedded_host: Embedded, session: Session
    ) -> None:
        profile = (embedded_host.home / ".profile").read_text()
        embedded_host.write(".profile", f"{profile}\nsleep 1\n")
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(session.execute, "open('ran', 'w')", cell_id="a")
            wait_until(lambda: session.status()["execution_state"] == "busy", 60, "the kernel has not come up")
            assert session.interrupt()
            result = call.result()
        assert (result.status, result.kernel.ended) == ("interrupted", True)
        assert "was not run" in str(result.kernel.note)
        assert session.execute("open('ran', 'w')", cell_id="a").to_dict() == result.to_dict()
        assert not (embedded_host.home / "ran").exists()


class TestOnce:
    """Whatever happens: under one `cell_id` code runs once, and nothing says of what has run that it has not."""

    CODE = "open('ran', 'a').write('x')\nprint('begun')\nimport time\ntime.sleep({})"

    def test_also_when_the_link_is_cut(self, embedded_host: Embedded, session: Session) -> None:
        result = session.execute(self.CODE.format(600), cell_id="a", on_output=lambda _: embedded_host.cut())
        assert (result.status, result.stdout.strip()) == ("lost", "begun")
        assert "may have run" in str(result.kernel.note)
        assert str(result.kernel.note).endswith(".")
        again = session.execute(self.CODE.format(0), cell_id="a")
        assert (again.status, again.stdout) == (result.status, result.stdout)
        assert (embedded_host.home / "ran").read_text() == "x"
        wait_until(lambda: not embedded_host.processes(), what="nothing is left")

    async def test_also_when_its_caller_is_cancelled(
        self, embedded_host: Embedded, async_sessions: AsyncSessions
    ) -> None:
        session = await async_sessions.open(embedded_host.location(), env=broken(embedded_host))
        begun = threading.Event()
        call = asyncio.create_task(session.execute(self.CODE.format(600), cell_id="a", on_output=lambda _: begun.set()))
        assert await asyncio.to_thread(begun.wait, 60)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        result = await session.execute(self.CODE.format(0), cell_id="a")
        assert (result.status, result.error) == ("interrupted", "KeyboardInterrupt: ")
        assert (embedded_host.home / "ran").read_text() == "x"

    def test_and_an_error_means_that_it_was_not_run(
        self, embedded_host: Embedded, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(without_kernel, "MOST_CODE", 10)
        with pytest.raises(KernelStartError, match=r"half installed.*Nor could the code be run.* bytes"):
            session.execute(self.CODE.format(0), cell_id="a")
        assert session.cells() == []
        assert not (embedded_host.home / "ran").exists()
        monkeypatch.undo()
        assert session.execute(self.CODE.format(0), cell_id="a").status == "ok"
        assert (embedded_host.home / "ran").read_text() == "x"
