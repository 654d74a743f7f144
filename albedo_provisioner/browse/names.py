"""Names of a host's files: mostly text, and always something that leads back to the file."""

from __future__ import annotations

import base64
from typing import Any

from ..errors import LocationError
from ..location import Location


def encode(name: str | bytes) -> str:
    """Return a name as the text that stands for it here: what is no UTF-8 in it becomes lone surrogates."""
    return name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else name


def shown(name: str) -> dict[str, Any]:
    """Return a name for JSON: `name` can be written anywhere, `raw` has its bytes in base64 if `name` lost some."""
    data = name.encode("utf-8", "surrogateescape")
    text = data.decode("utf-8", "replace")
    return {"name": text, "raw": None if text.encode() == data else base64.b64encode(data).decode()}


def location_of(host: str | None, path: str) -> Location | None:
    """Return the location of a path; None when no location can spell it: control characters, or no UTF-8."""
    try:
        found = Location(host, path)
    except LocationError:
        return None
    return found if found.path == path else None  # a "." or "//" would have been folded


def spelled(location: Location | None) -> str | None:
    """Return a location for JSON."""
    return None if location is None else str(location)
