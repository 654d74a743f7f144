"""Whether a `Match exec` of the ssh config surely has its command run for a host, as far as that is seen without ssh.

ssh itself would run the command to tell, and then once more to connect. What is not seen here (`canonical`, `final`, a
`HostName` that another `Match` may set) is for ssh to say.
"""

from __future__ import annotations

import getpass
from collections.abc import Iterable

from .destination import Destination
from .ssh_config import config_words, match_words


def runs_a_command(lines: Iterable[tuple[str, str]], destination: Destination) -> bool:
    """Whether a command is run for a host.

    Args:
        lines: those of the config, see `config_lines`.
        destination: the host as the user spells it.
    """
    return _Reading(destination).finds_command(lines)


class _Reading:
    """What is known of a host's settings while the config is read from its first line on.

    Args:
        destination: the host as the user spells it.
    """

    def __init__(self, destination: Destination) -> None:
        self._name = destination.host
        self._applies: bool | None = True  # whether the lines that come are for the host; None if that is not known
        local = getpass.getuser()
        self._known: dict[str, str | None] = {
            "originalhost": destination.host,
            "host": destination.host,
            "user": destination.user or local,
            "localuser": local,
        }
        self._set = {"user"} if destination.user else set()  # of each setting the first value counts

    def finds_command(self, lines: Iterable[tuple[str, str]]) -> bool:
        """Read the lines; whether one of them runs a command for the host."""
        for keyword, rest in lines:
            if keyword == "host":
                self._applies = _matches(self._name, ",".join(config_words(rest)))
            elif keyword == "match":
                if self._runs_command(rest):
                    return True
                self._applies = None
            elif keyword in ("hostname", "user") and self._applies is not False:
                self._take("host" if keyword == "hostname" else "user", rest)
        return False

    def _take(self, name: str, rest: str) -> None:
        if name not in self._set:
            value = "".join(config_words(rest)[:1]).replace("%h", self._name)
            self._known[name] = value if self._applies and value and "%" not in value else None
            if self._applies:
                self._set.add(name)

    def _runs_command(self, criteria: str) -> bool:
        words = iter(match_words(criteria))
        for word in words:
            negated = word.startswith("!")
            criterion = word.lower().removeprefix("!")
            if criterion == "exec":
                return True
            value = self._known.get(criterion)
            if value is None or _matches(value, next(words, "")) == negated:
                return False
        return False


def _matches(value: str, patterns: str) -> bool:
    from asyncssh.pattern import WildcardPatternList

    return bool(WildcardPatternList(patterns).matches(value))
