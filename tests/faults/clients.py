"""A client process as the campaign holds it: commands, answers, and the row of messages that it received."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .place import KERNELSPEC, Place

PATIENCE = 60.0
"""Seconds until the campaign gives up on something that ought to have happened."""

Line = dict[str, Any]


class ClientError(Exception):
    """A command failed; the message is the client's."""


class ClientProcess:
    """One client process.

    Attributes:
        name: its identity on the relay's sockets.
        received: lines of all messages that it received, those of the relay's own making apart.
        notices: lines of the relay's own messages.
        sent: lines of the messages that it was told to send, since they were last compared.
        asked: how many input requests came.
    """

    def __init__(self, place: Place, name: str) -> None:
        self.name = name
        self.received: list[Line] = []
        self.notices: list[Line] = []
        self.sent: list[Line] = []
        self.asked = 0
        self._place = place
        self._process: asyncio.subprocess.Process | None = None
        self._answers: dict[int, asyncio.Future[Line]] = {}
        self._number = 0
        self._ready = asyncio.Event()
        self._changed = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._inputs: set[asyncio.Task[Any]] = set()

    async def spawn(self) -> ClientProcess:
        """Start the process; wait until it takes commands."""
        log = (self._place.root / "client.log").open("ab")
        with log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                str(Path(__file__).with_name("client.py")),
                self.name,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=self._place.environ,
                cwd=self._place.side,
                limit=1 << 26,
            )
        self._reading = asyncio.create_task(self._read())
        async with asyncio.timeout(PATIENCE):
            await self._ready.wait()
        return self

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        """Signal it."""
        assert self._process is not None
        self._process.send_signal(number)

    async def kill(self) -> None:
        """Kill it, and take what it had written until then."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        if self._reading is not None:
            await asyncio.wait([self._reading])
        for task in self._inputs:
            task.cancel()

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            if not line.endswith(b"\n"):
                break  # it was killed in the middle of a line
            self._take(json.loads(line))
            self._changed.set()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ClientError("the client ended"))

    def _take(self, told: Line) -> None:
        if "message" in told:
            line = told["message"]
            (self.notices if line["user"] == "albedo" else self.received).append(line)
            if line["type"] == "input_request":
                self.asked += 1
                task = asyncio.ensure_future(self._answer(line))
                self._inputs.add(task)
                task.add_done_callback(self._inputs.discard)
        elif "answer" in told:
            answer = self._answers.pop(told["answer"], None)
            if answer is not None and not answer.done():
                answer.set_result(told)
        else:
            self._ready.set()

    async def _answer(self, line: Line) -> None:
        prompt = line["content"]["prompt"]
        with contextlib.suppress(ClientError):
            await self.request("input_reply", {"value": f"answer to {prompt}"}, channel=3)

    async def do(self, name: str, seconds: float = PATIENCE, **arguments: Any) -> Line:
        """Have a command done and return its answer.

        Raises:
            ClientError: it failed.
            TimeoutError: no answer in time.
        """
        assert self._process is not None
        assert self._process.stdin is not None
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        command = {"number": self._number, "do": name, "with": arguments}
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        try:
            async with asyncio.timeout(seconds):
                told = await answer
        except TimeoutError:
            raise TimeoutError(f"{name} was not done within {seconds:g} s") from None
        if "error" in told:
            raise ClientError(f"{name}: {told['error']}")
        return told

    async def request(self, msg_type: str, content: dict[str, Any], channel: int = 1, buffer: int = 0) -> str:
        """Send a message and return its id."""
        sent = (await self.do("request", msg_type=msg_type, content=content, channel=channel, buffer=buffer))["sent"]
        self.sent.append(sent)
        return str(sent["id"])

    async def execute(self, code: str) -> str:
        """Send an execute request and return its id."""
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": True, "stop_on_error": False}
        return await self.request("execute_request", {**content, "user_expressions": {}})

    def lines(self, msg_id: str, msg_type: str | None = None) -> list[Line]:
        """Return what came for a request, the relay's own messages among it."""
        return [
            line
            for line in (*self.received, *self.notices)
            if line["id"] == msg_id and msg_type in (None, line["type"])
        ]

    def reply(self, msg_id: str) -> Line | None:
        """Return the content of an execute request's reply, once it is there."""
        found = self.lines(msg_id, "execute_reply")
        return found[0].get("content", {}) if found else None

    def idle(self, msg_id: str) -> bool:
        """Say whether a request's idle status has come."""
        return any(line["content"]["execution_state"] == "idle" for line in self.lines(msg_id, "status"))

    def done(self, msg_id: str) -> bool:
        """Say whether both reply and idle status have come."""
        return self.idle(msg_id) and self.reply(msg_id) is not None

    async def until(self, condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
        """Wait until what has come makes `condition` true.

        Raises:
            TimeoutError: it did not.
        """
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise TimeoutError(f"not within {seconds:g} s: {what}") from None

    async def start(self) -> Line:
        """Start a kernel."""
        return await self.do("start", kernelspec=KERNELSPEC)

    async def load(self, info: dict[str, Any], seconds: float = PATIENCE) -> Line:
        """Take up a kernel that another client started."""
        return await self.do("load", seconds, kernelspec=KERNELSPEC, info=info)
