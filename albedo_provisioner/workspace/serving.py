"""Calls of kernels to `memory`: done here, on the user's machine, each once however often it comes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import AlbedoError
from ..hosts.io_thread import in_thread
from ..kernels.calls import Call, Handler
from ..location import Location
from .text import must_be_text

if TYPE_CHECKING:
    from ..kernels.remote import RemoteKernel

KIND = "memory"
"""What kind of calls these are."""

log = logging.getLogger("albedo_provisioner.workspace")


def serve_memory(kernel: RemoteKernel) -> None:
    """Answer what a kernel's code asks of memory, from now on; it is that of the kernel's folder."""
    kernel.serve(KIND, memory_of(lambda: Location(kernel.request.location.host, kernel.folder)))


def memory_of(where: Callable[[], Location], home: str | os.PathLike[str] | None = None) -> Handler:
    """Return what answers calls to memory.

    Args:
        where: returns the kernel's folder.
        home: see `albedo_home`.
    """

    async def done(call: Call) -> tuple[dict[str, Any], Sequence[bytes]]:
        return await answer(where(), call.id, call.arguments, home), ()

    return done


async def answer(
    location: Location, call_id: str, arguments: dict[str, Any], home: str | os.PathLike[str] | None = None
) -> dict[str, Any]:
    """Do what a kernel asks of memory.

    Args:
        location: the kernel's folder.
        call_id: the call's id, made in the kernel.
        arguments: `do` and what that takes; they come from the kernel, so nothing is taken for granted.
        home: see `albedo_home`.

    Returns:
        what came of it; or `error`, a sentence, and `value`, whether the arguments are to blame.
    """
    try:
        return await in_thread(_done, location, call_id, arguments, home)
    except (ValueError, TypeError) as error:
        return {"error": str(error), "value": True}
    except AlbedoError as error:
        log.info("%s: %s", location, error)
        return {"error": str(error), "value": False}


def _done(
    location: Location, call_id: str, arguments: dict[str, Any], home: str | os.PathLike[str] | None
) -> dict[str, Any]:
    from .memory import LIMIT, SEARCH_LIMIT, WorkspaceMemory  # most kernels never ask

    memory = WorkspaceMemory(location, home)
    do = arguments.get("do")
    if do == "read":
        most = arguments.get("max_chars")
        return {"text": memory.read(None if most is None else _number(most), bool(arguments.get("linked", True)))}
    if do == "grep":
        hits = memory.grep(must_be_text(arguments.get("term")), _number(arguments.get("limit", LIMIT)))
    elif do == "search":
        hits = memory.search(must_be_text(arguments.get("query")), _number(arguments.get("limit", SEARCH_LIMIT)))
    elif do in ("save", "append", "journal"):
        write = {"save": memory.save, "append": memory.append, "journal": memory.journal}[do]
        write(must_be_text(arguments.get("text")), call_id)
        return {}
    else:
        raise ValueError(f"memory cannot {do!r}")
    return {"hits": [hit.to_dict() for hit in hits]}


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"a whole number is needed, and not a value of type {type(value).__name__}")
    return value
