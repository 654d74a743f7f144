"""The rounds: what is done, what breaks meanwhile, and what may have come of it."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable

from procs import send

from albedo_provisioner.bundle.wire import IOPUB, SHELL

from .campaign import Campaign, Failure, eventually
from .clients import ClientError
from .faults import LINK_FAULTS, Fault
from .ledger import compare

Round = Callable[[Campaign, random.Random], Awaitable[None]]

_ENDLESS = "import time\nprint('begun', flush=True)\nfor i in range(6000):\n    time.sleep(0.01)"


def ordinary(fault: Fault) -> Round:
    """Return the round of a fault that costs nothing: cells, the fault at any moment, all of it arrives."""

    async def play(campaign: Campaign, rng: random.Random) -> None:
        cells = await campaign.some_cells(rng)
        when = rng.choice(["before", "begun", "within"])
        campaign.notes.append(when)
        if when == "before":
            breaking = asyncio.create_task(fault(campaign, rng))
            try:
                await asyncio.sleep(rng.uniform(0, 0.1))
                ids = await campaign.send_cells(rng, cells)
            finally:
                await breaking
        else:
            ids = await campaign.send_cells(rng, cells)
            if when == "begun":
                await campaign.client.until(lambda: campaign.client.lines(ids[-1]), "the last cell has begun")
            else:
                await asyncio.sleep(rng.uniform(0, 0.3))
            await fault(campaign, rng)
        await campaign.finish_cells(ids, cells)
        campaign.place.proxy.heal()
        await campaign.check()

    return play


async def kill_client(campaign: Campaign, rng: random.Random) -> None:
    """The client is killed in a cell and another takes its place; the cell is whole in the journal (L3, L4)."""
    cells = await campaign.some_cells(rng, 2, asking=False)
    ids = await campaign.send_cells(rng, cells)
    if rng.random() < 0.7:
        await campaign.client.until(lambda: campaign.client.lines(ids[0]), "the first cell has begun")
    away = rng.random() < 0.4
    if away:
        campaign.place.proxy.block()
    await asyncio.sleep(rng.uniform(0, 0.3))
    killed = campaign.client
    await killed.kill()
    campaign.client = await campaign.new_client()
    if away:
        campaign.notes.append("while the host is down")
        try:
            await campaign.client.load(campaign.known)
            raise Failure("a host that is down let us in")
        except ClientError as error:
            if "Unreachable" not in str(error):
                raise Failure(f"a host that is down was told of as {error}") from None
        campaign.place.proxy.unblock()
    campaign.took(await campaign.client.load(campaign.known))
    await campaign.settle()  # what was asked before has been done by then
    rows = campaign.ledger.read()
    problems = compare(killed, rows, "prefix")
    reached = {row["id"] for row in rows if row["inbound"]}
    for msg_id, cell in zip(ids, cells, strict=True):
        if msg_id not in reached and not away:
            # It was on its way when the client was killed; as with a local kernel, only what arrived is done.
            campaign.notes.append(f"{cell.kind} had not arrived")
            continue
        if msg_id not in reached:
            continue
        kept = await campaign.client.do("journal", msg_id=msg_id)
        for channel in (IOPUB, SHELL):
            want = [r["digest"] for r in rows if not r["inbound"] and r["id"] == msg_id and r["channel"] == channel]
            have = [line["digest"] for line in kept["lines"] if line["channel"] == channel]
            if want != have or kept["state"] != "done":
                problems.append(f"journal of {cell.kind}: {kept['state']}, {len(have)} of {len(want)} messages")
    problems += compare(campaign.client, rows, "suffix")
    campaign.forget()
    if problems:
        raise Failure("\n".join(problems))
    await campaign.check()


async def double_attach(campaign: Campaign, rng: random.Random) -> None:
    """Another client comes and goes: each gets its own replies, both see all output (L8)."""
    cells = await campaign.some_cells(rng, 2)
    ids = await campaign.send_cells(rng, cells)
    other = await campaign.new_client()
    campaign.others.append(other)
    try:
        await other.load(campaign.known)
        theirs = await other.execute("print('theirs')")
        if rng.random() < 0.6:
            campaign.place.proxy.cut()
        await campaign.finish_cells(ids, cells)
        await other.until(lambda: other.done(theirs), "the other client's cell is done")
        await other_sees_last(campaign, other)
    finally:
        campaign.others.clear()
        await other.kill()


async def other_sees_last(campaign: Campaign, other: object) -> None:
    """Compare both clients' rows."""
    await campaign.check()
    del other


async def interrupt_away(campaign: Campaign, rng: random.Random) -> None:
    """An interrupt given while the host is out of reach hits the cell it was meant for and no other (L7)."""
    kind = rng.choice(["running", "asked while away", "ended meanwhile", "one of two", "keeper killed"])
    campaign.notes.append(kind)
    client, proxy = campaign.client, campaign.place.proxy
    told = []
    if kind == "asked while away":
        proxy.block()
        hit = [await client.execute(_ENDLESS)]
        spared: list[str] = []
    elif kind == "ended meanwhile":
        hit, spared = [], [await client.execute("import time\nprint(1, flush=True)\ntime.sleep(0.3)")]
        await client.until(lambda: client.lines(spared[0], "stream"), "the cell has begun")
        proxy.block()
    else:
        hit, spared = [await client.execute(_ENDLESS)], []
        if kind == "one of two":
            spared.append(await client.execute("import time\ntime.sleep(0.3)\nprint('spared')"))
        await client.until(lambda: client.lines(hit[0], "stream"), "the cell has begun")
        proxy.block()
        if kind == "keeper killed":  # the one that takes its place has never heard of the cell
            for keeper in campaign.place.keepers():
                send(keeper, signal.SIGKILL)

    async def is_away() -> bool:
        return bool((await client.do("status"))["away"])

    if not await eventually(is_away, 20):
        raise Failure("a blocked port was not noticed")
    if kind == "keeper killed":
        proxy.unblock()
        await client.until(lambda: any("keeper" in str(n.get("content")) for n in client.notices), "it was adopted", 20)
    interrupt = asyncio.create_task(client.do("interrupt"))
    await asyncio.sleep(rng.uniform(0.1, 0.6))
    if kind == "ended meanwhile":
        spared.append(await client.execute("import time\nfor i in range(30): time.sleep(0.01)\nprint('spared')"))
    proxy.unblock()
    await interrupt
    for msg_id in (*hit, *spared):
        await client.until(lambda msg_id=msg_id: client.done(msg_id), f"the cells are done ({kind})", 20)
        reply = client.reply(msg_id) or {}
        interrupted = reply.get("ename") == "KeyboardInterrupt"
        if interrupted != (msg_id in hit):
            told.append(f"{kind}: {'hit' if msg_id in hit else 'spared'} cell ended with {reply}")
    await campaign.check(
        "gaps" if kind == "keeper killed" else "all",
        notices=lambda text: "the interrupt is delivered when it is back" in text or "keeper" in text,
    )
    if told:
        raise Failure("\n".join(told))


async def restart(campaign: Campaign, rng: random.Random) -> None:
    """The connection breaks while the kernel is restarted, perhaps in the middle of a cell: one new kernel (L5)."""
    client, proxy = campaign.client, campaign.place.proxy
    if rng.random() < 0.5:
        running = await client.execute(_ENDLESS)
        await client.until(lambda: client.lines(running, "stream"), "the cell has begun")
    old = campaign.pid
    task = asyncio.create_task(client.do("restart", now=rng.random() < 0.5))
    for _ in range(rng.randrange(0, 4)):
        await asyncio.sleep(rng.uniform(0, 0.3))
        if rng.random() < 0.5:
            proxy.cut()
        else:
            proxy.cut_after(**{rng.choice(["up", "down"]): int(10_000 ** rng.random())})
    refused = ""
    try:
        known = await task
    except ClientError as error:
        refused = str(error)
        if "LinkAway" not in refused:
            raise Failure(f"a restart failed: {error}") from None
    proxy.heal()
    if refused:
        campaign.notes.append("refused: the host was out of reach")
        await _settled_restart(campaign)
        known = await client.do("restart", now=True)
    campaign.took(known)
    rows = campaign.ledger.read()
    problems = compare(client, rows, "prefix")
    if campaign.pid == old:
        problems.append("the kernel is the same process after a restart")
    campaign.forget()
    await campaign.record()
    if problems:
        raise Failure("\n".join(problems))
    await campaign.check()


async def _settled_restart(campaign: Campaign) -> None:
    async def attached() -> bool:
        status = await campaign.client.do("status")
        return bool(status["away"] is None and status["step"] == "attached")

    if not await eventually(attached, 30):
        raise Failure("no connection after a restart that was refused")


async def restart_full_disk(campaign: Campaign, rng: random.Random) -> None:
    """A restart with no byte free under the run directory works or says why; with room again, it works."""
    client = campaign.client
    old = campaign.pid
    campaign.place.fill_disk()
    try:
        known = await client.do("restart", now=rng.random() < 0.5)
    except ClientError as error:
        campaign.notes.append(str(error))
        if "space" not in str(error):
            raise Failure(f"a restart on a full disk failed: {error}") from None
        campaign.place.free_disk()
        known = await client.do("restart", now=True)
    campaign.place.free_disk()
    campaign.took(known)
    problems = compare(client, campaign.ledger.read(), "prefix")
    if campaign.pid == old:
        problems.append("the kernel is the same process after a restart")
    campaign.forget()
    await campaign.record()
    if problems:
        raise Failure("\n".join(problems))
    await campaign.check()


async def kill_kernel(campaign: Campaign, rng: random.Random) -> None:
    """The kernel is killed, in reach or out of it: its cell is told why, and it can be restarted (K5)."""
    client, proxy = campaign.client, campaign.place.proxy
    running = await client.execute(_ENDLESS)
    queued = await client.execute("1") if rng.random() < 0.5 else None
    await client.until(lambda: client.lines(running, "stream"), "the cell has begun")
    away = rng.random() < 0.5
    if away:
        proxy.block()
    for kernel in campaign.place.kernels():
        send(kernel, signal.SIGKILL)
    late = None
    if away:
        if rng.random() < 0.5:
            late = await client.execute("ran_late = True")  # it will be told that its kernel died, and must not run
        await asyncio.sleep(rng.uniform(0, 0.3))
        if not (await client.do("status"))["alive"]:
            raise Failure("a kernel out of reach cannot be known to be dead")
        proxy.unblock()
    for msg_id in filter(None, (running, queued, late)):
        await client.until(lambda msg_id=msg_id: client.done(msg_id), "the dead kernel's cell is given up")
        reply = client.reply(msg_id) or {}
        if not any(words in str(reply.get("evalue")) for words in ("SIGKILL", "keeper was killed before")):
            raise Failure(f"the cell of a killed kernel ended with {reply}")
    problems = compare(client, campaign.ledger.read(), "prefix")
    campaign.took(await client.do("restart", now=True))
    campaign.forget()
    await campaign.record()
    again = await client.execute("assert 'ran_late' not in globals()")
    await client.until(lambda: client.done(again), "a cell after the restart is done")
    if (client.reply(again) or {}).get("status") != "ok":
        problems.append("a cell was told that its kernel died, and was run by the next kernel")
    if problems:
        raise Failure("\n".join(problems))
    await campaign.check()


async def kill_keeper(campaign: Campaign, rng: random.Random) -> None:
    """The keeper is killed: another adopts the kernel; what may be lost is told, and nothing comes twice."""
    client = campaign.client
    cells = await campaign.some_cells(rng, 2, asking=False)
    ids = await campaign.send_cells(rng, cells)
    await asyncio.sleep(rng.uniform(0, 0.5))
    away = rng.random() < 0.3
    if away:
        campaign.place.proxy.block()
    for keeper in campaign.place.keepers():
        send(keeper, signal.SIGKILL)
    if away:
        await asyncio.sleep(rng.uniform(0, 0.5))
        campaign.place.proxy.unblock()
    for msg_id, cell in zip(ids, cells, strict=True):
        await client.until(lambda msg_id=msg_id: client.reply(msg_id) is not None, f"{cell.kind} has a reply")
        reply = client.reply(msg_id) or {}
        if reply.get("status", cell.status) != cell.status and reply.get("ename") != "ReplyLost":
            raise Failure(f"{cell.kind} ended with {reply} after its keeper was killed")
    await campaign.settle()  # this cell may get lost as well, and is given up then
    await campaign.check("gaps", notices=lambda text: "keeper" in text)
    msg_id = await client.execute("print('whole again')")
    await client.until(lambda: client.done(msg_id), "a cell after the adoption is done")
    await campaign.check()


async def shutdown_away(campaign: Campaign, rng: random.Random) -> None:
    """The kernel is ended while the host is out of reach or the connection breaks: it is gone in the end (K6)."""
    client, proxy = campaign.client, campaign.place.proxy
    if rng.random() < 0.5:
        await client.execute(_ENDLESS)
    away = rng.random() < 0.6
    if away:
        proxy.block()

        async def is_away() -> bool:
            return bool((await client.do("status"))["away"])

        await eventually(is_away, 20)
    if rng.random() < 0.3:
        campaign.notes.append("the keeper is killed too")
        for keeper in campaign.place.keepers():
            send(keeper, signal.SIGKILL)
    campaign.pid = 0
    ending = asyncio.create_task(client.do("shutdown", now=rng.random() < 0.5))
    await asyncio.sleep(rng.uniform(0, 0.4))
    if away:
        proxy.unblock()
    else:
        proxy.cut()
    await ending
    left: list[str] = []

    async def nothing_left() -> bool:
        nonlocal left
        left = campaign.place.leftovers()
        return not left

    if not await eventually(nothing_left, 45):
        raise Failure("left on the host after the kernel's end: " + "; ".join(left))


async def start_cut(campaign: Campaign, rng: random.Random) -> None:
    """A start is cut off somewhere: there is one kernel, or none (L5)."""
    client, proxy = campaign.client, campaign.place.proxy
    await client.do("shutdown", now=True)
    campaign.pid = 0
    if rng.random() < 0.3:
        await eventually(_nothing_left(campaign), 20)
        campaign.place.forget_bundles()
    proxy.cut()
    direction = rng.choice(["up", "down"])
    size = int({"up": 45_000, "down": 9_000}[direction] ** rng.uniform(0.3, 1))
    campaign.notes.append(f"{direction} after {size}")
    proxy.cut_after(**{direction: size})
    try:
        campaign.took(await client.start())
    except ClientError as error:
        campaign.notes.append("not started")
        if "Unreachable" not in str(error):
            raise Failure(f"a start that was cut off failed with {error}") from None
    proxy.heal()
    if campaign.pid:
        await campaign.record()
        await campaign.check()
    elif not await eventually(_nothing_left(campaign), 30):
        raise Failure("left by a start that failed: " + "; ".join(campaign.place.leftovers()))


def _nothing_left(campaign: Campaign) -> Callable[[], Awaitable[bool]]:
    async def ask() -> bool:
        return not campaign.place.leftovers()

    return ask


ROUNDS: dict[str, tuple[Round, float]] = {
    **{name: (ordinary(fault), weight) for name, (fault, weight) in LINK_FAULTS.items()},
    **{
        play.__name__: (play, weight)
        for play, weight in (
            (kill_client, 4),
            (double_attach, 3),
            (interrupt_away, 4),
            (restart, 3),
            (restart_full_disk, 1),
            (kill_kernel, 2),
            (kill_keeper, 3),
            (shutdown_away, 2),
            (start_cut, 3),
        )
    },
}
"""All rounds by name, with how often they come."""
