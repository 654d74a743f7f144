"""The campaign: rounds on one kernel, each a few cells and a fault, each followed by the comparison."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from albedo_provisioner.bundle.wire import CONTROL, SHELL

from .cells import Cell, choose
from .clients import PATIENCE, ClientProcess, Line
from .ledger import Ledger, compare
from .place import Place

_RECORDING = Path(__file__).with_name("recording.py")
_SETUP = """
exec(compile({text!r}, "recording.py", "exec"), _recording := {{"__name__": "recording"}})
_recording["install"]({path!r})
def _opened(comm, message):
    @comm.on_msg
    def _(message):
        for _ in range(message["content"]["data"]["times"]):
            comm.send({{"back": True}}, buffers=message["buffers"])
get_ipython().kernel.comm_manager.register_target("echo", _opened)
"""


class Failure(Exception):
    """A round found something wrong; the message says what."""


class Campaign:
    """A place, a kernel in it, a client, and what was recorded.

    Attributes:
        place: where.
        client: the client that started the kernel, or the one that took its place.
        others: further clients of this round.
        notes: what happened in the present round, for the report.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.client = ClientProcess(place, "none")
        self.others: list[ClientProcess] = []
        self.notes: list[str] = []
        self.known: dict[str, Any] = {}
        self.pid = 0
        self._names = 0
        self._ledgers = 0
        self.ledger = Ledger(place.root / "none")

    # -- the kernel ------------------------------------------------------------------------------------------

    async def new_client(self) -> ClientProcess:
        """Start one more client process."""
        self._names += 1
        return await ClientProcess(self.place, f"client-{self._names}").spawn()

    async def ensure_kernel(self) -> None:
        """See to it that there is a kernel and a client, as at the beginning or after a round that ended them."""
        if not self._names:
            self.client = await self.new_client()
        if not self.pid:
            self.took(await self.client.start())
            await self.record()

    def took(self, known: Line) -> None:
        """Note what a client knows of its kernel."""
        self.known, self.pid = known["info"], known["pid"]

    async def record(self) -> None:
        """Have the present kernel process record its messages from now on."""
        self._ledgers += 1
        self.ledger = Ledger(self.place.root / f"ledger-{self._ledgers}")
        code = _SETUP.format(text=_RECORDING.read_text(), path=str(self.ledger.path))
        msg_id = await self.client.execute(code)
        await self.client.until(lambda: self.client.done(msg_id), "the recorder is in place")
        if self.client.reply(msg_id)["status"] != "ok":  # type: ignore[index]
            raise Failure(f"the recorder could not be put in place: {self.client.reply(msg_id)}")
        await self.client.request("comm_open", {"comm_id": "echo", "target_name": "echo", "data": {}})
        await self.settle()
        self.ledger.read()
        self.forget()

    def forget(self) -> None:
        """Begin new rows."""
        for client in (self.client, *self.others):
            client.received.clear()
            client.notices.clear()
            client.sent.clear()

    # -- pieces of rounds ------------------------------------------------------------------------------------

    async def send_cells(self, rng: random.Random, cells: list[Cell]) -> list[str]:
        """Send cells, and between them perhaps a comm's or a control message; return the cells' ids."""
        ids = []
        for cell in cells:
            if rng.random() < 0.25:
                data = {"times": rng.randrange(1, 4)}
                size = rng.choice([10, 5_000, 300_000])
                await self.client.request("comm_msg", {"comm_id": "echo", "data": data}, buffer=size)
            if rng.random() < 0.2:
                await self.client.request("kernel_info_request", {}, channel=rng.choice([SHELL, CONTROL]))
            ids.append(await self.client.execute(cell.code))
        self.notes.append("cells: " + ", ".join(cell.kind for cell in cells))
        return ids

    async def some_cells(self, rng: random.Random, most: int = 3, asking: bool = True) -> list[Cell]:
        """Choose cells."""
        return [choose(rng, asking) for _ in range(rng.randrange(1, most + 1))]

    async def finish_cells(self, ids: list[str], cells: list[Cell]) -> None:
        """Wait until cells are done, and check what their replies say."""
        for msg_id, cell in zip(ids, cells, strict=True):
            await self.client.until(lambda msg_id=msg_id: self.client.done(msg_id), f"{cell.kind} is done")
            reply = self.client.reply(msg_id) or {}
            if reply.get("status", cell.status) != cell.status:  # a long one is not looked into
                raise Failure(f"{cell.kind} ended with {reply}")

    async def settle(self) -> None:
        """Wait until the kernel has answered all it was asked, and the client has it."""
        msg_id = await self.client.execute("None")
        await self.client.until(lambda: self.client.done(msg_id), "the last cell is done")

    async def check(self, rule: str = "all", notices: Callable[[str], bool] = lambda _: False) -> None:
        """Compare, see that the statuses are true and the processes as they should be, and begin new rows.

        Args:
            rule: for the main client, see `compare`.
            notices: says whether a message of the relay's own is right in this round.
        """
        await self.settle()
        deadline = time.monotonic() + 5
        rows: list[Line] = []
        while True:
            rows += self.ledger.read()
            problems = compare(self.client, rows, rule)
            for other in self.others:
                problems += compare(other, rows, "suffix")
            if not problems or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.05)  # a message without a reply may still be on its way
        for line in self.client.notices:
            text = str(line.get("content"))
            if line["type"] != "status" and not notices(text):
                problems.append(f"the relay said of its own: {line['type']} {text[:300]}")
        problems += await self.truth()
        self.forget()
        if problems:
            raise Failure("\n".join(problems))

    async def truth(self) -> list[str]:
        """Return what is not as it should be with a kernel that runs and a host in reach."""
        status: Line = {}

        async def right() -> bool:
            nonlocal status
            status = await self.client.do("status")
            return (
                status["step"] == "attached"
                and status["process"] == "running"
                and status["away"] is None
                and status["alive"]
                and status["pid"] == self.pid
                and status["held"] == 0
            )

        found = []
        if not await eventually(right, 10):
            found.append(f"the status is not true: {status}; the kernel is {self.pid}")

        async def tidy() -> bool:
            place = self.place
            return (
                [each.pid for each in place.kernels()] == [self.pid]
                and len(place.keepers()) == 1
                and len(place.bridges()) == 1 + len(self.others)
            )

        if not await eventually(tidy, 10):
            found.append("the host's processes are: " + "; ".join(map(str, self.place.processes())))
        return found

    async def end(self) -> list[str]:
        """End kernel and clients; return what is left on the host, in words."""
        for other in self.others:
            await other.kill()
        if self.pid:
            await self.client.do("shutdown", now=False)
            self.pid = 0
        left: list[str] = []

        async def nothing_left() -> bool:
            nonlocal left
            left = self.place.leftovers()
            return not left

        await eventually(nothing_left, 10)
        await self.client.kill()
        return left


async def eventually(condition: Callable[[], Any], seconds: float = PATIENCE) -> bool:
    """Ask again and again until the answer is true; False when it was not in time."""
    deadline, pause = time.monotonic() + seconds, 0.005
    while not await condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, 0.1)
    return True
