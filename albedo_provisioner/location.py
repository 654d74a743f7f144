"""Locations: how a folder on this machine or on another host is spelled. Pure text, no I/O.

A location is `[user@]host:/abs/path`, `host:~/path`, `host:` (the home there), or a local `/abs/path` or
`~/path`. A text is remote when it starts with neither `/` nor `~` and what stands before its first `:` holds
no `/`.

Two promises that callers lean on:

- **One folder, one spelling.** Paths are folded (`//`, `.`, `..`, trailing `/`), so equal folders compare
  equal. Folding is by the text alone: `a/../b` is `b` even where `a` is a symbolic link, because nothing here
  may ask a host.
- **Never an option.** User and host start with a letter, a digit or `[`, and hold nothing that a shell or
  ssh's own `ProxyCommand` could take for more than a name: they can be handed to a program as they are.
"""

from __future__ import annotations

import ipaddress
import os
import os.path
import posixpath
import re
import unicodedata
from dataclasses import dataclass

from .errors import LocationError

MAX_LENGTH = 4096
"""Longest location in UTF-8 bytes; PATH_MAX on Linux, beyond which no host could open the folder anyway."""

LOOKS_LIKE = "A location looks like [user@]host:/absolute/path, host:~/path, or a local /absolute/path."

THIS_MACHINE = "."
"""How this machine is spelled where a host is asked for."""

# What OpenSSH itself refuses in a host name (ssh.c, valid_hostname): these end up in ProxyCommand lines. The
# backslash is not among them because a user may hold one, for the accounts of a Windows domain.
_UNSAFE = frozenset("'`\"$;&<>|(){}")

_URL = re.compile(r"(ssh|sftp|scp|rsync|https?|file)://", re.IGNORECASE)
_PORT = re.compile(r"\d{1,5}:")


@dataclass(frozen=True, slots=True)
class Location:
    """A folder on a host, or on this machine when `host` is None.

    Attributes:
        host: `host`, `user@host`, `[v6]` or `user@[v6]` as the user spells it (an ssh config alias too); None
            for this machine.
        path: normalised POSIX path: absolute, or `~` or `~/...` while the home is not known (`needs_home`).

    Raises:
        LocationError: (on construction) host or path is malformed. So every `Location` that exists can be
            spelled and parsed again: `Location.parse(str(x)) == x`.
    """

    host: str | None
    path: str

    def __post_init__(self) -> None:
        shown = self.path if self.host is None else f"{self.host}:{self.path}"
        _check_text(shown)
        if self.host is not None:
            _check_host(self.host, shown)
        object.__setattr__(self, "path", _normalise(self.host, self.path, shown))
        _check_text(str(self))  # again: "host:" has become "host:~", which must not pass the limit either

    @classmethod
    def parse(cls, text: str, base: str | None = None) -> Location:
        """Read a location as a person writes it.

        Args:
            text: see the module's head. Nothing is stripped: a folder's name may end with a space.
            base: the absolute path that relative local ones are relative to: `.`, `..`, or with a `/` in it. (A bare
                word is none, as it may be a host's name.) None refuses them.

        Raises:
            LocationError: it is none; the message says what is wrong and what a location looks like.
        """
        _must_be_text(text)
        _check_text(text)
        if text.startswith("-"):
            # Said apart, as the usual reason is an attempt (or an accident) to pass ssh an option.
            raise _error(text, "it starts with '-', like an option")
        if _URL.match(text):
            raise _error(text, "it is a URL")
        if text.startswith(("/", "~")):
            return cls(None, text)
        host, path = _split(text)
        if host is not None:
            return cls(host, path)
        if base is not None and not text.startswith(":"):
            if text not in (".", "..") and "/" not in text:
                raise _error(text, f"for the folder here write ./{text}, for a home on a host {text}:")
            text = f"{base}/{text}"
        return cls(None, text)

    def __str__(self) -> str:
        return self.path if self.host is None else f"{self.host}:{self.path}"

    @property
    def is_remote(self) -> bool:
        """Whether the folder is reached over ssh."""
        return self.host is not None

    @property
    def user(self) -> str | None:
        """The account before `@`, or None when the location names none (ssh's configuration decides then)."""
        return None if self.host is None else _split_user(self.host)[0]

    @property
    def hostname(self) -> str | None:
        """The host without user and without the brackets of an IPv6 address; None for this machine."""
        if self.host is None:
            return None
        name = _split_user(self.host)[1]
        return name[1:-1] if name.startswith("[") else name

    @property
    def needs_home(self) -> bool:
        """Whether the path still starts with `~`, which only its own machine can resolve."""
        return self.path.startswith("~")

    def resolved(self, home: str) -> Location:
        """The same folder with `~` replaced.

        Args:
            home: absolute path of the home directory on the location's own machine.

        Raises:
            LocationError: `home` is not absolute, or the path names another user's home (`~ann/x`).
        """
        if not self.needs_home:
            return self
        if not home.startswith("/"):
            raise LocationError(f"The home directory for {self} is not an absolute path: {home!r}.")
        if not _is_own_home(self.path):
            raise _error(str(self), "it names another user's home; write the absolute path")
        # Plain joining of texts: the constructor folds the double slash that a home of "/" gives.
        return Location(self.host, home + self.path[1:])

    def home_if_at(self, path: str) -> str | None:
        """The home that this location begins with, when it is known to be the folder `path` on its own machine; None
        when it begins with none, or that does not tell.
        """
        below = self.path[1:]
        if not _is_own_home(self.path) or not path.endswith(below):
            return None
        return path.removesuffix(below) or "/"

    def expanded(self) -> Location:
        """A local location with `~` or `~user` expanded by this machine; a remote one is returned as it is.

        Raises:
            LocationError: this machine knows no such home.
        """
        if self.is_remote or not self.needs_home:
            return self
        path = os.path.expanduser(self.path)
        if not path.startswith("/"):
            raise _error(str(self), "this machine knows no such home directory")
        return Location(None, path)


def place(text: str) -> Location:
    """Read a location as a person types it on this machine: relative to the current directory, or with a `~`, too.

    Raises:
        LocationError: it is none.
    """
    try:
        here: str | None = os.getcwd()
    except OSError:  # it was removed
        here = None
    return Location.parse(text, here).expanded()


def parse_host(text: str) -> str | None:
    """Read a host where no folder is wanted; None is this machine, which is spelled ".".

    Args:
        text: `[user@]host` (an IPv6 address in brackets or not), "." or a whole location.

    Raises:
        LocationError: it is none of these. So no option is ever taken for a host.
    """
    _must_be_text(text, " This machine is '.'.")
    if text == THIS_MACHINE:
        return None
    if text.startswith(("/", "~")):
        return Location.parse(text).host
    user, name = _split_user(text)
    if _is_ipv6(name):
        text = f"[{name}]" if user is None else f"{user}@[{name}]"
    return Location.parse(text if ":" in text.rpartition("]")[2] else f"{text}:").host


def _error(text: str, reason: str) -> LocationError:
    shown = text if len(text) <= 120 else text[:117] + "..."
    return LocationError(f"Not a location: {shown!r}: {reason}. {LOOKS_LIKE}")


def _must_be_text(text: object, also: str = "") -> None:
    if not isinstance(text, str):
        raise LocationError(f"Not a location: {text!r:.120}: it is no text. {LOOKS_LIKE}{also}")


def _check_text(text: str) -> None:
    if not text:
        raise _error(text, "it is empty")
    for character in text:
        # Control characters, lone surrogates (not encodable), and the two separators that count as line ends.
        if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp"):
            raise _error(text, f"it holds the control or unprintable character {character!r}")
    if len(text.encode()) > MAX_LENGTH:
        raise _error(text, f"it is longer than {MAX_LENGTH} bytes")


def _split(text: str) -> tuple[str | None, str]:
    """Split at the colon that ends the host; (None, text) when the text is not remote."""
    before, colon, after = text.partition(":")
    if not colon or "/" in before:
        return None, text
    if before == "[" or before.rpartition("@")[2].startswith("["):
        # The first colon lies inside an IPv6 address.
        address, bracket, after = text.partition("]")
        if not bracket or "/" in address:
            raise _error(text, "the bracket of the IPv6 address is not closed")
        if not after.startswith(":"):
            raise _error(text, "a ':' must follow the bracket of the IPv6 address")
        return address + "]", after[1:]
    return before, after


def _split_user(host: str) -> tuple[str | None, str]:
    # At the last "@", as ssh does: an account may itself be an address ("ann@example.org@gateway").
    user, at, name = host.rpartition("@")
    return (user if at else None), name


def _check_host(host: str, shown: str) -> None:
    user, name = _split_user(host)
    for what, part in (("user", user), ("host", name)):
        if part is None:
            continue
        if not part:
            raise _error(shown, f"the {what} is empty")
        if not (part[0].isalnum() or (what == "host" and part[0] == "[")):
            raise _error(shown, f"the {what} {part!r} does not start with a letter or digit")
        for character in part:
            if character.isspace():
                raise _error(shown, f"the {what} {part!r} holds a space")
            if character in _UNSAFE or character == "/" or (character == "\\" and what == "host"):
                raise _error(shown, f"the {what} {part!r} holds {character!r}")
        if what == "user" and (part[-1] == "\\" or ":" in part):
            raise _error(shown, f"the user {part!r} holds a ':' or ends with a backslash")
    if name.startswith("["):
        if not name.endswith("]") or not _is_ipv6(name[1:-1]):
            raise _error(shown, f"{name!r} is not an IPv6 address; only those stand in brackets")
    elif ":" in name:
        raise _error(shown, f"an IPv6 address stands in brackets: [{name}]:/path")
    elif "[" in name or "]" in name:
        raise _error(shown, f"the host {name!r} holds a bracket")


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _is_own_home(path: str) -> bool:
    return path == "~" or path.startswith("~/")


def _normalise(host: str | None, path: str, shown: str) -> str:
    if host is not None and not path:
        return "~"
    if path.startswith("/"):
        # normpath keeps a leading "//", which POSIX leaves to the system; here it is one more "/".
        return posixpath.normpath("/" + path.lstrip("/"))
    if path.startswith("~"):
        if host is not None and not _is_own_home(path):
            owner = path[1:].partition("/")[0]
            raise _error(shown, f"~{owner} is another user's home; write its absolute path")
        home, _, rest = path.partition("/")
        # Leading ".." stay: what is above the home is known only once the home is.
        rest = posixpath.normpath(rest.lstrip("/")) if rest.strip("/") else "."
        return home if rest == "." else f"{home}/{rest}"
    if host is None:
        raise _error(shown, "a local path must be absolute (start with / or ~/)")
    if path.startswith(":") or _looks_like_ipv6(shown):
        raise _error(shown, "an IPv6 address stands in brackets, as in [::1]:/path")
    if _PORT.match(path):
        raise _error(shown, "a location holds no port; give the host a name with its port in the ssh config")
    raise _error(shown, f"the path on {host} is relative; write {host}:~/{path} for a folder below your home there")


def _looks_like_ipv6(shown: str) -> bool:
    return _is_ipv6(shown.partition(":/")[0].partition(":~")[0].rpartition("@")[2])
