"""What is left of a demonstration, looked up and not believed: processes and files, on the host and on this side."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ..hosts.staging import bundle
from .server import EmbeddedHost
from .sshd import marked

_PATIENCE = 5.0


def on_host(host: EmbeddedHost, kernel_id: str) -> list[str]:
    """Return what a kernel that has been shut down left on its host, in words; its bundle is meant to stay."""

    def look() -> list[str]:
        pids = sorted({*host.processes(), *_with_mark(f"ALBEDO_KERNEL_ID={kernel_id}")})
        found = [f"process {pid} ({_command(pid)}) on the host" for pid in pids]
        ours = host.home / ".albedo-remote"
        for path in sorted(ours.iterdir()) if ours.is_dir() else []:
            if path.name == "run":
                found += [f"run directory {each.name} on the host" for each in sorted(path.iterdir())]
            elif path.name != bundle().digest:
                found.append(f"{path.name} beside the bundle on the host")
        # Under a long home a kernel's sockets lie in its temporary directory.
        return found + [f"{path.name} in the host's temporary directory" for path in _named(host.root / "tmp")]

    return _settled(look)


def on_this_side(runtime: Path) -> list[str]:
    """Return what is left of kernels on this side, in words.

    Args:
        runtime: Jupyter's runtime directory, with connection files and sockets; nobody else's.
    """

    def look() -> list[str]:
        left = sorted(runtime.iterdir()) if runtime.is_dir() else []
        # Sockets lie in the temporary directory where the runtime directory has a long name.
        left += _named(Path(tempfile.gettempdir()), f"albedo-{os.getpid()}-*")
        return [f"{path} on this machine" for path in left]

    return _settled(look)


def of_demo(host: EmbeddedHost) -> list[str]:
    """Return what a closed host left on this machine, in words."""

    def look() -> list[str]:
        found = [f"process {pid} ({_command(pid)})" for pid in marked(str(host.root))]
        return found + ([str(host.root)] if host.root.exists() else [])

    return _settled(look)


def _settled(look: Callable[[], list[str]]) -> list[str]:
    """Return what is still found after a while: a process that has said goodbye takes a moment to be gone."""
    deadline = time.monotonic() + _PATIENCE
    while (found := look()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def _named(directory: Path, pattern: str = "albedo*") -> list[Path]:
    return sorted(directory.glob(pattern))


def _with_mark(mark: str) -> list[int]:
    """Return the ids of this machine's processes that have this "NAME=value" in their environment."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                environ = Path("/proc", entry, "environ").read_bytes()
            except OSError:
                continue  # it ended meanwhile, or is another account's and so none of ours
            if mark.encode() in environ.split(b"\0"):
                found.append(int(entry))
    return found


def _command(pid: int) -> str:
    try:
        words = Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")
    except OSError:
        return "ended meanwhile"
    return b" ".join(words).decode(errors="replace").strip()[:60]
