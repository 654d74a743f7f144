"""Making one ssh connection: from the host as the user spells it to a signed-in asyncssh connection.

The user's ssh config decides name, port, account, keys, jump hosts and proxy command. What asyncssh leaves out or
does differently from ssh is done here: jump hosts and proxy commands (its own jumps would use its own trust in
host keys, its proxy commands mix standard error into the protocol), the config's final pass and the system's file
(`ssh_options`), host key trust (`ssh_trust`) and keys (`ssh_identity`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any

import asyncssh
from asyncssh.public_key import get_default_public_key_algs

from ..errors import HostError
from .destination import Destination
from .doors import AT_ONCE, Doors, Knock, door_of, pauses
from .host_keys import may_be_trusted
from .jump_loops import JumpLoopError
from .ssh_errors import ASKING, Attempt, JumpHostError, key_text, last_line, proxy_wants_sign_in, translate, turned_away
from .ssh_identity import Identities, load_offers
from .ssh_life import SignsOfLife
from .ssh_options import asks_not, expand, forbids_keys, read_options
from .ssh_proxy import ProxyCommand
from .ssh_shortcuts import Inbound, protocol_for
from .ssh_trust import TrustedKeys, known_hosts_files, read_known_hosts, revoking_lines, trusted_keys
from .way_through import note_untrusted_key

log = logging.getLogger(__name__)

# Connect and login together, in seconds. A login that needs longer than this (slow PAM, slow DNS at the server) is
# rarer than a host behind a firewall that drops packets, where a person waits for it to pass.
CONNECT_TIMEOUT = 15.0

# A connection that has been silent for KEEPALIVE_INTERVAL seconds is asked whether it lives, and is given up after
# KEEPALIVE_COUNT questions without an answer: a dead one is noticed within 12 s, within 20 s where it carried a lot
# (`SignsOfLife.keep`). (Links have pings of their own.)
KEEPALIVE_INTERVAL = 4
KEEPALIVE_COUNT = 2

# RFC 8305: how long one address is tried before the next is tried beside it, in seconds.
HAPPY_EYEBALLS_DELAY = 0.25

# With hardware AES (any host of the last ten years) GCM is several times as fast as asyncssh's first choice.
CIPHERS = (
    "aes128-gcm@openssh.com",
    "aes256-gcm@openssh.com",
    "chacha20-poly1305@openssh.com",
    "aes128-ctr",
    "aes192-ctr",
    "aes256-ctr",
)

_FAMILIES: dict[int, str] = {socket.AF_INET: "inet", socket.AF_INET6: "inet6"}


async def connect(
    attempt: Attempt, life: SignsOfLife, *, timeout: float = CONNECT_TIMEOUT, lost: Callable[[Exception | None], None]
) -> asyncssh.SSHClientConnection:
    """Connect and sign in to a host; never asks anything on a terminal.

    Args:
        attempt: names the host as the user spells it (`[user@]host`); what is learned on the way is noted in it.
        life: notes what passes on the way to the host, or to the first of the jump hosts before it.
        timeout: seconds for connect and login together, jump hosts included. Waiting for this process's other
            connections to the same server does not count.
        lost: called when the connection has ended, with what broke it (None: ended in order).

    Raises:
        UnreachableError: name, network, port, timeout, proxy, jump hosts in a circle.
        SignInError: host key unknown or changed, no accepted key.
        ConfigError: the ssh config cannot be read.
    """
    attempt.timeout = timeout
    try:
        async with asyncio.timeout(timeout) as limit:
            return await _connect(Destination.parse(attempt.host), attempt, life, limit, via=None, lost=lost)
    except (OSError, ValueError, asyncssh.Error, JumpHostError) as error:
        raise translate(error, attempt) from error
    except JumpLoopError as error:
        raise error.told(attempt.host) from error


async def _connect(
    destination: Destination,
    attempt: Attempt,
    life: SignsOfLife,
    limit: asyncio.Timeout,
    via: asyncssh.SSHClientConnection | None,
    lost: Callable[[Exception | None], None],
    led: tuple[Destination, ...] = (),
) -> asyncssh.SSHClientConnection:
    """Connect to one host or hop; `led` are those, outermost first, that it is the first hop to."""
    options, files = await read_options(destination)
    config = options.config
    attempt.user = options.username
    attempt.family = _FAMILIES.get(options.family, "")
    attempt.address = f"{options.host}:{options.port}"
    attempt.forbids, attempt.asks_not = forbids_keys(config), asks_not(config)
    if via is None and config.get("ProxyJump"):
        via = await _connect_jumps(str(config.get("ProxyJump")), attempt, life, limit, (*led, destination))
    # Ours even where the config asks less often: 60 s, a usual value there, is for firewalls, not for noticing.
    interval = min(KEEPALIVE_INTERVAL, int(str(config.get("ServerAliveInterval") or KEEPALIVE_INTERVAL)))
    trust = _Trust(options, attempt)
    command = "" if via is not None else str(config.get("ProxyCommand") or "")
    door = door_of(options.host, options.port, command, attempt.via)
    again, pause = pauses(), 0.0
    while True:
        proxy, attempt.step = None, "connecting"
        if command:
            attempt.proxy_command = command
            proxy = ProxyCommand(command, attempt)
        client = _Client(attempt, Identities.from_config(config), lost)
        try:
            await asyncio.sleep(pause)
            async with Doors.get().knock(door, attempt.leads_to or attempt.host, limit) as client.knock:
                connection = await asyncssh.connect(
                    destination.host,
                    # Named as well: where asyncssh reads the config once more, it would forget the port.
                    port=options.port,
                    options=options,
                    # None: what is there has been read, and its percent signs stand for themselves by now.
                    config=files if options.canonicalize_hostname else None,
                    tunnel=via or _Dialer(options, proxy, life),
                    client_factory=lambda client=client: client,
                    known_hosts=trust.keys,
                    server_host_key_algs=trust.algorithms,
                    encryption_algs=() if config.get("Ciphers") else list(CIPHERS),
                    # Asked or not, the server may say what it wants. Nobody is asked here, and the message tells the
                    # rest.
                    preferred_auth=_all_methods(config),
                    password_auth=True,
                    kbdint_auth=True,
                    compression_algs=() if config.get("Compression") else ["none", "zlib@openssh.com"],
                    keepalive_interval=interval,
                    keepalive_count_max=KEEPALIVE_COUNT,
                )
            break
        except BaseException as error:
            if proxy is not None:
                await proxy.collect_words(client.heard)
                proxy.close()
            if isinstance(error, asyncssh.HostKeyNotVerifiable) and await trust.widen(client):
                pause = 0.0
                continue
            hung_up = turned_away(error, attempt, heard=client.heard)
            if hung_up and client.knock is not None and client.knock.lasted < AT_ONCE and (pause := next(again, 0.0)):
                log.debug("%s turned a connection away, trying again: %s", attempt.host, error)
                continue
            if hung_up and proxy is None:
                attempt.step = "greeting its ssh server"
            if via is not None:
                via.close()
            if isinstance(error, (OSError, asyncssh.ConnectionLost)) and proxy_wants_sign_in(attempt.proxy):
                await note_untrusted_key(attempt)
                raise JumpHostError(attempt.proxy) from error
            raise
    client.keep()
    # Closed together with the connection that runs through it.
    connection.set_tunnel(via or proxy)
    life.keep(connection, interval)
    return connection


async def _connect_jumps(
    jumps: str, attempt: Attempt, life: SignsOfLife, limit: asyncio.Timeout, led: tuple[Destination, ...]
) -> asyncssh.SSHClientConnection:
    """Connect to the hops of a ProxyJump ("a,b": a first, b through a) and return the last one's connection.

    As with ssh, the first hop has a ProxyJump of its own if the config says so, and the others have not.

    Raises:
        JumpLoopError: the first hop is one of `led`, which are reached through it.
    """
    via = None
    for text in jumps.split(","):
        hop = Attempt(text.strip(), via=attempt.via, leads_to=attempt.leads_to or attempt.host)
        try:
            destination = Destination.parse(text)
            if via is None and destination in led:
                raise JumpLoopError(led, destination)
            via = await _connect(destination, hop, life, limit, via, lambda error: None, led)
            attempt.via = hop.host
        except (OSError, ValueError, asyncssh.Error, HostError, JumpHostError) as error:
            told = translate(error, hop)
            if isinstance(told, HostError):
                message = f"{attempt.host} is reached through {hop.host}, and that failed. {told}"
                raise type(told)(attempt.host, message, f"{hop.host}: {told.detail}") from error
            raise told from error
        except asyncio.CancelledError:
            attempt.step = f"{hop.step} to the jump host {hop.host}"
            if hop.mute:
                attempt.mute, attempt.proxy, attempt.proxy_command = True, hop.proxy, hop.proxy_command
                attempt.via = attempt.via or f"its jump host {hop.host}"
            raise
    assert via is not None
    return via


def _all_methods(config: asyncssh.config.SSHConfig) -> list[str] | tuple[()]:
    """Return the sign-in methods that a server may ask for: those of the config first, and those that ask a person."""
    preferred = str(config.get("PreferredAuthentications") or "")
    return list(dict.fromkeys([*preferred.split(","), *sorted(ASKING)])) if preferred else ()


# -- trust and sign-in


class _Trust:
    """Which host keys are trusted for one connection; more of them when the user's policy has it so.

    Attributes:
        algorithms: what asyncssh is told of host key algorithms: () for its own choice.
    """

    def __init__(self, options: asyncssh.SSHClientConnectionOptions, attempt: Attempt) -> None:
        self.algorithms: Sequence[str] = ()
        self._options = options
        self._attempt = attempt
        self._files = known_hosts_files(options.config, lambda name: expand(options, name))
        self._known: list[str] = []
        self._accepted: list[asyncssh.SSHKey] = []

    def keys(self, host: str, _address: str, port: int | None) -> TrustedKeys:
        """Return a host's trusted keys; asyncssh asks for them."""
        # Read at each connect: the person may just have accepted the key in a terminal.
        host_keys, authorities, revoked = trusted_keys(read_known_hosts(self._files), host, port)
        self._attempt.revoked_at = revoking_lines(self._files, host, port) if revoked else []
        self._known = [key.get_algorithm() for key in host_keys]
        self._attempt.known = [key_text(key.get_algorithm(), key.public_data) for key in (*host_keys, *authorities)]
        return [*host_keys, *self._accepted], authorities, revoked

    async def widen(self, client: _Client) -> bool:
        """Take what the server offered if the user's policy does; whether to connect again."""
        if client.certificate_refused and not self.algorithms and not self._options.config.get("HostKeyAlgorithms"):
            # As ssh: a certificate of an unknown authority is no more than the key in it.
            self.algorithms = [name.decode() for name in get_default_public_key_algs()]
            return True
        key = client.refused_key
        if key is None or self._accepted:
            return False
        options = self._options
        taken = await may_be_trusted(self._attempt.host, options.host, options.port, key, self._known)
        self._attempt.strict = taken is None
        self._attempt.unkept = options.config.get("UserKnownHostsFile") == []
        if not taken:
            return False
        self._accepted.append(key)
        return True


class _Client(asyncssh.SSHClient):
    """What asyncssh asks while connecting: never a question to a person, and everything noted for the message."""

    def __init__(self, attempt: Attempt, identities: Identities, lost: Callable[[Exception | None], None]) -> None:
        self._attempt = attempt
        self._identities = identities
        self._lost = lost
        self._agent: asyncssh.SSHAgentClient | None = None
        self._offers: list[asyncssh.SSHKeyPair] | None = None
        self.refused_key: asyncssh.SSHKey | None = None
        self.certificate_refused = False
        self._key_sent = False
        self._connection: asyncssh.SSHClientConnection | None = None
        self._kept = False
        self._ended: list[Exception | None] = []
        self.knock: Knock | None = None

    @property
    def heard(self) -> bool:
        """Whether an ssh server has said which one it is."""
        return self._connection is not None and bool(self._connection.get_extra_info("server_version"))

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        self._connection = conn
        self._attempt.step = "agreeing on keys"
        self._moved()

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        self._attempt.untrusted = key_text(key.get_algorithm(), key.public_data)
        self.refused_key = key
        return False

    def validate_host_ca_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        signer = key_text(key.get_algorithm(), key.public_data)
        self._attempt.untrusted = f"a certificate signed by {signer}"
        self.certificate_refused = True
        return False

    def begin_auth(self, username: str) -> None:
        self._attempt.step = "signing in"
        self._moved()

    def _moved(self) -> None:
        if self.knock is not None:
            self.knock.moved()

    def auth_banner_received(self, msg: str, lang: str) -> None:
        log.debug("%s says at login: %s", self._attempt.host, msg.strip())
        self._attempt.banner = last_line(msg)

    async def public_key_auth_requested(self) -> list[asyncssh.SSHKeyPair] | None:
        self._attempt.methods.append("publickey")
        if self._offers is None:
            self._offers, self._agent = await load_offers(self._identities, self._attempt)
        self._key_sent = bool(self._offers)
        if not self._offers:
            return None
        # One at a time, so that the message names those that were really tried.
        pair = self._offers.pop(0)
        origin = " (agent)" if pair.get_key_type() == "agent" else ""
        self._attempt.offered.append(key_text(pair.get_algorithm(), pair.public_data) + origin)
        return [pair]

    def password_auth_requested(self) -> None:
        self._asked_for("password")

    def kbdint_auth_requested(self) -> None:
        self._asked_for("keyboard-interactive")

    def _asked_for(self, method: str) -> None:
        # After a key that it refused a server asks for the next one: until there is none, keys are still among what it
        # takes. asyncssh does not say that a key was taken and is not enough.
        if self._key_sent and method not in self._attempt.methods:
            self._attempt.take_partial_success()
        self._key_sent = False
        self._attempt.methods.append(method)

    def auth_completed(self) -> None:
        self._close_agent()

    def connection_lost(self, exc: Exception | None) -> None:
        self._close_agent()
        self._ended.append(exc)
        if self._kept:
            self._lost(exc)

    def keep(self) -> None:
        """The connection is made, and from now on its end is told; that of one that has failed is nobody's."""
        self._kept = True
        if self._ended:
            self._lost(self._ended[0])

    def _close_agent(self) -> None:
        if self._agent is not None:
            self._agent.close()
            self._agent = None


# -- the byte stream below


class _Dialer:
    """Makes the byte stream that a connection runs over; asyncssh asks it in place of a jump host's connection."""

    def __init__(
        self, options: asyncssh.SSHClientConnectionOptions, proxy: ProxyCommand | None, life: SignsOfLife
    ) -> None:
        self._options = options
        self._proxy = proxy
        self._life = life

    async def create_connection(
        self, session_factory: Any, remote_host: str, remote_port: int, orig_host: str = "", orig_port: int = 0
    ) -> Any:
        loop = asyncio.get_running_loop()
        connection = None

        def protocol() -> asyncio.BaseProtocol:
            nonlocal connection
            connection = session_factory()
            made = protocol_for(connection)
            if isinstance(made, Inbound):
                made.count = self._life.received
            return made

        if self._proxy is not None:
            transport, _ = await loop.create_connection(protocol, sock=self._proxy.start())
        else:
            transport, _ = await loop.create_connection(
                protocol,
                remote_host,
                remote_port,
                family=self._options.family,
                local_addr=self._options.local_addr,
                happy_eyeballs_delay=HAPPY_EYEBALLS_DELAY,
            )
        self._life.watch(transport)
        return transport, connection
