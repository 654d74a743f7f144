"""`jupyter albedo run-kernel`: a kernel on its host as a local process, for clients that ignore kernel provisioners.

The kernelspecs that we write have this as their command. A client that runs it as it would run ipykernel finds a kernel
at the addresses of its connection file, and a process that stands for it: signals to it act on the kernel, and it ends
as the kernel ends. Killed outright, it leaves the kernel on its host, like a Jupyter Server that was killed.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from jupyter_client.kernelspec import KernelSpec
from jupyter_client.session import Session

from ..bundle import processes
from ..errors import AlbedoError, ConfigError
from ..hosts import io_thread
from ..kernels.connection_file import GivenAddresses
from ..kernels.relay import hand_out_the_rest, relay_at
from ..kernels.remote import RemoteKernel
from ..kernels.request import KernelRequest
from ..kernelspecs import Kernelspec, find_ours
from ..provisioner import FINISH_TIMEOUT, SIGNAL_TIMEOUT, AlbedoProvisioner
from ..workspace.serving import serve_memory

log = logging.getLogger("albedo_provisioner.kernels")

PARENT_POLL = 1.0
"""Seconds between looks at whether the client is still there, as in ipykernel."""

_TERM_GRACE = 1.0  # clients that send TERM send KILL 2.5 s later
_SILENCE_TIMEOUT = 2.0


def main(argv: Sequence[str]) -> int:
    """Start the kernel and stay for as long as it lives.

    Args:
        argv: what comes after `run-kernel`. What is not ours is for the kernel's own command line.

    Returns:
        The exit status; a kernel that was ended by a signal has this process end by the same.

    Raises:
        AlbedoError: the kernel could not be started.
    """
    parser = argparse.ArgumentParser(
        prog="jupyter albedo run-kernel", description="For kernelspecs; not for people.", allow_abbrev=False
    )
    parser.add_argument("--kernelspec", required=True, metavar="NAME")
    parser.add_argument("-f", dest="connection_file", required=True, type=Path, metavar="PATH")
    arguments, more = parser.parse_known_args(argv)
    addresses = GivenAddresses(arguments.connection_file)
    request, interrupt_mode = _request(arguments.kernelspec, addresses, more)
    process = KernelProcess(request, addresses, interrupt_mode)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Handlers run on this thread while it waits; all work is done on the I/O thread.
        signal.signal(signum, lambda signum, _: io_thread.IOThread.get().call_soon(process.signalled, signum))
    code = io_thread.run_blocking(process.run())
    hand_out_the_rest()
    return _leave(code)


def _request(name: str, addresses: GivenAddresses, arguments: Sequence[str]) -> tuple[KernelRequest, str]:
    """Return what kernel to start, by a kernelspec of ours, and how it wants to be interrupted."""
    spec: Kernelspec | None = next((found for found in find_ours() if found.name == name), None)
    if spec is None:
        raise ConfigError(
            f"There is no kernelspec {name!r} of jupyter albedo any more; `jupyter albedo list` shows those there are."
        )
    kernel_spec = KernelSpec.from_resource_dir(str(spec.directory))
    provisioner = AlbedoProvisioner(kernel_spec=kernel_spec, **spec.config)
    if provisioner.join:
        raise ConfigError(
            f"The kernelspec {name} opens a kernel that runs already, which only clients can that know kernel "
            "provisioners, such as JupyterLab."
        )
    notebook = addresses.notebook or os.environ.get("JPY_SESSION_NAME", "")
    # Of this process's environment nothing else is known to be meant for the kernel.
    given = {"JPY_SESSION_NAME": notebook.replace("$", "$$")} if notebook else {}
    request = provisioner.make_request(addresses.key, addresses.signature_scheme, given, arguments, name)
    return request, kernel_spec.interrupt_mode


def _leave(code: int) -> int:
    """End as the kernel ended: return its exit status, or die by the signal that it died by."""
    if code >= 0:
        return code
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # there is nothing to be learnt from this process's core
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    sys.stderr.flush()
    os.kill(os.getpid(), -code)
    return 128 - code


class KernelProcess:
    """One kernel as a local process: from its start to its end. Used on the I/O thread's loop.

    Args:
        request: what kernel to start.
        addresses: where the client will find it.
        interrupt_mode: "signal", or "message" for a kernel that has to be asked, also when its client sends a signal.
    """

    def __init__(self, request: KernelRequest, addresses: GivenAddresses, interrupt_mode: str) -> None:
        self._request = request
        self._addresses = addresses
        self._interrupt_mode = interrupt_mode
        self._kernel: RemoteKernel | None = None
        self._unwanted = asyncio.Event()  # set once the kernel's end is wanted
        self._code = 0  # what this process then ends with

    async def run(self) -> int:
        """Start the kernel, stay until it has ended or is to be, and see that nothing is left on its host.

        Returns:
            the exit code: minus the signal for a kernel, or a process of ours, that was ended by one.

        Raises:
            AlbedoError: it could not be started.
        """
        end = asyncio.ensure_future(self._unwanted.wait())
        watch = asyncio.ensure_future(self._watch_parent(end))
        try:
            starting = asyncio.ensure_future(
                RemoteKernel.start(self._request, relay_at(self._addresses, self._shut_down))
            )
            await asyncio.wait([starting, end], return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                starting.cancel()
                await asyncio.wait([starting])
            if starting.cancelled():
                return self._code
            self._kernel = kernel = starting.result()
            serve_memory(kernel)
            ended = asyncio.ensure_future(kernel.wait())
            await asyncio.wait([ended, end], return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                ended.cancel()
                await self._finish(kernel)
                return self._code
            await kernel.wait_for_silence(_SILENCE_TIMEOUT)
            await self._finish(kernel)
            return ended.result()
        finally:
            end.cancel()
            watch.cancel()

    def signalled(self, signum: int) -> None:
        """Take a signal: an interrupt is for the kernel's cell, the others end the kernel."""
        if signum != signal.SIGINT:
            self._want_end(-signum)
        elif self._kernel is not None:
            task = asyncio.ensure_future(self._interrupt(self._kernel))
            task.add_done_callback(lambda _: None)

    async def _interrupt(self, kernel: RemoteKernel) -> None:
        try:
            if self._interrupt_mode == "message":
                session = Session(key=self._request.key, signature_scheme=self._request.signature_scheme)
                message = session.serialize(session.msg("interrupt_request", {}), [b"albedo-interrupt"])
                await kernel.interrupt_by(message, SIGNAL_TIMEOUT)
            else:
                await kernel.signal(signal.SIGINT, SIGNAL_TIMEOUT)
        except AlbedoError as error:
            log.warning("The kernel was not interrupted: %s", error)

    def _shut_down(self) -> None:
        """A client asked a kernel to end that cannot be asked: what it would have done then is done here."""
        self._want_end(0)

    def _want_end(self, code: int) -> None:
        if not self._unwanted.is_set():
            self._code = code
            self._unwanted.set()

    async def _finish(self, kernel: RemoteKernel) -> None:
        try:
            timeout = FINISH_TIMEOUT if kernel.away is None else 0.0
            report = await kernel.finish(_TERM_GRACE, timeout)
        except AlbedoError as error:
            log.warning("It is not proven that nothing is left of the kernel: %s", error)
            return
        for process in [*report["survivors"], *report["foreign"]]:
            log.warning(
                "Process %s (%s) is left on %s: %s", process["pid"], process["name"], kernel.host, process["why"]
            )

    async def _watch_parent(self, wanted: asyncio.Future[Literal[True]]) -> None:
        """End the kernel when the client that named itself in `JPY_PARENT_PID` has ended, unless its end is `wanted`
        before.

        As with ipykernel, a client that does not name itself wants a kernel that outlives it. One that is not our
        parent has started us by way of another program, such as a shell, and is watched itself.
        """
        named = os.environ.get("JPY_PARENT_PID", "")
        pid = int(named) if named.isdecimal() else 0
        if pid <= 1:
            return
        parent = os.getppid()
        client = processes.identify(pid) if pid != parent else None
        while processes.still_alive([client]) if client is not None else os.getppid() == parent:
            await asyncio.wait([wanted], timeout=PARENT_POLL)
            if wanted.done():
                return
        log.warning("The client of this kernel has ended, so the kernel ends too.")
        self._want_end(1)
