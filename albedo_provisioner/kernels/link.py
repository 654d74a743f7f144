"""The link from this side: a conversation with a keeper that is kept up over any number of connections.

A host out of reach is not a kernel gone: whatever breaks, the link goes on trying, and only the host's own word that
there is no keeper any more ends it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import platform
import time
import uuid
from collections.abc import Sequence
from typing import Any

from ..bundle.messages import HEADER, json_part
from ..bundle.protocol import (
    ACK_DELAY,
    ATTACHED,
    Attached,
    Event,
    Failed,
    Link,
    LinkLostError,
    Parted,
    Received,
    Reported,
)
from ..bundle.wire import CONTROL, KEEPER, SHELL, STDIN, Buffer
from ..errors import AlbedoError, ConfigError, HostError, KernelGoneError, LinkAwayError, SignInError, UnreachableError
from ..hosts.reachability import Callback, Reachability
from ..hosts.refusals import refused
from ..hosts.transport import Exit, Transport, join
from ..hosts.visit import Visit
from . import silence
from .keeper_calls import KeeperCalls
from .link_owner import LinkOwner
from .retries import Retries
from .silence import Silence

log = logging.getLogger("albedo_provisioner.link")

_PROCESS = uuid.uuid4().hex
_attempts = itertools.count(1)
"""Of all links of this process: a command whose connection broke may get to the keeper after one that came later."""

DOUBT = 3.0
"""Seconds for the keeper to be heard from when somebody wants to know at once whether the host answers."""

GREETING_TIMEOUT = 30.0
"""Seconds from an open channel to the keeper's greeting, a slow login profile included, or one that is left out; longer
while the connection carries something, see `Visit.wait_for`."""

HOLD = 256 << 20
"""Bytes of requests held while the host is out of reach; the relay takes no more from its clients beyond that."""

_KILLED = "the kernel's keeper was killed, and another one takes its place"
"""Why there is no connection for a moment, although the host can be reached."""


class KernelLink:
    """One client's link to one kernel's keeper. Used on the I/O thread's loop.

    Args:
        transport: the way to the host.
        kernel_id: the kernel's id there.
        client: who we are, for people who look at the keeper, and for those whose kernel we end; this process is added.
        python: the interpreter on the host, see `Visit`.
        owner: who is told.
        node: the machine that the kernel runs on, where that is known: the host's name may stand for several.
    """

    def __init__(
        self,
        transport: Transport,
        kernel_id: str,
        client: str,
        python: str | None,
        owner: LinkOwner,
        node: str = "",
    ) -> None:
        self.kernel_id = kernel_id
        self.client = f"{client}, process {os.getpid()} on {platform.node()}"
        """Who we are, for people."""
        self.away: str | None = None
        """Why there is no connection at the moment, in words; None while there is one."""
        self.shut_out: SignInError | None = None
        """What a person has to do before there can be a connection again; None where that is not known to be so."""
        self.tried = asyncio.Event()
        """Set while there is a connection, or once an attempt to replace the one that broke has failed."""
        self.connections = 0
        """How many connections there have been."""
        self.let_in = False
        """Whether the host has let us in, at some attempt."""
        self.sent_request = False
        """Whether a request has been sent on to our code there: then it may have been done, answered or not."""
        self._transport = transport
        self._python = python
        self._owner = owner
        self._link = Link(HOLD)
        self._link_id = uuid.uuid4().hex
        self._node = node  # the machine behind the host's name that the kernel runs on
        self._visit: Visit | None = None
        self._greeted: asyncio.Future[None] | None = None
        self._broken = asyncio.Event()
        self._paused = False  # whether the way there is full
        self._held_up = False  # whether we take nothing from there at the moment
        self._silence = Silence()
        self._ack: asyncio.TimerHandle | None = None
        self._calls = KeeperCalls(
            transport.host, lambda data: self.send(KEEPER, [data]), lambda: self.away or "it does not answer"
        )
        self._upkeep: asyncio.Task[None] | None = None
        self._retries = Retries(transport.host)
        self._unwatch: Callback | None = None
        self._ended = False

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self, kernel: dict[str, Any], needs: Sequence[str], settings: dict[str, Any]) -> None:
        """Have a keeper made with a new kernel, and attach to it.

        Args:
            kernel: what to start, see `bundle/spawn.py`.
            needs: packages that the interpreter must have.
            settings: `hold` and `grace` for the keeper.

        Raises:
            AlbedoError: the first attempt failed; nothing is left running.
        """
        self._owner.stepped("connecting")
        await self._connect({"do": "start", "kernel": kernel, "needs": list(needs), **settings})
        self._keep_up()

    async def attach(self) -> None:
        """Attach to the keeper that there is.

        Raises:
            KernelGoneError: the host has none for this kernel.
            AlbedoError: the host cannot be reached now.
        """
        self._owner.stepped("connecting")
        await self._connect({"do": "attach"})
        self._keep_up()

    async def close(self) -> None:
        """End the link for good; the keeper forgets it. The kernel is not touched."""
        if self._ended:
            return
        self._end("the link was closed")
        if self._link.state == ATTACHED:
            self._link.farewell("closed", "the client is done")
            self._flush()
        if self._upkeep is not None:
            self._upkeep.cancel()
        if self._visit is not None:
            self._visit.close()

    def pause(self, yes: bool) -> None:
        """Take nothing more from the host until called with False; it holds what is to come."""
        self._held_up = yes
        if self._visit is not None:
            if not yes:
                self._silence.broken()  # it was ours
            self._visit.hold_up(yes)

    def retry_now(self) -> None:
        """Try to reattach at once instead of at the end of the present pause."""
        self._retries.now()

    def doubt(self) -> None:
        """See at once whether the connection is good for anything, because somebody waits for that; if it is not, have
        it replaced much sooner than otherwise.
        """
        self.retry_now()
        visit, asked = self._visit, time.monotonic()
        if visit is None or not self.attached or self._held_up:
            return
        self._link.ping(1)
        self._flush()

        def look() -> None:
            if visit is self._visit and self.heard_at < asked and not self._held_up and not self.carried_since(asked):
                visit.suspect()
                self._break(visit, f"nothing was heard for {time.monotonic() - asked:.0f} s")

        asyncio.get_running_loop().call_later(DOUBT, look)

    @property
    def heard_at(self) -> float:
        """When something last came from the host, by `time.monotonic`."""
        return self._silence.since

    def carried_since(self, when: float) -> bool:
        """Whether the connection below has carried something since then, be it but a part of what is large."""
        carried = self._visit.carried_at if self._visit is not None else None
        return carried is not None and carried > when

    @property
    def attached(self) -> bool:
        """Whether there is a connection that the keeper has greeted."""
        return self._link.state == ATTACHED

    @property
    def ended(self) -> bool:
        """Whether it has ended for good: nothing that is said arrives any more."""
        return self._ended

    @property
    def between_keepers(self) -> bool:
        """Whether the host has just answered, and there is no connection only because another keeper is being made."""
        return self.away == _KILLED

    @property
    def congested(self) -> bool:
        """Whether more is waiting to be sent than should be."""
        return self._link.held > HOLD

    # -- talking ---------------------------------------------------------------------------------------------

    def send(self, channel: int, parts: Sequence[Buffer]) -> None:
        """Say a message; it arrives exactly once, now or when the host can be reached again."""
        if not self._ended:
            self._link.send(channel, parts)
            self._flush()

    def withdraw(self, message_id: str) -> bool:
        """Take back a request on shell, by its id; False when the host may have got it."""
        return self._link.withdraw(SHELL, message_id)

    async def call(self, do: str, timeout: float | None = None, **arguments: Any) -> dict[str, Any]:
        """Ask the keeper itself for something and return its answer. The keeper does it exactly once.

        The answer's `parts` are the raw parts that came with it, if any.

        Args:
            do: what, see `bundle/requests.py`.
            timeout: seconds to wait for the answer; None waits as long as it takes. Giving up waiting does not take
                the request back.
            arguments: what goes with it.

        Raises:
            LinkAwayError: no answer in time because the host is out of reach.
            KernelGoneError: there is no keeper any more.
            AlbedoError: the keeper refused; the message says why.
        """
        if self._ended:
            raise KernelGoneError(f"The kernel on {self._transport.host} has ended.")
        return await self._calls.call(do, timeout, arguments)

    # -- one connection --------------------------------------------------------------------------------------

    async def _connect(self, request: dict[str, Any]) -> None:
        """Make one connection and see the keeper's greeting on it."""
        if self._ended:  # taken over by another while it was being made
            raise AlbedoError(self.away or "The link has ended.")
        self._link.begin({"client": self.client})
        hello = join(self._link.outgoing())
        self._link.written(len(hello))
        request = {
            **request,
            "kernel_id": self.kernel_id,
            "link": self._link_id,
            "client": self.client,
            "node": self._node,
            "fresh": self._link.fresh,
            "attempt": [_PROCESS, next(_attempts)],
            # Our greeting goes along with the request, and not behind it: the bundle may have to go in between.
            "hello": hello.decode("latin-1"),
        }
        self._broken.clear()
        self._paused = False
        greeted = self._greeted = asyncio.get_running_loop().create_future()
        visit = Visit(
            self._transport,
            request,
            self._python,
            received=lambda data: self._on_data(visit, data),
            closed=lambda how, error: self._on_closed(visit, how, error),
            writable=lambda yes: self._on_writable(visit, yes),
        )
        self._visit = visit
        try:
            await visit.open()
            self.let_in = True
            self._owner.let_in()
            if self._held_up:
                self.pause(True)
            await visit.wait_for(greeted, GREETING_TIMEOUT)
        except TimeoutError:
            raise visit.took_too_long(GREETING_TIMEOUT) from None
        finally:
            if not greeted.done() or greeted.cancelled() or greeted.exception() is not None:
                self._drop(visit)
            self.sent_request = self.sent_request or visit.request_sent
        self.connections += 1
        self.away = self.shut_out = None
        self.tried.set()
        self._owner.stepped("attached")

    def _on_data(self, visit: Visit, data: bytes) -> None:
        if visit is not self._visit:
            return  # an older connection's last words
        self._silence.broken()
        for event in self._link.receive(data):
            self._take_safely(visit, event)  # all of them, whatever one of them does: they count as received
        if visit is not self._visit:
            return
        self._flush()
        if self._link.ack_pending and self._ack is None:
            self._ack = asyncio.get_running_loop().call_later(ACK_DELAY, self._acknowledge)

    def _take_safely(self, visit: Visit, event: Event) -> None:
        try:
            self._take(visit, event)
        except Exception:  # a fault of ours or of whoever is told: it costs this message, and no other
            log.exception("%s: a message from the host could not be taken", self._transport.host)

    def _take(self, visit: Visit, event: Event) -> None:
        if isinstance(event, Received):
            if event.channel == KEEPER:
                self._take_from_keeper(visit, event.parts)
            else:
                self._owner.received(event.channel, event.parts)
        elif isinstance(event, Attached):
            self._node = str(event.hello.get("node") or self._node)
            self._owner.greeted(event.hello)
            if self._greeted is not None and not self._greeted.done():
                self._greeted.set_result(None)
        elif isinstance(event, Reported):
            self._take_report(visit, event.content)
        elif isinstance(event, Parted):
            if event.code == "unknown":
                self._forget()
                self._break(visit, _KILLED)
                return
            if event.code == "replaced":
                # Whoever has this link now would be thrown out by our coming back, and come back in turn, for ever.
                why = f"This client's link to the kernel on {self._transport.host} was taken over by a newer process."
                self._break(visit, why)
                self._end(why)
                self._owner.replaced(why)
                return
            self._break(visit, event.message)
        elif isinstance(event, Failed):
            # A keeper that was killed and has a successor is no fault in the protocol: the user is told by the cell.
            level = logging.INFO if isinstance(event.error, LinkLostError) else logging.WARNING
            log.log(level, "%s: the link's protocol was broken: %s", self._transport.host, event.error)
            if isinstance(event.error, LinkLostError):
                self._forget()
                self._break(visit, _KILLED)
            else:
                self._break(visit, str(event.error))

    def _take_report(self, visit: Visit, report: dict[str, Any]) -> None:
        if report.get("need") == "bundle":
            size = visit.send_bundle()
            log.info("%s: first visit of this version, %d bytes are copied", self._transport.host, size)
            self._owner.stepped("staging", size)
        elif "error" in report and self._greeted is not None and not self._greeted.done():
            error = refused(self._transport.host, report, self._python)
            if report["error"] == "elsewhere":
                visit.retire()  # the next connection may lead to the right machine
            self._greeted.set_exception(error)

    def _take_from_keeper(self, visit: Visit, parts: list[memoryview]) -> None:
        try:
            content = json.loads(bytes(parts[0]))
            is_answer = self._calls.waits_for(content)
        except (ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
            log.warning("%s: the keeper said what is no answer: %s", self._transport.host, error)
            self._break(visit, f"the keeper said what is no answer: {error}")
            return
        if not is_answer:
            self._owner.told(content)
            return
        if "kernel" in content:  # at once: whoever waits for the answer goes on only after newer news were taken
            self._owner.told({"event": "kernel", "kernel": content["kernel"]})
        self._calls.answer(content, parts[1:])

    def _on_closed(self, visit: Visit, how: Exit, error: HostError) -> None:
        if visit is not self._visit:
            return
        if self._greeted is not None and not self._greeted.done():
            self._greeted.set_exception(error)
        self._break(visit, str(how.error) if how.error else "the connection's process on the host ended")

    def _on_writable(self, visit: Visit, yes: bool) -> None:
        if visit is self._visit:
            self._paused = not yes
            if yes:
                self._flush()

    def _flush(self) -> None:
        visit = self._visit
        while visit is not None and not self._paused and (buffers := self._link.outgoing()):
            visit.write(*buffers)
            self._link.written(sum(map(len, buffers)))

    def _acknowledge(self) -> None:
        self._ack = None
        if self._link.ack_pending:
            self._link.acknowledge()
            self._flush()

    def _break(self, visit: Visit, why: str) -> None:
        """This connection is over, for whatever reason."""
        self.away = why
        self.tried.clear()
        if self._greeted is not None and not self._greeted.done():
            self._greeted.set_exception(UnreachableError(self._transport.host, f"{self._transport.host}: {why}.", why))
        self._drop(visit)

    def _drop(self, visit: Visit) -> None:
        if visit is self._visit:
            self._visit = None
            self._link.end()
            self._broken.set()
        visit.close()

    def _forget(self) -> None:
        """The keeper does not know this link: begin anew, and say that messages may be missing.

        The link's name stays: by it, the kernel's answers to what was asked before still find their way here. What
        never went out cannot have been done, and goes to the new keeper. (Answers to the kernel's calls do not: its
        code asks again.)
        """
        before, self._link = self._link, Link(HOLD)
        kept = {int(json.loads(bytes(head[0]))["id"]) for head in before.unsent(KEEPER)}
        error = LinkAwayError(f"{self._transport.host} lost this request together with its keeper's memory.")
        self._calls.fail(error, kept)
        self._owner.forgotten({str(json_part(head, HEADER).get("msg_id")) for head in before.unsent(SHELL)})
        self._link.take_over(before, (SHELL, CONTROL, STDIN, KEEPER))

    # -- keeping it up ---------------------------------------------------------------------------------------

    def _keep_up(self) -> None:
        self._upkeep = asyncio.get_running_loop().create_task(self._stay_attached())
        self._unwatch = Reachability.get().watch_network(self._network_changed)

    def _network_changed(self) -> None:
        self.retry_now()
        if self.attached:
            self._look(doubtful=True)

    async def _stay_attached(self) -> None:
        lag = time.time() - time.monotonic()
        while True:
            try:
                async with asyncio.timeout(silence.PING_EVERY):
                    await self._broken.wait()
            except TimeoutError:
                before, lag = lag, time.time() - time.monotonic()
                self._look(doubtful=lag - before > silence.PING_EVERY)
                continue
            if self._ended:
                return
            log.info("%s: connection lost (%s), reattaching", self._transport.host, self.away)
            self._owner.stepped("reattaching")
            if not await self._reattach():
                return
            log.info("%s: reattached", self._transport.host)

    def _look(self, doubtful: bool) -> None:
        """See whether the keeper is still there; called every `PING_EVERY` seconds.

        Args:
            doubtful: whether this machine was asleep, as far as a clock that stood still meanwhile can tell, or its
                network changed. Many connections are dead by then, so the keeper gets less time to answer.
        """
        if self._held_up:
            return
        if doubtful:
            self._silence.doubt()
        carries = self.carried_since(self._silence.carried_after)
        if self._visit is not None and self._silence.is_death(carries):
            if not carries:
                self._visit.suspect()
            self._break(self._visit, f"nothing was heard for {self._silence.seconds:.0f} s")
        elif self._silence.asks:
            self._link.ping(1)
            self._flush()

    async def _reattach(self) -> bool:
        """Try until there is a connection again; False when there is no kernel to connect to."""
        self._retries.begin()
        while True:
            self._retries.attempt()
            try:
                await self._connect({"do": "attach"})
                return True
            except KernelGoneError as error:
                self._end(str(error))
                self._owner.gone(error)
                return False
            except (HostError, ConfigError) as error:
                away = error.detail if isinstance(error, HostError) else str(error)
                self.shut_out = error if isinstance(error, SignInError) else None
                # Once, where a person looks: only a person can sign in, make room on a disk, or mend a config.
                for_a_person = not isinstance(error, UnreachableError)
                level = logging.WARNING if for_a_person and away != self.away else logging.DEBUG
                log.log(level, "%s: not yet: %s", self._transport.host, error)
                self.away = away
                self.tried.set()
                if for_a_person:
                    self._owner.refused(error)
            await self._retries.rest(self.shut_out is not None)

    def _end(self, why: str) -> None:
        self._ended = True
        self.away = why
        self.tried.set()
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
        if self._ack is not None:
            self._ack.cancel()
        self._owner.stepped("ended")
        self._calls.fail(KernelGoneError(why))
