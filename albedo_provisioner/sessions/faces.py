"""The faces that callers with an event loop hold; those of callers without one, made from these, are in `blocking.py`.

They are thin: each method has one line's work done on the I/O thread.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from ..errors import ConfigError
from ..hosts import io_thread
from ..location import Location, place
from ..workspace.context import INSTRUCTION_CHARS, MEMORY_CHARS, WorkspaceContext
from ..workspace.faces import AsyncLinks, AsyncMemory
from .call import Call
from .checks import check_count, check_receiver, check_seconds, check_text, check_variables
from .entries import CellRecord
from .outputs import Limits
from .registry import Registry
from .results import Output, Result
from .session import SessionCore
from .tools import MAX_TOOL_CALLS, SessionTools, Tool

T = TypeVar("T")

MAX_KERNELS = 8
IDLE_TIMEOUT = 1800.0


def _call(
    code: str,
    timeout: float | None,
    reset: bool,
    cell_id: str | None,
    on_output: Callable[[Output], None] | None,
    limits: Limits | None,
    wait_for_sign_in: bool,
    tools: tuple[str, ...] | None,
    max_tool_calls: int,
) -> Call:
    check_text("code", code)
    if timeout is not None:
        check_seconds("timeout", timeout)
    if cell_id is not None:
        check_text("cell_id", cell_id)
    if on_output is not None:
        check_receiver("on_output", on_output)
    if limits is not None and not isinstance(limits, Limits):
        raise ConfigError(f"limits is of type {type(limits).__name__}, and has to be a Limits.")
    check_count("max_tool_calls", max_tool_calls, 0)
    loop = None if io_thread.IOThread.get().is_current else asyncio.get_running_loop()
    return Call(
        code,
        timeout,
        reset,
        cell_id,
        on_output,
        limits or Limits(),
        wait_for_sign_in,
        tools,
        max_tool_calls,
        loop,
    )


class AsyncSession:
    """An owner's use of one kernel; made by `AsyncSessions.open` or `resume`. From any event loop."""

    def __init__(self, core: SessionCore) -> None:
        self._core = core

    @property
    def id(self) -> str:
        """By which `AsyncSessions.resume` finds it again."""
        return self._core.record.session_id

    @property
    def owner(self) -> str:
        """Whose it is."""
        return self._core.record.owner

    @property
    def location(self) -> Location:
        """Where it runs; its path is absolute once a kernel was there."""
        return self._core.record.location

    @property
    def memory(self) -> AsyncMemory:
        """The workspace's memory: files on this machine."""
        return AsyncMemory(self._core.workspace)

    @property
    def links(self) -> AsyncLinks:
        """The workspaces that are linked with this one."""
        return AsyncLinks(self._core.workspace)

    async def context(
        self, *, wait: float = 0.0, memory_chars: int = MEMORY_CHARS, instruction_chars: int = INSTRUCTION_CHARS
    ) -> WorkspaceContext:
        """Return what an agent should know at the start: where it runs, instructions, skills, memory, linked
        workspaces; as data, and as a text (`.text`).

        It is put together from what is known on this machine, and the host is asked for what is new (at most every five
        seconds), without waiting for it: what is not known yet is said to be unknown.

        Args:
            wait: seconds to wait for the hosts' answers at most, for a caller that would rather know.
            memory_chars: characters for the memory of this workspace and the linked ones together.
            instruction_chars: characters for all instructions together.

        Raises:
            ConfigError: what is on record here cannot be used.
        """
        return await io_thread.run(self._core.workspace.context(wait, memory_chars, instruction_chars))

    async def execute(
        self,
        code: str,
        *,
        timeout: float | None = None,
        reset: bool = False,
        cell_id: str | None = None,
        on_output: Callable[[Output], None] | None = None,
        limits: Limits | None = None,
        wait_for_sign_in: bool = True,
        tools: Iterable[str] | None = None,
        max_tool_calls: int = MAX_TOOL_CALLS,
    ) -> Result:
        """Run code, on the kernel that is there or on a new one, and return what came of it.

        Calls of one session run one after the other. What the code raises is told in the result, and so is a kernel
        that ended; cancelling the caller interrupts the code.

        Args:
            code: Python, or whatever the kernel speaks.
            timeout: seconds for the code itself; then it is interrupted, and its state is kept if it obeys. Also for
                what is waited for before: earlier calls of the session, kernels of others that have to go, a sign-in,
                any answer of the host (five more for that): then the code is not run, which the result says. What a
                kernel takes to start does not count.
            reset: run it on a fresh kernel.
            cell_id: a name for this call that the caller makes up. A call whose name is on record already is not run
                again: what came of it is returned.
            on_output: called with each output as it comes, in nbformat's shapes; on a thread of its own. The result
                waits until it has had all of them, or takes more than ten seconds with one.
            limits: how much output the result carries.
            wait_for_sign_in: wait where a person has to sign in to the host first, instead of raising.
            tools: names of the session's tools that the code may call, as long as it runs; None for all of them.
            max_tool_calls: how many calls of tools it may make.

        Raises:
            ConfigError: something given is not right, or the session has no tool of a name.
            SignInError: a person has to sign in, and `wait_for_sign_in` is False.
            HostError: the host cannot be reached, or cannot run a kernel; the code was not run.
            AlbedoError: it was not run for another reason.
        """
        names = self._core.tools.check(tools)
        call = _call(code, timeout, reset, cell_id, on_output, limits, wait_for_sign_in, names, max_tool_calls)
        return await io_thread.run(self._core.execute(call))

    async def stream(self, code: str, **options: Any) -> AsyncIterator[Output | Result]:
        """Run code and yield its outputs as they come, and at last the `Result`; options as for `execute`."""
        loop = asyncio.get_running_loop()
        outputs: asyncio.Queue[Output | Result | BaseException] = asyncio.Queue()

        def told(output: Output | Result | BaseException) -> None:
            loop.call_soon_threadsafe(outputs.put_nowait, output)

        async def run() -> None:
            try:
                told(await self.execute(code, **{**options, "on_output": told}))
            except BaseException as error:
                told(error)
                raise

        running = asyncio.create_task(run())
        try:
            while True:
                output = await outputs.get()
                if isinstance(output, BaseException):
                    raise output
                yield output
                if isinstance(output, Result):
                    return
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def status(self) -> dict[str, Any]:
        """Return what is known of it at this moment, as plain JSON; nothing is asked, so it answers at once."""
        return await io_thread.run(_now(self._core.status))

    async def interrupt(self) -> bool:
        """Interrupt the code that runs now, else the oldest call that waits to begin, which is not run then; and no
        other. False when there is none.
        """
        return await io_thread.run(self._core.interrupt())

    async def reset(self) -> None:
        """End the kernel; the next call runs on a fresh one."""
        await io_thread.run(self._core.reset())

    async def move(self, location: str | Location) -> None:
        """Have a kernel in another place, and end the one in the old place with all that it started.

        The session's id and history stay. When the new place cannot be had, everything stays as it was.

        Raises:
            AlbedoError: no kernel could be started there; the message says why.
        """
        await io_thread.run(self._core.move(_location(location)))

    async def cells(self) -> list[CellRecord]:
        """Return the calls on record, oldest first; the newest 200 are."""
        return await io_thread.run(_now(self._core.cells))

    async def cell(self, cell_id: str) -> Result:
        """Return what came of a call, once it has come to its end, also when another process made it.

        Of one that has ended before its code, such as by its time, and whose code has not come to its end yet as far as
        is known, it is at once what the call itself returned, and `kernel.note` says so; `cells` has it as "running".

        Raises:
            KeyError: this session has no such call on record.
            AlbedoError: it cannot be found out now, as the host cannot be asked.
        """
        check_text("cell_id", cell_id)
        return await io_thread.run(self._core.cell(cell_id))

    async def close(self) -> None:
        """End the kernel, prove that nothing of it is left on its host, nor of those before it whose end was asked for
        while their hosts were out of reach, and forget the session.

        Raises:
            LinkAwayError: a host is out of reach; the kernel is noted as to be ended, and is at the next contact.
        """
        await io_thread.run(self._core.close())


class AsyncSessions:
    """Sessions for programs with an event loop; see `Sessions`, which is the same for those without one.

    Args:
        max_kernels: how many kernels there may be at the same time. The least recently used one goes for a new one; one
            with a running cell never does, nor does one of a child owner.
        idle_timeout: seconds after which a kernel is ended that nothing has used: no call, no running cell or job.
        home: where sessions are on record; None for `$ALBEDO_HOME`, else `albedo/` under Jupyter's data directory.

    Raises:
        ConfigError: a number is not right, or the record cannot be used.
    """

    def __init__(
        self,
        max_kernels: int = MAX_KERNELS,
        idle_timeout: float = IDLE_TIMEOUT,
        home: str | os.PathLike[str] | None = None,
    ) -> None:
        check_count("max_kernels", max_kernels, 1)
        check_seconds("idle_timeout", idle_timeout)
        self._registry = io_thread.run_blocking(_now(lambda: Registry(home, max_kernels, idle_timeout)))

    async def open(
        self,
        location: str | Location,
        owner: str = "",
        *,
        python: str | None = None,
        env: Mapping[str, str] | None = None,
        tools: Mapping[str, Tool] | None = None,
    ) -> AsyncSession:
        """Return the owner's session at a location with tools of these names: one that is open here, else one that was
        left (also by a process that has ended in order), else a new one. Nothing is asked of the host yet.

        One of a process that was killed is for `resume`, as its code may still run. So long as no kernel was there,
        nobody knows that `host:~/proj` and an absolute path are the same place.

        Args:
            location: `[user@]host:/path`, `host:~/path` or a folder of this machine, also a relative one: `.`, or with
                a `/` in it.
            owner: whose it is. Owners never share a kernel; `a::child::b` is a child of `a`.
            python: interpreter on the host, for a new session; None for the login shell's `python3`. One that was left
                is taken up only if this is None or its own, and so with `env`.
            env: variables to add to the host's login environment, for a new session.
            tools: functions of this program that code may call as `tools.name(...)`, by their names: JSON values and
                bytes go in and come out. Coroutine functions run on the loop of whoever has the code run, others on
                threads of their own; one that was begun runs to its end there, also when nobody waits for it any more.

        Raises:
            LocationError: `location` is none.
            ConfigError: a tool's name is no identifier, or it is no function; something else given is not right; or the
                session cannot be put on record.
        """
        check_text("owner", owner)
        if python is not None:
            check_text("python", python)
        check_variables("env", env or {})
        where, variables, offered = _location(location), dict(env or {}), SessionTools(tools)
        core = await io_thread.run(_now(lambda: self._registry.open(where, owner, offered, python, variables)))
        return AsyncSession(core)

    async def join(
        self,
        kernel_id: str | None = None,
        *,
        notebook: str | os.PathLike[str] | None = None,
        owner: str = "",
        tools: Mapping[str, Tool] | None = None,
    ) -> AsyncSession:
        """Return a session with a kernel that runs already: that of a notebook which a person has open, or any other.

        The session is one more client of it. It is never ended, restarted or evicted by the session, and does not count
        among `max_kernels`: closing the session lets go of it, `reset` and `move` are refused, and code that takes no
        notice of its interrupt is left running. When its owner restarts it the next result says `state_lost`.

        Args:
            kernel_id: the kernel's id or its beginning, as `jupyter albedo kernels` shows it.
            notebook: or the path of its notebook on this machine. Its newest kernel is meant, and when that is gone the
                one that it has then.
            owner: whose the session is; see `open`.
            tools: what its code may call; see `open`. The notebook's own cells may not.

        Raises:
            ConfigError: not one of the two is given, or as `open`.
            AlbedoError: there is no such kernel, or its host cannot be asked.
        """
        check_text("owner", owner)
        if kernel_id is not None:
            check_text("kernel_id", kernel_id)
        return AsyncSession(
            await io_thread.run(self._registry.join(kernel_id, _file(notebook), owner, SessionTools(tools)))
        )

    async def resume(self, session_id: str, *, tools: Mapping[str, Tool] | None = None) -> AsyncSession:
        """Return a session that another process had open, with its kernel if that lives.

        Args:
            session_id: its id.
            tools: its tools from now on, see `open`; those of the process before are gone with that.

        Raises:
            KeyError: there is none of that id on record.
            AlbedoError: a process that lives has it open, or other sessions of this process.
            ConfigError: as `open`.
        """
        check_text("session_id", session_id)
        offered = SessionTools(tools)
        return AsyncSession(await io_thread.run(_now(lambda: self._registry.resume(session_id, offered))))

    async def list(self) -> list[dict[str, Any]]:
        """Return what is known of all sessions on record, as plain JSON; nothing is asked."""
        return await io_thread.run(_now(self._registry.list))

    async def close_owner(self, owner: str) -> int:
        """End the sessions of an owner and of its children, and return how many there were.

        Raises:
            LinkAwayError: a host is out of reach; its kernels are noted as to be ended. All others are ended.
        """
        check_text("owner", owner)
        return await io_thread.run(self._registry.close_owner(owner))

    async def close(self, *, patience: float | None = None) -> None:
        """End all sessions that are open here.

        Args:
            patience: seconds that code which runs is given to obey its interrupt, before its kernel is ended under it;
                None for five.

        Raises:
            ConfigError: `patience` is no number of seconds.
            LinkAwayError: as `close_owner`.
        """
        if patience is not None:
            check_seconds("patience", patience)
        await io_thread.run(self._registry.close(patience))

    async def leave(self) -> None:
        """Let go of all sessions as they are: their kernels go on, and another process can resume them."""
        await io_thread.run(self._registry.leave())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _location(location: str | Location) -> Location:
    return location.expanded() if isinstance(location, Location) else place(location)


def _file(path: str | os.PathLike[str] | None) -> str | None:
    if path is None:
        return None
    if not isinstance(path, (str, os.PathLike)):
        raise ConfigError(f"notebook is of type {type(path).__name__}, and has to be a path.")
    check_text("notebook", os.fspath(path))
    return os.path.abspath(os.path.expanduser(path))


async def _now(function: Callable[[], T]) -> T:
    return function()
