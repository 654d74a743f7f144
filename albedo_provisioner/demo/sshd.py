"""The embedded host's own process: an ssh server on loopback, told what to do by lines of JSON.

Started by `albedo_provisioner.demo.server.EmbeddedHost` with its private directory; see there. The first line on
standard input, a pipe, is the setup, every other one a request; each is answered by one line. The end of standard input
ends the host and all it started.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import asyncssh

from .behaviour import Behaviour, Command, Connection
from .command import CommandSession, Surroundings
from .gate import Gate, Wire
from .profiles import write_profiles

# Every process of the host carries this variable; it is how the host knows its own when it ends.
MARK = "ALBEDO_DEMO_HOST"
_SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


@dataclass(frozen=True)
class Setup:
    """What an embedded host is made of.

    Attributes:
        directory: a private directory (0700) that exists and that the host removes when it ends.
        alias: the `Host` name in the ssh config.
        shell: the account's login shell.
        python: the interpreter whose directory comes first on PATH.
        environ: more environment variables for commands.
        behaviour: what it does at first.
    """

    directory: str
    alias: str
    shell: str
    python: str
    environ: dict[str, str]
    behaviour: dict[str, Any]


class Server:
    """The ssh server, its gate and its commands."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.root = Path(setup.directory)
        self.home = self.root / "home"
        self.behaviour = Behaviour(**setup.behaviour)
        self.account = _account()
        self.gate = Gate(self._serve)
        self._host_key = asyncssh.generate_private_key("ssh-ed25519")
        self._client_key = asyncssh.generate_private_key("ssh-ed25519")
        self._client_public = self._client_key.convert_to_public().public_data
        self._sessions: dict[Wire, list[CommandSession]] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._first_on_path = ""

    async def start(self) -> dict[str, Any]:
        """Make the home, listen, write the ssh config; return what the owner needs to know."""
        self.home.mkdir(mode=0o700)
        (self.root / "tmp").mkdir(mode=0o700)
        self._first_on_path = _python_directory(self.setup.python, self.root)
        write_profiles(self.home, self._first_on_path)
        self._apply()
        await self.gate.start()
        self._write_ssh_files()
        return {"port": self.gate.port, "home": str(self.home), "account": self.account}

    def _write_ssh_files(self) -> None:
        key, known, config = self.root / "client_key", self.root / "known_hosts", self.root / "ssh_config"
        key.touch(mode=0o600)
        key.write_bytes(self._client_key.export_private_key("openssh"))
        public = self._host_key.export_public_key("openssh").decode()
        known.write_text(f"[127.0.0.1]:{self.gate.port} {public}", encoding="utf-8")
        config.write_text(ssh_config(self.setup.alias, self.gate.port, self.account, key, known), encoding="utf-8")

    # What connections ask for

    def _serve(self, wire: Wire, sock: socket.socket) -> None:
        task = asyncio.get_running_loop().create_task(self._converse(wire, sock))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _converse(self, wire: Wire, sock: socket.socket) -> None:
        try:
            await asyncssh.run_server(
                sock,
                server_factory=lambda: _Doorkeeper(self, wire),
                server_host_keys=[self._host_key],
                encoding=None,
                allow_pty=False,
                agent_forwarding=False,
                login_timeout=60,
            )
        except (asyncssh.Error, OSError) as error:
            _log(f"connection {wire.number}: {error}")

    def accepts(self, key: asyncssh.SSHKey) -> bool:
        """Say whether a client with this key may come in."""
        return not self.behaviour.refuse_auth and key.public_data == self._client_public

    def session(self, wire: Wire) -> CommandSession:
        """Make a session for one more channel of a connection.

        Raises:
            asyncssh.ChannelOpenError: it has as many as it may have.
        """
        sessions = self._sessions.setdefault(wire, [])
        limit = self.behaviour.max_sessions
        if limit is not None and len(sessions) >= limit:
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, "open failed")

        def ended(session: CommandSession) -> None:
            if session in sessions:
                sessions.remove(session)
            if not sessions:
                self._sessions.pop(wire, None)

        session = CommandSession(self._surroundings, ended)
        sessions.append(session)
        return session

    def _surroundings(self, sent: Mapping[str, str]) -> Surroundings:
        environ = {
            "PATH": f"{self._first_on_path}:{_SYSTEM_PATH}",
            "HOME": str(self.home),
            "USER": self.account,
            "LOGNAME": self.account,
            "SHELL": self.setup.shell,
            "LANG": "C.UTF-8",
            "TMPDIR": str(self.root / "tmp"),
            # bash reads ~/.bashrc even for `bash -c` when it finds these, as it does under OpenSSH's server.
            "SSH_CLIENT": f"127.0.0.1 0 {self.gate.port}",
            "SSH_CONNECTION": f"127.0.0.1 0 127.0.0.1 {self.gate.port}",
            MARK: str(self.root),
            **self.setup.environ,
        }
        # What Debian's and others' `AcceptEnv` lets in.
        environ.update({k: v for k, v in sent.items() if k == "LANG" or k.startswith("LC_")})
        behaviour = self.behaviour
        return Surroundings(self.setup.shell, self.home, environ, behaviour.exec_delay, behaviour.refuse_exec)

    # What the owner asks for

    async def answer(self, request: Mapping[str, Any]) -> object:
        """Do what a request says and return what to answer.

        Raises:
            ValueError: there is no such request.
        """
        actions: dict[str, Callable[[Mapping[str, Any]], object]] = {
            "cut": lambda r: self.gate.cut(reset=r["reset"]),
            "cut_after": lambda r: self.gate.cut_after(r["direction"], r["count"]),
            "down": lambda _: self.gate.down(),
            "up": lambda _: self.gate.up(),
            "freeze": lambda _: self.gate.freeze(),
            "thaw": lambda _: self._thaw(),
            "behave": self._behave,
            "connections": lambda _: [asdict(each) for each in self.connections()],
            "accepted": lambda _: self.gate.accepted,
            "commands": lambda _: [asdict(each) for each in self.commands()],
        }
        action = actions.get(request["do"])
        if action is None:
            raise ValueError(f"no such request: {request['do']}")
        result = action(request)
        return await result if isinstance(result, Awaitable) else result

    def _behave(self, request: Mapping[str, Any]) -> None:
        self.behaviour = Behaviour(**request["behaviour"])
        self._apply()

    def _apply(self) -> None:
        self.gate.latency = self.behaviour.latency
        self.gate.hold_new = self.behaviour.hold_new

    def _thaw(self) -> None:
        self.behaviour = Behaviour(**{**asdict(self.behaviour), "hold_new": False})
        self.gate.thaw()

    def connections(self) -> list[Connection]:
        """Return the connections that exist."""
        return [
            Connection(
                wire.number,
                len(self._sessions.get(wire, ())),
                wire.counters.sent,
                wire.counters.received,
                wire.frozen,
            )
            for wire in self.gate.wires
        ]

    def commands(self) -> list[Command]:
        """Return the commands that run or whose channel is open."""
        return [
            Command(session.pid, session.command, wire.number, session.running)
            for wire, sessions in self._sessions.items()
            for session in sessions
        ]

    async def stop(self) -> None:
        """Cut everybody off, end every process of this host and remove its directory."""
        self.gate.stop()
        await end_all(str(self.root))
        shutil.rmtree(self.root, ignore_errors=True)


class _Doorkeeper(asyncssh.SSHServer):
    """Lets clients in, and lets them open session channels and nothing else."""

    def __init__(self, server: Server, wire: Wire) -> None:
        self._server = server
        self._wire = wire

    async def begin_auth(self, username: str) -> bool:
        await asyncio.sleep(self._server.behaviour.auth_delay)
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return username == self._server.account and self._server.accepts(key)

    def session_requested(self) -> CommandSession:
        return self._server.session(self._wire)

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        # The default refuses too, but as if the destination had.
        raise asyncssh.ChannelOpenError(asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, "open failed")


def ssh_config(alias: str, port: int, account: str, key: Path, known_hosts: Path) -> str:
    """Return an ssh config for one server on loopback that reads nothing of the user's own."""
    return (
        f"Host {alias}\n"
        "    HostName 127.0.0.1\n"
        f"    Port {port}\n"
        f"    User {account}\n"
        f'    IdentityFile "{key}"\n'
        "    IdentitiesOnly yes\n"
        "    IdentityAgent none\n"
        f'    UserKnownHostsFile "{known_hosts}"\n'
        "    GlobalKnownHostsFile /dev/null\n"
        "    StrictHostKeyChecking yes\n"
    )


def marked(root: str) -> list[int]:
    """Return the ids of all processes of the host whose directory is `root`."""
    mark = f"{MARK}={root}"
    if os.path.exists("/proc/self/environ"):
        return [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and _carries(entry, mark)]
    # macOS and the BSDs: ps shows the environments of one's own processes behind their command lines.
    listing = subprocess.run(["ps", "-axEww", "-o", "pid=,command="], capture_output=True, text=True, check=False)
    rows = [line.split(None, 1) for line in listing.stdout.splitlines()]
    return [int(row[0]) for row in rows if len(row) == 2 and mark in row[1].split()]


def _carries(pid: str, mark: str) -> bool:
    try:
        return mark.encode() in Path("/proc", pid, "environ").read_bytes().split(b"\0")
    except OSError:  # it ended since it was listed, or is another account's
        return False


async def end_all(root: str, patience: float = 5.0) -> list[int]:
    """Kill every process of a host, again and again until none is left; return those that stay."""
    deadline = time.monotonic() + patience
    while left := marked(root):
        for pid in left:
            kill_marked(pid, root)
        if time.monotonic() > deadline:
            return left
        await asyncio.sleep(0.02)
    return []


def kill_marked(pid: int, root: str) -> None:
    """Kill `pid` if it is (still) a process of that host."""
    with contextlib.suppress(OSError):
        if sys.platform != "linux":
            os.kill(pid, signal.SIGKILL)
            return
        # The descriptor pins the process, so that a reused id is seen before anything is sent.
        pidfd = os.pidfd_open(pid)
        try:
            if _carries(str(pid), f"{MARK}={root}"):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)


def _account() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # an arbitrary uid, as in some containers
        return f"uid{os.getuid()}"


def _python_directory(python: str, root: Path) -> str:
    """Return a directory in which `python3` is the given interpreter."""
    directory = Path(python).parent
    if (directory / "python3").exists():
        return str(directory)
    # A symlink would do, but for virtual environments, which find themselves by the path they are called by.
    wrapper = root / "bin" / "python3"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec "{python}" "$@"\n', encoding="utf-8")
    wrapper.chmod(0o755)
    return str(wrapper.parent)


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def serve(directory: str) -> None:
    """Be an embedded host, in its private directory, until standard input ends."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    line = await reader.readline()
    if not line:
        shutil.rmtree(directory, ignore_errors=True)  # the owner died before it could say what it wants
        return
    server = Server(Setup(**json.loads(line)))
    # Ended from outside, it takes its commands with it as well: the same way out as the end of standard input.
    loop.add_signal_handler(signal.SIGTERM, reader.feed_eof)
    try:
        _reply(await server.start())
        while line := await reader.readline():
            try:
                _reply(await server.answer(json.loads(line)))
            except (ValueError, TypeError, KeyError, OSError) as error:
                _reply(None, f"{type(error).__name__}: {error}")
    finally:
        await server.stop()


def _reply(value: object, error: str | None = None) -> None:
    try:
        print(json.dumps({"value": value, "error": error}), flush=True)
    except BrokenPipeError:
        _log("the owner is gone")  # the end of standard input follows


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
