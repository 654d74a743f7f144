"""A ControlMaster of the user's own: an ssh process that holds a connection for others, started as users start it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from types import TracebackType

from procs import Process, read, send, wait_until

from albedo_provisioner.hosts.openssh import ProgramTransport
from albedo_provisioner.hosts.transport import Channel, ChannelReceiver


def ssh(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the ssh program with the test's config, and no terminal."""
    config = os.environ["ALBEDO_SSH_CONFIG"]
    return subprocess.run(
        ["ssh", "-F", config, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def control_path(alias: str) -> str:
    """Return the control path that the test's ssh config has for a host."""
    found = re.search(r"^controlpath (.+)$", ssh("-G", alias).stdout, re.MULTILINE)
    assert found is not None, "the config has no control path"
    return found[1]


class Master:
    """A master for a host, for the time of a `with` block.

    Args:
        alias: the host.
        path: its control path; None for one in the test's directory.
    """

    def __init__(self, alias: str, path: str | None = None) -> None:
        self.alias = alias
        self.path = path or str(Path(os.environ["ALBEDO_SSH_CONFIG"]).with_name("m"))

    def __enter__(self) -> Master:
        told = ssh("-M", "-S", self.path, "-f", "-N", self.alias)
        assert told.returncode == 0, told.stderr
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        process = self.process
        if process is not None:
            ssh("-S", self.path, "-O", "exit", self.alias)
            wait_until(lambda: read(process.pid) is None, what="the master is gone")

    @property
    def process(self) -> Process | None:
        """Its process, None when it is dead."""
        found = re.search(r"pid=(\d+)", ssh("-S", self.path, "-O", "check", self.alias).stderr)
        return read(int(found[1])) if found else None

    def kill(self) -> None:
        """Kill it; its socket stays."""
        process = self.process
        assert process is not None
        send(process, signal.SIGKILL)
        wait_until(lambda: (now := read(process.pid)) is None or now.state == "Z", what="the master is dead")

    def transport(self, program: ProgramTransport) -> MasterTransport:
        """Return a transport by this master alone."""
        return MasterTransport(program, self.path)


class MasterTransport:
    """The program's way over one master, with a transport's face."""

    def __init__(self, program: ProgramTransport, path: str) -> None:
        self._program = program
        self._path = path

    @property
    def host(self) -> str:
        return self._program.host

    async def open(self, command: str, receiver: ChannelReceiver) -> Channel:
        return await self._program.open_by_master(command, receiver, self._path)

    async def close(self) -> None:
        await self._program.close()
