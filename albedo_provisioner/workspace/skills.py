"""Skills: what a `SKILL.md` says of itself at its head, in YAML."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

_LONGEST_NAME = 100
_LONGEST_DESCRIPTION = 1024


@dataclass(frozen=True)
class Skill:
    """A skill.

    Attributes:
        name: its name; its folder's if it does not say.
        description: what it is good for, in a line; empty if it does not say.
        location: where its `SKILL.md` is: `host:/path`, or a path of this machine.
    """

    name: str
    description: str
    location: str


@functools.lru_cache(1000)
def read_skill(front_matter: str, folder: str, location: str) -> tuple[Skill, str]:
    """Return a skill and what is wrong with its front matter, which is empty when nothing is.

    Args:
        front_matter: the YAML at the head of its file.
        folder: its folder's name.
        location: of the file.
    """
    import yaml  # type: ignore[import-untyped,unused-ignore] # only who looks for skills has need of it

    problems: list[str] = []
    said: dict[object, object] = {}
    try:
        # libyaml's where it is there, which takes a tenth of the time; both make nothing but plain values.
        loaded = yaml.load(front_matter, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        if isinstance(loaded, dict):
            said = loaded
            problems += (_wrong(said, "name", _LONGEST_NAME), _wrong(said, "description", _LONGEST_DESCRIPTION))
        else:
            problems.append("it has no front matter with a name and a description")
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problems.append(f"its front matter is no YAML: {_line(str(error), 200)}")
    name = _line(said.get("name"), _LONGEST_NAME) or _line(folder, _LONGEST_NAME)
    description = _line(said.get("description"), _LONGEST_DESCRIPTION)
    return Skill(name, description, location), "; ".join(filter(None, problems))


def _wrong(said: Mapping[object, object], field: str, longest: int) -> str:
    """Return what is wrong with a field that is to be a text; empty when nothing is."""
    if field not in said:
        return f"it has no {field}"
    value = said[field]
    if value is None or value == "" or (isinstance(value, str) and not _line(value, longest)):
        return f"its {field} is empty"
    if isinstance(value, str):
        shown = len(" ".join(value.split()))
        return f"its {field} has {shown:,} characters, and is cut after {longest:,}" if shown > longest else ""
    if isinstance(value, dict | list | set):
        return f"its {field} is no text but a {'mapping' if isinstance(value, dict) else 'list'}"
    return f"its {field} is no text to YAML ({_line(str(value), 40)}): put it in quotes"


def _line(text: object, longest: int) -> str:
    """Return a text in one line of bounded length; a value that is no text is none."""
    if not isinstance(text, str):
        return ""
    shown = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"
