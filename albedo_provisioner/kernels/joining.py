"""Becoming one more client of a kernel that runs already, whoever started it and from whatever machine."""

from __future__ import annotations

from ..errors import AlbedoError, ConfigError
from ..hosts.asking import ask
from ..location import Location
from .find import by_id_on_io_thread, by_notebook_on_io_thread
from .records import ENDING, KernelRecords
from .request import KernelRequest
from .survey import DEADLINE, FoundKernel


async def candidates(kernel_id: str | None, notebook: str | None, deadline: float = DEADLINE) -> list[FoundKernel]:
    """Return the kernels that may be meant, the likeliest first; on the I/O thread.

    Args:
        kernel_id: the kernel's id, or its beginning.
        notebook: or the path of its notebook on this machine.
        deadline: seconds that each host has to answer, where hosts have to be asked.

    Raises:
        ConfigError: not one of the two is given.
        AlbedoError: there is no such kernel, or an id has several.
    """
    if (kernel_id is None) == (notebook is None):
        raise ConfigError("Which kernel? Either its id or its notebook has to be given.")
    if kernel_id is not None:
        return [await by_id_on_io_thread(kernel_id, deadline)]
    assert notebook is not None
    found = await by_notebook_on_io_thread(notebook, deadline)
    live = [kernel for kernel in found if kernel.record is None or kernel.record.state != ENDING]
    if not live:
        raise AlbedoError(f"The kernel of {notebook} was ended.")
    return live


def known_kernel(kernel_id: str, location: Location, python: str | None) -> FoundKernel:
    """Return a kernel of which the whole id and the place are known, without asking anybody."""
    record = KernelRecords().get(kernel_id)
    return FoundKernel(kernel_id, location.host, location.path, "", "unknown", record=record, python=python)


async def request_of(kernel: FoundKernel) -> KernelRequest:
    """Return what a client of a kernel needs: by its record on this machine, else by its host; on the I/O thread.

    Raises:
        KernelGoneError: its host has it no more.
        AlbedoError: its host cannot be asked.
    """
    if kernel.record is not None:
        return KernelRequest.from_dict(kernel.record.request)
    request = {"do": "describe", "kernel_id": kernel.kernel_id, "node": KernelRecords().node(kernel.kernel_id)}
    known = (await ask(kernel.host, request, kernel.python))["described"]
    return KernelRequest(
        location=Location(kernel.host, str(known["folder"])),
        key=str(known["key"]).encode(),
        signature_scheme=str(known["signature_scheme"]),
        python=kernel.python,
        kernel_name=str(known["kernel_name"] or ""),
        notebook=str(known["notebook"] or ""),
    )
