"""A client that runs a kernelspec's command itself, as VS Code, Spyder and Emacs do, and talks to what comes of it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.connect import write_connection_file
from kernels import PATIENCE
from procs import wait_until

from albedo_provisioner import kernelspecs
from albedo_provisioner.kernelspecs import Settings
from albedo_provisioner.location import Location


class LocalProcess:
    """A kernelspec's command as a process, and a client of the kernel that it stands for.

    Attributes:
        process: the process.
        file: its connection file.
        client: jupyter_client's own, once `connect` was called.
    """

    def __init__(self, process: subprocess.Popen[str], file: Path) -> None:
        self.process = process
        self.file = file
        self.client = BlockingKernelClient(connection_file=str(file))

    def connect(self) -> None:
        """Connect and wait until the kernel answers."""
        # jupyter_client's client takes a kernel for dead that does not answer heartbeats a second after its start, and
        # a busy machine has not even loaded an interpreter by then.
        wait_until(self._listens, PATIENCE, f"a listener for {self.file}; exit code {self.process.poll()}")
        self.client.load_connection_file()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE)

    def _listens(self) -> bool:
        assert self.process.poll() is None, self.process.communicate()
        try:
            info = json.loads(self.file.read_text())
            socket.create_connection((info["ip"], info["hb_port"])).close()
        except (FileNotFoundError, ValueError, ConnectionRefusedError):
            return False
        return True

    def run(self, code: str, answers: Mapping[str, str] | None = None) -> tuple[dict[str, Any], str]:
        """Execute code and return its reply's content, and all that it printed and displayed."""
        printed: list[str] = []

        def on_output(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream":
                printed.append(message["content"]["text"])
            elif message["msg_type"] in ("execute_result", "display_data"):
                printed.append(message["content"]["data"]["text/plain"])

        def on_input(message: dict[str, Any]) -> None:
            self.client.input((answers or {})[message["content"]["prompt"]])

        reply = self.client.execute_interactive(
            code, output_hook=on_output, stdin_hook=on_input, allow_stdin=answers is not None, timeout=PATIENCE
        )
        return reply["content"], "".join(printed)

    def begin(self, code: str) -> str:
        """Execute code, wait until it has printed something, and return the request's id."""
        request = self.client.execute(code)
        while self.next_output(request)["msg_type"] != "stream":
            pass
        return request

    def next_output(self, request: str) -> dict[str, Any]:
        """Return the next message on iopub that belongs to a request."""
        while (message := self.client.get_iopub_msg(timeout=PATIENCE))["parent_header"].get("msg_id") != request:
            pass
        return dict(message)

    def outputs(self, request: str) -> list[dict[str, Any]]:
        """Return what is still to come on iopub for a request, up to its idle status."""
        found = [self.next_output(request)]
        while found[-1]["content"].get("execution_state") != "idle":
            found.append(self.next_output(request))
        return found

    def reply(self, request: str) -> dict[str, Any]:
        """Wait for a request's reply and return its content."""
        while (message := self.client.get_shell_msg(timeout=PATIENCE))["parent_header"].get("msg_id") != request:
            pass
        return dict(message["content"])

    def ended(self) -> tuple[int, str]:
        """Wait until the process has ended; return its exit code and what it said on stderr."""
        _, said = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, said


def add(location: str, **settings: Any) -> str:
    """Write a kernelspec as `jupyter albedo add` does, and return its name."""
    return kernelspecs.add(Settings(Location.parse(location), **settings)).name


def command(name: str, file: Path) -> list[str]:
    """Return a kernelspec's command line for a connection file."""
    found = next(each for each in kernelspecs.find_ours() if each.name == name)
    argv = json.loads((found.directory / "kernel.json").read_text())["argv"]
    return [word.replace("{connection_file}", str(file)) for word in argv]


@contextmanager
def launched(
    location: str,
    file: Path | None = None,
    *,
    connect: bool = True,
    env: Mapping[str, str] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Iterator[LocalProcess]:
    """Run the command of a location's kernelspec, and kill what is left of the process at the end.

    Args:
        location: where the kernel runs.
        file: the connection file; None for one with free ports.
        connect: whether to wait for the kernel.
        env: variables to add to the process's environment.
        settings: more for the kernelspec.
    """
    with launched_by_name(add(location, **(settings or {})), file, connect=connect, env=env) as process:
        yield process


@contextmanager
def launched_by_name(
    name: str, file: Path | None = None, *, connect: bool = True, env: Mapping[str, str] | None = None
) -> Iterator[LocalProcess]:
    """Do what `launched` does with a kernelspec that is there."""
    if file is None:
        file = Path(os.environ["JUPYTER_RUNTIME_DIR"]) / f"kernel-{os.urandom(4).hex()}.json"
        write_connection_file(str(file), key=os.urandom(16).hex().encode())
    process = subprocess.Popen(
        command(name, file),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **(env or {})},
    )
    found = LocalProcess(process, file)
    try:
        if connect:
            found.connect()
        yield found
    finally:
        found.client.stop_channels()
        if process.poll() is None:
            process.kill()
        process.communicate()
