"""Child processes of the I/O loop: told when one ends, without asyncio's child watchers.

asyncio's own subprocess support starts a thread per child on Python 3.11; where the kernel has pidfds
(Linux 5.3 and later) a child's end is just one more descriptor that becomes readable.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

# What a child that was asked to end (SIGTERM) gets before it is killed: seconds.
TERM_GRACE = 1.0


def watch_exit(process: subprocess.Popen[bytes], ended: Callable[[int], None]) -> None:
    """Call `ended(returncode)` on the running loop once the child has ended and been reaped.

    Args:
        process: a child of this process; nobody else may wait for it.
        ended: called exactly once, never from within this call; a negative returncode is a signal's number.
    """
    loop = asyncio.get_running_loop()
    try:
        pidfd = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        # No pidfds here (macOS, old kernels): a daemon thread of the I/O loop waits instead.
        def waited(done: asyncio.Future[int]) -> None:
            if not done.cancelled():
                ended(done.result())

        loop.run_in_executor(None, process.wait).add_done_callback(waited)
        return

    def readable() -> None:
        loop.remove_reader(pidfd)
        os.close(pidfd)
        ended(process.wait())

    loop.add_reader(pidfd, readable)


def end(process: subprocess.Popen[bytes], group: bool = False) -> None:
    """Ask a child to end, and kill it when it has not after `TERM_GRACE`.

    `Popen.send_signal` does nothing once the child has been reaped, so a reused pid is safe.

    Args:
        process: the child.
        group: ask all that it has started as well, the child being the first of a group of its own; else this one
            process alone.
    """
    if process.poll() is not None:
        return
    if group:
        os.killpg(process.pid, signal.SIGTERM)  # it is not reaped, so the number is its group's
    else:
        process.send_signal(signal.SIGTERM)
    asyncio.get_running_loop().call_later(TERM_GRACE, process.kill)


def run(command: Sequence[str], timeout: float, **options: Any) -> subprocess.CompletedProcess[Any]:
    """Run a command in a session of its own, as `subprocess.run` does; blocking.

    Args:
        command: the command.
        timeout: seconds after which it is killed with all that it has started.
        options: more for `subprocess.Popen`.

    Raises:
        subprocess.TimeoutExpired: it took longer.
        OSError: it cannot be run.
    """
    with subprocess.Popen(command, start_new_session=True, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # not reaped yet: the timeout, or a Ctrl-C, came before its end
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def signal_name(number: int) -> str:
    """Return a signal's name without "SIG" ("KILL"), or its number as text when it has none."""
    try:
        return signal.Signals(number).name.removeprefix("SIG")
    except ValueError:
        return str(number)
