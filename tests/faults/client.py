"""The client of a campaign, a process of its own: it is killed, stopped and measured apart from the rest.

It takes commands as JSON lines on standard input and answers on standard output, where it also tells of every message
that it receives from the relay. It listens on bare zmq sockets, as nothing may come between the relay and the record.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import zmq
import zmq.asyncio
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning import KernelProvisionerFactory
from recording import DELIMITER, describe

from albedo_provisioner.bundle.wire import CONTROL, IOPUB, SHELL, STDIN
from albedo_provisioner.hosts import io_thread
from albedo_provisioner.kernels.journal import read_journal, visiting
from albedo_provisioner.provisioner import AlbedoProvisioner

_NAMES = {SHELL: "shell", IOPUB: "iopub", STDIN: "stdin", CONTROL: "control"}
_LONGEST_TEXT = 4000


class Client:
    """One client process.

    Args:
        name: its identity on the relay's sockets.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._manager: AsyncKernelManager | None = None
        self._context = zmq.asyncio.Context()
        self._context.max_sockets = 64
        self._sockets: dict[int, zmq.asyncio.Socket] = {}
        self._pumps: list[asyncio.Task[None]] = []

    @property
    def _provisioner(self) -> AlbedoProvisioner:
        assert self._manager is not None
        provisioner = self._manager.provisioner
        assert isinstance(provisioner, AlbedoProvisioner)
        return provisioner

    # -- commands --------------------------------------------------------------------------------------------

    async def start(self, kernelspec: str) -> dict[str, Any]:
        """Start a kernel."""
        self._disconnect()
        self._manager = AsyncKernelManager(kernel_name=kernelspec)
        await self._manager.start_kernel()
        self._connect()
        return await self._known()

    async def load(self, kernelspec: str, info: dict[str, Any]) -> dict[str, Any]:
        """Take up the kernel of a client that was killed, or share it with one that lives."""
        self._manager = AsyncKernelManager(kernel_name=kernelspec)
        factory = KernelProvisionerFactory.instance(parent=self._manager)
        provisioner = factory.create_provisioner_instance(
            info["kernel_id"], self._manager.kernel_spec, parent=self._manager
        )
        self._manager._attempted_start = True  # else jupyter_client cannot start it anew after it was taken up
        await provisioner.load_provisioner_info(info)
        self._manager.provisioner = provisioner
        self._manager.session.key = info["connection_info"]["key"].encode()
        self._manager.load_connection_info(provisioner.connection_info)
        self._connect()
        return await self._known()

    async def _known(self) -> dict[str, Any]:
        info = await self._provisioner.get_provisioner_info()
        return {"info": info, "pid": self._provisioner.status["pid"]}

    def _connect(self) -> None:
        assert self._manager is not None
        connection = self._manager.get_connection_info()
        for channel, name in _NAMES.items():
            socket = self._context.socket(zmq.SUB if channel == IOPUB else zmq.DEALER)
            socket.linger = 0
            socket.rcvhwm = socket.sndhwm = 0
            if channel == IOPUB:
                socket.subscribe(b"")
            else:
                socket.identity = self._name.encode()
            socket.connect(f"ipc://{connection['ip']}-{connection[f'{name}_port']}")
            self._sockets[channel] = socket
            self._pumps.append(asyncio.create_task(self._pump(channel, socket)))

    def _disconnect(self) -> None:
        for task in self._pumps:
            task.cancel()
        for socket in self._sockets.values():
            socket.close(0)
        self._pumps, self._sockets = [], {}

    async def _pump(self, channel: int, socket: zmq.asyncio.Socket) -> None:
        while True:
            parts = await socket.recv_multipart()
            line = describe(channel, parts)
            at = parts.index(DELIMITER)
            line["user"] = json.loads(parts[at + 2]).get("username")
            kind = str(line["type"])
            if line["size"] < _LONGEST_TEXT and kind in ("status", "stream", "error", "execute_reply", "input_request"):
                line["content"] = json.loads(parts[at + 5])
            tell({"message": line})

    async def request(
        self,
        msg_type: str,
        content: dict[str, Any],
        channel: int = SHELL,
        buffer: int = 0,
        parent: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Send a message; `buffer` asks for one of that size. The answer has its digest."""
        assert self._manager is not None
        session = self._manager.session
        message = session.msg(msg_type, content, parent=parent)
        parts = session.serialize(message)
        if buffer:
            parts.append(os.urandom(buffer))
        await self._sockets[channel].send_multipart(parts)
        return {"sent": describe(channel, parts, inbound=True)}

    async def interrupt(self) -> dict[str, Any]:
        """Interrupt the kernel, as its manager does."""
        assert self._manager is not None
        await self._manager.interrupt_kernel()
        return {}

    async def restart(self, now: bool) -> dict[str, Any]:
        """Restart it."""
        assert self._manager is not None
        await self._manager.restart_kernel(now=now)
        return await self._known()

    async def shutdown(self, now: bool) -> dict[str, Any]:
        """End it."""
        assert self._manager is not None
        await self._manager.shutdown_kernel(now=now)
        self._disconnect()
        return {}

    async def status(self) -> dict[str, Any]:
        """Return what the provisioner says, and whether the link holds anything still."""
        assert self._manager is not None
        kernel = self._provisioner._kernel

        async def held() -> int:
            return 0 if kernel is None else kernel._link._link.held

        alive = await self._manager.is_alive()
        return {**self._provisioner.status, "alive": alive, "held": await io_thread.run(held())}

    async def journal(self, msg_id: str) -> dict[str, Any]:
        """Return a cell as the keeper's journal has it: its state, and its messages' lines."""
        request = self._provisioner._request
        assert request is not None
        kernel = self._provisioner._kernel
        assert kernel is not None

        async def raw() -> list[dict[str, Any]]:
            lines: list[dict[str, Any]] = []
            async with visiting(request.location.host, kernel.kernel_id, request.python) as (link, _):
                first: int | None = 0
                while first is not None:
                    answer = await link.call("cell", 60, msg_id=msg_id, first=first)
                    at = 0
                    for channel, count in answer["messages"]:
                        parts = [bytes(part) for part in answer["parts"][at : at + count]]
                        lines.append(describe(channel, parts))
                        at += count
                    first = answer.get("next")
            return lines[1:]  # the request itself comes first

        async def cooked() -> str:
            cells = await read_journal(request.location.host, kernel.kernel_id, request.python)
            return next((cell.state for cell in cells if cell.msg_id == msg_id), "unknown")

        state = await io_thread.run(cooked())
        return {"state": state, "lines": await io_thread.run(raw())}

    # -- the loop --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take commands until standard input ends."""
        actions: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
            "start": self.start,
            "load": self.load,
            "request": self.request,
            "interrupt": self.interrupt,
            "restart": self.restart,
            "shutdown": self.shutdown,
            "status": self.status,
            "journal": self.journal,
        }
        tasks: set[asyncio.Task[None]] = set()

        async def do(number: int, name: str, arguments: dict[str, Any]) -> None:
            try:
                answer = await actions[name](**arguments)
            except Exception as error:  # noqa: BLE001 - the campaign is told, and judges
                answer = {"error": f"{type(error).__name__}: {error}"}
                traceback.print_exc()
            tell({"answer": number, **answer})

        reader = asyncio.StreamReader(limit=1 << 26)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        tell({"ready": True})
        while line := await reader.readline():
            command = json.loads(line)
            task = asyncio.create_task(do(command["number"], command["do"], command["with"]))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        os._exit(0)  # nobody is there any more; the campaign has ended the kernel or wants it kept


def tell(content: dict[str, Any]) -> None:
    """Write a line for the campaign."""
    sys.stdout.buffer.write(json.dumps(content).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    asyncio.run(Client(sys.argv[1]).run())
