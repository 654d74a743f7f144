"""Hosts whose disks are small, full, or run no programs: a start works there, or says in a sentence why it does not."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from faces import Real
from jupyter_client.manager import AsyncKernelManager
from kernels import add_kernelspec, started
from leaks import settled

from albedo_provisioner.errors import PackagesMissingError

if TYPE_CHECKING:
    from conftest import Workspace


@pytest.fixture
def small_temp(sshd_host: Real) -> Iterator[Path]:
    """Have the account's temporary files go to a disk that is full and runs no programs, and return its directory."""
    account, temp = sshd_host.account, sshd_host.make_folder("temporary")
    options = f"size=4k,noexec,nodev,nosuid,uid={account.uid},gid={account.gid},mode=700"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(temp)], check=False).returncode:
        pytest.skip("a disk cannot be mounted here")
    profile = (sshd_host.home / ".profile").read_text()
    sshd_host.write(".profile", f"{profile}export TMPDIR={temp}\n")
    sshd_host.run(["sh", "-c", f"head -c 10000 /dev/zero > {temp}/filler"])
    yield temp
    subprocess.run(["umount", "--lazy", str(temp)], check=True)


async def test_a_full_temporary_directory_that_runs_nothing_is_no_obstacle(sshd_host: Real, small_temp: Path) -> None:
    """K8: not even below a home whose path is so long that the sockets have to lie there."""
    async with started(sshd_host.location()) as kernel:
        assert await kernel.json("os.environ['TMPDIR']", "import os") == str(small_temp)
        assert await kernel.value("1 + 1") == "2"
    home = sshd_host.make_folder(f"long {'h' * 100}/{'ö' * 60}")
    profile = (sshd_host.home / ".profile").read_text()
    sshd_host.write(".profile", f"{profile}export HOME='{home}'\n")
    async with started(f"{sshd_host.alias}:~") as kernel:
        assert await kernel.json("os.getcwd()", "import os") == str(home)
    assert settled(lambda: [str(path) for path in (home / ".albedo-remote").glob("run/*")]) == []
    assert os.listdir(small_temp) == ["filler"]


async def test_a_home_that_runs_nothing_is_enough_for_an_interpreter_that_has_all(
    sshd_host: Real, full_home: Callable[[int], None], workspace: Workspace
) -> None:
    """And one that has not is refused before anything is fetched or sent."""
    full_home(16 << 20)
    await asyncio.to_thread(subprocess.run, ["mount", "-o", "remount,noexec", sshd_host.home], check=True)
    async with started(sshd_host.location(), {"python": str(sshd_host.python)}) as kernel:
        assert await kernel.value("1 + 1") == "2"
    manager = AsyncKernelManager(kernel_name=add_kernelspec(sshd_host.location(), {"python": "/usr/bin/python3"}))
    with pytest.raises(PackagesMissingError) as caught:
        await manager.start_kernel()
    assert "noexec" in str(caught.value)
    assert str(sshd_host.alias) in str(caught.value)
    assert not (sshd_host.home / ".albedo-remote" / "wheels").exists()
    assert not (workspace.albedo_home / "wheels").exists()
    assert settled(sshd_host.leftovers) == []
