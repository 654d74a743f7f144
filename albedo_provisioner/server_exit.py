"""Whether the Jupyter Server that this process is, is on its way down."""

from __future__ import annotations

import os

from .notebook_name import server


def server_info_file() -> str | None:
    """Return the file by which this process's Jupyter Server is found, if it is there."""
    path = getattr(server(), "info_file", None)
    return path if path and os.path.exists(path) else None


def server_is_stopping(info_file: str | None) -> bool:
    """Whether this process is a Jupyter Server on its way down, as opposed to one whose user ends a kernel.

    Args:
        info_file: what `server_info_file` said earlier. `jupyter server stop` and the page's "Shut down" set no
            flag, but the first thing that a server does then is to remove it.
    """
    return bool(getattr(server(), "_stopping", False)) or (info_file is not None and not os.path.exists(info_file))
