"""The provisioner: how `jupyter_client` starts, watches and ends a kernel on another host.

Thin on purpose: each method is a few lines over `kernels/`, run on the I/O thread, because `jupyter_client` calls from
running loops, from blocking callers and from several loops in turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import time
from typing import TYPE_CHECKING, Any, NoReturn, cast

from jupyter_client.connect import KernelConnectionInfo

from .errors import AlbedoError, KernelGoneError, LinkAwayError
from .host_answers import HostAnswers
from .hosts import io_thread
from .kernel_settings import KernelSettings, given_by_caller
from .kernels.endpoints import Endpoints
from .kernels.front import FrontMaker
from .kernels.relay import relay_at
from .kernels.remote import SHUTDOWN_PATIENCE, RemoteKernel
from .kernels.request import KernelRequest
from .location import Location
from .notebook_name import NotebookName
from .pending_starts import forget_if_it_fails
from .running_kernels import kernel_of_before, open_running
from .server_exit import server_info_file, server_is_stopping
from .workspace.serving import serve_memory

if TYPE_CHECKING:
    from .hosts.progress import Progress

SIGNAL_TIMEOUT = 10.0
"""Seconds that a signal's confirmation is waited for. It is delivered, exactly once, even when it takes longer."""

FINISH_TIMEOUT = 10.0
"""Seconds that an ended kernel's host is given to prove that nothing is left."""

_END_INTERVAL = 0.5
"""Seconds for which a question whether the kernel lives waits for an end that was asked for."""


class AlbedoProvisioner(KernelSettings):
    """Runs a kernel in a folder on another host over ssh (or in one of this machine), kept there by a keeper."""

    def __init__(self, **kwargs: Any) -> None:
        forget_if_it_fails(kwargs.get("parent"))
        self._kernel: RemoteKernel | None = None
        self._request: KernelRequest | None = None
        self._waited = False
        self._end_wanted = False
        self._answers = HostAnswers()
        self._info_file: str | None = None
        self._name: NotebookName | None = None
        self._lost: str | None = None  # what became of the notebook's earlier kernel, for its next cell
        self._step = "ended"  # while there is no kernel yet, or no more
        self._progress: Progress | None = None
        super().__init__(**kwargs)

    # -- the life of a kernel --------------------------------------------------------------------------------

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Make up the request: where, with which environment, under which key.

        Raises:
            ConfigError: `location` is missing.
            LocationError: it is not a location.
        """
        manager: Any = self.parent
        session = manager.session
        self._request = self.make_request(
            session.key,
            session.signature_scheme,
            given=given_by_caller(kwargs.pop("env", None)),
            arguments=kwargs.pop("extra_arguments", ()),
            kernel_name=getattr(manager, "kernel_name", ""),
        )
        # The command is made up on the host, and the local environment stays here. What is left is not for us.
        return {"cmd": []}

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Start the kernel on its host, or start it anew with its keeper and the clients' connections as they are.

        Raises:
            AlbedoError: it could not be started; the message says why and what to do.
        """
        assert self._request is not None
        new = self._kernel is None
        if self._kernel is None:
            self._kernel = await io_thread.obtain(self._have_one(self._request), RemoteKernel.give_up)
        elif self.join:
            await io_thread.run(self._go_on_with(self._kernel))
        else:
            await io_thread.run(self._kernel.relaunch(self._request))
        self._lost = None
        self._waited = False
        self._end_wanted = False
        self._info_file = server_info_file()
        self._follow_notebook()
        try:
            return await self._connect()
        except BaseException:
            # Whoever starts a kernel and gives up waiting does not have it, and will not end it.
            kernel = self._let_go() if new else None
            if kernel is not None:
                io_thread.submit(kernel.give_up())
            raise

    async def _have_one(self, request: KernelRequest) -> RemoteKernel:
        """Have a kernel where there was none: the one that is to be opened, the notebook's of before, or a new one."""
        if self.join:
            return await open_running(self.join, request.location, self.python, self._front(), self._told)
        kernel = None
        if self.reattach and request.notebook:
            kernel = await kernel_of_before(request, self._front, self._told, self._told_of_loss)
        if kernel is None:
            kernel = await self._start(request)
            if self._lost is not None:
                kernel.say_at_next_cell(self._lost)
        return kernel

    def _follow_notebook(self) -> None:
        kernel = self._kernel
        if self._name is None and kernel is not None and kernel.request.notebook and not kernel.guest:
            self._name = NotebookName(self.kernel_id, kernel.request.notebook, self._rename)

    def _rename(self, path: str) -> None:
        """Go with the notebook, which is called so now."""
        self._renamed = path
        if self._kernel is not None:
            self.log.info("Kernel %s goes with its notebook, which is %s now.", self.kernel_id, path)
            io_thread.IOThread.get().call_soon(self._kernel.rename_notebook, path)

    def _let_go(self) -> RemoteKernel | None:
        """Have no kernel any more, and return the one there was."""
        kernel, self._kernel = self._kernel, None
        if self._name is not None:
            self._name.stop()
            self._name = None
        return kernel

    def _told(self, step: str) -> None:
        self._step = step
        self.log.info("Kernel %s on %s: %s", self.kernel_id, self.location, step)

    def _told_of_loss(self, line: str) -> None:
        self._lost = line

    def _told_progress(self, progress: Progress | None) -> None:
        before, self._progress = self._progress, progress
        if progress is None:
            return
        # A line for what is new and for each quarter of the way: it may take minutes over a slow connection.
        if before is None or before.all != progress.all or before.quarter != progress.quarter:
            self.log.info("Kernel %s on %s: staging, %s", self.kernel_id, self.location, progress)

    async def _start(self, request: KernelRequest) -> RemoteKernel:
        front = self._front()
        kernel = await RemoteKernel.start(request, front, self._told, self.kernel_id or None, self._told_progress)
        serve_memory(kernel)
        return kernel

    async def _go_on_with(self, kernel: RemoteKernel) -> None:
        """Leave a kernel that runs already as it is, although a restart is wanted.

        Raises:
            KernelGoneError: it has ended.
        """
        if kernel.poll() is not None:
            raise KernelGoneError(f"The kernel that this notebook has opened was another's: {kernel.cause}")
        await kernel.tell_user(f"[albedo] {_not_ours(kernel)}")

    def _front(self) -> FrontMaker:
        policy = str(getattr(self.parent, "transport_encryption", "disabled"))
        endpoints = Endpoints(None if self.endpoints == "auto" else self.endpoints, encrypt=policy == "required")
        return relay_at(endpoints, guests=bool(self.join))

    async def _connect(self) -> KernelConnectionInfo:
        assert self._kernel is not None
        kernel = self._kernel

        async def info() -> KernelConnectionInfo:
            return cast(KernelConnectionInfo, kernel.connection_info())

        self.connection_info = await io_thread.run(info())
        return self.connection_info

    @property
    def has_process(self) -> bool:
        """Whether a kernel is being managed; as with a local one, not any more once its end was waited for."""
        return self._kernel is not None and not self._waited

    async def poll(self) -> int | None:
        """Return None while the kernel is not known to be dead, else its exit code. A host out of reach is no death."""
        kernel = self._kernel
        if kernel is None:
            return 0
        if self._end_wanted and kernel.poll() is None:
            # A manager that waits for the end asks at intervals. Who is told as soon as it is there waits for less.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(io_thread.run(kernel.wait()), _END_INTERVAL)
        return kernel.poll()

    async def wait(self) -> int | None:
        """Wait for the kernel's process to end."""
        if self._kernel is None:
            return 0
        code = await io_thread.run(self._kernel.wait())
        self._waited = True
        return code

    async def send_signal(self, signum: int) -> None:
        """Send a signal to the kernel's process group on its host; never to anything on this machine.

        Raises:
            AlbedoError: it could not be confirmed.
        """
        if self._kernel is None or self._kernel.poll() is not None or signum == 0:
            return
        shutting_down = getattr(self.parent, "shutting_down", False)
        if self._kernel.guest and shutting_down:
            return  # managers interrupt before they end or restart a kernel, neither of which is done to this one
        if self.on_server_exit == "keep" and server_is_stopping(self._info_file):
            # The first thing that a stopping server does to a kernel is to interrupt it.
            await self._keep()
        elif shutting_down and not await self._answers.ask(self._kernel):
            # Managers interrupt before they end or restart a kernel. Coming later, by itself, to a kernel whose restart
            # was refused, that would break off a cell that nobody wanted to break off.
            return
        else:
            try:
                await io_thread.run(self._kernel.signal(signum, SIGNAL_TIMEOUT))
            except KernelGoneError:
                return  # it has just ended, and `poll` will say so; Popen.send_signal is silent then, too
            except LinkAwayError as error:
                # It is on its way. Raising it would also keep a manager that is ending a kernel from going on.
                self.log.warning("Kernel %s: %s", self.kernel_id, error)

    async def _keep(self) -> None:
        """Let go of the kernel: it stays on its host, for its notebook to find again."""
        kernel = self._let_go()
        if kernel is not None:
            await io_thread.run(kernel.leave())
            self.log.info("Kernel %s is kept on %s.", self.kernel_id, kernel.host)

    async def terminate(self, restart: bool = False) -> None:
        """Have the kernel's whole process tree end: TERM, then KILL for what does not obey."""
        await self._stop(2.0)

    async def kill(self, restart: bool = False) -> None:
        """Have the kernel's whole process tree killed."""
        await self._stop(0.0)

    async def _stop(self, term_grace: float) -> None:
        kernel = self._kernel
        if kernel is None or kernel.guest:
            return
        timeout = term_grace + SIGNAL_TIMEOUT
        if self._answers.out_of_reach(kernel):
            # It is done when the host is back; nothing is gained by waiting. The kernel is not let go of here, because
            # jupyter_client's `restart_kernel(now=True)` comes this way too, without saying that it is a restart.
            timeout, self._waited = 0.0, True
        try:
            await io_thread.run(kernel.stop(term_grace, timeout))
        except LinkAwayError as error:
            self.log.warning("Kernel %s: %s", self.kernel_id, error)
        except KernelGoneError:
            pass  # the host was restarted, or somebody ended the keeper: there is nothing to stop

    async def shutdown_requested(self, restart: bool = False) -> None:
        """Note that the kernel's end is wanted, so that no cell is told that it died. Of another's, let go.

        Raises:
            LinkAwayError: a restart is asked for and the host is out of reach. The kernel stays as it is.
            AlbedoError: a restart is asked for of a kernel that is another's.
        """
        kernel = self._kernel
        if kernel is None:
            return
        if kernel.guest:
            if restart:
                await self._refuse_restart(kernel, AlbedoError(_not_ours(kernel)))
            await self._keep()
            return
        if restart:
            asked = time.monotonic()
            if self._answers.asked_in_vain(kernel) or not await self._answers.ask(kernel):
                refusal = (
                    f"{kernel.host} is out of reach ({kernel.away or 'it does not answer'}), so the kernel cannot be "
                    "restarted now. It stays; try again when the host is back."
                )
                await self._refuse_restart(kernel, LinkAwayError(refusal))
            if time.monotonic() - asked >= SHUTDOWN_PATIENCE:
                # The relay held back the manager's own request to end meanwhile, so this does it.
                await self._stop(2.0)
                return
        else:
            await self._answers.know(kernel)  # if it does not, what follows waits for nothing
        io_thread.IOThread.get().call_soon(kernel.expect_end)
        self._end_wanted = True

    async def _refuse_restart(self, kernel: RemoteKernel, error: AlbedoError) -> NoReturn:
        # The manager has sent its request already. It would reach the kernel if the host came back in this very moment.
        manager: Any = self.parent
        await io_thread.run(kernel.refuse_end(manager.session.session, f"[albedo] {error}"))
        asyncio.get_running_loop().call_soon(self._take_restart_back)
        raise error

    def _take_restart_back(self) -> None:
        """Have the manager be as before a restart that was refused.

        It has stopped watching the kernel by then, and counts it as one that failed to start: a `MultiKernelManager`
        would drop it later without ending it.
        """
        manager: Any = self.parent
        manager.shutting_down = False
        if manager._ready is not None and manager._ready.done():
            manager._ready = type(manager._ready)()
            manager._ready.set_result(None)
        manager.start_restarter()

    async def cleanup(self, restart: bool = False) -> None:
        """End the keeper, unless a new kernel follows, and see that nothing is left on the host."""
        kernel = self._kernel
        if kernel is None or restart:
            return
        self._let_go()
        try:
            timeout = 0.0 if self._answers.out_of_reach(kernel) else FINISH_TIMEOUT
            report = await io_thread.run(kernel.finish(term_grace=1.0, timeout=timeout))
        except LinkAwayError as error:
            self.log.warning("Kernel %s: %s", self.kernel_id, error)
            return
        except AlbedoError as error:
            self.log.warning("Kernel %s: it is not proven that nothing is left: %s", self.kernel_id, error)
            return
        for process in [*report["survivors"], *report["foreign"]]:
            self.log.warning(
                "Kernel %s: process %s (%s) is left on %s: %s",
                self.kernel_id,
                process["pid"],
                process["name"],
                kernel.host,
                process["why"],
            )

    # -- facts -----------------------------------------------------------------------------------------------

    @property
    def status(self) -> dict[str, Any]:
        """What is known of the kernel at this moment, without asking anybody: step, host, process, link.

        While packages are put on the host, `staged` has the bytes that are there and those that are to be; the latter
        are None while the packages are still being fetched.
        """
        kernel, progress = self._kernel, self._progress
        if kernel is None:
            staged = {} if progress is None else {"staged": (progress.done, progress.all)}
            return {"step": self._step, "location": self.location, **staged}
        return {
            "step": kernel.step,
            "location": self.location,
            "process": kernel.state,
            "pid": kernel.pid,
            "responsive": kernel.responsive,
            "away": kernel.away,
            "connections": kernel.connections,
            "exit_code": kernel.exit_code,
            "cause": kernel.cause,
        }

    def resolve_path(self, path: str) -> str | None:
        """Return a path of the kernel's host as an absolute one; relative paths are meant from the kernel's folder."""
        if path.startswith("~"):
            return None
        folder = self._kernel.folder if self._kernel is not None else Location.parse(self.location).path
        return posixpath.normpath(posixpath.join(folder, path))

    def get_shutdown_wait_time(self, recommended: float = 5.0) -> float:
        """Allow for the way to the host on top of what a local kernel gets; out of reach, waiting is of no use."""
        return 0.0 if self._kernel is not None and self._answers.out_of_reach(self._kernel) else recommended + 2.0

    async def get_provisioner_info(self) -> dict[str, Any]:
        """Return what another process needs to take the kernel up again (`load_provisioner_info`). It holds the key."""
        info = await super().get_provisioner_info()
        if self._kernel is not None:
            request = self._kernel.request
            connection = dict(info["connection_info"])
            connection["key"] = request.key.decode()
            info["connection_info"] = connection
            info["albedo"] = {
                "kernel_id": self._kernel.kernel_id,
                "request": request.to_dict(),
                "guest": self._kernel.guest,
            }
        return info

    async def load_provisioner_info(self, provisioner_info: dict[str, Any]) -> None:
        """Take up a kernel that another process started; `connection_info` is new, as that process's sockets are gone.

        Raises:
            KernelGoneError: the kernel does not exist any more.
            AlbedoError: its host cannot be reached.
        """
        await super().load_provisioner_info(provisioner_info)
        known = provisioner_info["albedo"]
        kernel_id, request = known["kernel_id"], KernelRequest.from_dict(known["request"])
        self.location = str(request.location)
        self._request = request

        async def attach() -> RemoteKernel:
            kernel = await RemoteKernel.attach(request, self._front(), kernel_id, guest=bool(known.get("guest")))
            serve_memory(kernel)
            return kernel

        self._kernel = await io_thread.obtain(attach(), RemoteKernel.give_up)
        await self._connect()


def _not_ours(kernel: RemoteKernel) -> str:
    return (
        f"The kernel {kernel.kernel_id[:8]} on {kernel.host} is another's, which this notebook has only opened: it is "
        "not restarted from here."
    )
