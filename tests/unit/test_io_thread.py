"""The I/O thread: one loop for all callers, whatever loop or thread they come from, and a quiet end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time

import pytest

from albedo_provisioner.hosts.io_thread import obtain, run, run_blocking, submit


async def where() -> threading.Thread:
    return threading.current_thread()


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    """Run a program of its own, with all warnings shown."""
    return subprocess.run(
        [sys.executable, "-W", "default", "-c", code],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_blocking_callers_of_several_threads_share_one_thread() -> None:
    threads = {run_blocking(where())}
    other = threading.Thread(target=lambda: threads.add(run_blocking(where())))
    other.start()
    other.join()
    assert len(threads) == 1
    assert threading.current_thread() not in threads


async def test_a_running_loop_awaits_and_goes_on_meanwhile() -> None:
    assert await run(where()) is not threading.current_thread()


async def test_run_on_the_thread_itself_just_awaits() -> None:
    async def outer() -> bool:
        return await run(where()) is threading.current_thread()

    assert await run(outer())


def test_run_blocking_on_the_thread_itself_is_refused_instead_of_waiting_for_ever() -> None:
    async def outer() -> None:
        run_blocking(where())

    with pytest.raises(RuntimeError, match="wait for itself"):
        run_blocking(outer())


async def test_cancelling_the_awaiting_side_cancels_the_coroutine() -> None:
    started, cancelled = threading.Event(), threading.Event()

    async def long() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    waiting = asyncio.create_task(run(long()))
    assert await asyncio.to_thread(started.wait, 5)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await asyncio.to_thread(cancelled.wait, 5)


def test_a_timeout_cancels_the_coroutine() -> None:
    cancelled = threading.Event()

    async def long() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(TimeoutError):
        run_blocking(long(), timeout=0.05)
    assert cancelled.wait(5)


def test_errors_come_back_to_the_caller() -> None:
    async def fail() -> None:
        raise ValueError("as it is")

    with pytest.raises(ValueError, match="as it is"):
        run_blocking(fail())
    assert isinstance(submit(fail()).exception(5), ValueError)


def test_blocking_calls_of_the_loop_run_side_by_side_and_not_on_it() -> None:
    barrier = threading.Barrier(40)  # more than the stock executor has workers

    async def together() -> None:
        await asyncio.gather(*(asyncio.to_thread(barrier.wait, 5) for _ in range(40)))

    run_blocking(together(), 10)


def test_a_forked_child_gets_a_thread_of_its_own_and_leaves_the_parent_s_alone() -> None:
    result = run_python("""
import asyncio, os, threading
from albedo_provisioner.hosts.io_thread import IOThread, run_blocking, submit

async def answer():
    return 42

pending = submit(asyncio.sleep(7777))
parent = IOThread.get()
assert run_blocking(answer()) == 42
child = os.fork()
if child == 0:
    assert IOThread.get() is not parent
    assert run_blocking(answer(), 5) == 42
    raise SystemExit(0)
_, status = os.waitpid(child, 0)
assert run_blocking(answer(), 5) == 42
print(os.waitstatus_to_exitcode(status))
""")
    assert (result.stdout, result.returncode) == ("0\n", 0)
    assert "destroyed" not in result.stderr


@pytest.mark.parametrize(
    "busy",
    [
        "submit(asyncio.sleep(7777))",
        "submit(asyncio.to_thread(time.sleep, 7777))",
        "submit(stubborn())",
        "IOThread.get().call_soon(print)",
        "IOThread.get().on_stop(stubborn)",
    ],
)
def test_the_interpreter_ends_quietly_and_soon_whatever_is_under_way(busy: str) -> None:
    started = time.monotonic()
    result = run_python(f"""
import asyncio, sys, time
from albedo_provisioner.hosts.io_thread import IOThread, run_blocking, submit

async def stubborn():
    while True:
        try:
            await asyncio.sleep(7777)
        except asyncio.CancelledError:
            pass

run_blocking(asyncio.sleep(0))
{busy}
run_blocking(asyncio.sleep(0))
""")
    assert (result.stdout.strip(), result.stderr, result.returncode) == ("", "", 0)
    assert time.monotonic() - started < 8


def test_what_is_registered_for_the_end_is_done_before_the_tasks_are_cancelled() -> None:
    result = run_python("""
import asyncio
from albedo_provisioner.hosts.io_thread import IOThread, submit

async def task():
    try:
        await asyncio.sleep(7777)
    finally:
        print("cancelled")

async def goodbye():
    print("goodbye")

submit(task())
IOThread.get().on_stop(goodbye)
""")
    assert (result.stdout, result.stderr) == ("goodbye\ncancelled\n", "")


async def test_what_nobody_waits_for_any_more_is_undone_also_when_it_was_on_its_way() -> None:
    """Cancelling comes too late: the result is there, and the caller's loop has not seen it yet."""
    made, undone = threading.Event(), threading.Event()

    async def make() -> str:
        asyncio.get_running_loop().call_later(0.05, made.set)  # by then the task has ended
        return "it"

    async def undo(result: str) -> None:
        assert result == "it"
        undone.set()

    call = asyncio.create_task(obtain(make(), undo))
    await asyncio.sleep(0)
    assert made.wait(10)  # our own loop stands still meanwhile
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert undone.wait(10)


async def test_what_is_waited_for_is_not_undone() -> None:
    undone: list[str] = []

    async def make() -> str:
        return "it"

    async def undo(result: str) -> None:
        undone.append(result)

    assert await obtain(make(), undo) == "it"
    await run(make())  # whatever was on its way to that thread has been done
    assert undone == []
