"""How an embedded host is told to behave, and what it says about itself: the words between it and its owner."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Behaviour:
    """What an embedded host does with those who come; may be changed while it runs.

    Attributes:
        auth_delay: seconds between the client naming itself and the first answer to it.
        refuse_auth: accept no key ("Permission denied").
        exec_delay: seconds between a command's request and its start.
        refuse_exec: refuse to run commands.
        max_sessions: session channels per connection; more are refused, as OpenSSH's `MaxSessions` does. None for
            no limit.
        latency: seconds each byte is kept back, in each direction: a link with a round trip of twice that.
        hold_new: connections are accepted but nothing passes on them, as with a host that hangs. Until `thaw`.
    """

    auth_delay: float = 0.0
    refuse_auth: bool = False
    exec_delay: float = 0.0
    refuse_exec: bool = False
    max_sessions: int | None = 10
    latency: float = 0.0
    hold_new: bool = False


@dataclass(frozen=True)
class Connection:
    """One TCP connection to an embedded host.

    Attributes:
        number: 1 for the first connection there ever was, and so on.
        sessions: session channels open on it now.
        sent: bytes that went out to the client.
        received: bytes that came in.
        frozen: nothing passes at the moment.
    """

    number: int
    sessions: int
    sent: int
    received: int
    frozen: bool


@dataclass(frozen=True)
class Command:
    """One command that runs on an embedded host, or whose channel is still open.

    Attributes:
        pid: its process id; None before it starts.
        command: the text that the client asked for.
        connection: the number of the connection it came by.
        running: False when it ended and something else holds its pipes.
    """

    pid: int | None
    command: str
    connection: int
    running: bool
