"""A Jupyter Server goes away, politely or not, and the next one finds the notebook's kernel - or a fresh one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from crash import albedo, code, crash, listed, write_notebook
from faces import Embedded, Host, keeper_of
from kernels import add_kernelspec, started_by_name
from leaks import settled
from notebook_server import Answer, Channels, NotebookServer
from procs import alive, send, wait_until

from albedo_provisioner.errors import AlbedoError
from albedo_provisioner.kernels.find import by_notebook
from albedo_provisioner.kernels.records import LIVE, KernelRecords

if TYPE_CHECKING:
    from conftest import Workspace

pytestmark = pytest.mark.timeout(300)  # two or three servers, one after the other, each of which takes its time


class Servers:
    """Jupyter Servers of one user, one after the other or side by side, with the same notebooks."""

    def __init__(self, workspace: Workspace) -> None:
        self.root = workspace.root / "notebooks"
        self.root.mkdir()
        self.running: list[NotebookServer] = []

    def start(self, time_to_dead: float = 0.3) -> NotebookServer:
        """Start one more."""
        self.running.append(NotebookServer(self.root, time_to_dead=time_to_dead))
        return self.running[-1]

    def crash(self, kernelspec: str) -> int:
        """Open the notebook in a server, set x to 41, and kill the server; return the kernel's pid."""
        server = self.start()
        pid = start_kept(server, kernelspec)
        server.kill()
        return pid


@pytest.fixture
def servers(workspace: Workspace) -> Iterator[Servers]:
    """Start Jupyter Servers; those that still run are stopped at the end."""
    servers = Servers(workspace)
    yield servers
    for server in servers.running:
        server.stop()


@contextmanager
def opened(
    server: NotebookServer, kernelspec: str, notebook: str = "a.ipynb"
) -> Iterator[tuple[dict[str, Any], Channels]]:
    """Open a notebook as JupyterLab does: its session, and its kernel's websocket."""
    answer = server.start(kernelspec, notebook)
    assert answer.status == 201, answer
    channels = server.open(answer.content["kernel"]["id"])
    try:
        yield answer.content, channels
    finally:
        channels.close()


def pid_in(channels: Channels) -> int:
    """Return the kernel's pid, as the kernel says."""
    return int(channels.run("import os\nprint(os.getpid())"))


def said(channels: Channels, code: str) -> tuple[str, str]:
    """Run code and return what it printed on each of its outputs."""
    cell = channels.begin(code)
    assert channels.finish(cell)["status"] == "ok"
    return channels.text(cell), channels.text(cell, "stderr")


def start_kept(server: NotebookServer, kernelspec: str) -> int:
    """Open the notebook, set x, and return the kernel's pid."""
    with opened(server, kernelspec) as (_, channels):
        channels.run("x = 41")
        return pid_in(channels)


def find_again(server: NotebookServer, kernelspec: str, pid: int) -> dict[str, Any]:
    """Open the notebook and return its session; its kernel is the one that it had, and the user is told."""
    with opened(server, kernelspec) as (session, channels):
        printed, told = said(channels, "import os\nprint(x, os.getpid())")
        assert printed == f"41 {pid}\n"
        assert "goes on with the kernel that ran for it" in told
        assert said(channels, "print(x)") == ("41\n", ""), "it is told once"
        return session


def pid_of_kernel_for(notebook: Path) -> int | None:
    """Return the pid of the kernel that `jupyter albedo recover` would take for a notebook."""
    (kernel,) = by_notebook(str(notebook), 20)
    (there,) = [each for each in listed() if each["kernel_id"] == kernel.kernel_id]
    pid: int | None = there["pid"]
    return pid


def end(server: NotebookServer, session: dict[str, Any]) -> None:
    """Shut a notebook's kernel down, as a user does."""
    assert server.ask("DELETE", f"api/sessions/{session['id']}").status == 204


class TestKilled:
    """The server gets no chance to do anything."""

    def test_the_next_server_finds_the_notebooks_kernel_and_restart_gives_a_fresh_one(
        self, servers: Servers, remote_host: Host
    ) -> None:
        """L3."""
        kernelspec = add_kernelspec(remote_host.location())
        pid = servers.crash(kernelspec)
        second = servers.start()
        session = find_again(second, kernelspec, pid)
        kernel_id = session["kernel"]["id"]

        with opened(second, kernelspec, "another.ipynb") as (other, channels):
            assert said(channels, "print('x' in globals())") == ("False\n", "")
        end(second, other)

        assert second.ask("POST", f"api/kernels/{kernel_id}/restart").status == 200
        channels = second.open(kernel_id)
        assert said(channels, "print('x' in globals())") == ("False\n", "")
        assert pid_in(channels) != pid
        channels.close()
        end(second, session)
        assert settled(remote_host.leftovers) == []
        assert KernelRecords().all() == []

    def test_a_page_is_served_while_the_cell_of_the_server_before_runs_on(
        self, servers: Servers, embedded_host: Embedded
    ) -> None:
        """L3: a kernel tells what it is on shell only when the cell has ended, and servers wait for that."""
        kernelspec = add_kernelspec(embedded_host.location())
        first = servers.start()
        with opened(first, kernelspec) as (_, channels):
            cell = channels.begin(
                "import itertools, os, time\nfor i in itertools.count():\n    print(i, flush=True)\n"
                "    if os.path.exists('go'): break\n    time.sleep(0.2)"
            )
            channels.until(lambda: channels.text(cell))
            first.kill()
        second = servers.start()
        answer = second.start(kernelspec)
        assert answer.status == 201, answer
        began = time.monotonic()
        channels = second.open(answer.content["kernel"]["id"])
        assert time.monotonic() - began < 10
        channels.until(lambda: channels.text(cell), 10)

        later = channels.begin("print(i > 0)")  # and what is asked on shell now has its turn after the cell
        info = channels.send("shell", "kernel_info_request", {})
        channels.until(lambda: channels.of(info, "kernel_info_reply"), 10)
        assert not channels.of(later, "execute_reply")
        embedded_host.write("go", "")
        assert channels.finish(later)["status"] == "ok"
        assert "goes on with the kernel" in channels.text(later, "stderr")
        assert channels.run("print(6 * 7)") == "42\n"
        assert len(channels.of(info, "kernel_info_reply")) == 1
        info = channels.send("shell", "kernel_info_request", {})
        channels.until(lambda: channels.of(info, "kernel_info_reply"))
        channels.close()
        end(second, answer.content)
        assert settled(embedded_host.leftovers) == []

    async def test_who_comes_to_a_cell_that_waits_for_an_answer_is_told_how_to_end_it(
        self, embedded_host: Embedded
    ) -> None:
        """L3: the question went to the page of the server before, and nobody can answer it any more."""
        kernelspec = add_kernelspec(embedded_host.location())
        crash(kernelspec, "/nb/a.ipynb", [(None, "x = 41\nprint('BEGUN', flush=True)\ninput('Your name? ')")])
        async with started_by_name(kernelspec, options={"env": {"JPY_SESSION_NAME": "/nb/a.ipynb"}}) as kernel:
            cell = kernel.begin("x")
            await cell.until(lambda: "waits for an answer to its input() ('Your name?')" in cell.stderr)
            assert "goes on with the kernel that ran for it" in cell.stderr
            assert "Interrupt the kernel" in cell.stderr
            assert cell.reply is None
            await kernel.manager.interrupt_kernel()
            await cell.done()
            assert cell.status in ("ok", "aborted")  # the interrupt gives up what waits as well, if it was there
            cell = await kernel.run("x")
            assert (cell.value, cell.stderr) == ("41", "")
            kernel.answer = lambda prompt: "Ann"
            assert await kernel.value("input('Your name? ')") == "'Ann'"

    def test_a_notebook_that_was_renamed_finds_it_and_one_of_the_old_name_does_not(
        self, servers: Servers, embedded_host: Embedded
    ) -> None:
        """L3: every new notebook has a name that it does not keep."""
        kernelspec = add_kernelspec(embedded_host.location())
        # Nothing else asks for the kernel's state meanwhile: the name is followed all the same.
        first = servers.start(time_to_dead=600)
        write_notebook(servers.root / "Untitled.ipynb", code("1"))
        with opened(first, kernelspec, "Untitled.ipynb") as (session, channels):
            channels.run("x = 41")
            pid = pid_in(channels)
            # As JupyterLab does it.
            for url in ("contents/Untitled.ipynb", f"sessions/{session['id']}"):
                assert first.ask("PATCH", f"api/{url}", {"path": "real.ipynb"}).status == 200
            wait_until(lambda: KernelRecords().all()[0].notebook.endswith("/real.ipynb"), 20, "it is on record")
            # Also by a keeper that takes the place of one which was killed.
            send(keeper_of(embedded_host), signal.SIGKILL)
            wait_until(lambda: channels.finish(channels.begin("1"))["status"] == "ok", 30, "another has it")
            assert "real.ipynb" in albedo("kernels")
            first.kill()
        second = servers.start()
        with opened(second, kernelspec, "Untitled.ipynb") as (other, channels):
            assert said(channels, "print('x' in globals())") == ("False\n", "")
        with opened(second, kernelspec, "real.ipynb") as (session, channels):
            printed, told = said(channels, "print(x)")
            assert (printed, pid_in(channels)) == ("41\n", pid)
            assert "goes on with the kernel" in told
        for each in (other, session):
            end(second, each)
        assert settled(embedded_host.leftovers) == []

    def test_one_that_was_renamed_without_a_server_is_known_by_its_file(
        self, servers: Servers, embedded_host: Embedded
    ) -> None:
        """L3: and a new one with the old name is not taken for it."""
        kernelspec = add_kernelspec(embedded_host.location())
        old, new, elsewhere = (servers.root / name for name in ("a.ipynb", "b.ipynb", "sub/b.ipynb"))
        write_notebook(old, code("1"))
        pid = servers.crash(kernelspec)
        assert "a.ipynb (" not in albedo("kernels")
        old.rename(new)
        write_notebook(old)
        assert "a.ipynb (now b.ipynb)" in albedo("kernels")
        assert pid_of_kernel_for(new) == pid
        with pytest.raises(AlbedoError, match="No kernel is known"):
            by_notebook(str(old), 20)
        elsewhere.parent.mkdir()
        new.rename(elsewhere)
        old.unlink()
        assert "a.ipynb (not there any more)" in albedo("kernels")
        write_notebook(old)
        second = servers.start()
        with opened(second, kernelspec) as (other, channels):
            assert said(channels, "print('x' in globals())") == ("False\n", "")
        end(second, other)
        with opened(second, kernelspec, "sub/b.ipynb") as (session, channels):
            assert pid_in(channels) == pid
        wait_until(lambda: KernelRecords().all()[0].notebook.endswith("sub/b.ipynb"), 20, "its name is on record")
        assert "not there" not in albedo("kernels")
        end(second, session)
        assert settled(embedded_host.leftovers) == []

    def test_changing_the_kernel_gives_a_fresh_one_and_ends_the_old(
        self, servers: Servers, embedded_host: Embedded
    ) -> None:
        """L3."""
        kernelspec = add_kernelspec(embedded_host.location())
        pid = servers.crash(kernelspec)
        second = servers.start()
        session = find_again(second, kernelspec, pid)
        content = {"kernel": {"name": kernelspec, "id": None}}
        changed = second.ask("PATCH", f"api/sessions/{session['id']}", content)
        assert changed.status == 200, changed
        channels = second.open(changed.content["kernel"]["id"])
        assert said(channels, "print('x' in globals())") == ("False\n", "")
        channels.close()
        wait_until(lambda: not alive(pid), 20, "the old kernel has ended")
        end(second, session)
        assert settled(embedded_host.leftovers) == []

    def test_a_host_that_comes_back_some_seconds_after_the_server_makes_no_difference(
        self, servers: Servers, remote_host: Host
    ) -> None:
        """L4."""
        kernelspec = add_kernelspec(remote_host.location())
        pid = servers.crash(kernelspec)
        remote_host.down()
        second = servers.start()
        with ThreadPoolExecutor() as threads:
            opening = threads.submit(find_again, second, kernelspec, pid)
            wait_until(lambda: ": connecting" in second.log() or opening.done(), 30, "the server tries")
            time.sleep(4)  # the scenario is about this very time
            assert not opening.done()
            remote_host.up()
            session = opening.result()
        end(second, session)
        assert settled(remote_host.leftovers) == []

    def test_a_host_that_stays_away_is_told_and_the_kernel_is_found_by_a_later_attempt(
        self, servers: Servers, embedded_host: Embedded
    ) -> None:
        """L4: an attempt that failed must not cost the notebook its kernel."""
        kernelspec = add_kernelspec(embedded_host.location())
        pid = servers.crash(kernelspec)
        embedded_host.down()
        second = servers.start()
        answer = second.start(kernelspec)
        assert answer.status == 500
        assert str(embedded_host.alias) in answer.content["message"]
        assert "refused" in answer.content["message"]
        embedded_host.up()
        end(second, find_again(second, kernelspec, pid))
        assert settled(embedded_host.leftovers) == []

    def test_a_kernel_that_has_ended_meanwhile_is_not_passed_off_as_the_new_one(
        self, servers: Servers, embedded_host: Embedded
    ) -> None:
        """L3, K5."""
        kernelspec = add_kernelspec(embedded_host.location())
        servers.crash(kernelspec)
        embedded_host.clear()
        second = servers.start()
        with opened(second, kernelspec) as (session, channels):
            printed, told = said(channels, "print('x' in globals())")
            assert printed == "False\n"
            assert "This is a new kernel: the one that ran for this notebook since" in told
            assert "has this kernel no more" in told
        end(second, session)

    def test_a_kernel_that_was_killed_meanwhile_is_replaced_and_its_cause_told(
        self, servers: Servers, embedded_host: Embedded
    ) -> None:
        """L3, K5: its keeper lives, with what the cells printed."""
        kernelspec = add_kernelspec(embedded_host.location())
        os.kill(servers.crash(kernelspec), signal.SIGKILL)
        second = servers.start()
        with opened(second, kernelspec) as (session, channels):
            printed, told = said(channels, "print('x' in globals())")
            assert printed == "False\n"
            assert "This is a new kernel" in told
            assert "SIGKILL" in told
        end(second, session)
        (left,) = listed()
        assert left["state"] == "exited"
        albedo("stop", left["kernel_id"])

    def test_of_two_servers_that_open_the_notebook_at_once_one_gets_its_kernel(
        self, servers: Servers, embedded_host: Embedded
    ) -> None:
        """L3: the other gets a fresh one."""
        kernelspec = add_kernelspec(embedded_host.location())
        pid = servers.crash(kernelspec)
        pair = [servers.start(), servers.start()]
        with ThreadPoolExecutor() as threads:
            answers: list[Answer] = list(threads.map(lambda server: server.start(kernelspec), pair))
        pids = []
        for server, answer in zip(pair, answers, strict=True):
            assert answer.status == 201, answer
            channels = server.open(answer.content["kernel"]["id"])
            pids.append(pid_in(channels))
            channels.close()
        assert pids.count(pid) == 1
        for server, answer in zip(pair, answers, strict=True):
            end(server, answer.content)
        assert settled(embedded_host.leftovers) == []


class TestStopped:
    """The server is told to end, and ends as it likes."""

    @pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, "the page's"])
    def test_a_kernel_that_is_to_be_kept_is_found_by_the_next_server(
        self, servers: Servers, embedded_host: Embedded, how: signal.Signals | str
    ) -> None:
        """L3, with `on_server_exit`: "keep"; a cell that runs is not broken off."""
        kernelspec = add_kernelspec(embedded_host.location(), {"on_server_exit": "keep"})
        first = servers.start()
        with opened(first, kernelspec) as (_, channels):
            channels.run("x = 41")
            pid = pid_in(channels)
            cell = channels.begin(
                "print('begun', flush=True)\nimport os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nx = 42"
            )
            channels.until(lambda: channels.text(cell))
            if isinstance(how, signal.Signals):
                first.stop(how)
            else:  # and what `jupyter server stop` does
                first.ask("POST", "api/shutdown")
                first.wait()
        assert alive(pid)
        (record,) = KernelRecords().all()
        assert record.state == LIVE
        embedded_host.write("go", "")
        second = servers.start()
        with opened(second, kernelspec) as (session, channels):
            printed, told = said(channels, "print(x)")
            assert printed == "42\n"
            assert "goes on with the kernel" in told
            assert pid_in(channels) == pid
        # A user's own "Shut Down Kernel" is meant.
        end(second, session)
        assert settled(embedded_host.leftovers) == []
        assert not alive(pid)

    def test_one_whose_host_is_out_of_reach_at_that_moment_is_kept_too(
        self, servers: Servers, embedded_host: Embedded
    ) -> None:
        """L4, with `on_server_exit`: "keep"."""
        kernelspec = add_kernelspec(embedded_host.location(), {"on_server_exit": "keep"})
        first = servers.start()
        pid = start_kept(first, kernelspec)
        embedded_host.down()
        wait_until(lambda: "reattaching" in first.log(), 20, "the server has noticed")
        first.stop()
        (record,) = KernelRecords().all()
        assert record.state == LIVE
        embedded_host.up()
        second = servers.start()
        session = find_again(second, kernelspec, pid)
        assert second.ask("DELETE", f"api/kernels/{session['kernel']['id']}").status == 204
        assert settled(embedded_host.leftovers) == []
        assert not alive(pid)

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_without_that_nothing_is_left(self, servers: Servers, remote_host: Host, number: signal.Signals) -> None:
        """K6, K8: `on_server_exit` is "end" unless it is set."""
        first = servers.start()
        pid = start_kept(first, add_kernelspec(remote_host.location()))
        first.stop(number)
        assert settled(remote_host.leftovers) == []
        assert not alive(pid)
        assert KernelRecords().all() == []
