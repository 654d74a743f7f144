"""Kernels in a real Jupyter Server: what JupyterLab does, and what its dialogs show when it cannot be done."""

from __future__ import annotations

import re
from typing import Any

import pytest
from faces import Embedded, Host, Local
from kernels import add_kernelspec
from leaks import settled
from notebook_server import NotebookServer
from procs import wait_until

from albedo_provisioner.kernels.records import KernelRecords


class TestNotebooks:
    @pytest.mark.first_visit
    def test_a_notebook_runs_is_interrupted_and_restarted(self, server: NotebookServer, remote_host: Host) -> None:
        """K4: the notebook's own path arrives, too. K2: the log tells each step of the start, as it is by default."""
        answer = server.start(add_kernelspec(remote_host.location()), "täglich.ipynb")
        assert answer.status == 201, answer
        steps = re.findall(r"^\[I .*\] Kernel \S+ on \S+: (.*)$", server.log(), re.MULTILINE)
        copying = "staging, copying N kB of our own files"
        told = [re.sub(r"\d+", "N", step) for step in steps]
        assert told == ["connecting", "staging", copying, "starting", "attached"], server.log()
        kernel_id = answer.content["kernel"]["id"]
        channels = server.open(kernel_id)
        assert channels.run("import os\nprint(os.environ['HOME'])") == f"{remote_host.home}\n"
        assert channels.run("print(os.environ['JPY_SESSION_NAME'])").endswith("/täglich.ipynb\n")

        cell = channels.begin("import time\nprint('begun', flush=True)\ntime.sleep(600)")
        channels.until(lambda: channels.text(cell))
        assert server.ask("POST", f"api/kernels/{kernel_id}/interrupt").status == 204
        assert channels.finish(cell)["ename"] == "KeyboardInterrupt"

        channels.run("x = 41")
        assert server.ask("POST", f"api/kernels/{kernel_id}/restart").status == 200
        assert channels.run("print('x' in globals())") == "False\n"
        channels.close()

        again = server.open(kernel_id)  # as after the browser's page was loaded anew
        assert again.run("print(6 * 7)") == "42\n"
        again.close()
        assert server.ask("DELETE", f"api/sessions/{answer.content['id']}").status == 204
        assert server.ask("GET", "api/kernels").content == []
        assert settled(remote_host.leftovers) == []

    def test_a_kernel_that_dies_is_restarted_and_the_cell_told_why(
        self, server: NotebookServer, embedded_host: Embedded
    ) -> None:
        """K5."""
        answer = server.start(add_kernelspec(embedded_host.location()))
        kernel_id = answer.content["kernel"]["id"]
        channels = server.open(kernel_id)
        channels.run("x = 41")
        for death, cause in (
            ("import os\nos._exit(7)", "exit status 7"),
            ("import os\nos.kill(os.getpid(), 9)", "SIGKILL"),
        ):
            cell = channels.begin(death)
            reply = channels.finish(cell)
            assert reply["ename"] == "KernelDied"
            for text in (reply["evalue"], channels.text(cell, "stderr")):
                assert cause in text
                assert str(embedded_host.alias) in text
            channels.until(
                lambda: [
                    m
                    for m in channels.messages
                    if m["content"].get("execution_state") in ("restarting", "autorestarting")
                ]
            )
            channels.messages.clear()
            assert channels.run("print('x' in globals())") == "False\n"
        channels.close()
        assert server.ask("DELETE", f"api/kernels/{kernel_id}").status == 204

    def test_two_pages_on_one_kernel_both_see_everything(self, server: NotebookServer, embedded_host: Embedded) -> None:
        """L8."""
        kernel_id = server.start(add_kernelspec(embedded_host.location())).content["kernel"]["id"]
        one, two = server.open(kernel_id), server.open(kernel_id)
        one.run("x = 41")
        cell = two.begin("print(x)")
        assert two.finish(cell)["status"] == "ok"
        one.until(lambda: one.text(cell) == "41\n")
        for channels in (one, two):
            channels.close()
        assert server.ask("DELETE", f"api/kernels/{kernel_id}").status == 204

    def test_a_cut_in_the_middle_of_a_cell_goes_unnoticed_by_the_notebook(
        self, server: NotebookServer, embedded_host: Embedded
    ) -> None:
        """L2, in short."""
        kernel_id = server.start(add_kernelspec(embedded_host.location())).content["kernel"]["id"]
        channels = server.open(kernel_id)
        cell = channels.begin("import time\nfor i in range(50):\n    print(i, flush=True)\n    time.sleep(0.05)")
        channels.until(lambda: "10" in channels.text(cell).splitlines())
        embedded_host.down()
        wait_until(lambda: embedded_host.connected() == 0)
        assert server.ask("GET", f"api/kernels/{kernel_id}").content["execution_state"] == "busy"
        embedded_host.up()
        assert channels.finish(cell)["status"] == "ok"
        assert channels.text(cell).splitlines() == [str(i) for i in range(50)]
        assert not [m for m in channels.messages if m["content"].get("execution_state") == "restarting"]
        channels.close()
        assert server.ask("DELETE", f"api/kernels/{kernel_id}").status == 204

    def test_stopping_the_server_ends_its_kernels(self, server: NotebookServer, remote_host: Host) -> None:
        """K6, K8."""
        kernel_id = server.start(add_kernelspec(remote_host.location())).content["kernel"]["id"]
        channels = server.open(kernel_id)
        channels.run("import subprocess\nsubprocess.Popen(['sleep', '7777'], start_new_session=True)")
        channels.close()
        server.stop()
        assert settled(remote_host.leftovers) == []


class TestDialogs:
    """What JupyterLab shows is `message` of the answer."""

    def test_an_unknown_host_is_named_in_the_answer(self, server: NotebookServer) -> None:
        answer = server.start(add_kernelspec("no-such-host.invalid:/tmp"))
        assert answer.status == 500
        assert "no-such-host.invalid" in answer.content["message"]
        assert "resolve" in answer.content["message"]
        assert "\n" not in answer.content["message"]
        assert server.ask("GET", "api/sessions").content == []
        assert server.ask("GET", "api/kernels").content == []

    def test_a_missing_folder_is_named_in_the_answer(self, server: NotebookServer, remote_host: Host) -> None:
        """K7."""
        answer = server.start(add_kernelspec(remote_host.location("nowhere")))
        assert answer.status == 500
        for word in (str(remote_host.alias), str(remote_host.home / "nowhere"), "no such file or directory"):
            assert word in answer.content["message"]
        assert server.ask("GET", "api/kernels").content == []
        assert settled(remote_host.leftovers) == []

    def test_a_start_that_failed_can_be_tried_again(self, server: NotebookServer, embedded_host: Embedded) -> None:
        """K7."""
        name = add_kernelspec(embedded_host.location("later"))
        assert server.start(name).status == 500
        embedded_host.make_folder("later")
        answer = server.start(name)
        assert answer.status == 201
        assert server.ask("DELETE", f"api/sessions/{answer.content['id']}").status == 204

    @pytest.mark.parametrize("config", [{}, {"pyhton": "x"}])
    def test_a_server_in_which_a_start_failed_can_be_stopped(
        self, server: NotebookServer, local_host: Local, config: dict[str, str]
    ) -> None:
        good, bad = add_kernelspec(local_host.location()), add_kernelspec(local_host.location("nowhere"), config)
        assert server.start(good).status == 201
        assert server.start(bad, "b.ipynb").status == 500
        server.stop()
        assert settled(local_host.leftovers) == []

    def test_a_malformed_setting_is_told(self, server: NotebookServer, embedded_host: Embedded) -> None:
        answer = server.start(add_kernelspec(embedded_host.location(), {"pyhton": "x"}))
        assert answer.status == 500
        assert "pyhton" in answer.content["message"]


def test_a_session_without_a_name_has_not_its_folder_for_a_notebook(
    server: NotebookServer, embedded_host: Embedded
) -> None:
    """K5: two notebooks of a folder would be one, and get each other's kernels."""
    asked: dict[str, Any] = {"path": "sub/a.ipynb", "name": "", "type": "notebook"}
    asked["kernel"] = {"name": add_kernelspec(embedded_host.location())}
    answer = server.ask("POST", "api/sessions", asked)
    assert answer.status == 201
    (record,) = KernelRecords().all()
    assert not record.notebook.endswith("/")
    assert server.ask("DELETE", f"api/kernels/{answer.content['kernel']['id']}").status == 204
