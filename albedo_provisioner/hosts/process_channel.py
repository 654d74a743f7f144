"""A channel over a child process of ours: three pipes on the I/O loop, and the process's end.

Both the local transport and the one by the `ssh` program stand on it; they differ in what they start, and in what
the end of it means.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import child
from .transport import Buffer, ChannelReceiver, Exit

log = logging.getLogger(__name__)

Pipes = tuple[int, int, int]

# One read: as much as a pipe of PIPE_SIZE can hold at once, measured to be the fastest of 64 KiB .. 1 MiB.
READ_SIZE = 256 * 1024

# Linux gives pipes 64 KiB; a larger one halves the switches between the two processes on bulk output.
PIPE_SIZE = 1024 * 1024

# Writing is paused above the first and resumed below the second: bytes not yet taken by the pipe.
HIGH_WATER = 1024 * 1024
LOW_WATER = 256 * 1024

# The kernel's limit on the buffers of one writev (IOV_MAX).
MAX_BUFFERS = 1024


class ProcessChannel:
    """One command run by a child process.

    As with ssh in process, the end of the process ends its input at once, and the channel once its output has been
    read to the end. Nothing is delivered before `start`.

    Args:
        process: the child; nobody else may wait for it.
        receiver: who is told.
        pipes: our non-blocking ends of its stdin, stdout and stderr; closed with the channel.

    Attributes:
        reaped: done when the process has ended; that may be a moment after `closed`.
    """

    def __init__(self, process: subprocess.Popen[bytes], receiver: ChannelReceiver, pipes: Pipes) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._receiver = receiver
        stdin, stdout, stderr = pipes
        self._stdin: int | None = stdin
        self._readers = {stdout: receiver.data_received, stderr: receiver.stderr_received}
        self._backlog: deque[memoryview] = deque()
        self._backlog_size = 0
        self._writing_paused = False
        self._reading_paused = True
        self._eof_wanted = False
        self._exit: Exit | None = None
        self._ended = False
        self.reaped: asyncio.Future[None] = self._loop.create_future()
        child.watch_exit(process, self._process_ended)

    def start(self) -> None:
        """Begin to deliver output, one turn of the loop from now: not from within the caller's call."""
        self._reading_paused = False
        self._loop.call_soon(self._update_readers)

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    @property
    def carried_at(self) -> None:
        """Not known here: how a program gets its bytes is its own affair."""
        return None

    @property
    def scarce(self) -> bool:
        """A command's process is a connection of its own; see `Channel.scarce`."""
        return False

    # -- writing

    def write(self, *buffers: Buffer) -> None:
        """Send bytes to standard input; see `Channel.write`."""
        if self._stdin is None or self._eof_wanted:
            return
        sent = 0
        if not self._backlog:
            try:
                sent = os.writev(self._stdin, buffers[:MAX_BUFFERS])
            except BlockingIOError:
                pass
            except OSError:
                # The command closed its input; how it ended is told by `closed`.
                self._close_stdin()
                return
            if sent == sum(map(len, buffers)):
                return
            self._loop.add_writer(self._stdin, self._writable)
        for buffer in buffers:
            if sent >= len(buffer):
                sent -= len(buffer)
                continue
            # What waits must not change under us when the caller uses its bytearray again.
            kept = memoryview(buffer if isinstance(buffer, bytes) else bytes(buffer))[sent:]
            sent = 0
            self._backlog.append(kept)
            self._backlog_size += len(kept)
        if self._backlog_size > HIGH_WATER and not self._writing_paused:
            self._writing_paused = True
            self._loop.call_soon(self._tell_paused)

    def write_eof(self) -> None:
        """End standard input, after all that was written."""
        self._eof_wanted = True
        if not self._backlog:
            self._close_stdin()

    def _writable(self) -> None:
        assert self._stdin is not None
        try:
            sent = os.writev(self._stdin, [*self._backlog][:MAX_BUFFERS])
        except BlockingIOError:
            return
        except OSError:
            self._close_stdin()
            return
        self._backlog_size -= sent
        while sent:
            first = self._backlog.popleft()
            if len(first) > sent:
                self._backlog.appendleft(first[sent:])
            sent = max(sent - len(first), 0)
        if self._writing_paused and self._backlog_size <= LOW_WATER:
            self._writing_paused = False
            self._receiver.resume_writing()
        if not self._backlog and self._stdin is not None:
            self._loop.remove_writer(self._stdin)
            if self._eof_wanted:
                self._close_stdin()

    def _tell_paused(self) -> None:
        if not self._ended and self._writing_paused:
            self._receiver.pause_writing()

    def _close_stdin(self) -> None:
        if self._stdin is None:
            return
        self._loop.remove_writer(self._stdin)
        os.close(self._stdin)
        self._stdin = None
        self._backlog.clear()
        self._backlog_size = 0

    # -- reading

    def retire(self) -> None:
        """A command's process is a connection of its own, or the user's master decides; see `Channel.retire`."""

    def pause_reading(self) -> None:
        """Stop taking output; the command blocks once its pipe is full."""
        self._reading_paused = True
        self._update_readers()

    def resume_reading(self) -> None:
        """Go on taking output."""
        self._reading_paused = False
        self._update_readers()

    def _update_readers(self) -> None:
        for descriptor in self._readers:
            if self._reading_paused:
                self._loop.remove_reader(descriptor)
            else:
                self._loop.add_reader(descriptor, self._readable, descriptor)

    def _readable(self, descriptor: int) -> None:
        if self._reading_paused or descriptor not in self._readers:
            return  # paused or closed by a callback earlier in this turn of the loop
        try:
            data = os.read(descriptor, READ_SIZE)
        except BlockingIOError:
            return
        if data:
            try:
                self._readers[descriptor](data)
            except Exception as error:
                log.exception("the receiver of a channel failed")
                self._finish(Exit(None, error=error))
            return
        self._close_reader(descriptor)
        self._end_if_complete()

    def _close_reader(self, descriptor: int) -> None:
        del self._readers[descriptor]
        self._loop.remove_reader(descriptor)
        os.close(descriptor)

    # -- ending

    def close(self) -> None:
        """End the channel now: close its pipes and end its process, and no other one."""
        self._finish(self._exit or Exit(None))

    def kill(self) -> None:
        """Close: a process has no way to tell more to what it has started, or to another host."""
        self.close()

    def _finish(self, how: Exit) -> None:
        if self._ended:
            return
        self._ended = True
        self._end_process()
        self._loop.call_soon(self._receiver.closed, how)

    def _end_process(self) -> None:
        """Close the pipes and end the process, and no other one."""
        self._release()
        child.end(self._process)

    def suspect(self) -> None:
        """Close; a child process has no connection that others share."""
        self.close()

    def _explain(self, returncode: int) -> Exit:
        """Return what the end of the process says about the command."""
        if returncode < 0:
            return Exit(None, signal=child.signal_name(-returncode))
        return Exit(returncode)

    def _process_ended(self, returncode: int) -> None:
        self.reaped.set_result(None)
        self._exit = self._explain(returncode)
        # Whoever else holds the other end (a keeper that was handed it) learns that nobody writes any more.
        self._close_stdin()
        self._end_if_complete()

    def _end_if_complete(self) -> None:
        if self._exit is None or self._readers or self._ended:
            return  # a channel that was not started still has its readers
        self._ended = True
        self._release()
        self._receiver.closed(self._exit)

    def _release(self) -> None:
        self._close_stdin()
        for descriptor in list(self._readers):
            self._close_reader(descriptor)


def start_process(
    argv: Sequence[str], *, directory: Path | None = None, environ: Mapping[str, str] | None = None
) -> tuple[subprocess.Popen[bytes], Pipes]:
    """Start a child in a session of its own, so that a Ctrl-C in the terminal does not reach it.

    Args:
        argv: the command.
        directory: where it runs; None for where we are.
        environ: its environment; None for ours.

    Returns:
        The child, and our non-blocking ends of its stdin, stdout and stderr.

    Raises:
        OSError: it could not be started.
    """
    stdin_read, stdin_write = os.pipe()
    stdout_read, stdout_write = os.pipe()
    stderr_read, stderr_write = os.pipe()
    ours = (stdin_write, stdout_read, stderr_read)
    try:
        for descriptor in ours:
            os.set_blocking(descriptor, False)
        for descriptor in (stdin_write, stdout_read):
            _enlarge(descriptor)
        process = subprocess.Popen(
            argv,
            stdin=stdin_read,
            stdout=stdout_write,
            stderr=stderr_write,
            cwd=directory,
            env=environ,
            start_new_session=True,
        )
    except OSError:
        for descriptor in ours:
            os.close(descriptor)
        raise
    finally:
        for descriptor in (stdin_read, stdout_write, stderr_write):
            os.close(descriptor)
    return process, ours


def _enlarge(descriptor: int) -> None:
    """Enlarge a pipe where the system can; it works with the usual size as well."""
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
