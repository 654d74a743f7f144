"""What to do about a host key that nobody vouches for yet: what the user's ssh would do (StrictHostKeyChecking).

`ask`, the default, and `yes` come to the same here, where nobody can be asked: it is refused, and the message says
what to do. `accept-new` takes a key of a host that is new, and remembers it; `no` takes any key. Revoked keys never
come here.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import ipaddress
import logging
import os
import secrets
from pathlib import Path

import asyncssh

from ..errors import ConfigError
from .openssh_config import Resolved, resolve
from .ssh_config import config_lines
from .ssh_errors import key_text

log = logging.getLogger("albedo_provisioner.hosts")


async def may_be_trusted(host: str, name: str, port: int, key: asyncssh.SSHKey, known: list[str]) -> bool | None:
    """Say whether the user's policy takes a host key that is not known; a new one is remembered then. None is a no
    without a question that a person could answer (StrictHostKeyChecking yes).

    Args:
        host: the host as it is spelled for ssh.
        name: the name that was dialled.
        port: the port.
        key: the key that it offers.
        known: the algorithms of the keys that are known for it.
    """
    return await asyncio.get_running_loop().run_in_executor(None, _may_be_trusted, host, name, port, key, known)


def _may_be_trusted(host: str, name: str, port: int, key: asyncssh.SSHKey, known: list[str]) -> bool | None:
    try:
        resolved = resolve(host)
    except ConfigError as error:
        log.debug("%s: the policy on host keys is not known: %s", host, error)
        return False
    policy = resolved.get("stricthostkeychecking")
    if resolved.is_on("nohostauthenticationforlocalhost") and _is_loopback(name):
        return True
    if policy not in ("false", "no", "off", "accept-new"):
        return None if policy in ("true", "yes") else False
    if resolved.keeps_no_keys:
        return False
    text = key_text(key.get_algorithm(), key.public_data)
    if key.get_algorithm() in known:
        # Nothing is remembered, and nothing is sent that a listener could use: passwords are never sent at all.
        if policy != "accept-new":
            written = _as_written()
            log.warning("%s has another host key than is known, %s; StrictHostKeyChecking %s", host, text, written)
        return policy != "accept-new"
    remembered = _remember(resolved, name, port, key)
    log.info("%s: its host key %s is new and was accepted; %s", host, text, remembered)
    return True


def _as_written() -> str:
    """Return how the user writes that host keys are not checked, where that is one word; ssh tells it as "false"."""
    lines = (rest.strip().strip('"').lower() for keyword, rest in config_lines() if keyword == "stricthostkeychecking")
    words = {word for word in lines if word in ("no", "off", "false")}
    return words.pop() if len(words) == 1 else "no"


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name.lower() in ("localhost", "localhost.localdomain")


def _remember(resolved: Resolved, name: str, port: int, key: asyncssh.SSHKey) -> str:
    """Add a key to the user's known hosts as ssh does; return what was done, in words."""
    file = Path(resolved.get("userknownhostsfile").split()[0]).expanduser()
    try:
        _append(file, known_hosts_line(resolved, name, port, key))
    except OSError as error:
        return f"it could not be added to {file}: {error.strerror or error}"
    return f"it was added to {file}"


def known_hosts_line(resolved: Resolved, name: str, port: int, key: asyncssh.SSHKey) -> str:
    """Return the line for a host key, its name hashed where the config says so (HashKnownHosts)."""
    alias = resolved.get("hostkeyalias")
    pattern = alias or (name if port == 22 else f"[{name}]:{port}")
    pattern = pattern.lower()
    if resolved.is_on("hashknownhosts"):
        salt = secrets.token_bytes(20)
        digest = hmac.digest(salt, pattern.encode(), "sha1")
        pattern = f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"
    public = base64.b64encode(key.public_data).decode()
    return f"{pattern} {key.get_algorithm()} {public}\n"


def _append(file: Path, line: str) -> None:
    """Append a line in one write, so that others who append at the same time do no harm, and nothing else changes."""
    if not file.parent.exists():
        file.parent.mkdir(mode=0o700)
    descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        ends = size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
        os.write(descriptor, (line if ends else f"\n{line}").encode())
    finally:
        os.close(descriptor)
