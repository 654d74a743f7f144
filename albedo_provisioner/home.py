"""Where what must last is kept on this machine: `$ALBEDO_HOME`, by default below Jupyter's data directory."""

from __future__ import annotations

import os
from pathlib import Path

from jupyter_core.paths import jupyter_data_dir

from .errors import ConfigError


def albedo_home_path(home: str | os.PathLike[str] | None = None) -> Path:
    """Return where the directory is, or would be; nothing is made. See `albedo_home`."""
    return Path(home or os.environ.get("ALBEDO_HOME") or Path(jupyter_data_dir()) / "albedo").expanduser()


def albedo_home(home: str | os.PathLike[str] | None = None) -> Path:
    """Return the directory, made private if it had to be made.

    Args:
        home: the directory to use; None for `$ALBEDO_HOME`, else `albedo/` under Jupyter's data directory.

    Raises:
        ConfigError: it cannot be made.
    """
    path = albedo_home_path(home)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"The directory {path} cannot be made ({error.strerror}); set ALBEDO_HOME to one that can."
        ) from error
    return path
