"""Programs of this host run side by side, each for a limited time and a limited amount of output."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

MOST_OUTPUT = 32 << 20
"""Bytes of output that a program may have."""

_MOST_WORDS = 64 << 10
_READ = 1 << 18


@dataclass
class Outcome:
    """What came of a program.

    Attributes:
        status: its exit status; None when it could not be started or did not come to its end.
        output: what it printed, all of it if `status` is not None.
        words: what it complained of, or why it has no status, in a line; may be empty.
        complaints: all the lines that it complained of, as far as they are not too many.
    """

    status: int | None = None
    output: bytes = b""
    words: str = ""
    complaints: bytes = b""

    @property
    def done(self) -> bool:
        """It has done what it was asked for."""
        return self.status == 0


@dataclass
class _Running:
    process: subprocess.Popen[bytes]
    output: bytearray = field(default_factory=bytearray)
    complaint: bytearray = field(default_factory=bytearray)
    why: str = ""


def run_all(
    commands: Mapping[str, Sequence[str | bytes]],
    folder: bytes,
    environment: Mapping[str, str],
    until: float,
    client: int | None = 0,
) -> dict[str, Outcome]:
    """Run programs side by side and return what came of each, by name. None of them is left running.

    Args:
        commands: their arguments.
        folder: where they run.
        environment: their environment.
        until: when they are killed, by `time.monotonic`.
        client: a descriptor that comes to its end when nobody wants the answer any more; then everything ends.
    """
    outcomes: dict[str, Outcome] = {}
    running: dict[str, _Running] = {}
    with selectors.DefaultSelector() as selector:
        if client is not None:
            selector.register(client, selectors.EVENT_READ, None)
        try:
            for name, command in commands.items():
                try:
                    process = subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        cwd=folder,
                        env=environment,
                        start_new_session=True,  # so that what it starts in turn ends with it
                    )
                except OSError as error:
                    program = os.fsdecode(command[0])
                    outcomes[name] = Outcome(words=f"{program}: {(error.strerror or str(error)).lower()}")
                    continue
                each = running[name] = _Running(process)
                assert process.stdout is not None
                assert process.stderr is not None
                selector.register(process.stdout, selectors.EVENT_READ, (each, each.output))
                selector.register(process.stderr, selectors.EVENT_READ, (each, each.complaint))
            _read(selector, list(running.values()), until, client)
            for name, each in running.items():
                outcomes[name] = _outcome(each, until)
        finally:
            for each in running.values():
                _kill(each.process)
                for stream in (each.process.stdout, each.process.stderr):
                    if stream is not None:
                        stream.close()
    return outcomes


def _read(selector: selectors.BaseSelector, running: list[_Running], until: float, client: int | None) -> None:
    open_streams = 2 * len(running)
    while open_streams:
        left = until - time.monotonic()
        if left <= 0:
            break
        for key, _ in selector.select(left):
            data = os.read(key.fd, _READ)
            if key.data is None:
                if not data:
                    sys.exit(0)  # the client has gone
                continue
            each, buffer = key.data
            if not data:
                selector.unregister(key.fileobj)
                open_streams -= 1
            elif buffer is each.complaint:
                buffer += data
                del buffer[:-_MOST_WORDS]
            elif len(buffer) + len(data) > MOST_OUTPUT:
                each.why = f"its output is longer than {MOST_OUTPUT} bytes"
                _kill(each.process)
            else:
                buffer += data
    for each in running:
        if open_streams and each.process.poll() is None and not each.why:
            each.why = "it took too long"


def _outcome(each: _Running, until: float) -> Outcome:
    if not each.why:
        try:
            # Its output has ended; it does so itself within a moment.
            status = each.process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            each.why = "it took too long"
        else:
            words = bytes(each.complaint).decode("utf-8", "replace").strip()
            return Outcome(status, bytes(each.output), words.splitlines()[0] if words else "", bytes(each.complaint))
    return Outcome(words=each.why)


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:  # not waited for yet, so the group is still its own
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
