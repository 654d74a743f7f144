"""What a kernel has started is ended with it also after its keeper was killed, and another one has adopted it."""

from __future__ import annotations

import json
import os
import signal
import stat
from pathlib import Path

from faces import Host, keeper_of
from kernels import eventually, started
from procs import Process, alive, everyone, send

EARLY, LATE = f"7777.1{os.getpid()}", f"7777.2{os.getpid()}"
"""Seconds to sleep: by them the processes are known from those of tests that run beside this one."""

DAEMON = f"""
import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sleep", ["sleep", "{EARLY}"], {{}})
    os._exit(0)
os.wait()
"""
"""Neither in the kernel's group or session, nor its child, nor with its mark."""

LATER = f"""
import subprocess
command = ["/bin/sh", "-c", "sleep {LATE} & read x"]
sh = subprocess.Popen(command, env={{}}, start_new_session=True, stdin=subprocess.PIPE)
"""
"""The same in the end, by a parent that lives for a while."""


def sleeping(seconds: str) -> Process | None:
    """Return the process that sleeps for so long."""
    return next((each for each in everyone() if each.argv == ("sleep", seconds) and each.state != "Z"), None)


def noted(host: Host) -> list[list[int]]:
    """Return what the only kernel's keeper has noted, as pids and start times; nobody else may read it."""
    found: list[list[int]] = []
    for path in Path(host.home, ".albedo-remote/run").glob("*/relatives.json"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        found += json.loads(path.read_text())["processes"]
    return found


async def test_daemons_without_a_trace_of_the_kernel_end_with_it(remote_host: Host) -> None:
    """K6: those from before the keeper was killed, and those that its successor has seen."""
    (daemon, later) = (None, None)
    try:
        async with started(remote_host.location()) as kernel:
            pid, connections = kernel.status["pid"], kernel.status["connections"]
            await kernel.run(DAEMON)
            daemon = await eventually(lambda: sleeping(EARLY))
            await eventually(lambda: [daemon.pid, daemon.started] in noted(remote_host))
            send(keeper_of(remote_host), signal.SIGKILL)
            await eventually(lambda: kernel.status["connections"] > connections and kernel.status["step"] == "attached")
            assert kernel.status["pid"] == pid

            await kernel.run(LATER)
            later = await eventually(lambda: sleeping(LATE))
            await eventually(lambda: [later.pid, later.started] in noted(remote_host))
            await kernel.run("sh.communicate()")
            assert alive(daemon.pid)
            assert alive(later.pid)
            await kernel.manager.shutdown_kernel()
            await eventually(lambda: not alive(daemon.pid) and not alive(later.pid), 20, "both have ended")
    finally:
        for process in (daemon, later):
            if process is not None:
                send(process, signal.SIGKILL)
