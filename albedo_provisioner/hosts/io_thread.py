"""One daemon thread with one asyncio loop per process: everything that talks to hosts runs there.

`jupyter_client` is used from running loops, from blocking callers and from several loops in turn, while a connection
belongs to the loop that made it. So all connections live on a loop of their own, and callers come to it:

    IOThread.get().submit(coroutine)         -> concurrent.futures.Future
    await IOThread.get().run(coroutine)      from any running loop, this one included
    IOThread.get().run_blocking(coroutine)   from a thread without a loop

Nothing else in this package starts threads or loops.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, TypeVar, cast

T = TypeVar("T")

log = logging.getLogger(__name__)

# How long the interpreter's exit waits for cancelled tasks to finish. Long enough to say goodbye to a host, short
# enough that nobody reaches for Ctrl-C.
EXIT_TIMEOUT = 2.0

# What a fork leaves behind in the child: the parent's thread, loop and tasks. Kept referenced for ever, because the
# last reference going would run the tasks' `finally` blocks in the child, on sockets shared with the parent.
_kept_for_ever: list[object] = []


class _Loop(asyncio.SelectorEventLoop):
    """A loop whose default executor is a daemon thread per call.

    The stock executor's threads are joined at interpreter exit, so one name lookup against a dead DNS server
    would hold up the exit for as long as the resolver likes; and its fixed number of workers would make hosts that
    are asked side by side wait for each other. What runs here is rare: name lookups and reading key files.
    """

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run `func` on the given executor, or on a daemon thread of its own when that is None."""
        if executor is not None:
            return super().run_in_executor(executor, func, *args)
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def call() -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                result = func(*args)
            except BaseException as error:  # noqa: BLE001 - handed to whoever awaits the call
                done.set_exception(error)
            else:
                done.set_result(result)

        threading.Thread(target=call, name="albedo-io-call", daemon=True).start()
        return asyncio.wrap_future(done, loop=self)


class IOThread:
    """The process's I/O thread. Use `IOThread.get()`; it is started on first use.

    Attributes:
        loop: the asyncio loop that runs on it.
    """

    _current: ClassVar[IOThread | None] = None
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop = _Loop()
        self._stopped = False
        self._on_stop: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._only: dict[type, object] = {}
        self._thread = threading.Thread(target=self._serve, name="albedo-io", daemon=True)
        self._thread.start()

    @classmethod
    def get(cls) -> IOThread:
        """Return this process's I/O thread, starting it when there is none (first use, or after a fork)."""
        with cls._lock:
            if cls._current is None:
                cls._current = cls()
            return cls._current

    @property
    def is_current(self) -> bool:
        """True when the caller runs on this thread."""
        return threading.current_thread() is self._thread

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine on the I/O thread; cancelling the returned future cancels it there.

        Raises:
            RuntimeError: the interpreter is exiting and the thread has stopped.
        """
        if self._stopped:
            coroutine.close()
            raise RuntimeError("the I/O thread has stopped: the interpreter is exiting")
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the I/O thread and await its result from whatever loop the caller is on.

        Cancelling the awaiting side cancels the coroutine.
        """
        if self.is_current:
            return await coroutine
        return await asyncio.wrap_future(self.submit(coroutine))

    async def obtain(self, coroutine: Coroutine[Any, Any, T], undo: Callable[[T], Coroutine[Any, Any, object]]) -> T:
        """Do what `run` does, for what may not get lost.

        Cancelling can come too late, when the result is on its way between the two threads. Then nobody has it, and
        `undo` is called with it and run on the I/O thread, on its own.
        """
        results: list[T] = []
        given_up = False

        async def work() -> T:
            result = await coroutine
            if given_up:
                await undo(result)
                raise asyncio.CancelledError
            results.append(result)
            return result

        async def undo_result() -> None:
            if results:
                await undo(results[0])

        try:
            return await self.run(work())
        except BaseException:
            given_up = True
            self.submit(undo_result())
            raise

    def run_blocking(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the I/O thread and block until its result is there.

        Args:
            coroutine: what to run.
            timeout: seconds to wait at most; None waits for ever.

        Raises:
            TimeoutError: it took longer than `timeout`; the coroutine has been cancelled.
            RuntimeError: called on the I/O thread itself, which would wait for itself.
        """
        if self.is_current:
            coroutine.close()
            raise RuntimeError("run_blocking was called on the I/O thread, which would wait for itself")
        future = self.submit(coroutine)
        try:
            return future.result(timeout)
        except BaseException:
            # Timeout or KeyboardInterrupt: nobody waits for it any more. Of no effect when it has ended by itself.
            future.cancel()
            raise

    def call_soon(self, callback: Callable[..., object], *args: object) -> None:
        """Have the I/O thread call `callback(*args)`; usable from any thread. Ignored once the thread has stopped."""
        # The loop may close between a check and the call; then nothing is left that the callback could matter to.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(callback, *args)

    def only(self, kind: type[T]) -> T:
        """Return this thread's only instance of a class, made at first use; called on this thread.

        So what belongs to the loop is shared by all of the process, and a forked child gets its own.

        Raises:
            RuntimeError: called elsewhere than on the I/O thread.
        """
        if not self.is_current:
            raise RuntimeError(f"{kind.__name__} is used on the I/O thread alone")
        if kind not in self._only:
            self._only[kind] = kind()
        return cast(T, self._only[kind])

    def on_stop(self, closing: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have `closing()` awaited on the loop when the interpreter exits, before all tasks are cancelled."""
        self._on_stop.append(closing)

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        if self._on_stop:
            last = [self.loop.create_task(closing()) for closing in self._on_stop]
            done, _ = self.loop.run_until_complete(asyncio.wait(last, timeout=EXIT_TIMEOUT))
            for task in done:
                if error := task.exception():
                    log.error("closing at exit failed", exc_info=error)
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=EXIT_TIMEOUT))
        for task in tasks:
            if not task.done():
                log.debug("still running at exit: %r", task)
                # It had its time; the interpreter ends, and "Task was destroyed but it is pending" helps nobody.
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _kept_for_ever.append(task)
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        # One more turn lets transports that were just aborted close their sockets.
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()

    def _stop(self) -> None:
        self._stopped = True
        self.call_soon(self.loop.stop)
        self._thread.join(2 * EXIT_TIMEOUT + 1)


def submit(coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
    """Run a coroutine on the process's I/O thread; see `IOThread.submit`."""
    return IOThread.get().submit(coroutine)


async def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the process's I/O thread and await it from any loop; see `IOThread.run`."""
    return await IOThread.get().run(coroutine)


async def obtain(coroutine: Coroutine[Any, Any, T], undo: Callable[[T], Coroutine[Any, Any, object]]) -> T:
    """Run a coroutine on the process's I/O thread, and undo what nobody waits for any more; see `IOThread.obtain`."""
    return await IOThread.get().obtain(coroutine, undo)


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Run what blocks, such as files, on a thread of its own; used on the I/O thread."""
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)


def run_blocking(coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
    """Run a coroutine on the process's I/O thread and block for its result; see `IOThread.run_blocking`."""
    return IOThread.get().run_blocking(coroutine, timeout)


def _at_exit() -> None:
    current = IOThread._current
    if current is not None:
        current._stop()


def _after_fork_in_child() -> None:
    # The thread does not exist here, and its loop's epoll set is shared with the parent: it is not to be touched.
    current = IOThread._current
    IOThread._lock = threading.Lock()
    IOThread._current = None
    if current is not None:
        tasks = list(asyncio.all_tasks(current.loop))
        for task in tasks:
            cast(Any, task)._log_destroy_pending = False
        _kept_for_ever.append((current, tasks))


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork_in_child)
