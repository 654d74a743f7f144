"""`jupyter albedo add --join ID`: a kernel that runs already, as an entry of Jupyter's kernel picker."""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import replace
from typing import Any

from .. import kernelspecs
from ..bundle.wire import CONTROL
from ..errors import ConfigError
from ..hosts import io_thread
from ..kernels.console import Console
from ..kernels.find import by_id_on_io_thread
from ..kernels.joining import request_of
from ..kernels.remote import RemoteKernel
from ..kernels.survey import DEADLINE, FoundKernel
from ..location import Location
from .table import say
from .waiting import waiting

_ANSWER_TIMEOUT = 5.0
"""Seconds for the kernel to say what language it speaks; one that is busy in native code cannot."""


def run(arguments: argparse.Namespace) -> int:
    """Look at the kernel, then write a kernelspec that opens it."""
    ignored = [name for name in ("python", "kernel", "grace") if getattr(arguments, name) is not None]
    if ignored or arguments.env:
        raise ConfigError(f"The kernel runs already, so --{(ignored or ['env'])[0]} can change nothing.")
    if arguments.name is not None:
        kernelspecs.check_name(arguments.name)
    with waiting("looking for the kernel ..."):
        kernel, language = io_thread.run_blocking(_look(arguments.join))
    location = Location(kernel.host, kernel.folder)
    label = "Python 3" if language == "python" else language
    added = kernelspecs.add(
        kernelspecs.Settings(location, kernel.python, join=kernel.kernel_id),
        name=arguments.name,
        display_name=arguments.display_name or f"{label} · {location} · running {kernel.short_id}",
        replace=arguments.replace,
        environment=arguments.sys_prefix,
        appearance=kernelspecs.Appearance(language=language, debugger=language == "python"),
    )
    say(f"Added {added.name} ({added.display_name}) in {added.directory}")
    return 0


async def _look(prefix: str) -> tuple[FoundKernel, str]:
    """Return the kernel of an id and its language; on the I/O thread.

    Raises:
        AlbedoError: there is none, or it cannot be reached.
    """
    found = await by_id_on_io_thread(prefix, DEADLINE)
    consoles: list[Console] = []

    def front(*about: Any) -> Console:
        consoles.append(Console(*about[:3]))
        return consoles[0]

    kernel = await RemoteKernel.attach(await request_of(found), front, found.kernel_id, guest=True)
    try:
        async with asyncio.timeout(_ANSWER_TIMEOUT):
            info = await consoles[0].request("kernel_info_request", {}, CONTROL)
        language = str(info.get("language_info", {}).get("name") or "python")
    except TimeoutError:
        language = "python"
    finally:
        await kernel.leave()
    return replace(found, folder=kernel.folder), language
