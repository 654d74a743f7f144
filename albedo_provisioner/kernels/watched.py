"""A kernel and our link to it: what is known of it, and what the link tells of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Collection
from typing import Any

from ..bundle.wire import CALL, NOTE, TOLD_TO_END
from ..errors import AlbedoError, KernelGoneError, LinkAwayError, SignInError
from ..hosts.activity import Activity
from ..hosts.pool import HostPool
from ..hosts.progress import Progress
from .calls import Calls, Handler
from .endings import how_it_ended, in_background, who_ended
from .front import Front
from .jobs import Jobs
from .link import KernelLink
from .notices import Notice, Refusal
from .records import KernelRecords
from .request import KernelRequest

log = logging.getLogger("albedo_provisioner.kernels")


class WatchedKernel:
    """What this side knows of a kernel and passes on of what it says; see `LinkOwner`. Used on the I/O thread alone."""

    _front: Front

    def __init__(self, request: KernelRequest, kernel_id: str, node: str = "") -> None:
        self.request = request
        self.kernel_id = kernel_id
        self.step = ""
        """connecting, staging, starting, attached, reattaching or ended; nothing before its first connection."""
        self.on_step: Callable[[str], None] | None = None
        self.on_let_in: Callable[[], None] | None = None
        self.on_progress: Callable[[Progress | None], None] | None = None
        self._copied = 0  # bytes of our files that go there in the present step
        self.state = "starting"
        """The kernel's process: starting, running or exited."""
        self.exit_code: int | None = None
        self.cause: str | None = None
        """Why the kernel is dead, in words, once it is."""
        self.pid: int | None = None
        self.started = 0.0
        """When the kernel's process was started: seconds since the epoch by its host's clock."""
        self.responsive = True
        """Whether the kernel answers heartbeats; one that is stopped does not, and lives all the same."""
        self.busy = False
        """Whether the kernel was at a request when the keeper last told of it, which it does not each time."""
        self.folder = request.location.path
        """The kernel's folder, an absolute path on its host once that has been asked."""
        self.keeper: str | None = None
        self.jobs = Jobs()
        """The programs that its code has started as jobs."""
        self._of_earlier: set[str] = set()  # ids of cells that a keeper had which was killed; the one now has not
        self._heir = False  # whether it was another process's, which has ended
        self._question: dict[str, Any] | None = None  # what its code asks of a client that has no connection
        self._question_notice = Notice()  # that tells of it
        self._refusal = Refusal()
        self._warning = ""  # what threatens the kernel on its host, once the user was told
        self._node = node  # the machine behind the host's name that it runs on
        self._boot_id = ""  # of the host's run in which the kernel was started
        self._exit: dict[str, Any] = {}  # what its keeper said of its end
        self._expected = False  # whether its end was asked for
        self._silent = False  # whether there is nothing more to come from a kernel that has ended
        self._relaunching = False  # whether we are at starting it anew
        self._replaced = False  # whether a newer process uses our link
        self._gone_at: float | None = (
            None  # by the loop's clock, when the host said that neither it nor its keeper lives
        )
        self._changed = asyncio.Event()
        self._transport = HostPool.get().transport_for(request.location.host)
        self._link = self._new_link()
        self._calls = Calls(lambda parts: self._link.send(CALL, parts))

    def _new_link(self) -> KernelLink:
        return KernelLink(self._transport, self.kernel_id, "albedo", self.request.python, self, self._node)

    # -- what is known ---------------------------------------------------------------------------------------

    @property
    def host(self) -> str:
        """The host as the user spells it."""
        return self._transport.host

    @property
    def away(self) -> str | None:
        """Why the host is out of reach at the moment; None while it is not."""
        return None if self._gone_at is not None else self._link.away  # that host has answered

    @property
    def lost(self) -> bool:
        """Whether the host is known to be out of reach."""
        return self.away is not None and not self._link.between_keepers

    @property
    def shut_out(self) -> SignInError | None:
        """What a person has to do before the host can be reached again; None where that is not known to be so."""
        return self._link.shut_out

    async def tried(self, timeout: float) -> None:
        """Wait until there is a connection, or one more attempt has failed since it broke; so many seconds at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._link.tried.wait()

    @property
    def heard_at(self) -> float:
        """When something last came from the host, by `time.monotonic`."""
        return self._link.heard_at

    @property
    def connections(self) -> int:
        """How many connections the link has had."""
        return self._link.connections

    def poll(self) -> int | None:
        """Return None while the kernel is not known to be dead, else its exit code (minus the signal, as `Popen`).

        A host out of reach is no news about the kernel. One that was taken over is dead as far as we can tell.
        """
        if self._replaced:
            return 1
        return (1 if self.exit_code is None else self.exit_code) if self.state == "exited" else None

    async def answers_within(self, seconds: float) -> bool:
        """Ask the host something, and say whether it answers within so long; if bytes pass meanwhile, twice as long.

        A break is known only some seconds after it happened, so that there is a connection says little. One that does
        not answer is replaced soon, and then the host may answer over the next one.
        """
        asked = time.monotonic()
        self._link.doubt()
        for patience in (seconds, seconds):
            try:
                await self._link.call("status", patience)
            except LinkAwayError:
                if not self._link.carried_since(asked):
                    return False
            except KernelGoneError:
                break  # that is an answer
            else:
                return True
        return self._link.ended

    def connection_info(self) -> dict[str, Any]:
        """Return what local clients need to connect."""
        return self._front.connection_info()

    async def wait(self) -> int:
        """Wait until the kernel's process has ended, and return its exit code."""
        while (code := self.poll()) is None:
            self._changed.clear()
            await self._changed.wait()
        return code

    async def wait_for_silence(self, seconds: float) -> None:
        """Wait, at most so long, until all that a kernel said before it ended has been passed on."""
        try:
            async with asyncio.timeout(seconds):
                while not self._silent:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            log.warning("%s: the last messages of the kernel may be missing.", self.host)

    # -- calls out of the kernel -----------------------------------------------------------------------------

    def serve(self, kind: str, handler: Handler, name: str = "") -> None:
        """Answer what the kernel's code asks of its clients, from now on.

        Args:
            kind: which kind of calls; see `bundle/callers.py` for who is asked.
            handler: does a call; see `Handler`.
            name: under which requests to execute name us (in their metadata, `albedo.server`), and a process that takes
                our place does, too; one name for all kinds.
        """
        self._calls.serve(kind, handler)
        self._calls.name = name or self._calls.name
        if self.keeper is not None:
            self._announce()

    def _announce(self) -> None:
        if self._calls.kinds:
            in_background(self._link.call("serve", kinds=self._calls.kinds, name=self._calls.name))

    def expect_end(self) -> None:
        """Note that the kernel's end is wanted: nobody has to be told why it ended.

        One that has ended already ended by itself, also when the word that its cells are told by is still on its way.
        """
        if self.state != "exited":
            self._expected = True

    # -- LinkOwner, told by the link -------------------------------------------------------------------------

    def received(self, channel: int, parts: list[memoryview]) -> None:
        """Pass a message on to local clients."""
        if channel == CALL:
            self._calls.take(parts)
            return
        if channel != NOTE:
            self._front.deliver(channel, parts)
            return
        note = json.loads(bytes(parts[0]))
        if note["note"] == "gap":
            self._tell_gap(note)
        elif note["note"] == "unanswered":
            what = (
                "was interrupted when it was about to answer, and did not"
                if note.get("interrupted", True)  # keepers of before told of no others
                else "was done with the code and gave no answer, so whether the code failed is not known"
            )
            if note.get("interrupted", True):
                self._front.was_interrupted({note["cell"]})
            self._front.give_up(f"The kernel {what}; it lives and has its state.", {note["cell"]})
        elif note["note"] == "exited":
            self._take_last_note(note)

    def _take_last_note(self, note: dict[str, Any]) -> None:
        """All that a kernel which has ended had to say is here: have nobody wait for more."""
        why = self._cause_of(note["exit"]) if note.get("exit") else "The kernel ended."
        self._front.was_interrupted(note.get("interrupted") or ())  # keepers of before told of none
        if not self._expected and self.state == "exited":
            told = self._front.end(why, wanted=False)
            if told:  # one that is still on its way must not be run by the next kernel, after all
                in_background(self._link.call("give_up", ids=told))
        else:  # all else that is not answered is for the next kernel
            self._front.end(why, True, {*(note.get("died") or ()), *self._of_earlier})
        self._of_earlier.clear()
        if self.state == "exited" or self._relaunching:
            self._fall_silent()

    def greeted(self, hello: dict[str, Any]) -> None:
        """Take the keeper's greeting."""
        self._refusal.over(self._front)
        if hello.get("keeper") != self.keeper:
            self.keeper = hello.get("keeper")
            self._announce()
            self.jobs.forget()
        self._boot_id = str(hello.get("boot_id") or "")
        self._set_facts(hello["kernel"])
        warning = hello.get("warning")
        if warning and not self._warning:
            self._warning = f"{self.host} {warning}."
            log.warning("%s", self._warning)
            self.say_at_next_cell(f"[albedo] {self._warning}")
        node = str(hello.get("node") or "")
        if node != self._node and self.request.location.host is not None:
            self._node = node
            asyncio.get_running_loop().run_in_executor(None, KernelRecords().set_node, self.kernel_id, node)

    def let_in(self) -> None:
        """Pass on that the host has let us in."""
        if self.on_let_in is not None:
            self.on_let_in()

    def stepped(self, step: str, size: int = 0) -> None:
        """Take the link's step; the first connection alone does not make a kernel ready."""
        if step == "attached" and self.state == "starting":
            step = "starting"
        if step != self.step:
            self.step = step
            self._changed.set()
            if step in ("connecting", "staging", "starting"):
                copied = Progress(0, size, packages=False) if size else None
                Activity.get().enter(self.host, self, step, copied)
            else:
                Activity.get().leave(self.host, self)
            if self.on_step is not None:
                self.on_step(step)
            if self.on_progress is not None and (size or self._copied):
                self.on_progress(Progress(0, size, packages=False) if size else None)
            self._copied = size

    def told(self, event: dict[str, Any]) -> None:
        """Take the keeper's news."""
        if event.get("event") == "kernel":
            self._set_facts(event["kernel"])
        elif event.get("event") == "jobs":
            self.jobs.take(event)

    def jobs_told(self, numbers: list[int]) -> None:
        """Have others know that the user was told how these jobs ended."""
        if numbers:
            in_background(self._link.call("seen", jobs=numbers))

    def forgotten(self, unsent: Collection[str]) -> None:
        """Tell the running cells that something may be missing, and find out which of them still run."""
        self.keeper = None  # whichever it is, it does not know us
        self._of_earlier.update(header["msg_id"] for header in self._front.running if header["msg_id"] not in unsent)
        for header in self._front.running:
            if header["msg_id"] not in unsent:
                self._front.tell(
                    header, f"[albedo] The kernel's keeper on {self.host} was killed: output may be missing here.\n"
                )
        self._front.probe(unsent)

    def refused(self, error: AlbedoError) -> None:
        """Tell the cell that runs, else the next one, why nothing comes, and what to do."""
        self._refusal.came(self.host, self._front, error)

    def gone(self, error: KernelGoneError) -> None:
        """The host is there, and the kernel is not."""
        self._refusal.over(self._front)
        self._gone_at = asyncio.get_running_loop().time()
        if self.state != "exited" or self.cause is None:  # else its end, and how it came, has been told already
            self.cause = str(error)
            if error.boot_id and self._boot_id and error.boot_id != self._boot_id:
                self.cause = f"The kernel is gone: {self.host} was restarted."
            elif (how := who_ended(self.kernel_id)) is not None:
                self.cause = f"The kernel on {self.host} {how}."
            elif self._warning:
                self.cause = f"{self.cause} {self._warning}"
        self._set_state("exited")
        self._front.end(self.cause or str(error), self._expected)
        self._fall_silent()

    def _fall_silent(self) -> None:
        self._calls.close()
        self._silent = True
        self._changed.set()

    def replaced(self, why: str) -> None:
        """A newer process uses our link; there is nothing more to be had here."""
        self.cause, self._replaced = why, True
        self._front.alive = False
        # The kernel lives, so nobody is told that it died.
        self._front.give_up(why, {header["msg_id"] for header in self._front.running})
        self._fall_silent()

    def _set_facts(self, kernel: dict[str, Any]) -> None:
        self.responsive = kernel["responsive"]
        if self.state == "exited" and kernel["state"] != "exited" and not self._relaunching:
            # Another client had it started anew. Ours should know why its variables are gone.
            self.say_at_next_cell(f"[albedo] {self.cause} A new one runs in its place, without the variables.")
        self._question = kernel.get("question")
        self._tell_of_question()
        self.busy = bool(kernel["busy"])
        self.pid = kernel["pid"]
        self.started = float(kernel.get("started") or 0.0)
        self.folder = kernel["folder"]
        exit_ = kernel.get("exit")
        if exit_:
            self.exit_code = exit_["code"]
            self._exit = exit_
            self.cause = self._cause_of(exit_)
        else:
            self.exit_code, self.cause = None, None
        self._set_state(kernel["state"])

    def _cause_of(self, exit_: dict[str, Any]) -> str:
        # By whose hand its keeper was told to end is known here alone.
        how = who_ended(self.kernel_id) if exit_.get("asked") == TOLD_TO_END else None
        return f"The kernel on {self.host} {how or how_it_ended(exit_)}."

    def inherit(self) -> None:
        """Note that the process is known to have ended whose kernel it was; nobody can answer what that was asked."""
        self._heir = True
        self._tell_of_question()

    def _tell_of_question(self) -> None:
        """Have the next cell, which has to wait, be told of one before it that waits for an answer of nobody's."""
        question, line = self._question, ""
        own = {header["msg_id"] for header in self._front.running}
        if self._heir and question and question["cell"] not in own:
            asks = f" ({question['prompt'].strip()!r})" if question["prompt"].strip() else ""
            line = (
                f"[albedo] A cell that was begun before waits for an answer to its input(){asks}, and whoever was "
                "asked is gone. Interrupt the kernel to end that cell."
            )
        self._question_notice.put(self._front, line)

    def _set_state(self, state: str) -> None:
        self.state = state
        if state == "exited":
            self._front.alive = False
            self.jobs.perish()
        elif state == "running":
            self._front.alive = self._front.alive or not self._relaunching
            if self.step == "starting":
                self.stepped("attached")
        self._changed.set()

    async def tell_user(self, text: str) -> None:
        """Have a line printed on stderr of the cell that runs, else of the next one."""
        running = self._front.running
        if running:
            self._front.tell(running[0], text + "\n")
        else:
            self.say_at_next_cell(text)

    def say_at_next_cell(self, text: str) -> None:
        """Have a line printed on stderr of the next cell that is run, about something the user should know."""
        before = self._front.greeting
        self._front.greeting = text if before is None else f"{before}\n{text}"

    def _tell_gap(self, gap: dict[str, Any]) -> None:
        try:
            parent = json.loads(gap["parent"])
        except ValueError:
            parent = {}
        self._front.tell(
            parent,
            f"[albedo] {gap['messages']} messages of output ({gap['bytes'] / 1e6:.1f} MB) were given up here: "
            f"more came than {self.host} could hold for this client.\n",
        )
