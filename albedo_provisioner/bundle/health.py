"""What `jupyter albedo doctor` looks at on a host with our modules at hand; `examine.py` calls and times it.

Each look returns plain facts. What they mean is said on the client's side.
"""

from __future__ import annotations

import importlib.metadata
import os
import secrets
import socket
import sys
from collections.abc import Callable
from typing import Any

from . import entry, logind, rundir, wheels
from .importing import why_not_imported
from .private import is_loose, why_foreign
from .spawn import KEEPER_TASKS, KERNEL_TASKS, folder_path, task_room

Facts = dict[str, Any]


def looks(request: Facts) -> dict[str, Callable[[], Facts]]:
    """Return the looks that a request asks for, by name."""
    return {
        "packages": packages,
        "runtime": runtime,
        "logout": logout,
        "kernels": kernels,
        **({"folder": lambda: folder(request["cwd"])} if request.get("cwd") else {}),
    }


def tasks() -> Facts:
    """How many processes and threads the account may have, and has; both None where there is no limit."""
    limit, now = task_room(KEEPER_TASKS + KERNEL_TASKS) or (None, None)
    return {"limit": limit, "now": now}


def packages() -> Facts:
    """Whether this interpreter has what a kernel takes, from wherever, and can import it."""
    lacking = entry.missing(["ipykernel", "zmq"])
    ours = [path for path in sys.path if path.startswith(wheels.DIRECTORY)]
    return {
        "ipykernel": _version("ipykernel"),
        "pyzmq": _version("pyzmq"),
        "provided": bool(ours),
        "broken": None if lacking else why_not_imported(ours),
        "pip": entry.pip_may_install(),
        "without": entry.without(lacking) if lacking else None,
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def runtime() -> Facts:
    """Make a run directory as a kernel has one, with a socket that is connected to, and remove it again."""
    root = rundir.root()
    remote = os.path.dirname(root)
    found: Facts = {"directory": remote, "open": [], "loose": [], "foreign": [], "error": None}
    if not os.path.isdir(os.path.dirname(remote)):
        found["error"], found["path"] = "there is no home", os.path.dirname(remote)
        return found
    there = os.path.lexists(remote)
    for path in (remote, root, wheels.DIRECTORY):
        if not os.path.lexists(path):
            continue
        if why := why_foreign(path, path == remote):
            found["foreign"].append([path, why])
            return found  # nothing below it can be looked at, or is of any use
        mode = os.stat(path).st_mode
        if mode & 0o077:
            found["loose" if is_loose(mode) else "open"].append(path)
    # As long as a kernel's id, since the length decides where its sockets lie; no id, so that nobody lists it.
    path = os.path.join(root, f".doctor-{secrets.token_hex(14)}")
    try:
        os.makedirs(root, 0o700, exist_ok=True)
        os.mkdir(path, 0o700)
        base = rundir.socket_base(path)
        found["sockets"] = os.path.dirname(base)
        found["elsewhere"] = not base.startswith(path)
        _connect(f"{base}-1")
    except OSError as error:
        found["error"] = error.strerror or str(error)
        found["path"] = error.filename or path
    finally:
        rundir.remove(path)
        if not there and os.path.isdir(remote) and not os.listdir(remote):
            os.rmdir(remote)
    return found


def _connect(address: str) -> None:
    """Listen on a unix socket and connect to it. Not every file system has them."""
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(address)
        listener.listen(1)
        client.connect(address)


def kernels() -> Facts:
    """Which kernels there are; none where our directory is not ours, which `runtime` tells."""
    remote = os.path.dirname(rundir.root())
    foreign = os.path.lexists(remote) and why_foreign(remote, link=True)
    return {"kernels": [] if foreign else entry.kernels(), "node": os.uname().nodename}


def logout() -> Facts:
    """What becomes of kernels when the login ends."""
    threat = logind.threat_of_logout()
    return {"threat": threat, "ends": threat is not None and logind.ENABLE_LINGER in threat}


def folder(text: str) -> Facts:
    """Whether a kernel can run in a folder."""
    path = folder_path(text)
    return {"path": path, "problem": entry.problem_of_folder(path)}
