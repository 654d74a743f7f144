"""Jupyter messages as rows of raw parts: the few looks into them that are taken on the way, on both sides."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .wire import Buffer

DELIMITER = b"<IDS|MSG>"
"""Stands between the zmq identities and the message proper; the signature follows."""

HEADER, PARENT, METADATA, CONTENT = 2, 3, 4, 5
"""Where the JSON parts stand, counted from the delimiter."""


def raw_part(parts: Sequence[Buffer], which: int) -> bytes | None:
    """Return a JSON part as it is, or None when this is no Jupyter message."""
    for index, part in enumerate(parts):
        if len(part) == len(DELIMITER) and bytes(part) == DELIMITER:
            return bytes(parts[index + which]) if len(parts) > index + which else None
    return None


def json_part(parts: Sequence[Buffer], which: int) -> dict[str, Any]:
    """Return a JSON part as a dictionary; empty when this is no Jupyter message.

    Bytes of a text that are no UTF-8 become lone surrogates: names of files may have such, and kernels send them on as
    what they had been.
    """
    data = raw_part(parts, which)
    if data is None:
        return {}
    try:
        content = json.loads(data)
    except UnicodeDecodeError:
        return _dictionary(data.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _dictionary(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
