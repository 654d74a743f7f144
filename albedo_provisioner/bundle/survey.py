"""What kernels there could be on this host: its kernelspecs, and the Python environments of a folder and of conda."""

from __future__ import annotations

import base64
import importlib.metadata
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from . import environments, kernelspecs

Found = list[dict[str, Any]]

_LOOK = 5.0
"""Seconds that one look may take. What takes longer hangs: a file system whose server is gone."""

_MOST_SPECS = 100
_MOST_LOGOS = 1 << 20


def survey(folder: str, kernel: str | None = None) -> dict[str, Any]:
    """Return what there is, as plain JSON.

    Args:
        folder: the kernel's folder, an absolute path.
        kernel: the path of a kernelspec's directory that may lie anywhere, to be among what is found.
    """
    late: list[str] = []
    pythons = _look("the folder's environments", lambda: environments.in_folder(folder), late)
    pythons += [own()]
    broken = _look("the folder's broken environments", lambda: environments.broken_in_folder(folder), late)
    known = {os.path.realpath(os.path.dirname(each["python"])) for each in pythons}
    for each in _look("conda's environments", environments.conda, late):
        if os.path.realpath(os.path.dirname(each["python"])) not in known:
            pythons.append(each)
    wanted = kernelspecs.directory_of(kernel) if kernel and "/" in kernel else None
    interpreters = [each["python"] for each in pythons]
    damaged: Found = []
    specs = _look("kernelspecs", lambda: _kernelspecs(interpreters, wanted, folder, damaged), late)
    return {"pythons": pythons, "broken": broken, "kernelspecs": specs, "damaged": list(damaged), "late": late}


def _look(what: str, look: Callable[[], Found], late: list[str]) -> Found:
    """Return what there is to see, or nothing, and a note in `late`, when that takes too long."""
    found: list[Found] = []
    # A thread, because a process that hangs in a file system can be neither interrupted nor ended.
    thread = threading.Thread(target=lambda: found.append(look()), daemon=True)
    thread.start()
    thread.join(_LOOK)
    if not found:
        late.append(what)
    return found[0] if found else []


def own() -> dict[str, Any]:
    """Return what this interpreter is; its site directories must have been set up."""
    try:
        version: str | None = importlib.metadata.version("ipykernel")
    except importlib.metadata.PackageNotFoundError:
        version = None
    return {
        "python": sys.executable,
        "version": ".".join(map(str, sys.version_info[:3])),
        "ipykernel": version,
        "name": "",
        "kind": "login",
    }


def _kernelspecs(pythons: list[str], wanted: str | None, folder: str, damaged: Found) -> Found:
    """Return the kernelspecs on Jupyter's search path, those of the environments that are not on it, and the one in the
    directory that is wanted.

    Args:
        pythons: the interpreters of the environments.
        wanted: that directory, if any.
        folder: where the kernel would be started.
        damaged: is given those that cannot be read, and why.
    """
    by_name = kernelspecs.names(kernelspecs.search_path())
    found = [(name, directory, name) for name, directory in by_name.items()]
    if wanted is not None and wanted not in by_name.values():
        found.insert(0, (os.path.basename(wanted).lower(), wanted, wanted))
    for python in pythons:
        parent = os.path.join(os.path.dirname(os.path.dirname(python)), "share", "jupyter", "kernels")
        for name, directory in kernelspecs.names([parent]).items():
            if directory not in by_name.values() and directory != wanted:
                found.append((name, directory, directory))
    prefixes = [os.path.dirname(os.path.dirname(python)) for python in pythons]
    described = []
    room = _MOST_LOGOS
    for name, directory, kernel in found[:_MOST_SPECS]:
        try:
            spec = kernelspecs.read(directory)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            damaged.append({"kernel": kernel, "directory": directory, "why": why})
            continue  # Jupyter would not start it either
        metadata = spec.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        if "kernel_provisioner" in metadata:
            continue  # it runs somewhere else again
        logos = {file: content for file, content in kernelspecs.logos(directory).items() if len(content) <= room}
        room -= sum(map(len, logos.values()))
        described.append(
            {
                "name": name,
                "kernel": kernel,
                "directory": directory,
                "display_name": str(spec.get("display_name") or name),
                "language": str(spec.get("language") or ""),
                "interrupt_mode": "message" if spec.get("interrupt_mode") == "message" else "signal",
                "debugger": metadata.get("debugger") is True,
                # What each of these environments has of itself: the same kernel as by its interpreter.
                "native": name == "python3" and any(directory.startswith(f"{prefix}/share/") for prefix in prefixes),
                "missing": kernelspecs.missing_program(directory, spec, folder),
                "logos": {file: base64.b64encode(content).decode() for file, content in logos.items()},
            }
        )
    return described
