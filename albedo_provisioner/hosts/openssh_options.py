"""What goes before the user's own settings wherever their `ssh` program is run by us.

Their config is written for a person at a terminal; some of it would be in the way of a bare byte stream, of a command
of ours, or of reading what ssh says.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
import sys

from . import child
from .destination import ssh_arguments

_VERSION_TIMEOUT = 5.0
"""Seconds for ssh to say which version it is."""

# And a process of ours must not become the master of the user's other connections: it ends with its command.
_PLAIN = (
    *("-a", "-x", "-o", "ClearAllForwardings=yes", "-o", "Tunnel=no", "-o", "RemoteCommand=none"),
    *("-o", "PermitLocalCommand=no", "-o", "ControlMaster=no", "-o", "ConnectionAttempts=1"),
    *("-o", "FingerprintHash=sha256", "-o", "VisualHostKey=no"),
)

_ATTACHED = ("-o", "StdinNull=no", "-o", "ForkAfterAuthentication=no")
_SESSION = ("-o", "SessionType=default")

_ATTACHED_SINCE = (8, 7)
"""The version of OpenSSH from which on the config may have these settings; older ones end at their names."""


def plain(program: str) -> list[str]:
    """Return the options with which ssh runs a command of ours and nothing else; blocking.

    Args:
        program: the path of ssh.
    """
    return [*_PLAIN, *attached(program), *(_SESSION if version(program) >= _ATTACHED_SINCE else ())]


def attached(program: str) -> list[str]:
    """Return the options with which ssh stays in the foreground and reads its input, whatever it does; blocking.

    Args:
        program: the path of ssh.
    """
    return [*_ATTACHED] if version(program) >= _ATTACHED_SINCE else []


def control_path_option(path: str) -> list[str]:
    """Return the arguments that make ssh use this very control path: its percent signs stand for themselves."""
    return ["-S", path.replace("%", "%%")]


_DETACHED = "import os, sys; os.setsid(); os.execv(sys.argv[1], sys.argv[1:])"


def through_master(program: str, jump: tuple[str, str] | None, detached: bool = False) -> list[str]:
    """Return the options with which ssh reaches its host through a connection to a jump host that is there already.

    Args:
        program: the path of ssh.
        jump: the jump host as the config spells it, and the connection's control path; None for the config's own way.
        detached: whether it is to outlive the terminal, whose end an ssh heeds that goes through another one.
    """
    if jump is None:
        return []
    options = ["-o", "BatchMode=yes", "-o", "ControlMaster=no", "-o", "ProxyCommand=false"]
    first = [sys.executable, "-c", _DETACHED] if detached else []
    before = shlex.join([*first, program, *options, *control_path_option(jump[1])]).replace("%", "%%")
    behind = shlex.join(ssh_arguments(jump[0])).replace("%", "%%")
    return ["-o", f"ProxyCommand={before} -W '[%h]:%p' {behind}"]


def version(program: str) -> tuple[int, int]:
    """Return the version of OpenSSH that a program is, (0, 0) for another one; blocking. It is asked once.

    Args:
        program: the path of ssh.
    """
    try:
        return _version(program, os.stat(program).st_mtime_ns)
    except OSError:
        return 0, 0


@functools.cache
def _version(program: str, changed: int) -> tuple[int, int]:
    try:
        told = child.run(
            [program, "-V"],
            _VERSION_TIMEOUT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0, 0
    found = re.search(r"OpenSSH_(?:for_Windows_)?(\d+)\.(\d+)", told.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)
