"""The connection file of a client that runs a kernelspec's command itself, and local sockets where that wants them.

The format is Jupyter's ("Connection files" in jupyter_client's documentation). As with ipykernel, a file that is not
there is made, and ports that are 0 are chosen and written into it.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

import zmq
from jupyter_core.paths import secure_write

from ..errors import ConfigError
from .endpoints import HEARTBEAT, NAMES
from .first_heartbeats import take_over

_LINGER = 1000
"""Milliseconds: the process ends with its kernel, and the last outputs must be out by then."""


class GivenAddresses:
    """The addresses in a client's connection file.

    TCP ports on loopback are what most clients choose. Whoever can connect to them still needs the file's key.

    Args:
        path: the connection file.

    Raises:
        ConfigError: it cannot be read, or says what cannot be.
    """

    linger = _LINGER

    def __init__(self, path: Path) -> None:
        self._path = path
        self._info = _read(path)
        self._whole = True  # whether the file says all there is to say
        self._files: list[str] = []
        self.key = str(self._info.setdefault("key", "")).encode()
        self.signature_scheme = str(self._info.setdefault("signature_scheme", "hmac-sha256"))
        self.notebook = str(self._info.get("jupyter_session") or "")
        """The notebook that the client names, if any."""
        self._transport = str(self._info.setdefault("transport", "tcp"))
        if self._transport not in ("tcp", "ipc"):
            raise ConfigError(f"The connection file {path} asks for the transport {self._transport!r}, not tcp or ipc.")
        default = "127.0.0.1" if self._transport == "tcp" else str(path.with_suffix("")) + "-ipc"
        self._ip = str(self._info.get("ip") or default)
        self._info["ip"] = self._ip
        try:
            self._ports = {channel: int(self._info.get(f"{name}_port") or 0) for channel, name in NAMES.items()}
        except (TypeError, ValueError) as error:
            raise ConfigError(f"The connection file {path} has a port that is no number: {error}.") from None

    def early_socket(self, channel: int) -> zmq.Socket[bytes] | None:
        """Return a socket that is bound already; see `Addresses`."""
        return take_over(self._ports[channel]) if channel == HEARTBEAT else None

    def bind(self, channel: int, socket: zmq.Socket[bytes]) -> None:
        """Bind a channel's socket.

        Raises:
            ConfigError: its address is taken, or is none of this machine's.
        """
        public, secret = self._info.get("curve_publickey"), self._info.get("curve_secretkey")
        if public and secret:
            socket.curve_server = True
            socket.curve_publickey, socket.curve_secretkey = str(public).encode(), str(secret).encode()
        port = self._ports[channel]
        try:
            if self._transport == "ipc":
                self._bind_file(channel, socket, port)
            elif port:
                socket.bind(f"tcp://{self._ip}:{port}")
            else:
                self._choose(channel, socket.bind_to_random_port(f"tcp://{self._ip}"))
        except zmq.ZMQError as error:
            raise ConfigError(
                f"The {NAMES[channel]} port {port} on {self._ip}, which the connection file {self._path} wants, cannot "
                f"be used: {error.strerror}."
            ) from None

    def _bind_file(self, channel: int, socket: zmq.Socket[bytes], port: int) -> None:
        if not port:
            port = 1
            while os.path.exists(f"{self._ip}-{port}"):
                port += 1
            self._choose(channel, port)
        file = f"{self._ip}-{port}"
        before = os.umask(0o077)
        try:
            socket.bind(f"ipc://{file}")
        finally:
            os.umask(before)
        self._files.append(file)

    def _choose(self, channel: int, port: int) -> None:
        self._ports[channel] = port
        self._info[f"{NAMES[channel]}_port"] = port
        self._whole = False

    def publish(self) -> None:
        """Write what was chosen here into the file.

        Raises:
            ConfigError: it cannot be written.
        """
        if self._whole:
            return
        try:
            with secure_write(str(self._path)) as file:
                json.dump(self._info, file, indent=2)
        except OSError as error:
            raise ConfigError(f"The connection file {self._path} cannot be written: {error.strerror}.") from None
        self._whole = True

    def connection_info(self, key: bytes, signature_scheme: str) -> dict[str, Any]:
        """Return what clients need to connect: what the file says."""
        return {**self._info, "key": key, "signature_scheme": signature_scheme}

    def remove(self) -> None:
        """Remove the sockets' files; the connection file is the client's."""
        for file in self._files:
            try:
                os.unlink(file)
            except FileNotFoundError:
                pass  # the client removes them too


def _read(path: Path) -> dict[str, Any]:
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"key": secrets.token_hex(32)}
    except (OSError, ValueError) as error:
        raise ConfigError(f"The connection file {path} cannot be read: {error}.") from None
    if not isinstance(info, dict):
        raise ConfigError(f"The connection file {path} is no JSON object.")
    return info
