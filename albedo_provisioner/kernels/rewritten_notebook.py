"""A notebook whose file gives way to another one, with the same cells: its kernels have to stay its own.

A notebook that was renamed is known by its file alone (see `notebook_file.py`), which is about to go.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..errors import AlbedoError
from ..hosts import io_thread
from .endings import note_if_possible
from .journal import visiting
from .notebook_file import is_named
from .records import KernelRecord, KernelRecords

log = logging.getLogger("albedo_provisioner.kernels")

_PATIENCE = 10.0
"""Seconds for a kernel's host to take the notebook's new name. Nothing here depends on it."""


@contextmanager
def rewriting(path: str) -> Iterator[None]:
    """Have the kernels of a notebook be its own also when meanwhile another file was put in the place of its own.

    Args:
        path: the notebook's; there may be no such file yet.

    Raises:
        ConfigError: what is on record cannot be read.
    """
    records = KernelRecords()
    own = records.of_notebook(path)
    renamed = [record for record in own if not is_named(record.notebook, path)]
    here = os.path.abspath(path)
    # Before the old file goes: from now on the name tells whose they are, whenever this process is killed.
    for record in renamed:
        note_if_possible(records.rename, record.kernel_id, here)
    yield
    for record in own:
        note_if_possible(records.rename, record.kernel_id, here if record in renamed else record.notebook)
    if renamed:
        io_thread.run_blocking(_tell_keepers(renamed, here))


async def _tell_keepers(kernels: Sequence[KernelRecord], path: str) -> None:
    """Have the hosts know it, too, by which other machines of the user's are told."""

    async def tell(record: KernelRecord) -> None:
        try:
            async with (
                asyncio.timeout(_PATIENCE),
                visiting(record.location.host, record.kernel_id, record.request.get("python")) as (link, _),
            ):
                await link.call("notebook", path=path)
        except (AlbedoError, TimeoutError) as error:
            log.info(
                "The keeper of kernel %s does not know what its notebook is called now: %s", record.kernel_id, error
            )

    await asyncio.gather(*map(tell, kernels))
