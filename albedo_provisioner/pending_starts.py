"""What `jupyter_client` remembers of a start that failed, which it should not.

`MultiKernelManager` (jupyter_client up to 8.10 at least) keeps a start that fails among its pending kernels for good.
When a Jupyter Server is stopped later, it wants to shut that one down too, finds that there is no such kernel, and goes
on for ever instead of ending. Starts on hosts fail now and then without anybody's fault, so it matters more for us than
for local kernels.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Any


def forget_if_it_fails(manager: Any) -> None:
    """Have the start that this task makes forgotten by who keeps it as pending, once it is over.

    Args:
        manager: the kernel's manager, `provisioner.parent`; its own parent keeps the pending ones, where there is one.
    """
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs, so nothing is pending
        return
    pending = getattr(getattr(manager, "parent", None), "_pending_kernels", None)
    if task is None or not isinstance(pending, dict):
        return
    kernels: dict[str, Any] = pending
    for kernel_id, start in kernels.items():
        if start is task:
            task.add_done_callback(functools.partial(_forget, kernels, kernel_id))
            return


def _forget(pending: dict[str, Any], kernel_id: str, start: Any) -> None:
    if pending.get(kernel_id) is start:  # not if it was forgotten already, as one that succeeds is
        del pending[kernel_id]
