"""What a failure of ssh means, and what to tell the person: the one place that decides it.

Everything that can go wrong between wanting a connection and having a running command ends here as an
`UnreachableError` (nobody could get in just now), a `SignInError` (a person could, we cannot) or a `ConfigError`
(the ssh config cannot be read). Each message is a sentence that names the host and the cause in ssh's own words,
and says what to do.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import re
import shlex
import socket
from dataclasses import dataclass, field, replace

import asyncssh

from ..errors import AlbedoError, HostError, HostKeyError, SignInError, UnreachableError
from .ssh_config import config_error, login_command, ssh_command

ASKING = frozenset({"password", "keyboard-interactive"})
"""The sign-in methods that ask a person for something."""


@dataclass
class Attempt:
    """What was learned while connecting, for the message in case it fails.

    Attributes:
        host: the host as the user spells it.
        address: "name:port" that was dialled, once the config has been read.
        user: the account asked for.
        family: "inet" or "inet6" when the config has addresses of that kind alone looked for (AddressFamily).
        untrusted: the host key that was offered and is not trusted, as "ED25519 SHA256:…", when that happened.
        strict: whether the config has ssh refuse an unknown host key without a question (StrictHostKeyChecking yes).
        unkept: whether the config names no file in which an unknown key could be kept (UserKnownHostsFile none),
            so that ssh takes none and asks nobody.
        known: the trusted keys known for the host, as "ED25519 SHA256:…".
        revoked_at: the lines by which keys are revoked for the host, as "/home/me/.ssh/known_hosts, line 3".
        methods: the sign-in methods the server asked for, in ssh's names, in order.
        offered: the keys that were offered, as "ED25519 SHA256:… (agent)".
        accepted: the key that the server took, and asked for more than that (a second factor); it is not in `offered`.
        forbids: the setting of the config by which no keys are offered, as it is written there.
        asks_not: the setting of the config by which ssh does not ask for something, by the method.
        locked: the identity files that need a passphrase we do not have.
        unused: whether there may be a key that the server takes and that could not be used, for its passphrase mostly.
        notes: other things worth telling about keys and agent.
        via: the jump host that the connection goes through, "" for none.
        banner: the last line of what the server said to whoever signs in.
        proxy: the last line a ProxyCommand wrote to its standard error.
        mute: whether a ProxyCommand was run, and nothing of an ssh server has come through it.
        proxy_end: how the ProxyCommand ended, where that is known, as "exit status 1".
        timeout: seconds that connecting and signing in may take, 0 if that is not told.
        proxy_command: the ProxyCommand, once it has been run; also the one that ssh makes of a ProxyJump.
        proxy_key: what is wrong with a host key on the way there, when that is the trouble: "ED25519 SHA256:… is not
            known".
        leads_to: the host to sign in to, where this one is only on the way there.
        step: what was going on, for a timeout's message.
    """

    host: str
    address: str = ""
    user: str = ""
    family: str = ""
    untrusted: str = ""
    strict: bool = False
    unkept: bool = False
    known: list[str] = field(default_factory=list)
    revoked_at: list[str] = field(default_factory=list)
    methods: list[str] = field(default_factory=list)
    offered: list[str] = field(default_factory=list)
    accepted: str = ""
    forbids: str = ""
    asks_not: dict[str, str] = field(default_factory=dict)
    locked: list[str] = field(default_factory=list)
    unused: bool = False
    notes: list[str] = field(default_factory=list)
    via: str = ""
    banner: str = ""
    proxy: str = ""
    mute: bool = False
    proxy_end: str = ""
    timeout: float = 0.0
    proxy_command: str = ""
    proxy_key: str = ""
    leads_to: str = ""
    step: str = "connecting"

    def take_partial_success(self) -> None:
        """Note that the server took the key that was offered last, and asks for more."""
        if self.offered:
            self.accepted = self.offered.pop()
            self.methods.clear()

    @property
    def left_to_ask(self) -> frozenset[str]:
        """The methods by which the server would have a person asked for something, and the config would, too."""
        return ASKING & set(self.methods) - self.asks_not.keys()

    @property
    def wants_another_key(self) -> bool:
        """Whether the server takes keys alone and none of ours, so that there is nothing that a person could answer."""
        usable = self.accepted or self.locked or self.unused
        return set(self.methods) == {"publickey"} and not usable and not self.forbids

    @property
    def login(self) -> str:
        """What to type to sign in."""
        return login_command(self.leads_to or self.host)


def last_line(text: str, most: int = 300) -> str:
    """Return the last line of a text that is not empty, without control characters, and not longer than that."""
    lines = ("".join(filter(str.isprintable, line)).strip() for line in reversed(text.splitlines()))
    return next(filter(None, lines), "")[:most]


_GENERAL = re.compile(
    r"\s*$|stdio forwarding failed|Connection (?:closed|reset) by |(?:kex_exchange_identification|banner exchange"
    r"|ssh_dispatch_run_fatal|client_loop|Connection to UNKNOWN)\b"
)
"""What an ssh on the way says when the way behind it has failed, which is told before that."""


def telling_line(text: str) -> str:
    """Return the line of what an ssh on the way said that tells the cause: the last one that is not general."""
    telling = [line for line in text.splitlines() if not _GENERAL.match(line)]
    return last_line(telling[-1] if telling else text)


class JumpHostError(Exception):
    """A jump host or proxy command did not lead to the host; `str()` is what that said."""


def key_text(algorithm: str, public_data: bytes) -> str:
    """Return a public key as ssh prints it: "ED25519 SHA256:…".

    Args:
        algorithm: the key's algorithm ("ssh-ed25519").
        public_data: the key as it goes over the wire.
    """
    digest = base64.b64encode(hashlib.sha256(public_data).digest()).decode().rstrip("=")
    return f"{key_kind(algorithm)} SHA256:{digest}"


def key_kind(algorithm: str) -> str:
    """Return a key's algorithm as ssh prints it in fingerprints: "ED25519" for "ssh-ed25519"."""
    kind = next((name for name in ("ed25519", "ed448", "ecdsa", "rsa", "dss") if name in algorithm), algorithm)
    return ("SK-" if algorithm.startswith("sk-") else "") + kind.upper() + ("-CERT" if "-cert" in algorithm else "")


class NoAgreementError(UnreachableError):
    """The connection ended while keys were agreed on: maybe because the host has no algorithm that we have."""


def translate(error: BaseException, attempt: Attempt) -> AlbedoError:
    """Return the error to raise for a failure to connect, to sign in or to start a command.

    Args:
        error: what asyncssh or the system raised.
        attempt: what was learned on the way.
    """
    if isinstance(error, AlbedoError):
        return error
    host = attempt.host
    if isinstance(error, asyncssh.ConfigParseError):
        return config_error(str(error))
    if isinstance(error, asyncssh.HostKeyNotVerifiable):
        return _host_key(error, attempt)
    if isinstance(error, asyncssh.PermissionDenied):
        return _permission_denied(error, attempt)
    if isinstance(error, JumpHostError):
        return _jump_host(str(error), attempt)
    if attempt.mute and isinstance(error, (OSError, asyncssh.ConnectionLost)):
        return _mute(error, attempt)
    if isinstance(error, asyncssh.KeyExchangeFailed):
        if attempt.known and "host key algorithm" in error.reason:
            return _changed(attempt, "it offers no key of a known kind")
        return NoAgreementError(
            host, f"{host} and this machine have no algorithm in common: {error.reason}.", error.reason
        )
    if isinstance(error, (asyncssh.KeyImportError, asyncssh.KeyEncryptionError)):
        return SignInError(
            host,
            f"A key for {host} cannot be used: {error}. `{attempt.login}` in a terminal may do without it.",
            str(error),
        )
    if isinstance(error, TimeoutError):
        return _unreachable(attempt, f"timed out while {attempt.step}", "Check the network, or a VPN it needs")
    if isinstance(error, socket.gaierror):
        name = attempt.address.rpartition(":")[0] or host
        cause = f"could not resolve hostname {name}: {error.strerror}"
        return _unreachable(attempt, cause, check_name(attempt.family))
    if isinstance(error, OSError):
        return _os_error(error, attempt)
    if isinstance(error, asyncssh.ChannelOpenError):
        if attempt.via and attempt.step == "connecting":
            if error.code == asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED:
                return _forwarding_forbidden(attempt, f"jump host {attempt.via}")
            return _unreachable(attempt, f"its jump host {attempt.via} does not lead there: {error.reason}")
        return _unreachable(attempt, f"it does not run commands: {error.reason}", "Ask whoever runs the host")
    if isinstance(error, asyncssh.DisconnectError):
        return _disconnected(error, attempt)
    return _unreachable(attempt, f"{type(error).__name__}: {error}")


def _forwarding_forbidden(attempt: Attempt, via: str) -> UnreachableError:
    cause = f"its {via} forbids forwarding (administratively prohibited)"
    advice = "Have AllowTcpForwarding and PermitOpen of its ssh server lead there, or go by another host"
    return _unreachable(replace(attempt, proxy=""), cause, advice)


def check_name(family: str) -> str:
    """Return what to look at when a name has no address, in words without a full stop.

    Args:
        family: the value of AddressFamily for the host; empty for none.
    """
    advice = "Check its spelling and the network"
    return (
        f"{advice}; your ssh config has AddressFamily {family}, which leaves other addresses out" if family else advice
    )


def _unreachable(attempt: Attempt, cause: str, advice: str = "") -> UnreachableError:
    """One sentence for a host out of reach: "gpu (gpu.example.org:22) cannot be reached: …"."""
    if "administratively prohibited" in attempt.proxy:
        return _forwarding_forbidden(attempt, "ProxyCommand's host")
    if attempt.proxy:
        cause = f"{cause} (its ProxyCommand said: {attempt.proxy})"
    where = f" ({attempt.address})" if attempt.address and attempt.address != f"{attempt.host}:22" else ""
    advice = f" {advice}." if advice else ""
    return UnreachableError(attempt.host, f"{attempt.host}{where} cannot be reached: {cause}.{advice}", cause)


def _mute(error: BaseException, attempt: Attempt) -> HostError:
    """A ProxyCommand that has led to no ssh server: it is to blame, and its words are what there is."""
    explained = "administratively prohibited" in attempt.proxy or proxy_wants_sign_in(attempt.proxy)
    if explained or (attempt.proxy and not isinstance(error, TimeoutError) and not attempt.proxy_end):
        return _jump_host(attempt.proxy, attempt)
    via = attempt.via if attempt.via.startswith("its jump host ") else f"its ProxyCommand{_program(attempt)}"
    said = f"said: {attempt.proxy}" if attempt.proxy else "said nothing on its standard error"
    if isinstance(error, TimeoutError):
        within = f" within {attempt.timeout:g} s" if attempt.timeout else ""
        cause = f"{via} led to no ssh server{within}, and {said}"
    else:
        cause = f"{via} ended{attempt.proxy_end and f' ({attempt.proxy_end})'}, and {said}"
    advice = f"See what it does in a terminal: `{ssh_command(attempt.host)}`"
    return _unreachable(replace(attempt, proxy="", address=""), cause, advice)


def _program(attempt: Attempt) -> str:
    """Return the name of the program that a ProxyCommand runs, as " (nc)"; its arguments may be nobody's business."""
    found = re.match(r"\s*(?:exec\s+)*(?:\S*/)?([^\s/]+)", attempt.proxy_command)
    return f" ({found[1]})" if found else ""


def _jump_host(words: str, attempt: Attempt) -> HostError:
    """What is told of the way to a host: only its last words."""
    via = attempt.via or "its ProxyCommand"
    if "administratively prohibited" in words:
        jumps = attempt.via.startswith("its jump host")
        return _forwarding_forbidden(attempt, attempt.via.removeprefix("its ") if jumps else "ProxyCommand's host")
    if not proxy_wants_sign_in(words):
        name = "" if attempt.via.startswith("its jump host") else _program(attempt)
        return _unreachable(replace(attempt, proxy=""), f"{via}{name} said: {words}")
    words = words.rstrip(".")
    advice = "and sign in there"
    if attempt.proxy_key:
        words += f": {attempt.proxy_key}"
        advice = "and accept the key there if it is the right one"
    return SignInError(
        attempt.host,
        f"{attempt.host} is reached through another host, and that failed ({words}). "
        f"Run `{attempt.login}` in a terminal {advice}.",
        f"{via}: {words}",
    )


_TURNED_AWAY = re.compile(
    r"kex_exchange_identification: .*Connection (?:closed|reset)|Connection (?:closed|reset) by |Exceeded MaxStartups"
)


def turned_away(error: BaseException, attempt: Attempt, *, heard: bool) -> bool:
    """Whether an ssh server, or the first one on the way, hung up before it had said anything: it may be too many at
    once for it (MaxStartups), so that it is worth trying again.

    Args:
        error: what came of it.
        attempt: what was learned on the way.
        heard: whether the host's own ssh server has said which one it is, where `attempt.step` does not tell.
    """
    if not isinstance(error, (ConnectionResetError, asyncssh.ConnectionLost, UnreachableError)):
        return False
    if attempt.proxy_command or attempt.via.startswith("its "):
        silent = not attempt.proxy and attempt.via.startswith("its jump host ")  # the server behind it hung up
        return attempt.mute and (silent or _TURNED_AWAY.search(attempt.proxy) is not None)
    return attempt.step == "greeting its ssh server" or (attempt.step == "agreeing on keys" and not heard)


def proxy_wants_sign_in(words: str) -> bool:
    """Whether an ssh on the way to a host ended because a person has to sign in there.

    Args:
        words: the last line that it said.
    """
    return bool(re.search(r"Permission denied \(|Host key verification failed|Too many authentication failures", words))


def _os_error(error: OSError, attempt: Attempt) -> UnreachableError:
    number = error.errno
    if number is None:
        # asyncio joins the failures of several addresses into one text: "Multiple exceptions: [Errno 111] …, …".
        numbers = {int(found) for found in re.findall(r"\[Errno (\d+)\]", str(error))}
        number = errno.ECONNREFUSED if errno.ECONNREFUSED in numbers else min(numbers, default=None)
    cause = os.strerror(number).lower() if number else str(error)
    if number == errno.ECONNREFUSED:
        return _unreachable(attempt, cause, "See whether it is up and its ssh server listens on that port")
    if number in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN):
        return _unreachable(attempt, cause, "Check the network, or a VPN it needs")
    return _unreachable(attempt, f"{cause}, while {attempt.step}")


def _disconnected(error: asyncssh.DisconnectError, attempt: Attempt) -> HostError:
    if "too many authentication failures" in error.reason.lower():
        return _permission_denied(error, attempt)
    cause = f"{error.reason[:1].lower()}{error.reason[1:]}, while {attempt.step}"
    if attempt.banner and attempt.step == "signing in":
        cause += f"; the server said: {attempt.banner.rstrip('.')}"
    told = _unreachable(attempt, cause)
    if attempt.step == "agreeing on keys":
        # A server that finds nothing in common may hang up before we have read what it offers.
        return NoAgreementError(told.host, str(told), told.detail)
    return told


def _permission_denied(error: asyncssh.DisconnectError, attempt: Attempt) -> SignInError:
    methods = ",".join(dict.fromkeys(attempt.methods)) or "none"
    cause = f"Permission denied ({methods})"
    if error.reason and not error.reason.startswith("Permission denied"):
        cause = f"{error.reason} ({methods})"
    told = [*attempt.notes]
    who = f"{attempt.user}@{attempt.host}" if attempt.user and "@" not in attempt.host else attempt.host
    if attempt.forbids and not attempt.left_to_ask:
        # There is nothing that ssh could ask for either.
        told.append(f"your ssh config has {attempt.forbids} for it, so no key is offered")
        advice = "Take that setting out if a key is to let you in"
        return SignInError(attempt.host, f"{who}: {cause}; {'; '.join(told)}. {advice}.", cause)
    if attempt.accepted:
        told.append(f"{attempt.accepted} was accepted, and the server wants a second factor as well")
    if attempt.locked:
        told.append(f"{' and '.join(attempt.locked)} needs a passphrase")
    if attempt.offered:
        told.append(f"refused: {', '.join(attempt.offered)}")
    elif not attempt.locked and not attempt.accepted:
        # A key may be there: a server that takes none is offered none.
        takes_keys = not attempt.methods or "publickey" in attempt.methods
        told.append("there was no key to offer" if takes_keys else "the server takes no keys")
    advice = f"Run `{attempt.login}` in a terminal and answer what it asks for"
    asked = ASKING & set(attempt.methods)
    if asked and not attempt.left_to_ask and (attempt.accepted or "publickey" not in attempt.methods):
        settings = " and ".join(dict.fromkeys(attempt.asks_not[method] for method in sorted(asked)))
        told.append(f"your ssh config has {settings} for it, so ssh does not ask")
        advice = f"Take that setting out, and run `{attempt.login}` in a terminal"
    elif attempt.wants_another_key and isinstance(error, asyncssh.PermissionDenied):
        told.append("the server takes keys alone, so there is nothing to sign in with by hand")
        advice = (
            "See whether user and key in your ssh config are right; if they are, have the public half of your key put "
            "into ~/.ssh/authorized_keys there (ssh-copy-id from where you can get in, or whoever runs the host)"
        )
    elif attempt.locked and not attempt.offered:
        advice += f", or have your agent hold the key: `ssh-add {shlex.quote(attempt.locked[0])}`"
    return SignInError(attempt.host, f"{who}: {cause}; {'; '.join(told)}. {advice}.", cause)


def _host_key(error: asyncssh.HostKeyNotVerifiable, attempt: Attempt) -> HostKeyError:
    host = attempt.host
    offered = attempt.untrusted
    if "revoked" in error.reason:
        where = " or ".join(attempt.revoked_at[:3]) or "a line of your known hosts that begins with @revoked"
        return HostKeyError(
            host,
            f"The host key of {host} is revoked, by {where}: it is not to be trusted any more, and someone may be "
            "listening in. Ask whoever runs the host for its new key; if this one is right all the same, remove that "
            "line.",
            error.reason,
        )
    if not offered:
        # A certificate that has expired or names another host: there is nothing to accept.
        return HostKeyError(
            host,
            f"The host key of {host} cannot be trusted: {error.reason}. `{attempt.login}` in a terminal says more.",
            error.reason,
        )
    if attempt.known:
        return _changed(attempt, f"it now offers {offered}")
    cause = f"Host key verification failed: {offered} is not known"
    if attempt.unkept:
        return HostKeyError(
            host,
            f"The host key of {host} is not known: it offers {offered}. Your ssh config has UserKnownHostsFile none, "
            "so there is no file to keep a new key in, and ssh takes none and asks nobody. Take that setting out, or "
            "name a file there (/dev/null keeps none).",
            cause,
        )
    if attempt.strict:
        name, _, port = attempt.address.rpartition(":")
        scan = f"ssh-keyscan{'' if port == '22' else f' -p {port}'} {name.strip('[]')}"
        return HostKeyError(
            host,
            f"The host key of {host} is not known: it offers {offered}. Your ssh config has StrictHostKeyChecking yes, "
            f"so ssh asks nobody. If it is the right key, add it to your known hosts (`{scan}` prints it), or set "
            f"StrictHostKeyChecking to ask and run `{attempt.login}`.",
            cause,
        )
    return HostKeyError(
        host,
        f"The host key of {host} is not known: it offers {offered}. Run `{attempt.login}` in a terminal and "
        "accept it there if it is the right one.",
        cause,
    )


def _changed(attempt: Attempt, offer: str) -> HostKeyError:
    return HostKeyError(
        attempt.host,
        f"The host key of {attempt.host} has changed: {offer}, but {', '.join(attempt.known)} is known for it. "
        "Someone may be listening in, or the host was installed anew. Find out which; "
        f"`{attempt.login}` in a terminal says which line of your known hosts is concerned.",
        "Remote host identification has changed",
    )
