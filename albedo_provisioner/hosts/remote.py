"""The way to a host over ssh: in process, or by the user's own `ssh` program, whichever it takes.

ssh in process (asyncssh) starts faster and carries several kernels on one connection, so it is the usual way. The
program is used

- over a connection that the user is signed in to already, their own ControlMaster or one of `jupyter albedo login`;
- when their config needs for this host what asyncssh has not got, or cannot be read by it;
- when a host's key is refused in process: whether the user trusts it is for their ssh to say;
- when ALBEDO_SSH says so.

It is decided at each new connection, so that a kernel whose host begins to ask for a password goes on over a master
that appears later.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

from ..errors import ConfigError, HostError, HostKeyError, NoRoomError, SignInError, UnreachableError
from .openssh import MasterRefusedError, ProgramTransport
from .openssh_config import HostSettings, Resolved
from .reachability import Reachability
from .sign_in_watch import SignInWatch
from .ssh import SSHTransport
from .ssh_config import JUMPS_IN_A_CIRCLE, login_command, must_be_readable
from .ssh_errors import NoAgreementError
from .transport import Channel, ChannelReceiver

log = logging.getLogger("albedo_provisioner.hosts")

WAYS = ("auto", "builtin", "program")


@dataclass(frozen=True)
class Way:
    """By which ssh a host is reached.

    Attributes:
        kind: "builtin" (in process), "program", or "master" (the program over a connection that is signed in already).
        why: what decided it, in words; empty where nothing asked for another than the usual one.
        master: the control path of the connection that is signed in; empty for another kind.
    """

    kind: str
    why: str = ""
    master: str = ""


def chosen_way() -> str:
    """Return which ssh the user wants (`$ALBEDO_SSH`): "auto", "builtin" or "program".

    Raises:
        ConfigError: the variable has another value.
    """
    way = os.environ.get("ALBEDO_SSH") or "auto"
    if way not in WAYS:
        raise ConfigError(f"ALBEDO_SSH is {way!r}; it can be {', '.join(WAYS[:-1])} or {WAYS[-1]}.")
    return way


class RemoteTransport:
    """Runs commands on one host over ssh; see `Transport`.

    Args:
        host: `[user@]host`, the host being a name, an address or an alias of the ssh config.

    Attributes:
        builtin: the way in process.
        program: the way by the ssh program.
        unread: why ssh in process could not read the config at the last connection that went by the program for that;
            else empty.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self.builtin = SSHTransport(host)
        self._settings = HostSettings(host)
        self.program = ProgramTransport(host, settings=self._settings)
        self._watch = SignInWatch(host, self._settings)
        self._failing = False
        self.unread = ""

    @property
    def host(self) -> str:
        """The host as the user spells it."""
        return self._host

    async def open(self, command: str, receiver: ChannelReceiver) -> Channel:
        """Run `command`; see `Transport.open`.

        Raises:
            UnreachableError: the host cannot be reached, or runs no commands for us.
            SignInError: it does not let us in, or its host key is not trusted.
            ConfigError: the ssh config cannot be read.
        """
        try:
            channel = await self._open(command, receiver)
        except HostError as error:
            self._failing = True
            if isinstance(error, SignInError):
                self._watch.look_out()
            if JUMPS_IN_A_CIRCLE in str(error) or self._settings.need_at_once():
                raise  # ssh would say the same once more, or has said so itself
            if chosen_way() != "builtin" and (complaint := await self._settings.complaint()):
                # A line that ssh in process passes over may be why it went wrong, or somewhere else.
                raise type(error)(self._host, f"{error} {complaint}", error.detail) from error
            raise
        if self._failing:
            # Others may be waiting who failed as well, and who need not wait any longer.
            self._failing = False
            Reachability.get().announce(self._host)
        self._watch.stop()
        return channel

    async def close(self) -> None:
        """Close all connections to the host that are ours, and the channels on them. Masters stay."""
        self._watch.stop()
        await self.builtin.close()
        await self.program.close()

    async def way(self) -> Way:
        """Return by which ssh the next new connection will be tried first; nothing is connected.

        Raises:
            ConfigError: the ssh config cannot be read.
        """
        way = chosen_way()
        if way == "builtin":
            return Way("builtin", "ALBEDO_SSH=builtin")
        resolved = await self._settings.ask_if_worth_it()
        for master in await self._settings.live_sockets(resolved):
            return Way("master", f"you are signed in, by the connection at {master}", master)
        need = "ALBEDO_SSH=program" if way == "program" else self._settings.need_at_once()
        if resolved is not None:
            need = need or await self._settings.need_of_program(resolved)
        need = need or await self._jump_need()
        return Way("program", need) if need else Way("builtin")

    async def _open(self, command: str, receiver: ChannelReceiver) -> Channel:
        must_be_readable()
        way = chosen_way()
        if way == "builtin":
            return await self.builtin.open(command, receiver)
        if way == "auto" and self.builtin.connections:
            try:
                return await self.builtin.open(command, receiver)
            except SignInError as error:
                log.debug("%s: not in process any more: %s", self._host, error)
        resolved = await self._settings.ask_if_worth_it()
        masters = await self._settings.live_sockets(resolved)
        trusted = [master for master in masters if not self.program.suspects(master)]
        refusals: list[MasterRefusedError] = []
        channel = await self._by_master(command, receiver, trusted, refusals)
        if channel is not None:
            return channel
        try:
            return await self._directly(command, receiver, way, resolved)
        except SignInError as error:
            # Nothing is left but masters that have not answered of late.
            channel = await self._by_master(command, receiver, [m for m in masters if m not in trusted], refusals)
            if channel is not None:
                return channel
            if any(refusal.full for refusal in refusals):
                raise NoRoomError(
                    self._host,
                    f"The connection to {self._host} that is signed in has no room for another session (the server's "
                    f"MaxSessions). Run `{login_command(self._host)}` in a terminal to sign in once more, for another "
                    "connection, or shut a kernel down from its notebook.",
                    "no room on the connection that is signed in (MaxSessions)",
                ) from error
            raise

    async def _jump_need(self) -> str:
        """Return why the program is needed where the user is signed in to the jump host; "" where that is not so."""
        jump = await self._settings.jump_master()
        return f"the connection to the jump host {jump[0]} that is signed in" if jump is not None else ""

    async def _by_master(
        self, command: str, receiver: ChannelReceiver, masters: list[str], refusals: list[MasterRefusedError]
    ) -> Channel | None:
        for master in masters:
            try:
                return await self.program.open_by_master(command, receiver, master)
            except MasterRefusedError as refusal:
                log.debug("%s: not by the master at %s: %s", self._host, master, refusal)
                refusals.append(refusal)
        return None

    async def _directly(self, command: str, receiver: ChannelReceiver, way: str, resolved: Resolved | None) -> Channel:
        self.unread = ""
        if way == "program":
            return await self.program.open(command, receiver)
        need = self._settings.need_at_once()
        if resolved is not None:
            need = await self._settings.need_of_program(resolved)
        need = need or await self._jump_need()
        if need:
            log.debug("%s: by the ssh program, because of %s", self._host, need)
            return await self.program.open(command, receiver)
        try:
            return await self.builtin.open(command, receiver)
        except HostKeyError as error:
            # asyncssh reads known hosts otherwise than ssh in some corners. What ssh takes is taken.
            try:
                return await self.program.open(command, receiver)
            except (SignInError, UnreachableError, ConfigError) as told:
                if isinstance(told, SignInError) and told.detail.startswith("Permission denied"):
                    raise  # it takes the key, and is not let in
                raise error from None  # this one names all the keys, and the host on the way that has the trouble
        except NoAgreementError as error:
            # ssh knows algorithms that asyncssh lacks. If it fails as well, it says what the host offers.
            log.debug("%s: by the ssh program, because of: %s", self._host, error)
            return await self.program.open(command, receiver)
        except SignInError as error:
            if resolved is None or not resolved.is_on("proxyjump"):
                raise
            # The jump host may be one that the user is signed in to: then ssh gets through it.
            try:
                return await self.program.open(command, receiver)
            except SignInError:
                raise error from None  # it knows more of the hosts on the way
        except ConfigError as error:
            # asyncssh knows less of the language than ssh. If ssh cannot read the config either, its words are better.
            try:
                await self._settings.ask()
            except ConfigError:
                raise error from None
            log.debug("%s: by the ssh program, because of %s", self._host, error)
            self.unread = str(error.__cause__ or error)  # not as a fault of the config, which ssh takes
            return await self.program.open(command, receiver)
