"""What earlier versions left on a host goes when a new one comes, unless somebody uses it, or has of late."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
from faces import Real
from kernels import started

from albedo_provisioner.bundle.in_use import LOCK, UNUSED
from albedo_provisioner.hosts.staging import Bundle, bundle

LONG_AGO = UNUSED + 3600


def age(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


def leave_old(host: Real, name: str, seconds: float, locked: bool = True) -> Path:
    """Leave what a version before might have left."""
    file = host.write(f".albedo-remote/{name}/albedo_bundle/__init__.py", "")
    folder = file.parent.parent
    if locked:
        host.write(f".albedo-remote/{name}/{LOCK}", "")
    age(folder, seconds)
    return folder


async def put_anew(host: Real, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have a kernel be started by a version of ours that the host does not have yet, and end."""
    other = Bundle("f" * 16, bundle().archive)
    shutil.rmtree(host.home / ".albedo-remote" / other.digest, ignore_errors=True)
    with monkeypatch.context() as patch:
        patch.setattr("albedo_provisioner.hosts.visit.bundle", lambda: other)
        async with started(host.location()):
            pass
    return host.home / ".albedo-remote" / other.digest


async def test_only_what_nobody_used_for_long_goes(sshd_host: Real, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = sshd_host.home / ".albedo-remote" / bundle().digest
    async with started(sshd_host.location()) as kernel:
        await kernel.run("from albedo_bundle import run; job = run('sleep', '600')")
        assert time.time() - ours.stat().st_mtime < 60
        age(ours, LONG_AGO)  # as for a kernel that runs for longer, on a disk that notes no times
        old, young = leave_old(sshd_host, "0" * 16, LONG_AGO), leave_old(sshd_host, "1" * 16, UNUSED - 3600)
        # Of versions that held no lock nothing is known while there are kernels.
        before_locks = leave_old(sshd_host, "2" * 16, LONG_AGO, locked=False)
        half = leave_old(sshd_host, "3" * 16 + ".12.ab", 2 * 86400, locked=False)
        arriving = leave_old(sshd_host, "4" * 16 + ".12.ab", 60, locked=False)
        foreign = leave_old(sshd_host, "notes", LONG_AGO)
        new = await put_anew(sshd_host, monkeypatch)
        there = {path for path in new.parent.iterdir() if path.name not in ("run", "wheels")}
        assert there == {ours, new, young, before_locks, arriving, foreign}
        assert not old.exists()
        assert not half.exists()
        # Its kernel and its jobs' supervisor hold it, each for itself.
        holders = {each.pid for each in sshd_host.processes() if str(ours / LOCK) in _open_files(each.pid)}
        assert await kernel.value("import os; os.getpid()") in map(str, holders)
        assert len(holders) == 2
        await kernel.run("job.stop()")
    age(ours, LONG_AGO)
    age(new, LONG_AGO)
    shutil.rmtree(foreign)
    shutil.rmtree(arriving)
    again = await put_anew(sshd_host, monkeypatch)
    assert {path for path in again.parent.iterdir() if path.name not in ("run", "wheels")} == {again, young}


def _open_files(pid: int) -> list[str]:
    folder = Path(f"/proc/{pid}/fd")
    return [os.readlink(each) for each in folder.iterdir()]
