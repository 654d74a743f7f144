"""Child processes of the I/O loop: told when one ends, without asyncio's child watchers.

asyncio's own subprocess support starts a thread per child on Python 3.11; where the kernel has pidfds
(Linux 5.3 and later) a child's end is just one more descriptor that becomes readable.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable

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


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a child to end, and kill it when it has not after `TERM_GRACE`. Signals this one process, never a group.

    `Popen.send_signal` does nothing once the child has been reaped, so a reused pid is safe.
    """
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    asyncio.get_running_loop().call_later(TERM_GRACE, process.kill)


def signal_name(number: int) -> str:
    """Return a signal's name without "SIG" ("KILL"), or its number as text when it has none."""
    try:
        return signal.Signals(number).name.removeprefix("SIG")
    except ValueError:
        return str(number)
