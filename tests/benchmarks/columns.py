"""A column of the table: its host, and the client process that works on it, which is replaced when it fails."""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from . import processes
from .hosts import Host


class MeasureError(Exception):
    """A measure failed; the message says why, for the table's cell."""


class Column:
    """One column.

    Args:
        host: where its kernels run.
        log: file for what its client process prints.
    """

    def __init__(self, host: Host, log: Path) -> None:
        self.host = host
        self.name = host.column
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._pending = b""

    def call(self, do: str, deadline: float = 120.0, **arguments: Any) -> Any:
        """Have the client process do something; see `worker.py`.

        Raises:
            MeasureError: it failed, or took longer than `deadline` seconds; then there will be a new client process.
        """
        try:
            if self._process is None:
                self._spawn()
                self._answer(30)
            assert self._process is not None
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
            answer = self._answer(deadline)
        except (OSError, TimeoutError) as error:
            self._end()
            raise MeasureError(str(error)) from None
        if "error" in answer:
            # What state its kernel is in is not known.
            self._end()
            raise MeasureError(answer["error"])
        return answer["value"]

    def renew(self, forget: bool = False) -> None:
        """Have a new client process, and, with `forget`, a host that nobody ever visited."""
        self.close()
        if forget:
            self.host.forget_visits()
        self._spawn()
        self._answer(30)

    def close(self) -> None:
        """End the client process in order, its kernel included."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(30)
        except (OSError, subprocess.TimeoutExpired):
            pass
        self._end(by_force=self._process.poll() is None)

    @property
    def client_processes(self) -> list[psutil.Process]:
        """The client process and all that it keeps running on this side, but no kernel."""
        return [*processes.helpers(f"{self.host.mark}client"), *self.host.shared_connection]

    @property
    def host_processes(self) -> list[psutil.Process]:
        """What runs on the host beside the kernel."""
        return processes.helpers(f"{self.host.mark}host")

    def _spawn(self) -> None:
        self._pending = b""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    f"{__package__}.worker",
                    self.host.kernel,
                    str(self.host.sshd.pid if self.host.sshd else 0),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self.host.environ,
            )

    def _answer(self, seconds: float) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError(f"nothing within {seconds:g} s")
                data = self._process.stdout.read1(1 << 16)  # type: ignore[attr-defined]
                if not data:
                    raise OSError("the client process ended: " + self._last_words())
                self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "without a word"

    def _end(self, by_force: bool = True) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if by_force:
            process.kill()
            process.wait()
            # Its kernels would go on, and take processor time from the others.
            processes.end(processes.marked(self.host.mark))
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    pass  # what was to be written is of no interest any more
