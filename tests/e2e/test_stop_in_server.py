"""A kernel that a Jupyter Server has open is ended from elsewhere, and the server has a new one made in its place."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from crash import albedo, crash, listed, until_state
from faces import Embedded, keeper_of
from kernels import PATIENCE, add_kernelspec
from leaks import settled
from notebook_server import Channels, NotebookServer
from procs import Process, alive, send, wait_until

from albedo_provisioner.hosts import io_thread
from albedo_provisioner.kernels.endings import end_at
from albedo_provisioner.kernels.records import LIVE, KernelRecords

if TYPE_CHECKING:
    from conftest import Workspace


def kernel_process(host: Embedded) -> Process | None:
    """Return the process of the only kernel on a host; None while there is none, or another one beside it."""
    found = [each for each in host.processes() if any(word.endswith("/launcher.py") for word in each.argv)]
    return found[0] if len(found) == 1 else None


def until_new(channels: Channels, before: Process, host: Embedded) -> Process:
    """Wait until the server has made another kernel than the one before, which answers; return its process."""

    def another() -> Process | None:
        found = kernel_process(host)
        return found if found is not None and found.pid != before.pid else None

    new = wait_until(another, PATIENCE, "another kernel is there")
    assert new is not None

    def pid() -> str:
        cell = channels.begin("import os\nprint(os.getpid())")
        channels.finish(cell)
        return channels.text(cell)

    wait_until(lambda: pid() == f"{new.pid}\n", PATIENCE, "it answers")
    return new


def test_the_next_kernel_lives_and_what_kills_it_is_not_said_to_be_who_ended_the_one_before(
    server: NotebookServer, embedded_host: Embedded
) -> None:
    """K5: the server's restarter comes while the old kernel's family is still being ended, or its keeper goes."""
    kernel_id = server.start(add_kernelspec(embedded_host.location())).content["kernel"]["id"]
    channels = server.open(kernel_id)
    lingering = (
        "import subprocess\nsubprocess.Popen(['sh', '-c', 'trap \"sleep 1; exit\" TERM; while :; do sleep .1; done'])"
    )
    for code in ("x = 41", lingering):
        channels.run(code)
        before = kernel_process(embedded_host)
        assert before is not None
        assert "Ended" in albedo("stop", kernel_id)
        new = until_new(channels, before, embedded_host)
        (record,) = KernelRecords().all()
        assert (record.kernel_id, record.state, record.orphaned) == (kernel_id, LIVE, False)
    assert server.ask("POST", f"api/kernels/{kernel_id}/restart").status == 200
    until_new(channels, new, embedded_host)

    cell = channels.begin("print('begun', flush=True)\nimport time\ntime.sleep(600)")
    channels.until(lambda: channels.text(cell))
    killed = kernel_process(embedded_host)
    assert killed is not None
    for process in (keeper_of(embedded_host), killed):
        send(process, signal.SIGKILL)
    reply = channels.finish(cell)
    assert f"{embedded_host.alias} has this kernel no more" in reply["evalue"]
    until_new(channels, killed, embedded_host)
    channels.close()
    assert server.ask("DELETE", f"api/kernels/{kernel_id}").status == 204


def test_an_end_that_comes_too_late_leaves_the_next_kernel_of_that_id_alone(
    embedded_host: Embedded, workspace: Workspace
) -> None:
    """K6: whoever has a kernel ended may hear nothing of it before another one was started in its place."""
    crash(add_kernelspec(embedded_host.location()), workspace.root / "a.ipynb", [(None, "print('BEGUN')")])
    (kernel,) = listed()
    process = kernel_process(embedded_host)
    assert process is not None

    def end(started: float) -> dict[str, Any]:
        return io_thread.run_blocking(end_at(kernel["host"], None, kernel["kernel_id"], started))

    assert end(kernel["since"] - 60)["ended"] == []
    assert until_state("idle")["kernel_id"] == kernel["kernel_id"]
    assert alive(process.pid)
    end(kernel["since"])
    assert not alive(process.pid)
    assert settled(embedded_host.leftovers) == []


def test_an_end_that_was_promised_is_kept_by_a_restart_and_leaves_the_fresh_kernel_alone(
    server: NotebookServer, embedded_host: Embedded
) -> None:
    """L7: the promise was about the kernel that the restart has ended."""
    kernel_id = server.start(add_kernelspec(embedded_host.location())).content["kernel"]["id"]
    channels = server.open(kernel_id)
    channels.run("x = 41")
    (kernel,) = KernelRecords().all()
    embedded_host.down()
    albedo("stop", kernel.kernel_id, status=1)
    embedded_host.up()
    channels.run("x += 1")  # it is there again, and nobody has come to keep the promise
    assert server.ask("POST", f"api/kernels/{kernel_id}/restart").status == 200
    channels.run("x = 7")
    (found,) = listed()
    assert found["state"] == "idle"
    assert channels.run("print(x)") == "7\n"
    assert [record.state for record in KernelRecords().all()] == [LIVE]
    assert server.ask("DELETE", f"api/kernels/{kernel_id}").status == 204
