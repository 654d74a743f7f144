"""Commands on a host over ssh, in process: the transport, which shares few connections among many channels."""

from __future__ import annotations

import asyncssh

from .ssh_channel import MAX_CHANNELS, SSHChannel, SSHConnection
from .ssh_connect import CONNECT_TIMEOUT
from .ssh_errors import translate
from .transport import ChannelReceiver

# A connection without channels is closed after this many seconds.
IDLE_TIMEOUT = 60.0


class SSHTransport:
    """Runs commands on one host over ssh; see `Transport`.

    Any number of callers may open channels at once: they join a connect under way, and each connection carries at
    most `MAX_CHANNELS` of them (fewer where the server allows fewer). A broken connection is forgotten; the next
    `open` makes a new one.

    Args:
        host: `[user@]host`, the host being a name, an address or an alias of the ssh config.
        connect_timeout: seconds for connect and login together.
        idle_timeout: seconds after which a connection without channels is closed.
    """

    def __init__(
        self, host: str, *, connect_timeout: float = CONNECT_TIMEOUT, idle_timeout: float = IDLE_TIMEOUT
    ) -> None:
        self._host = host
        self._connect_timeout = connect_timeout
        self._idle_timeout = idle_timeout
        self._limit = MAX_CHANNELS
        self._connections: list[SSHConnection] = []

    @property
    def host(self) -> str:
        """The host as the user spells it."""
        return self._host

    @property
    def connections(self) -> tuple[SSHConnection, ...]:
        """The connections that new channels may use, those being made included."""
        return tuple(self._connections)

    async def open(self, command: str, receiver: ChannelReceiver) -> SSHChannel:
        """Run `command`; see `Transport.open`.

        Raises:
            UnreachableError: the host cannot be reached, or runs no commands for us.
            SignInError: it does not let us in, or its host key is not trusted.
            ConfigError: the ssh config cannot be read.
        """
        silent: list[SSHConnection] = []
        while True:
            connection = self._choose()
            proven = connection.proven
            try:
                channel = await connection.open(command, receiver)
                break
            except TimeoutError as error:
                connection.retire()
                if not proven:
                    connection.break_off("it did not open a channel in time")
                    raise translate(error, connection.attempt) from error
                silent.append(connection)
            except (asyncssh.Error, OSError) as error:
                if connection.alive and getattr(error, "code", None) == asyncssh.OPEN_REQUEST_SESSION_FAILED:
                    raise translate(error, connection.attempt) from error
                if connection.alive and connection.live_channels:
                    # The server allows no more sessions on one connection (MaxSessions); others count on it from now.
                    self._limit = min(self._limit, connection.live_channels)
                elif proven:
                    connection.retire()
                else:
                    raise translate(error, connection.attempt) from error
        for dead in silent:
            if dead.life.carries:
                continue  # it is slow, and what waits to be carried is before us
            # The host answers on another connection and not on this one: who else uses it should know at once.
            dead.break_off(f"{self._host} does not answer on this connection any more")
        return channel

    async def close(self) -> None:
        """Close all connections to the host, and the channels on them."""
        for connection in list(self._connections):
            connection.close()

    def _choose(self) -> SSHConnection:
        """Return the connection to use: the first with room, made or being made, else a new one."""
        for connection in self._connections:
            if connection.load < self._limit:
                return connection
        connection = SSHConnection(
            self._host,
            connect_timeout=self._connect_timeout,
            idle_timeout=self._idle_timeout,
            retired=self._connections.remove,
        )
        self._connections.append(connection)
        return connection
