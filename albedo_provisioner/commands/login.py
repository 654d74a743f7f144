"""`jupyter albedo login`: sign in to a host in the terminal, for kernels that nobody could ask for a password."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import AlbedoError, ConfigError, SignInError
from ..location import parse_host
from .table import say
from .waiting import waiting

if TYPE_CHECKING:
    from ..hosts.openssh_config import Resolved
    from ..hosts.ssh_errors import Attempt

_DESCRIPTION = """\
Sign in to a host that asks for something: a password, a second factor, a passphrase, whether to trust its key.

Your own ssh asks, in this terminal. The connection then stays open in the background, and kernels go over it, those
that wait for the host at once: at your own ControlPath if your ssh config has one, else in a private directory. It ends
by itself when it has not been used for eight hours (or for your own ControlPersist), when the host has not answered for
a minute, and with --logout. A host that needs no sign-in gets none. Where a connection has no room for more kernels
(the server's MaxSessions), signing in again makes one more.
"""

IDLE_HOURS = 8
"""How long a connection stays that nobody uses; a kernel that is linked uses it."""

_ALIVE_EVERY, _ALIVE_COUNT = 15, 3
"""Seconds of silence after which the host is asked for a sign of life, and how many may be missing."""

_BATCH_TIMEOUT = 20
"""Seconds for an ssh that asks nothing: connecting, signing in, running a command that does nothing."""

_MASTER_TIMEOUT = 5
"""Seconds for the same over a connection that is there already."""

_CONTROL_TIMEOUT = 3
"""Seconds for such a connection to hear what it is told; nothing goes to the host for that."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "login",
        help="sign in to a host that asks for a password or the like",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("host", metavar="HOST", help="[user@]host, as in a location")
    parser.add_argument("--logout", action="store_true", help="end the connection instead, and what runs over it")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Sign in, or out, and say what was done."""
    from ..hosts.control_paths import is_listened_to
    from ..hosts.openssh_config import resolve
    from ..hosts.remote import chosen_way

    host = parse_host(arguments.host)
    if host is None:
        say("This machine needs no sign-in.")
        return 0
    ssh = _Ssh(host)
    resolved = resolve(host)
    if arguments.logout:
        return _logout(ssh, ssh.masters(resolved))
    if chosen_way() == "builtin":
        raise ConfigError("ALBEDO_SSH=builtin keeps kernels from going over connections of the ssh program; unset it.")
    full = []
    for path in ssh.masters(resolved):
        with waiting(f"{ssh.host}: looking whether you are signed in ..."):
            room = ssh.room_on(path)
        if room:
            say(f"You are signed in to {ssh.host} already: its connection is at {path}.")
            return 0
        if room is None:
            if not ssh.control(path, "exit") and is_listened_to(path):
                # An ssh that is to make a new one there, or any other one of the user's, would wait for it for ever.
                raise AlbedoError(_hung(ssh.host, path))
        else:
            full.append(path)
    if full:
        say(f"The connection to {ssh.host} has no room for more sessions (the server's MaxSessions); one more is made.")
    with waiting(f"{ssh.host}: looking whether it needs a sign-in ..."):
        words = ssh.fails_unasked()
    if words is None:
        say(f"{ssh.host} needs no sign-in: your keys let you in. Nothing was left running.")
        return 0
    _must_be_askable(ssh, resolved, words)
    path = _sign_in(ssh, resolved, full)
    if "Host key verification failed" in words and ssh.fails_unasked() is None:
        ssh.control(path, "exit")
        say(f"The host key of {ssh.host} is known now, and no further sign-in is needed. Nothing was left running.")
        return 0
    say(
        f"Signed in to {ssh.host}. The connection stays open in the background, at {path}; kernels there go over it "
        f"from now on. `jupyter albedo login --logout {ssh.host}` ends it."
    )
    return 0


def _must_be_askable(ssh: _Ssh, resolved: Resolved, words: str) -> None:
    """See that a sign-in has a chance: that ssh, which did not get in unasked, would ask, and that somebody is there.

    Args:
        ssh: the user's ssh.
        resolved: what it says of the host.
        words: its log.

    Raises:
        AlbedoError: it would not, and why.
    """
    from ..hosts.openssh_words import Words
    from ..hosts.ssh_errors import Attempt

    attempt = Attempt(ssh.host, asks_not=resolved.asks_not)
    said = Words(attempt)
    for line in words.splitlines():
        said.take(line)
    error = said.refusal()
    if isinstance(error, SignInError) and not attempt.known and (attempt.strict or _asks_nothing(attempt)):
        raise error
    if sys.stdin.isatty():
        return  # whatever it is, ssh says it there
    if not isinstance(error, SignInError) or attempt.known:
        raise error
    raise AlbedoError(
        f"ssh has to ask you something to sign in to {ssh.host}, and this is no terminal. Run the command in one."
    )


def _asks_nothing(attempt: Attempt) -> bool:
    """Whether ssh asks for nothing that would let it in: the config has it so, or the server takes keys alone."""
    if attempt.wants_another_key:
        return True
    return not attempt.left_to_ask and bool(attempt.forbids or (attempt.accepted and attempt.asks_not))


def _sign_in(ssh: _Ssh, resolved: Resolved, full: list[str]) -> str:
    """Have ssh ask, and leave a connection; return its control path.

    Args:
        ssh: the user's ssh.
        resolved: what it says of the host.
        full: the control paths of connections that are there and have no room.
    """
    from ..hosts.control_paths import make_our_directory, names, socket_identity
    from ..hosts.openssh_options import control_path_option

    path, options = "" if resolved.control_path in full else resolved.control_path, []
    if path and (not Path(path).parent.is_dir() or (os.path.lexists(path) and socket_identity(path) is None)):
        reason = "what is there is not yours" if os.path.lexists(path) else "there is no such directory"
        say(f"Your ControlPath is {path}, and {reason}; another place is taken.", file=sys.stderr)
        path = ""
    if not path:
        directory = make_our_directory(resolved.route(ssh.host))
        free = [each for each in names(ssh.digest()) if str(directory / each) not in full]
        if not free:
            raise AlbedoError(
                f"There are {len(full)} connections to {ssh.host}, and no more are made. Shut kernels down "
                "from their notebooks, or have the server's MaxSessions raised."
            )
        path = str(directory / free[0])
        options += [
            "-o",
            "ClearAllForwardings=yes",
            "-o",
            "Tunnel=no",
        ]  # those of the config are for the user's own connections
    if not resolved.is_on("controlpersist"):
        options += ["-o", f"ControlPersist={IDLE_HOURS}h"]
    if not 0 < int(resolved.get("serveraliveinterval") or 0) <= _ALIVE_EVERY:
        options += ["-o", f"ServerAliveInterval={_ALIVE_EVERY}", "-o", f"ServerAliveCountMax={_ALIVE_COUNT}"]
    options += ["-o", "BatchMode=no", "-o", "RemoteCommand=none", "-o", "PermitLocalCommand=no"]
    # Not -M: that leaves a dead socket in its place, and ssh in the background without one.
    options += ["-o", "ControlMaster=auto"]
    status = ssh.run("-N", "-f", "-T", *control_path_option(path), *options).returncode
    if status != 0:
        raise AlbedoError(f"The sign-in to {ssh.host} failed; what ssh said is above.")
    if ssh.room_on(path) is None:
        raise AlbedoError(f"The sign-in to {ssh.host} succeeded, but ssh left no connection that works at {path}.")
    return path


def _logout(ssh: _Ssh, masters: list[str]) -> int:
    from ..hosts.control_paths import is_listened_to

    ended = [path for path in masters if ssh.control(path, "exit")]
    for path in ended:
        say(f"Signed out of {ssh.host}: the connection at {path} has ended.")
    hung = [path for path in masters if path not in ended and is_listened_to(path)]
    if hung:
        raise AlbedoError(" ".join(_hung(ssh.host, path) for path in hung))
    if not ended:
        say(f"There is no connection to {ssh.host} to end.")
    return 0


def _hung(host: str, path: str) -> str:
    """Return what is told of a connection whose process takes no notice of anything."""
    from ..hosts.control_paths import listeners

    pids = listeners(path)
    who = f"process {' and '.join(map(str, pids))}" if pids else "whatever listens there"
    end = f"kill -9 {' '.join(map(str, pids))}; " if pids else ""
    return (
        f"The connection to {host} at {path} is there and does not answer, also not when it is told to end ({who}; it "
        f"may be stopped). End it yourself: `{end}rm {shlex.quote(path)}`, then sign in again."
    )


class _Ssh:
    """The user's ssh, for one host.

    Raises:
        ConfigError: (on construction) there is none, or the text is no host.
    """

    def __init__(self, host: str) -> None:
        from ..hosts.destination import find_ssh, ssh_arguments

        program = find_ssh()
        if program is None:
            raise ConfigError("There is no ssh program on this machine to sign in with.")
        self.host = host
        self._program = program
        self._host_arguments = ssh_arguments(host)

    def run(self, *options: str) -> subprocess.CompletedProcess[bytes]:
        """Run ssh in the terminal; what it leaves in the background outlives the terminal."""
        # ssh itself leaves the terminal's session, but what it runs for a jump host or proxy command does not.
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            return subprocess.run([self._program, *self._way(), *options, *self._host_arguments], check=False)
        finally:
            signal.signal(signal.SIGHUP, before)

    def _way(self) -> list[str]:
        """Return the options that lead through the connection to a jump host that the person is signed in to."""
        from ..hosts import io_thread
        from ..hosts.openssh_config import HostSettings
        from ..hosts.openssh_options import through_master

        jump = io_thread.run_blocking(HostSettings(self.host).jump_master())
        return through_master(self._program, jump, detached=True)

    def quietly(
        self, *options: str, command: str | None = None, timeout: float = _BATCH_TIMEOUT
    ) -> subprocess.CompletedProcess[str] | None:
        """Run ssh without asking anything; None when it took too long."""
        from ..hosts import child
        from ..hosts.openssh_options import attached

        # What it says is read here, however little of it the config wants to see.
        always = ["-o", "BatchMode=yes", *attached(self._program), *options, "-o", "LogLevel=INFO"]
        argv = [self._program, "-T", *always, *self._host_arguments]
        try:
            return child.run(
                [*argv, command] if command else argv,
                timeout,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env={**os.environ, "SSH_ASKPASS_REQUIRE": "never"},
            )
        except subprocess.TimeoutExpired:
            return None

    def fails_unasked(self) -> str | None:
        """Return ssh's log when it does not get in without asking; None when it does.

        Raises:
            SignInError: it gets in, and has to choose a new password there.
        """
        from ..hosts.openssh_options import plain
        from ..hosts.refusals import password_expired, wants_new_password

        options = ["-o", "ControlPath=none", "-o", "LogLevel=DEBUG1", *plain(self._program), *self._way()]
        told = self.quietly(*options, command="true")
        if told is None:
            return f"ssh did not get in within {_BATCH_TIMEOUT} s"
        if told.returncode and wants_new_password(told.stderr):
            raise password_expired(self.host)
        return told.stderr if told.returncode == 255 else None

    def room_on(self, path: str) -> bool | None:
        """Whether a master runs commands; False when it would if it had room, None when it does not answer."""
        from ..hosts.openssh_options import control_path_option, plain

        options = [*control_path_option(path), *plain(self._program), "-o", "ProxyCommand=false"]
        told = self.quietly(*options, command="true", timeout=_MASTER_TIMEOUT)
        if told is None or (told.returncode == 255 and "session request failed" not in told.stderr):
            return None
        return told.returncode != 255

    def control(self, path: str, what: str) -> bool:
        """Tell a master something; whether it was there to hear it."""
        from ..hosts.openssh_options import control_path_option

        told = self.quietly(*control_path_option(path), "-O", what, timeout=_CONTROL_TIMEOUT)
        return told is not None and told.returncode == 0

    def digest(self) -> str:
        """Return what ssh makes of "%C" for the host: a socket's name, different for each host, account and port."""
        from ..hosts.openssh_config import resolve

        return resolve(self.host, ControlPath="%C").control_path

    def masters(self, resolved: Resolved) -> list[str]:
        """Return the control paths at which there is a socket of this user now."""
        from ..hosts.control_paths import names, our_directories, socket_identity

        paths = [*([resolved.control_path] if resolved.control_path else [])]
        directories = our_directories(resolved.route(self.host))
        paths += [str(directory / name) for directory in directories for name in names(self.digest())]
        return [path for path in paths if socket_identity(path)]
