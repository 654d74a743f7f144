"""Calls out of a kernel: what its code asks of the programs that are linked to it, over links that break."""

from __future__ import annotations

import asyncio
import signal
import socket
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from faces import Embedded, Host, keeper_of
from kernels import PATIENCE, eventually
from procs import send

from albedo_provisioner.bundle.calls import CallError, call
from albedo_provisioner.errors import AlbedoError
from albedo_provisioner.hosts import io_thread
from albedo_provisioner.kernels.calls import Call
from albedo_provisioner.kernels.console import Console, Execution
from albedo_provisioner.kernels.remote import RemoteKernel
from albedo_provisioner.kernels.request import KernelRequest
from albedo_provisioner.location import Location

PREPARED = "from albedo_bundle.calls import call, call_async, CallError\nimport threading, os, time, asyncio\n"


class Program:
    """A program that runs cells on a kernel and answers its calls.

    Attributes:
        name: under which it answers.
        seen: how often each call was done, by what was asked.
        cancelled: what was taken back.
        hold: while it is clear, answers to calls with `hold` wait.
    """

    def __init__(self, kernel: RemoteKernel, consoles: list[Console], name: str) -> None:
        self.kernel = kernel
        self.name = name
        self.seen: Counter[str] = Counter()
        self.cells: dict[str, str] = {}
        self.cancelled: list[str] = []
        self.hold = asyncio.Event()
        self._consoles = consoles

    async def answer(self, call: Call) -> tuple[dict[str, Any], Sequence[bytes]]:
        what = str(call.arguments.get("what", ""))
        self.seen[what] += 1
        self.cells[what] = call.cell
        if what == "refuse":
            raise AlbedoError("not this one")
        if what == "break":
            raise ZeroDivisionError("division by zero")
        try:
            if call.arguments.get("hold"):
                await self.hold.wait()
        except asyncio.CancelledError:
            self.cancelled.append(what)
            raise
        return {"by": self.name, "got": call.arguments, "seen": dict(self.seen)}, call.blobs

    async def run(self, code: str, msg_id: str | None = None) -> str:
        """Run a cell and return what it printed; it must not fail."""
        return (await self.begin(code, msg_id))[1]

    async def begin(self, code: str, msg_id: str | None = None) -> tuple[dict[str, Any], str]:
        """Run a cell and return its reply and what it printed."""
        printed: list[str] = []

        async def execute() -> Execution:
            def heard(msg_type: str, content: dict[str, Any]) -> None:
                if msg_type == "stream":
                    printed.append(content["text"])

            execution = self._consoles[-1].execute(
                code, heard, msg_id=msg_id, metadata={"albedo": {"server": self.name}}
            )
            async with asyncio.timeout(PATIENCE):
                await execution.finished.wait()
            return execution

        reply = (await io_thread.run(execute())).reply or {}
        if reply.get("status") == "error":
            printed.append(f"{reply['ename']}: {reply['evalue']}")
        return reply, "".join(printed)

    async def let_go(self) -> None:
        """Have the answers that were held go."""
        io_thread.IOThread.get().call_soon(self.hold.set)

    async def interrupt(self) -> None:
        """Interrupt the cell that runs."""
        await io_thread.run(self.kernel.signal(signal.SIGINT, 10))


@asynccontextmanager
async def using(
    host: Host, kinds: Sequence[str] = ("test", "tool"), of: Program | None = None
) -> AsyncIterator[Program]:
    """Start a kernel, or link to another program's once more, and answer these kinds of calls."""
    consoles: list[Console] = []

    def make(key: bytes, scheme: str, send: Any, _: Any, __: Any) -> Console:
        consoles.append(Console(key, scheme, send))
        return consoles[-1]

    if of is None:
        request = KernelRequest(location=Location.parse(host.location()).expanded(), key=uuid.uuid4().hex.encode())
        kernel = await io_thread.run(RemoteKernel.start(request, make))
    else:
        kernel = await io_thread.run(RemoteKernel.attach(of.kernel.request, make, of.kernel.kernel_id))
    program = Program(kernel, consoles, uuid.uuid4().hex)

    async def serve() -> None:
        for kind in kinds:
            kernel.serve(kind, program.answer, program.name)

    await io_thread.run(serve())
    try:
        yield program
    finally:
        await io_thread.run(kernel.finish(timeout=PATIENCE) if of is None else kernel.leave())


class TestCalls:
    async def test_come_from_threads_tasks_and_forked_children_with_all_that_goes_along(self, any_host: Host) -> None:
        async with using(any_host) as program:
            code = PREPARED + (
                "big = os.urandom(5_000_000)\n"
                "asked = {'what': 'main', 'deep': {'é': [1.5, None, 'x' * 300_000]}}\n"
                "answer, blobs = call('test', asked, [big, b''])\n"
                "print(answer['got'] == asked, blobs == [big, b''])\n"
                "threads = [threading.Thread(target=call, args=('test', {'what': f'thread {i}'})) for i in range(20)]\n"
                "[t.start() for t in threads], [t.join() for t in threads]\n"
                "answers = await asyncio.gather(*(call_async('test', {'what': f'task {i}'}) for i in range(20)))\n"
                "print([answer['got']['what'] for answer, _ in answers] == [f'task {i}' for i in range(20)])\n"
                "print((await asyncio.to_thread(call, 'test', {'what': 'to_thread'}))[0]['got'])\n"
                "pid = os.fork()\n"
                "if pid == 0:\n"
                "    try:\n"
                "        call('test', {'what': 'child'})\n"
                "    finally:\n"
                "        os._exit(0)\n"
                "call('test', {'what': 'parent'}), os.waitpid(pid, 0)\n"
            )
            printed = await program.run(code, "cell-1")
            assert printed == "True True\nTrue\n{'what': 'to_thread'}\n"
            expected = {"main", "to_thread", "child", "parent"}
            expected |= {f"thread {i}" for i in range(20)} | {f"task {i}" for i in range(20)}
            assert program.seen == Counter(dict.fromkeys(expected, 1))
            assert set(program.cells.values()) == {"cell-1"}

    async def test_are_in_the_name_of_the_cell_that_started_the_thread(self, embedded_host: Embedded) -> None:
        async with using(embedded_host) as program:
            code = PREPARED + (
                "go, gone = threading.Event(), threading.Event()\n"
                "def later(what):\n    go.wait()\n    call('test', {'what': what})\n    gone.set()\n"
                "threading.Thread(target=later, args=('left over',)).start()\n"
                "async def task():\n"
                "    while not go.is_set(): await asyncio.sleep(0.01)\n"
                "    await call_async('test', {'what': 'left over task'})\n"
                "left = asyncio.create_task(task())"
            )
            await program.run(code, "cell-1")
            await program.run("call('test', {'what': 'own'}); go.set(); gone.wait(); await left", "cell-2")
            assert program.cells == {"left over": "cell-1", "left over task": "cell-1", "own": "cell-2"}

    async def test_that_are_refused_say_why(self, embedded_host: Embedded) -> None:
        async with using(embedded_host) as program:
            asked = "try:\n    print({})\nexcept Exception as error:\n    print(type(error).__name__, error)\n"
            assert await program.run(PREPARED + asked.format("call('test', {'what': 'refuse'})")) == (
                "CallError not this one\n"
            )
            answer = await program.run(asked.format("call('test', {'what': 'break'})"))
            assert answer == "CallError answering it failed: ZeroDivisionError: division by zero\n"
            answer = await program.run(asked.format("call('test', {}, [bytes(70_000_000)])"))
            assert answer.startswith("CallTooLargeError a call of 7")
            answer = await program.run(asked.format("call('other', {}, timeout=0.3)"))
            assert answer == "TimeoutError no answer came in time\n"
            answer = await program.run(asked.format("await call_async('other', {}, timeout=0.3)"))
            assert answer.startswith("TimeoutError")
            assert (await program.run(asked.format("call('test', {'what': 1})"))).startswith("({'by'")
            with pytest.raises(CallError, match="no kernel"):
                call("test", {})

    async def test_that_are_interrupted_are_taken_back_and_leave_nothing_behind(self, any_host: Host) -> None:
        async with using(any_host) as program:
            for what, how in (("slow", "call"), ("slowly", "await call_async")):
                code = PREPARED + f"{how}('test', {{'what': {what!r}, 'hold': True}})"
                cell = asyncio.create_task(program.begin(code))
                await eventually(lambda what=what: program.seen[what])
                await program.interrupt()
                assert (await cell)[0]["ename"] in ("KeyboardInterrupt", "CancelledError")
                await eventually(lambda what=what: program.cancelled[-1:] == [what])
            code = (
                "task = asyncio.create_task(call_async('test', {'what': 'task', 'hold': True}))\n"
                "while not call('test', {'what': 'look'})[0]['seen'].get('task'): await asyncio.sleep(0.05)\n"
                "print(task.cancel(), await asyncio.wait([task]) and task.cancelled())"
            )
            assert await program.run(code) == "True True\n"
            await eventually(lambda: program.cancelled == ["slow", "slowly", "task"])
            assert "'again'" in await program.run("print(call('test', {'what': 'again'}))")

    async def test_what_is_no_call_ends_its_connection_alone(self, local_host: Host) -> None:
        async with using(local_host) as program:
            (calls,) = (local_host.home / ".albedo-remote" / "run").glob("*/calls")
            assert calls.parent.stat().st_mode & 0o777 == 0o700
            for rubbish in (b"\xff" * 100, b"GET / HTTP/1.1\r\n\r\n", b'\0\0\0\x0a\x07\0\x01\0\0\0\x06{"a":1'):
                with socket.socket(socket.AF_UNIX) as stranger:
                    stranger.connect(str(calls))
                    stranger.settimeout(10)
                    stranger.sendall(rubbish)
                    while stranger.recv(4096):
                        pass
            assert "'by'" in await program.run(PREPARED + "print(call('test', {'what': 'fine'}))")


class TestBrokenLinks:
    async def test_every_call_is_done_once_and_answered(self, remote_host: Host) -> None:
        """The link breaks again and again while calls are under way."""
        async with using(remote_host) as program:
            code = PREPARED + (
                "done = []\n"
                "def work(name):\n"
                "    for i in range(40):\n"
                "        answer, blobs = call('test', {'what': f'{name} {i}'}, [bytes(20_000)])\n"
                "        done.append(answer['got']['what'])\n"
                "        time.sleep(0.02)\n"
                "threads = [threading.Thread(target=work, args=(name,)) for name in 'abc']\n"
                "[t.start() for t in threads], [t.join() for t in threads]\n"
                "print(len(done), len(set(done)))"
            )
            cell = asyncio.create_task(program.run(code))
            for times, limit in enumerate((10, 40, 80), 1):
                await eventually(lambda n=times, m=limit: program.kernel.connections == n and len(program.seen) >= m)
                remote_host.cut()
            assert await cell == "120 120\n"
            assert program.seen == Counter({f"{name} {i}": 1 for name in "abc" for i in range(40)})
            assert program.kernel.connections >= 3

    async def test_what_was_taken_back_while_the_host_was_away_is_never_done(
        self, embedded_host: Embedded, tmp_path: Path
    ) -> None:
        async with using(embedded_host) as program:
            away, over = tmp_path / "away", tmp_path / "over"
            code = PREPARED + (
                f"call('test', {{'what': 'before'}})\nwhile not os.path.exists({str(away)!r}): time.sleep(0.05)\n"
                "for _ in range(3):\n"
                "    try: call('test', {'what': 'meanwhile'}, [bytes(1_000_000)], timeout=0.2)\n"
                "    except TimeoutError: print('too late')\n"
                f"open({str(over)!r}, 'w').close()\ncall('test', {{'what': 'after'}})"
            )
            cell = asyncio.create_task(program.run(code))
            await eventually(lambda: program.seen["before"])
            embedded_host.down()
            await eventually(lambda: not [each for each in embedded_host.processes() if each.argv == ("cat",)])
            away.touch()
            await eventually(over.exists)
            embedded_host.up()
            assert await cell == "too late\n" * 3
            assert program.seen == Counter({"before": 1, "after": 1})

    async def test_one_that_was_under_way_when_the_keeper_was_killed_is_done_once(self, remote_host: Host) -> None:
        async with using(remote_host) as program:
            # Not printed: output may be missing after that, as users are told.
            code = PREPARED + "answer, _ = call('test', {'what': 'slow', 'hold': True})"
            cell = asyncio.create_task(program.run(code))
            await eventually(lambda: program.seen["slow"])
            before = program.kernel.keeper
            send(keeper_of(remote_host), signal.SIGKILL)
            await eventually(lambda: program.kernel.keeper not in (None, before))
            await program.let_go()
            assert "was killed" in await cell
            assert await program.run("print(answer['got']['what'], call('test', {'what': 'after'})[0]['got'])") == (
                "slow {'what': 'after'}\n"
            )
            assert program.seen == Counter({"slow": 1, "after": 1})


class TestSeveralClients:
    async def test_a_tool_call_goes_to_the_client_that_the_cell_names_and_others_to_one_that_answers_them(
        self, embedded_host: Embedded
    ) -> None:
        async with using(embedded_host) as one, using(embedded_host, ["tool", "other"], of=one) as two:
            ask = PREPARED + "print(call({!r}, {{'what': {!r}}})[0]['by'])\n"
            assert await one.run(ask.format("tool", "1")) == f"{one.name}\n"
            assert await two.run(ask.format("tool", "2")) == f"{two.name}\n"
            assert await one.run(ask.format("other", "3")) == f"{two.name}\n"
            name, two.name = two.name, ""  # its cells name nobody now
            assert "CallError: this cell was given no tools" in await two.run(ask.format("tool", "4"))
            two.name = name

    async def test_a_call_waits_for_a_client_and_one_that_takes_anothers_place_gets_what_it_left(
        self, embedded_host: Embedded
    ) -> None:
        async with using(embedded_host, ["test"]) as one:
            code = PREPARED + "print([call(kind, {'what': kind, 'hold': True})[0]['by'] for kind in ('tool', 'other')])"
            cell = asyncio.create_task(one.run(code))
            async with using(embedded_host, [], of=one) as dying:
                dying.name = one.name  # as the cell names it

                async def serve(program: Program, *kinds: str) -> None:
                    for kind in kinds:
                        program.kernel.serve(kind, program.answer, program.name)

                await io_thread.run(serve(dying, "tool"))
                await eventually(lambda: dying.seen["tool"])
                dying.kernel._link._visit.close()  # type: ignore[union-attr]
                await io_thread.run(dying.kernel.leave())
                async with using(embedded_host, [], of=one) as heir:
                    heir.name = one.name
                    await heir.let_go()
                    await io_thread.run(serve(heir, "tool", "other"))
                    assert await cell == f"['{heir.name}', '{heir.name}']\n"
                    assert heir.seen == Counter({"tool": 1, "other": 1})
