"""One face for the three kinds of hosts that the tests run kernels on: embedded, a real sshd, this machine."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from procs import Process, everyone, send, wait_until
from sshd import SYSTEM_TEMP, Account, SshServer

from albedo_provisioner.demo.profiles import LOGIN_FILES, greet
from albedo_provisioner.demo.server import EmbeddedHost
from albedo_provisioner.hosts.staging import bundle

_BUNDLE = re.compile(r"[0-9a-f]{16}")
_OF_WHEELS = re.compile(r"(for-)?[0-9a-f]{16}")


@dataclass
class Host:
    """A host as a test sees it; its files are read and written through the local file system.

    Attributes:
        kind: "embedded", "sshd" or "local".
        alias: its name in the ssh config; None for this machine.
        home: the remote home.
        python: an interpreter with ipykernel on it; also the `python3` of its login shells.
        ssh_config: the ssh config in force; None for this machine.
        temp: where its commands make temporary files.
    """

    kind: str
    alias: str | None
    home: Path
    python: Path
    ssh_config: Path | None
    temp: Path

    @property
    def remote(self) -> bool:
        """It is reached by ssh, so that the link can break."""
        return self.alias is not None

    def location(self, folder: str | os.PathLike[str] = "") -> str:
        """Return the location of a folder of the host ("box1:/…/home/proj"); relative to the home if not absolute."""
        path = str(self.home / folder)
        return f"{self.alias}:{path}" if self.alias else path

    def make_folder(self, name: str) -> Path:
        """Make a folder in the home, owned by the account, and return its path."""
        path = self.home / name
        missing = [each for each in (path, *path.parents) if not each.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for each in missing:
            self._own(each)
        return path

    def write(self, path: str | os.PathLike[str], text: str) -> Path:
        """Write a file, owned by the account, and its folder; relative to the home if not absolute."""
        full = self.home / path
        if not full.parent.exists():
            self.make_folder(str(full.parent))
        full.write_text(text, encoding="utf-8")
        self._own(full)
        return full

    def greet(self, text: str, files: Sequence[str] = LOGIN_FILES) -> None:
        """Let the login profile print `text` on both its outputs."""
        greet(self.home, text, files)
        for name in files:
            self._own(self.home / name)

    def write_old_python(self, path: str) -> Path:
        """Write a stand-in for Python 3.8.2: a real one that says so of itself before our code looks."""
        named = "collections.namedtuple('V', 'major minor micro releaselevel serial')"
        old = f"import collections, sys; sys.version_info = {named}(3, 8, 2, 'final', 0)"
        # It is called with the arguments: -S -c CODE LABEL
        script = (
            f"#!{self.python}\nimport os, sys\ncode = sys.argv[sys.argv.index('-c') + 1]\n"
            f"rest = sys.argv[sys.argv.index('-c') + 2:]\n"
            f"os.execv({str(self.python)!r}, [{str(self.python)!r}, '-S', '-c', {old!r} + '\\n' + code, *rest])\n"
        )
        full = self.write(path, script)
        full.chmod(0o755)
        return full

    def have_been_visited(self, compiled: Path) -> None:
        """Put our files where an earlier visit would have left them, compiled, as almost every visit finds them."""
        target = self.home / ".albedo-remote" / bundle().digest
        target.parent.mkdir(mode=0o700)
        # The compiled ones are good for the others as long as these keep their times.
        shutil.copytree(compiled, target)
        self._own(target.parent)

    def run(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command as the account, in its home, without ssh."""
        raise NotImplementedError

    def processes(self) -> list[Process]:
        """Return all processes of the host: everything that came by ssh or descends from that."""
        raise NotImplementedError

    def _own(self, path: Path) -> None:
        """Give a file to the account."""

    # The link; for remote hosts alone

    def cut(self) -> int:
        """Break all connections; new ones are welcome. Return how many there were."""
        raise NotImplementedError

    def down(self) -> None:
        """Break all connections and refuse new ones."""
        raise NotImplementedError

    def up(self) -> None:
        """Listen again."""
        raise NotImplementedError

    def freeze(self) -> int:
        """Make the connections that exist half-open; new ones work. Return how many there were."""
        raise NotImplementedError

    def thaw(self) -> None:
        """Let frozen connections go on."""
        raise NotImplementedError

    def connected(self) -> int:
        """Return how many connections there are."""
        raise NotImplementedError

    # What is left

    def leftovers(self) -> list[str]:
        """Return what would be left on the host if the test ended now, in words; bundles and packages may stay."""
        found = [str(process) for process in self.processes()]
        for path in _entries(self.home / ".albedo-remote"):
            if path.name == "run":
                found += [f"{each} on the host" for each in _entries(path)]
            elif path.name == "wheels":
                found += [f"{each} on the host" for each in _entries(path) if not _OF_WHEELS.fullmatch(each.name)]
            elif not (path.is_dir() and _BUNDLE.fullmatch(path.name)):
                found.append(f"{path} on the host")
        return found + [f"{path} on the host" for path in sorted(self._temporary_files())]

    def _temporary_files(self) -> list[Path]:
        return list(self.temp.glob("albedo*"))

    def clear(self) -> None:
        """End all its processes and remove what `leftovers` names, so that the next test starts clean."""

        def none_left() -> bool:
            left = self.processes()
            for process in left:
                send(process, signal.SIGKILL)
            return not left

        wait_until(none_left, what=f"no process on {self.kind} host")
        shutil.rmtree(self.home / ".albedo-remote" / "run", ignore_errors=True)
        for path in self._temporary_files():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


@dataclass
class Remote(Host):
    """A host that is reached over ssh."""

    server: EmbeddedHost | SshServer

    def cut(self) -> int:
        return self.server.cut()

    def down(self) -> None:
        self.server.down()

    def up(self) -> None:
        self.server.up()

    def freeze(self) -> int:
        return self.server.freeze()

    def thaw(self) -> None:
        self.server.thaw()

    def connected(self) -> int:
        return len(self.server.connections())


@dataclass
class Embedded(Remote):
    """An embedded host. `server` has more faults to offer: delays, refusals, cuts after so many bytes."""

    server: EmbeddedHost

    def run(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return _run(argv, self.home, self.python, {"TMPDIR": str(self.temp)})

    def processes(self) -> list[Process]:
        pids = set(self.server.processes())
        return [process for process in everyone() if process.pid in pids]


@dataclass
class Real(Remote):
    """An account on a real sshd."""

    server: SshServer
    account: Account

    def run(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return self.account.run(list(argv), self.python.parent)

    def processes(self) -> list[Process]:
        return self.account.processes()

    def _own(self, path: Path) -> None:
        self.account.own(path)

    def _temporary_files(self) -> list[Path]:
        # The temporary directory is everybody's; only the account's own files count.
        return [path for path in super()._temporary_files() if _owner(path) == self.account.uid]


@dataclass
class Local(Host):
    """This machine, with a fresh home."""

    def run(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return _run(argv, self.home, self.python, {"TMPDIR": str(self.temp)})

    def processes(self) -> list[Process]:
        # The test's own children have this HOME too, but as long as they are its children they are its own affair.
        home = str(self.home)
        own = os.getpid()
        return [
            process
            for process in everyone()
            if process.environ.get("HOME") == home and process.pid != own and process.ppid != own
        ]


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except FileNotFoundError:  # never made, or gone while we look
        return []


def _owner(path: Path) -> int | None:
    try:
        return path.lstat().st_uid
    except FileNotFoundError:
        return None


def keeper_of(host: Host) -> Process:
    """Return the only keeper on a host: what has a kernel for a child."""
    there = host.processes()
    (kernel,) = [process for process in there if any(word.endswith("/launcher.py") for word in process.argv)]
    (keeper,) = [process for process in there if process.pid == kernel.ppid]
    return keeper


def own_python() -> Path:
    """Return this interpreter, by the name that a PATH finds it by."""
    plain = Path(sys.executable).with_name("python3")
    return plain if plain.exists() else Path(sys.executable)


def embedded(server: EmbeddedHost, ssh_config: Path) -> Embedded:
    """Put the common face on an embedded host."""
    return Embedded(
        kind="embedded",
        alias=server.alias,
        home=server.home,
        python=own_python(),
        ssh_config=ssh_config,
        temp=server.root / "tmp",
        server=server,
    )


def real(server: SshServer, account: Account, alias: str, python: Path, ssh_config: Path) -> Real:
    """Put the common face on an account of a real sshd."""
    return Real(
        kind="sshd",
        alias=alias,
        home=account.home,
        python=python,
        ssh_config=ssh_config,
        temp=SYSTEM_TEMP,
        server=server,
        account=account,
    )


def _run(argv: Sequence[str], home: Path, python: Path, more: dict[str, str]) -> subprocess.CompletedProcess[str]:
    environ = {
        "PATH": f"{python.parent}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home),
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
        **more,
    }
    return subprocess.run(
        argv, cwd=home, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
