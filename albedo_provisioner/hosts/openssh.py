"""Commands on a host by the user's own `ssh` program: the transport for what ssh in process cannot do.

That is: a connection that the user has signed in to already (a ControlMaster), and whatever their ssh config asks for
that asyncssh has not got. Each command is one ssh process. It never asks anything: it runs in a session of its own,
without a terminal, in batch mode.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import asyncssh

from ..errors import AlbedoError, ConfigError, HostKeyError, SignInError, UnreachableError
from . import child
from .control_paths import Identity, socket_identity
from .destination import find_ssh, ssh_arguments
from .doors import AT_ONCE, Doors, Knock, pauses
from .jump_loops import find_loop
from .openssh_config import HostSettings
from .openssh_options import control_path_option, plain, through_master
from .openssh_words import Words
from .process_channel import READ_SIZE, Pipes, ProcessChannel, start_process
from .ssh_channel import REUSE_TIMEOUT
from .ssh_connect import CONNECT_TIMEOUT, KEEPALIVE_COUNT, KEEPALIVE_INTERVAL
from .ssh_errors import Attempt, JumpHostError, telling_line, translate, turned_away
from .ssh_trust import revoking_lines
from .transport import Channel, ChannelReceiver, Exit
from .way_through import note_untrusted_key

log = logging.getLogger(__name__)

# Of what a proxy says on standard error while connecting, this much is kept for the message: bytes.
STDERR_LIMIT = 4096

_LATER = 5
"""Seconds after our own time limit that ssh's own comes."""


class MasterRefusedError(Exception):
    """A ControlMaster did not run the command; `str()` says why, in ssh's words.

    Attributes:
        full: it lives and has as many sessions as the server allows (MaxSessions).
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.full = "session request failed" in reason


class ProgramTransport:
    """Runs commands on one host by the `ssh` program, each over a connection of its own or over a master; see
    `Transport`.

    Args:
        host: `[user@]host`, the host being a name, an address or an alias of the ssh config.
        connect_timeout: seconds for connect and login together.
        settings: what ssh says of the host, where somebody else asks for it, too.
    """

    def __init__(
        self, host: str, *, connect_timeout: float = CONNECT_TIMEOUT, settings: HostSettings | None = None
    ) -> None:
        self._host = host
        self._settings = settings or HostSettings(host)
        self._connect_timeout = connect_timeout
        self._channels: set[ProgramChannel] = set()
        self._suspects: dict[str, Identity | None] = {}

    @property
    def host(self) -> str:
        """The host as the user spells it."""
        return self._host

    async def open(self, command: str, receiver: ChannelReceiver) -> Channel:
        """Run `command` over a new connection; see `Transport.open`.

        Raises:
            UnreachableError: the host cannot be reached, runs no commands for us, or ssh cannot be run.
            SignInError: it does not let us in, or its host key is not trusted.
            ConfigError: the ssh config cannot be read, or there is no ssh.
        """
        jump = await self._settings.jump_master()
        door = await self._settings.first_door(jump is not None)
        again = pauses()
        while True:
            attempt = Attempt(self._host, timeout=self._connect_timeout)
            if jump is not None:
                attempt.via = f"its jump host {jump[0]}"
            async with Doors.get().knock(door, self._host) as knock:
                try:
                    return await self._connect(command, receiver, attempt, jump, knock)
                except UnreachableError as error:
                    hung_up = knock.lasted < AT_ONCE and turned_away(error, attempt, heard=True)
                    if not hung_up or not (pause := next(again, 0.0)):
                        raise
                    log.debug("%s turned a connection away, trying again: %s", self._host, error)
            await asyncio.sleep(pause)

    async def _connect(
        self,
        command: str,
        receiver: ChannelReceiver,
        attempt: Attempt,
        jump: tuple[str, str] | None,
        knock: Knock,
    ) -> ProgramChannel:
        channel = await self._start(command, receiver, attempt, None, jump)
        channel.heard_of = knock.moved
        try:
            async with asyncio.timeout(self._connect_timeout):
                await asyncio.wait([channel.opened, channel.jumps], return_when=asyncio.FIRST_COMPLETED)
                if not channel.opened.done() and (loop := await find_loop(self._host)) is not None:
                    raise loop.told(self._host)  # each ssh would start one more, and none would notice
                await channel.opened
        except TimeoutError as error:
            channel.note_proxy()
            channel.abandon()
            raise translate(error, attempt) from error
        except SignInError as error:
            channel.abandon()
            if channel.words.revoked is not None:
                await self._note_revoking(attempt, *channel.words.revoked)
                raise translate(asyncssh.HostKeyNotVerifiable("Host key is revoked"), attempt) from error
            if isinstance(error, HostKeyError) and attempt.untrusted and not attempt.known:
                await self._note_settings(attempt)
                if attempt.unkept:
                    raise translate(asyncssh.HostKeyNotVerifiable(error.detail), attempt) from error
            await note_untrusted_key(attempt)
            if attempt.proxy_key:
                raise translate(JumpHostError(attempt.proxy), attempt) from error
            if error.detail.startswith("Permission denied (") and not attempt.mute:
                await self._note_settings(attempt)
                raise translate(asyncssh.PermissionDenied("Permission denied"), attempt) from error
            raise
        except BaseException:
            channel.abandon()
            raise
        channel.start()
        return channel

    async def _note_revoking(self, attempt: Attempt, name: str, port: int | None) -> None:
        """Note by which lines of known hosts keys are revoked, which ssh itself does not say."""
        try:
            resolved = await self._settings.ask()
        except ConfigError as error:
            log.debug("%s: its known hosts are not known: %s", self._host, error)
        else:
            attempt.revoked_at = revoking_lines(resolved.known_hosts_files, name, port)

    async def _note_settings(self, attempt: Attempt) -> None:
        """Note what the config keeps ssh from asking for, and from keeping, which ssh itself does not say."""
        try:
            resolved = await self._settings.ask()
        except ConfigError as error:
            log.debug("%s: its settings are not known: %s", self._host, error)
        else:
            attempt.asks_not = resolved.asks_not
            attempt.unkept = resolved.keeps_no_keys

    async def open_by_master(self, command: str, receiver: ChannelReceiver, master: str) -> Channel:
        """Run `command` over a master that is signed in already, or not at all.

        Args:
            command: as in `open`.
            receiver: as in `open`.
            master: its control path.

        Raises:
            MasterRefusedError: it does not live, does not answer, or has no room.
            ConfigError: there is no ssh.
        """
        channel = await self._start(command, receiver, Attempt(self._host), master)
        try:
            async with asyncio.timeout(REUSE_TIMEOUT):
                await channel.opened
        except TimeoutError:
            channel.abandon()
            self._suspects[master] = socket_identity(master)
            raise MasterRefusedError(f"it did not open a channel within {REUSE_TIMEOUT:g} s") from None
        except AlbedoError as error:
            channel.abandon()
            raise MasterRefusedError(channel.words.lines[0] if channel.words.lines else str(error)) from error
        except BaseException:
            channel.abandon()
            raise
        self._suspects.pop(master, None)
        channel.start()
        return channel

    def give_up_master(self, master: str, reason: str) -> None:
        """End the channels that run over a master, which does not answer any more, and remember that."""
        self._suspects[master] = socket_identity(master)
        for channel in self._channels:
            if channel.master == master:
                channel.break_off(reason)

    def suspects(self, master: str) -> bool:
        """Whether a master has not answered when it was used last; another one at its path is another matter."""
        return master in self._suspects and self._suspects[master] == socket_identity(master)

    async def close(self) -> None:
        """End all channels, and wait until their processes have ended. Masters are not touched."""
        channels = list(self._channels)
        for channel in channels:
            channel.break_off("the connection was closed on this side")
        await asyncio.gather(*(channel.reaped for channel in channels))

    async def _start(
        self,
        command: str,
        receiver: ChannelReceiver,
        attempt: Attempt,
        master: str | None,
        jump: tuple[str, str] | None = None,
    ) -> ProgramChannel:
        program = find_ssh()
        if program is None:
            raise ConfigError(f"{self._host} is to be reached by the ssh program, and there is none on this machine.")
        arguments = ssh_arguments(self._host)
        always = await asyncio.to_thread(plain, program)
        try:
            words = LogPipe()
        except OSError as error:
            raise UnreachableError(
                self._host, f"No directory for ssh's messages could be made: {error.strerror or error}."
            ) from error
        argv = [
            program,
            *self._options(words.path, master),
            *through_master(program, jump),
            *always,
            *arguments,
            command,
        ]
        try:
            process, pipes = start_process(argv, environ={**os.environ, "SSH_ASKPASS_REQUIRE": "never"})
        except OSError as error:
            words.close()
            raise UnreachableError(self._host, f"ssh could not be started: {error.strerror or error}.") from error
        channel = ProgramChannel(self, process, receiver, pipes, words, attempt, master)
        self._channels.add(channel)
        channel.reaped.add_done_callback(lambda _: self._channels.discard(channel))
        return channel

    def _options(self, log_path: str, master: str | None) -> list[str]:
        settings = {
            "BatchMode": "yes",
            # What `Words` reads. It goes to a pipe, and not to jump hosts' ssh, as -v would. Only at level 2 it says
            # whether an end was the command's or the master's.
            "LogLevel": "DEBUG1" if master is None else "DEBUG2",
            # Ours comes first: it ends all that ssh has started, and ssh would leave what a jump host's ssh has.
            "ConnectTimeout": str(math.ceil(self._connect_timeout) + _LATER),
            "ServerAliveInterval": str(KEEPALIVE_INTERVAL),
            "ServerAliveCountMax": str(KEEPALIVE_COUNT),
        }
        where = ["-o", "ControlPath=none"]
        if master is not None:
            # Without its master ssh would connect by itself; that is not asked for here.
            settings["ProxyCommand"] = "false"
            where = control_path_option(master)
        options = [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]
        return ["-T", "-E", log_path, *options, *where]


class ProgramChannel(ProcessChannel):
    """One command on a host, run by an ssh process.

    Attributes:
        opened: done when the host runs the command; fails with the error when it will not.
        jumps: done when ssh goes there through another ssh (ProxyJump).
        master: the control path of the master that it runs over, if any.
        words: what ssh has said.
        transport: what it was opened by.
        heard_of: called whenever ssh has said something.
    """

    def __init__(
        self,
        transport: ProgramTransport,
        process: subprocess.Popen[bytes],
        receiver: ChannelReceiver,
        pipes: Pipes,
        log_pipe: LogPipe,
        attempt: Attempt,
        master: str | None,
    ) -> None:
        super().__init__(process, receiver, pipes)
        self.opened: asyncio.Future[None] = self._loop.create_future()
        # Whoever waits for it gets the error; when nobody does any more, nobody is missing it.
        self.opened.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.jumps: asyncio.Future[None] = self._loop.create_future()
        self.master = master
        self.words = Words(attempt)
        self.transport = transport
        self.heard_of: Callable[[], None] = lambda: None
        self._attempt = attempt
        self._log = log_pipe
        self._log.listen(self._take_line)
        self._stderr = pipes[2]
        self._early = bytearray()
        # Until the host runs the command, standard error is the proxy's: ssh's own words are in the log.
        self._loop.add_reader(self._stderr, self._read_early)

    @property
    def scarce(self) -> bool:
        """A master has room for so many sessions (MaxSessions), and no second one is made; see `Channel.scarce`."""
        return self.master is not None

    def abandon(self) -> None:
        """Nobody wants it: end the process, and tell nobody."""
        self._ended = True
        self.opened.cancel()  # from here on its pipes are not read any more
        self._release()
        child.end(self._process, group=True)  # a command of the config (Match exec) may be what takes so long

    def break_off(self, reason: str) -> None:
        """End the channel: its connection is no good any more."""
        if not self.opened.done():
            self.opened.set_exception(UnreachableError(self._attempt.host, f"{self._attempt.host}: {reason}."))
            return  # whoever opens it abandons it
        self._finish(Exit(None, error=ConnectionError(reason)))

    def suspect(self) -> None:
        """Close, and give up the connection; see `Channel.suspect`."""
        reason = f"{self._attempt.host} does not answer any more"
        self._finish(Exit(None, error=ConnectionError(reason)))
        if self.master is not None:
            self.transport.give_up_master(self.master, reason)

    def _take_line(self, line: str) -> None:
        self.words.take(line)
        self.heard_of()
        log.debug("ssh to %s: %s", self._attempt.host, line)
        if self.words.jumps and not self.jumps.done():
            self.jumps.set_result(None)
        if self.words.opened and not self.opened.done():
            self._loop.remove_reader(self._stderr)
            self.opened.set_result(None)

    def _read_early(self) -> None:
        self._log.drain()  # it may say that what waits on standard error is the command's already
        if self.opened.done():
            return
        try:
            data = os.read(self._stderr, READ_SIZE)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(self._stderr)
            return
        log.debug("on the way to %s: %s", self._attempt.host, data.decode(errors="replace").strip())
        self._early += data
        del self._early[:-STDERR_LIMIT]

    def note_proxy(self) -> None:
        """Note in the attempt what came on standard error so far, and from whom."""
        attempt, said = self._attempt, telling_line(self._early.decode(errors="replace"))
        if self.words.through_proxy:
            attempt.proxy = said or attempt.proxy
            attempt.mute = attempt.step == "connecting"
        else:
            attempt.banner = said

    def _process_ended(self, returncode: int) -> None:
        self._log.drain()
        if not self.opened.done():
            self._read_early()
            self.note_proxy()
            self.opened.set_exception(self.words.refusal())
        self._log.close()
        super()._process_ended(returncode)

    def _explain(self, returncode: int) -> Exit:
        return self.words.ending(returncode)


class LogPipe:
    """A pipe with a name for ssh's log (`-E`); the name is gone as soon as ssh has opened it.

    Attributes:
        path: the name, in a directory that only we can enter.

    Raises:
        OSError: (on construction) it cannot be made.
    """

    def __init__(self) -> None:
        self._directory: str | None = tempfile.mkdtemp(prefix="albedo-ssh-")
        self.path = str(Path(self._directory) / "log")
        self._descriptor: int | None = None
        self._rest = b""
        self._take: Callable[[str], None] = lambda line: None
        try:
            os.mkfifo(self.path, 0o600)
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        except BaseException:
            self._remove_name()
            raise

    def listen(self, take: Callable[[str], None]) -> None:
        """Have `take` called with each line from now on."""
        self._take = take
        assert self._descriptor is not None
        asyncio.get_running_loop().add_reader(self._descriptor, self.drain)

    def drain(self) -> None:
        """Hand on what there is now."""
        while self._descriptor is not None:
            try:
                data = os.read(self._descriptor, READ_SIZE)
            except BlockingIOError:
                return
            if not data:
                # Nobody has it open any more, or nobody had yet (then there is nothing to stop listening to).
                if self._directory is None:
                    asyncio.get_running_loop().remove_reader(self._descriptor)
                return
            self._remove_name()
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._take(line.decode(errors="replace").rstrip("\r"))

    def close(self) -> None:
        """Take no more."""
        if self._descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None
        self._remove_name()

    def _remove_name(self) -> None:
        if self._directory is not None:
            directory, self._directory = self._directory, None
            shutil.rmtree(directory, ignore_errors=True)  # or whoever tidies up there was faster
