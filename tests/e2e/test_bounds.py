"""What is held for those who do not take it is bounded, on the host and here, and what had to go is told."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from faces import Host, keeper_of
from kernels import Cell, Kernel, Message, eventually, started
from procs import read, send, wait_until

from albedo_provisioner.kernels import publisher

CHUNK = 50_000
FLOOD = """
import os, sys, time
print("begun", flush=True)
while not os.path.exists("go"): time.sleep(0.01)
for number in range({count}):
    sys.stdout.write(f"{{number:06}}" + "x" * ({size} - 7) + "\\n")
    sys.stdout.flush()
open("done", "w").close()
"the end"
"""
GAP = re.compile(r"\[albedo\] (\d+) messages of output \((\d+\.\d) MB\) were given up here")


def memory(pid: int, field: str) -> int:
    """Return a process's resident memory in bytes: VmRSS as it is now, VmHWM at its highest."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has ended")


def forget_highest() -> int:
    """Have VmHWM of this process begin anew, and return what it begins with."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory(os.getpid(), "VmRSS")


class Flooded(Cell):
    """A cell of `FLOOD` that keeps the numbers of the chunks and where something was missing, and not the chunks.

    Attributes:
        numbers: of the chunks that came, in order.
        gaps: for each note of a gap the number of messages that it tells of, and how many chunks had come before it.
    """

    def __init__(self, msg_id: str) -> None:
        super().__init__(msg_id)
        self.numbers: list[int] = []
        self.gaps: list[tuple[int, int]] = []

    def take(self, channel: str, message: Message) -> None:
        if message["msg_type"] == "stream":
            text = message["content"]["text"]
            if found := GAP.match(text):
                self.gaps.append((int(found[1]), len(self.numbers)))
            elif len(text) > 1000:
                self.numbers += [int(line[:6]) for line in text.splitlines()]
                message["content"]["text"] = ""
        super().take(channel, message)


def flood(kernel: Kernel, count: int, size: int = CHUNK) -> Flooded:
    """Begin a cell that prints so many chunks once there is a file "go", and makes one "done" then."""
    cell = Flooded(kernel.client.execute(FLOOD.format(count=count, size=size)))
    kernel.expect(cell)
    return cell


class TestAwayFromTheHost:
    @pytest.mark.parametrize(("hold", "megabytes"), [(1 << 20, 64), (None, 400)])
    async def test_the_keeper_holds_no_more_than_it_may_and_what_is_missing_is_told_in_its_place(
        self, sshd_host: Host, hold: int | None, megabytes: int
    ) -> None:
        """L9."""
        config = {} if hold is None else {"hold": hold}
        count = megabytes * 1_000_000 // CHUNK
        async with started(sshd_host.location(), {**config, "journal_bytes": 1 << 20}) as kernel:
            cell = flood(kernel, count)
            await cell.until(lambda: "begun" in cell.stdout)
            sshd_host.down()
            await eventually(lambda: kernel.status["step"] == "reattaching")
            keeper = keeper_of(sshd_host).pid
            before = memory(keeper, "VmRSS")
            sshd_host.write("go", "")
            await eventually(lambda: (sshd_host.home / "done").exists(), what="the cell has printed all")
            assert memory(keeper, "VmHWM") - before < 1.5 * (hold or 64 << 20) + (32 << 20)
            sshd_host.up()
            await cell.done()
            assert cell.status == "ok"
            assert cell.value == "'the end'"
            assert cell.numbers == sorted(set(cell.numbers))
            assert len(cell.numbers) * CHUNK >= 0.8 * (hold or 64 << 20) - 2 * CHUNK
            assert sum(missing for missing, _ in cell.gaps) == count - len(cell.numbers)
            for missing, place in cell.gaps:
                earlier = cell.numbers[place - 1] if place else -1
                later = cell.numbers[place] if place < len(cell.numbers) else count
                assert later - earlier - 1 == missing, "the note stands where they are missing"
            assert await kernel.value("1 + 1") == "2"


READER = """
import select, sys
from queue import Empty
from jupyter_client.blocking.client import BlockingKernelClient
client = BlockingKernelClient()
client.load_connection_file(sys.argv[1])
client.start_channels()
client.wait_for_ready(timeout=60)
print("ready", flush=True)
while True:
    try:
        message = client.get_iopub_msg(timeout=1)
    except Empty:
        if select.select([sys.stdin], [], [], 0)[0]:
            client.execute(sys.stdin.readline())
        continue
    if message["msg_type"] == "stream":
        text = message["content"]["text"]
        print("chunk" if len(text) > 1000 else message["content"]["name"] + " " + text.strip(), flush=True)
    elif message["content"].get("execution_state") == "idle":
        print("idle", message["parent_header"]["msg_id"], flush=True)
"""


@contextmanager
def reader(kernel: Kernel, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run one more client of a kernel in a process of its own; what it reads of streams goes to a file, in short.

    Lines that are written to it are run as cells, once there is nothing more to read.
    """
    arguments = [sys.executable, "-c", READER, kernel.manager.connection_file]
    with log.open("wb") as file, subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=file) as process:
        try:
            wait_until(lambda: "ready" in log.read_text() or process.poll() is not None, 60, "it reads")
            yield process
        finally:
            process.kill()


async def test_a_client_here_that_does_not_read_costs_neither_memory_nor_the_others_and_is_told(
    sshd_host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L9, L8: it is stopped while a cell prints, and goes on."""
    monkeypatch.setattr(publisher, "QUEUE_BYTES", 64 << 20)
    size, count = 100_000, 3000
    log = tmp_path / "read"
    # A kernel prints faster than a busy machine reads: what waits on the host must not have to give way as well.
    async with started(sshd_host.location(), {"hold": 128 << 20}) as kernel:
        with reader(kernel, log) as other:
            process = read(other.pid)
            assert process is not None
            cell = flood(kernel, count, size)
            await eventually(lambda: "stdout begun" in log.read_text())
            send(process, signal.SIGSTOP)
            before = forget_highest()
            sshd_host.write("go", "")
            await cell.done()
            assert cell.numbers == list(range(count))
            assert memory(os.getpid(), "VmHWM") - before < 240 << 20, "of 300 MB, most of which it did not take"
            send(process, signal.SIGCONT)
            await eventually(lambda: f"idle {cell.id}" in log.read_text(), what="it knows that the cell has ended")
            assert "chunk" in log.read_text()
            assert other.stdin is not None
            other.stdin.write(b"print('afterwards')\n")
            other.stdin.flush()
            await eventually(lambda: "stdout afterwards" in log.read_text())
            text = log.read_text()
            assert 0 < text.count("chunk") < count
            assert "stderr [albedo] A client of this kernel that read nothing for 15 s may lack output" in text
