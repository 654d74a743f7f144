"""A local client that reads slowly, yet reads, misses nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

from albedo_provisioner.kernels import publisher
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
        sender = Publisher(socket, lambda _: None, lambda: left_behind.append(True))
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
