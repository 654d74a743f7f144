"""Memory as code in kernels uses it: across links that break, from several kernels, after clients that are killed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from faces import Embedded, Host, Real
from kernels import eventually, started
from local_process import launched

from albedo_provisioner import AsyncSession, AsyncSessions, Location
from albedo_provisioner.workspace.links import WorkspaceGroups
from albedo_provisioner.workspace.memory import WorkspaceMemory

KILLS = 2
"""How often the client of a cell is killed."""

IMPORT = "from albedo_bundle import memory\n"


async def printed(session: AsyncSession, code: str) -> str:
    """Run a cell and return what it printed; it must not fail."""
    result = await session.execute(code, timeout=60)
    assert result.status == "ok", result.traceback
    return result.stdout


def lines_of(location: str) -> list[str]:
    return WorkspaceMemory(Location.parse(location)).read(linked=False).splitlines()


async def test_is_written_here_and_nothing_of_it_on_the_host(
    any_host: Host, async_sessions: AsyncSessions, tmp_path: Path
) -> None:
    """M1, M2."""
    any_host.make_folder("my proj")
    session = await async_sessions.open(
        f"{any_host.alias}:~/my proj" if any_host.remote else any_host.location("my proj")
    )
    # Put together there, as IPython keeps the code of cells in the home.
    code = IMPORT + (
        "words = ' '.join(['The', 'gate', 'opens.'])\nmemory.append(words); memory.journal(words)\nprint(memory.read())"
    )
    assert await printed(session, code) == "The gate opens.\n\n"
    location = any_host.location("my proj")
    slug = "".join(each if each.isalnum() else "-" for each in location)
    folder = Path(os.environ["ALBEDO_HOME"]) / "memories" / slug
    assert (folder / "memory.md").read_text() == "The gate opens.\n"
    assert len(list((folder / "journal").iterdir())) == 1
    if any_host.remote:
        found = any_host.run(["grep", "-rl", "The gate opens\\.", str(any_host.home)])
        assert found.stdout == ""
    assert await session.memory.read() == "The gate opens.\n"
    other = await async_sessions.open(str(tmp_path))
    await other.memory.append("A gate in the wall.")
    await session.links.add(str(tmp_path))
    code = "print(*memory.grep('GATE'), *memory.search('gates walls'), memory.grep('wall')[0].location, sep='\\n')"
    (day,) = (folder / "journal").iterdir()
    assert (await printed(session, code)).splitlines() == [
        "memory.md:1: The gate opens.",
        f"journal/{day.name}:3: The gate opens.",
        f"[{tmp_path}] memory.md:1: A gate in the wall.",
        f"[{tmp_path}] memory.md:1: A **gate** in the **wall**.",
        str(tmp_path),
    ]
    code = (
        "for bad in (lambda: memory.save('x' * 1_100_000), lambda: memory.grep(''), lambda: memory.append(7)):\n"
        "    try:\n        bad()\n    except Exception as error:\n        print(type(error).__name__, error)"
    )
    refused = (await printed(session, code)).splitlines()
    assert refused[0].startswith(f"MemoryFileError memory.md of {location} would have 1,100,001 bytes")
    assert refused[1:] == [
        "ValueError grep looks for a text, and this one is empty",
        "ValueError a text is needed, and not a value of type int",
    ]
    assert await session.memory.read(linked=False) == "The gate opens.\n"


async def test_is_there_for_notebooks(sshd_host: Real) -> None:
    """M1."""
    sshd_host.make_folder("proj")
    location = sshd_host.location("proj")
    async with started(location) as kernel:
        cell = await kernel.run(IMPORT + "memory.append('The gate.')\nprint(memory.grep('gate'))")
        assert cell.stdout == "['memory.md:1: The gate.']\n"
        sshd_host.down()
        cell = kernel.begin("memory.append('Another gate.')\nprint(memory.grep('another'))")
        sshd_host.up()
        await cell.done()
        assert cell.stdout == "['memory.md:2: Another gate.']\n"
    assert lines_of(location) == ["The gate.", "Another gate."]


def test_is_there_for_clients_that_run_the_kernelspecs_command(embedded_host: Embedded) -> None:
    """M1."""
    with launched(embedded_host.location()) as kernel:
        assert kernel.run(IMPORT + "memory.append('The gate.')\nprint(memory.read())")[1] == "The gate.\n\n"
        kernel.client.shutdown()
        assert kernel.ended() == (0, "")
    assert lines_of(embedded_host.location()) == ["The gate."]


async def test_of_three_kernels_on_two_hosts_loses_and_repeats_nothing_when_links_break(
    embedded_host: Embedded, sshd_host: Real, async_sessions: AsyncSessions
) -> None:
    """M1: two of them in one folder, the third in one that is linked with it."""
    places = [embedded_host.location(), embedded_host.location(), sshd_host.location()]
    WorkspaceGroups().link(*map(Location.parse, places[1:]))
    opened = [await async_sessions.open(place, owner=f"o{number}") for number, place in enumerate(places)]
    assert (
        await asyncio.gather(*(printed(each, IMPORT + "print(len(memory.read()))") for each in opened)) == ["0\n"] * 3
    )
    count = 20
    code = (
        "for i in range({count}):\n    memory.append(f'{name} {{i}}')\n    memory.journal(f'{name} {{i}}')\n"
        "    assert any(hit.text == f'{name} {{i}}' for hit in memory.grep(f'{name} {{i}}', 1000))"
    )
    cells = [
        asyncio.create_task(printed(each, code.format(count=count, name=f"w{number}")))
        for number, each in enumerate(opened)
    ]
    cuts = 0
    while not all(cell.done() for cell in cells):
        host = (embedded_host, sshd_host)[cuts % 2]
        if cuts % 5 == 4:
            host.down()
            await asyncio.sleep(0.3)
            host.up()
        else:
            host.cut()
        cuts += 1
        await asyncio.wait(cells, timeout=0.5)
    await asyncio.gather(*cells)
    assert cuts > 3
    for place, names in ((places[0], ("w0", "w1")), (places[2], ("w2",))):
        lines = lines_of(place)
        assert len(lines) == count * len(names)
        for name in names:
            assert [line for line in lines if line.startswith(name)] == [f"{name} {i}" for i in range(count)]
        folder = WorkspaceMemory(Location.parse(place)).store.folder()
        assert folder is not None
        entries = [
            line
            for day in sorted((folder / "journal").glob("*.md"))
            for line in day.read_text().splitlines()
            if line.startswith("w")
        ]
        assert sorted(entries) == sorted(lines)


AGENT = """
import sys
from albedo_provisioner import Sessions
sessions = Sessions()
session = sessions.open(sys.argv[1], owner="agent")
session.execute("from albedo_bundle import memory")
print(session.id, flush=True)
session.execute("for i in range(80): memory.append(f'line {i}')\\nprint('done')", cell_id="the-cell")
"""


async def test_of_a_cell_whose_clients_are_killed_has_every_line_once(embedded_host: Embedded) -> None:
    """L3 for memory: what was asked while nobody was there is done by the next client, and nothing twice."""
    location = embedded_host.location()
    agent = await asyncio.create_subprocess_exec(sys.executable, "-c", AGENT, location, stdout=subprocess.PIPE)
    assert agent.stdout is not None
    session_id = (await agent.stdout.readline()).decode().strip()
    resume = f"from albedo_provisioner import Sessions; Sessions().resume({session_id!r}).cell('the-cell')"
    for number in range(KILLS):
        reached = len(lines_of(location)) + 15
        await eventually(lambda reached=reached: len(lines_of(location)) >= reached, what=f"line {reached}")
        agent.kill()
        await agent.wait()
        if number < KILLS - 1:
            agent = await asyncio.create_subprocess_exec(sys.executable, "-c", resume)
    async with AsyncSessions() as sessions:
        session = await sessions.resume(session_id)
        result = await session.cell("the-cell")
        assert (result.status, result.stdout) == ("ok", "done\n")
        assert lines_of(location) == [f"line {i}" for i in range(80)]
        await session.close()
