"""JSON values with bytes anywhere in them, as text and blobs: what goes into a tool and comes out of it. Both sides.

Bytes become `{"$blob": 0}`, the number of a blob that travels as it is. A dictionary that looks like one of ours is
wrapped, so that every value comes out as it went in; tuples come out as lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .wire import Buffer

MOST_DEPTH = 100
"""How deep lists and dictionaries may be nested."""

_BLOB, _PLAIN = "$blob", "$plain"


def encode(value: object) -> tuple[Any, list[bytes]]:
    """Return a value as JSON, and the blobs that it names.

    Raises:
        TypeError: there is something in it that is neither JSON nor bytes.
        ValueError: it is nested too deeply, or in itself.
    """
    blobs: list[bytes] = []
    return _encode(value, blobs, 0), blobs


def _encode(value: object, blobs: list[bytes], depth: int) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if depth > MOST_DEPTH:
        raise ValueError(f"a value may be nested {MOST_DEPTH} deep")
    if isinstance(value, (bytes, bytearray, memoryview)):
        blobs.append(bytes(value))
        return {_BLOB: len(blobs) - 1}
    if isinstance(value, (list, tuple)):
        return [_encode(each, blobs, depth + 1) for each in value]
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"the keys of a dictionary have to be texts, and {key!r} is of type {_type(key)}")
        found = {key: _encode(each, blobs, depth + 1) for key, each in value.items()}
        return {_PLAIN: found} if len(found) == 1 and next(iter(found)) in (_BLOB, _PLAIN) else found
    raise TypeError(
        f"only JSON values (None, bool, int, float, str, list, dict) and bytes can be passed, and no {_type(value)}"
    )


def _type(value: object) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def decode(content: Any, blobs: Sequence[Buffer]) -> Any:
    """Return the value that `encode` was given.

    Raises:
        ValueError: it names a blob that is not there.
    """
    if isinstance(content, list):
        return [decode(each, blobs) for each in content]
    if not isinstance(content, dict):
        return content
    if len(content) == 1:
        ((key, inner),) = content.items()
        if key == _BLOB:
            if not isinstance(inner, int) or not 0 <= inner < len(blobs):
                raise ValueError(f"there is no blob {inner!r}")
            return bytes(blobs[inner])
        if key == _PLAIN and isinstance(inner, dict):
            return {name: decode(each, blobs) for name, each in inner.items()}
    return {key: decode(each, blobs) for key, each in content.items()}
