"""One exec channel: a command of this account, its pipes joined to an SSH channel as OpenSSH's server does it.

What OpenSSH's server does, checked against 9.2 by `tests/e2e/test_hosts_fixtures.py`, and what is done here:

- standard input, output and error are three plain pipes; the command starts its own session, in the home directory,
  as `$SHELL -c command`;
- when the client closes the channel or the connection breaks, the pipes are closed and nobody is signalled;
- when the command ends, its standard input is closed, and the channel lives on until standard output *and* standard
  error are at their end, which is later when another process holds them.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import asyncssh

# Beyond this much input that the command has not taken, the client is slowed down through the channel's window.
_INPUT_HIGH = 256 * 1024
_READ = 64 * 1024


@dataclass(frozen=True)
class Surroundings:
    """What a command finds around it.

    Attributes:
        shell: the account's shell, an absolute path.
        home: the home directory, which is also the working directory.
        environ: the whole environment.
        delay: seconds between the request and the start.
        refuse: refuse the request.
    """

    shell: str
    home: Path
    environ: Mapping[str, str]
    delay: float = 0.0
    refuse: bool = False


class CommandSession(asyncssh.SSHServerSession[bytes]):
    """Runs one command and moves bytes between it and its channel.

    Args:
        surroundings: called when the client asks for a command, with the environment variables it sent.
        ended: called once when the command is over and the channel too.

    Attributes:
        command: the text the client asked to run; "" for a login shell.
        pid: the command's process id once it runs.
        running: it has not been seen to end.
    """

    def __init__(
        self,
        surroundings: Callable[[Mapping[str, str]], Surroundings],
        ended: Callable[[CommandSession], None],
    ) -> None:
        self.command = ""
        self.pid: int | None = None
        self.running = False
        self._surroundings = surroundings
        self._ended = ended
        self._chan: asyncssh.SSHServerChannel[bytes] | None = None
        self._task: asyncio.Task[None] | None = None
        self._stdin: _Input | None = None
        self._outputs: list[_Output] = []
        self._lost = False
        self._paused = False
        self._status: int | None = None

    # What asyncssh calls

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        """Take the channel."""
        self._chan = chan

    def shell_requested(self) -> bool:
        """Run a login shell."""
        return self._begin(None)

    def exec_requested(self, command: str) -> bool:
        """Run `command` with the account's shell."""
        return self._begin(command)

    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Pass input on to the command."""
        if self._stdin is not None:
            self._stdin.write(data)

    def eof_received(self) -> bool:
        """Close the command's input after what is still to be written; output goes on."""
        if self._stdin is not None:
            self._stdin.end()
        return True

    def pause_writing(self) -> None:
        """Leave the command's output in its pipes while the client takes none."""
        self._paused = True
        for output in self._outputs:
            output.pause()

    def resume_writing(self) -> None:
        """Go on reading the command's output."""
        self._paused = False
        for output in self._outputs:
            output.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the pipes: after the input that arrived if the client closed the channel, else at once."""
        self._lost = True
        if self._stdin is not None:
            if exc is None:
                self._stdin.end()
            else:
                self._stdin.close()
        for output in self._outputs:
            output.close()
        if not self.running:
            if self._task is not None:
                self._task.cancel()
            self._ended(self)

    # The command

    def _begin(self, command: str | None) -> bool:
        assert self._chan is not None
        around = self._surroundings(self._chan.get_environment())
        if around.refuse:
            return False
        name = os.path.basename(around.shell)
        argv = ["-" + name] if command is None else [name, "-c", command]
        self.command = command or ""
        # The pipes exist from now on, so that input which arrives before the command runs has a place.
        ends = [os.pipe(), os.pipe(), os.pipe()]
        theirs = [ends[0][0], ends[1][1], ends[2][1]]
        self._stdin = _Input(ends[0][1], self._chan)
        self._outputs = [
            _Output(ends[1][0], self._write, self._output_ended),
            _Output(ends[2][0], self._write_error, self._output_ended),
        ]
        self._task = asyncio.get_running_loop().create_task(self._run(argv, around, theirs))
        return True

    async def _run(self, argv: list[str], around: Surroundings, theirs: list[int]) -> None:
        try:
            await asyncio.sleep(around.delay)
            process = await asyncio.create_subprocess_exec(
                *argv,
                executable=around.shell,
                stdin=theirs[0],
                stdout=theirs[1],
                stderr=theirs[2],
                cwd=around.home,
                env=dict(around.environ),
                start_new_session=True,
            )
            self.pid, self.running = process.pid, True
        except OSError as error:
            self._write_error(f"{around.shell}: {error}\n".encode())
            self._report(127)
            return
        finally:
            for fd in theirs:
                os.close(fd)
        if not self._lost:
            for output in self._outputs:
                output.start(paused=self._paused)
        status = await process.wait()
        self.running = False
        if self._stdin is not None:
            self._stdin.close()  # nobody is there to read it; a process that was handed this pipe learns it so
        if self._lost:
            self._ended(self)
            return
        self._status = status
        self._output_ended()

    def _output_ended(self) -> None:
        if self._status is not None and all(output.ended for output in self._outputs):
            self._report(self._status)

    def _report(self, status: int) -> None:
        if self._chan is None or self._chan.is_closing():
            return
        if status >= 0:
            self._chan.exit(status)
        else:
            self._chan.exit_with_signal(signal.Signals(-status).name.removeprefix("SIG"))

    def _write(self, data: bytes) -> bool:
        return self._send(data, None)

    def _write_error(self, data: bytes) -> bool:
        return self._send(data, asyncssh.EXTENDED_DATA_STDERR)

    def _send(self, data: bytes, datatype: int | None) -> bool:
        assert self._chan is not None
        try:
            self._chan.write(data, datatype)
        except BrokenPipeError:
            return False  # the client has closed the channel and `connection_lost` is on its way
        return True


class _Input:
    """The writing end of a command's standard input."""

    def __init__(self, fd: int, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._chan = chan
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[memoryview] = deque()
        self._size = 0
        self._ending = False
        self._slowed = False

    def write(self, data: bytes) -> None:
        """Write, now or when the pipe has room."""
        if self._fd < 0 or self._ending:
            return
        self._waiting.append(memoryview(data))
        self._size += len(data)
        if len(self._waiting) == 1:
            self._flush()
        if self._size > _INPUT_HIGH and not self._slowed:
            self._slowed = True
            self._chan.pause_reading()

    def end(self) -> None:
        """Close after what is still to be written."""
        self._ending = True
        if not self._waiting:
            self.close()

    def close(self) -> None:
        """Close now."""
        if self._fd < 0:
            return
        self._loop.remove_writer(self._fd)
        os.close(self._fd)
        self._fd = -1
        self._waiting.clear()
        self._size = 0
        self._relax()

    def _relax(self) -> None:
        if self._slowed and self._size <= _INPUT_HIGH // 4:
            self._slowed = False
            self._chan.resume_reading()

    def _flush(self) -> None:
        while self._waiting:
            data = self._waiting[0]
            try:
                count = os.write(self._fd, data)
            except BlockingIOError:
                self._loop.add_writer(self._fd, self._flush)
                self._relax()
                return
            except OSError:
                self.close()  # nobody reads any more (EPIPE)
                return
            self._size -= count
            if count == len(data):
                self._waiting.popleft()
            else:
                self._waiting[0] = data[count:]
        self._loop.remove_writer(self._fd)
        self._relax()
        # What had been held back may have come in just now, and the end after it.
        if self._ending and not self._waiting:
            self.close()


class _Output:
    """The reading end of a command's standard output or error."""

    def __init__(self, fd: int, write: Callable[[bytes], bool], at_end: Callable[[], None]) -> None:
        os.set_blocking(fd, False)
        self.ended = False
        self._fd = fd
        self._write = write
        self._at_end = at_end
        self._loop = asyncio.get_running_loop()
        self._started = False

    def start(self, *, paused: bool) -> None:
        """Begin to read."""
        self._started = True
        if not paused:
            self.resume()

    def pause(self) -> None:
        """Stop reading."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)

    def resume(self) -> None:
        """Go on reading."""
        if self._fd >= 0 and self._started:
            self._loop.add_reader(self._fd, self._read)

    def close(self) -> None:
        """Close without reading on."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
            self.ended = True

    def _read(self) -> None:
        try:
            data = os.read(self._fd, _READ)
        except BlockingIOError:
            return
        if not data or not self._write(data):
            self.close()
            self._at_end()
