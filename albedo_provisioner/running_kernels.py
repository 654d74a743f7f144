"""Taking up a kernel that runs already, in place of a new one: one that is opened, or the notebook's of before."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from .errors import KernelGoneError
from .kernels.front import FrontMaker
from .kernels.joining import known_kernel, request_of
from .kernels.records import KernelRecords
from .kernels.remote import RemoteKernel
from .kernels.request import KernelRequest
from .location import Location
from .workspace.serving import serve_memory

log = logging.getLogger("albedo_provisioner.kernels")


async def open_running(
    kernel_id: str, location: Location, python: str | None, front: FrontMaker, on_step: Callable[[str], None]
) -> RemoteKernel:
    """Become one more client of a kernel that runs already; on the I/O thread.

    Args:
        kernel_id: its id.
        location: where it runs.
        python: the interpreter on the host that is asked; None for the login shell's `python3`.
        front: see `RemoteKernel.attach`.
        on_step: told each step while it lasts.

    Raises:
        KernelGoneError: it has ended.
        AlbedoError: its host cannot be reached.
    """
    request = await request_of(known_kernel(kernel_id, location, python))
    kernel = await RemoteKernel.attach(request, front, kernel_id, on_step, guest=True)
    serve_memory(kernel)
    kernel.say_at_next_cell(
        f"[albedo] This notebook has opened the kernel {kernel_id[:8]} that runs on {kernel.host} already: its "
        "variables are there, and it stays when the notebook is closed."
    )
    return kernel


async def kernel_of_before(
    request: KernelRequest,
    make_front: Callable[[], FrontMaker],
    on_step: Callable[[str], None],
    on_loss: Callable[[str], None],
) -> RemoteKernel | None:
    """Take up the notebook's kernel of an earlier server that was killed; on the I/O thread. None when none lives.

    Args:
        request: what would be started else.
        make_front: makes what stands in front of one.
        on_step: told each step while it lasts.
        on_loss: told of one that has ended what the next kernel's first cell is to say.

    Raises:
        AlbedoError: there may be one, and its host cannot be reached.
    """
    records = KernelRecords()
    while (record := records.claim(request.location, request.notebook, request.kernel)) is not None:
        earlier = KernelRequest.from_dict(record.request)
        try:
            kernel = await RemoteKernel.attach(earlier, make_front(), record.kernel_id, on_step)
        except KernelGoneError as error:
            # It ended meanwhile, and is off the records now. Nobody should take the new one for it.
            on_loss(
                f"[albedo] This is a new kernel: the one that ran for this notebook since {_when(record.started)} "
                f"has ended ({error})"
            )
            continue
        except BaseException:
            records.give_back(record)  # so that the next attempt finds it again
            raise
        serve_memory(kernel)
        log.info("Notebook %s goes on with its kernel %s", request.notebook, record.kernel_id)
        kernel.say_at_next_cell(
            f"[albedo] This notebook goes on with the kernel that ran for it on {kernel.host} since "
            f"{_when(record.started)}: its variables are there. "
            "Restart the kernel for an empty one."
        )
        kernel.inherit()
        return kernel
    return None


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
