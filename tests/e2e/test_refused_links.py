"""A link that broke and cannot be mended but by a person: the cell that waits is told why, once, and goes on after."""

from __future__ import annotations

import signal
from collections.abc import Callable

from faces import Embedded, Real
from kernels import eventually, started
from procs import send

TOLD = "until a person has seen to this"


async def test_a_killed_keeper_on_a_full_disk(sshd_host: Real, full_home: Callable[[int], None]) -> None:
    """The cell runs on meanwhile, and its end comes when there is room again."""
    full_home(4 << 20)
    config = {"env": {"PYTHONDONTWRITEBYTECODE": "1"}}  # so that it is known what the disk holds
    async with started(sshd_host.location(), config) as kernel:
        cell = kernel.begin(
            "import os, time\nprint('begun')\nwhile not os.path.exists('/proc/self/cwd/go'): time.sleep(0.05)\n6 * 7"
        )
        await cell.until(lambda: "begun" in cell.stdout)
        (running,) = [each for each in sshd_host.processes() if each.pid == kernel.status["pid"]]
        (keeper,) = [each for each in sshd_host.processes() if each.pid == running.ppid]
        assert sshd_host.run(["sh", "-c", "head -c 10000000 /dev/zero > filler"]).returncode != 0
        send(keeper, signal.SIGKILL)
        await cell.until(lambda: TOLD in cell.stderr)
        assert "No space left on device" in cell.stderr
        assert "Make room there: ssh " in cell.stderr
        assert cell.reply is None
        (sshd_host.home / "filler").unlink()
        await eventually(lambda: kernel.status["step"] == "attached")
        sshd_host.write("go", "")
        await cell.done()
        assert cell.value == "42"
        assert cell.stderr.count(TOLD) == 1
        assert TOLD not in (await kernel.run("1")).stderr


async def test_a_host_that_wants_a_sign_in(embedded_host: Embedded) -> None:
    """Of two cells that wait the first one is told, and none once the person has signed in."""
    async with started(embedded_host.location()) as kernel:
        embedded_host.server.behave(refuse_auth=True)
        embedded_host.cut()
        await eventually(lambda: "Permission denied" in str(kernel.status))
        cell = kernel.begin("6 * 7")
        await cell.until(lambda: TOLD in cell.stderr)
        assert "the server takes keys alone" in cell.stderr
        behind = kernel.begin("7 * 7")
        embedded_host.server.behave(refuse_auth=False)
        assert (await cell.done()).value == "42"
        assert (await behind.done()).value == "49"
        assert (cell.stderr.count(TOLD), behind.stderr) == (1, "")

        embedded_host.server.behave(refuse_auth=True)
        embedded_host.cut()
        await eventually(lambda: "Permission denied" in str(kernel.status))
        embedded_host.server.behave(refuse_auth=False)
        await eventually(lambda: kernel.status["step"] == "attached")
        assert (await kernel.run("1")).stderr == ""  # nobody has to do anything any more
