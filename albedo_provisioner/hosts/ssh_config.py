"""Where the user's ssh config is, and how ssh is called by hand with it."""

from __future__ import annotations

import glob
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

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


def login_command(host: str) -> str:
    """Return what to type in a terminal to sign in to the host, with the same config file as ours."""
    config = ssh_config_path()
    named = f"ALBEDO_SSH_CONFIG={shlex.quote(str(config))} " if config else ""
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
    try:
        with open(file, encoding="utf-8", errors="replace") as stream:
            lines = stream.read(_MOST_BYTES).splitlines()
    except OSError:
        return  # ssh passes over included files that it cannot read, too
    for line in lines:
        match = _KEYWORD.match(line)
        if match is None:
            continue
        keyword = match[1].lower()
        yield keyword, match[2]
        if keyword == "include" and depth < _MOST_DEPTH:
            for word in config_words(match[2]):
                for included in sorted(glob.glob(str(_absolute(word, system)))):
                    yield from _lines(Path(included), system, depth + 1)


def config_words(text: str) -> list[str]:
    """Return the arguments of a line as ssh splits it: by spaces, with quotes; a # begins a comment."""
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return []  # an open quote: ssh refuses the whole file, and says so when it is used


def _absolute(text: str, system: bool) -> Path:
    """Return where an Include leads: what is relative lies in ~/.ssh, or /etc/ssh for the system's file."""
    path = Path(os.path.expanduser(text))
    return (SYSTEM_CONFIG.parent if system else Path("~/.ssh").expanduser()) / path


def config_complaint(said: Sequence[str]) -> str | None:
    """Return what ssh finds wrong with its config, when that is why it ended.

    Args:
        said: the lines that ssh said. A mere "Unsupported option", which it says in passing, is no such complaint.
    """
    if not any(": terminating, " in line for line in said):
        return None
    wrong = [line.strip() for line in said if re.search(r"\bline \d+: ", line) and "Unsupported option" not in line]
    return wrong[0].rstrip(".") if wrong else said[-1].strip()
