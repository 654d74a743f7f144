"""What the user's ssh config says about a host, as ssh in process (asyncssh) reads it.

The language is asyncssh's to parse; how often it is read, and what a later reading starts from, is as with ssh.
"""

from __future__ import annotations

import asyncio
import getpass
import logging
import os
import re
import socket
from pathlib import Path
from typing import Any, ClassVar

import asyncssh
from asyncssh.config import SSHClientConfig
from asyncssh.pattern import WildcardPatternList

from .destination import Destination
from .ssh_config import SYSTEM_CONFIG, TOO_MANY_INCLUDES, config_error, config_files, line_of, match_words

log = logging.getLogger(__name__)


async def read_options(
    destination: Destination,
) -> tuple[asyncssh.SSHClientConnectionOptions, list[Path]]:
    """Read what the ssh config says about a destination; return it with the files it was read from.

    Raises:
        asyncssh.ConfigParseError: a config file cannot be read; the text names file and line.
        ConfigError: files include each other without an end.
    """
    files = config_files()
    try:
        config = await asyncio.to_thread(_read, files, destination)
    except asyncssh.ConfigParseError as error:
        # asyncssh knows less of the language than ssh. Nobody here can edit the system's file, so do without it.
        if SYSTEM_CONFIG not in files[1:] or not str(error).startswith("/etc/ssh/"):
            raise
        log.warning("ignoring the system's ssh config: %s", error)
        files = files[:-1]
        config = await asyncio.to_thread(_read, files, destination)
    except RecursionError:
        raise config_error(TOO_MANY_INCLUDES) from None
    settled: dict[str, Any] = {
        "config": None,
        "host": destination.host,
        "port": () if destination.port is None else destination.port,
        "username": () if destination.user is None else destination.user,
        # Keys and agent come from `_Client`, when a server asks; nothing is forwarded.
        "client_keys": None,
        "agent_path": None,
        "agent_forwarding": False,
        "known_hosts": b"",
        "tunnel": None,
    }
    # Options go on from the config of other options, and take no config that was read by somebody else.
    carrier = await asyncssh.SSHClientConnectionOptions.construct(**settled)
    carrier.config = config
    options: asyncssh.SSHClientConnectionOptions = await asyncssh.SSHClientConnectionOptions.construct(
        carrier, **settled
    )
    return options, files


def _read(files: list[Path], destination: Destination) -> SSHClientConfig:
    """Read the files, a second time where they have something for a final pass; blocking."""
    config = _Config.read(files, destination, None)
    if config.has_match_final():
        config = _Config.read(files, destination, config)
    config.expand()
    return config


class _Config(SSHClientConfig):
    """The config, read by asyncssh's parser, with percent tokens replaced once, at the end of everything.

    asyncssh by itself replaces them after each file, and starts its final pass from nothing.
    """

    @classmethod
    def read(cls, files: list[Path], destination: Destination, before: _Config | None) -> _Config:
        """Read the files.

        Args:
            files: the config files.
            destination: the host they are read for.
            before: what the pass before this one, which is the final one, has set: that stays as it is.
        """
        user = () if destination.user is None else destination.user
        port = () if destination.port is None else destination.port
        final = before is not None
        # To ssh, "canonical" is true of a final pass as well, whatever led to it.
        config = cls.load(before, files, False, final, final, getpass.getuser(), user, destination.host, port)
        assert isinstance(config, _Config)
        # From here on it is known: a later pass changes nothing about it, and goes by this name.
        config._options.setdefault("Hostname", destination.host)
        return config

    def __init__(self, last_config: Any, *arguments: Any) -> None:
        super().__init__(last_config, *arguments)
        self._percent_expand = set()

    def expand(self) -> None:
        """Replace percent tokens and environment variables."""
        for option in SSHClientConfig._percent_expand & self._options.keys():
            value = self._options[option]
            if isinstance(value, list):
                self._options[option] = [self._expand_val(each) for each in value]
            elif isinstance(value, str):
                self._options[option] = self._expand_val(value)

    def _match_name(self, option: str, patterns: list[str]) -> None:
        """Begin a `Host` block: in a final pass it is for the name that the first one led to."""
        name = self._last_options.get("Hostname", self._orig_host)
        self._matching = bool(WildcardPatternList(",".join(patterns)).matches(str(name)))
        patterns.clear()

    def _match_criteria(self, option: str, words: list[str]) -> None:
        """Begin a `Match` block. asyncssh has split the words at each equals sign, also within a quoted command."""
        words[:] = match_words(line_of(self._path, self._line_no)) or words
        self._match(option, words)

    _handlers: ClassVar = {  # type: ignore[misc]
        **SSHClientConfig._handlers,
        "host": ("Host", _match_name),
        "match": ("Match", _match_criteria),
    }


def forbids_keys(config: asyncssh.config.SSHConfig) -> str:
    """Return the setting by which no keys are offered, as it is written in the config; "" for none."""
    if config.get("PubkeyAuthentication") is False:
        return "PubkeyAuthentication no"
    preferred = config.get("PreferredAuthentications")
    if preferred and "publickey" not in str(preferred).split(","):
        return f"PreferredAuthentications {preferred}"
    return ""


def asks_not(config: asyncssh.config.SSHConfig) -> dict[str, str]:
    """Return which methods of signing in that ask a person the config leaves out, each with the setting."""
    preferred = config.get("PreferredAuthentications")
    off = {
        "password": ("PasswordAuthentication",),
        "keyboard-interactive": ("KbdInteractiveAuthentication", "ChallengeResponseAuthentication"),
    }
    found = {}
    for method, names in off.items():
        setting = next((f"{name} no" for name in names if config.get(name) is False), "")
        if preferred and method not in str(preferred).split(","):
            setting = f"PreferredAuthentications {preferred}"
        if setting:
            found[method] = setting
    return found


def expand(options: asyncssh.SSHClientConnectionOptions, text: str) -> str:
    """Expand percent tokens and ${VARIABLES} in a file name of the config, as ssh_config(5) says."""
    tokens = {
        "%": "%",
        "d": str(Path.home()),
        "h": options.host,
        "k": options.host_key_alias or options.orig_host,
        "n": options.orig_host,
        "p": str(options.port),
        "r": options.username,
        "u": options.client_username,
        "i": str(os.getuid()),
        "L": socket.gethostname().partition(".")[0],
        "l": socket.gethostname(),
    }
    text = re.sub(r"%(.)", lambda found: tokens.get(found[1], found[0]), text)
    return re.sub(r"\$\{(\w+)\}", lambda found: os.environ.get(found[1], found[0]), text)
