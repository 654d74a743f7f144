"""Which packages are missing, all of them, when no package index can be asked: pip itself stops at the first one."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from .host_python import HostPython

_CONFIG_TIMEOUT = 20.0


def missing_wheels(python: HostPython) -> list[str]:
    """Return which packages that ipykernel needs pip finds in no directory of wheels that it is told of; blocking.

    What ipykernel needs is taken from the one that is installed here; other versions may differ by a package.

    Args:
        python: the interpreter that they are for.
    """
    there = _provided(python)
    return sorted(name for name in _needed(python) if name not in there)


def index_is_left_out() -> bool:
    """Whether pip is told to ask no package index; blocking."""
    return any(value.lower() in ("1", "true", "yes", "on") for value in _pip_settings("no-index"))


def _needed(python: HostPython) -> set[str]:
    needed: set[str] = set()
    waiting = [Requirement("ipykernel")]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        if name in needed:
            continue
        needed.add(name)
        try:
            texts = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # only the other interpreter needs it, so what it needs itself is not known here
        for text in texts:
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                continue
            if requirement.marker is None or requirement.marker.evaluate({**python.markers, "extra": ""}):
                waiting.append(requirement)
    return needed


def _provided(python: HostPython) -> set[str]:
    """Return the packages of which wheels that fit lie in the directories that pip is told of."""
    interpreter = f"{'cp' if python.implementation == 'cpython' else python.implementation}" + "".join(
        map(str, python.version[:2])
    )
    platforms = python.platforms()
    fitting = {
        *cpython_tags(python.version[:2], python.abis, platforms),
        *compatible_tags(python.version[:2], interpreter, platforms),
    }
    return {name for directory in _directories() for name in _wheels_in(directory, fitting)}


def _wheels_in(directory: Path, fitting: set[Tag]) -> Iterator[str]:
    for path in directory.glob("*.whl"):
        try:
            name, _, _, tags = parse_wheel_filename(path.name)
        except InvalidWheelFilename:
            continue
        if tags & fitting:
            yield name


def _directories() -> Iterator[Path]:
    for value in _pip_settings("find-links"):
        # Several are apart by spaces; a path may have some itself.
        for text in dict.fromkeys([value, *value.split()]):
            if text.startswith("file:"):
                text = urllib.request.url2pathname(urllib.parse.urlsplit(text).path)
            if Path(text).expanduser().is_dir():
                yield Path(text).expanduser()


def _pip_settings(name: str) -> list[str]:
    """Return the values of a setting of pip's, from its files and from the environment."""
    command = [sys.executable, "-P", "-m", "pip", "config", "list"]
    try:
        told = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_CONFIG_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []  # then all are listed
    found = re.findall(rf"^(?:global|download|:env:)\.{name}=(.*)$", told.stdout, re.MULTILINE)
    return [str(ast.literal_eval(value)) for value in found if value.startswith(("'", '"'))]
