"""One command of ours on a host, from the login shell to the first byte that means something.

How our code gets to run, whatever the account's shell is and whatever its profile does: `login_shell.py` has the way
through the shells to the interpreter. That reads `bundle/loader.py` from standard input, and the loader a request. The
stream proper begins behind a random marker; what comes before it is a profile's after all, and goes to the debug log.

A login profile that ends the shell, has it run another program or never comes to an end is left out at a second
attempt, and from then on.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import struct
import time
from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import HostError, UnreachableError
from . import login_shell
from .last_words import death_in, module_in_the_way
from .login_shell import BEAT, BEGUN, NO_PYTHON, Profiles
from .refusals import (
    ended_early,
    no_python,
    password_expired,
    reads_our_input,
    took_too_long,
    wants_new_password,
)
from .ssh_errors import last_line
from .staging import bundle, loader
from .transport import Buffer, Channel, Exit, Transport

log = logging.getLogger("albedo_provisioner.hosts")

_NOISE = 64 * 1024
"""Most bytes of a profile's output to remember, for the error message if nothing else comes."""

_MOST_NOISE = 4 << 20
"""Bytes without a marker after which the host is taken not to run our command at all."""

_ECHO = loader()[:48]
"""What we send first of all that no shell takes for itself."""

_ECHO_GRACE = 3.0
"""Seconds for our code to run although what was sent to it has been printed."""

LONGEST_ANSWER = 300.0
"""Seconds for which a host may keep us waiting while its connection carries something, be it somebody else's."""

_WITHOUT_SETTINGS = ("attach", "list", "end")
"""Requests for which it does not matter what a profile sets."""

_ONCE = ("start", "run")
"""Requests that must not be read by a login that is given up for another one: both might do what they say. They go out
when the shells are behind us, from where on there is no other login. That costs them what a round trip takes longer
than the interpreter's start."""

T = TypeVar("T")


class Visit:
    """A request to a host and the byte stream that follows from it. Used on the I/O thread's loop.

    Args:
        transport: the way to the host.
        request: what the bundle's `entry.py` is to do.
        python: interpreter there, a path (`~/` allowed) or a name; None for the login shell's `python3`.
        received: called with the bytes of the stream.
        closed: called once, at the end, with how it ended and what that means if nothing had come of it.
        writable: called with False when writing should pause, with True when it may go on.

    Attributes:
        begun: whether the account's shells are behind us.
        left_out: why its login profile was left out, in words that follow "its login profile"; empty if it was not.
    """

    def __init__(
        self,
        transport: Transport,
        request: dict[str, Any],
        python: str | None,
        *,
        received: Callable[[bytes], None],
        closed: Callable[[Exit, HostError], None],
        writable: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self.host = transport.host
        self._transport = transport
        self._request = request
        self._python = python
        self._received = received
        self._closed = closed
        self._writable = writable
        self._marker = b"\0albedo:" + os.urandom(12).hex().encode() + b"\n"
        self._before = bytearray()  # what came before the marker
        self.begun = False
        self._marked = False
        self._over = False  # whether the owner wants no more
        self._told = False  # whether the owner has been told the end
        self._noise = bytearray()
        self._printed = 0  # bytes printed before the marker
        self._echoed = False  # whether that was what we had sent
        self._held_up = False
        self._went_on = 0.0  # when the host last said something on the way to its answer
        self.left_out = ""
        self._complaint = ""  # what is wrong with it, once it is known
        self._unsent = b""  # the request, for as long as it is held back
        self._beats = 0
        self._patience: asyncio.TimerHandle | None = None
        self._again: asyncio.Task[None] | None = None
        self.channel: Channel | None = None

    async def open(self) -> None:
        """Go there and send the request.

        Raises:
            HostError: the host cannot be reached or does not let us in.
        """
        wanted = self._request["do"] not in _WITHOUT_SETTINGS
        self.left_out = Profiles.get().why_left_out(self.host, wanted)
        await self._knock()

    async def _knock(self) -> None:
        request = {**self._request, "marker": self._marker.decode(), "bundle": bundle().digest}
        data = json.dumps(request).encode()
        label = f"albedo {self._request['do']} {self._request.get('kernel_id', '')}"
        ours, body = loader() + b"\0", struct.pack("!I", len(data)) + data
        if self._request["do"] in _ONCE:
            self._unsent, body = body, b""
        channel = await self._transport.open(login_shell.COMMAND, self)
        self.channel = channel
        channel.write(login_shell.first_lines(self._python, label, not self.left_out) + ours + body)
        if self._held_up:
            channel.pause_reading()
        if not self.left_out:
            self._patience = asyncio.get_running_loop().call_later(login_shell.PATIENCE, self._lose_patience)

    def send_bundle(self) -> int:
        """Send the archive, which the host asked for with the report `need: bundle`; return its size in bytes."""
        archive = bundle().archive
        self.write(struct.pack("!I", len(archive)), archive)
        return len(archive)

    async def wait_for(self, answer: asyncio.Future[T], seconds: float) -> T:
        """Return what the host is to answer.

        Args:
            answer: becomes it.
            seconds: how long it may take from now, from the last `goes_on`, and from when the connection last carried
                anything (our files, on their way), of which it may be `LONGEST_ANSWER` seconds in all.

        Raises:
            TimeoutError: it took too long.
        """
        self.goes_on()
        try:
            while not answer.done():
                alive = max(self._went_on, min(self.carried_at or 0.0, self._went_on + LONGEST_ANSWER))
                left = alive + seconds - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                await asyncio.wait([answer], timeout=left)
        finally:
            answer.cancel()  # nobody waits for it any more
        return answer.result()

    def goes_on(self) -> None:
        """Note that the host said something on the way to its answer."""
        self._went_on = time.monotonic()

    def took_too_long(self, seconds: float) -> UnreachableError:
        """Return the error for a host that has not answered within so many seconds."""
        self._print_before()
        return took_too_long(
            self.host,
            seconds,
            self._said,
            self._python,
            begun=self.begun,
            shell=bool(self._beats),
            ran=self._marked,
        )

    @property
    def request_sent(self) -> bool:
        """Whether the request may have been read there; one that changes things is not, before the shells are done."""
        return self.channel is not None and not self._unsent

    @property
    def printed(self) -> str:
        """What the host printed on the side so far (its last part)."""
        return self._noise.decode("utf-8", "replace").strip()

    def write(self, *buffers: Buffer) -> None:
        """Send bytes on the stream."""
        if self.channel is not None:
            self.channel.write(*buffers)

    def hold_up(self, yes: bool) -> None:
        """Take nothing from the host until called with False."""
        self._held_up = yes
        if self.channel is not None:
            if yes:
                self.channel.pause_reading()
            else:
                self.channel.resume_reading()

    def close(self) -> None:
        """End it now; `closed` follows. What has not come to our code yet is ended on the host as well."""
        self._over = True
        if self._again is not None:
            self._again.cancel()
        self._be_patient()
        self._close_channel()

    @property
    def carried_at(self) -> float | None:
        """When the connection that it runs on last carried anything; see `Channel.carried_at`."""
        return self.channel.carried_at if self.channel is not None else None

    def retire(self) -> None:
        """Use the connection that it runs on for nothing new."""
        if self.channel is not None:
            self.channel.retire()

    def suspect(self) -> None:
        """End it, and use the connection that it ran on for nothing new."""
        if self.channel is not None:
            self.channel.suspect()

    # -- ChannelReceiver -----------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Pass on what comes behind the marker."""
        if self._marked:
            self._received(data)
            return
        if self._given_up:
            return
        self._before += data
        at = self._before.find(self._marker)
        if at < 0:
            self._look_for_echo(self._before)
        if not self.begun and BEGUN in self._before:
            self._shell_is_done()
        if at < 0 and NO_PYTHON in self._before:
            self._print_before()
            self._tell_end(Exit(127), no_python(self.host, self._python, self._said, self.left_out))
            self._close_channel()
            return
        if at < 0:
            self._count(data)
            return
        self._print(bytes(self._before[:at]))
        self._marked = True
        rest = bytes(self._before[at + len(self._marker) :])
        self._before.clear()
        if rest:
            self._received(rest)

    def stderr_received(self, data: bytes) -> None:
        """Keep what the host prints on the side for whoever looks for a cause."""
        if self._given_up:
            return
        if not self._marked:
            self._beats += data.count(BEAT)
            data = data.replace(BEAT, b"")
            if not self.begun:  # else it comes from what a profile has left in the background
                self._count(data)
            self._look_for_echo(self._noise + data)
        self._print(data)

    def pause_writing(self) -> None:
        """Tell the owner to wait."""
        self._writable(False)

    def resume_writing(self) -> None:
        """Tell the owner to go on."""
        self._writable(True)

    def closed(self, how: Exit) -> None:
        """Tell the owner how it ended, or try again without the login profile if that is the cause."""
        self._be_patient()
        if not self.begun and wants_new_password(self.printed):
            self._tell_end(how, password_expired(self.host))
            return
        if self.begun or self.left_out or self._over or self._told or how.error is not None:
            self._tell_end(how)
            return
        self._complaint = self._complaint or f"ends the shell before a command can run ({how.words})"
        log.debug("%s: its login profile %s; trying without it", self.host, self._complaint)
        self._again = asyncio.get_running_loop().create_task(self._leave_profile_out())

    # -- the login profile ---------------------------------------------------------------------------------------------

    def _shell_is_done(self) -> None:
        self.begun = True
        self._be_patient()
        if self._unsent and not self._over:
            self.write(self._unsent)
            self._unsent = b""
        if not self.left_out:
            Profiles.get().take(self.host)
        elif Profiles.get().leave_out(self.host, self.left_out):
            printed = f" It printed: {self._said}" if self._said else ""
            log.warning(
                "%s: its login profile %s, so it is left out, and with it what it sets (PATH, modules, conda).%s",
                *(self.host, self.left_out, printed),
            )

    @property
    def _given_up(self) -> bool:
        """Whether another login, without the profile, takes the place of this one."""
        return bool(self._complaint) and not self.left_out

    def _lose_patience(self) -> None:
        """The login shell is at work, as its watcher says, or it is not known what keeps the host."""
        if self._beats and not self.begun:
            self._complaint = f"takes longer than {login_shell.PATIENCE:g} s"
            self._close_channel()

    def _look_for_echo(self, printed: bytes | bytearray) -> None:
        """See whether something reads what is ours and prints it: then Python will not get to read it. (Not at once: a
        terminal that somebody put in between prints it as well.)
        """
        if not self._echoed and _ECHO in printed:
            self._echoed = True
            asyncio.get_running_loop().call_later(_ECHO_GRACE, self._lose_to_echo)

    def _lose_to_echo(self) -> None:
        if not self._marked and not self._told:
            self._tell_end(Exit(None), reads_our_input(self.host, self.begun))
            self._close_channel()

    def _be_patient(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _count(self, data: bytes) -> None:
        """Note that so much was printed before our code ran, and put up with so much only."""
        self._printed += len(data)
        if self._printed > _MOST_NOISE:
            self._complaint = f"prints more than {_MOST_NOISE >> 20} MB"
            self._close_channel()

    async def _leave_profile_out(self) -> None:
        self.left_out = self._complaint
        self._print_before()
        self._printed = self._beats = 0
        try:
            await self._knock()
        except HostError as error:
            self._tell_end(Exit(None, error=error))

    # -- the end -------------------------------------------------------------------------------------------------------

    def _close_channel(self) -> None:
        if self.channel is not None:
            if self._marked:
                self.channel.close()
            else:
                self.channel.kill()

    def _tell_end(self, how: Exit, meaning: HostError | None = None) -> None:
        if self._told:
            return
        self._told = True
        self._print_before()
        early = ended_early(
            self.host,
            how,
            self._said,
            self._python,
            begun=self.begun,
            ran=self._marked,
            left_out=self.left_out,
            in_the_way=module_in_the_way(self.printed),
        )
        self._closed(how, meaning or early)

    @property
    def _said(self) -> str:
        """What the host printed on the side and tells most: its last line mostly, fit for a message."""
        return death_in(self.printed) or last_line(self.printed)

    def _print_before(self) -> None:
        self._print(bytes(self._before))
        self._before.clear()

    def _print(self, data: bytes) -> None:
        data = data.replace(BEGUN, b"").replace(NO_PYTHON, b"")
        if data and (self._marked or not self._echoed):  # what is ours may hold a kernel's key
            log.debug("%s printed: %s", self.host, data.decode("utf-8", "replace").rstrip())
            self._noise += data
            del self._noise[:-_NOISE]
