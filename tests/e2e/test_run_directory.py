"""A kernel's run directory on its host is removed while the kernel lives: that ends nobody."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import stat

from crash import listed
from faces import Embedded, Host, keeper_of
from kernels import eventually, started
from procs import alive, send


class TestRunDirectory:
    """Somebody removes it, or all of `~/.albedo-remote`, while the kernel is at work."""

    async def test_it_is_made_anew_and_the_kernel_goes_on(self, remote_host: Host) -> None:
        """K6, L1: neither the kernel nor its keeper has ended."""
        async with started(remote_host.location()) as kernel:
            pid = int(await kernel.value("x = 5\nimport os\nos.getpid()"))
            folder = remote_host.home / ".albedo-remote"
            kernel_id = kernel.manager.provisioner.kernel_id  # type: ignore[union-attr]
            place = folder / "run" / kernel_id
            for gone in (place, folder, place / "keeper"):
                assert remote_host.run(["rm", "-r", str(gone)]).returncode == 0
                remote_host.cut()
                assert await kernel.value("x, os.getpid()", 30) == f"(5, {pid})"
                assert (place / "keeper").is_socket()
                assert {stat.S_IMODE(each.stat().st_mode) for each in (place, place.parent, folder)} == {0o700}
                assert {stat.S_IMODE(file.stat().st_mode) & 0o77 for file in place.iterdir() if file.is_file()} == {0}
            assert remote_host.run(["rm", "-r", str(place)]).returncode == 0
            (found,) = await asyncio.to_thread(listed)
            assert (found["kernel_id"], found["state"], found["pid"]) == (kernel_id, "idle", pid)

            cell = kernel.begin("print('begun', flush=True)\nimport time\ntime.sleep(600)")
            await cell.until(lambda: cell.stdout)
            send(keeper_of(remote_host), signal.SIGKILL)
            await cell.done()
            assert cell.reply is not None
            assert "nothing could reach it, and it was ended" in cell.reply["evalue"]
            assert not alive(pid)
            await kernel.manager.restart_kernel(now=True)
            assert await kernel.value("'x' in globals()") == "False"
            assert remote_host.run(["rm", "-r", str(place)]).returncode == 0

    async def test_a_restart_in_a_place_that_was_made_anew_can_be_adopted(self, embedded_host: Embedded) -> None:
        """L1, K6."""
        async with started(embedded_host.location()) as kernel:
            place = embedded_host.home / ".albedo-remote/run"
            assert embedded_host.run(["rm", "-r", str(place)]).returncode == 0
            await kernel.manager.restart_kernel(now=True)
            assert await kernel.value("x = 6\nx") == "6"
            send(keeper_of(embedded_host), signal.SIGKILL)
            await eventually(lambda: kernel.status["connections"] == 2)
            assert await kernel.value("x") == "6"

    async def test_a_kernel_whose_place_another_keeper_has_taken_ends(self, embedded_host: Embedded) -> None:
        """K6: nothing leads to it any more."""
        async with started(embedded_host.location()) as kernel:
            cell = kernel.begin("print('begun', flush=True)\nimport time\ntime.sleep(600)")
            await cell.until(lambda: cell.stdout)
            (place,) = (embedded_host.home / ".albedo-remote/run").iterdir()
            place.rename(embedded_host.home / "away")
            place.mkdir()
            with socket.socket(socket.AF_UNIX) as another:
                another.bind(str(place / "keeper"))
                another.listen()
                await cell.done(30)
            assert cell.reply is not None
            assert "another keeper has its run directory" in cell.reply["evalue"]
            assert not await kernel.manager.is_alive()
            shutil.rmtree(place)
            shutil.rmtree(embedded_host.home / "away")

    async def test_a_kernel_whose_home_was_removed_ends(self, embedded_host: Embedded) -> None:
        """K6: an account that is taken away leaves no process; its keeper looks every ten seconds."""
        async with started(embedded_host.location()) as kernel:
            cell = kernel.begin("print('begun', flush=True)\nimport time\ntime.sleep(600)")
            await cell.until(lambda: cell.stdout)
            away = embedded_host.home.with_name("away")
            embedded_host.home.rename(away)
            try:
                await cell.done(30)
            finally:
                away.rename(embedded_host.home)
            assert cell.reply is not None
            assert "its home was removed" in cell.reply["evalue"]
            assert not await kernel.manager.is_alive()
            shutil.rmtree(embedded_host.home / ".albedo-remote/run")
