"""How a host is spelled, and how it is named to the `ssh` program."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass

from ..errors import ConfigError
from .ssh_config import ssh_config_path


@dataclass(frozen=True)
class Destination:
    """`[user@]host[:port]` in its parts; a part that is not given is left to the config."""

    host: str
    user: str | None = None
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> Destination:
        """Parse a host as users spell it, or one hop of a ProxyJump ("ssh://" URIs and "[v6]:port" included).

        Raises:
            ConfigError: there is no host in it, or the port is no number.
        """
        found = re.fullmatch(
            r"(?:ssh://)?(?:(?P<user>.+)@)?(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:@]+|[0-9a-fA-F:]+:[0-9a-fA-F:.%\w]*))"
            r"(?::(?P<port>\d+))?/?",
            text.strip(),
        )
        if found is None:
            raise ConfigError(f"{text!r} is not a host: expected [user@]host or [user@][ipv6]:port.")
        port = found["port"]
        return cls(found["v6"] or found["host"], found["user"], int(port) if port else None)


def find_ssh() -> str | None:
    """Return the path of the user's `ssh`, None when there is none."""
    return shutil.which("ssh")


def ssh_arguments(host: str) -> list[str]:
    """Return the arguments that name a host to ssh, and the config file if another than the user's is in force.

    They come last on ssh's command line but for the command; a host is never taken for an option.

    Raises:
        ConfigError: the text is no host.
    """
    destination = Destination.parse(host)
    config = ssh_config_path()
    return [
        *(["-F", str(config)] if config else []),
        *(["-p", str(destination.port)] if destination.port is not None else []),
        *(["-l", destination.user] if destination.user is not None else []),
        "--",
        destination.host,
    ]
