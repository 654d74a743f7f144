"""One visit to a host that brings back all there is to say of it, and measures the way there.

The host's half is `bundle/examine.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import asyncssh

from ...bundle.wire import Frame, FrameReader, ProtocolError
from ...errors import AlbedoError, HostError, KernelStartError
from ..openssh import MasterRefusedError, ProgramChannel, ProgramTransport
from ..ssh_channel import MAX_CHANNELS, SSHChannel
from ..staging import bare_text
from ..transport import Channel, Exit, Transport
from ..visit import Visit

ANSWER_TIMEOUT = 30.0
"""Seconds for our code to run once the host has begun our command, a slow login profile included."""

LOOKS_TIMEOUT = 30.0
"""Seconds for all looks on the host; it gives up earlier by itself."""

MEASURE_TIMEOUT = 10.0
"""Seconds for each of the measures."""

_MAIN = "main(request, read, report, lambda: import_ours(request, read, report, is_trusted), in_the_way)"

_PINGS = 6
_ENOUGH = 0.3  # seconds of transfer that tell enough of the throughput
_FIRST, _MOST = 1 << 15, 1 << 24  # bytes that are sent at once to find it out
_SESSIONS_TIMEOUT = 10.0


@dataclass
class Examined:
    """What a host has told of itself. What was not come to is None, or not there.

    Attributes:
        error: why it did not tell more.
        ended: how its command ended, when that is why.
        channel: the channel of the visit, over when this is returned.
        connected: seconds until the host began our command, connecting and signing in included.
        answered: seconds from then until our code ran there: what the login took.
        printed: what its login profile printed.
        begun: whether the account's shells let our command through.
        left_out: why the login profile was left out, in words that follow "its login profile"; empty if it was not.
        here: its interpreter and system.
        memory: bytes of address space that a process may have there; None for as many as it likes.
        open_files: files that a kernel may have open there; None where that was not told.
        not_fetched: why packages that it lacks cannot be fetched on this machine; empty when they can, None where that
            is not known.
        looks: by name, what was seen (`facts`) or why nothing was (`failed`).
        round_trip: the shortest of some, in seconds.
        skew: seconds that its clock is ahead of this one's.
        up, down: bytes a second to it and from it.
        sessions: how many sessions it allows on one connection, as far as we would use them; on one that is signed in
            already, how many it has room for.
    """

    error: AlbedoError | None = None
    ended: Exit | None = None
    channel: Channel | None = None
    connected: float | None = None
    answered: float | None = None
    printed: str = ""
    begun: bool = False
    left_out: str = ""
    here: dict[str, Any] | None = None
    memory: int | None = None
    open_files: int | None = None
    not_fetched: str | None = None
    looks: dict[str, dict[str, Any]] = field(default_factory=dict)
    round_trip: float | None = None
    skew: float | None = None
    up: float | None = None
    down: float | None = None
    sessions: int | None = None


async def examine(
    transport: Transport, folder: str | None, python: str | None, enter: Callable[[str], None]
) -> Examined:
    """Go to a host and have it examined; on the I/O thread. Whatever happens is in what is returned.

    Args:
        transport: the way there.
        folder: the path of a folder that a kernel is to run in; None to look at none.
        python: the interpreter, as for a kernel.
        enter: called with each step: "connecting", "asking", "measuring".
    """
    found = Examined()
    code = f"{bare_text('unstaged.py')}\n{bare_text('examine.py')}\n{_MAIN}\n"
    talk = _Conversation(transport, {"do": "examine", "code": code, "cwd": folder}, python)
    try:
        enter("connecting")
        await _ask(talk, found, enter)
        enter("measuring")
        await _measure(talk, found)
        found.sessions = await _count_sessions(talk.visit.channel)
    except AlbedoError as error:
        found.error = error
        found.ended = talk.ended
    finally:
        found.channel = talk.visit.channel
        found.begun, found.left_out = talk.visit.begun, talk.visit.left_out
        talk.visit.close()
    return found


async def _ask(talk: _Conversation, found: Examined, enter: Callable[[str], None]) -> None:
    began = time.monotonic()
    await talk.visit.open()
    enter("asking")
    opened = time.monotonic()
    found.connected = opened - began
    first = await talk.report(ANSWER_TIMEOUT)
    found.printed = talk.visit.printed  # what comes later is no profile's
    found.here, found.memory, found.open_files = first["here"], first["memory"], first["files"]
    found.answered = time.monotonic() - opened
    limit = time.monotonic() + LOOKS_TIMEOUT
    while "looked" not in (report := await talk.report(limit - time.monotonic())):
        if report.get("need") == "bundle":
            talk.visit.send_bundle()
        elif "look" in report:
            found.looks[str(report["look"])] = report


async def _measure(talk: _Conversation, found: Examined) -> None:
    """Measure the way; what is too slow to be measured is left out."""
    try:
        async with asyncio.timeout(MEASURE_TIMEOUT):
            trips = [await _ping(talk) for _ in range(_PINGS)]
            found.round_trip, found.skew = min(trips)
        async with asyncio.timeout(MEASURE_TIMEOUT):
            found.up = await _rate(talk, "take", found.round_trip)
        async with asyncio.timeout(MEASURE_TIMEOUT):
            found.down = await _rate(talk, "give", found.round_trip)
    except TimeoutError:
        return  # bytes are under way, and nothing can be asked behind them


async def _ping(talk: _Conversation) -> tuple[float, float]:
    """Return how long a question and its answer took, and how far the host's clock was ahead."""
    began, clock = time.monotonic(), time.time()
    there = (await talk.put(0))["time"]
    took = time.monotonic() - began
    return took, float(there) - (clock + took / 2)


async def _rate(talk: _Conversation, do: str, round_trip: float) -> float:
    """Send ("take") or get ("give") more and more, until it takes long enough to tell the throughput."""
    size, noise = _FIRST, os.urandom(_MOST)
    while True:
        began = time.monotonic()
        await (talk.put(size, noise) if do == "take" else talk.get(size))
        took = max(time.monotonic() - began - round_trip, 1e-6)
        if took > _ENOUGH or size >= _MOST:
            return size / took
        size *= 8


async def _count_sessions(channel: Channel | None) -> int | None:
    """Return how many sessions the server allows on the connection of a channel, as many as kernels would share it; on
    one of another process, for how many there is room.
    """
    if isinstance(channel, ProgramChannel) and channel.master is not None:
        return await _count_room(channel.transport, channel.master)
    if not isinstance(channel, SSHChannel):
        return None
    opened: list[SSHChannel] = []
    try:
        async with asyncio.timeout(_SESSIONS_TIMEOUT):
            while channel.connection.load < MAX_CHANNELS:
                opened.append(await channel.connection.open("exec cat", _Silent()))
        return channel.connection.load
    except asyncssh.ChannelOpenError:
        return len(opened) + 1
    except (asyncssh.Error, AlbedoError, OSError):  # a timeout among them: not known
        return None
    finally:
        for each in opened:
            each.close()


async def _count_room(program: ProgramTransport, master: str) -> int | None:
    """Return for how many sessions a master has room, that of the visit included, as many as kernels would take."""
    opened: list[Channel] = []
    try:
        async with asyncio.timeout(_SESSIONS_TIMEOUT):
            while len(opened) + 1 < MAX_CHANNELS:
                opened.append(await program.open_by_master("exec cat", _Silent(), master))
    except MasterRefusedError as refusal:
        return len(opened) + 1 if refusal.full else None
    except (AlbedoError, OSError):  # a timeout among them: not known
        return None
    finally:
        for each in opened:
            each.close()
    return MAX_CHANNELS


class _Silent:
    """Takes what comes on a channel that is only there to be counted."""

    def data_received(self, data: bytes) -> None:
        pass

    def stderr_received(self, data: bytes) -> None:
        pass

    def pause_writing(self) -> None:
        pass

    def resume_writing(self) -> None:
        pass

    def closed(self, how: Exit) -> None:
        pass


class _Conversation:
    """Questions and answers with `bundle/examine.py`.

    Attributes:
        visit: the visit.
        ended: how the host's command ended, once it has.
    """

    def __init__(self, transport: Transport, request: dict[str, Any], python: str | None) -> None:
        self.ended: Exit | None = None
        self._reader = FrameReader()
        self._reports: asyncio.Queue[dict[str, Any] | AlbedoError] = asyncio.Queue()
        self._left = 0  # bytes that come outside of frames
        self._all_there = asyncio.Event()
        self.visit = Visit(transport, request, python, received=self._received, closed=self._closed)

    async def report(self, seconds: float) -> dict[str, Any]:
        """Return what the host says next.

        Raises:
            AlbedoError: it does not, or says what is not understood.
        """
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                report = await self._reports.get()
        except TimeoutError:
            raise self.visit.took_too_long(round(seconds)) from None
        if isinstance(report, AlbedoError):
            raise report
        return report

    async def put(self, size: int, noise: bytes = b"") -> dict[str, Any]:
        """Send so many bytes, and return what the host says when it has them."""
        self._command({"do": "take", "size": size})
        self.visit.write(memoryview(noise)[:size])
        return await self.report(2 * MEASURE_TIMEOUT)  # who measures gives up earlier

    async def get(self, size: int) -> None:
        """Have the host send so many bytes."""
        self._left = size
        self._all_there.clear()
        self._command({"do": "give", "size": size})
        await self._all_there.wait()
        if self._left:
            await self.report(0)  # it raises what ended it

    def _command(self, command: dict[str, Any]) -> None:
        data = json.dumps(command).encode()
        self.visit.write(struct.pack("!I", len(data)) + data)

    def _received(self, data: bytes) -> None:
        if self._left:
            self._left -= len(data)  # nothing comes behind them before it is asked for
            if self._left <= 0:
                self._left = 0
                self._all_there.set()
            return
        try:
            for frame in self._reader.feed(data):
                if isinstance(frame, Frame):
                    self._reports.put_nowait(frame.json())
        except ProtocolError as error:
            host = self.visit.host
            self._reports.put_nowait(
                KernelStartError(host, f"{host} answered what we do not understand: {error}.", str(error))
            )
            self.visit.close()

    def _closed(self, how: Exit, error: HostError) -> None:
        self.ended = how
        self._reports.put_nowait(error)
        self._all_there.set()
