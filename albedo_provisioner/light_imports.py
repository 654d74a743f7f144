"""Imports of libraries without what costs them much and is of no use here."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def for_notebooks() -> Iterator[None]:
    """Have imports of `nbformat`, and of what needs it, take two seconds less meanwhile.

    jsonschema (by way of nbformat) imports `rfc3987_syntax` where it can be had, which comes with Jupyter Server, to
    check a format that no notebook uses; it compiles grammars for two seconds. It can do without.
    """
    name = "rfc3987_syntax"
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]
