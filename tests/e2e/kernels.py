"""A kernel of ours as a test uses it: a kernelspec, a manager, a client, and cells whose messages are kept apart.

    async with started(host.location("proj")) as kernel:
        cell = await kernel.run("print(1)")          # all of it
        cell = kernel.begin("sleep(9)")              # while it runs:
        await cell.until(lambda: "1" in cell.stdout)
        await cell.done()

Everything waits for what it is about, with a deadline; nothing sleeps.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import queue
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.ioloop.manager import AsyncIOLoopKernelManager
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning import KernelProvisionerFactory
from jupyter_client.session import Session
from jupyter_core.paths import jupyter_data_dir
from traitlets.config import Config

from albedo_provisioner import AsyncSession
from albedo_provisioner import Session as BlockingSession

PATIENCE = 60.0
"""Seconds until a test gives up on something that ought to have happened. Generous: the machine may be busy."""

_numbers = itertools.count(1)

Message = dict[str, Any]


def add_kernelspec(
    location: str | None,
    config: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    env: Mapping[str, str] | None = None,
) -> str:
    """Write a kernelspec where this test's Jupyter finds it, and return its name.

    Args:
        location: where its kernel runs; None leaves it out.
        config: more of the provisioner's config.
        name: its name; None for a fresh one.
        env: the kernelspec's own `env`.
    """
    name = name or f"spec-{next(_numbers)}"
    folder = Path(jupyter_data_dir()) / "kernels" / name
    folder.mkdir(parents=True)
    where = {} if location is None else {"location": location}
    provisioner = {"provisioner_name": "albedo-provisioner", "config": {**where, **(config or {})}}
    spec = {
        "argv": ["python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": f"Python 3 · {location}",
        "language": "python",
        "interrupt_mode": "signal",
        "env": dict(env or {}),
        "metadata": {"debugger": True, "kernel_provisioner": provisioner},
    }
    (folder / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")
    return name


class Cell:
    """One execute request and everything that came back for it.

    Attributes:
        id: the request's message id.
        outputs: iopub messages with this parent, in order, status messages included.
        reply: the execute reply's content, once it is there.
        asked: the prompts of its input requests.
    """

    def __init__(self, msg_id: str) -> None:
        self.id = msg_id
        self.outputs: list[Message] = []
        self.reply: dict[str, Any] | None = None
        self.asked: list[str] = []
        self._changed = asyncio.Event()

    def take(self, channel: str, message: Message) -> None:
        """Take a message."""
        if channel == "iopub":
            self.outputs.append(message)
        elif message["msg_type"] == "execute_reply":
            assert self.reply is None, f"a second reply came: {message}"
            self.reply = message["content"]
        elif message["msg_type"] == "input_request":
            self.asked.append(message["content"]["prompt"])
        self._changed.set()

    async def until(self, condition: Callable[[], object], seconds: float = PATIENCE) -> None:
        """Wait until the messages so far make `condition` true.

        Raises:
            TimeoutError: they did not within `seconds`; the message tells what had come.
        """
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise TimeoutError(f"not within {seconds:g} s; so far: {self}") from None

    async def done(self, seconds: float = PATIENCE) -> Cell:
        """Wait until both the reply and the idle status have come."""
        await self.until(lambda: self.reply is not None and self.idle, seconds)
        return self

    def __str__(self) -> str:
        kinds = [message["msg_type"] for message in self.outputs]
        return (
            f"reply {self.status}, iopub {kinds[:3]} … {kinds[-5:]}, "
            f"stdout … {self.stdout[-200:]!r}, stderr … {self.stderr[-500:]!r}"
        )

    @property
    def idle(self) -> bool:
        """The idle status has come."""
        return any(
            message["msg_type"] == "status" and message["content"]["execution_state"] == "idle"
            for message in self.outputs
        )

    def of_type(self, msg_type: str) -> list[Message]:
        """Return the iopub messages of one type."""
        return [message for message in self.outputs if message["msg_type"] == msg_type]

    def _stream(self, name: str) -> str:
        return "".join(m["content"]["text"] for m in self.of_type("stream") if m["content"]["name"] == name)

    @property
    def stdout(self) -> str:
        """All it printed."""
        return self._stream("stdout")

    @property
    def stderr(self) -> str:
        """All that came on stderr."""
        return self._stream("stderr")

    @property
    def lines(self) -> list[str]:
        """All it printed, in lines."""
        return self.stdout.splitlines()

    @property
    def value(self) -> str:
        """The text of its result.

        Raises:
            AssertionError: it has none, or several.
        """
        results = [message["content"]["data"]["text/plain"] for message in self.of_type("execute_result")]
        assert len(results) == 1, f"{results}; {self}"
        text: str = results[0]
        return text

    @property
    def status(self) -> str | None:
        """The reply's status."""
        return None if self.reply is None else self.reply["status"]


C = TypeVar("C", bound=Cell)


class Client:
    """A client of a kernel whose messages are read all the time and handed to the cells they belong to.

    Attributes:
        client: jupyter_client's own.
        others: what belongs to no cell: (channel, message).
        answer: what an input request is answered with; None lets it wait.
    """

    def __init__(self, client: AsyncKernelClient) -> None:
        self.client = client
        self.others: list[tuple[str, Message]] = []
        self.answer: Callable[[str], str] | None = None
        self._cells: dict[str, Cell] = {}
        self._answers: dict[str, asyncio.Future[Message]] = {}
        self._changed = asyncio.Event()
        self._pumps: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Connect, wait until the kernel answers, and begin to read."""
        self.client.start_channels()
        await self.client.wait_for_ready(timeout=PATIENCE)
        for name in ("iopub", "shell", "stdin", "control"):
            self._pumps.append(asyncio.create_task(self._pump(name)))

    async def close(self) -> None:
        """Stop reading and disconnect."""
        for task in self._pumps:
            task.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        self.client.stop_channels()

    async def _pump(self, name: str) -> None:
        channel = getattr(self.client, f"{name}_channel")
        while True:
            try:
                # jupyter_client sends past the asyncio socket, which uses up zmq's sign that something has come; only a
                # new look finds it then.
                message = await channel.get_msg(timeout=0.1)
            except queue.Empty:
                continue
            parent = message["parent_header"].get("msg_id")
            if name == "stdin" and self.answer is not None:
                self.client.input(self.answer(message["content"]["prompt"]))
            answer = self._answers.get(parent) if name != "iopub" else None
            if parent in self._cells:
                self._cells[parent].take(name, message)
            elif answer is not None and not answer.done():
                answer.set_result(message)
            else:
                self.others.append((name, message))
            self._changed.set()

    def begin(self, code: str, **options: Any) -> Cell:
        """Send an execute request; its messages gather in the cell returned."""
        return self.expect(Cell(self.client.execute(code, **options)))

    def expect(self, cell: C) -> C:
        """Have a cell take the messages that come for its request, which was sent just now."""
        self._cells[cell.id] = cell
        return cell

    async def run(self, code: str, seconds: float = PATIENCE, **options: Any) -> Cell:
        """Execute code and return the cell with all its messages."""
        return await self.begin(code, **options).done(seconds)

    async def value(self, code: str, seconds: float = PATIENCE) -> str:
        """Execute code that ends with an expression and return the text of its value.

        Raises:
            AssertionError: it failed or had none.
        """
        cell = await self.run(code, seconds)
        assert cell.status == "ok", cell.reply
        return cell.value

    async def json(self, expression: str, before: str = "") -> Any:
        """Return the value of an expression, by way of JSON, after running `before`."""
        cell = await self.run(f"{before}\nimport json as _json\nprint(_json.dumps({expression}))")
        assert cell.status == "ok", cell.reply
        return json.loads(cell.stdout)

    async def ask(
        self,
        msg_type: str,
        content: dict[str, Any] | None = None,
        channel: str = "shell",
        seconds: float = PATIENCE,
        **header: Any,
    ) -> dict[str, Any]:
        """Send a request, with more in its header perhaps, and return its reply's content."""
        message = self.client.session.msg(msg_type, content or {})
        message["header"].update(header)
        self._answers[message["msg_id"]] = asyncio.get_running_loop().create_future()
        getattr(self.client, f"{channel}_channel").send(message)
        async with asyncio.timeout(seconds):
            reply = await self._answers[message["msg_id"]]
        reply_content: dict[str, Any] = reply["content"]
        return reply_content

    def say(self, msg_type: str, content: dict[str, Any], buffers: list[bytes] | None = None) -> None:
        """Send a message on shell that has no reply."""
        message = self.client.session.msg(msg_type, content)
        message["buffers"] = buffers or []
        self.client.shell_channel.send(message)

    async def until(self, condition: Callable[[], object], seconds: float = PATIENCE) -> None:
        """Wait until what has come makes `condition` true.

        Raises:
            TimeoutError: it did not within `seconds`.
        """
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            others = [(channel, message["msg_type"]) for channel, message in self.others]
            raise TimeoutError(f"not within {seconds:g} s; beside cells there came {others[-10:]}") from None


class Kernel(Client):
    """A client together with the manager of its kernel."""

    def __init__(self, manager: AsyncKernelManager, client: AsyncKernelClient) -> None:
        super().__init__(client)
        self.manager = manager

    @property
    def status(self) -> dict[str, Any]:
        """The provisioner's status."""
        return dict(self.manager.provisioner.status)  # type: ignore[union-attr]

    @asynccontextmanager
    async def another_client(self) -> AsyncIterator[Client]:
        """Connect one more client."""
        # Of a session of its own: clients of one session have the same address, and the newest gets all replies.
        theirs = self.manager.session
        session = Session(key=theirs.key, signature_scheme=theirs.signature_scheme)
        other = Client(self.manager.client(session=session))
        try:
            await other.open()
            yield other
        finally:
            await other.close()


@asynccontextmanager
async def started(
    location: str,
    config: Mapping[str, Any] | None = None,
    *,
    spec_env: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
    now: bool = False,
    make: Callable[..., AsyncKernelManager] = AsyncKernelManager,
) -> AsyncIterator[Kernel]:
    """Start a kernel at a location, with a client, and shut it down at the end.

    Args:
        location: where.
        config: more of the provisioner's config.
        spec_env: the kernelspec's env.
        options: for `start_kernel`.
        now: shut it down by killing it.
        make: makes the kernel manager.
    """
    name = add_kernelspec(location, config, env=spec_env)
    async with started_by_name(name, options=options, now=now, make=make) as kernel:
        yield kernel


@asynccontextmanager
async def started_by_name(
    name: str,
    *,
    options: Mapping[str, Any] | None = None,
    now: bool = False,
    make: Callable[..., AsyncKernelManager] = AsyncKernelManager,
) -> AsyncIterator[Kernel]:
    """Do what `started` does with a kernelspec that is there."""
    manager = make(kernel_name=name)
    await manager.start_kernel(**(options or {}))
    kernel = Kernel(manager, manager.client())
    try:
        await kernel.open()
        yield kernel
    finally:
        await kernel.close()
        if manager.has_kernel:  # the test may have ended it itself
            await manager.shutdown_kernel(now=now)


_RESTARTER = Config({"AsyncIOLoopKernelRestarter": {"time_to_dead": 0.2, "random_ports_until_alive": False}})


def make_with_restarter(**options: Any) -> AsyncKernelManager:
    """Make the manager that Jupyter Server uses, with a restarter that looks often."""
    return AsyncIOLoopKernelManager(config=_RESTARTER, **options)


async def taken_up(kernel_name: str, info: dict[str, Any]) -> Kernel:
    """Take up a kernel of another process the way jupyter_client provides for, and connect to it.

    Args:
        kernel_name: a kernelspec's name.
        info: what the other one's provisioner gave (`get_provisioner_info`).
    """
    manager = AsyncKernelManager(kernel_name=kernel_name)
    provisioner = KernelProvisionerFactory.instance().create_provisioner_instance(
        info["kernel_id"], manager.kernel_spec, parent=manager
    )
    await provisioner.load_provisioner_info(info)
    manager.provisioner = provisioner
    manager.load_connection_info(provisioner.connection_info)
    kernel = Kernel(manager, manager.client())
    await kernel.open()
    return kernel


async def eventually(condition: Callable[[], object], seconds: float = PATIENCE, what: str = "") -> Any:
    """Look again and again, letting other tasks run, until the answer is true; return it. It may have to be awaited.

    Raises:
        TimeoutError: it was not within `seconds`.
    """
    loop = asyncio.get_running_loop()
    deadline, pause = loop.time() + seconds, 0.002
    while True:
        answer = condition()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        if loop.time() > deadline:
            raise TimeoutError(f"not within {seconds:g} s; the last answer was {answer!r}: {what or condition}")
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def numbered(count: int) -> list[str]:
    """Return the lines that `print(i)` for i below count makes."""
    return [str(i) for i in range(count)]


async def until_status(session: AsyncSession, name: str, wanted: object) -> None:
    """Wait until a session's status says so; from one moment to the next, as it may do so for a short time.

    Raises:
        TimeoutError: it did not within `PATIENCE`.
    """
    async with asyncio.timeout(PATIENCE):
        while (await session.status())[name] != wanted:
            pass


async def under_way(session: AsyncSession) -> None:
    """Wait until a session's code has been given to its kernel."""
    await until_status(session, "execution_state", "busy")


def kernel_pid(session: BlockingSession) -> int:
    """Return the pid of a session's kernel, which is this machine's as well in all these tests."""
    return int(session.status()["process"]["pid"])
