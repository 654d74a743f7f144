"""Having a host answer questions that need no keeper: one, or one after another by the same process there.

Reaching our code on a host takes a channel, the account's shells and an interpreter. Who asks about folders asks again
soon, so the process that has answered is kept for a while, and the next question costs one round trip and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import struct
import time
from typing import Any, Protocol

from ..bundle.wire import Frame, FrameReader, ProtocolError
from ..errors import HostError, KernelStartError, KilledError
from .activity import Activity
from .io_thread import IOThread
from .pool import HostPool
from .progress import Progress
from .refusals import refused
from .transport import Exit
from .visit import Visit

log = logging.getLogger("albedo_provisioner.hosts")

ANSWER_TIMEOUT = 30.0
"""Seconds for an answer once a command runs on the host, a slow login profile included."""

HEARD_TIMEOUT = 2.0
"""Seconds in which a process that was kept has to say that it has heard a question."""

KEPT = 30.0
"""Seconds for which a process that has answered is kept for the next question."""

_OLDEST = 600.0
"""Seconds after which one is not kept any longer: by then what the account's shells set may be another."""

_LOOKS = ("check", "describe", "list", "look", "probe", "survey")
"""Requests that change nothing on a host."""

_MOST_KEPT = 2
"""Processes that are kept for one interpreter of a host, at most."""


class Parcel(Protocol):
    """Something that goes with a request, once the host asks for it, or that comes in pieces before the answer.

    Attributes:
        step: what is going on meanwhile, for `Activity`.
    """

    step: str

    def heard(self, visit: Visit, report: dict[str, Any]) -> bool:
        """Take what the host says on the way to its answer; False for what is the answer."""

    def writable(self, yes: bool) -> None:
        """Pause sending, or go on."""


async def ask(
    host: str | None, request: dict[str, Any], python: str | None = None, parcel: Parcel | None = None
) -> dict[str, Any]:
    """Have a host answer a request; on the I/O thread.

    Where the process that answers is killed, what changes nothing is asked once more.

    Raises:
        AlbedoError: it cannot be reached, or refuses.
    """
    if parcel is None and request["do"] in _LOOKS:
        try:
            return await _ask(host, request, python, None)
        except KilledError as error:
            log.info("%s Asking again.", error)
    return await _ask(host, request, python, parcel)


async def _ask(host: str | None, request: dict[str, Any], python: str | None, parcel: Parcel | None) -> dict[str, Any]:
    asked = _Asked(host, request, python, parcel)
    try:
        report = await asked.first_answer()
    finally:
        asked.close()
    return asked.accepted(report)


async def ask_again(host: str | None, request: dict[str, Any], python: str | None, parcel: Parcel) -> dict[str, Any]:
    """Have a host answer a request by a process that is kept for the next one; on the I/O thread.

    It may be asked twice, where the first process was lost on the way: not for what changes anything.

    Raises:
        AlbedoError: as `ask`.
    """
    kept = IOThread.get().only(_Kept)
    while (asked := kept.take(host, python)) is not None:
        try:
            report = await asked.next_answer(request, parcel)
        except _LostError:
            asked.close()
            continue
        except BaseException:
            asked.close()
            raise
        kept.keep(host, python, asked)
        return asked.accepted(report)
    asked = _Asked(host, {**request, "stay": 2 * KEPT}, python, parcel)
    try:
        report = await asked.first_answer()
    except BaseException:
        asked.close()
        raise
    kept.keep(host, python, asked)
    return asked.accepted(report)


async def end_kept() -> None:
    """End all processes that are kept for the next question; on the I/O thread."""
    IOThread.get().only(_Kept).end_all()


class _LostError(Exception):
    """A process that was kept is not there any more."""


class _Asked:
    """A process of ours on a host, and the answer of it that is awaited."""

    def __init__(self, host: str | None, request: dict[str, Any], python: str | None, parcel: Parcel | None) -> None:
        self._python = python
        self._parcel = parcel
        self._reader = FrameReader()
        self._answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._heard: asyncio.Future[None] | None = None
        self._activity = Activity.get()
        self._visit = Visit(
            HostPool.get().transport_for(host),
            request,
            python,
            received=self._received,
            closed=self._closed,
            writable=lambda yes: self._parcel.writable(yes) if self._parcel is not None else None,
        )
        self.since = time.monotonic()
        self.ended = False
        """Whether it will answer nothing more."""

    @property
    def scarce(self) -> bool:
        """Whether it takes room that somebody may need for more than that."""
        return self._visit.channel is None or self._visit.channel.scarce

    def close(self) -> None:
        """End it. Nobody waits for an answer any more."""
        self.ended = True
        for waiting in (self._heard, self._answer):
            if waiting is not None:
                waiting.cancel()
        self._visit.close()

    def accepted(self, report: dict[str, Any]) -> dict[str, Any]:
        """Return an answer.

        Raises:
            AlbedoError: it is a refusal.
        """
        if "error" in report:
            raise refused(self._visit.host, report, self._python)
        return report

    async def first_answer(self) -> dict[str, Any]:
        """Go there, and return the answer to the request.

        Raises:
            AlbedoError: the host cannot be reached, or does not answer.
        """
        host = self._visit.host
        self._activity.enter(host, self._visit, "connecting")
        try:
            await self._visit.open()
            self._activity.enter(host, self._visit, "asking" if self._parcel is None else self._parcel.step)
            return await self._wait()
        finally:
            self._activity.leave(host, self._visit)

    async def next_answer(self, request: dict[str, Any], parcel: Parcel) -> dict[str, Any]:
        """Return the answer to another request.

        Raises:
            _LostError: the process has not heard it.
            AlbedoError: it has, and does not answer.
        """
        self._parcel = parcel
        loop = asyncio.get_running_loop()
        self._answer, self._heard = loop.create_future(), loop.create_future()
        host, data = self._visit.host, json.dumps(request).encode()
        self._activity.enter(host, self._visit, parcel.step)
        try:
            self._visit.write(struct.pack("!I", len(data)), data)
            await self._must_be_heard()
            return await self._wait()
        finally:
            self._activity.leave(host, self._visit)

    async def _must_be_heard(self) -> None:
        assert self._heard is not None
        try:
            await self._visit.wait_for(self._heard, HEARD_TIMEOUT)
        except (TimeoutError, HostError):
            # Whether it is the connection that does not answer shows when another channel is opened on it.
            raise _LostError from None

    async def _wait(self) -> dict[str, Any]:
        try:
            report = await self._visit.wait_for(self._answer, ANSWER_TIMEOUT)
        except TimeoutError:
            if self._parcel is not None:
                self._visit.suspect()  # the host was answering until then
            raise self._visit.took_too_long(ANSWER_TIMEOUT) from None
        if report.get("error") == "elsewhere":
            self._visit.retire()  # the next connection may lead to the right machine
            self.ended = True
        return report

    def _received(self, data: bytes) -> None:
        try:
            frames = [frame.json() for frame in self._reader.feed(data) if isinstance(frame, Frame)]
        except ProtocolError as error:
            host = self._visit.host
            self._fail(KernelStartError(host, f"{host} answered what we do not understand: {error}."))
            self.close()
            return
        for report in frames:
            if report.get("need") == "bundle":
                size = self._visit.send_bundle()
                self._activity.enter(self._visit.host, self._visit, "staging", Progress(0, size, packages=False))
            elif report.get("heard") and self._heard is not None:
                if not self._heard.done():
                    self._heard.set_result(None)
            elif self._parcel is not None and self._parcel.heard(self._visit, report):
                self._visit.goes_on()
            elif not self._answer.done():
                self._answer.set_result(report)

    def _closed(self, _: Exit, error: HostError) -> None:
        self.ended = True
        self._fail(error)

    def _fail(self, error: HostError) -> None:
        for waiting in (self._heard, self._answer):
            if waiting is not None and not waiting.done():
                waiting.set_exception(error)
                break


_Key = tuple[str | None, str | None, tuple[tuple[str, str], ...]]


class _Kept:
    """The processes of this process on hosts that wait for a question."""

    def __init__(self) -> None:
        self._waiting: dict[_Key, list[tuple[_Asked, asyncio.TimerHandle]]] = {}

    def take(self, host: str | None, python: str | None) -> _Asked | None:
        """Return one, which from now on is the caller's; None when there is none."""
        waiting = self._waiting.get(_key(host, python), [])
        while waiting:
            asked, timer = waiting.pop()
            timer.cancel()
            if not asked.ended:
                return asked
        return None

    def keep(self, host: str | None, python: str | None, asked: _Asked) -> None:
        """Keep one for the next question, or end it where that would be in the way of something else."""
        for key, each in list(self._waiting.items()):
            each[:] = [(one, timer) for one, timer in each if not one.ended]
            if not each:
                del self._waiting[key]
        waiting = self._waiting.setdefault(_key(host, python), [])
        too_old = time.monotonic() - asked.since > _OLDEST
        if asked.ended or asked.scarce or too_old or len(waiting) >= _MOST_KEPT:
            asked.close()
            return
        waiting.append((asked, asyncio.get_running_loop().call_later(KEPT, asked.close)))

    def end_all(self) -> None:
        """End them all."""
        for waiting in self._waiting.values():
            for asked, timer in waiting:
                timer.cancel()
                asked.close()
        self._waiting.clear()


def _key(host: str | None, python: str | None) -> _Key:
    """Return what a process must have in common with one that would be started now: here, also the environment."""
    return host, python, () if host is not None else tuple(os.environ.items())
