"""Interrupts in moments in which ipykernel overlooks them, or loses what they interrupt: none is lost, none hangs."""

from __future__ import annotations

import asyncio
import os
import signal

from faces import Embedded
from kernels import started, under_way

from albedo_provisioner import AsyncSession, AsyncSessions, Result
from albedo_provisioner.bundle.interrupts import MUTE
from albedo_provisioner.kernels.records import KernelRecords

SLEEP = "import time\ntime.sleep(600)"

ORDERLY = """
import time
print("begun", flush=True)
try:
    time.sleep(600)
except KeyboardInterrupt:
    time.sleep(1.5)
    print("put in order")
"""

HIT_AT_THE_END = """
import time
kernel = get_ipython().kernel
def hit(*arguments):  # as if the interrupt had come only now, when the reply is made up
    del kernel.finish_metadata
    raise KeyboardInterrupt
print("begun", flush=True)
try:
    time.sleep(600)
except KeyboardInterrupt:
    kernel.finish_metadata = hit
"""


NO_ANSWER = """
kernel = get_ipython().kernel
def fail(*arguments):
    del kernel.finish_metadata
    raise RuntimeError("no reply can be made")
kernel.finish_metadata = fail
print("done")
"""


async def interrupted(session: AsyncSession, code: str) -> Result:
    """Interrupt code as soon as it was given to the kernel, and return what came of it."""
    call = asyncio.create_task(session.execute(code))
    await under_way(session)
    assert await session.interrupt()
    return await asyncio.wait_for(call, 60)


async def test_one_in_the_moment_in_which_the_code_begins_reaches_it(embedded_host: Embedded) -> None:
    """L7: ipykernel takes it for its own then, and the code would run on."""
    async with AsyncSessions() as sessions:
        session = await sessions.open(embedded_host.location())
        await session.execute("x = 41")
        for _ in range(6):
            assert (await interrupted(session, SLEEP)).status == "interrupted"
        result = await session.execute("x")
        assert (result.value, result.execution_count) == ("41", 8)


async def test_one_is_enough_for_code_that_puts_things_in_order(embedded_host: Embedded) -> None:
    async with AsyncSessions() as sessions:
        session = await sessions.open(embedded_host.location())
        printed = asyncio.Event()
        loop = asyncio.get_running_loop()
        call = asyncio.create_task(session.execute(ORDERLY, on_output=lambda _: loop.call_soon_threadsafe(printed.set)))
        await printed.wait()
        await session.interrupt()
        assert (await call).stdout == "begun\nput in order\n"


async def test_code_that_loses_its_reply_to_one_does_not_hang(embedded_host: Embedded) -> None:
    """ipykernel says that it is idle then, and never answers; the same for a session and for a notebook."""
    async with started(embedded_host.location()) as person, AsyncSessions() as sessions:
        cell = person.begin(HIT_AT_THE_END)
        await cell.until(lambda: cell.stdout)
        await person.manager.interrupt_kernel()
        await cell.done()
        assert cell.reply is not None
        assert (cell.reply["ename"], cell.stdout) == ("ReplyLost", "begun\n")
        assert "came to its end" not in cell.reply["evalue"]
        assert await person.value("6 * 7") == "42"

        session = await sessions.open(embedded_host.location(), "agent")
        await session.execute("x = 41")
        printed = asyncio.Event()
        loop = asyncio.get_running_loop()
        told = {"on_output": lambda _: loop.call_soon_threadsafe(printed.set)}
        call = asyncio.create_task(session.execute(HIT_AT_THE_END, cell_id="hit", **told))
        await printed.wait()
        await session.interrupt()
        result = await call
        assert result.status == "interrupted"
        assert "has its state" in str(result.kernel.note)
        result = await session.execute("x")
        assert (result.value, result.kernel.reused) == ("41", True)


async def test_code_that_has_no_reply_without_one_does_not_hang_either(embedded_host: Embedded) -> None:
    """ipykernel says that it is idle, and never answers; another client's work in between is not taken for that."""
    async with AsyncSessions() as sessions:
        session = await sessions.open(embedded_host.location())
        await session.execute("x = 41")
        result = await asyncio.wait_for(session.execute(NO_ANSWER), 60)
        assert (result.status, result.stdout) == ("lost", "done\n")
        assert (result.kernel.state_lost, result.kernel.ended) == (False, False)
        assert "gave no answer" in str(result.kernel.note)
        result = await session.execute("x")
        assert (result.value, result.kernel.reused) == ("41", True)


HELD = """
import time
session, held = get_ipython().kernel.session, []
send = session.send
def hold(stream, kind, *arguments, **more):
    if kind != "execute_reply":
        return send(stream, kind, *arguments, **more)
    del session.send
    held.append(lambda: send(stream, kind, *arguments, **more))
session.send = hold
print("begun", flush=True)
while not os.path.exists("go"): time.sleep(0.01)
6 * 7
"""


async def test_code_whose_reply_waits_for_another_clients_is_not_given_up(embedded_host: Embedded) -> None:
    """As long as that one runs, the kernel may well be kept from sending the reply."""
    async with started(embedded_host.location()) as person, AsyncSessions() as sessions:
        (kernel,) = KernelRecords().all()
        session = await sessions.join(kernel.kernel_id)
        await session.execute("import os")
        begun, loop = asyncio.Event(), asyncio.get_running_loop()
        told = {"on_output": lambda _: loop.call_soon_threadsafe(begun.set)}
        call = asyncio.create_task(session.execute(HELD, **told))
        await begun.wait()
        other = person.begin(f"time.sleep({MUTE + 1.5})\nheld.pop()()")
        embedded_host.write("go", "")
        result = await call
        assert (result.status, result.value, result.kernel.note) == ("ok", "42", None)
        await other.done()


async def test_one_for_a_kernel_that_has_just_ended_is_silent(embedded_host: Embedded) -> None:
    """As for a local kernel: managers interrupt one before they end it, and that must not keep them from it."""
    async with started(embedded_host.location()) as kernel:
        os.kill(int(kernel.status["pid"]), signal.SIGKILL)
        while await kernel.manager.is_alive():
            await kernel.manager.interrupt_kernel()
