"""The ProxyCommand of the ssh config: a program whose standard input and output are the connection.

asyncssh's own way starts it without a shell and mixes what it says on standard error into the connection.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess

from . import child
from .ssh_errors import Attempt, telling_line

log = logging.getLogger(__name__)

# How much of its standard error is kept for the message in case it fails: bytes.
STDERR_LIMIT = 4096

# How long a command that failed may take to say why: seconds.
LAST_WORDS_TIMEOUT = 0.5


class ProxyCommand:
    """A ProxyCommand: run by the user's shell as ssh does, its stdin and stdout being one socket."""

    def __init__(self, command: str, attempt: Attempt) -> None:
        self._command = command
        self._attempt = attempt
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr = bytearray()
        self._said_all = asyncio.Event()
        self._ended: asyncio.Future[int] | None = None

    def start(self) -> socket.socket:
        """Start the command; return our end of its socket."""
        ours, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                [os.environ.get("SHELL") or "/bin/sh", "-c", f"exec {self._command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        assert self._process.stderr is not None
        os.set_blocking(self._process.stderr.fileno(), False)
        asyncio.get_running_loop().add_reader(self._process.stderr.fileno(), self._read_stderr)
        self._ended = asyncio.get_running_loop().create_future()
        child.watch_exit(self._process, self._ended.set_result)
        return ours

    async def collect_words(self, heard: bool) -> None:
        """Wait a moment for what the command has to say about its end, and note its last line for the message.

        Args:
            heard: whether an ssh server was heard through it.
        """
        if self._process is None or self._ended is None:
            return
        try:
            async with asyncio.timeout(LAST_WORDS_TIMEOUT):
                await self._said_all.wait()
                await asyncio.wait([self._ended])
        except TimeoutError:
            pass
        attempt = self._attempt
        attempt.proxy, attempt.mute = telling_line(self._stderr.decode(errors="replace")), not heard
        if self._ended.done():
            code = self._ended.result()
            attempt.proxy_end = f"signal {child.signal_name(-code)}" if code < 0 else f"exit status {code}"

    def close(self) -> None:
        """End the command."""
        if self._process is None:
            return
        self._close_stderr()
        child.end(self._process)

    async def wait_closed(self) -> None:
        """Part of what asyncssh calls on a tunnel; there is nothing to wait for."""

    def _read_stderr(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        data = os.read(self._process.stderr.fileno(), 65536)
        if not data:
            self._close_stderr()
            return
        log.debug("ProxyCommand of %s: %s", self._attempt.host, data.decode(errors="replace").strip())
        self._stderr += data
        del self._stderr[:-STDERR_LIMIT]

    def _close_stderr(self) -> None:
        self._said_all.set()
        if self._process is not None and self._process.stderr is not None and not self._process.stderr.closed:
            asyncio.get_running_loop().remove_reader(self._process.stderr.fileno())
            self._process.stderr.close()
