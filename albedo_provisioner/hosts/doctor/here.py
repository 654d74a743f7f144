"""What can be said of a host without going there: what the ssh config makes of it, and whether its name is known."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ..destination import find_ssh
from ..openssh_config import HostSettings, Resolved
from ..remote import Way
from ..ssh_config import config_files, ssh_config_path
from ..ssh_errors import check_name
from .findings import Finding, note, ok, problem

NAME_TIMEOUT = 8.0
"""Seconds for the resolver, which tries several servers if the first ones are silent."""

_WAYS = {
    "builtin": "by ssh in process",
    "program": "by your ssh program",
    "master": "by your ssh program, over a connection that is there",
}


async def config(host: str) -> tuple[Finding, Resolved | None]:
    """Return what the ssh config makes of a host, for people and as it is."""
    if find_ssh() is None:
        return note("config", "There is no ssh program here, so the config is read by ssh in process alone."), None
    try:
        resolved = await HostSettings(host).ask()
    except ConfigError as error:
        return problem("config", str(error)), None
    user, name, port = (resolved.get(key) for key in ("user", "hostname", "port"))
    files = [str(path) for path in config_files()]
    keys = _existing(resolved.identity_files)
    text = f"{user}@{name}:{port}"
    for setting, words in (("proxyjump", "through the jump host"), ("proxycommand", "through the command")):
        if resolved.is_on(setting):
            text += f", {words} {resolved.get(setting)}"
    text += f"; {_listed('key', keys)}; from {' and '.join(files) or 'no config file'}"
    facts: dict[str, Any] = {"user": user, "hostname": name, "port": port, "files": files, "identity_files": keys}
    named = ssh_config_path()
    if named is not None and not files:
        advice = "Correct the variable, or unset it for ~/.ssh/config."
        return note(
            "config", f"{text}: ALBEDO_SSH_CONFIG names {named}, which cannot be read.", advice, **facts
        ), resolved
    return ok("config", text, **facts), resolved


def config_of_ours_alone(unread: Finding) -> Finding:
    """Return what there is to say of a config that ssh does not take, and with which the host was reached all the same.

    Args:
        unread: the problem that it would be.
    """
    text = f"{unread.text} Kernels go by ssh in process, which passes over it; your own ssh does not."
    return note("config", text)


def _existing(paths: Iterable[str]) -> list[str]:
    return sorted(filter(os.path.exists, paths))


def _listed(what: str, paths: Sequence[str]) -> str:
    home = str(Path.home())
    short = ["~" + path[len(home) :] if path.startswith(home + "/") else path for path in paths]
    return f"{what}s: {', '.join(short)}" if short else f"no {what} files"


def way(way: Way) -> Finding:
    """Put into words by which of the two kinds of ssh a host is reached, and why."""
    why = way.why or "nothing asks for the other"
    return ok("ssh", f"{_WAYS[way.kind]}: {why}", kind=way.kind, why=way.why)


def way_of_unread(way: Way, unread: str) -> Finding:
    """Say that a host is reached by the ssh program for a config that ssh in process could not read.

    Args:
        way: how it is reached.
        unread: what it did not understand, in its own words.
    """
    text = (
        f"{_WAYS[way.kind]}, which takes a little longer: ssh in process reads less of the config, and not this, which "
        f"ssh takes: {unread.rstrip('.')}."
    )
    return note("ssh", text, kind=way.kind, why=unread)


async def name(resolved: Resolved) -> Finding:
    """Look a host's name up, unless somebody else does that."""
    hostname, port = resolved.get("hostname"), resolved.get("port")
    for setting in ("proxyjump", "proxycommand"):
        if resolved.is_on(setting):
            return ok("name", f"{hostname} is looked up on the way there, and not here")
    try:
        ipaddress.ip_address(hostname.partition("%")[0])
    except ValueError:
        pass
    else:
        return ok("name", f"{hostname} is an address", addresses=[hostname])
    kind = resolved.get("addressfamily")
    family = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}.get(kind, socket.AF_UNSPEC)
    try:
        async with asyncio.timeout(NAME_TIMEOUT):
            loop = asyncio.get_running_loop()
            answers = await loop.getaddrinfo(hostname, int(port or 22), family=family, type=socket.SOCK_STREAM)
    except TimeoutError:
        text = f"{hostname} was not resolved within {NAME_TIMEOUT:g} s."
        return problem("name", text, "Check the network, or a VPN that the name needs.")
    except OSError as error:
        text = f"{hostname} cannot be resolved: {error.strerror or error}."
        return problem("name", text, f"{check_name(kind if family else '')}.")
    addresses = list(dict.fromkeys(str(answer[4][0]) for answer in answers))
    return ok("name", f"{hostname} is {', '.join(addresses)}", addresses=addresses)
