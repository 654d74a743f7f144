"""Embedded hosts that start at once: their processes are forks of one that has everything imported."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
from multiprocessing import forkserver, reduction, resource_tracker
from multiprocessing.context import ForkServerProcess
from typing import IO, Any, cast

from albedo_provisioner.demo import sshd
from albedo_provisioner.demo.server import EmbeddedHost

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["albedo_provisioner.demo.sshd"])


def prepare() -> list[int]:
    """Start what forks, and return the ids of the processes that multiprocessing keeps for it.

    Its socket lies in the temporary directory of this moment, which has to stay.
    """
    forkserver.ensure_running()
    kept = (forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid)  # type: ignore[attr-defined]
    return [pid for pid in kept if pid is not None]


class ForkedHost(EmbeddedHost):
    """An embedded host that starts at once; in all else it is as any other."""

    def _spawn(self) -> subprocess.Popen[str]:
        taken, given = os.pipe(), os.pipe()
        with (self.root / "log").open("wb") as log:
            streams = [reduction.DupFd(fd) for fd in (taken[0], given[1], log.fileno())]
            child = _forks.Process(target=_serve, args=(str(self.root), dict(os.environ), streams), daemon=True)
            child.start()
        os.close(taken[0])
        os.close(given[1])
        return cast("subprocess.Popen[str]", _Forked(child, taken[1], given[0]))


def _serve(root: str, environ: dict[str, str], streams: list[Any]) -> None:
    os.setsid()
    os.chdir(root)
    os.environ.clear()
    os.environ.update(environ)
    for number, stream in enumerate(streams):
        os.dup2(stream.detach(), number)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode, closefd=False) for number, mode in enumerate("rww"))
    asyncio.run(sshd.serve(root))


class _Forked:
    """As much of `subprocess.Popen` as an embedded host uses."""

    def __init__(self, child: ForkServerProcess, stdin: int, stdout: int) -> None:
        assert child.pid is not None
        self._child = child
        self.pid = child.pid
        self.stdin: IO[str] = os.fdopen(stdin, "w", encoding="utf-8")
        self.stdout: IO[str] = os.fdopen(stdout, encoding="utf-8")

    def wait(self, timeout: float | None = None) -> int:
        self._child.join(timeout)
        if self._child.exitcode is None:
            raise subprocess.TimeoutExpired(["embedded host"], timeout or 0)
        return self._child.exitcode

    def kill(self) -> None:
        self._child.kill()
