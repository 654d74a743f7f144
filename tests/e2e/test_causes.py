"""Why a kernel is dead, and what is no death: each cause is told in words that are true, and never guessed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from crash import albedo, crash, listed
from faces import Embedded, Host, keeper_of
from kernels import Cell, Kernel, add_kernelspec, eventually, make_with_restarter, numbered, started
from procs import alive, read, send, wait_until

from albedo_provisioner.bundle.kernel_log import KernelLog
from albedo_provisioner.kernels.records import ENDING, KernelRecords

if TYPE_CHECKING:
    from conftest import Workspace

SLEEP = "print('begun', flush=True)\nimport time\ntime.sleep(600)"


async def sleeping(kernel: Kernel) -> Cell:
    """Return a cell that has begun to sleep for long."""
    cell = kernel.begin(SLEEP)
    await cell.until(lambda: cell.stdout)
    return cell


def words_of(cell: Cell) -> str:
    """Return why a cell's kernel died, as told in its reply; its stderr says the same."""
    assert cell.reply is not None
    assert cell.reply["ename"] == "KernelDied", cell.reply
    words: str = cell.reply["evalue"]
    assert words in cell.stderr
    return words


class MemoryGroup:
    """A control group with a limit on memory, of the first version of cgroups or the second."""

    def __init__(self, folder: Path, limit: str) -> None:
        self.folder = folder
        self.limit = folder / limit

    def add(self, pid: int) -> None:
        """Move a process into it; what it starts from then on is in it too."""
        (self.folder / "cgroup.procs").write_text(str(pid))


@pytest.fixture
def memory_group() -> Iterator[MemoryGroup]:
    """Make a control group in which memory can run out."""
    old, new = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    name = f"albedo-test-{os.getpid()}"
    if (old / "memory.limit_in_bytes").exists():
        group = MemoryGroup(old / name, "memory.limit_in_bytes")
    else:
        group = MemoryGroup(new / name, "memory.max")
    try:
        group.folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        if not group.limit.exists():
            pytest.skip("control groups cannot limit memory here")
        yield group
    finally:
        wait_until(lambda: removed(group.folder), 20, "the control group is empty")


def removed(group: Path) -> bool:
    """Remove a control group, if no process is in it any more."""
    try:
        group.rmdir()
    except OSError:
        return False
    return True


EAT = "import time\nb = bytearray(600 << 20)"


@pytest.fixture(params=["local_host", "sshd_host"])
def local_or_sshd(request: pytest.FixtureRequest) -> Host:
    """Return a host where kernels run as we do, or as an account that may mostly not read the system's log."""
    host: Host = request.getfixturevalue(request.param)
    return host


def log_tells(host: Host) -> bool:
    """Whether the host's keepers can read in the system's log whom it has killed."""
    code = f"from {KernelLog.__module__} import KernelLog; print(KernelLog().killed_for_memory(0))"
    return host.run([str(host.python), "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"]).stdout == "False\n"


class TestOutOfMemory:
    async def test_a_kernel_that_took_too_much_is_told_so_and_one_that_somebody_killed_is_not(
        self, local_or_sshd: Host, memory_group: MemoryGroup
    ) -> None:
        """K5: for real. Of a child of it, the system's count says no more than of the kernel itself."""
        host = local_or_sshd
        async with started(host.location()) as kernel:
            memory_group.add(keeper_of(host).pid)
            memory_group.limit.write_text(str(300 << 20))
            await kernel.manager.restart_kernel(now=True)
            child = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {EAT!r}]).returncode"
            assert await kernel.value(child) == str(-signal.SIGKILL)
            cell = await sleeping(kernel)
            os.kill(kernel.status["pid"], signal.SIGKILL)
            words = words_of(await cell.done())
            assert "was ended by SIGKILL" in words
            if log_tells(host):
                assert "memory" not in words
            else:
                assert "the system killed one process of its memory group because memory ran out there" in words
                assert "it may have been this one" in words

            await kernel.manager.restart_kernel(now=True)
            cell = await kernel.run("def f(): return bytearray(600 << 20)\nb = f()")
            words = words_of(cell)
            if log_tells(host):
                assert "was killed by the system because memory ran out there" in words
            else:
                assert "was ended by SIGKILL; at about that time the system killed" in words
            memory_group.limit.write_text("-1" if memory_group.limit.name.endswith("bytes") else "max")


HOST_PYTHON = """#!/bin/sh
# After a "restart" the system says another boot id, to us and to nobody else.
if [ -e "$HOME/boot_id" ]; then
    exec unshare --mount sh -c \\
        'mount --bind "$HOME/boot_id" /proc/sys/kernel/random/boot_id && exec "$@"' sh {python} "$@"
fi
exec {python} "$@"
"""


@pytest.fixture
def needs_mounts() -> None:
    """Skip the test where a file cannot be mounted over another, for some processes alone."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no mount namespace can be made here")


class TestHostRestarted:
    @pytest.mark.usefixtures("needs_mounts")
    async def test_it_is_told_as_such_and_a_new_kernel_can_be_started(self, embedded_host: Embedded) -> None:
        """K5: all processes are gone at once, and the boot id is another."""
        python = embedded_host.write("python", HOST_PYTHON.format(python=embedded_host.python))
        python.chmod(0o755)
        async with started(embedded_host.location(), {"python": str(python)}) as kernel:
            cell = await sleeping(kernel)
            embedded_host.down()
            await eventually(lambda: kernel.status["step"] == "reattaching")
            for process in embedded_host.processes():
                send(process, signal.SIGKILL)
            embedded_host.write("boot_id", "11111111-2222-3333-4444-555555555555\n")
            assert await kernel.manager.is_alive(), "nobody has said yet that it is dead"
            embedded_host.up()
            await cell.done()
            assert f"{embedded_host.alias} was restarted" in words_of(cell)
            assert kernel.status["cause"] in words_of(cell)
            assert not await kernel.manager.is_alive()
            await kernel.manager.restart_kernel(now=True)
            assert await kernel.value("1 + 1") == "2"


class TestEndedBySomebody:
    async def test_a_client_that_asks_the_kernel_to_end(self, remote_host: Host) -> None:
        """K5."""
        async with started(remote_host.location()) as kernel:
            cell = await sleeping(kernel)
            kernel.client.shutdown()
            await kernel.manager.interrupt_kernel()
            await cell.until(lambda: cell.reply)
            await eventually(lambda: kernel.status["process"] == "exited")
            assert f"was shut down by a client: albedo, process {os.getpid()} on " in kernel.status["cause"]

    async def test_a_person_who_stops_it_from_another_terminal(self, embedded_host: Embedded) -> None:
        """K5."""
        async with started(embedded_host.location()) as kernel:
            cell = await sleeping(kernel)
            said = await asyncio.to_thread(albedo, "stop", kernel.manager.provisioner.kernel_id[:8])  # type: ignore[union-attr]
            assert "Ended" in said
            await cell.done()
            assert "was ended by a client: jupyter albedo stop, process " in words_of(cell)

    async def test_a_keeper_that_is_told_to_end(self, embedded_host: Embedded) -> None:
        """K5."""
        async with started(embedded_host.location()) as kernel:
            cell = await sleeping(kernel)
            send(keeper_of(embedded_host), signal.SIGTERM)
            await cell.done()
            assert "its keeper was told to end (SIGTERM)" in words_of(cell)

    async def test_one_that_takes_no_notice_and_dies_of_something_else_is_not_said_to_have_been_ended(
        self, embedded_host: Embedded
    ) -> None:
        """K5: a signal that a cell sends to its own process is the kernel's own affair."""
        async with started(embedded_host.location()) as kernel:
            cell = await kernel.run("import os, signal\nos.kill(os.getpid(), signal.SIGUSR1)")
            assert "was ended by SIGUSR1" in words_of(cell)


END_AWAY = """
import sys
from jupyter_client.manager import KernelManager
manager = KernelManager(kernel_name=sys.argv[1])
manager.start_kernel()
print(manager.provisioner.status["pid"], flush=True)
sys.stdin.readline()
manager.shutdown_kernel()
"""


class TestOutOfReach:
    def test_an_end_that_is_asked_for_meanwhile_is_on_record_and_proven_at_the_next_contact(
        self, workspace: Workspace, embedded_host: Embedded
    ) -> None:
        """K6, L5: the process that asked for it has ended long before."""
        kernelspec = add_kernelspec(embedded_host.location())
        asked = subprocess.Popen(
            [sys.executable, "-c", END_AWAY, kernelspec], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert asked.stdout is not None
        assert asked.stdin is not None
        pid = int(asked.stdout.readline())
        embedded_host.down()
        out, _ = asked.communicate("\n", timeout=60)
        assert asked.returncode == 0, out
        (record,) = KernelRecords().all()
        assert record.state == ENDING
        (kernel,) = listed()
        assert (kernel["state"], kernel["note"]) == ("ending", "host out of reach")
        assert alive(pid)
        embedded_host.up()
        crash(kernelspec, workspace.root / "a.ipynb", [(None, "print('BEGUN')")])
        wait_until(lambda: not alive(pid), 30, "another kernel's start there has ended it")
        # That one may have been killed before it could note the end; then the next contact does.
        wait_until(lambda: len(listed()) == len(KernelRecords().all()) == 1, 30, "and it is off the records")
        albedo("stop", KernelRecords().all()[0].kernel_id)


class TestNotDead:
    async def test_a_kernel_that_is_stopped_is_alive_and_said_not_to_respond(self, embedded_host: Embedded) -> None:
        """K5."""
        async with started(embedded_host.location()) as kernel:
            assert kernel.status["responsive"] is True
            process = read(kernel.status["pid"])
            assert process is not None
            send(process, signal.SIGSTOP)
            await eventually(lambda: kernel.status["responsive"] is False, 45)
            (found,) = await asyncio.to_thread(listed)
            assert "stopped" in found["note"]
            assert await kernel.manager.is_alive()
            assert kernel.status["process"] == "running"
            cell = kernel.begin("6 * 7")
            send(process, signal.SIGCONT)
            assert (await cell.done()).value == "42"
            await eventually(lambda: kernel.status["responsive"] is True, 45)
            assert kernel.status["pid"] == process.pid

    async def test_a_kernel_that_is_busy_in_native_code_is_left_alone(self, embedded_host: Embedded) -> None:
        """K5: it holds the interpreter's lock for longer than heartbeats take."""
        async with started(embedded_host.location(), make=make_with_restarter) as kernel:
            pid = kernel.status["pid"]
            cell = await kernel.run("import ctypes\nctypes.PyDLL(None).sleep(22)\n'done'")
            assert cell.value == "'done'"
            assert cell.stderr == ""
            assert kernel.status["pid"] == pid

    async def test_a_keeper_that_is_stopped_for_a_while_loses_nothing(self, remote_host: Host) -> None:
        """L6: to its clients it is a host out of reach."""
        async with started(remote_host.location()) as kernel:
            keeper = keeper_of(remote_host)
            cell = kernel.begin(
                "import time\nfor i in range(60):\n    print(i, flush=True)\n    time.sleep(0.1)\n'the end'"
            )
            await cell.until(lambda: len(cell.lines) >= 5)
            send(keeper, signal.SIGSTOP)
            stopped = time.monotonic()
            try:
                await eventually(lambda: "nothing was heard" in str(kernel.status["away"]), 20)
                assert await kernel.manager.is_alive()
                # The test is about this very time.
                await asyncio.sleep(20 - (time.monotonic() - stopped))
            finally:
                send(keeper, signal.SIGCONT)
            await cell.done()
            assert cell.lines == list(numbered(60))
            assert cell.value == "'the end'"
            assert cell.stderr == ""
