"""`jupyter albedo kernels` and `stop`: which kernels there are, also when nobody can say, and how they are ended."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import terminal
from crash import albedo, crash, listed, running_client, until_state
from faces import Embedded, Host
from kernels import PATIENCE, add_kernelspec
from procs import wait_until
from terminal import Terminal

from albedo_provisioner import kernelspecs
from albedo_provisioner.hosts import login_shell
from albedo_provisioner.kernels import survey
from albedo_provisioner.kernels.records import KernelRecords
from albedo_provisioner.location import Location

if TYPE_CHECKING:
    from conftest import Workspace

IDLE = (None, "print('BEGUN')")
BUSY = (None, "import subprocess\nsubprocess.Popen(['sleep', '600'])\nprint('BEGUN', flush=True)\nwhile True: pass")


@pytest.fixture
def notebook(workspace: Workspace) -> Path:
    """Return the path of a notebook; the kernel commands do not open it, and are not led astray by its name."""
    return workspace.root / "a\n\x1b[31m.ipynb"


def nothing_left(host: Host) -> None:
    """Wait until no process is left on a host: what watched over a login shell takes up to a second to see its end."""
    wait_until(lambda: not host.processes(), PATIENCE, "nothing is left on the host")


def test_a_kernel_is_listed_with_all_that_is_known_of_it_and_ended_with_its_children(
    any_host: Host, notebook: Path
) -> None:
    folder = any_host.make_folder("proj")
    began = time.time()
    any_host.write(".albedo-remote/run/filler", "no kernel, and not listed as one")
    crash(add_kernelspec(any_host.location("proj")), notebook, [BUSY])
    (kernel,) = listed()
    assert (kernel["host"], kernel["folder"]) == (any_host.alias, str(folder))
    assert (kernel["notebook"], kernel["state"], kernel["note"]) == (str(notebook), "busy", None)
    assert began - 1 < kernel["since"] < time.time() + 1
    assert kernel["memory"] > 10_000_000
    assert kernel["on_record"] is True

    head, row = albedo("kernels").splitlines()
    assert head.split() == ["ID", "HOST", "FOLDER", "NOTEBOOK", "STATE", "SINCE", "MEMORY"]
    short = kernel["kernel_id"][:8]
    assert row.startswith(f"{short}  {any_host.alias or 'this machine'}  ")
    assert "  busy  " in row
    assert "a\\n\\x1b[31m.ipynb  " in row

    said = albedo("stop", short)
    assert f"Ended {short} on" in said
    assert "a\\n\\x1b[31m.ipynb)" in said
    nothing_left(any_host)
    assert KernelRecords().all() == []
    assert "No kernel runs" in albedo("kernels")
    (any_host.home / ".albedo-remote/run/filler").unlink()


def test_a_host_with_a_slow_profile_is_asked_without_it(
    embedded_host: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert survey.DEADLINE >= 2 * login_shell.PATIENCE
    monkeypatch.setattr(login_shell, "PATIENCE", 2.5)
    embedded_host.write(".profile", "sleep 40\n")
    (answer,) = survey.survey([embedded_host.alias], 1.0)
    assert "did not answer within 1 s" in str(answer.error)
    assert "--timeout SECONDS" in str(answer.error)
    (answer,) = survey.survey([embedded_host.alias])
    assert answer.error is None


def test_a_kernel_in_use_is_listed_and_stays(embedded_host: Embedded, notebook: Path) -> None:
    with running_client(add_kernelspec(embedded_host.location()), notebook, [IDLE]) as client:
        until_state("idle")
        assert client.poll() is None
    assert "Ended" in albedo("stop", "--notebook", notebook)


def test_a_kernel_that_exited_is_told_so(embedded_host: Embedded, notebook: Path) -> None:
    crash(
        add_kernelspec(embedded_host.location()),
        notebook,
        [(None, "print('BEGUN', flush=True)\nimport os, time\ntime.sleep(1)\nos._exit(3)")],  # for ipykernel to send it
    )
    kernel = until_state("exited")
    albedo("stop", kernel["kernel_id"])
    assert listed() == []


def test_a_kernel_that_another_machine_started_is_listed_and_can_be_ended(
    embedded_host: Embedded, notebook: Path
) -> None:
    crash(add_kernelspec(embedded_host.location()), notebook, [IDLE])
    (record,) = KernelRecords().all()
    KernelRecords().remove(record.kernel_id)
    (kernel,) = listed()
    assert (kernel["kernel_id"], kernel["on_record"]) == (record.kernel_id, False)
    assert [each["kernel_id"] for each in listed(str(embedded_host.alias))] == [record.kernel_id]
    assert listed(".") == []
    assert "Ended" in albedo("stop", record.kernel_id[:4])
    nothing_left(embedded_host)


def test_a_host_out_of_reach_is_no_kernel_gone(embedded_host: Embedded, notebook: Path) -> None:
    crash(add_kernelspec(embedded_host.location()), notebook, [IDLE])
    (record,) = KernelRecords().all()
    embedded_host.down()
    said = albedo("kernels")
    assert "unknown (host out of reach)" in said
    assert "refused" in said.splitlines()[-1]
    (kernel,) = listed()
    assert (kernel["kernel_id"], kernel["state"]) == (record.kernel_id, "unknown")

    said = albedo("stop", record.kernel_id[:8], status=1)
    assert "refused" in said
    assert "will be done at the next contact" in said
    (kernel,) = listed()
    assert (kernel["state"], kernel["note"]) == ("ending", "host out of reach")

    embedded_host.up()
    assert "ending (ended now)" in albedo("kernels")
    wait_until(lambda: not embedded_host.processes(), PATIENCE, "nothing is left on the host")
    assert listed() == []
    assert KernelRecords().all() == []


def test_a_kernel_that_ended_while_nobody_looked_is_told_once(embedded_host: Embedded, notebook: Path) -> None:
    crash(add_kernelspec(embedded_host.location()), notebook, [IDLE])
    (record,) = KernelRecords().all()
    KernelRecords().remove(record.kernel_id)
    albedo("stop", record.kernel_id)
    KernelRecords().put(record)
    (kernel,) = listed()
    assert (kernel["state"], kernel["note"]) == ("exited", "its host has it no more")
    assert listed() == []


def test_hosts_are_asked_side_by_side_and_not_for_ever(
    workspace: Workspace, embedded_host: Embedded, notebook: Path
) -> None:
    """Two hosts that hang cost one deadline, and the others' answers are there."""
    crash(add_kernelspec(embedded_host.location()), notebook, [IDLE])
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        for name, server in (("hangs1", one), ("hangs2", two)):
            port = server.getsockname()[1]
            workspace.add_to_ssh_config(f"\nHost {name}\n  HostName 127.0.0.1\n  Port {port}\n")
            add_kernelspec(f"{name}:~/proj")
        idle = time.monotonic()
        albedo("kernels", str(embedded_host.alias), "--json")
        idle = time.monotonic() - idle
        began = time.monotonic()
        found = json.loads(albedo("kernels", "--json", "--timeout", "6"))
        took = time.monotonic() - began
    assert took < 6 + 5 + 2 * idle
    errors = {answer["host"]: answer["error"] for answer in found["hosts"]}
    late = "did not answer within 6 s. Its login profile or the network may be slow: --timeout SECONDS waits longer."
    assert errors == {
        embedded_host.alias: None,
        None: None,
        "hangs1": f"hangs1 {late}",
        "hangs2": f"hangs2 {late}",
    }
    (kernel,) = found["kernels"]
    assert kernel["state"] == "idle"
    albedo("stop", kernel["kernel_id"])


def test_one_kernel_under_two_names_of_its_host_is_listed_once(
    workspace: Workspace, embedded_host: Embedded, notebook: Path
) -> None:
    alias = str(embedded_host.alias)
    workspace.add_to_ssh_config(embedded_host.server.ssh_config.read_text().replace(f"Host {alias}", "Host another"))
    add_kernelspec("another:~/proj")
    crash(add_kernelspec(embedded_host.location()), notebook, [IDLE])
    (kernel,) = listed()
    assert kernel["host"] == alias
    albedo("stop", kernel["kernel_id"])


def test_several_kernels_are_ended_at_once_and_a_prefix_must_be_one_kernels(
    new_embedded_host: Callable[..., Embedded], workspace: Workspace
) -> None:
    host = new_embedded_host()
    kernelspec = add_kernelspec(host.location())
    for number in range(2):
        crash(kernelspec, workspace.root / f"{number}.ipynb", [IDLE])
    ids = [record.kernel_id for record in KernelRecords().all()]
    assert "Several kernels" in albedo("stop", "", status=1) or "No kernel" in albedo("stop", "", status=1)
    said = albedo("stop", *ids, "no-such-id", status=1)
    assert said.count("Ended") == 2
    assert "No kernel has an id that begins with 'no-such-id'" in said
    nothing_left(host)


def test_ids_that_no_kernel_has_get_a_short_line_each(workspace: Workspace) -> None:
    names = [f"shut{number}" for number in range(12)]
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        for name in names:
            workspace.add_to_ssh_config(f"Host {name}\n    HostName 127.0.0.1\n    Port {unused.getsockname()[1]}\n")
            add_kernelspec(f"{name}:~/proj")
        told = albedo("stop", "0123abcd", "4567", "x" * 5000, status=1).splitlines()
    said = [line for line in told if line != "looking for the kernels ..."]  # as it says when that takes long
    assert len(said) == 4
    assert said[0] == "jupyter albedo: No kernel has an id that begins with '0123abcd'."
    assert "'4567'" in said[1]
    assert "Not every host could be asked (shut0, " in said[3]
    assert max(map(len, said)) < 200


def test_a_table_is_no_wider_than_the_terminal(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    kernelspecs.add(kernelspecs.Settings(Location.parse(f"gpu:/home/ann/{'long/' * 30}proj")), name="gpu-proj")
    monkeypatch.setenv("COLUMNS", "72")
    with Terminal(*terminal.albedo("list")) as person:
        assert person.end() == 0
    lines = person.shown.splitlines()
    assert max(map(len, lines)) <= 72
    assert lines[1].startswith("gpu-proj  gpu:/home/ann/")
    assert "…" in lines[1]
    assert f"gpu:/home/ann/{'long/' * 30}proj" in albedo("list")


def test_a_keeper_that_is_stopped_holds_up_nobody_and_is_ended_with_its_kernel(
    new_embedded_host: Callable[..., Embedded], workspace: Workspace
) -> None:
    """One that takes no more connections either, as clients have tried it so often."""
    host = new_embedded_host()
    kernelspec = add_kernelspec(host.location())
    for name in ("one", "two"):
        crash(kernelspec, workspace.root / f"{name}.ipynb", [IDLE])
    stuck = next(record for record in KernelRecords().all() if record.notebook.endswith("one.ipynb"))
    run = host.home / ".albedo-remote/run" / stuck.kernel_id
    keeper = int(json.loads((run / "kernel.json").read_text())["keeper"][0])
    with ExitStack() as tried:
        folder = os.open(run, os.O_RDONLY)
        tried.callback(os.close, folder)
        os.kill(keeper, signal.SIGSTOP)
        for _ in range(1000):
            connection = tried.enter_context(socket.socket(socket.AF_UNIX))
            connection.setblocking(False)
            try:
                connection.connect(f"/proc/self/fd/{folder}/keeper")
            except BlockingIOError:
                break
        else:
            pytest.fail("it has room for ever more")
        states = {Path(kernel["notebook"]).stem: kernel["state"] for kernel in listed()}
        assert states == {"one": "running", "two": "idle"}
        assert f"Ended {stuck.kernel_id[:8]}" in albedo("stop", stuck.kernel_id)
    (left,) = listed()
    albedo("stop", left["kernel_id"])
    wait_until(lambda: host.processes() == [], 30, "nothing is left, no bridge either")


@pytest.mark.parametrize(
    "arguments", [["stop"], ["stop", "1", "--notebook", "x"], ["kernels", "a b"], ["kernels", "-x"]]
)
def test_wrong_usage_is_refused(arguments: list[str]) -> None:
    assert "usage: jupyter albedo" in albedo(*arguments, status=2)
