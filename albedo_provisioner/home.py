"""Where what must last is kept on this machine: `$ALBEDO_HOME`, by default below Jupyter's data directory."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import stat
from pathlib import Path

from jupyter_core.paths import jupyter_data_dir

from .errors import ConfigError

log = logging.getLogger("albedo_provisioner")

_OTHERS, _OTHERS_WRITE = 0o077, 0o022


def albedo_home_path(home: str | os.PathLike[str] | None = None) -> Path:
    """Return where the directory is, or would be; nothing is made. See `albedo_home`."""
    return Path(home or os.environ.get("ALBEDO_HOME") or Path(jupyter_data_dir()) / "albedo").expanduser()


def albedo_home(home: str | os.PathLike[str] | None = None) -> Path:
    """Return the directory. It is made private if it has to be made, or was open to other accounts: it holds keys, and
    packages that are sent to hosts and run there; those kept in a directory that others could change are fetched anew.

    Args:
        home: the directory to use; None for `$ALBEDO_HOME`, else `albedo/` under Jupyter's data directory.

    Raises:
        ConfigError: it cannot be made, or not be closed to others.
    """
    path = albedo_home_path(home)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"The directory {path} cannot be made ({error.strerror}); set ALBEDO_HOME to one that can."
        ) from error
    _must_be_private(path)
    return path


def _must_be_private(path: Path) -> None:
    status = path.stat()
    if status.st_uid != os.geteuid():
        raise ConfigError(
            f"The directory {path} belongs to another account (uid {status.st_uid}); set ALBEDO_HOME to one of yours."
        )
    if not status.st_mode & _OTHERS:
        return
    if status.st_mode & stat.S_ISVTX or path.resolve() == Path.home().resolve():
        raise ConfigError(
            f"The directory {path} is not for us alone; set ALBEDO_HOME to one that is, such as {path}/albedo."
        )
    try:
        if status.st_mode & _OTHERS_WRITE:
            shutil.rmtree(path / "wheels", ignore_errors=True)
        path.chmod(0o700)
    except OSError as error:
        if error.errno == errno.EROFS and not status.st_mode & _OTHERS_WRITE:
            return  # nobody can change what is in it, and what there is may be read
        raise ConfigError(
            f"The directory {path} is open to other accounts and cannot be closed ({error.strerror}); set ALBEDO_HOME "
            "to another one."
        ) from error
    log.warning(
        "%s was open to other accounts (mode %04o) and is closed to them now", path, stat.S_IMODE(status.st_mode)
    )
