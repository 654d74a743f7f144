"""The heartbeat of a kernel that stands for one on its host, before all that it takes to start that is imported.

Clients that run a kernelspec's command themselves connect at once, and take a second without a heartbeat for death.
Nothing of ours but this is imported by then, so nothing that takes long may be imported here.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence

import zmq


class FirstHeartbeats:
    """Answers heartbeats on a thread of its own, until somebody takes the socket over.

    Args:
        socket: it, bound already.
        port: its port.
    """

    def __init__(self, socket: zmq.Socket[bytes], port: int) -> None:
        self.port = port
        self._socket = socket
        self._wanted, self._want = os.pipe()
        self._thread = threading.Thread(target=self._answer, name="albedo-first-heartbeats", daemon=True)
        self._thread.start()

    def hand_over(self) -> zmq.Socket[bytes]:
        """Return the socket, on which nothing is answered from now on."""
        os.write(self._want, b"!")
        self._thread.join()
        os.close(self._want)
        os.close(self._wanted)
        return self._socket

    def _answer(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wanted, zmq.POLLIN)
        while self._wanted not in (ready := dict(poller.poll())):
            if self._socket in ready:
                self._socket.send_multipart(self._socket.recv_multipart())


_begun: list[FirstHeartbeats] = []


def begin(arguments: Sequence[str]) -> None:
    """Answer heartbeats at the port that the connection file has for them, where it has one on TCP and is in order.

    Where it is not, or the port is taken, whoever reads it in earnest will say so.

    Args:
        arguments: the command line, with `-f` and the connection file.
    """
    try:
        with open(arguments[list(arguments).index("-f") + 1], encoding="utf-8") as file:
            info = json.load(file)
        ip, port = str(info["ip"]), int(info["hb_port"])
        if info.get("transport", "tcp") != "tcp" or not port or info.get("curve_secretkey"):
            return
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.blocky = False
    socket = context.socket(zmq.ROUTER)
    socket.linger = 0
    socket.sndhwm = socket.rcvhwm = 0
    socket.router_handover = True
    try:
        socket.bind(f"tcp://{ip}:{port}")
    except zmq.ZMQError:
        socket.close()
        return
    _begun.append(FirstHeartbeats(socket, port))


def take_over(port: int) -> zmq.Socket[bytes] | None:
    """Return the socket on which heartbeats have been answered at a port; None where that was not so."""
    return _begun.pop().hand_over() if _begun and _begun[-1].port == port else None
