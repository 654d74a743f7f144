"""Where the user's ssh config is, and how ssh is called by hand with it."""

from __future__ import annotations

import os
import shlex
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
