"""Sessions beside what they stand on: round trips on one and the same kernel, first results, and memory."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager, start_new_kernel

from albedo_provisioner import Location, Session, Sessions
from albedo_provisioner.hosts import io_thread
from albedo_provisioner.kernelspecs import Settings, add, remove

FEW, MANY = 1, 9
"""Sessions with an idle kernel each; the difference is what the others take."""

DEADLINE = 60.0


def _config(kernel: str) -> dict[str, Any] | None:
    """Return the provisioner's settings in a kernelspec; None for that of a local kernel."""
    metadata = KernelSpecManager().get_kernel_spec(kernel).metadata
    found: dict[str, Any] | None = metadata.get("kernel_provisioner", {}).get("config")
    return found


def _open(sessions: Sessions, kernel: str, owner: str) -> Session:
    config = _config(kernel)
    assert config is not None
    return sessions.open(config["location"], owner, python=config["python"])


@contextmanager
def _client_of(session: Session, kernel: str) -> Iterator[BlockingKernelClient]:
    """Give an ordinary client of a session's kernel."""
    config = _config(kernel)
    assert config is not None
    join = str(session.status()["kernel_id"])
    added = add(Settings(Location.parse(config["location"]), config["python"], join=join))
    manager = KernelManager(kernel_name=added.name)
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=DEADLINE)
        yield client
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
        remove(added.name)


def round_trips(kernel: str, count: int, run: Callable[[BlockingKernelClient], None]) -> dict[str, list[float]]:
    """Return milliseconds of `1` on one kernel, in turns: by a session, by an ordinary client, over the link alone.

    Args:
        kernel: the kernelspec's name.
        count: how many of each.
        run: runs `1` on a client and waits for reply and idle status.
    """
    times: dict[str, list[float]] = {"session": [], "client": [], "link": []}
    with Sessions() as sessions:
        session = _open(sessions, kernel, "round trips")
        session.execute("1")
        with _client_of(session, kernel) as client:
            ways = {"session": lambda: _succeed(session), "client": lambda: run(client), "link": lambda: _link(session)}
            for number in range(count + 5):
                for name, way in ways.items():
                    began = time.perf_counter()
                    way()
                    if number >= 5:  # the first ones load modules
                        times[name].append(1000 * (time.perf_counter() - began))
    return times


def _succeed(session: Session) -> None:
    result = session.execute("1")
    assert (result.status, result.value) == ("ok", "1"), result


def _link(session: Session) -> None:
    """Run `1` by the session's own link to its kernel, without the session."""

    async def run() -> dict[str, Any] | None:
        console = session._session._core._held.console
        assert console is not None
        execution = console.execute("1", lambda kind, content: None)
        await execution.finished.wait()
        return execution.reply

    reply = io_thread.run_blocking(run())
    assert reply is not None
    assert reply["status"] == "ok", reply


def first_result(kernel: str) -> float:
    """Return the seconds from nothing to the first result, on a host that was visited before: of a new session, or,
    where kernels are local, of jupyter_client's `start_new_kernel`.
    """
    began = time.monotonic()
    if _config(kernel) is None:
        manager, client = start_new_kernel(kernel_name=kernel)
        client.execute_interactive("1", timeout=DEADLINE)
        seconds = time.monotonic() - began
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        return seconds
    sessions = Sessions()
    _succeed(_open(sessions, kernel, "first"))
    seconds = time.monotonic() - began
    sessions.close()
    return seconds


def memory(kernel: str) -> float:
    """Return the bytes of this process that an idle session with its kernel takes."""
    sizes = []
    with Sessions(max_kernels=MANY) as sessions:
        for number in range(MANY):
            _succeed(_open(sessions, kernel, f"owner-{number}"))
            if number + 1 in (FEW, MANY):
                gc.collect()
                sizes.append(psutil.Process().memory_info().rss)
    return (sizes[1] - sizes[0]) / (MANY - FEW)


_CALLS = """
import json, time
times = {{"append": [], "read": []}}
for number in range({count}):
    for name, call in (("append", lambda: memory.append(f"note {{number}}")), ("read", memory.read)):
        began = time.perf_counter()
        call()
        times[name].append(1000 * (time.perf_counter() - began))
print(json.dumps(times))
"""


def memory_calls(kernel: str, count: int) -> dict[str, list[float]]:
    """Return the milliseconds that a cell waits for its workspace's memory, which lies on this machine: for an
    `append`, and for a `read` of what there is by then.
    """
    with Sessions() as sessions:
        session = _open(sessions, kernel, "memory")
        result = session.execute(_CALLS.format(count=count))
        assert result.status == "ok", result
        assert len(session.memory.read(linked=False).splitlines()) == count
        times: dict[str, list[float]] = json.loads(result.stdout)
        session.memory.save("")
        return times
