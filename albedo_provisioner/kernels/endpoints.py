"""Where local clients find a kernel: private ipc sockets, or encrypted tcp on loopback where ipc is not to be had.

jupyter_client's `KernelManager` removes a kernel's ipc files at every restart, while the relay's sockets stay open
across restarts so that clients keep their connections. So the sockets are bound under names of our own, and what
clients are told are symbolic links to them, which `publish` puts back.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any, Protocol

import zmq
from jupyter_core.paths import jupyter_runtime_dir

from ..bundle.wire import CONTROL, IOPUB, SHELL, STDIN

HEARTBEAT = 0
"""The heartbeat's number among the channels; it never leaves this machine."""

NAMES = {SHELL: "shell", IOPUB: "iopub", STDIN: "stdin", CONTROL: "control", HEARTBEAT: "hb"}
_NUMBERS = {SHELL: 1, IOPUB: 2, STDIN: 3, CONTROL: 4, HEARTBEAT: 5}
_LONGEST = 90  # of about 104 bytes that a unix socket's path may have, with room for the sockets' names
_OURS = re.compile(r"albedo-(\d+)-")


class Addresses(Protocol):
    """Where the relay's sockets are bound."""

    linger: int
    """Milliseconds for which closed sockets go on handing out what clients have not got yet."""

    def early_socket(self, channel: int) -> zmq.Socket[bytes] | None:
        """Return a channel's socket if there is one that is bound and in use already, else None."""

    def bind(self, channel: int, socket: zmq.Socket[bytes]) -> None:
        """Bind a channel's socket."""

    def publish(self) -> None:
        """Put what clients connect by in place, as far as it is not."""

    def connection_info(self, key: bytes, signature_scheme: str) -> dict[str, Any]:
        """Return what clients need to connect."""

    def remove(self) -> None:
        """Remove what was made; the sockets must be closed."""


class Endpoints:
    """The local addresses of one kernel, chosen here.

    Args:
        kind: "ipc" or "tcp"; None takes ipc where there is such a thing.
        encrypt: protect ipc with Curve keys as well; tcp always is.
    """

    linger = 0

    def __init__(self, kind: str | None = None, encrypt: bool = False) -> None:
        self.kind = kind or ("ipc" if zmq.has("ipc") else "tcp")
        self._curve: tuple[bytes, bytes] | None = None
        if encrypt or self.kind == "tcp":
            self._curve = zmq.curve_keypair()
        self._folder = _make_folder() if self.kind == "ipc" else ""
        self._ports: dict[int, int] = {}

    def early_socket(self, channel: int) -> zmq.Socket[bytes] | None:
        """Return None: nobody knows of these addresses before."""
        return None

    def bind(self, channel: int, socket: zmq.Socket[bytes]) -> None:
        """Bind a channel's socket."""
        if self._curve is not None:
            socket.curve_server = True
            socket.curve_publickey, socket.curve_secretkey = self._curve
        if self.kind == "ipc":
            socket.bind(f"ipc://{self._folder}/s-{_NUMBERS[channel]}")
            self._ports[channel] = _NUMBERS[channel]
        else:
            self._ports[channel] = socket.bind_to_random_port("tcp://127.0.0.1")

    def publish(self) -> None:
        """Put the files that clients connect to in place, as far as they are not."""
        if self.kind != "ipc":
            return
        for number in _NUMBERS.values():
            try:
                os.symlink(f"s-{number}", f"{self._folder}/k-{number}")
            except FileExistsError:
                pass

    def connection_info(self, key: bytes, signature_scheme: str) -> dict[str, Any]:
        """Return what a `KernelManager` puts into its connection file."""
        info: dict[str, Any] = {
            "transport": self.kind,
            "ip": f"{self._folder}/k" if self.kind == "ipc" else "127.0.0.1",
            **{f"{NAMES[channel]}_port": port for channel, port in self._ports.items()},
            "key": key,
            "signature_scheme": signature_scheme,
        }
        if self._curve is not None:
            info["curve_publickey"], info["curve_secretkey"] = self._curve
        return info

    def remove(self) -> None:
        """Remove the files; the sockets must be closed."""
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def _make_folder() -> str:
    """Make a private folder with a short enough path, and clear away those of processes that were killed."""
    runtime = jupyter_runtime_dir()
    try:
        Path(runtime).mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        runtime = ""  # Jupyter itself will say so if it minds
    if not os.access(runtime, os.W_OK | os.X_OK) or len(os.fsencode(runtime)) > _LONGEST - 30:
        runtime = tempfile.gettempdir()
    for entry in os.scandir(runtime):
        match = _OURS.match(entry.name)
        if match and entry.is_dir(follow_symlinks=False) and not _is_running(int(match[1])):
            shutil.rmtree(entry.path, ignore_errors=True)
    return tempfile.mkdtemp(prefix=f"albedo-{os.getpid()}-", dir=runtime)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # somebody else's, whose folder we could not remove either
    return True
