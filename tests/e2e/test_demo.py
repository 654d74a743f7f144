"""`jupyter albedo demo`: what it shows, that it finds out what is not so, and that nothing is left in any case."""

from __future__ import annotations

import os
import pty
import queue
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import leaks
import pytest
from conftest import Workspace
from procs import alive, everyone, send, wait_until

DEMO = (sys.executable, "-m", "albedo_provisioner", "demo")
# The limit for one line to follow another: the machine may be busy with other things.
PATIENCE = 60.0


class Running:
    """A demonstration that runs; its lines can be awaited one by one."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONIOENCODING": "utf-8", **environ},
            text=True,
            encoding="utf-8",
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._queue.put(line.rstrip("\n"))
        self._queue.put(None)

    def line(self, start: str) -> str:
        """Return the next line that begins so, or that is of the step of this name."""
        while True:
            line = self._queue.get(timeout=PATIENCE)
            assert line is not None, f"no line {start!r} came; there were:\n" + "\n".join(self.lines)
            self.lines.append(line)
            if re.match(rf" [✓✗!] {re.escape(start)} ", line) or line.strip().startswith(start):
                return line

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def kill_host(self) -> None:
        (server,) = [each for each in everyone() if each.ppid == self.process.pid]
        send(server, signal.SIGKILL)

    def end(self) -> tuple[int, str, str]:
        """Wait for the end; return exit status, standard output and standard error."""
        status = self.process.wait(PATIENCE)
        self._reader.join()
        while (line := self._queue.get()) is not None:
            self.lines.append(line)
        assert self.process.stderr is not None
        return status, "\n".join(self.lines), self.process.stderr.read()


@contextmanager
def demo(*arguments: str, argv: Sequence[str] = DEMO, **environ: str) -> Iterator[Running]:
    """Start a demonstration, and see that it does not outlive the test."""
    running = Running([*argv, *arguments], environ)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()
        running._reader.join(PATIENCE)
        for stream in (running.process.stdout, running.process.stderr):
            assert stream is not None
            stream.close()


def root(space: Workspace) -> Path:
    """Return the directory of the demonstration's host."""
    (found,) = space.temp.glob("albedo-demo-*")
    return found


def assert_nothing_left(space: Workspace, *, records: bool = False) -> None:
    """Nothing at all: no process of this test, no temporary file, nothing in Jupyter's directories.

    Unless `records` says that another process has run a kernel for the user, no records of kernels either.
    """
    assert leaks.settled(lambda: [str(process) for process in leaks.mine()]) == []
    assert sorted(space.temp.iterdir()) == []
    for directory in (space.data_dir, space.runtime_dir, space.config_dir, space.home):
        assert [path for path in directory.rglob("*") if path.is_file()] == []
    assert records or not space.albedo_home.exists(), sorted(space.albedo_home.rglob("*"))


def test_shows_in_a_screenful_that_nothing_was_lost_and_leaves_nothing(workspace: Workspace) -> None:
    with demo() as running:
        status, out, err = running.end()
    assert (status, err) == (0, "")
    for statement in (
        r"host +demo-host: an ssh server on 127\.0\.0\.1:\d+, fresh home +\d+\.\d s$",
        r"connect +kernelspec albedo-demo-host-project for demo-host:~/project +\d+\.\d s$",
        r"kernel +started and ready, pid \d+ +\d+\.\d s$",
        r"cell 1 +ran on \S+ in ~/project",
        r"cut +the link, after line \d+ of 50: 1 connection broken, no way in$",
        r"reattach +by itself, \d+\.\d\d s after the host could be reached again +\d+\.\d s$",
        r"cell 4 +50 of 50 lines, in order, each once; \d+ printed during the cut$",
        r"cell 5 +the same kernel: pid \d+, x is still 285; 2 connections in all$",
        r"shutdown +the kernel and its keeper have ended +\d+\.\d s$",
        r"left over +on the host: no process, no run directory, nothing but the bundle$",
        r"left over +on this side: no process, no file +\d+\.\d s$",
        r"^ Nothing was lost and nothing is left\. \d+\.\d s in all\.$",
    ):
        assert re.search(statement, out, re.MULTILINE), f"{statement} is not in\n{out}"
    lines = out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 79
    assert "\x1b" not in out
    assert "\r" not in out
    assert_nothing_left(workspace)


def test_works_as_jupyter_subcommand_with_an_ascii_terminal(workspace: Workspace) -> None:
    script = str(Path(sys.executable).with_name("jupyter-albedo"))
    with demo("demo", argv=[script], PYTHONIOENCODING="ascii", LC_ALL="C") as running:
        status, out, err = running.end()
    assert (status, err) == (0, "")
    assert out.isascii()
    assert " + cell 4 " in out
    assert_nothing_left(workspace)


def test_names_lost_lines_and_fails_when_the_host_may_hold_too_little(workspace: Workspace) -> None:
    # 2 kB hold three messages or so; a second and a half of the cut brings more than ten.
    program = "import sys; from albedo_provisioner.demo.run import main; sys.exit(main(hold=2000))"
    with demo(argv=[sys.executable, "-c", program]) as running:
        status, out, err = running.end()
    assert status == 1
    assert re.search(r"^ ✗ cell 4 +\d\d of 50 lines came; missing: \d+-\d+$", out, re.MULTILINE)
    assert re.fullmatch(
        r"jupyter albedo demo: this was not as it should be:\n  \d\d of 50 lines came; missing: .+\n(?s:.*)", err
    )
    assert "Nothing was lost" not in out
    assert_nothing_left(workspace)


def test_says_so_when_the_kernel_dies(workspace: Workspace) -> None:
    with demo() as running:
        pid = int(re.findall(r"pid (\d+)", running.line("kernel"))[0])
        running.line("cell 3")
        os.kill(pid, signal.SIGKILL)
        status, out, err = running.end()
    assert status == 1
    assert re.search(r"Cell 4 of the notebook .*The kernel on demo-host was ended by SIGKILL\.", err)
    assert "Traceback" not in out + err
    assert_nothing_left(workspace)


def test_finds_a_process_and_a_run_directory_that_are_left_on_the_host(workspace: Workspace) -> None:
    with demo() as running:
        running.line("kernel")
        host = root(workspace)
        # A process of the host that is none of the kernel's, so that nobody ends it with the kernel.
        stray = subprocess.Popen(["sleep", "600"], env={"ALBEDO_DEMO_HOST": str(host)}, start_new_session=True)
        (host / "home" / ".albedo-remote" / "run" / "stray").mkdir()
        status, out, err = running.end()
        assert stray.wait(PATIENCE) == -signal.SIGKILL
    assert status == 1
    assert f"process {stray.pid} (sleep 600) on the host" in err
    assert "run directory stray on the host" in err
    assert " ✗ left over" in out
    assert_nothing_left(workspace)


def test_finds_a_file_that_is_left_on_this_side(workspace: Workspace) -> None:
    with demo() as running:
        running.line("kernel")
        left = root(workspace) / "jupyter" / "runtime" / "stray"
        left.touch()
        status, _, err = running.end()
    assert status == 1
    assert f"{left} on this machine" in err
    assert_nothing_left(workspace)


def test_says_so_when_the_host_dies_during_the_cut(workspace: Workspace) -> None:
    with demo() as running:
        running.line("cut")
        running.kill_host()
        status, out, err = running.end()
    assert status == 1
    assert "The link could not be cut and mended: the embedded host demo-host died" in err
    assert "Traceback" not in out + err
    assert_nothing_left(workspace)


def test_says_in_one_sentence_that_the_host_cannot_be_used(workspace: Workspace) -> None:
    with demo() as running:
        running.line("host")
        running.kill_host()
        status, _, err = running.end()
    assert status == 1
    assert re.fullmatch(r"jupyter albedo: [^\n]*demo-host[^\n]*\n", err)
    assert_nothing_left(workspace)


@pytest.mark.parametrize("step", ["A kernel on another host", "host", "connect", "kernel", "cell 3", "cut", "reattach"])
def test_ctrl_c_cleans_up_at_any_time(workspace: Workspace, step: str) -> None:
    with demo() as running:
        running.line(step)
        running.interrupt()
        status, out, err = running.end()
    assert status == 130
    assert out.splitlines()[-1] == " Interrupted. The host, its processes and all files of the demo are gone."
    assert err == ""
    assert_nothing_left(workspace)


def test_leaves_nothing_when_ctrl_c_is_hammered(workspace: Workspace) -> None:
    with demo() as running:
        running.line("cut")

        def ended() -> bool:
            running.interrupt()
            return running.process.poll() is not None

        wait_until(ended, PATIENCE)
        status, _, _ = running.end()
    # The last one may have come when there was only the interpreter left to end.
    assert status in (130, -signal.SIGINT)
    assert_nothing_left(workspace)


def test_leaves_nothing_when_it_is_killed(workspace: Workspace) -> None:
    with demo() as running:
        running.line("cut")
        running.process.kill()
        running.end()
    # The host notices, ends all it started and removes its directory, with what lies in it of this side.
    wait_until(lambda: not list(workspace.temp.iterdir()), PATIENCE)
    assert_nothing_left(workspace)


# --serve


def served(running: Running) -> dict[str, str]:
    """Read off what `--serve` tells people to paste: environment variables by name, and the kernelspec as "KERNEL"."""
    command = [running.line("env "), running.line("JUPYTER_PATH"), running.line("jupyter lab")]
    words = shlex.split("\n".join(command).replace("\\\n", " "))
    assert words[0] == "env"
    assert words[-2:] == ["jupyter", "lab"]
    variables = dict(word.split("=", 1) for word in words[1:-2])
    assert set(variables) == {"ALBEDO_SSH_CONFIG", "JUPYTER_PATH"}
    execute = running.line("jupyter execute")
    (kernel,) = re.findall(r"--kernel_name=(\S+) ", execute)
    return {**variables, "KERNEL": kernel}


EXECUTE = """
import sys, nbformat, nbclient
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("import os; print(os.getcwd())")])
nbclient.NotebookClient(notebook, kernel_name=sys.argv[1], timeout=60).execute()
print(notebook.cells[0].outputs[0].text)
"""


def test_serves_a_host_that_another_process_runs_a_notebook_on(workspace: Workspace) -> None:
    with demo("--serve", JUPYTER_PATH="/the/users/own") as running:
        told = served(running)
        assert told["JUPYTER_PATH"].endswith(":/the/users/own")
        running.line("Ctrl-C ends the host")
        home = root(workspace) / "home"
        other = subprocess.run(
            [sys.executable, "-c", EXECUTE, told.pop("KERNEL")],
            env={**os.environ, **told},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert other.stdout.strip() == str(home / "project"), other.stderr
        running.interrupt()
        status, out, err = running.end()
    assert (status, err) == (130, "")
    assert out.splitlines()[-1] == " The host, its processes and all files of the demo are gone."
    assert_nothing_left(workspace, records=True)


def test_says_so_when_the_served_host_dies(workspace: Workspace) -> None:
    with demo("--serve") as running:
        running.line("Ctrl-C ends the host")
        running.kill_host()
        status, _, err = running.end()
    assert status == 1
    assert "demo-host has ended by itself" in err
    assert "Traceback" not in err
    assert_nothing_left(workspace)


# Terminals


@pytest.mark.parametrize("plain", [False, True], ids=["colours", "NO_COLOR"])
def test_rewrites_the_step_under_way_on_a_terminal_only_with_colours(workspace: Workspace, plain: bool) -> None:
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
    environ.pop("NO_COLOR", None)
    if plain:
        environ["NO_COLOR"] = "1"
    process = subprocess.Popen(DEMO, stdin=theirs, stdout=theirs, stderr=theirs, env=environ)
    os.close(theirs)
    text = b""
    try:
        while chunk := os.read(ours, 65536):
            text += chunk
    except OSError:
        pass  # how Linux says that the other end of a terminal is closed
    finally:
        os.close(ours)
        if process.wait(PATIENCE):
            pytest.fail(text.decode())
    written = text.decode()
    assert ("\x1b" in written) is not plain
    assert ("link down, cell goes on" in written) is not plain
    # What stands on the screen at the end: the last text of each line.
    screen = [line.rsplit("\x1b[2K", 1)[-1] for line in written.replace("\r\n", "\n").rstrip("\n").split("\n")]
    assert len(screen) <= 24
    assert max(len(re.sub(r"\x1b\[\d+m", "", line)) for line in screen) <= 79
    assert not alive(process.pid)
    assert_nothing_left(workspace)
