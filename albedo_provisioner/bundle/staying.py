"""Answering one question after another, for as long as the client has any (`hosts/asking.py`)."""

from __future__ import annotations

import json
import os
import select
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any

from .entry import fail, report

MOST_BYTES = 1 << 20
"""Bytes that a question may have."""


def serve(request: dict[str, Any], actions: Mapping[str, Callable[[dict[str, Any]], None]]) -> None:
    """Answer a request and those that follow it, each as if it came by itself.

    Args:
        request: the first one; its `stay` is the number of seconds to wait for the next, again after each answer.
        actions: what each kind of request is done by.
    """
    _answer(request, actions)
    while select.select([0], [], [], float(request["stay"]))[0]:
        size = struct.unpack("!I", _take(4))[0]
        if size > MOST_BYTES:
            fail("request", detail=f"a question of {size} bytes")
        following = json.loads(_take(size))
        report(heard=True)
        _answer(following, actions)


def _answer(request: dict[str, Any], actions: Mapping[str, Callable[[dict[str, Any]], None]]) -> None:
    try:
        actions[request["do"]](request)
    except SystemExit:
        pass  # it was refused, which has been told; if the client has gone, the next read says so


def _take(size: int) -> bytes:
    taken = b""
    while len(taken) < size:
        piece = os.read(0, size - len(taken))
        if not piece:
            sys.exit(0)  # the client went away
        taken += piece
    return taken
