"""One ssh connection, and the commands that run on it.

asyncssh's callback sessions are used, not its streams: bytes go from its packet to the receiver without a copy.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

import asyncssh

from .ssh_connect import connect
from .ssh_errors import Attempt
from .ssh_life import SignsOfLife
from .transport import Buffer, ChannelReceiver, Exit, join

log = logging.getLogger(__name__)

# OpenSSH's server allows 10 sessions on a connection (MaxSessions); two are left for slots that are being freed.
MAX_CHANNELS = 8

# What the host may send ahead, in bytes. The window is topped up when half of it is used, so full speed needs
# twice speed times round trip: 300 MB/s over 50 ms.
WINDOW = 32 * 1024 * 1024

# The largest packet the host may send, in bytes. OpenSSH sends mostly 32 KiB whatever is allowed; over 1 GB, 64 KiB
# was the fastest, and at 256 KiB the server itself fell to a third.
MAX_PACKET = 64 * 1024

# Writing is paused above the first and resumed below the second: bytes that the host's window has no room for.
HIGH_WATER = 1024 * 1024
LOW_WATER = 256 * 1024

# Buffers of one `write` up to this total go as one packet, in bytes; larger ones are not worth a copy.
JOIN_LIMIT = 32 * 1024

# How long a connection that was there already may take to open a channel before a new one is tried, in seconds. It
# may be dead without anybody knowing: the machine slept, the network changed.
REUSE_TIMEOUT = 3.0


class SSHConnection:
    """A connection to a host, being made from the start; closed when it has had no channels for a while.

    Args:
        host: `[user@]host` as the user spells it.
        connect_timeout: seconds for connect and login together, and for the first channel.
        idle_timeout: seconds without channels after which it is closed.
        retired: called once, with this connection, when nothing new may be opened on it any more.

    Attributes:
        attempt: what was learned while connecting, for messages.
        life: when it last carried anything.
        proven: True once a channel has been opened on it.
    """

    def __init__(
        self,
        host: str,
        *,
        connect_timeout: float,
        idle_timeout: float,
        retired: Callable[[SSHConnection], object],
    ) -> None:
        self.attempt = Attempt(host)
        self.life = SignsOfLife()
        self.proven = False
        self._connect_timeout = connect_timeout
        self._idle_timeout = idle_timeout
        self._retired: Callable[[SSHConnection], object] | None = retired
        self._loop = asyncio.get_running_loop()
        self._connection: asyncssh.SSHClientConnection | None = None
        self._error: Exception | None = None
        self._lost_early: Exception | None = None
        self._channels: set[SSHChannel] = set()
        self._idle: asyncio.TimerHandle | None = None
        self._connecting = self._loop.create_task(self._connect())
        # Whoever waits for it gets the error; when all of them were cancelled, nobody is missing it.
        self._connecting.add_done_callback(lambda task: task.cancelled() or task.exception())

    @property
    def load(self) -> int:
        """The number of channels on it, those being opened or closed included."""
        return len(self._channels)

    @property
    def live_channels(self) -> int:
        """The number of channels that the host has opened and not yet closed."""
        return sum(channel.is_live for channel in self._channels)

    @property
    def alive(self) -> bool:
        """True when it has been made and, as far as is known, not ended."""
        return self._connection is not None and self._error is None

    @property
    def error(self) -> Exception | None:
        """What ended it, None while it lives."""
        return self._error

    async def open(self, command: str, receiver: ChannelReceiver) -> SSHChannel:
        """Start a command, once the connection has been made.

        Raises:
            AlbedoError: the connection could not be made; the subclass says why.
            asyncssh.Error: the host refused the channel or the command, or the connection broke.
            TimeoutError: the host did not answer in time.
        """
        channel = SSHChannel(self, receiver)
        # It counts from now on, so that those who come while this one waits do not overfill the connection.
        self._channels.add(channel)
        self._stop_idling()
        try:
            await self._wait_connected()
            async with asyncio.timeout(REUSE_TIMEOUT if self.proven else self._connect_timeout):
                await self._open_session(command, channel)
        except BaseException:
            channel.abandon()
            raise
        self.proven = True
        channel.start()
        return channel

    async def _wait_connected(self) -> None:
        # Not `shield`: its CancelledError could be the connecting task's as well as our own.
        await asyncio.wait([self._connecting])
        if self._connecting.cancelled():
            raise ConnectionError(str(self._error))
        self._connecting.result()

    async def _open_session(self, command: str, channel: SSHChannel) -> None:
        assert self._connection is not None
        opening = self._loop.create_task(
            self._connection.create_session(
                lambda: channel,
                command,
                encoding=None,
                window=WINDOW,
                max_pktsize=MAX_PACKET,
                request_pty=False,
                x11_forwarding=False,
            )
        )
        # Not cancelled with us: asyncssh would forget a channel that the host opens after all, and its place on the
        # connection would be lost. `abandon` closes it when it comes.
        opening.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(opening)

    def retire(self) -> None:
        """Open nothing new on it; it is closed once its channels have ended."""
        if self._retired is not None:
            self._retired(self)
            self._retired = None
        if not self._channels:
            self.close()

    def break_off(self, reason: str) -> None:
        """Give it up: it does not answer. All channels on it learn of it at once."""
        self._end(ConnectionError(reason))
        if self._connection is None:
            self._connecting.cancel()
        else:
            self._connection.abort()

    def close(self) -> None:
        """Close it in order, and the channels on it."""
        if self._error is None:
            self._end(ConnectionError("the connection was closed on this side"))
            if self._connection is None:
                self._connecting.cancel()
            else:
                self._connection.close()

    def remove(self, channel: SSHChannel) -> None:
        """Take note that a channel has left the connection."""
        self._channels.discard(channel)
        if not self._channels and self._error is None:
            if self._retired is None:
                self.close()
            else:
                self._stop_idling()
                self._idle = self._loop.call_later(self._idle_timeout, self.close)

    async def _connect(self) -> None:
        try:
            self._connection = await connect(self.attempt, self.life, timeout=self._connect_timeout, lost=self._lost)
        except BaseException as error:
            self._end(error if isinstance(error, Exception) else ConnectionError("connecting was given up"))
            raise
        if self._lost_early is not None:
            self._end(self._lost_early)

    def _lost(self, error: Exception | None) -> None:
        error = error or ConnectionError(f"{self.attempt.host} closed the connection")
        if self._connection is None:
            # Told for a failed connect as well, and that raises an error of its own, which knows more.
            self._lost_early = error
        else:
            self._end(error)

    def _end(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
        self._stop_idling()
        if self._retired is not None:
            self._retired(self)
            self._retired = None

    def _stop_idling(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None


class SSHChannel(asyncssh.SSHClientSession[bytes]):
    """One command on a host; see `Channel`. (It is asyncssh's session as well: it calls the public methods below
    the first dividing line.)
    """

    def __init__(self, connection: SSHConnection, receiver: ChannelReceiver) -> None:
        self._connection = connection
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._channel: asyncssh.SSHClientChannel[bytes] | None = None
        self._status: int | None = None
        self._signal: str | None = None
        self._failed: Exception | None = None
        self._started = False
        self._ended = False
        self._abandoned = False
        self._left = False
        self._pause_wanted = False
        self._pause_told = False

    @property
    def connection(self) -> SSHConnection:
        """The connection it runs on."""
        return self._connection

    @property
    def carried_at(self) -> float | None:
        """When the connection last carried more than small talk; see `Channel.carried_at`."""
        return self._connection.life.carried_at

    @property
    def scarce(self) -> bool:
        """Nobody is asked for another connection; see `Channel.scarce`."""
        return False

    @property
    def is_live(self) -> bool:
        """True when the host has opened it and not yet closed it."""
        return self._channel is not None and not self._left

    def write(self, *buffers: Buffer) -> None:
        """Send bytes to standard input; see `Channel.write`."""
        if self._ended or self._channel is None:
            return
        try:
            if len(buffers) == 1 or sum(map(len, buffers)) <= JOIN_LIMIT:
                self._channel.write(join(buffers))
            else:
                for buffer in buffers:
                    # asyncssh copies it into its own buffer at once, whatever kind it is.
                    self._channel.write(buffer)
        except OSError:
            # Closed by the host, or EOF has been written. How it ended is told by `closed`.
            return

    def write_eof(self) -> None:
        """End standard input, after all that was written."""
        if not self._ended and self._channel is not None:
            self._channel.write_eof()

    def pause_reading(self) -> None:
        """Stop taking output; the host is slowed down once its window is full."""
        if self._channel is not None and not self._left:
            self._channel.pause_reading()
            self._started = False

    def resume_reading(self) -> None:
        """Go on taking output."""
        if not self._started:
            self.start()

    def close(self) -> None:
        """End the channel now; `closed` follows, whether the host answers or not."""
        self._finish(Exit(self._status, self._signal))

    def kill(self) -> None:
        """Close, and have the server signal the command's processes (RFC 4254, 6.9; OpenSSH since 7.9)."""
        if self._channel is not None and not self._left and not self._ended:
            with contextlib.suppress(OSError):  # it is closed already
                self._channel.send_signal("TERM")
        self.close()

    def retire(self) -> None:
        """Open nothing new on the connection; see `Channel.retire`."""
        self._connection.retire()

    def suspect(self) -> None:
        """Close, and give up the connection: it does not answer; see `Channel.suspect`."""
        self._connection.break_off(f"{self._connection.attempt.host} does not answer any more")
        self._finish(Exit(self._status, self._signal, self._connection.error))

    def start(self) -> None:
        """Begin to deliver output, one turn of the loop from now: not from within the caller's call."""
        self._started = True
        self._loop.call_soon(self._read_on)

    def abandon(self) -> None:
        """Nobody wants it: close it now, or as soon as the host has opened it."""
        self._ended = self._abandoned = True
        if self._channel is None:
            self._connection.remove(self)
        elif not self._left:
            self._channel.abort()

    def _read_on(self) -> None:
        if self._started and not self._ended and self._channel is not None:
            self._channel.resume_reading()

    def _finish(self, how: Exit) -> None:
        """Tell the receiver the end, one turn from now, and close the channel."""
        if self._ended:
            return
        self._ended = True
        self._loop.call_soon(self._receiver.closed, how)
        if self._channel is not None and not self._left:
            self._channel.abort()

    # -- called by asyncssh

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        """Take the channel that the host has opened; the command has not been asked for yet."""
        self._channel = chan
        chan.set_write_buffer_limits(HIGH_WATER, LOW_WATER)
        # Until `start`: nothing is delivered before the caller of `open` has its channel.
        chan.pause_reading()
        if self._abandoned:
            self._loop.call_soon(chan.abort)

    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Hand output on."""
        if self._ended:
            return
        try:
            if datatype is None:
                self._receiver.data_received(data)
            else:
                self._receiver.stderr_received(data)
        except Exception as error:
            # Left to asyncssh it would end the whole connection, and with it other kernels' channels.
            log.exception("the receiver of a channel to %s failed", self._connection.attempt.host)
            self._finish(Exit(self._status, self._signal, error))

    def eof_received(self) -> bool:
        """Keep our direction open: a command may close its output and go on reading."""
        return True

    def exit_status_received(self, status: int) -> None:
        """Note the exit status."""
        self._status = status

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:
        """Note the signal that ended the command."""
        self._signal = signal

    def pause_writing(self) -> None:
        """Tell the receiver, one turn from now: asyncssh calls this from within `write`."""
        self._pause_wanted = True
        self._loop.call_soon(self._tell_flow)

    def resume_writing(self) -> None:
        """Tell the receiver, one turn from now."""
        self._pause_wanted = False
        self._loop.call_soon(self._tell_flow)

    def _tell_flow(self) -> None:
        if self._ended or self._pause_wanted == self._pause_told:
            return
        self._pause_told = self._pause_wanted
        if self._pause_told:
            self._receiver.pause_writing()
        else:
            self._receiver.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Take the end of the channel, or of the whole connection."""
        self._left = True
        self._connection.remove(self)
        # One turn from now it is known whether the connection itself has ended: asyncssh tells channels first.
        self._loop.call_soon(self._tell_end)

    def _tell_end(self) -> None:
        self._finish(Exit(self._status, self._signal, self._connection.error))
