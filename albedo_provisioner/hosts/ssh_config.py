"""Where the user's ssh config is, and how ssh is called by hand with it."""

from __future__ import annotations

import glob
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import ConfigError

SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")


def ssh_config_path() -> Path | None:
    """Return the ssh config file that `$ALBEDO_SSH_CONFIG` names, None when the variable is unset or empty."""
    named = os.environ.get("ALBEDO_SSH_CONFIG")
    return Path(named).expanduser() if named else None


def config_files() -> list[Path]:
    """Return the ssh config files that apply: the named one alone, or the user's and then the system's, as ssh does."""
    named = ssh_config_path()
    files = [named] if named else [Path("~/.ssh/config").expanduser(), SYSTEM_CONFIG]
    return [file for file in files if os.access(file, os.R_OK)]


def ssh_command(host: str) -> str:
    """Return what to type in a terminal to reach the host by hand, with the same config file as ours."""
    config = ssh_config_path()
    name = host.replace("[", "").replace("]", "")  # ssh takes an IPv6 address without the brackets
    return shlex.join(["ssh", "-F", str(config), name] if config else ["ssh", name])


def command_line(host: str, command: str) -> str:
    """Return the command line that runs a command on a host, to be typed on this machine."""
    return command if host == "this machine" else f"{ssh_command(host)} {shlex.quote(command)}"


def login_command(host: str) -> str:
    """Return what to type in a terminal to sign in to the host, with our config file, and for us to find."""
    places = {"ALBEDO_HOME": os.environ.get("ALBEDO_HOME"), "ALBEDO_SSH_CONFIG": ssh_config_path()}
    named = "".join(f"{name}={shlex.quote(str(place))} " for name, place in places.items() if place)
    return f"{named}jupyter albedo login {shlex.quote(host)}"


_MOST_DEPTH = 16
"""How deep files may include each other, as in ssh (readconf.c, READCONF_MAX_DEPTH)."""

_MOST_BYTES = 1 << 20
"""Bytes of one file that are looked at."""

_KEYWORD = re.compile(r"\s*([A-Za-z0-9]+)(?:\s*=\s*|\s+)(.*)")


def config_lines() -> Iterator[tuple[str, str]]:
    """Yield the lines of all ssh config files that apply, included ones in their place, whatever their condition.

    Each is a keyword in lower case and the rest of its line. A file that cannot be read, or is not there, has none.
    """
    for file in config_files():
        yield from _lines(file, file == SYSTEM_CONFIG, 0)


def _lines(file: Path, system: bool, depth: int) -> Iterator[tuple[str, str]]:
    for _, keyword, rest in _lines_of(file):
        yield keyword, rest
        if keyword == "include" and depth < _MOST_DEPTH:
            for included in _included(rest, system):
                yield from _lines(included, system, depth + 1)


def _lines_of(file: Path) -> Iterator[tuple[int, str, str]]:
    """Yield the number, the keyword and the rest of a file's own lines."""
    try:
        with open(file, encoding="utf-8", errors="replace") as stream:
            lines = stream.read(_MOST_BYTES).splitlines()
    except OSError:
        return  # ssh passes over included files that it cannot read, too
    for number, line in enumerate(lines, 1):
        match = _KEYWORD.match(line)
        if match is not None:
            yield number, match[1].lower(), match[2]


def _included(rest: str, system: bool) -> list[Path]:
    """Return the files that an Include with these arguments names."""
    return [Path(name) for word in config_words(rest) for name in sorted(glob.glob(str(_absolute(word, system))))]


def config_words(text: str) -> list[str]:
    """Return the arguments of a line as ssh splits it: by spaces, with quotes; a # begins a comment."""
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return []  # an open quote: ssh refuses the whole file, and says so when it is used


_CRITERION = re.compile(r"\s*(!?[A-Za-z]+)(?:\s*=\s*|\s+|$)")
_ALONE = ("all", "canonical", "final")
"""Criteria of a `Match` that have no argument."""

_ARGUMENT = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([^\s"']\S*))(?=\s|$)""")


def match_words(text: str) -> list[str]:
    """Return the criteria of a `Match`, each but `all`, `canonical` and `final` followed by its argument, as ssh splits
    them: an equals sign may stand between the two, and within quotes means nothing. Empty if they are none.
    """
    found, at = [], 0
    while text[at:].strip() and not text[at:].lstrip().startswith("#"):
        criterion = _CRITERION.match(text, at)
        if criterion is None:
            return []
        found.append(criterion[1])
        at = criterion.end()
        if criterion[1].lower().removeprefix("!") not in _ALONE:
            argument = _ARGUMENT.match(text, at)
            if argument is None:
                return []
            found.append(next(group for group in argument.groups() if group is not None))
            at = argument.end()
    return found


def line_of(file: Path, number: int) -> str:
    """Return what follows the keyword in a file's line, counted from 1; empty if there is nothing."""
    return next((rest for at, _, rest in _lines_of(file) if at == number), "")


def _absolute(text: str, system: bool) -> Path:
    """Return where an Include leads: what is relative lies in ~/.ssh, or /etc/ssh for the system's file."""
    path = Path(os.path.expanduser(text))
    return (SYSTEM_CONFIG.parent if system else Path("~/.ssh").expanduser()) / path


def must_be_readable() -> None:
    """See that the config file that `$ALBEDO_SSH_CONFIG` names is one.

    Raises:
        ConfigError: it cannot be read.
    """
    named = ssh_config_path()
    if named is not None:
        try:
            named.open("rb").close()
        except OSError as error:
            raise ConfigError(
                f"The ssh config {named}, which the variable ALBEDO_SSH_CONFIG names, cannot be read: "
                f"{error.strerror or error}. Correct the variable, or unset it."
            ) from None


def config_error(words: str) -> ConfigError:
    """Return the error for a config that cannot be used.

    Args:
        words: what ssh, or asyncssh, says of it.
    """
    words = words.strip().rstrip(".")
    if found := re.search(r"Bad owner or permissions on (.+)", words):
        return ConfigError(f"The ssh config cannot be used: {words}. {_mending_permissions(Path(found[1]))}")
    if TOO_MANY_INCLUDES in words:
        where = _circle() or "A file includes itself, or files are nested too deep"
        return ConfigError(f"The ssh config cannot be read: {words[:1].lower()}{words[1:]}. {where}.")
    if found := re.fullmatch(r"jumphost loop via (\S+)", words):
        circle = f"{found[1]} through {found[1]}"
        return ConfigError(f"{JUMPS_IN_A_CIRCLE[:1].upper()}{JUMPS_IN_A_CIRCLE[1:]} ({circle}). {no_jump(found[1])}")
    advice = "Correct that line and try again." if re.search(r"\bline \d+", words) else "`ssh -G HOST` shows it."
    return ConfigError(f"The ssh config cannot be read: {words}. {advice}")


JUMPS_IN_A_CIRCLE = "the jump hosts in your ssh config lead in a circle"
"""What is said where a jump host is reached through itself."""


def no_jump(host: str) -> str:
    """Return what to do about a jump host that is reached through itself."""
    return f"Give {host} an entry with `ProxyJump none` in front of the one that sends it through a jump host."


TOO_MANY_INCLUDES = "Too many recursive configuration includes"
"""What ssh says when files include each other without an end."""


def _mending_permissions(file: Path) -> str:
    """Return what to do about a file that ssh does not want to trust."""
    try:
        owner = file.stat().st_uid
    except OSError:
        owner = os.getuid()
    if owner not in (0, os.getuid()):
        return f'It belongs to another account ({owner}); make it yours: `sudo chown "$USER" {shlex.quote(str(file))}`.'
    return f"Others may write to it; see that only you can: `chmod 600 {shlex.quote(str(file))}`."


def _circle() -> str:
    """Return which line of the config includes what it is included by itself, in words; empty for none."""

    def find(file: Path, system: bool, above: tuple[str, ...]) -> str:
        for number, keyword, rest in _lines_of(file):
            for included in _included(rest, system) if keyword == "include" else ():
                if os.path.realpath(included) in above:
                    itself = "itself" if os.path.realpath(included) == above[-1] else f"{included}, which includes it"
                    return f"{file} line {number} includes {itself}"
                deeper = find(included, system, (*above, os.path.realpath(included)))
                if deeper:
                    return deeper
        return ""

    found = (find(file, file == SYSTEM_CONFIG, (os.path.realpath(file),)) for file in config_files())
    return next(filter(None, found), "")


def config_troubles() -> list[str]:
    """Return what keeps hosts of the ssh config from being listed (`config_lines` passes over it), each in a sentence.

    That is a file that cannot be read, one that is named and not there, and files that include each other.
    """
    try:
        must_be_readable()
    except ConfigError as error:
        return [str(error)]
    found = []
    users = Path("~/.ssh/config").expanduser()
    if ssh_config_path() is None and os.path.lexists(users) and not os.access(users, os.R_OK):
        found.append(f"Your ssh config {users} cannot be read.")
    if circle := _circle():
        return [*found, f"The ssh config cannot be read: {circle}."]
    for file in config_files():
        found += _unreadable(file, file == SYSTEM_CONFIG, 0)
    return found


def _unreadable(file: Path, system: bool, depth: int) -> Iterator[str]:
    """Yield a sentence for each file that a file includes, itself or by another one, and that cannot be read."""
    for number, keyword, rest in _lines_of(file):
        if keyword != "include" or depth >= _MOST_DEPTH:
            continue
        for word in config_words(rest):
            if not re.search(r"[*?\[%$]", word) and not os.path.exists(_absolute(word, system)):
                yield f"{file} line {number} includes {_absolute(word, system)}, which is not there."
        for included in _included(rest, system):
            try:
                included.open("rb").close()
            except OSError as error:
                yield f"{file} line {number} includes {included}, which cannot be read: {error.strerror or error}."
            else:
                yield from _unreadable(included, system, depth + 1)


def config_complaint(said: Sequence[str]) -> str | None:
    """Return what ssh finds wrong with its config, when that is why it ended.

    Args:
        said: the lines that ssh said. A mere "Unsupported option", which it says in passing, is no such complaint.
    """
    for line in said:
        if line.startswith(("Bad owner or permissions on ", TOO_MANY_INCLUDES)):
            return line.strip()
    if not any(": terminating, " in line for line in said):
        return None
    wrong = [line.strip() for line in said if re.search(r"\bline \d+: ", line) and "Unsupported option" not in line]
    return wrong[0].rstrip(".") if wrong else said[-1].strip()
