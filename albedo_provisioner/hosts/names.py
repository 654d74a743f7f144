"""The names of hosts that the user's ssh config knows: what stands behind `Host`, without patterns."""

from __future__ import annotations

import glob
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from .ssh_config import SYSTEM_CONFIG, config_files

_MOST_DEPTH = 16
"""How deep files may include each other, as in ssh (readconf.c, READCONF_MAX_DEPTH)."""

_MOST_BYTES = 1 << 20
"""Bytes of one file that are looked at."""

_KEYWORD = re.compile(r"\s*([A-Za-z]+)(?:\s*=\s*|\s+)(.*)")


def configured_hosts() -> list[str]:
    """Return the names in the ssh config and all that it includes, in their order, each once; nothing is connected.

    Patterns (`*`, `?`, `!`) are no names, and neither is what ssh itself would refuse as a host. A file that cannot be
    read, or is not there, has none.
    """
    found: dict[str, None] = {}
    for file in config_files():
        found.update(dict.fromkeys(_names(file, file == SYSTEM_CONFIG, 0)))
    return list(found)


def _names(file: Path, system: bool, depth: int) -> Iterator[str]:
    try:
        with open(file, encoding="utf-8", errors="replace") as stream:
            lines = stream.read(_MOST_BYTES).splitlines()
    except OSError:
        return  # ssh passes over included files that it cannot read, too
    for line in lines:
        match = _KEYWORD.match(line)
        keyword = match[1].lower() if match else ""
        if match is None or keyword not in ("host", "include"):
            continue
        for word in _words(match[2]):
            if keyword == "host":
                if not re.search(r"[*?!\s]", word) and not word.startswith("-"):
                    yield word
            elif depth < _MOST_DEPTH:
                for included in sorted(glob.glob(str(_absolute(word, system)))):
                    yield from _names(Path(included), system, depth + 1)


def _words(text: str) -> list[str]:
    """Return the arguments of a line as ssh splits it: by spaces, with quotes; a # begins a comment."""
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return []  # an open quote: ssh refuses the whole file, and says so when it is used


def _absolute(text: str, system: bool) -> Path:
    """Return where an Include leads: what is relative lies in ~/.ssh, or /etc/ssh for the system's file."""
    path = Path(os.path.expanduser(text))
    return (SYSTEM_CONFIG.parent if system else Path("~/.ssh").expanduser()) / path
