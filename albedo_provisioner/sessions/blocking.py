"""The faces that callers without an event loop hold: each method is that of the async face, waited for.

So what a method takes, returns and raises is written down once, in `faces.py`; type checkers and `help()` see it here.
"""

from __future__ import annotations

import functools
import os
import queue
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from ..hosts import io_thread
from ..location import Location
from ..workspace.faces import Links, Memory
from .faces import IDLE_TIMEOUT, MAX_KERNELS, AsyncSession, AsyncSessions
from .results import Output, Result

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def _like(method: Callable[..., Any], kind: str) -> Callable[[F], F]:
    """Give a method that waits the name, signature and documentation of the one that it waits for."""

    def dress(wait: F) -> F:
        functools.update_wrapper(wait, method)
        wait.__qualname__ = f"{kind}.{method.__name__}"
        return wait

    return dress


def _of_session(
    method: Callable[Concatenate[AsyncSession, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Session, P], T]:
    @_like(method, "Session")
    def wait(self: Session, /, *args: P.args, **options: P.kwargs) -> T:
        return io_thread.run_blocking(method(self._session, *args, **options))

    return wait


def _of_sessions(
    method: Callable[Concatenate[AsyncSessions, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Sessions, P], T]:
    @_like(method, "Sessions")
    def wait(self: Sessions, /, *args: P.args, **options: P.kwargs) -> T:
        return io_thread.run_blocking(method(self._sessions, *args, **options))

    return wait


def _giving_session(
    method: Callable[Concatenate[AsyncSessions, P], Coroutine[Any, Any, AsyncSession]],
) -> Callable[Concatenate[Sessions, P], Session]:
    @_like(method, "Sessions")
    def wait(self: Sessions, /, *args: P.args, **options: P.kwargs) -> Session:
        return Session(io_thread.run_blocking(method(self._sessions, *args, **options)))

    return wait


class Session:
    """An owner's use of one kernel; made by `Sessions.open`, `join` or `resume`. From any thread; calls block.

    Ctrl-C while `execute` waits interrupts the code.
    """

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    @property
    def id(self) -> str:
        """By which `Sessions.resume` finds it again."""
        return self._session.id

    @property
    def owner(self) -> str:
        """Whose it is."""
        return self._session.owner

    @property
    def location(self) -> Location:
        """Where it runs; its path is absolute once a kernel was there."""
        return self._session.location

    @property
    def memory(self) -> Memory:
        """The workspace's memory: files on this machine."""
        return Memory(self._session.memory)

    @property
    def links(self) -> Links:
        """The workspaces that are linked with this one."""
        return Links(self._session.links)

    context = _of_session(AsyncSession.context)
    execute = _of_session(AsyncSession.execute)
    status = _of_session(AsyncSession.status)
    interrupt = _of_session(AsyncSession.interrupt)
    reset = _of_session(AsyncSession.reset)
    move = _of_session(AsyncSession.move)
    cells = _of_session(AsyncSession.cells)
    cell = _of_session(AsyncSession.cell)
    close = _of_session(AsyncSession.close)

    def stream(self, code: str, **options: Any) -> Iterator[Output | Result]:
        """Run code and yield its outputs as they come, and at last the `Result`; options as for `execute`."""
        outputs: queue.SimpleQueue[Output | Result | BaseException] = queue.SimpleQueue()
        running = io_thread.submit(self._session.execute(code, **{**options, "on_output": outputs.put}))

        def over(done: Future[Result]) -> None:
            if not done.cancelled():  # else nobody takes outputs any more
                outputs.put(done.exception() or done.result())

        running.add_done_callback(over)
        try:
            while True:
                output = outputs.get()
                if isinstance(output, BaseException):
                    raise output
                yield output
                if isinstance(output, Result):
                    return
        finally:
            running.cancel()


class Sessions:
    """Kernels for programs that run code on hosts on behalf of somebody: each session is an owner's use of one kernel.

    Leaving the `with` block ends all sessions; `leave()` lets them go on without this process. From any thread.

    Args:
        max_kernels: see `AsyncSessions`.
        idle_timeout: see `AsyncSessions`.
        home: see `AsyncSessions`.
    """

    def __init__(
        self,
        max_kernels: int = MAX_KERNELS,
        idle_timeout: float = IDLE_TIMEOUT,
        home: str | os.PathLike[str] | None = None,
    ) -> None:
        self._sessions = AsyncSessions(max_kernels, idle_timeout, home)

    open = _giving_session(AsyncSessions.open)
    join = _giving_session(AsyncSessions.join)
    resume = _giving_session(AsyncSessions.resume)
    list = _of_sessions(AsyncSessions.list)
    close_owner = _of_sessions(AsyncSessions.close_owner)
    close = _of_sessions(AsyncSessions.close)
    leave = _of_sessions(AsyncSessions.leave)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
