"""A link with delay: passes TCP connections on and holds every byte for a while, in both directions.

    python -m tests.benchmarks.delay TARGET_PORT MILLISECONDS    (prints the port that it listens on)

The bandwidth is whatever the machine gives: large reads, one queue of (when due, bytes) for each direction, nothing
done per byte. It is a process of its own, so that it takes no time from the programs that are measured.

What it does not imitate: a TCP connection is made at once (one round trip less than over a real link), and there is no
slow start, because the two TCP connections on either side of it have no delay of their own.
"""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import threading
import time
from collections import deque

READ = 512 * 1024
"""Bytes to take at once."""

MOST = 128 << 20
"""Bytes to hold in one direction: 5 GB/s at 25 ms. A reader that does not read must not make us grow for ever."""


class Direction:
    """One direction of one connection.

    Args:
        source: where bytes come from.
        target: where they go.
        delay: seconds to hold them.
    """

    def __init__(self, source: socket.socket, target: socket.socket, delay: float) -> None:
        self.source = source
        self.target = target
        self.blocked = False
        """Whether the target takes nothing at the moment."""
        self.ended = False
        """Whether the end was passed on."""
        self._delay = delay
        self._queue: deque[tuple[float, memoryview]] = deque()
        self._size = 0
        self._over = False

    @property
    def hungry(self) -> bool:
        """Whether more can be taken from the source."""
        return not self._over and self._size < MOST

    @property
    def due(self) -> float | None:
        """When the next bytes are to go on."""
        return self._queue[0][0] if self._queue else None

    def take(self) -> None:
        """Take what has come. Raises OSError when the connection broke."""
        data = self.source.recv(READ)
        self._over = not data
        self._size += len(data)
        self._queue.append((time.monotonic() + self._delay, memoryview(data)))

    def give(self, now: float) -> None:
        """Pass on what is due. Raises OSError when the connection broke."""
        self.blocked = False
        while self._queue and self._queue[0][0] <= now:
            at, data = self._queue[0]
            if not data:
                self.target.shutdown(socket.SHUT_WR)
                self.ended = True
                self._queue.clear()
                return
            try:
                sent = self.target.send(data)
            except BlockingIOError:
                self.blocked = True
                return
            self._size -= sent
            if sent == len(data):
                self._queue.popleft()
            else:
                self._queue[0] = (at, data[sent:])


def serve(listener: socket.socket, port: int, delay: float) -> None:
    """Pass connections on to a port of this machine, for ever."""
    pairs: list[tuple[Direction, Direction]] = []
    while True:
        directions = [direction for pair in pairs for direction in pair]
        due = [d.due for d in directions if d.due is not None and not d.blocked]
        # `select` and not `poll`: its timeout is not rounded to milliseconds.
        readable, writable, _ = select.select(
            [listener, *(d.source for d in directions if d.hungry)],
            [d.target for d in directions if d.blocked],
            [],
            max(0.0, min(due) - time.monotonic()) if due else None,
        )
        if listener in readable:
            pairs.append(_accept(listener, port, delay))
        ready = {sock.fileno() for sock in readable}
        free = {sock.fileno() for sock in writable}
        for pair in list(pairs):
            try:
                for direction in pair:
                    if direction.source.fileno() in ready:
                        direction.take()
                    if not direction.blocked or direction.target.fileno() in free:
                        direction.give(time.monotonic())
                alive = not all(direction.ended for direction in pair)
            except OSError:
                alive = False  # one side broke off: so does the other
            if not alive:
                pairs.remove(pair)
                for direction in pair:
                    direction.source.close()


def _accept(listener: socket.socket, port: int, delay: float) -> tuple[Direction, Direction]:
    near, _ = listener.accept()
    far = socket.create_connection(("127.0.0.1", port))
    for sock in (near, far):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
    return Direction(near, far, delay), Direction(far, near, delay)


class Link:
    """The process, from outside.

    Args:
        port: the port of this machine to which connections are passed on.
        delay: seconds each way.

    Attributes:
        port: the port to connect to.
        process: the process.
    """

    def __init__(self, port: int, delay: float) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(port), str(delay * 1000)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def capacity(delay: float, size: int = 1 << 28) -> tuple[float, float]:
    """Measure the link alone: return its throughput (bytes a second) and its round trip (seconds)."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        link = Link(server.getsockname()[1], delay)
        try:
            with socket.create_connection(("127.0.0.1", link.port)) as near:
                far, _ = server.accept()
                with far:
                    near.settimeout(60)
                    far.settimeout(60)
                    return _throughput(near, far, size), _round_trip(near, far)
        finally:
            link.close()


def _throughput(near: socket.socket, far: socket.socket, size: int) -> float:
    chunk = bytes(1 << 20)

    def fill() -> None:
        for _ in range(size // len(chunk)):
            near.sendall(chunk)

    sender = threading.Thread(target=fill, daemon=True)
    buffer = bytearray(1 << 20)
    began = time.monotonic()
    sender.start()
    left = size // len(chunk) * len(chunk)
    while left:
        left -= far.recv_into(buffer)
    return size / (time.monotonic() - began)


def _round_trip(near: socket.socket, far: socket.socket) -> float:
    times = []
    for _ in range(5):
        began = time.monotonic()
        near.sendall(b"x")
        far.sendall(far.recv(1))
        near.recv(1)
        times.append(time.monotonic() - began)
    return min(times)


def main() -> None:
    """Serve until killed."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        print(listener.getsockname()[1], flush=True)
        serve(listener, int(sys.argv[1]), float(sys.argv[2]) / 1000)


if __name__ == "__main__":
    main()
