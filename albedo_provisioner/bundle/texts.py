"""The texts of our own modules, for interpreters that get them on their command line."""

from __future__ import annotations

import importlib.util
from typing import Any


def text_of(name: str) -> str:
    """Return the text of a module of ours, which is in no file where nothing can be put on the host.

    Args:
        name: its name in our package.
    """
    spec: Any = importlib.util.find_spec(f"{__package__}.{name}")
    return str(spec.loader.get_source(spec.name))
