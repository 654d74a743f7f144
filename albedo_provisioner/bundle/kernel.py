"""The kernel as its keeper holds it: the process, the channels, and the requests that have no answer yet."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import zmq

from . import processes, rundir
from .channels import KernelChannels
from .heap import MemoryDeath
from .messages import HEADER, PARENT, json_part
from .spawn import boot_id, last_words, memory_limit, spawn, task_room
from .wire import CONTROL, IOPUB, SHELL, STDIN, Buffer

START_POLL = 0.004
"""Seconds between looks at whether a new kernel listens yet."""

HEARTBEAT = 10.0
"""Seconds between heartbeats, and how long one may stay unanswered before the kernel counts as not responsive."""

_TURN = {CONTROL: 1 << 30, SHELL: 1 << 30, STDIN: 1 << 30, IOPUB: 4 << 20}
"""Channels in the order in which they are served, and the bytes to take in one turn: output is the only one that
floods, and an interrupt's answer must not wait for it."""

_LONGEST_ID = 128  # characters of an id that the launcher notes
_MOST_KNOWN = 1000
"""Ids to remember of requests that were answered, to tell them from those that have not come yet, or given up."""

_DRAIN = 0.02
_LOOK = 1.0

_END_TAKES = 30.0
"""Seconds that an end which was asked for may take."""

Parts = list[bytes | memoryview]


class Kernel:
    """One kernel; after its end another one may be started in its place.

    Args:
        path: the run directory, which is the current directory.
        kernel_id: the kernel's id.
        notebook: the notebook it is for, for people; may be empty.
        settings: what a keeper that adopts it has to know.
        poller: what the keeper's loop waits on; the channels are added to it.
        heard: called with a channel and the parts of each message that the kernel sends. On all channels but iopub
            the first part is the id of the link that it is for.
        changed: called whenever `facts` have changed.
        drained: called when the last message of a kernel that has ended was passed on.
    """

    def __init__(
        self,
        path: str,
        kernel_id: str,
        notebook: str,
        settings: dict[str, Any],
        poller: zmq.Poller,
        heard: Callable[[int, list[Buffer]], None],
        changed: Callable[[], None],
        drained: Callable[[], None],
    ) -> None:
        self.kernel_id = kernel_id
        self.pid = 0
        self.process: processes.Identity | None = None
        self.state = "exited"
        """starting, running or exited."""
        self.exit: dict[str, Any] | None = None
        self.active = time.monotonic()
        """When it last said or was asked anything."""
        self.asked: dict[str, str] = {}
        """Requests on shell without a reply, oldest first: message type by message id."""
        self.died: list[str] = []
        """Ids of what the kernel before had been asked by this keeper and had not answered."""
        self.responsive = True
        self._path = path
        self._notebook = notebook
        self._settings = settings
        self._poller = poller
        self._heard = heard
        self._changed = changed
        self._drained = drained
        self._folder = ""
        self._started = 0.0
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        context.blocky = False
        self._base = rundir.socket_base(path)
        self._channels = KernelChannels(context, self._base)
        self._record: dict[str, Any] = {}
        self._connection = b""
        self._severed = False  # whether the kernel's sockets were removed
        self._waiting: list[tuple[str, int, Parts]] = []  # asked of a kernel that does not listen yet
        self._drained_at: float | None = None
        self._beat_at = 0.0
        self._looked_at = 0.0
        self._given_up: dict[str, None] = {}  # ids of requests that no kernel shall get any more, oldest first
        self._answered: dict[str, None] = {}  # ids of the newest requests that have a reply, oldest first
        self._taken_back: set[str] = set()  # ids of what it has been asked, and is not to begin
        self._never_begun: dict[str, None] = {}  # ids of what a kernel that has ended was asked and did not begin
        self.adopted = False
        """Whether an earlier keeper started it, so that what that one knew of its cells is not known."""
        self._unsure = False  # whether it may still be at what it was asked through an earlier keeper
        self._end_asked: tuple[str, float] | None = None  # who or what asked for its end, in words, and until when
        self._ours = True  # whether it is our child, so that we are told how it ended
        self._memory: MemoryDeath | None = None

    # -- the process -----------------------------------------------------------------------------------------

    def spawned(self, pid: int, folder: str) -> None:
        """Take charge of a process that `spawn` has just started, our child."""
        self._take(pid, processes.identify(pid), folder, time.time(), ours=True)

    def spawn(self, spec: dict[str, Any], folder: str) -> None:
        """Start a new process; nothing may be left of the one before.

        Raises:
            OSError: the folder cannot be entered or the program cannot be run.
        """
        if self._drained_at is not None:
            self._end_of_messages()
        self._channels.remove_files()
        self.spawned(spawn(self._path, self.kernel_id, spec), folder)

    def adopt(self, record: dict[str, Any]) -> bool:
        """Take charge of a process that another keeper started; False when it is gone."""
        identity = (int(record["pid"]), int(record["start"]))
        if not processes.still_alive([identity]):
            return False
        self._take(identity[0], identity, str(record["folder"]), float(record["started"]), ours=False)
        self._unsure = self.adopted = True
        return True

    def _take(self, pid: int, process: processes.Identity | None, folder: str, started: float, ours: bool) -> None:
        self.pid, self.process, self._folder, self._started, self._ours = pid, process, folder, started, ours
        self.state = "starting"
        self.exit = None
        self._unsure = self.adopted = False
        self._end_asked = None
        self.responsive = True
        self._memory = MemoryDeath(pid)
        self._severed = False
        self._record = {
            "pid": pid,
            "start": process[1] if process else 0,
            "folder": folder,
            "started": started,
            "boot_id": boot_id(),
            "node": os.uname().nodename,
            "notebook": self._notebook,
            "keeper": processes.identify(os.getpid()),
            "settings": self._settings,
        }
        rundir.write_record(self._path, self._record)
        self._connection = rundir.read_connection(self._path)

    def write_files(self) -> None:
        """Write anew what belongs in the run directory; it is another one than before, so that the kernel's sockets,
        which we are connected to, are not in it.
        """
        rundir.keep_short(self._path, self._base)
        self._severed = True
        rundir.write_record(self._path, {**self._record, rundir.SEVERED: True})
        rundir.write_connection(self._path, self._connection)

    def rename(self, notebook: str) -> None:
        """Note that its notebook has another path now, for this keeper and for one that adopts the kernel."""
        self._notebook = notebook
        self._settings = {**self._settings, "notebook": notebook}
        self._record = {**self._record, "notebook": notebook, "settings": self._settings}
        try:
            rundir.write_record(self._path, {**self._record, rundir.SEVERED: self._severed})
        except OSError:
            pass  # no room, or no run directory at the moment: it is told by us, and written when that is made anew

    def facts(self) -> dict[str, Any]:
        """Return what clients are told about the kernel."""
        return {
            "state": self.state,
            "pid": self.pid,
            "exit": self.exit,
            "started": self._started,
            "folder": self._folder,
            "responsive": self.responsive,
            "busy": bool(self.asked),
        }

    def reap(self) -> None:
        """Wait for children that have ended, the kernel among them or not."""
        status = processes.reap().get(self.pid)
        if status is not None and self._ours and self.exit is None:
            self._ended(os.waitstatus_to_exitcode(status))

    def end_asked(self, how: str, again: bool = False) -> None:
        """Note that its end was asked for; `how` follows "The kernel" in the words that clients are given.

        It holds for a while only: a kernel that takes no notice and dies much later dies of something else. What is
        asked `again`, with more force, does not change the reason.
        """
        if self.state != "exited" and not (again and self._why_asked):
            self._end_asked = how, time.monotonic() + _END_TAKES

    @property
    def _why_asked(self) -> str | None:
        return self._end_asked[0] if self._end_asked and time.monotonic() < self._end_asked[1] else None

    def _ended(self, code: int | None) -> None:
        asked = self._why_asked
        self.exit = {
            "code": code,
            "words": last_words(self._path),
            **(self._memory.facts(code) if self._memory is not None else {}),
            "memory_limit": memory_limit(),
            "task_room": task_room() if self.state == "starting" else None,
            "asked": asked,
        }
        self.state = "exited"
        begun = self.begun
        if begun is not None:
            # It runs one cell after the other: of those that it has not answered it can have begun but this one.
            self._never_begun = dict.fromkeys(each for each in self.asked if each != begun)
        self.died = list(self.asked)
        for message_id in list(self.asked):
            self.answered(message_id)  # there will be none any more
        # Its last messages may still be on their way through zmq: what comes within a moment is waited for.
        self._drained_at = time.monotonic() + _DRAIN
        self._changed()

    # -- the channels ----------------------------------------------------------------------------------------

    def serve(self, ready: dict[Any, int], now: float) -> None:
        """Take what the kernel has said, given what the poller found ready, and see to what is due by the clock."""
        heard = False
        for channel, most in _TURN.items():
            # Asking a channel in vain costs more than taking a message from one: an exception is made each time.
            if self._channels.sockets.get(channel) not in ready:
                continue
            for parts in self._channels.receive(channel, most):
                heard = True
                if channel == SHELL:
                    self.answered(str(json_part(parts, PARENT).get("msg_id")))
                self._heard(channel, parts)
        if heard:
            self.active = now
        if self._drained_at is not None:
            if heard:
                self._drained_at = now + _DRAIN
            elif now >= self._drained_at:
                self._end_of_messages()
        if self.state == "starting" and self._channels.bound:
            self._up()
        elif self.state == "running" and not self._ours and now - self._looked_at >= _LOOK:
            self.look(now)

    def answered(self, message_id: str) -> None:
        """Note that a request has its reply, or will have none."""
        if self.asked.pop(message_id, None) is not None:
            self._unsure = False  # kernels answer in order: this was asked after all that an earlier keeper passed on
        self._answered[message_id] = None
        if len(self._answered) > _MOST_KNOWN:
            del self._answered[next(iter(self._answered))]

    def look(self, now: float) -> None:
        """See whether it is still there, if it is not our child, so that nobody tells us of its end."""
        if self._ours or self.state == "exited":
            return
        self._looked_at = now
        if self.process is not None and not processes.still_alive([self.process]):
            self._ended(None)

    def due(self, now: float) -> float | None:
        """When, by the clock, `serve` is due at the latest."""
        if self.state == "starting":
            return now + START_POLL
        if self.state == "running" and not self._ours:
            return self._looked_at + _LOOK
        return self._drained_at

    def ask(self, link_id: str, channel: int, parts: Parts) -> bool:
        """Pass a client's message on to the kernel, or keep it until the kernel listens; False when it was given up."""
        header = json_part(parts, HEADER) if channel == SHELL else {}
        if header.get("msg_id") in self._given_up:
            return False
        if self.state != "running":
            self._waiting.append((link_id, channel, parts))
            return True
        self.active = time.monotonic()
        if channel == SHELL:
            kind = str(header.get("msg_type"))
            if kind.endswith("_request"):  # others, such as those of comms, have no reply
                self.asked[str(header.get("msg_id"))] = kind
        self._channels.send(channel, [link_id.encode(), *parts])
        return True

    def give_up(self, message_ids: list[str]) -> None:
        """Pass these requests on to no kernel, whether they wait here or are still to come: their client was told that
        they died with the last one, or wants them no more.
        """
        self._given_up.update(dict.fromkeys(message_ids))
        while len(self._given_up) > _MOST_KNOWN:
            del self._given_up[next(iter(self._given_up))]
        self._waiting = [
            each for each in self._waiting if json_part(each[2], HEADER).get("msg_id") not in self._given_up
        ]

    def is_asked(self, message_id: str) -> bool | None:
        """Whether the kernel has been asked this and has not answered yet; None when it has not been asked yet (that we
        know of).
        """
        if message_id in self.asked:
            return True
        if message_id in self._answered:
            return False
        return True if self._unsure else None

    @property
    def begun(self) -> str | None:
        """The id of the cell that it began last, see `rundir.begun`."""
        return rundir.begun(self._path)

    def take_back(self, message_id: str) -> bool:
        """Have a cell that the kernel has been asked to run not be run, and say whether that is certain."""
        if not message_id.isascii() or not message_id.isprintable() or len(message_id) > _LONGEST_ID:
            return False
        self._taken_back = {known for known in self._taken_back if known in self.asked}
        afresh = not self._taken_back
        self._taken_back.add(message_id)
        return rundir.take_back(self._path, message_id, afresh)

    def never_begun(self, message_id: str) -> bool:
        """Whether it is known that no kernel has begun to do this, and none ever will once it was given up."""
        return message_id in self._never_begun or self.is_asked(message_id) is None

    def tend(self, now: float) -> None:
        """Look after what does not tell of itself: whether the kernel answers, or is there at all."""
        rundir.bound_log(self._path)
        if self._memory is not None:
            self._memory.renew()
        self.look(now)
        if self.state == "running" and now - self._beat_at >= HEARTBEAT:
            answered = self._channels.answered()
            if answered != self.responsive:
                self.responsive = answered
                self._changed()
            self._channels.beat()
            self._beat_at = now

    def _up(self) -> None:
        self._channels.open()
        for socket in self._channels.sockets.values():
            self._poller.register(socket, zmq.POLLIN)
        self.state = "running"
        self._changed()
        waiting, self._waiting = self._waiting, []
        for link_id, channel, parts in waiting:
            self.ask(link_id, channel, parts)

    def _end_of_messages(self) -> None:
        self._drained_at = None
        for socket in self._channels.sockets.values():
            self._poller.unregister(socket)
        self._channels.close()
        self._drained()
