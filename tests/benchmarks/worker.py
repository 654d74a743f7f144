"""The client's side of one column: a process that starts kernels and uses them, as an ordinary program would.

It takes commands as lines of JSON on its standard input, `{"do": …, …}`, and answers each with a line,
`{"value": …}` or `{"error": …}`. Each column has a process of its own, so that none pays for another's threads.

Clients are jupyter_client's blocking ones, as `km.client()` makes them. Their channels' sockets are waited for with one
poll, and messages are taken from them with the session, signature check and JSON included.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import zmq
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import AsyncKernelManager, KernelManager

from . import processes
from .repository import CHANGED, FILES, FOLDERS

DEADLINE = 60.0
"""Seconds that any cell, start or end is waited for."""

Message = dict[str, Any]


class Cell:
    """A running execute request.

    Args:
        client: on which client to run it.
        code: what to run.
        deadline: seconds that it is waited for at most.
    """

    def __init__(self, client: BlockingKernelClient, code: str, deadline: float = DEADLINE) -> None:
        self._client = client
        self._deadline = time.monotonic() + deadline
        self._poller = zmq.Poller()
        self._channels = [client.shell_channel, client.iopub_channel]
        for channel in self._channels:
            self._poller.register(channel.socket, zmq.POLLIN)
        self.reply: Message | None = None
        self.idle = False
        self.id = client.execute(code)

    def messages(self) -> Iterator[Message]:
        """Yield all that belongs to it, until both its reply and its idle status have come.

        Raises:
            TimeoutError: they did not.
        """
        while self.reply is None or not self.idle:
            left = self._deadline - time.monotonic()
            ready = dict(self._poller.poll(max(0, math.ceil(left * 1000))))
            if not ready:
                got = "no reply" if self.reply is None else "a reply but no idle status"
                raise TimeoutError(f"{got} in time")
            for channel in self._channels:
                if channel.socket not in ready:
                    continue
                message = channel.get_msg(timeout=0)
                if message["parent_header"].get("msg_id") != self.id:
                    continue
                if channel is self._channels[0]:
                    self.reply = message["content"]
                elif message["msg_type"] == "status":
                    self.idle = message["content"]["execution_state"] == "idle"
                yield message

    def finish(self) -> Message:
        """Wait for its end and return the reply's content."""
        for _ in self.messages():
            pass
        assert self.reply is not None
        return self.reply

    def succeed(self) -> None:
        """Wait for its end, which must be a good one."""
        reply = self.finish()
        assert reply["status"] == "ok", reply


class Worker:
    """What a column's process can do; each public method is a command.

    Args:
        kernel: the kernelspec's name.
        sshd: the process id of the host's server, None for local kernels.
    """

    def __init__(self, kernel: str, sshd: int | None) -> None:
        self._kernel = kernel
        self._sshd = sshd
        self._manager: KernelManager | None = None
        self._client: BlockingKernelClient | None = None

    def start(self, until: str) -> dict[str, float]:
        """Start a kernel and end it in order; return the seconds of both.

        Args:
            until: "reply" measures until the first kernel_info_reply, "ready" until `wait_for_ready` returns.
        """
        began = time.monotonic()
        manager = KernelManager(kernel_name=self._kernel)
        manager.start_kernel()
        client = manager.client()
        try:
            client.start_channels()
            if until == "ready":
                client.wait_for_ready(timeout=DEADLINE)
            else:
                asked = client.kernel_info()
                reply = client.get_shell_msg(timeout=DEADLINE)
                assert reply["parent_header"]["msg_id"] == asked, reply
            started = time.monotonic() - began
            if until == "reply":
                client.wait_for_ready(timeout=DEADLINE)
        finally:
            client.stop_channels()
            began = time.monotonic()
            manager.shutdown_kernel()
            ended = time.monotonic() - began
        return {until: started, "shutdown": ended}

    def open(self) -> None:
        """Have the kernel that the following commands use."""
        self._use()

    def close(self) -> None:
        """End that kernel."""
        if self._client is not None:
            self._client.stop_channels()
        if self._manager is not None:
            self._manager.shutdown_kernel()
        self._client = self._manager = None

    def round_trips(self, count: int) -> list[float]:
        """Execute `1` so many times; return the seconds from the request until both reply and idle status."""
        client = self._use()
        times = []
        for _ in range(count):
            began = time.monotonic()
            Cell(client, "1").succeed()
            times.append(time.monotonic() - began)
        return times

    def lines(self, count: int) -> float:
        """Print so many lines; return the seconds until the cell is done and all have come."""
        began = time.monotonic()
        cell = Cell(self._use(), f"for number in range({count}): print(number)")
        text = "".join(m["content"]["text"] for m in cell.messages() if m["msg_type"] == "stream")
        seconds = time.monotonic() - began
        assert text.split() == [str(number) for number in range(count)], f"{len(text.split())} of {count} lines came"
        return seconds

    def megabytes(self, displays: int, size: int) -> float:
        """Display so many times so many bytes of text; return the seconds until the cell is done and all have come."""
        client = self._use()
        # Text that does not compress to nothing, made beforehand.
        Cell(client, f"import os; text = os.urandom({size} // 2).hex()").succeed()
        began = time.monotonic()
        cell = Cell(client, f"for _ in range({displays}): display({{'text/plain': text}}, raw=True)")
        sizes = [len(m["content"]["data"]["text/plain"]) for m in cell.messages() if m["msg_type"] == "display_data"]
        seconds = time.monotonic() - began
        assert sizes == [size] * displays, f"{sum(sizes)} of {size * displays} bytes came"
        return seconds

    def interrupt(self) -> float:
        """Interrupt a sleeping cell; return the seconds until its error reply."""
        return self._interrupt("import time; time.sleep(60)", 0.3)

    def flood(self, seconds: float) -> float:
        """Interrupt a cell that prints without end; return the seconds until its error reply and idle status."""
        return self._interrupt("while True: print('x' * 100)", seconds)

    def cut(self, what: str) -> float:
        """Cut the link in the middle of a cell; return the seconds until it is attached again.

        Args:
            what: "bridge" kills the process at the channel's other end, "session" the server's end of the connection.
        """
        client = self._use()
        assert self._manager is not None
        assert self._sshd is not None
        provisioner: Any = self._manager.provisioner
        count = 60
        cell = Cell(client, f"import time\nfor number in range({count}):\n  print(number)\n  time.sleep(0.05)")
        lines: list[str] = []
        seconds = 0.0
        for message in cell.messages():
            if message["msg_type"] != "stream":
                continue
            lines += message["content"]["text"].split()
            if len(lines) >= 10 and not seconds:
                before = provisioner.status["connections"]
                if what == "bridge":
                    (bridge,) = processes.bridges(self._sshd)
                    bridge.kill()
                else:
                    processes.kill_sessions(self._sshd)
                began = time.monotonic()
                while provisioner.status["connections"] == before:
                    if time.monotonic() > began + DEADLINE / 2:
                        raise TimeoutError(f"not attached again within {DEADLINE / 2:g} s: {provisioner.status}")
                    time.sleep(0.001)
                seconds = time.monotonic() - began
        assert cell.reply is not None
        assert cell.reply["status"] == "ok", cell.reply
        assert lines == [str(number) for number in range(count)], f"{len(lines)} of {count} lines came"
        return seconds

    def many(self, count: int) -> dict[str, float]:
        """Start so many kernels at once; return the seconds until all have answered and the connections used."""
        return asyncio.run(self._many(count))

    async def _many(self, count: int) -> dict[str, float]:
        managers = [AsyncKernelManager(kernel_name=self._kernel) for _ in range(count)]

        async def one(manager: AsyncKernelManager) -> None:
            await manager.start_kernel()
            client = manager.client()
            client.start_channels()
            try:
                await client.wait_for_ready(timeout=DEADLINE)
                reply = await client.execute("6 * 7", reply=True, timeout=DEADLINE)
                assert reply["content"]["status"] == "ok", reply
            finally:
                client.stop_channels()

        began = time.monotonic()
        try:
            results = await asyncio.gather(*(one(manager) for manager in managers), return_exceptions=True)
            seconds = time.monotonic() - began
            connections = len(processes.sessions(self._sshd)) if self._sshd else 0
        finally:
            await asyncio.gather(
                *(manager.shutdown_kernel(now=True) for manager in managers if manager.has_kernel),
                return_exceptions=True,
            )
        errors = [result for result in results if isinstance(result, BaseException)]
        assert not errors, f"{len(errors)} of {count} kernels did not start: {errors[0]!r}"
        return {"seconds": seconds, "connections": connections}

    def session_round_trips(self, count: int) -> dict[str, list[float]]:
        """Return milliseconds of `1` by a session, by a client, and over the link alone; see `agents.py`."""
        from . import agents  # a local kernel's process does without us

        return agents.round_trips(self._kernel, count, lambda client: Cell(client, "1").succeed())

    def first_result(self) -> float:
        """Return the seconds to a new session's first result; see `agents.py`."""
        from . import agents  # a local kernel's process does without us

        return agents.first_result(self._kernel)

    def session_memory(self) -> float:
        """Return the bytes here that an idle session takes; see `agents.py`."""
        from . import agents  # a local kernel's process does without us

        return agents.memory(self._kernel)

    def memory_calls(self, count: int) -> dict[str, list[float]]:
        """Return what calls of the workspace's memory take; see `agents.py`."""
        from . import agents  # a local kernel's process does without us

        return agents.memory_calls(self._kernel, count)

    def browse(self, what: str, location: str) -> float:
        """Return how many seconds it takes to look at the repository, on a connection that is there already."""
        from albedo_provisioner import browse

        browse.list(location)
        began = time.monotonic()
        if what == "list":
            assert len(browse.list(location).entries) == FOLDERS + 1  # and .git
        elif what == "repo":
            assert browse.repo(location).changed == CHANGED
        else:
            preview = browse.preview(location)
            assert (preview.tree.files, preview.tree.changed) == (FILES, CHANGED)
        return time.monotonic() - began

    def git(self, folder: str) -> float:
        """Return how many seconds git by itself takes for what a look at a repository asks of it."""
        began = time.monotonic()
        command = [
            "git",
            "--no-optional-locks",
            "-C",
            folder,
            "status",
            "--porcelain=v2",
            "-z",
            "--untracked-files=all",
        ]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        return time.monotonic() - began

    def _interrupt(self, code: str, after: float) -> float:
        client = self._use()
        cell = Cell(client, code)
        messages = cell.messages()
        for message in messages:
            if message["msg_type"] == "execute_input":
                break
        wait = time.monotonic() + after
        if "print" not in code:
            time.sleep(after)
        else:
            for _ in messages:
                if time.monotonic() > wait:
                    break
        assert self._manager is not None
        began = time.monotonic()
        self._manager.interrupt_kernel()
        for _ in messages:
            pass
        seconds = time.monotonic() - began
        assert cell.reply is not None
        assert cell.reply.get("ename") == "KeyboardInterrupt", cell.reply
        return seconds

    def _use(self) -> BlockingKernelClient:
        if self._client is None:
            self._manager = KernelManager(kernel_name=self._kernel)
            self._manager.start_kernel()
            self._client = self._manager.client()
            self._client.start_channels()
            self._client.wait_for_ready(timeout=DEADLINE)
        return self._client


def main() -> None:
    """Serve commands until the input ends."""
    # What libraries print must not get among the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker(sys.argv[1], int(sys.argv[2]) or None)
    print(json.dumps({"value": None}), file=answers, flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        method: Callable[..., Any] = getattr(worker, command.pop("do"))
        try:
            answer = {"value": method(**command)}
        except Exception as error:  # noqa: BLE001 - whatever it was goes into the table's cell
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
    worker.close()


if __name__ == "__main__":
    main()
