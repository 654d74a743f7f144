"""Which language a file is written in, by its name.

The table is GitHub Linguist's (`linguist.json`, made by `tools/linguist.py`).
"""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import Any


def language_of(name: str) -> str | None:
    """Return the language of a file by its name, as GitHub calls it; None when the name says nothing.

    Args:
        name: without the folder.
    """
    table = _table()
    if name in table["filenames"]:
        return str(table["filenames"][name])
    # The longest extension first: "a.html.erb" before "a.erb".
    at = name.find(".", 1)
    while at > 0:
        language = table["extensions"].get(name[at:].lower())
        if language is not None:
            return str(language)
        at = name.find(".", at + 1)
    return None


def type_of(language: str) -> str:
    """Return what a language is: "programming", "markup", "data" or "prose"."""
    return str(_table()["types"][language])


@functools.cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads((resources.files(__package__) / "linguist.json").read_text(encoding="utf-8"))
    return table
