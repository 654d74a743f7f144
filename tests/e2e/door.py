"""One door on a real ssh server, with `Host` entries that lead to it, and what tests of signing in need besides."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from faces import Real
from recorder import Recorder, run

from albedo_provisioner.errors import AlbedoError
from albedo_provisioner.hosts.ssh import SSHTransport
from albedo_provisioner.hosts.transport import Transport

if TYPE_CHECKING:
    from conftest import Workspace


class Door:
    """Writes `Host` entries for ann's account on the real sshd and knocks by them.

    Attributes:
        options: the entry's settings; a test changes them before it knocks.
        way: makes the transport to knock by; in process unless a test says otherwise.
    """

    def __init__(self, workspace: Workspace, host: Real) -> None:
        self.workspace = workspace
        self.host = host
        self.options: dict[str, str | None] = {
            "HostName": "127.0.0.1",
            "Port": str(host.server.port),
            "User": host.account.name,
            "IdentityFile": str(host.server.client_key),
            "UserKnownHostsFile": str(host.server.known_hosts),
            "GlobalKnownHostsFile": "none",
        }
        self.way: Callable[..., Transport] = SSHTransport
        self.transports: list[Transport] = []

    @property
    def known(self) -> Path:
        """Where a test may keep known hosts of its own; nothing is there at first."""
        return self.workspace.home / "known"

    def write(self, alias: str = "gpu", **changes: str | None) -> None:
        """Add a `Host` entry; None leaves a setting out."""
        settings = {**self.options, **changes}
        lines = "".join(f"  {key} {value}\n" for key, value in settings.items() if value is not None)
        self.workspace.add_to_ssh_config(f"Host {alias}\n{lines}")

    async def whoami(self, spelling: str = "gpu", **options: float) -> str:
        """Sign in and return the account's name."""
        transport = self.way(spelling, **options)
        self.transports.append(transport)
        return (await run(transport, "id -un")).out.decode().strip()

    async def refusal(self, kind: type[AlbedoError], spelling: str = "gpu", **options: float) -> str:
        """Fail to sign in and return the message."""
        transport = self.way(spelling, **options)
        self.transports.append(transport)
        with pytest.raises(kind) as caught:
            await transport.open("true", Recorder())
        return str(caught.value)

    def key(self, name: str, passphrase: str = "") -> Path:
        """Make a key pair that the account accepts."""
        path = self.workspace.home / name
        keygen(path, passphrase)
        accepted = self.host.server.root / f"keys-{self.host.account.name}"
        with accepted.open("a") as file:
            file.write(path.with_suffix(".pub").read_text())
        return path


def keygen(path: Path, passphrase: str = "", *options: str) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(path), *options], check=True)


def sign(authority: Path, public_key: Path, *options: str) -> None:
    """Write a certificate beside a public key."""
    subprocess.run(["ssh-keygen", "-q", "-s", str(authority), "-I", "test", *options, str(public_key)], check=True)


def fingerprint(public_key: Path) -> str:
    output = subprocess.run(["ssh-keygen", "-l", "-f", str(public_key)], capture_output=True, text=True, check=True)
    return output.stdout.split()[1]
