"""Several hands on one session at the same time: repeated calls, other processes, what is done to it meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from faces import Embedded, keeper_of
from kernels import eventually, started, under_way, until_status
from procs import send

from albedo_provisioner import AsyncSessions, Sessions
from albedo_provisioner.errors import AlbedoError
from albedo_provisioner.hosts import io_thread
from albedo_provisioner.kernels.records import KernelRecords
from albedo_provisioner.sessions import current_cell, session_kernel

UNTIL_GO = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n"


async def test_a_repeated_call_whose_first_caller_was_cancelled_before_it_began_is_run_once(
    embedded_host: Embedded, async_sessions: AsyncSessions
) -> None:
    session = await async_sessions.open(embedded_host.location())
    await session.execute("n = 41")
    before = asyncio.create_task(session.execute(UNTIL_GO))
    await under_way(session)
    first = asyncio.create_task(session.execute("n += 1\nn", cell_id="c"))
    await eventually(lambda: "c" in session._core._calls)
    again = [asyncio.create_task(session.execute("n += 1\nn", cell_id="c")) for _ in range(3)]
    reader = asyncio.create_task(session.cell("c"))
    await session.status()  # they wait for the first one by now
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    embedded_host.write("go", "")
    assert (await before).status == "ok"
    results = [await each for each in (*again, reader)]
    assert [(result.status, result.value) for result in results] == [("ok", "42")] * 4
    assert (await session.execute("n")).value == "42"
    with pytest.raises(KeyError):
        await session.cell("never asked")


async def test_code_that_another_clients_failure_threw_away_can_be_interrupted_before_it_is_sent_again(
    embedded_host: Embedded, async_sessions: AsyncSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L8."""
    monkeypatch.setattr(current_cell, "_ABORT_PAUSE", 3.0)
    async with started(embedded_host.location()) as person:
        (known,) = KernelRecords().all()
        session = await async_sessions.join(known.kernel_id)
        cell = person.begin(f"print('begun', flush=True)\n{UNTIL_GO}1 / 0")
        await cell.until(lambda: cell.stdout)
        call = asyncio.create_task(session.execute("ran = True"))
        await under_way(session)
        running, kernel = session._core._cell.running, session._core._held.kernel
        assert running is not None
        assert kernel is not None
        assert await io_thread.run(kernel.answers_within(60)), "so its keeper has passed the code on"
        embedded_host.write("go", "")
        await eventually(lambda: running.finished.is_set())
        assert await session.interrupt()
        assert (await call).status == "interrupted"
        assert await person.value("'ran' in globals()") == "False"


async def test_a_kernel_that_has_to_go_on_a_host_out_of_reach_holds_nobody_up(
    embedded_host: Embedded, new_embedded_host: Callable[..., Embedded], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7."""
    monkeypatch.setattr(session_kernel, "ANSWER_TIMEOUT", 600.0)
    other = new_embedded_host()
    async with AsyncSessions(max_kernels=1) as sessions:
        session = await sessions.open(embedded_host.location())
        await session.execute("x = 41")
        embedded_host.down()
        await until_status(session, "link", "reattaching")
        elsewhere = await sessions.open(other.location())
        assert (await elsewhere.execute("42")).value == "42"
        embedded_host.up()
        await eventually(lambda: not embedded_host.processes())
        monkeypatch.undo()
        result = await session.execute("'x' in globals()")
        assert (result.value, result.kernel.state_lost) == ("False", True)
        assert "there may be 1 kernels" in str(result.kernel.note)


def test_a_session_is_open_in_one_place_at_a_time(embedded_host: Embedded) -> None:
    with Sessions() as sessions:
        session = sessions.open(embedded_host.location())
        session.execute("x = 41")
        with Sessions() as others, pytest.raises(AlbedoError, match="other Sessions of this process"):
            others.resume(session.id)
        sessions.leave()
    code = (
        "import sys\nfrom albedo_provisioner import Sessions\nsessions = Sessions()\nprint('ready', flush=True)\n"
        "input()\ntry: session = sessions.resume(sys.argv[1])\n"
        "except Exception as error: print(error, flush=True)\nelse: print(session.execute('x').value, flush=True)\n"
        "input()\nsessions.leave()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    rivals = [subprocess.Popen([sys.executable, "-c", code, session.id], text=True, **pipes) for _ in range(3)]
    said = []
    for step in ("ready", "what came of it"):
        for rival in rivals:
            assert rival.stdout is not None
            said.append(rival.stdout.readline().strip())
            if step == "ready":
                assert said.pop() == step
        for rival in rivals:
            assert rival.stdin is not None
            rival.stdin.write("\n")
            rival.stdin.flush()
    for rival in rivals:
        rival.communicate(timeout=60)
    assert said.count("41") == 1
    assert sum("is open in process" in each for each in said) == 2
    with Sessions() as sessions:
        session = sessions.resume(session.id)
        assert session.execute("x").value == "41"
        session.close()
        for act in (lambda: session.move(embedded_host.location()), lambda: session.execute("1")):
            with pytest.raises(AlbedoError, match="has been closed"):
                act()


@pytest.mark.parametrize("how", ["cancelled", "interrupted"])
async def test_a_call_that_is_given_up_does_not_begin_on_the_next_kernel(
    embedded_host: Embedded, async_sessions: AsyncSessions, how: str
) -> None:
    """S4: its own one had ended before it could begin, which nobody knew then."""
    session = await async_sessions.open(embedded_host.location())
    await session.execute("x = 41")
    pid = (await session.status())["process"]["pid"]
    keeper = keeper_of(embedded_host)
    send(keeper, signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    call = asyncio.create_task(session.execute("open('ran', 'w').close()", cell_id="c"))
    await under_way(session)
    if how == "cancelled":
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        send(keeper, signal.SIGCONT)
    else:
        interrupt = asyncio.create_task(session.interrupt())
        await session.status()  # it has been sent by now
        send(keeper, signal.SIGCONT)
        await interrupt  # whether or not it found the kernel there
    result = await session.cell("c")
    assert result.status == "interrupted", result.kernel.note
    assert "was not run" in str(result.kernel.note)
    after = await session.execute("'x' in globals()")
    assert (after.value, after.kernel.state_lost) == ("False", True)
    assert not (embedded_host.home / "ran").exists()


def test_a_folder_below_the_home_is_one_place_once_the_home_is_known(embedded_host: Embedded) -> None:
    below_home, folders = f"{embedded_host.alias}:~", {}
    for name in ("proj", "other"):
        folders[name] = embedded_host.location(embedded_host.make_folder(name))
    with Sessions() as sessions:
        first, second = sessions.open(f"{below_home}/proj"), sessions.open(folders["proj"])
        assert first.id != second.id, "nobody could know"
        first.execute("x = 41")
        for spelled in (f"{below_home}/proj", folders["proj"]):
            assert sessions.open(spelled).execute("x").value == "41"
        other = sessions.open(f"{below_home}/other")
        assert sessions.open(folders["other"]).id == other.id
        sessions.leave()
    with Sessions() as sessions:
        assert sessions.open(folders["other"]).id == other.id
        assert sessions.close_owner("") == 3
