"""Compiled files that a full disk has cut short: ours mend themselves, and the user's own are told, with what to do."""

from __future__ import annotations

import asyncio
import importlib.util
import marshal
import os
import re
import shutil
from pathlib import Path

import pytest
from bare import Bare
from crash import albedo
from faces import Host, Real
from kernels import started

from albedo_provisioner import AsyncHosts
from albedo_provisioner.errors import KernelStartError


def compiled(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.pyc"))


def cut(path: Path) -> None:
    """Leave what a full disk would: the header, and a part of the rest."""
    with path.open("r+b") as file:
        file.truncate(16 + (path.stat().st_size - 16) // 2)


def unreadable(path: Path) -> bool:
    try:
        marshal.loads(path.read_bytes()[16:])
    except (EOFError, ValueError, TypeError):
        return True
    return False


async def job_says(host: Host, config: dict[str, str]) -> str:
    """Start a kernel and a job, which has a process of ours of its own, and return what it says."""
    async with started(host.location(), config) as kernel:
        code = "from albedo_bundle import run\njob = run('echo', 'works'); job.wait(); print(job.output)"
        return (await (kernel.begin(code)).done()).stdout


@pytest.mark.timeout(300)
async def test_what_we_put_on_a_host_mends_itself(bare_host: Bare) -> None:
    """The bundle and the packages: all their compiled files are cut, a kernel starts, has its jobs, and `doctor` finds
    nothing that would keep it from that.
    """
    assert "works" in await job_says(bare_host.host, bare_host.config)
    ours = bare_host.host.home / ".albedo-remote"
    files = compiled(ours)
    assert {path.relative_to(ours).parts[0] for path in files} >= {"wheels"}
    assert [path for path in files if path.name.startswith("supervisor.")]
    for path in files:
        cut(path)
    assert all(map(unreadable, files))

    assert "works" in await job_says(bare_host.host, bare_host.config)
    left = {path.name.split(".")[0] for path in compiled(ours) if unreadable(path)}
    assert not left & {"kernelapp", "ipkernel", "launcher", "keeper", "supervisor", "entry", "cells"}

    for path in files:
        if path.exists() and not unreadable(path):
            cut(path)
    found = await AsyncHosts().diagnose(bare_host.host.location(), python=str(bare_host.python))
    assert [finding for finding in found.findings if finding.blocks] == []


async def test_what_is_the_users_own_is_told(sshd_host: Real) -> None:
    """By the start, by `add` and by `doctor`: which file, and what to do; after that, it works."""
    profile = (sshd_host.home / ".profile").read_text()
    sshd_host.write(".profile", f"{profile}export PYTHONPATH=~/mine\n")
    mine = sshd_host.make_folder("mine")
    for name in ("comm", "tornado"):  # a kernel imports the first one at once, the other one later
        found = importlib.util.find_spec(name)
        assert found is not None
        assert found.origin is not None
        shutil.copytree(Path(found.origin).parent, mine / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in mine.rglob("*"):
        os.chown(path, sshd_host.account.uid, sshd_host.account.gid)
    sshd_host.run(
        [str(sshd_host.python), "-c", "import sys; sys.path.insert(0, 'mine'); import comm, tornado.platform.asyncio"]
    )
    for name in ("comm/__pycache__/base_comm", "platform/__pycache__/asyncio"):
        (file,) = mine.rglob(f"{name}.*.pyc")
        cut(file)
        words = f"a compiled file is cut short, as by a full disk; this mends it: rm {file}"
        with pytest.raises(KernelStartError, match=re.escape(words)):
            async with started(sshd_host.location()):
                pass
        diagnosis = await AsyncHosts().diagnose(str(sshd_host.alias))
        assert [finding.check for finding in diagnosis.findings if finding.blocks] == ["packages"]
        (packages,) = [finding for finding in diagnosis.findings if finding.check == "packages"]
        assert words in packages.text
        assert words in await asyncio.to_thread(albedo, "add", sshd_host.location(), status=1)
        assert unreadable(file)  # it is the user's, so nothing was done about it
        file.unlink()
    async with started(sshd_host.location()) as kernel:
        assert await kernel.value("1 + 1") == "2"
