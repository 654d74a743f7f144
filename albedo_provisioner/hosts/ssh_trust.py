"""Whose host keys are trusted: the known_hosts files that the user's ssh would read, and nothing beyond them.

asyncssh has defaults of its own here: `UserKnownHostsFile none` makes it accept every key, a missing file is an
error, one malformed line spoils the whole file, and a key listed under a host's address is trusted for its name.
So the files are read here, the way OpenSSH reads them, and asyncssh is handed the keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import asyncssh

DEFAULT_USER_FILES = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
DEFAULT_GLOBAL_FILES = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")

TrustedKeys = tuple[Sequence[asyncssh.SSHKey], Sequence[asyncssh.SSHKey], Sequence[asyncssh.SSHKey]]


def known_hosts_files(config: asyncssh.config.SSHConfig, expand: Callable[[str], str]) -> list[Path]:
    """Return the known_hosts files that apply, existing or not, in ssh's order.

    Args:
        config: the host's settings.
        expand: replaces the config's percent tokens in a file name.
    """
    files: list[Path] = []
    for option, default in (
        ("UserKnownHostsFile", DEFAULT_USER_FILES),
        ("GlobalKnownHostsFile", DEFAULT_GLOBAL_FILES),
    ):
        named = config.get(option)  # a list; "none" makes it an empty one
        names = default if named is None else named
        assert isinstance(names, (list, tuple))
        files += [Path(expand(name)).expanduser() for name in names]
    return files


def read_known_hosts(files: Sequence[Path]) -> asyncssh.SSHKnownHosts:
    """Read known_hosts files; missing files and malformed lines are skipped, as ssh does."""
    known = asyncssh.SSHKnownHosts()
    for file in files:
        try:
            text = file.read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            continue
        for line in text.splitlines():
            try:
                known.load(line)
            except ValueError:
                continue
    return known


def revoking_lines(files: Sequence[Path], host: str, port: int | None) -> list[str]:
    """Return the lines by which keys are revoked for a host, as "/home/me/.ssh/known_hosts, line 3"; see
    `trusted_keys`.
    """
    found = []
    for file in files:
        try:
            lines = file.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        except OSError:
            continue
        for number, line in enumerate(lines, 1):
            known = asyncssh.SSHKnownHosts()
            try:
                known.load(line)
            except ValueError:
                continue
            if line.lstrip().startswith("@revoked") and trusted_keys(known, host, port)[2]:
                found.append(f"{file}, line {number}")
    return found


def trusted_keys(known: asyncssh.SSHKnownHosts, host: str, port: int | None) -> TrustedKeys:
    """Return the trusted host keys, trusted certificate authorities and revoked keys of a host.

    Args:
        known: the entries to look in.
        host: the name (or address) that was dialled, or the config's HostKeyAlias.
        port: its port, None for 22.
    """
    # No second name to look up: the address that a name resolves to does not count (ssh: CheckHostIP no).
    host_keys, authorities, revoked, *_ = known.match(host, "", port)
    return host_keys, authorities, revoked
