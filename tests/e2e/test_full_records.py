"""A full disk below `ALBEDO_HOME`: kernels are listed and ended, and an end that waits is not forgotten."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from crash import albedo, crash, listed
from faces import Embedded
from kernels import PATIENCE, add_kernelspec, eventually, started
from procs import alive, wait_until

from albedo_provisioner.errors import ConfigError
from albedo_provisioner.kernels.records import ENDING, KernelRecords

if TYPE_CHECKING:
    from conftest import Workspace


@pytest.fixture
def fill(workspace: Workspace) -> Iterator[Callable[[], Path]]:
    """Have `ALBEDO_HOME` on a small disk; return a function that fills it, and returns the file to remove again."""
    home = workspace.albedo_home
    home.mkdir(mode=0o700)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k,mode=700", "tmpfs", home], check=False).returncode:
        pytest.skip("a disk cannot be mounted here")

    def fill_up() -> Path:
        with contextlib.suppress(OSError), (home / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))
        assert shutil.disk_usage(home).free == 0
        return home / "filler"

    yield fill_up
    subprocess.run(["umount", "--lazy", home], check=True)


async def test_an_end_that_is_asked_for_while_the_host_is_out_of_reach_is_on_record(
    embedded_host: Embedded, fill: Callable[[], Path], workspace: Workspace
) -> None:
    """K6, L5: else the notebook's next server would go on with the kernel."""
    async with started(embedded_host.location()) as kernel:
        pid = kernel.status["pid"]
        filler = fill()
        (found,) = await asyncio.to_thread(listed)
        assert (found["pid"], found["state"], found["on_record"]) == (pid, "idle", True)
        embedded_host.down()
        await eventually(lambda: kernel.status["step"] == "reattaching")
        await kernel.manager.shutdown_kernel()
        (record,) = KernelRecords().all()
        assert record.state == ENDING
        (found,) = await asyncio.to_thread(listed)
        assert (found["state"], found["note"]) == ("ending", "host out of reach")
        with pytest.raises(ConfigError, match="Make room in"):
            KernelRecords().note_ending(record.kernel_id, "was ended")
        filler.unlink()
        assert KernelRecords().claim(record.location, record.notebook, None) is None
        assert alive(pid)
        embedded_host.up()
        await eventually(lambda: not KernelRecords().all() and not list(workspace.albedo_home.glob("*.ending")))
        await eventually(lambda: embedded_host.leftovers() == [])


def test_a_kernel_is_stopped(embedded_host: Embedded, fill: Callable[[], Path], workspace: Workspace) -> None:
    crash(add_kernelspec(embedded_host.location()), workspace.root / "a.ipynb", [(None, "print('BEGUN')")])
    (record,) = KernelRecords().all()
    filler = fill()
    assert "Ended" in albedo("stop", record.kernel_id)
    wait_until(lambda: not embedded_host.processes(), PATIENCE, "nothing is left on the host")
    (found,) = listed()  # that it has ended could not be noted
    assert found["state"] == "ending"
    filler.unlink()
    (found,) = listed()
    assert (found["state"], found["note"]) == ("ending", "ended now")
    assert listed() == []
