"""Where a campaign takes place: an OpenSSH server of our own, a proxy before it, a home on the host, a client's side.

The server runs as the account that runs the campaign, with another HOME. Every process on the host carries a mark.
"""

from __future__ import annotations

import getpass
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from procs import Process, everyone, send, wait_until
from sshd import NoSshdError, SshServer
from sshd import _free_port as free_port

from albedo_provisioner.demo.sshd import ssh_config

from .proxy import Proxy

ALIAS = "fault-host"
KERNELSPEC = "faulty"
_MARK = "ALBEDO_FAULTS"
_REPOSITORY = Path(__file__).resolve().parents[2]
_DISK = "2m"


class OwnServer(SshServer):
    """An sshd for this very account, root or not.

    Args:
        root: an existing directory for keys, config and log.
        environ: variables that its commands get.
    """

    def __init__(self, root: Path, environ: dict[str, str]) -> None:
        found = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin:/sbin")
        if found is None:
            raise NoSshdError("there is no sshd (Debian: apt-get install openssh-server)")
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # its privilege separation directory
        self._program = found
        self.root = root
        self.client_key, self.known_hosts = root / "client_key", root / "known_hosts"
        for key in (self.client_key, root / "host_key"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(key)]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        self._process = None
        self._options = {}
        self.port = free_port()
        self.start(
            AuthorizedKeysFile=str(self.client_key.with_suffix(".pub")),
            PermitRootLogin="yes",
            SetEnv=" ".join(f"{name}={value}" for name, value in environ.items()),
        )


class Place:
    """One campaign's directory, server, proxy and client side.

    Raises:
        NoSshdError: there can be no real sshd here.
    """

    def __init__(self) -> None:
        # Short, because unix sockets' names must be.
        self.root = Path(tempfile.mkdtemp(prefix="alf-")).resolve()
        self.mark = secrets.token_hex(8)
        self.home, self.work, self.side = self.root / "h", self.root / "h" / "w", self.root / "c"
        for path in (self.home, self.work, self.side, self.root / "s", self.root / "tmp"):
            path.mkdir(mode=0o700)
        self._disk = self.home / ".albedo-remote" / "run"
        self._mounted = False
        environ = {"HOME": str(self.home), _MARK: self.mark, "TMPDIR": str(self.root / "tmp")}
        try:
            self.server = OwnServer(self.root / "s", environ)
        except BaseException:
            shutil.rmtree(self.root, ignore_errors=True)
            raise
        self.proxy = Proxy(self.server.port, free_port())
        key = (self.root / "s" / "host_key.pub").read_text()
        self.server.known_hosts.write_text(f"[127.0.0.1]:{self.proxy.port} {key}")
        config = self.side / "ssh_config"
        user, identity = getpass.getuser(), self.server.client_key
        config.write_text(ssh_config(ALIAS, self.proxy.port, user, identity, self.server.known_hosts))
        self._write_kernelspec()
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER", "IPYTHON", "SSH_"))
        }
        self.environ = {
            **kept,
            "HOME": str(self.side),
            "JUPYTER_DATA_DIR": str(self.side / "data"),
            "JUPYTER_RUNTIME_DIR": str(self.side / "run"),
            "JUPYTER_CONFIG_DIR": str(self.side / "config"),
            "ALBEDO_HOME": str(self.side / "albedo"),
            "ALBEDO_SSH_CONFIG": str(config),
            "PYTHONPATH": os.pathsep.join([str(_REPOSITORY), str(Path(__file__).parent)]),
        }

    def _write_kernelspec(self) -> None:
        folder = self.side / "data" / "kernels" / KERNELSPEC
        folder.mkdir(parents=True)
        config = {"location": f"{ALIAS}:{self.work}", "python": sys.executable}
        provisioner = {"provisioner_name": "albedo-provisioner", "config": config}
        spec = {
            "argv": ["python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            "display_name": KERNELSPEC,
            "language": "python",
            "metadata": {"kernel_provisioner": provisioner},
        }
        (folder / "kernel.json").write_text(json.dumps(spec))

    # -- the host's processes --------------------------------------------------------------------------------

    def processes(self) -> list[Process]:
        """Return all of the host's, the server's own excepted."""
        return [
            each
            for each in everyone()
            if each.environ.get(_MARK) == self.mark and each.state != "Z" and not each.exe.startswith("sshd")
        ]

    def bridges(self) -> list[Process]:
        """Return those that serve a connection."""
        return [each for each in self.processes() if each.argv == ("cat",)]

    def keepers(self) -> list[Process]:
        """Return the keepers: each leads a session and has a kernel's command line but no kernel's mark."""
        return [
            each
            for each in self.processes()
            if "ALBEDO_KERNEL_ID" not in each.environ and _name(each.pid) == "albedo-keeper"
        ]

    def kernels(self) -> list[Process]:
        """Return the kernels."""
        return [each for each in self.processes() if any(word.endswith("/launcher.py") for word in each.argv)]

    def leftovers(self) -> list[str]:
        """Return what is on the host besides bundles, in words."""
        found = [str(process) for process in self.processes()]
        return found + [str(path) for path in sorted(self._disk.glob("*")) if path.name != "ballast"]

    def logs(self) -> str:
        """Return the ends of what clients, keepers and kernels printed, and which processes there are."""
        found = [f"{process}" for process in self.processes()]
        for path in (self.root / "client.log", *self._disk.glob("*/*.log")):
            text = path.read_text(errors="replace") if path.exists() else ""
            if text:
                found.append(f"-- {path.name}\n{text[-4000:]}")
        return "\n".join(found)

    def forget_bundles(self) -> None:
        """Make the next visit a first one."""
        for path in (self.home / ".albedo-remote").glob("*"):
            if path.name != "run":
                shutil.rmtree(path, ignore_errors=True)

    # -- its disk --------------------------------------------------------------------------------------------

    def mount_disk(self) -> str | None:
        """Give the run directories a small file system of their own; return why that cannot be, or None."""
        if self._mounted:
            return None
        self._disk.mkdir(mode=0o700, parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK},mode=0700,uid={os.getuid()}", "faults", str(self._disk)]
        try:
            found = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            return str(error)
        self._mounted = found.returncode == 0
        return None if self._mounted else found.stderr.strip()

    def fill_disk(self) -> None:
        """Leave no byte free on it."""
        with (self._disk / "ballast").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass  # full: that is what was wanted

    def free_disk(self) -> None:
        """Have room again."""
        (self._disk / "ballast").unlink(missing_ok=True)

    # -- the end ---------------------------------------------------------------------------------------------

    def close(self) -> list[str]:
        """End and remove everything; return what was left on the host, in words."""
        self.proxy.close()
        self.server.stop()
        left = self.leftovers()

        def none_left() -> bool:
            there = self.processes()
            for process in there:
                send(process, signal.SIGKILL)
            return not there

        wait_until(none_left, 10, "the host's processes are gone")
        if self._mounted:
            subprocess.run(["umount", str(self._disk)], check=True)
        shutil.rmtree(self.root, ignore_errors=True)
        return left


def _name(pid: int) -> str:
    try:
        return Path("/proc", str(pid), "comm").read_text().strip()
    except OSError:
        return ""
