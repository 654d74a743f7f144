"""Which keys are offered to a host, and in which order: what the user's ssh would offer, without ever asking anything.

Read only once a server has proven its host key and asks for a public key. asyncssh's own loading is not used, because
one missing or locked IdentityFile fails the whole connection there, and IdentitiesOnly offers every key of the agent
when the identity files hold private keys.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from pathlib import Path

import asyncssh

from .ssh_errors import Attempt

# ssh's own defaults, in its order.
DEFAULT_IDENTITIES = ("id_rsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk", "id_xmss", "id_dsa")

LOCKED = "needs a passphrase"


@dataclass(frozen=True)
class Identities:
    """What the config says about keys.

    Attributes:
        files: the identity files, existing or not.
        configured: True when the config names them, False for the defaults.
        certificates: certificate files named by CertificateFile.
        only: IdentitiesOnly: the agent's other keys are not offered.
        agent: path of the agent's socket, "" for none.
    """

    files: list[Path]
    configured: bool = False
    certificates: list[Path] = field(default_factory=list)
    only: bool = False
    agent: str = ""

    @classmethod
    def from_config(cls, config: asyncssh.config.SSHConfig) -> Identities:
        """Read IdentityFile, CertificateFile, IdentitiesOnly and IdentityAgent."""
        named = config.get("IdentityFile")
        assert named is None or isinstance(named, list)
        names = [Path("~/.ssh", name) for name in DEFAULT_IDENTITIES] if named is None else named
        certificates = config.get("CertificateFile") or []
        assert isinstance(certificates, list)
        return cls(
            files=list(dict.fromkeys(Path(name).expanduser() for name in names)),  # a final pass names them once more
            configured=named is not None,
            certificates=[Path(name).expanduser() for name in certificates],
            only=bool(config.get("IdentitiesOnly")),
            agent=_agent_path(config.get("IdentityAgent", "SSH_AUTH_SOCK")),
        )


def _agent_path(setting: object) -> str:
    """Return the agent's socket for a value of IdentityAgent, "" for none."""
    if setting is None:  # "none"
        return ""
    text = str(setting)
    if text == "SSH_AUTH_SOCK" or text.startswith("$"):
        text = os.environ.get(text.lstrip("$").strip("{}"), "")
    return str(Path(text).expanduser()) if text else ""


@dataclass(frozen=True)
class _File:
    """An identity file: its public blobs (key, certificate) and, when it can be used as it is, its key pairs."""

    path: Path
    blobs: frozenset[bytes]
    pairs: list[asyncssh.SSHKeyPair]
    problem: str = ""


async def load_offers(
    identities: Identities, attempt: Attempt
) -> tuple[list[asyncssh.SSHKeyPair], asyncssh.SSHAgentClient | None]:
    """Return the key pairs to offer, in order, and the agent that signs for some of them (close it afterwards).

    The order is ssh's: the agent's keys that are identity files, its other keys, then unlocked identity files.
    What cannot be used, and why, is recorded in `attempt`.
    """
    agent: asyncssh.SSHAgentClient | None = None
    agent_pairs: list[asyncssh.SSHKeyPair] = []
    if identities.agent:
        agent = asyncssh.SSHAgentClient(identities.agent)
        try:
            agent_pairs = list(await agent.get_keys())
        except ValueError as error:  # asyncssh's word for "no such socket" as well
            attempt.notes.append(f"the ssh agent does not answer ({error})")
    files = await asyncio.to_thread(_read_files, identities)
    return _in_order(identities, files, agent_pairs, attempt), agent


def _in_order(
    identities: Identities, files: list[_File], agent_pairs: list[asyncssh.SSHKeyPair], attempt: Attempt
) -> list[asyncssh.SSHKeyPair]:
    named = [pair for file in files for pair in agent_pairs if pair.public_data in file.blobs]
    others = [] if identities.only else [pair for pair in agent_pairs if pair not in named]
    held = {pair.public_data for pair in agent_pairs}
    unlocked: list[asyncssh.SSHKeyPair] = []
    for file in files:
        if file.blobs & held:
            continue
        unlocked += file.pairs
        if file.problem == LOCKED:
            attempt.locked.append(str(file.path))
        elif file.problem and identities.configured:
            attempt.notes.append(f"{file.path}: {file.problem}")
    return named + others + unlocked


def _read_files(identities: Identities) -> list[_File]:
    """Read the identity files; blocking. A default file that does not exist is left out."""
    certificates = [
        certificate
        for path in identities.certificates
        if path.exists()
        for certificate in asyncssh.load_certificates([str(path)])
    ]
    files = []
    for path in identities.files:
        if path.exists():
            files.append(_read_file(path, certificates))
        elif identities.configured:
            files.append(_File(path, frozenset(), [], "no such file"))
    return files


def _read_file(path: Path, certificates: list[asyncssh.SSHCertificate]) -> _File:
    blobs = set()
    # The public half lies beside the private one, or in it (OpenSSH's format), or is the file (a key in the agent).
    for public in (Path(f"{path}.pub"), path):
        try:
            blobs.add(asyncssh.read_public_key(public).public_data)
            break
        except (OSError, asyncssh.KeyImportError):
            continue
    try:
        blobs.add(asyncssh.read_certificate(f"{path}-cert.pub").public_data)
    except (OSError, asyncssh.KeyImportError):
        pass
    try:
        pairs = list(asyncssh.load_keypairs([str(path)], certlist=certificates, ignore_encrypted=True))
    except OSError as error:
        return _File(path, frozenset(blobs), [], (error.strerror or str(error)).lower())
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
        return _File(path, frozenset(blobs), [], str(error).lower())
    return _File(path, frozenset(blobs), pairs, "" if pairs else LOCKED)
