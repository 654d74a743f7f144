"""What a keeper itself is asked, and its answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection
from typing import Any

from ..errors import AlbedoError, KernelGoneError, LinkAwayError


class KeeperCalls:
    """Requests to one kernel's keeper that wait for an answer. Used on the I/O thread's loop.

    Args:
        host: the host, as the user spells it.
        send: sends a request; it arrives exactly once.
        why_late: says in words why an answer may not have come.
    """

    def __init__(self, host: str, send: Callable[[bytes], None], why_late: Callable[[], str]) -> None:
        self._host = host
        self._send = send
        self._why_late = why_late
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._number = 0

    async def call(self, do: str, timeout: float | None, arguments: dict[str, Any]) -> dict[str, Any]:
        """Ask for something and return the answer; see `KernelLink.call`."""
        self._number += 1
        number = self._number
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._send(json.dumps({"id": number, "do": do, **arguments}).encode())
        try:
            async with asyncio.timeout(timeout):
                content = await answer
        except TimeoutError:
            raise LinkAwayError(
                f"{self._host} is out of reach ({self._why_late()}); '{do}' is done as soon as it can be reached again."
            ) from None
        finally:
            self._waiting.pop(number, None)
        if "error" in content:
            kind = KernelGoneError if content.get("ended") else AlbedoError
            raise kind(f"{self._host}: {content['error']}.")
        return content

    def waits_for(self, content: dict[str, Any]) -> bool:
        """Say whether something that the keeper said answers a request."""
        return content.get("id", 0) in self._waiting

    def answer(self, content: dict[str, Any], parts: list[memoryview]) -> None:
        """Take an answer, and the raw parts that came with it."""
        waiting = self._waiting[content["id"]]
        if not waiting.done():
            waiting.set_result({**content, "parts": parts})

    def fail(self, error: AlbedoError, but: Collection[int] = ()) -> None:
        """Have all requests fail, but those of these numbers."""
        for number, waiting in self._waiting.items():
            if number not in but and not waiting.done():
                waiting.set_exception(error)
