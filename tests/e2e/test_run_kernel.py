"""Clients that ignore kernel provisioners: our kernelspecs' command as a local process, started as such clients do."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import zmq
from crash import albedo, listed
from faces import Embedded, Host
from jupyter_client.connect import write_connection_file
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import KernelManager
from kernels import PATIENCE
from leaks import settled
from local_process import LocalProcess, add, command, launched
from procs import alive, wait_until

DAEMON = "import os, subprocess, time; p = subprocess.Popen(['setsid', 'sleep', '7777']); print(p.pid, flush=True)"


def test_it_is_a_kernel_in_the_folder_on_the_host(any_host: Host) -> None:
    """K1, K4, K8: at the addresses and with the key of the client's own connection file."""
    folder = any_host.make_folder("proj")
    with launched(any_host.location("proj")) as kernel:
        reply, printed = kernel.run("import os; print(os.getcwd())\n6 * 7")
        assert (reply["status"], printed.split()) == ("ok", [str(folder), "42"])
        reply, printed = kernel.run("print(input('name? '))", answers={"name? ": "Ann"})
        assert (reply["status"], printed) == ("ok", "Ann\n")
        kernel.client.shutdown()
        assert kernel.ended() == (0, "")
    assert settled(any_host.leftovers) == []


def test_heartbeats_are_answered_from_the_first_moment_on_and_throughout(any_host: Host) -> None:
    """K8: jupyter_client takes a second without one for death, and importing what it takes to start takes longer."""
    with launched(any_host.location(), connect=False) as kernel, zmq.Context() as context:
        info = json.loads(kernel.file.read_text())
        with context.socket(zmq.REQ) as heart:
            heart.linger = 0
            heart.connect(f"tcp://{info['ip']}:{info['hb_port']}")
            beat(heart)
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((info["ip"], info["shell_port"]))
            with ThreadPoolExecutor() as threads:
                connecting = threads.submit(kernel.connect)
                while not connecting.done():
                    beat(heart)
                connecting.result()
            assert kernel.run("6 * 7")[1] == "42"
            beat(heart)
        kernel.client.shutdown()
        assert kernel.ended() == (0, "")
    assert settled(any_host.leftovers) == []


def beat(heart: zmq.Socket[bytes]) -> None:
    """Have a heartbeat answered."""
    heart.send(b"beat")
    assert heart.poll(1000 * PATIENCE), "no answer"
    assert heart.recv() == b"beat"


def test_an_interrupt_reaches_the_cell_and_nothing_else(any_host: Host) -> None:
    """K4."""
    with launched(any_host.location()) as kernel:
        kernel.run("x = 41")
        request = kernel.begin("print('begun', flush=True)\nimport time\ntime.sleep(600)")
        kernel.process.send_signal(signal.SIGINT)
        assert kernel.reply(request)["ename"] == "KeyboardInterrupt"
        assert kernel.run("x + 1")[1] == "42"
        kernel.client.shutdown()
        assert kernel.ended()[0] == 0


def test_a_cut_in_the_middle_of_a_cell_loses_nothing(remote_host: Host) -> None:
    """L1."""
    with launched(remote_host.location()) as kernel:
        code = "import time\nfor i in range(40):\n    print(i, flush=True)\n    time.sleep(0.02)\n'done'"
        request = kernel.begin(code)
        assert remote_host.cut() > 0
        outputs = kernel.outputs(request)
        text = "".join(each["content"]["text"] for each in outputs if each["msg_type"] == "stream")
        expected = [str(i) for i in range(40)]
        assert text.split() == expected[-len(text.split()) :]
        assert len(text.split()) >= 39, "the first one or none was read by `begin`"
        assert [each for each in outputs if each["msg_type"] == "execute_result"]
        assert kernel.reply(request)["status"] == "ok"
        kernel.client.shutdown()
        assert kernel.ended()[0] == 0


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_ends_the_kernel_with_all_that_it_started(any_host: Host, signum: signal.Signals) -> None:
    """K6."""
    with launched(any_host.location()) as kernel:
        pid = int(kernel.run(DAEMON)[1])
        assert alive(pid)
        kernel.process.send_signal(signum)
        assert kernel.ended() == (-signum, "")
        assert not alive(pid)
    assert settled(any_host.leftovers) == []
    assert listed() == []


def test_a_signal_to_end_that_comes_early_undoes_the_start(embedded_host: Embedded) -> None:
    """K8."""
    begun = embedded_host.home / "begun"
    embedded_host.write(".profile", f"touch {begun}\nexec sleep 600\n")
    with launched(embedded_host.location(), connect=False) as kernel:
        wait_until(begun.exists, PATIENCE)
        kernel.process.send_signal(signal.SIGTERM)
        assert kernel.ended()[0] == -signal.SIGTERM
    embedded_host.clear()  # the profile, which nobody ends


class TestItsEnd:
    def test_it_exits_as_its_kernel_did_and_the_cell_is_told_why(self, any_host: Host) -> None:
        """K5."""
        with launched(any_host.location()) as kernel:
            request = kernel.client.execute("import os\nos._exit(7)")
            assert kernel.reply(request)["ename"] == "KernelDied"
            text = "".join(m["content"]["text"] for m in kernel.outputs(request) if m["msg_type"] == "stream")
            assert "exit status 7" in text
            assert kernel.ended()[0] == 7
        assert settled(any_host.leftovers) == []

    def test_a_killed_kernel_has_it_die_by_the_same_signal(self, embedded_host: Embedded) -> None:
        """K5."""
        with launched(embedded_host.location()) as kernel:
            pid = int(kernel.run("import os; print(os.getpid())")[1])
            os.kill(pid, signal.SIGKILL)
            assert kernel.ended()[0] == -signal.SIGKILL
        assert settled(embedded_host.leftovers) == []

    def test_killed_itself_it_leaves_the_kernel_to_be_found(self, embedded_host: Embedded) -> None:
        """L3's first half: as a Jupyter Server that was killed does."""
        with launched(embedded_host.location()) as kernel:
            pid = int(kernel.run("import os; print(os.getpid())")[1])
            kernel.process.kill()
            assert kernel.ended()[0] == -signal.SIGKILL
            (found,) = listed()
            assert found["pid"] == pid
            assert alive(pid)
            albedo("stop", found["kernel_id"])
            assert not alive(pid)
        assert settled(embedded_host.leftovers) == []

    def test_it_ends_with_the_client_that_named_itself_as_its_parent(self, embedded_host: Embedded) -> None:
        """K6: as ipykernel does, by JPY_PARENT_PID."""
        file = Path(os.environ["JUPYTER_RUNTIME_DIR"]) / "kernel-parent.json"
        write_connection_file(str(file), key=b"a key")
        argv = command(add(embedded_host.location()), file)
        script = (
            "import json, os, subprocess, sys\n"
            "env = {**os.environ, 'JPY_PARENT_PID': str(os.getpid())}\n"
            "process = subprocess.Popen(json.loads(sys.argv[1]), env=env, start_new_session=True)\n"
            "print(process.pid, flush=True)\n"
            "sys.stdin.read()\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", script, json.dumps(argv)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as client:
            assert client.stdout is not None
            pid = int(client.stdout.readline())
            kernel = LocalProcess(client, file)
            kernel.connect()
            assert kernel.run("6 * 7")[1] == "42"
            kernel.client.stop_channels()
            client.kill()
        wait_until(lambda: not alive(pid), PATIENCE)
        assert settled(embedded_host.leftovers) == []

    def test_asked_to_end_while_the_host_is_away_it_ends_and_the_kernel_at_the_next_contact(
        self, embedded_host: Embedded
    ) -> None:
        """L5's shutdown while away."""
        with launched(embedded_host.location()) as kernel:
            pid = int(kernel.run("import os; print(os.getpid())")[1])
            kernel.begin("print('begun', flush=True)\nimport time\nwhile True:\n    time.sleep(0.1)")
            embedded_host.down()

            def noticed() -> bool:
                kernel.process.send_signal(signal.SIGINT)
                try:
                    return "out of reach" in str(kernel.client.get_iopub_msg(timeout=0.2)["content"])
                except queue.Empty:
                    return False  # it was put on its way before the break was noticed

            wait_until(noticed, PATIENCE)
            kernel.client.shutdown()
            code, said = kernel.ended()
            assert code == 0
            assert "ended as soon as it can be reached again" in said
            assert alive(pid)
        embedded_host.up()
        wait_until(lambda: listed() == [], PATIENCE, "the first look is the next contact")
        assert not alive(pid)
        assert settled(embedded_host.leftovers) == []


class WithoutProvisioners(KernelSpecManager):
    """What a client sees that knows nothing of provisioners."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        spec = super().get_kernel_spec(kernel_name)
        spec.metadata = {}
        return spec


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_a_kernel_manager_that_ignores_provisioners_has_a_whole_kernel(any_host: Host, transport: str) -> None:
    """K4: start, interrupt, restart and shut down by jupyter_client's own local provisioner."""
    name = add(any_host.location())
    manager = KernelManager(
        kernel_name=name,
        kernel_spec_manager=WithoutProvisioners(),
        transport=transport,
        # Without it, ipc sockets would lie in the current directory, where other tests have theirs.
        connection_file=os.path.join(os.environ["JUPYTER_RUNTIME_DIR"], "kernel-own.json"),
    )
    manager.start_kernel()
    assert type(manager.provisioner).__name__ == "LocalProvisioner"
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=PATIENCE)

        def reply(code: str) -> dict[str, Any]:
            return dict(client.execute(code, reply=True, timeout=PATIENCE)["content"])

        assert reply("x = 41")["status"] == "ok"
        request = client.execute("print('begun', flush=True)\nimport time\ntime.sleep(600)")
        wait_until(lambda: client.get_iopub_msg(timeout=PATIENCE)["msg_type"] == "stream", PATIENCE)
        manager.interrupt_kernel()
        while (found := client.get_shell_msg(timeout=PATIENCE))["parent_header"]["msg_id"] != request:
            pass
        assert found["content"]["ename"] == "KeyboardInterrupt"
        assert reply("x")["status"] == "ok"
        manager.restart_kernel()
        client.wait_for_ready(timeout=PATIENCE)
        assert reply("x")["ename"] == "NameError"
        assert manager.is_alive()
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
    assert settled(any_host.leftovers) == []


class TestConnectionFiles:
    def test_ports_that_are_not_given_are_chosen_and_written(self, local_host: Host, tmp_path: Path) -> None:
        file = tmp_path / "kernel.json"
        info: dict[str, Any] = {"transport": "tcp", "ip": "127.0.0.1", "key": "a key"}
        info |= {f"{name}_port": 0 for name in ("shell", "iopub", "stdin", "control", "hb")}
        file.write_text(json.dumps(info))
        with launched(local_host.location(), file, connect=False) as kernel:
            wait_until(lambda: "0," not in file.read_text().replace(" ", "") if file.exists() else False, PATIENCE)
            kernel.connect()
            assert kernel.run("6 * 7")[1] == "42"
            kernel.process.terminate()
            assert kernel.ended()[0] == -signal.SIGTERM
        assert json.loads(file.read_text())["key"] == "a key"

    def test_one_that_is_not_there_is_made_for_us_alone(self, local_host: Host, tmp_path: Path) -> None:
        file = tmp_path / "kernel.json"
        with launched(local_host.location(), file) as kernel:
            assert file.stat().st_mode & 0o777 == 0o600
            assert len(json.loads(file.read_text())["key"]) == 64
            assert kernel.run("6 * 7")[1] == "42"
            kernel.process.terminate()
            assert kernel.ended()[0] == -signal.SIGTERM

    def test_a_client_without_the_key_gets_no_answer(self, local_host: Host) -> None:
        with launched(local_host.location()) as kernel:
            info = json.loads(kernel.file.read_text())
            stranger = LocalProcess(kernel.process, kernel.file)
            stranger.client.load_connection_info({**info, "key": "guessed"})
            stranger.client.start_channels()
            stranger.client.execute("open('broken-in', 'w')")
            assert kernel.run("import os; os.path.exists('broken-in')")[1] == "False"
            stranger.client.stop_channels()
            kernel.process.terminate()
            assert kernel.ended()[0] == -signal.SIGTERM


def failed(location: str, file: Path | None = None) -> str:
    """Return the one line by which a kernel that could not be started says so."""
    with launched(location, file, connect=False) as kernel:
        out, err = kernel.process.communicate(timeout=PATIENCE)
        assert (kernel.process.returncode, out) == (1, "")
        assert len(err.splitlines()) == 1, err
        return err


class TestFailures:
    def test_a_folder_that_is_not_there(self, any_host: Host) -> None:
        """K7."""
        assert f"The folder {any_host.home / 'nowhere'}" in failed(any_host.location("nowhere"))
        assert listed() == []

    def test_a_host_out_of_reach(self) -> None:
        assert "no-such-host.invalid" in failed("no-such-host.invalid:/x")

    def test_a_port_that_is_taken(self, local_host: Host, tmp_path: Path) -> None:
        file = tmp_path / "kernel.json"
        with launched(local_host.location()) as kernel:
            info = json.loads(kernel.file.read_text())
            file.write_text(json.dumps({**info, "hb_port": 0}))
            assert f"port {info['shell_port']} on 127.0.0.1" in failed(local_host.location(), file)
            kernel.process.terminate()
            assert kernel.ended()[0] == -signal.SIGTERM

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("{", "cannot be read"),
            ("[]", "no JSON object"),
            ('{"transport": "smoke"}', "smoke"),
            ('{"shell_port": "x"}', "no number"),
            ('{"ip": "300.0.0.1", "shell_port": 5}', "300.0.0.1"),
        ],
    )
    def test_a_connection_file_that_makes_no_sense(
        self, local_host: Host, tmp_path: Path, text: str, words: str
    ) -> None:
        file = tmp_path / "kernel.json"
        file.write_text(text)
        assert words in failed(local_host.location(), file)

    def test_a_kernelspec_that_was_removed(self, local_host: Host, tmp_path: Path) -> None:
        argv = command(add(local_host.location()), tmp_path / "kernel.json")
        albedo("remove", argv[argv.index("--kernelspec") + 1])
        done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        assert "no kernelspec" in done.stderr
