"""One look at a folder of a host, with a limit on time and size: there and back once, if there was one just before."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import posixpath
import sys
import zlib
from typing import TYPE_CHECKING, Any

from ..errors import AlbedoError, KilledError, LocationError, UnreachableError, UnsupportedHostError
from ..hosts import io_thread
from ..hosts.activity import Activity
from ..hosts.asking import ask, ask_again
from ..hosts.pool import HostPool
from ..location import Location, place
from .names import encode

if TYPE_CHECKING:
    from ..hosts.visit import Visit

log = logging.getLogger("albedo_provisioner.hosts")

TIMEOUT = 25.0
"""Seconds that a look may take unless the caller says otherwise: connecting, and what is asked there."""

_MOST_SENT = 32 << 20
_MOST_ANSWER = 128 << 20
"""Bytes of an answer, as sent and as it is, beyond which it is refused."""

Place = str | os.PathLike[str] | Location


def placed(location: Place) -> Location:
    """Return a place as a location.

    Raises:
        LocationError: it is none.
    """
    return location.expanded() if isinstance(location, Location) else place(os.fspath(location))


async def look(
    location: Location, want: str, below: str | bytes, python: str | None, timeout: float, **options: Any
) -> dict[str, Any]:
    """Return the facts that a host has gathered about a folder; from any loop.

    Raises:
        HostError: as the functions of `albedo_provisioner.browse`.
    """
    inside = encode(below)
    if inside.startswith("/") or "\0" in inside or posixpath.normpath(inside).split("/")[0] == "..":
        raise LocationError(f"{inside!r} is not below {location}: it has to be a relative path that stays there.")
    # Programs there have a third of it, and going through files another: what is known by then is told in time.
    request = {"do": "browse", "want": want, "cwd": location.path, "below": inside, "seconds": timeout / 3, **options}
    if location.host is None and python is None:
        python = sys.executable  # this one is good enough, whatever the login shell has
    return await io_thread.run(ask_at_length(location.host, request, python, timeout, again=True))


async def ask_at_length(
    host: str | None, request: dict[str, Any], python: str | None, timeout: float, again: bool = False
) -> dict[str, Any]:
    """Have a host answer a request, however long the answer is (`send` in `bundle/browsing.py`); on the I/O thread.

    Where the process that answers is killed it is asked once more: nothing that is asked like this changes anything.

    Args:
        host: where; None for this machine.
        request: what is asked.
        python: the interpreter there.
        timeout: seconds that it may take.
        again: the next question is likely to follow soon, see `ask_again`.

    Raises:
        HostError: it cannot, or not in time.
    """
    name = HostPool.get().transport_for(host).host

    async def answered() -> dict[str, Any]:
        pieces = _Pieces()
        return pieces.answer((await (ask_again if again else ask)(host, request, python, pieces))["browsed"])

    async def ask_twice() -> dict[str, Any]:
        try:
            return await answered()
        except KilledError as error:
            log.info("%s Asking again.", error)
            return await answered()

    asking = asyncio.get_running_loop().create_task(ask_twice())
    try:
        done, _ = await asyncio.wait([asking], timeout=timeout)
        if not done:
            cause = f"no answer within {timeout:g} s, while {Activity.get().step(name) or 'connecting'}"
            raise UnreachableError(name, f"{name} cannot be reached: {cause}.", cause)
        return asking.result()
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        if isinstance(error, AlbedoError):
            raise
        raise UnsupportedHostError(name, f"{name} answered what we do not understand: {error}.") from error
    finally:
        asking.cancel()
        await asyncio.wait([asking])


class _Pieces:
    """The pieces of an answer that is too long for one report; a `Parcel`."""

    step = "asking"

    def __init__(self) -> None:
        self._received = bytearray()

    def heard(self, visit: Visit, report: dict[str, Any]) -> bool:
        """Take a piece."""
        if "piece" not in report:
            return False
        if len(self._received) < _MOST_SENT:  # what comes beyond is refused in `answer`
            self._received += base64.b64decode(report["piece"])
        return True

    def writable(self, yes: bool) -> None:
        """Nothing is sent."""

    def answer(self, last: str) -> dict[str, Any]:
        """Return the whole answer, of which the last piece has come.

        Raises:
            ValueError: it is none.
        """
        data = bytes(self._received) + base64.b64decode(last)
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(data, _MOST_ANSWER)
        if len(data) > _MOST_SENT or not unpacking.eof:
            raise ValueError("an answer that is too long, or not whole")
        answer = json.loads(text)
        if not isinstance(answer, dict):
            raise ValueError("an answer of another kind")
        return answer
