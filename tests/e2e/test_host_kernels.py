"""Kernels that are kernelspecs of the host: R, and Pythons of any kind."""

from __future__ import annotations

import asyncio
import filecmp
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from conftest import unavailable
from crash import crash
from environments import make_environment
from faces import Embedded, Host
from kernels import Cell, Kernel, add_kernelspec, eventually, started, started_by_name
from leaks import settled
from local_process import launched, launched_by_name

from albedo_provisioner import cli, kernelspecs
from albedo_provisioner.errors import KernelStartError

DEAF = """
import os, signal, sys
from ipykernel.ipkernel import IPythonKernel as Kernel
from ipykernel.kernelapp import IPKernelApp

def interrupt(*_):
    print("asked to interrupt", file=sys.stderr, flush=True)
    raise KeyboardInterrupt

signal.signal(signal.SIGUSR1, interrupt)
Kernel._send_interrupt_children = lambda self: os.kill(os.getpid(), signal.SIGUSR1)
IPKernelApp.launch_instance()
"""
"""A kernel that says so when it is interrupted by a message, and by that alone."""

ENDLESS = "import time\nwhile True:\n    print('begun', flush=True)\n    time.sleep(0.05)"

R_KERNELSPEC = "/usr/share/jupyter/kernels/ir"


@pytest.fixture
def r_kernel() -> str:
    """Return the name of R's kernelspec, which is the system's."""
    if not os.path.exists(f"{R_KERNELSPEC}/kernel.json") or shutil.which("R") is None:
        unavailable("R and its kernel (r-cran-irkernel) are not installed")
    return "ir"


async def shown(kernel: Kernel, code: str) -> list[str]:
    """Run code and return what it displays, which is what R does with a value."""
    return displays(await kernel.run(code))


def displays(cell: Cell) -> list[str]:
    return [message["content"]["data"]["text/plain"] for message in cell.of_type("display_data")]


def install(host: Host, name: str, **changes: object) -> Path:
    """Install a kernelspec of the host's ipykernel for the account, change it, and return its directory."""
    done = host.run([str(host.python), "-m", "ipykernel", "install", "--user", "--name", name])
    assert done.returncode == 0, done.stderr
    directory = host.home / ".local" / "share" / "jupyter" / "kernels" / name
    spec = json.loads((directory / "kernel.json").read_text())
    host.write(directory / "kernel.json", json.dumps({**spec, **changes}))
    return directory


def install_asked(host: Host) -> None:
    argv = ["python", "-c", DEAF, "-f", "{connection_file}"]
    install(host, "asked", argv=argv, interrupt_mode="message")


class TestR:
    async def test_r_in_a_folder_of_the_host(self, any_host: Host, r_kernel: str) -> None:
        """K1, K4, K8 with another language."""
        folder = any_host.make_folder("proj")
        assert cli.main(["add", any_host.location("proj"), "--kernel", r_kernel]) == 0
        (spec,) = kernelspecs.find_ours()
        document = json.loads((spec.directory / "kernel.json").read_text())
        assert (document["language"], document["interrupt_mode"]) == ("R", "signal")
        assert spec.display_name.startswith("R · ")
        assert spec.name.endswith("-proj-ir")
        assert filecmp.cmp(f"{R_KERNELSPEC}/logo-64x64.png", spec.directory / "logo-64x64.png", shallow=False)
        async with started_by_name(spec.name) as kernel:
            cell = await kernel.run("cat(getwd(), '\\n'); x <- 41; cat(R.version$language)")
            assert cell.stdout.split() == [str(folder), "R"]
            assert await shown(kernel, "x + 1") == ["[1] 42"]
            assert (await kernel.run("stop('no')")).status == "error"
            cell = kernel.begin("cat('begun\\n'); flush.console(); Sys.sleep(600)")
            await cell.until(lambda: cell.stdout)
            await kernel.manager.interrupt_kernel()
            await cell.done()
            assert await shown(kernel, "x + 1") == ["[1] 42"]
            await kernel.manager.restart_kernel()
            assert (await kernel.run("x")).status == "error"
        assert settled(any_host.leftovers) == []

    async def test_a_cut_in_the_middle_of_a_cell_loses_nothing(self, remote_host: Host, r_kernel: str) -> None:
        """L1."""
        async with started(remote_host.location(), {"kernel": r_kernel}) as kernel:
            cell = kernel.begin("for (i in 0:49) { cat(i, '\\n'); flush.console(); Sys.sleep(0.02) }; 'done'")
            await cell.until(lambda: len(cell.lines) > 5)
            assert remote_host.cut() > 0
            await cell.done()
            assert [line.strip() for line in cell.lines] == [str(i) for i in range(50)]
            assert displays(cell) == ['[1] "done"']

    def test_r_in_a_client_that_ignores_provisioners(self, embedded_host: Embedded, r_kernel: str) -> None:
        with launched(embedded_host.location(), settings={"kernel": r_kernel}) as kernel:
            assert kernel.run("6 * 7")[1] == "[1] 42"
            kernel.client.shutdown()
            assert kernel.ended()[0] == 0

    async def test_a_host_whose_python_has_no_ipykernel_will_do(
        self, embedded_host: Embedded, r_kernel: str, tmp_path: Path
    ) -> None:
        """The keeper needs pyzmq, and nothing else is needed of Python."""
        import venv

        import zmq

        venv.EnvBuilder(symlinks=True, with_pip=False).create(tmp_path / "bare")
        packages = next((tmp_path / "bare" / "lib").glob("python3*")) / "site-packages"
        there = Path(zmq.__file__).parent
        for name in (there.name, *(path.name for path in there.parent.glob("pyzmq*"))):
            (packages / name).symlink_to(there.parent / name)
        python = str(tmp_path / "bare" / "bin" / "python")
        assert cli.main(["add", embedded_host.location(), "--kernel", r_kernel, "--python", python]) == 0
        (spec,) = kernelspecs.find_ours()
        assert spec.config["python"] == python
        async with started_by_name(spec.name) as kernel:
            assert await shown(kernel, "6 * 7") == ["[1] 42"]

    @pytest.mark.timeout(300)  # pip and a package index are at work
    async def test_a_host_whose_python_has_not_even_pyzmq_is_given_it(
        self, embedded_host: Embedded, r_kernel: str
    ) -> None:
        python = str(make_environment(embedded_host, "bare", ipykernel=False))
        async with started(embedded_host.location(), {"kernel": r_kernel, "python": python}) as kernel:
            assert await shown(kernel, "6 * 7") == ["[1] 42"]


class TestPython:
    async def test_a_kernelspec_of_the_account_with_its_variables(self, remote_host: Host) -> None:
        install(remote_host, "other", env={"COLOUR": "green", "BOTH": "theirs", "WHERE": "${HOME}/x"})
        location = remote_host.location()
        async with started(location, {"kernel": "other", "env": {"BOTH": "ours"}}) as kernel:
            found = await kernel.json("[os.environ[k] for k in ('COLOUR', 'BOTH', 'WHERE')]", "import os")
            assert found == ["green", "ours", f"{remote_host.home}/x"]
            assert await kernel.value("__import__('albedo_bundle').ROOT") == repr(
                str(next((remote_host.home / ".albedo-remote").glob("[0-9a-f]*")))
            ), "an ipykernel is started as without a kernelspec"

    async def test_one_that_is_gone_is_told_at_the_start(self, any_host: Host) -> None:
        with pytest.raises(KernelStartError) as caught:
            async with started(any_host.location(), {"kernel": "gone"}):
                pass
        assert "no kernelspec 'gone'" in str(caught.value)
        assert "--kernel" in str(caught.value)
        assert settled(any_host.leftovers) == []

    async def test_one_that_cannot_start_is_told_with_the_cause(self, embedded_host: Embedded) -> None:
        """Of what it said, not only the last line; of a program that is not there, its name."""
        said = "Error in library(x) : \n  there is no package called x\nCalls: main -> library\nExecution halted"
        install(embedded_host, "halts", argv=["sh", "-c", 'echo loading; echo "$0" >&2; exit 1', said])
        install(embedded_host, "lacks", argv=["no-such-program", "{connection_file}"])
        for kernel, words in (
            ("halts", "exit status 1): Error in library(x) : / there is no package called x / Calls: main"),
            ("lacks", f"no-such-program could not be run on {embedded_host.alias}: No such file or directory."),
        ):
            with pytest.raises(KernelStartError) as caught:
                async with started(embedded_host.location(), {"kernel": kernel}):
                    pass
            assert words in str(caught.value)
        assert settled(embedded_host.leftovers) == []

    async def test_the_hosts_kernelspec_may_change_between_starts(self, remote_host: Host) -> None:
        directory = install(remote_host, "other", env={"COLOUR": "green"})
        async with started(remote_host.location(), {"kernel": "other"}) as kernel:
            assert await kernel.value("__import__('os').environ['COLOUR']") == "'green'"
            install(remote_host, "other", env={"COLOUR": "red"})
            await kernel.manager.restart_kernel()
            assert await kernel.value("__import__('os').environ['COLOUR']") == "'red'"
            shutil.rmtree(directory)
            with pytest.raises(Exception, match="no kernelspec 'other'"):
                await kernel.manager.restart_kernel()
            install(remote_host, "other", env={"COLOUR": "blue"})
            await kernel.manager.restart_kernel()
            assert await kernel.value("__import__('os').environ['COLOUR']") == "'blue'"

    async def test_one_by_its_directory_means_the_interpreter_beside_it(self, remote_host: Host) -> None:
        python = make_environment(remote_host, "tools/env")
        directory = python.parent.parent / "share" / "jupyter" / "kernels" / "mine"
        argv = ["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        remote_host.write(
            directory / "kernel.json", json.dumps({"argv": argv, "display_name": "Mine", "language": "python"})
        )
        assert cli.main(["add", remote_host.location(), "--kernel", str(directory)]) == 0
        (spec,) = kernelspecs.find_ours()
        assert spec.name.endswith("-mine")
        async with started_by_name(spec.name) as kernel:
            assert await kernel.value("__import__('sys').prefix") == repr(str(python.parent.parent))

    async def test_a_kernel_that_puts_colons_into_its_sockets_names(self, remote_host: Host) -> None:
        """As kernels do whose authors thought of tcp alone."""
        code = (
            "from ipykernel.kernelapp import IPKernelApp as App\n"
            "def bind(self, socket, port):\n"
            "    socket.bind(f'ipc://{self.ip}:{port}')\n"
            "    return port\n"
            "App._bind_socket = bind\n"
            "from ipykernel.heartbeat import Heartbeat\n"
            "Heartbeat._try_bind_socket = lambda self: self.socket.bind(f'ipc://{self.ip}:{self.port}')\n"
            "App.launch_instance()\n"
        )
        argv = [str(remote_host.python), "-c", code, "-f", "{connection_file}"]
        install(remote_host, "colons", argv=argv)
        async with started(remote_host.location(), {"kernel": "colons"}) as kernel:
            assert await kernel.value("6 * 7") == "42"
            await kernel.manager.restart_kernel()
            assert await kernel.value("6 * 7") == "42"
        assert settled(remote_host.leftovers) == []

    async def test_one_that_wants_to_be_interrupted_by_message(self, remote_host: Host) -> None:
        """L7: by message it is the same, also while the host is away."""
        install_asked(remote_host)
        assert cli.main(["add", remote_host.location(), "--kernel", "asked"]) == 0
        (spec,) = kernelspecs.find_ours()
        async with started_by_name(spec.name) as kernel:
            assert kernel.manager.kernel_spec is not None
            assert kernel.manager.kernel_spec.interrupt_mode == "message"
            cell = kernel.begin(ENDLESS)
            await cell.until(lambda: cell.stdout)
            await kernel.manager.interrupt_kernel()
            assert "asked to interrupt" in (await cell.done()).stderr
            cell = kernel.begin(ENDLESS)
            await cell.until(lambda: cell.stdout)
            remote_host.down()
            await eventually(lambda: kernel.status["away"] is not None)
            await kernel.manager.interrupt_kernel()
            await cell.until(lambda: "out of reach" in cell.stderr)
            remote_host.up()
            await cell.done()
            assert "asked to interrupt" in cell.stderr
            later = await kernel.run("import time; time.sleep(0.5); print('whole')")
            assert (later.stdout, later.stderr) == ("whole\n", "")

    def test_a_signal_becomes_a_message_where_provisioners_are_ignored(self, embedded_host: Embedded) -> None:
        install_asked(embedded_host)
        assert cli.main(["add", embedded_host.location(), "--kernel", "asked", "--name", "asked-there"]) == 0
        with launched_by_name("asked-there") as kernel:
            request = kernel.begin(ENDLESS)
            kernel.process.send_signal(signal.SIGINT)
            texts = [str(each["content"].get("text")) for each in kernel.outputs(request)]
            assert "asked to interrupt" in "".join(texts)
            kernel.client.shutdown()
            assert kernel.ended()[0] == 0

    async def test_a_notebook_finds_no_kernel_again_of_another_kernelspec(self, embedded_host: Embedded) -> None:
        """L3: what is found again is what was asked for."""
        install(embedded_host, "other")
        notebook = "/n/a.ipynb"
        python = add_kernelspec(embedded_host.location())
        await asyncio.to_thread(crash, python, notebook, [(None, "x = 41; print('BEGUN', flush=True)")])
        options = {"env": {"JPY_SESSION_NAME": notebook}}
        async with started(embedded_host.location(), {"kernel": "other"}, options=options) as kernel:
            assert await kernel.value("'x' in globals()") == "False"
        async with started(embedded_host.location(), options=options) as kernel:
            assert await kernel.value("x") == "41"
        await eventually(lambda: embedded_host.leftovers() == [])
