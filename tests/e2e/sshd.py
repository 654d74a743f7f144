"""A real OpenSSH server on loopback, run as root, to which one logs in as another account with another home."""

from __future__ import annotations

import ctypes
import fcntl
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from account_python import cache_directory
from procs import Process, descendants, everyone, read, send, wait_until

from albedo_provisioner.demo.profiles import write_profiles
from albedo_provisioner.demo.sshd import ssh_config

# Before any fixture changes TMPDIR: where other accounts, which do not inherit it, make their temporary files.
SYSTEM_TEMP = Path(tempfile.gettempdir()).resolve()

_port_locks: list[IO[str]] = []

_DEFAULTS = {
    "StrictModes": "no",  # keys lie in our directory, not in the account's
    "UsePAM": "no",
    "PasswordAuthentication": "no",
    "KbdInteractiveAuthentication": "no",
    "AllowTcpForwarding": "no",  # a host that forbids forwarding works
    "AllowStreamLocalForwarding": "no",
    "AllowAgentForwarding": "no",
    "X11Forwarding": "no",
    "MaxSessions": "10",
    "MaxStartups": "100",
    "AcceptEnv": "LANG LC_*",
    "UseDNS": "no",
    "PrintMotd": "no",
    "LogLevel": "VERBOSE",
}


class NoSshdError(Exception):
    """A real ssh server cannot be had here; the message says why."""


@dataclass(frozen=True)
class Account:
    """One account of this machine that exists for the tests."""

    name: str
    uid: int
    gid: int
    home: Path

    def processes(self) -> list[Process]:
        """Return its processes, without zombies and without the ssh server's own."""
        return [
            each
            for each in everyone()
            if each.uid == self.uid and each.state != "Z" and not each.exe.startswith("sshd")
        ]

    def end_processes(self) -> None:
        """Kill all its processes and wait until they are gone."""

        def none_left() -> bool:
            left = self.processes()
            for process in left:
                send(process, signal.SIGKILL)
            return not left

        wait_until(none_left, what=f"no process of {self.name}")

    def reset(self, first_on_path: Path | None) -> None:
        """End its processes and give it an empty home with plain login profiles, and bash."""
        self.end_processes()
        for path in self.home.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        self.home.chmod(0o750)
        write_profiles(self.home, str(first_on_path) if first_on_path else None)
        self.own(self.home)
        self.set_shell("/bin/bash")

    def own(self, top: Path) -> None:
        """Give a file, or a directory and all in it, to the account."""
        paths = [top, *top.rglob("*")] if top.is_dir() and not top.is_symlink() else [top]
        for path in paths:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def set_shell(self, shell: str) -> None:
        """Change the login shell."""
        if pwd.getpwnam(self.name).pw_shell != shell:
            _run(["usermod", "--shell", shell, self.name])

    def set_password(self, password: str) -> None:
        """Give it a password, or with "" none that could be right."""
        command = ["chpasswd"] if password else ["usermod", "--password", "*", self.name]
        # /etc/shadow is locked for a moment while another run changes it.
        wait_until(lambda: _succeeds(command, f"{self.name}:{password}"), 20, " ".join(command))

    def run(self, argv: list[str], first_on_path: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command as the account, in its home, with a plain login environment."""
        path = "/usr/local/bin:/usr/bin:/bin"
        environ = {
            "PATH": f"{first_on_path}:{path}" if first_on_path else path,
            "HOME": str(self.home),
            "USER": self.name,
            "LOGNAME": self.name,
            "SHELL": pwd.getpwnam(self.name).pw_shell,
            "LANG": "C.UTF-8",
        }
        return subprocess.run(
            argv,
            user=self.uid,
            group=self.gid,
            extra_groups=[],
            cwd=self.home,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )


@dataclass(frozen=True)
class Accounts:
    """Two accounts, and the lock that keeps other runs of the suite on this machine off them."""

    ann: Account
    bob: Account
    lock: IO[str]


def reserve_accounts() -> Accounts:
    """Return two accounts that no other run uses meanwhile; they are made when they do not exist yet.

    Raises:
        NoSshdError: accounts cannot be made.
    """
    for number in range(1, 33):
        lock = (cache_directory() / f"accounts-{number}.lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        suffix = "" if number == 1 else str(number)
        return Accounts(_account(f"albedo-ann{suffix}"), _account(f"albedo-bob{suffix}"), lock)
    raise NoSshdError("all test accounts are in use by other runs of the suite")


def _account(name: str) -> Account:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        # "*" is a password that nothing matches; useradd's own "!" would make sshd refuse the account as locked.
        # /etc/passwd is locked for a moment while another run makes its accounts.
        command = ["useradd", "--create-home", "--user-group", "--shell", "/bin/bash", "--password", "*", name]
        wait_until(lambda: _succeeds(command), 20, f"useradd {name}")
        entry = pwd.getpwnam(name)
    return Account(name, entry.pw_uid, entry.pw_gid, Path(entry.pw_dir))


def _succeeds(command: list[str], words: str = "") -> bool:
    result = subprocess.run(command, input=words, capture_output=True, text=True, check=False)
    if result.returncode not in (0, 1, 10):  # 1 and 10: the password or group file cannot be updated just now
        raise NoSshdError(f"{' '.join(command)}: {result.stderr.strip()}")
    return result.returncode == 0


def _run(argv: list[str]) -> str:
    result = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if result.returncode:
        raise NoSshdError(f"{' '.join(argv)}: {result.stderr.strip()}")
    return result.stdout


class SshServer:
    """One sshd for several accounts, on the same port of 127.0.0.1 for its whole life.

    Attributes:
        root: its directory: keys, config, log.
        port: the port.
        client_key: the private key that all accounts accept.
        known_hosts: a known-hosts file with its host key.

    Raises:
        NoSshdError: there is no sshd here, or it does not start.
    """

    def __init__(self, accounts: Accounts) -> None:
        if os.getuid() != 0:
            raise NoSshdError("a real sshd for other accounts needs root")
        self._program = _find_sshd()
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # its privilege separation directory
        # Others may pass through: sshd reads authorized_keys with the account's own rights.
        self.root = Path(tempfile.mkdtemp(prefix="alb-sshd-", dir=SYSTEM_TEMP))
        self.root.chmod(0o755)
        self.client_key, self.known_hosts = self.root / "client_key", self.root / "known_hosts"
        for key in (self.client_key, self.root / "host_key"):
            _run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(key)])
        for account in (accounts.ann, accounts.bob):
            keys = self.root / f"keys-{account.name}"
            shutil.copy(self.client_key.with_suffix(".pub"), keys)
            keys.chmod(0o644)
        self._process: subprocess.Popen[bytes] | None = None
        self._options: dict[str, str] = {}
        self.port = _free_port()
        host_key = (self.root / "host_key.pub").read_text()
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {host_key}")
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int | None:
        """The listening sshd's process id, while it listens."""
        return self._process.pid if self._process else None

    def config_for(self, alias: str, account: Account) -> str:
        """Return an ssh config in which `alias` is that account on this server."""
        return ssh_config(alias, self.port, account.name, self.client_key, self.known_hosts)

    def start(self, **options: str) -> None:
        """Listen (again), with sshd's own options where they differ from the usual ones (MaxSessions="1")."""
        if self._process is not None:
            return
        config = self._configure(options)
        # Newer servers (9.8) shut out an address after failures; all tests come from one. Older ones do not know it.
        extra = ["-o", "PerSourcePenalties=no"]
        test = [self._program, "-t", "-f", str(config), *extra]
        if subprocess.run(test, capture_output=True, check=False).returncode:
            extra = []
        self._process = subprocess.Popen(
            [self._program, "-D", "-f", str(config), "-E", str(self.root / "log"), *extra],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        wait_until(self._listens, 10, f"sshd listens; its log: {self.log()[-2000:]}")

    def _configure(self, options: dict[str, str]) -> Path:
        """Write the configuration and return its file."""
        self._options = options
        config = self.root / "sshd_config"
        lines = {
            "ListenAddress": f"127.0.0.1:{self.port}",
            "HostKey": str(self.root / "host_key"),
            "PidFile": "none",
            "AuthorizedKeysFile": f"{self.root}/keys-%u",
            **_DEFAULTS,
            **options,
        }
        config.write_text("".join(f"{key} {value}\n" for key, value in lines.items()))
        return config

    def reconfigure(self, **options: str) -> None:
        """Take other options for new connections; those that there are stay."""
        assert self._process is not None
        self._configure(options)
        before = self.log().count("Server listening on")
        self._process.send_signal(signal.SIGHUP)
        wait_until(lambda: self.log().count("Server listening on") > before, 10, "sshd has read its configuration")

    def _listens(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            self._process = None
            raise NoSshdError(f"sshd ended at once: {self.log()[-2000:]}")
        try:
            with socket.create_connection(("127.0.0.1", self.port), 2) as sock:
                return sock.recv(4) == b"SSH-"
        except OSError:
            return False

    def stop(self) -> None:
        """Stop listening and break all connections."""
        if self._process is None:
            return
        sessions = self._session_servers()
        self._process.kill()
        self._process.wait()
        self._process = None
        self._kill(sessions)

    down = stop

    def up(self) -> None:
        """Listen again, as before."""
        self.start(**self._options)

    def restart(self, **options: str) -> None:
        """Stop, and start with other options."""
        self.stop()
        self.start(**options)

    def restore(self) -> None:
        """Be as at first, whatever a test did: listening with the usual options, with no connection."""
        if self._process is None or self._process.poll() is not None or self._options:
            self.restart()
        else:
            self.cut()

    def cut(self) -> int:
        """Break all connections; new ones are welcome. Return how many there were."""
        sessions = self._session_servers()
        self._kill(sessions)
        listener = self.pid
        return sum(each.ppid == listener for each in sessions)

    def freeze(self) -> int:
        """Stop the server processes of all connections, so that these are half-open; return how many there are."""

        def all_stopped() -> bool:
            # One that signs somebody in at this moment forks the process that then speaks for the connection.
            running = [each for each in self._session_servers() if each.state not in "TZ"]
            for process in running:
                send(process, signal.SIGSTOP)
            return not running

        wait_until(all_stopped, what="the sessions' sshd processes are stopped")
        return len(self.connections())

    def thaw(self) -> None:
        """Let them go on."""
        for process in self._session_servers():
            send(process, signal.SIGCONT)

    def connections(self) -> list[Process]:
        """Return the server process of each connection."""
        return [each for each in self._session_servers() if each.ppid == self.pid]

    def log(self) -> str:
        """Return sshd's log."""
        path = self.root / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def close(self) -> None:
        """Stop, and remove the directory."""
        self.stop()
        shutil.rmtree(self.root, ignore_errors=True)

    def _session_servers(self) -> list[Process]:
        """Return the processes that serve connections: sshd's own descendants, not the commands they run."""
        if self._process is None:
            return []
        return [each for each in descendants(self._process.pid) if each.exe.startswith("sshd")]

    def _kill(self, sessions: list[Process]) -> None:
        for process in sessions:
            send(process, signal.SIGKILL)

        def gone() -> bool:
            states = [read(each.pid) for each in sessions]
            return not any(
                now and now.started == then.started and now.state != "Z"
                for now, then in zip(states, sessions, strict=True)
            )

        wait_until(gone, what="the sessions' sshd processes are gone")


def _die_with_parent() -> None:
    """Let a suite that is killed leave no server behind; only Linux can, and only Linux runs these tests."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _find_sshd() -> str:
    found = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin:/sbin")
    if not found:
        raise NoSshdError("there is no sshd (Debian: apt-get install openssh-server)")
    for tool in ("ssh", "ssh-keygen", "useradd"):
        if not shutil.which(tool, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin"):
            raise NoSshdError(f"there is no {tool}")
    return found  # absolute: sshd runs itself again by this name for each connection


def _free_port() -> int:
    """Return a port that is free, that the kernel does not give out by itself meanwhile, and that is ours until this
    process ends: no other run of these tests takes it while a server is down.
    """
    text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    low = int(re.split(r"\s+", text.strip())[0])
    start = 10000 + os.getpid() % 10000
    locks = SYSTEM_TEMP / "albedo-test-ports"
    locks.mkdir(exist_ok=True)
    for port in [*range(start, min(low, 32768)), *range(10000, start)]:
        lock = (locks / str(port)).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind(("127.0.0.1", port))
        except OSError:
            lock.close()
            continue
        _port_locks.append(lock)
        return port
    raise NoSshdError("no free port")
