"""The hosts of a run: an sshd of its own for each column, with its keys, config and kernelspecs, in one directory.

All are this machine and this account, with a home directory of their own. The account's own ~/.ssh is not used.
"""

from __future__ import annotations

import getpass
import importlib.metadata
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil

from . import processes
from .delay import Link

DELAY = 0.025
"""Seconds each way over the slow link."""

LOCAL, OURS, PEER = "local", "ours", "peer"
NAMES = (LOCAL, OURS, PEER, "ours@50ms", "peer@50ms")


@dataclass
class Host:
    """One column's host and how to reach it.

    Attributes:
        column: the column's name, one of `NAMES`.
        root: the directory of the run, with what all columns share.
        mark: what its processes are marked with, without the side.
        home: the home directory on the host.
        environ: environment of the client's process.
        kernel: the kernelspec's name.
        alias: the host's name in the ssh config; None for local kernels.
        sshd: its server; None for local kernels.
        link: the slow link to it, if there is one.
    """

    column: str
    root: Path
    mark: str
    home: Path
    environ: dict[str, str]
    kernel: str
    alias: str | None = None
    sshd: subprocess.Popen[bytes] | None = None
    link: Link | None = None
    control: Path | None = None
    """Socket of the peer's shared connection."""

    @property
    def kind(self) -> str:
        """`local`, `ours` or `peer`, over whatever link."""
        return self.column.partition("@")[0]

    @property
    def shared_connection(self) -> list[psutil.Process]:
        """The process that holds the peer's shared connection."""
        return processes.mentioning(f"{self.control} ") if self.control else []

    def forget_visits(self) -> None:
        """Make it a host that nobody ever visited: no connection, an empty home."""
        if self.sshd is not None:
            processes.kill_sessions(self.sshd.pid)
        processes.end(self.shared_connection)
        processes.end(processes.marked(self.mark))
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir(mode=0o700)

    def close(self) -> None:
        """End its server and link."""
        if self.sshd is not None:
            processes.kill_sessions(self.sshd.pid)
            self.sshd.kill()
            self.sshd.wait()
        if self.link is not None:
            self.link.close()


class Hosts:
    """The directory of one run and all the hosts in it.

    Args:
        columns: which columns to make.

    Raises:
        RuntimeError: an ssh server cannot be had here; the message says why.
    """

    def __init__(self, columns: list[str]) -> None:
        # Short, because unix sockets' names must be.
        self.root = Path(tempfile.mkdtemp(prefix="ab-"))
        self.run = self.root.name
        self.hosts: list[Host] = []
        self._config = self.root / "config"
        for name in ("h", "c", "kernels", "keys", "m"):
            (self.root / name).mkdir(mode=0o700)
        try:
            self._make_keys()
            for column in columns:
                self.hosts.append(self._make_host(column))
        except BaseException:
            self.close()
            raise

    def close(self) -> list[str]:
        """End and remove everything; return what had to be ended by force, in words."""
        for host in self.hosts:
            host.close()
        left = [*processes.marked(self.run), *processes.mentioning(f"{self.root}/")]
        words = [f"process {process.pid}: {process.name()}" for process in set(left)]
        processes.end(left)
        shutil.rmtree(self.root, ignore_errors=True)
        if self.root.exists():
            words.append(f"directory {self.root}")
        return words

    def _make_keys(self) -> None:
        for name in ("client", "host"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", self.root / "keys" / name], check=True
            )
        shutil.copy(self.root / "keys" / "client.pub", self.root / "keys" / "authorized")
        self._config.touch(0o600)
        (self.root / "known_hosts").touch(0o600)

    def _make_host(self, column: str) -> Host:
        short = column.replace("@50ms", "-50")
        home, client = self.root / "h" / short, self.root / "c" / short
        home.mkdir(mode=0o700)
        (client / "run").mkdir(mode=0o700, parents=True)
        mark = f"{self.run}:{column}:"
        host = Host(column, self.root, mark, home, self._client_environ(client, home, mark, column), f"bench-{short}")
        if host.kind != LOCAL:
            host.alias = f"bench-{short}"
            port = _free_port()
            host.sshd = self._start_sshd(host, port)
            if column.endswith("@50ms"):
                host.link = Link(port, DELAY)
                port = host.link.port
            self._add_alias(host, port)
        self._add_kernelspec(host)
        return host

    def _client_environ(self, client: Path, home: Path, mark: str, column: str) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER", "IPYTHON", "SSH_"))
        }
        return {
            **kept,
            # A local kernel's home is its client's.
            "HOME": str(home if column == LOCAL else client),
            "JUPYTER_PATH": str(self.root),
            "JUPYTER_RUNTIME_DIR": str(client / "run"),
            "JUPYTER_DATA_DIR": str(client / "data"),
            "JUPYTER_CONFIG_DIR": str(client / "config"),
            "ALBEDO_HOME": str(client / "albedo"),
            "ALBEDO_SSH_CONFIG": str(self._config),
            processes.MARK: f"{mark}client",
        }

    def _start_sshd(self, host: Host, port: int) -> subprocess.Popen[bytes]:
        program = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin")
        if program is None:
            raise RuntimeError("there is no sshd on this machine")
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where a server run by root separates privileges
        config = self.root / f"sshd-{host.alias}"
        config.write_text(
            f"Port {port}\n"
            "ListenAddress 127.0.0.1\n"
            f"HostKey {self.root}/keys/host\n"
            f"AuthorizedKeysFile {self.root}/keys/authorized\n"
            f"SetEnv HOME={host.home} {processes.MARK}={host.mark}host\n"
            "PidFile none\n"
            "StrictModes no\n"  # the directory above ours is anybody's
            "UsePAM no\n"
            "PasswordAuthentication no\n"
            "KbdInteractiveAuthentication no\n"
            "PermitRootLogin yes\n"
            "PrintMotd no\n"
            "PrintLastLog no\n"
            "UseDNS no\n"
            "MaxStartups 100\n"
            "LogLevel ERROR\n"
        )
        log = self.root / f"sshd-{host.alias}.log"
        with log.open("wb") as stream:
            server = subprocess.Popen([program, "-D", "-e", "-f", config], stdin=subprocess.DEVNULL, stderr=stream)
        try:
            processes.wait_until(lambda: _answers(port) or server.poll() is not None, 10, "sshd", pause=0.02)
        except TimeoutError:
            server.kill()
        if server.poll() is not None:
            raise RuntimeError(f"sshd does not start: {log.read_text().strip()}")
        return server

    def _add_alias(self, host: Host, port: int) -> None:
        host.control = self.root / "m" / str(host.alias) if host.kind == PEER else None
        shared = f"  ControlMaster auto\n  ControlPath {host.control}\n  ControlPersist 10m\n"
        with self._config.open("a") as stream:
            stream.write(
                f"Host {host.alias}\n"
                "  HostName 127.0.0.1\n"
                f"  Port {port}\n"
                f"  User {getpass.getuser()}\n"
                f"  IdentityFile {self.root}/keys/client\n"
                "  IdentitiesOnly yes\n"
                f"  UserKnownHostsFile {self.root}/known_hosts\n"
                "  GlobalKnownHostsFile /dev/null\n"
                "  BatchMode yes\n" + (shared if host.control else "")
            )
        kind, key = (self.root / "keys" / "host.pub").read_text().split()[:2]
        with (self.root / "known_hosts").open("a") as stream:
            stream.write(f"[127.0.0.1]:{port} {kind} {key}\n")

    def _add_kernelspec(self, host: Host) -> None:
        spec: dict[str, object] = {
            "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            "display_name": host.kernel,
            "language": "python",
        }
        if host.kind == OURS:
            work = self.root / "work"
            work.mkdir(exist_ok=True)
            config: dict[str, object] = {"location": f"{host.alias}:{work}", "python": sys.executable}
            spec["metadata"] = {"kernel_provisioner": {"provisioner_name": "albedo-provisioner", "config": config}}
        elif host.kind == PEER:
            config = {
                "ssh_host_alias": host.alias,
                "ssh_config": str(self._config),
                "remote_python": sys.executable,
                "remote_kernel_name": "python3",
            }
            spec["metadata"] = {"kernel_provisioner": {"provisioner_name": "sshpyk-provisioner", "config": config}}
            spec["interrupt_mode"] = "message"  # as its own command writes it: it sends no signals
        directory = self.root / "kernels" / host.kernel
        directory.mkdir()
        (directory / "kernel.json").write_text(json.dumps(spec))


def peer_is_installed() -> bool:
    """Say whether the other provisioner can be measured."""
    return importlib.util.find_spec("sshpyk") is not None


def environment() -> str:
    """Return in one line what the figures depend on."""
    names = ["albedo-provisioner", "jupyter_client", "ipykernel", "pyzmq", "asyncssh", "sshpyk"]
    versions = []
    for name in names:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    ssh = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=False).stderr.strip().partition(",")[0]
    return ", ".join(
        [
            f"Python {sys.version.split()[0]}",
            *versions,
            ssh,
            f"{os.uname().sysname} {os.uname().machine}",
            f"{os.cpu_count()} cores",
            f"load {os.getloadavg()[0]:.1f} at the beginning",
        ]
    )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
