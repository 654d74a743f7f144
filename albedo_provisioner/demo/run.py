"""`jupyter albedo demo`: a kernel on a host that comes along, a notebook, and a link that is cut in the middle of it.

Everything is real but the distance: the embedded host is an ssh server in a process of its own with a fresh home, the
kernelspec is written as `jupyter albedo add` writes it, nbclient runs the notebook. What is claimed at the end has been
looked up; a claim that does not hold is named, and the exit status is 1.

All files of this side lie below the embedded host's directory: that host removes it even when this process is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

from .. import kernelspecs
from ..errors import AlbedoError
from ..hosts.check import check_location
from ..hosts.io_thread import IOThread
from ..light_imports import for_notebooks
from ..location import Location
from . import leftovers
from .screen import Screen
from .server import EmbeddedHost

TITLE = "A kernel on another host, a notebook on it, and a link that is cut on purpose"

FOLDER = "project"
"""The folder in the host's home that the kernel runs in."""


def main(serve: bool = False, *, hold: int | None = None) -> int:
    """Run the demonstration.

    Args:
        serve: only keep the host up, for JupyterLab, until Ctrl-C.
        hold: bytes of output that the host may hold while the link is down; None for the product's own 64 MiB. With
            very few the demonstration shows what a loss looks like, and fails.

    Returns:
        The exit status: 0 when all was as it should be, 1 when something was not (a line on standard error says what),
        130 after Ctrl-C.

    Raises:
        AlbedoError: something could not be done at all; nothing is left.
    """
    screen = Screen(sys.stdout)
    path_before = os.environ.get("JUPYTER_PATH", "")
    host: EmbeddedHost | None = None
    began = time.monotonic()
    with _kept_messages() as messages:
        try:
            try:
                screen.say(" A host for kernels, inside this machine" if serve else " " + TITLE)
                screen.say()
                with _interrupts_later():
                    host = _start_host(screen)
                with _environment(host):
                    failures = _serve(screen, host, path_before) if serve else _demonstrate(screen, host, hold)
            finally:
                screen.clear()
                if host is not None:
                    with _interrupts_later():
                        host.close()
        except KeyboardInterrupt:
            return _interrupted(screen, host, "" if serve else "Interrupted. ")
    failures += [f"left on this machine: {each}" for each in leftovers.of_demo(host)]
    if failures:
        return _failed(failures, messages)
    screen.say()
    screen.say(f" Nothing was lost and nothing is left. {time.monotonic() - began:.1f} s in all.")
    screen.say(" jupyter albedo add HOST:~/FOLDER   puts a host of yours into the kernel picker")
    screen.say(" jupyter albedo demo --serve        keeps this one up for JupyterLab")
    return 0


def _interrupted(screen: Screen, host: EmbeddedHost | None, what: str) -> int:
    left = leftovers.of_demo(host) if host is not None else []
    if left:
        print(f"jupyter albedo demo: interrupted; this is left: {'; '.join(left)}", file=sys.stderr)
    else:
        screen.say(f" {what}The host, its processes and all files of the demo are gone.")
    return 130


def _failed(failures: list[str], messages: list[str]) -> int:
    sys.stdout.flush()
    print("jupyter albedo demo: this was not as it should be:", file=sys.stderr)
    for failure in failures:
        print(f"  {failure}", file=sys.stderr)
    if messages:
        print("what was logged last:", file=sys.stderr)
        for message in messages[-5:]:
            print(f"  {message}", file=sys.stderr)
    return 1


# ------------------------------------------------------------------------------------------------------------ steps


def _start_host(screen: Screen) -> EmbeddedHost:
    screen.under_way("host", "an ssh server starts in this machine ...")
    began = time.monotonic()
    IOThread.get()  # it would be needed soon, and is made here where Ctrl-C cannot come in between
    try:
        host = EmbeddedHost()
    except (RuntimeError, OSError) as error:
        raise AlbedoError(f"The demo's host could not be started: {error}") from error
    seconds = time.monotonic() - began
    screen.step("host", f"{host.alias}: an ssh server on 127.0.0.1:{host.port}, fresh home", seconds=seconds)
    return host


def _data_directory(host: EmbeddedHost) -> Path:
    """Return the Jupyter data directory of the demonstration: what `JUPYTER_PATH` has to name."""
    return host.root / "jupyter"


def _add_kernelspec(screen: Screen, host: EmbeddedHost) -> kernelspecs.Kernelspec:
    """Do what `jupyter albedo add demo-host:~/project` does, in the demonstration's own data directory.

    Raises:
        AlbedoError: the host cannot be used.
    """
    location = Location.parse(f"{host.alias}:~/{FOLDER}")
    screen.under_way("connect", f"{location} ...")
    began = time.monotonic()
    (host.home / FOLDER).mkdir()
    checked = check_location(location)
    name = kernelspecs.default_display_name(checked.location, checked.home)
    kernelspec = kernelspecs.add(kernelspecs.Settings(checked.location), display_name=name)
    screen.step("connect", f"kernelspec {kernelspec.name} for {location}", seconds=time.monotonic() - began)
    return kernelspec


def _demonstrate(screen: Screen, host: EmbeddedHost, hold: int | None) -> list[str]:
    """Show it all; return what was not as it should be."""
    kernelspec = _add_kernelspec(screen, host)
    # nbclient and what it needs take a while to import; the first lines are on the screen by then.
    screen.under_way("kernel", "...")
    with _interrupts_later(), for_notebooks():
        from .show import Show
    with asyncio.Runner() as runner:
        with _interrupts_later():
            runner.get_loop()
        show = Show(screen, host, kernelspec, hold)
        runner.run(show.run())
    return show.failures


def _serve(screen: Screen, host: EmbeddedHost, path_before: str) -> list[str]:
    """Keep the host up until Ctrl-C; return only when the host has ended by itself."""
    kernelspec = _add_kernelspec(screen, host)
    path = os.pathsep.join(filter(None, [str(_data_directory(host)), path_before]))
    screen.say()
    screen.say(" In another terminal, with the same Python environment:")
    screen.say()
    # `env` and not `export`: the same in every shell.
    screen.say(f"env ALBEDO_SSH_CONFIG={shlex.quote(str(host.ssh_config))} \\")
    screen.say(f"    JUPYTER_PATH={shlex.quote(path)} \\")
    screen.say("    jupyter lab")
    screen.say()
    screen.say(f' and choose "{kernelspec.display_name}" there. In place of the last line,')
    screen.say(" this runs a notebook without JupyterLab:")
    screen.say()
    screen.say(f"    jupyter execute --kernel_name={kernelspec.name} NOTEBOOK.ipynb")
    screen.say()
    screen.say(" Ctrl-C ends the host, its kernels and all files in its home.")
    os.waitid(os.P_PID, host.pid, os.WEXITED | os.WNOWAIT)
    return [f"{host.alias} has ended by itself"]


# ----------------------------------------------------------------------------------------------------- surroundings


@contextlib.contextmanager
def _environment(host: EmbeddedHost) -> Iterator[None]:
    """Have this process find the host, and put what Jupyter writes into the demonstration's own directory."""
    data = _data_directory(host)
    (data / "runtime").mkdir(mode=0o700, parents=True)
    wanted: Mapping[str, str] = {
        "ALBEDO_SSH_CONFIG": str(host.ssh_config),
        "ALBEDO_HOME": str(data / "albedo"),
        "JUPYTER_DATA_DIR": str(data),
        "JUPYTER_RUNTIME_DIR": str(data / "runtime"),
        "JUPYTER_CONFIG_DIR": str(data / "config"),
        "JUPYTER_PATH": "",
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _interrupts_later() -> Iterator[None]:
    """Let Ctrl-C take effect at the end: a host half made or half removed would be left behind by it.

    A loop or a module half made is nobody's loss, but Python complains about it at exit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Ctrl-C does not come here
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


class _Keep(logging.Handler):
    """Keeps messages for later."""

    def __init__(self, messages: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(f"{record.name}: {record.getMessage()}")


@contextlib.contextmanager
def _kept_messages() -> Iterator[list[str]]:
    """Keep warnings and log messages of all libraries off the screen; they are shown if something fails."""
    messages: list[str] = []
    handler = _Keep(messages)
    root = logging.getLogger()
    root.addHandler(handler)
    logging.captureWarnings(True)
    try:
        with warnings.catch_warnings():
            yield messages
    finally:
        logging.captureWarnings(False)
        root.removeHandler(handler)
