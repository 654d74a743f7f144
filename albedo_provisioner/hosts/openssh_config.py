"""What the user's ssh config says about a host, by ssh's own word: `ssh -G` is the yardstick.

ssh in process reads the config by itself, faster and almost as well. It is asked here where that is not enough: for
control paths, for the policy on host keys, and for whether the host needs what asyncssh has not got.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import shutil
import subprocess
import time
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError
from . import child
from .control_paths import holds_something, is_listened_to, is_private, names, our_directories, socket_identity
from .destination import Destination, find_ssh, ssh_arguments
from .doors import door_of
from .match_exec import runs_a_command
from .openssh_options import attached
from .ssh_config import config_complaint, config_error, config_lines

log = logging.getLogger("albedo_provisioner.hosts")

# A config may run commands (Match exec) and look names up (CanonicalizeHostname): seconds.
RESOLVE_TIMEOUT = 15.0

# How long an answer is believed while the config files say the same, in seconds: this machine's name is in it, for one.
FRESH = 60.0

# The same of an answer for which commands were run: they may say something else each time, and may take long.
FRESH_OF_COMMANDS = 10.0

# What asyncssh 2.24 does not do, or only with packages that are not among ours (PKCS#11, GSSAPI, FIDO), or only when we
# have read the config already (CanonicalizeHostname, which changes what the config says).
_BEYOND_ASYNCSSH = {
    "pkcs11provider": "keys of a smart card (PKCS11Provider)",
    "hostbasedauthentication": "HostbasedAuthentication",
    "knownhostscommand": "KnownHostsCommand",
    "verifyhostkeydns": "VerifyHostKeyDNS",
    "canonicalizehostname": "CanonicalizeHostname",
    "bindinterface": "BindInterface",
    "proxyusefdpass": "ProxyUseFdpass",
}
# Settings whose mention anywhere in the config makes it worth asking ssh, besides `Match exec`, and GSSAPI for those
# who have a ticket. All others asyncssh knows, or they make no difference to a command without a terminal.
_WORTH_ASKING = {"controlpath", *_BEYOND_ASYNCSSH}
_MATCH_EXEC = "Match exec"
_NO = ("", "no", "none", "false")

_MOST_HOPS = 4  # as they may lead in a circle

_ROUTE = ("proxyjump", "proxycommand", "hostkeyalias", "bindaddress", "bindinterface")
"""Settings by which one address may mean several machines."""


@dataclass(frozen=True)
class Resolved:
    """A host's settings, as `ssh -G` prints them.

    Attributes:
        settings: the values of each, by its name in lower case.
        ran_commands: whether reading the config ran a command (`Match exec`) for this host.
    """

    settings: Mapping[str, list[str]]
    ran_commands: bool = False

    def get(self, name: str) -> str:
        """Return a setting's (first) value, "" where ssh prints none."""
        return next(iter(self.settings.get(name, ())), "")

    def is_on(self, name: str) -> bool:
        """Whether a setting has another value than one for "no"."""
        return self.get(name).lower() not in _NO

    @property
    def identity_files(self) -> set[str]:
        """The paths of the identity files, existing or not."""
        return {os.path.expanduser(name) for name in self.settings.get("identityfile", ())}

    @property
    def known_hosts_files(self) -> list[Path]:
        """The known hosts files, existing or not, the user's first. (Names with spaces in them come in pieces.)"""
        named = f"{self.get('userknownhostsfile')} {self.get('globalknownhostsfile')}".split()
        return [Path(name).expanduser() for name in named]

    @property
    def keeps_no_keys(self) -> bool:
        """Whether there is no file to keep an unknown host key in, for which ssh takes none."""
        return self.get("userknownhostsfile").split()[:1] in ([], ["none"])

    @property
    def control_path(self) -> str:
        """The user's own control path for the host, "" for none."""
        path = self.get("controlpath")
        return "" if path.lower() == "none" else path

    @property
    def asks_not(self) -> dict[str, str]:
        """Which methods of signing in that ask a person are left out, each with the setting that does so."""
        preferred = self.get("preferredauthentications")
        off = {"password": "PasswordAuthentication", "keyboard-interactive": "KbdInteractiveAuthentication"}
        found = {method: f"{name} no" for method, name in off.items() if self.get(name.lower()) == "no"}
        if preferred:
            left_out = off.keys() - set(preferred.split(","))
            found |= dict.fromkeys(left_out, f"PreferredAuthentications {preferred}")
        return found

    def route(self, host: str) -> str:
        """Return what tells this way to an address from others, "" for the direct one.

        One address may mean one machine behind one gateway, and another behind another; `%C`, ssh's own name for a
        connection, knows nothing of that (in older versions not even of jump hosts).

        Args:
            host: as the user spells it.
        """
        told = [f"{name} {self.get(name)}" for name in _ROUTE if self.is_on(name) and self.get(name)]
        if any("%n" in each for each in told):
            told.append(host)
        return hashlib.sha256("\n".join(told).encode(errors="surrogateescape")).hexdigest()[:8] if told else ""


def resolve(host: str, **options: str) -> Resolved:
    """Ask ssh what the config says about a host; blocking.

    Args:
        host: `[user@]host` as the user spells it.
        options: settings that go before those of the config.

    Raises:
        ConfigError: ssh does not understand the config, or there is no ssh.
    """
    program = find_ssh()
    if program is None:
        raise ConfigError("There is no ssh program on this machine.")
    given = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    command = [program, "-T", "-G", "-o", "LogLevel=DEBUG1", *attached(program), *given, *ssh_arguments(host)]
    try:
        told = child.run(
            command, RESOLVE_TIMEOUT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"ssh took longer than {RESOLVE_TIMEOUT:g} s to read its config for {host}.") from None
    except OSError as error:
        raise ConfigError(f"ssh could not be run: {error.strerror or error}.") from error
    said = told.stderr.decode(errors="replace").splitlines()
    if told.returncode:
        said = [line for line in said if line.strip() and not line.startswith("debug")]
        words = config_complaint(said) or (said[-1].strip() if said else f"ssh ended with status {told.returncode}")
        raise config_error(words)
    settings: dict[str, list[str]] = {}
    for line in told.stdout.decode(errors="surrogateescape").splitlines():
        name, _, value = line.partition(" ")
        settings.setdefault(name.lower(), []).append(value)
    return Resolved(settings, any(line.startswith("debug1: Executing command: ") for line in said))


def leads_to_one_account(one: str, other: str) -> bool:
    """Whether two hosts are the same account of the same machine, as far as the config says so; blocking.

    What only the network knows (two names of one address) is not asked for, so False says that it is not known.

    Args:
        one: `[user@]host` as the user spells it.
        other: likewise.
    """
    if one == other:
        return True
    try:
        found = [resolve(host) for host in (one, other)]
    except ConfigError:
        return False
    ways = [
        (each.get("user"), each.get("hostname").lower(), each.get("port"), each.route(host))
        for host, each in zip((one, other), found, strict=True)
    ]
    return bool(ways[0][1]) and ways[0] == ways[1]


class HostSettings:
    """What ssh says of one host, asked when it is worth it, and not again until the config files say something else.

    Used on the I/O thread; ssh runs beside it.

    Args:
        host: `[user@]host` as the user spells it.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._complaint: tuple[list[tuple[str, str]], str] = [], ""
        self._jumps: dict[str, HostSettings] = {}
        self._known: dict[tuple[tuple[str, str], ...], tuple[float, list[tuple[str, str]], Resolved]] = {}

    @property
    def host(self) -> str:
        """The host as the user, or the config, spells it."""
        return self._host

    async def ask(self, **options: str) -> Resolved:
        """Return what ssh says; see `resolve`.

        Raises:
            ConfigError: as `resolve`.
        """
        key = tuple(sorted(options.items()))
        if key in self._known:
            asked, config, resolved = self._known[key]
            fresh = FRESH_OF_COMMANDS if resolved.ran_commands else FRESH
            if time.monotonic() - asked < fresh and config == list(config_lines()):
                return resolved
        config = list(config_lines())
        resolved = await asyncio.get_running_loop().run_in_executor(None, lambda: resolve(self._host, **options))
        self._complaint = config, ""
        self._known[key] = (time.monotonic(), config, resolved)
        return resolved

    async def ask_if_worth_it(self) -> Resolved | None:
        """Return what ssh says, or None where it cannot matter: nothing in the config is out of the ordinary.

        Raises:
            ConfigError: as `resolve`.
        """
        lines = list(config_lines())
        worth_it = bool(_hardware_keys()) or any(keyword in _WORTH_ASKING for keyword, rest in lines)
        if not worth_it and self.need_at_once():
            return None  # the command would be run twice, and what it says changes nothing about the way
        worth_it = worth_it or any(keyword == "match" and "exec" in rest.lower() for keyword, rest in lines)
        if not worth_it and any(keyword == "gssapiauthentication" for keyword, rest in lines):
            worth_it = await _has_ticket()
        return await self.ask() if worth_it and find_ssh() else None

    def need_at_once(self) -> str:
        """Return what the host needs that asyncssh has not got, as far as that is seen without asking; "" for nothing.

        That is a `Match exec` that surely has its command run.
        """
        sure = runs_a_command(config_lines(), Destination.parse(self._host))
        return _MATCH_EXEC if sure and find_ssh() else ""

    async def complaint(self) -> str:
        """Return what ssh finds wrong with the config, in a sentence; empty for nothing. Asked once for each config."""
        config = list(config_lines())
        if find_ssh() is None or self._complaint[0] == config:
            return self._complaint[1]
        try:
            await self.ask()
            self._complaint = config, ""
        except ConfigError as error:
            self._complaint = config, f"Your ssh program does not take the config: {error}"
        return self._complaint[1]

    async def our_control_paths(self) -> list[str]:
        """Return the control paths of ours for the host, in each directory, whether something is there or not.

        Raises:
            ConfigError: as `resolve`.
        """
        asked = await self.ask(ControlPath="%C")
        directories = our_directories(asked.route(self._host))
        return [str(directory / each) for directory in directories for each in names(asked.control_path)]

    async def live_sockets(self, resolved: Resolved | None) -> list[str]:
        """Return the host's control paths at which there is a socket of this user now; it may be dead.

        Args:
            resolved: what `ask_if_worth_it` returned.

        Raises:
            ConfigError: as `resolve`.
        """
        users = resolved.control_path if resolved is not None else ""
        found = [users] if users and socket_identity(users) else []
        if find_ssh() and any(holds_something(directory) for directory in our_directories()):
            try:
                paths = await self.our_control_paths()
            except ConfigError as error:
                # Somebody is signed in to some host, and ssh does not take the config: nobody is to this one by that.
                log.debug("%s: no connections that are signed in are looked for: %s", self._host, error)
                paths = []
            found += [path for path in paths if socket_identity(path) and is_private(Path(path).parent)]
        return found

    async def jump_host(self) -> HostSettings | None:
        """Return what ssh says of the one jump host on the way to the host; None where there is none, or several.

        Raises:
            ConfigError: as `resolve`.
        """
        resolved = await self.ask()
        name = resolved.get("proxyjump")
        if not resolved.is_on("proxyjump") or "," in name:
            return None
        return self._jumps.setdefault(name, HostSettings(name))

    async def first_door(self, by_master: bool, hops: int = _MOST_HOPS) -> Hashable:
        """Return the door (see `doors`) at which ssh knocks first on the way to the host.

        Args:
            by_master: whether it goes through a connection to its jump host that is signed in.
            hops: how many jump hosts before jump hosts are looked at.
        """
        if self.need_at_once():
            return _MATCH_EXEC  # asking would run the command once more
        try:
            resolved = await self.ask()
            jump = resolved.get("proxyjump") if resolved.is_on("proxyjump") and not by_master else ""
            if jump and hops:
                first = jump.split(",")[0].strip()
                return await self._jumps.setdefault(first, HostSettings(first)).first_door(False, hops - 1)
        except ConfigError:
            return self._host  # connecting will tell
        command = resolved.get("proxycommand") if resolved.is_on("proxycommand") else ""
        via = resolved.get("proxyjump") if by_master else ""
        return door_of(resolved.get("hostname"), resolved.get("port"), command, via)

    async def jump_master(self) -> tuple[str, str] | None:
        """Return the jump host on the way to the host and the control path of a connection to it that `login` has left,
        if there is one; ssh itself finds those of the user's own.
        """
        if find_ssh() is None or not any(holds_something(directory) for directory in our_directories()):
            return None
        try:
            jump = await self.jump_host()
            live = [] if jump is None else await jump.live_sockets(None)
        except ConfigError as error:
            log.debug("%s: no connection to its jump host is looked for: %s", self._host, error)
            return None
        paths = [path for path in live if is_listened_to(path)]
        return (jump.host, paths[0]) if jump is not None and paths else None

    async def need_of_program(self, resolved: Resolved) -> str:
        """Return what the host needs that asyncssh has not got, "" for nothing."""
        if resolved.ran_commands:
            # asyncssh runs it without the percent tokens, and holds up everything else meanwhile.
            return _MATCH_EXEC
        for name, need in _BEYOND_ASYNCSSH.items():
            if resolved.is_on(name):
                return need
        if _hardware_keys() & resolved.identity_files:
            return "a hardware key"
        if resolved.is_on("gssapiauthentication") and await _has_ticket():
            return "GSSAPIAuthentication"
        return ""


async def sign_in_path(host: str) -> str | None:
    """Return where a person's sign-in to a host leaves its connection; None where that cannot be told.

    It is the user's own control path as it is for the host, or a path of ours that ends in "/%C".
    """
    try:
        resolved = await HostSettings(host).ask()
    except ConfigError:
        return None
    users, ours = resolved.control_path, our_directories(resolved.route(host))
    return users or (str(ours[0] / "%C") if ours else None)


def _hardware_keys() -> set[str]:
    """Return the paths of the private halves of hardware keys (FIDO) that lie in ~/.ssh."""
    found = set()
    for path in Path("~/.ssh").expanduser().glob("*.pub"):
        try:
            with path.open("rb") as file:
                if file.read(3) == b"sk-":
                    found.add(str(path.with_suffix("")))
        except OSError:
            continue  # not ours to read, so ssh does not read it either
    return found


async def _has_ticket() -> bool:
    """Whether there is a Kerberos ticket that is good now; without one GSSAPI gets nobody in."""
    klist = shutil.which("klist")
    if klist is None:
        return False

    def ask() -> bool:
        command = [klist, "-s"]
        try:
            return not subprocess.run(command, stdin=subprocess.DEVNULL, timeout=5, check=False).returncode
        except (OSError, subprocess.TimeoutExpired):
            return False

    return await asyncio.get_running_loop().run_in_executor(None, ask)
