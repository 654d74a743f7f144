"""A local client that reads slowly, yet reads, misses nothing."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.asyncio
from faces import Host
from jupyter_client.blocking.client import BlockingKernelClient
from kernels import PATIENCE, started

from albedo_provisioner.kernels import publisher, reminders
from albedo_provisioner.kernels.publisher import Publisher

COUNT = 160


@pytest.mark.parametrize("size", [300_000, 20_000])
async def test_progress_is_seen_long_before_zmq_tells_of_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """zmq tells of room when half a queue was read, which takes this client three times as long as is waited for."""
    monkeypatch.setattr(publisher, "QUEUE", 100)
    monkeypatch.setattr(publisher, "PATIENCE", 1.0)
    left_behind: list[bool] = []
    address = f"ipc://{tmp_path}/s"
    with zmq.asyncio.Context() as context:
        socket, client = zmq.Context(context).socket(zmq.XPUB), context.socket(zmq.SUB)
        sender = Publisher(socket, lambda _: None, lambda: left_behind.append(True), lambda _: [])
        try:
            socket.bind(address)
            client.rcvhwm = 1
            client.subscribe(b"")
            client.connect(address)
            assert await asyncio.to_thread(socket.recv) == b"\1"
            for number in range(COUNT):
                sender.send([b"stream", b"%d" % number, bytes(size)])
            for number in range(COUNT):
                topic, told, _ = await asyncio.wait_for(client.recv_multipart(), 30)
                assert (topic, int(told)) == (b"stream", number)
                if number < COUNT // 2:
                    await asyncio.sleep(0.06)  # the client's pace
        finally:
            sender.close()
            client.close(0)
            socket.close(0)
    assert not left_behind


def read_late(connection_file: str) -> int:
    """Read nothing of a cell before it has its reply, then all until its end was said twice, then more cells.

    Returns:
        how many displays of the first came.
    """
    client = BlockingKernelClient(connection_file=connection_file)
    client.load_connection_file()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=PATIENCE)
        cell = client.execute("for i in range(4000): display({'text/plain': 'x' * 1000}, raw=True)")
        client.get_shell_msg(timeout=PATIENCE)
        until = time.monotonic() + PATIENCE
        first: list[dict[str, Any]] = []
        while _ends(first, cell) < 2:
            first.append(client.get_iopub_msg(timeout=until - time.monotonic()))
        for number in range(3):
            after = client.execute(f"for i in range(50): print(i, flush=True)\n{number}")
            said = [client.get_iopub_msg(timeout=PATIENCE)]
            while not _ends(said, after):
                said.append(client.get_iopub_msg(timeout=PATIENCE))
            printed = [each["content"]["text"] for each in said if each["msg_type"] == "stream"]
            assert "".join(text for text in printed if "[albedo]" not in text) == "".join(f"{i}\n" for i in range(50))
        return sum(each["msg_type"] == "display_data" for each in first)
    finally:
        client.stop_channels()


def _ends(messages: list[dict[str, Any]], cell: str) -> int:
    """Return how many times a cell was said to be done."""
    return sum(
        each["content"].get("execution_state") == "idle" and each["parent_header"].get("msg_id") == cell
        for each in messages
    )


async def test_one_that_was_left_behind_and_reads_again_can_take_all_that_is_said_to_it(
    local_host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """jupyter_client refuses a message that it has had before: that a cell ended must not be said twice in the same."""
    monkeypatch.setattr(publisher, "PATIENCE", 0.5)
    monkeypatch.setattr(reminders, "FIRST_PAUSE", 0.1)
    async with started(local_host.location()) as kernel:
        displays = await asyncio.to_thread(read_late, kernel.manager.connection_file)
    assert displays < 4000, "it was left behind"
