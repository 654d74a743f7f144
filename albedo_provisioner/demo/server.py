"""The embedded host: an ssh server on loopback, in a process of its own, with a fresh home.

    with EmbeddedHost() as host:
        os.environ["ALBEDO_SSH_CONFIG"] = str(host.ssh_config)   # the alias "demo-host" now works
        ...
        host.down()     # the network is gone
        host.up()       # and back

It runs commands as the account that started it, yet reads and writes nothing of that account's home. It is no
security boundary and listens on loopback only. It is a process of its own, because on the client's interpreter lock it
would slow down what it is there to show. Nothing of it survives: when its owner closes it or dies, it kills every
process it ever started, detached or not, and removes its directory.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from .behaviour import Behaviour, Command, Connection
from .profiles import LOGIN_FILES, greet
from .sshd import Setup, kill_marked, marked

__all__ = ["Behaviour", "Command", "Connection", "EmbeddedHost"]


class EmbeddedHost:
    """An ssh server on loopback that can be cut off, frozen and told to misbehave. Usable from any thread.

    Args:
        alias: the `Host` name in its ssh config.
        shell: the account's login shell, an absolute path.
        python: an interpreter with ipykernel; its directory comes first on the PATH of commands and login shells.
            This one by default.
        environ: more environment variables for its commands.
        behaviour: what it does at first; see `behave`.
        parent: where to make its private directory; the temporary directory by default.

    Attributes:
        alias: as given.
        root: its private directory: home, keys, ssh config, log.
        home: the remote home.
        ssh_config: an ssh config file in which `alias` is this host; good for asyncssh and for OpenSSH's client.
        known_hosts: the known-hosts file that the config names.
        client_key: the only key that opens the door.
        account: the user's name.
        port: the port on 127.0.0.1, the same for the host's whole life.
        behaviour: what it does at the moment.

    Raises:
        RuntimeError: the server did not start; the message ends with what it printed.
    """

    def __init__(
        self,
        alias: str = "demo-host",
        *,
        shell: str = "/bin/sh",
        python: str | None = None,
        environ: Mapping[str, str] | None = None,
        behaviour: Behaviour | None = None,
        parent: str | os.PathLike[str] | None = None,
    ) -> None:
        self.alias = alias
        self.behaviour = behaviour or Behaviour()
        self._lock = threading.Lock()
        self._closed = False
        self.root = Path(tempfile.mkdtemp(prefix="albedo-demo-", dir=parent)).resolve()
        self.ssh_config = self.root / "ssh_config"
        self.known_hosts = self.root / "known_hosts"
        self.client_key = self.root / "client_key"
        setup = Setup(
            directory=str(self.root),
            alias=alias,
            shell=shell,
            python=python or sys.executable,
            environ=dict(environ or {}),
            behaviour=asdict(self.behaviour),
        )
        self._process = self._spawn()
        try:
            about = self._ask(asdict(setup))
        except BaseException:
            self.close()
            raise
        self.home = Path(about["home"])
        self.account = str(about["account"])
        self.port = int(about["port"])

    def _spawn(self) -> subprocess.Popen[str]:
        # The package may be on the path through the working directory only, which is not the child's business.
        package_parent = str(Path(__file__).resolve().parents[2])
        search = os.pathsep.join(filter(None, [package_parent, os.environ.get("PYTHONPATH")]))
        with (self.root / "log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "albedo_provisioner.demo.sshd", str(self.root)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": search},
                cwd=self.root,
                text=True,
                encoding="utf-8",
                start_new_session=True,  # a Ctrl-C meant for the owner is not meant for the host
            )

    def __enter__(self) -> EmbeddedHost:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    def close(self) -> None:
        """End the host, every process it started, and its directory. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            try:
                self._process.stdin.close()
            except BrokenPipeError:
                pass  # it died before; what it left is ended below
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process.stdout.close()
        for pid in marked(str(self.root)):
            kill_marked(pid, str(self.root))
        shutil.rmtree(self.root, ignore_errors=True)

    # The network

    def cut(self, *, reset: bool = True) -> int:
        """Break all connections now; new ones are welcome.

        Args:
            reset: with a TCP reset, so that what is under way is lost; else with an ordinary end of the stream.

        Returns:
            How many connections there were.
        """
        return int(self._do("cut", reset=reset))

    def cut_after(self, *, sent: int | None = None, received: int | None = None) -> None:
        """Break all connections once, as soon as that many more bytes went out or came in (of ssh, encrypted)."""
        self._do("cut_after", direction="sent", count=sent)
        self._do("cut_after", direction="received", count=received)

    def down(self) -> None:
        """Break all connections and refuse new ones until `up`."""
        self._do("down")

    def up(self) -> None:
        """Listen again, on the same port."""
        self._do("up")

    def freeze(self, *, new: bool = False) -> int:
        """Let nothing more pass on the connections that exist, and tell nobody: half-open connections.

        Args:
            new: connections made from now on are frozen as well, as with a host that vanished. Else they work, as
                after a network change.

        Returns:
            How many connections were frozen.
        """
        if new:
            self.behave(hold_new=True)
        return int(self._do("freeze"))

    def thaw(self) -> None:
        """Let what was frozen go on."""
        self._do("thaw")
        self.behaviour = replace(self.behaviour, hold_new=False)

    def connections(self) -> list[Connection]:
        """Return the connections that exist now."""
        return [Connection(**each) for each in self._do("connections")]

    def accepted(self) -> int:
        """Return how many connections there ever were."""
        return int(self._do("accepted"))

    # The host

    def behave(self, **changes: float | bool | None) -> None:
        """Change what the host does from now on: any of the fields of `Behaviour`."""
        behaviour = replace(self.behaviour, **changes)  # type: ignore[arg-type]
        self._do("behave", behaviour=asdict(behaviour))
        self.behaviour = behaviour

    def commands(self) -> list[Command]:
        """Return the commands that run now or whose channel is still open."""
        return [Command(**each) for each in self._do("commands")]

    def processes(self) -> list[int]:
        """Return the ids of all processes on the host, whoever started them, detached ones too."""
        return marked(str(self.root))

    def greet(self, text: str, files: Sequence[str] = LOGIN_FILES) -> None:
        """Let the login profile print `text` on both its outputs; see `profiles.greet`."""
        greet(self.home, text, files)

    def log(self) -> str:
        """Return what the server printed about itself."""
        return (self.root / "log").read_text(encoding="utf-8", errors="replace")

    def _do(self, action: str, **arguments: object) -> Any:
        return self._ask({"do": action, **arguments})

    def _ask(self, request: Mapping[str, object]) -> Any:
        with self._lock:
            if self._closed:
                raise RuntimeError(f"the embedded host {self.alias} is closed")
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            try:
                self._process.stdin.write(json.dumps(request) + "\n")
                self._process.stdin.flush()
                line = self._process.stdout.readline()
            except BrokenPipeError:
                line = ""
            if not line:
                raise RuntimeError(f"the embedded host {self.alias} died; it printed:\n{self.log()}")
        answer = json.loads(line)
        if answer["error"] is not None:
            raise RuntimeError(f"the embedded host {self.alias} could not: {answer['error']}")
        return answer["value"]
