"""A channel receiver that remembers what it was told, with conditions to await instead of sleeps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from albedo_provisioner.hosts.transport import Channel, Exit, Transport


class Recorder:
    """Takes what a channel tells, and checks the rules that every transport keeps.

    Attributes:
        out, err: the bytes so far.
        how: the end, None before it.
        flow: "pause" and "resume" in the order they came.
        broken_rules: what the transport did against its contract.
    """

    def __init__(self) -> None:
        self.out = bytearray()
        self.err = bytearray()
        self.how: Exit | None = None
        self.flow: list[str] = []
        self.broken_rules: list[str] = []
        self.inside = False
        self._changed = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self._note("data")
        self.out += data

    def stderr_received(self, data: bytes) -> None:
        self._note("stderr")
        self.err += data

    def pause_writing(self) -> None:
        self._note("pause_writing")
        self.flow.append("pause")

    def resume_writing(self) -> None:
        self._note("resume_writing")
        self.flow.append("resume")

    def closed(self, how: Exit) -> None:
        self._note("closed")
        self.how = how

    def _note(self, what: str) -> None:
        if self.how is not None:
            self.broken_rules.append(f"{what} after closed")
        if self.inside:
            self.broken_rules.append(f"{what} from within a call")
        self._changed.set()

    async def until(self, condition: Callable[[], object], timeout: float = 20) -> None:
        """Wait until a condition on what was received holds."""
        async with asyncio.timeout(timeout):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def end(self, timeout: float = 20) -> Exit:
        """Wait for the end and return it."""
        await self.until(lambda: self.how is not None, timeout)
        assert self.how is not None
        assert self.broken_rules == []
        return self.how


async def run(transport: Transport, command: str, data: bytes = b"") -> Recorder:
    """Run a command to its end."""
    recorder = Recorder()
    channel = await transport.open(command, recorder)
    if data:
        channel.write(data)
    channel.write_eof()
    await recorder.end()
    return recorder


async def start(transport: Transport, command: str) -> tuple[Channel, Recorder]:
    """Start a command."""
    recorder = Recorder()
    return await transport.open(command, recorder), recorder


async def eventually(condition: Callable[[], object], timeout: float = 10) -> None:
    """Wait until a condition holds that nothing tells us about (another process's state)."""
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
