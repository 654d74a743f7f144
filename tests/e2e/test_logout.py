"""Hosts on which systemd ends all processes of an account with its last login: a real systemd, in a container."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kernels import eventually, started
from procs import descendants, everyone, send, wait_until

from albedo_provisioner import AsyncHosts
from albedo_provisioner.hosts.check import check_location
from albedo_provisioner.hosts.doctor.findings import Finding
from albedo_provisioner.location import Location

if TYPE_CHECKING:
    from conftest import Workspace

USER = "albedo-logout"

SSHD = """
[Unit]
Wants=dbus.service systemd-logind.service systemd-user-sessions.service
After=dbus.service systemd-logind.service systemd-user-sessions.service
[Service]
RuntimeDirectory=sshd
ExecStart=/usr/sbin/sshd -D -e -f /etc/ssh/albedo_config
"""

SSHD_CONFIG = """
ListenAddress 127.0.0.1
Port {port}
HostKey /etc/ssh/albedo_key
AuthorizedKeysFile /etc/ssh/albedo_keys
UsePAM yes
StrictModes no
"""


@dataclass
class Container:
    """A system of its own on this machine's files and network, with a systemd that ends processes at logout."""

    root: Path
    key: Path

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command as root in the container's files, not among its processes."""
        return subprocess.run(["chroot", self.root, "sh", "-c", command], capture_output=True, text=True, check=False)

    def log_out(self) -> None:
        """Kill the logins, as a link that breaks ends them."""
        for process in everyone():
            if process.argv and process.argv[0].startswith(f"sshd: {USER}"):
                os.kill(process.pid, signal.SIGKILL)


@pytest.fixture
def container(workspace: Workspace) -> Iterator[Container]:
    """Boot one; what it writes is kept in memory and goes with it."""
    if os.getuid() or not all(map(shutil.which, ("systemd-nspawn", "sshd", "busctl"))):
        pytest.skip("a container with systemd takes root, systemd-nspawn and sshd")
    memory = Path(tempfile.mkdtemp(prefix="albedo-logout-", dir="/dev/shm"))
    root = memory / "root"
    for name in ("root", "upper", "work"):
        (memory / name).mkdir()
    options = f"lowerdir=/,upperdir={memory}/upper,workdir={memory}/work"
    if subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, root], check=False).returncode:
        shutil.rmtree(memory)
        pytest.skip("there are no overlays here")
    try:
        made = Container(root, workspace.root / "key")
        port = _prepare(made)
        command = ["systemd-nspawn", "-D", root, "--machine=albedo-logout", "--register=no", "--keep-unit", "--boot"]
        # Nothing else of what this machine starts at its boot is started there.
        command += ["--console=pipe", "systemd.unit=albedo-sshd.service"]
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as booted:
            try:
                _wait_for_sshd(port, booted)
                workspace.add_to_ssh_config(
                    f"Host logout\n    HostName 127.0.0.1\n    Port {port}\n    User {USER}\n"
                    f"    IdentityFile {made.key}\n    UserKnownHostsFile {workspace.root}/known\n"
                )
                yield made
            finally:
                # The container's first process would outlive the program that started it; all others end with it.
                for process in descendants(booted.pid):
                    if process.ppid == booted.pid:
                        send(process, signal.SIGKILL)
                booted.kill()
    finally:
        subprocess.run(["umount", "--lazy", root], check=True)
        shutil.rmtree(memory, ignore_errors=True)


def _prepare(container: Container) -> int:
    """Write the account, its key and the units into the container's files; return the port of its sshd."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    etc = container.root / "etc"
    for key in (container.key, etc / "ssh/albedo_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    (etc / "machine-id").unlink(missing_ok=True)
    (etc / "systemd/logind.conf.d").mkdir(parents=True, exist_ok=True)
    (etc / "systemd/logind.conf.d/albedo.conf").write_text("[Login]\nKillUserProcesses=yes\nUserStopDelaySec=0\n")
    (etc / "systemd/system/albedo-sshd.service").write_text(SSHD)
    for unit in ("networking", "systemd-networkd", "systemd-resolved"):  # the network is this machine's
        (etc / f"systemd/system/{unit}.service").unlink(missing_ok=True)
        (etc / f"systemd/system/{unit}.service").symlink_to("/dev/null")
    (etc / "ssh/albedo_config").write_text(SSHD_CONFIG.format(port=port))
    (etc / "ssh/albedo_keys").write_text(container.key.with_suffix(".pub").read_text())
    made = container.run(f"useradd -m -s /bin/bash {USER} && passwd -d {USER}")
    assert made.returncode == 0, made.stderr
    public = (etc / "ssh/albedo_key.pub").read_text()
    (container.key.parent / "known").write_text(f"[127.0.0.1]:{port} {public}")
    return port


def _wait_for_sshd(port: int, booted: subprocess.Popen[bytes]) -> None:
    def answers() -> bool:
        if booted.poll() is not None:
            pytest.skip("systemd does not boot in a container here")
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False

    wait_until(answers, 60, "the container's sshd answers")


async def _logout_finding(python: Path) -> Finding:
    found = (await AsyncHosts().diagnose("logout", python=str(python))).finding("logout")
    assert found is not None
    return found


@pytest.mark.timeout(300)
async def test_the_user_is_told_and_with_lingering_the_kernel_stays(container: Container, sshd_python: Path) -> None:
    location, config = "logout:~", {"python": str(sshd_python)}
    warning = check_location(Location.parse(location), str(sshd_python)).warning or ""
    assert "KillUserProcesses" in warning
    assert "loginctl enable-linger" in warning
    threat = await _logout_finding(sshd_python)
    assert (threat.state, threat.blocks) == ("problem", False)
    assert "loginctl enable-linger" in threat.text
    async with started(location, config) as kernel:
        cell = await kernel.run("x = 41")
        assert f"logout {warning}." in cell.stderr
        cell = kernel.begin("import time\nprint('begun', flush=True)\ntime.sleep(600)")
        await cell.until(lambda: cell.stdout)
        container.log_out()
        await cell.done(60)
        assert "KillUserProcesses" in cell.stderr
        assert cell.reply is not None
        assert cell.reply["status"] == "error"

    (container.root / "var/lib/systemd/linger").mkdir(parents=True, exist_ok=True)
    (container.root / f"var/lib/systemd/linger/{USER}").touch()
    assert check_location(Location.parse(location), str(sshd_python)).warning is None
    assert (await _logout_finding(sshd_python)).state == "ok"
    async with started(location, config) as kernel:
        cell = await kernel.run("x = 41")
        assert cell.stderr == ""
        pid = kernel.status["pid"]
        container.log_out()
        await eventually(lambda: kernel.status["connections"] == 2 and kernel.status["step"] == "attached", 60)
        assert await kernel.value("x") == "41"
        assert kernel.status["pid"] == pid
