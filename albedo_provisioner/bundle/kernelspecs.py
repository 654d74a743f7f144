"""The kernelspecs of this host: where Jupyter looks for them, and what is in one.

As jupyter_core and jupyter_client do it ("Kernel specs" in the latter's documentation), of which neither may be here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from typing import Any

_PYTHONS = re.compile(r"python(3(\.\d+)?)?")
_IPYKERNEL = ("ipykernel_launcher", "ipykernel")

LOGOS = ("logo-64x64.png", "logo-svg.svg")
MOST_LOGO = 64 << 10
"""Bytes that a logo may have to be taken along."""


class UnknownKernelspecError(Exception):
    """There is no such kernelspec (that can be used); the message says what there is."""


def search_path() -> list[str]:
    """Return the directories in which Jupyter, run by this interpreter, looks for kernelspecs, the first one first."""
    home = os.path.expanduser("~")
    given = [path for path in os.environ.get("JUPYTER_PATH", "").split(os.pathsep) if path]
    if os.environ.get("JUPYTER_DATA_DIR"):
        user = os.environ["JUPYTER_DATA_DIR"]
    elif sys.platform == "darwin":
        user = os.path.join(home, "Library", "Jupyter")
    else:
        user = os.path.join(os.environ.get("XDG_DATA_HOME") or os.path.join(home, ".local", "share"), "jupyter")
    users = [user, os.path.join(os.environ.get("PYTHONUSERBASE") or os.path.join(home, ".local"), "share", "jupyter")]
    own = [os.path.join(sys.prefix, "share", "jupyter")]
    wish = os.environ.get("JUPYTER_PREFER_ENV_PATH", "").lower()
    prefer_own = sys.prefix != sys.base_prefix if not wish else wish not in ("no", "n", "false", "off", "0", "0.0")
    system = ["/usr/local/share/jupyter", "/usr/share/jupyter"]
    found = [*given, *(own + users if prefer_own else users + own), *system]
    return [os.path.join(path, "kernels") for path in dict.fromkeys(found)]


def names(parents: list[str]) -> dict[str, str]:
    """Return the directories of the kernelspecs that lie in these directories, by name."""
    found: dict[str, str] = {}
    for parent in parents:
        try:
            entries = sorted(os.listdir(parent))
        except OSError:
            continue  # not there or not for us: Jupyter passes over it too
        for entry in entries:
            if os.path.isfile(os.path.join(parent, entry, "kernel.json")):
                found.setdefault(entry.lower(), os.path.join(parent, entry))
    return found


def read(directory: str) -> dict[str, Any]:
    """Return what a kernelspec says.

    Raises:
        ValueError: it makes no sense.
        OSError: it cannot be read.
    """
    with open(os.path.join(directory, "kernel.json"), encoding="utf-8") as file:
        spec = json.load(file)
    argv = spec.get("argv") if isinstance(spec, dict) else None
    if not isinstance(argv, list) or not argv or not all(isinstance(word, str) for word in argv):
        raise ValueError("it has no command (argv)")
    env = spec.get("env") or {}
    if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
        raise ValueError("its env is not made of texts")
    return {**spec, "env": env}


def directory_of(path: str) -> str:
    """Return the directory that a path names, `~/` allowed, in one spelling."""
    return os.path.normpath(os.path.expanduser(path))


def find(name: str) -> tuple[str, dict[str, Any]]:
    """Return a kernelspec's directory and what it says.

    Args:
        name: its name, or the path of its directory.

    Raises:
        UnknownKernelspecError: there is none that can be used.
    """
    known = names(search_path())
    directory = directory_of(name) if "/" in name else known.get(name.lower())
    if directory is None:
        there = ", ".join(sorted(known)) or "none at all"
        raise UnknownKernelspecError(f"there is no kernelspec {name!r} (there is: {there})")
    try:
        return directory, read(directory)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UnknownKernelspecError(f"the kernelspec in {directory} cannot be used: {why}") from None


def missing_program(directory: str, spec: dict[str, Any], folder: str) -> str:
    """Return the program of a kernelspec's command if it is not there, or cannot be run; empty when it can.

    Args:
        directory: where the kernelspec lies.
        spec: what it says.
        folder: where the kernel would be started.
    """
    program = _words(directory, spec)[0]
    if program == "{python}":
        return ""
    if "/" not in program:
        return "" if shutil.which(program) else program
    return "" if shutil.which(os.path.join(folder, program)) else program


def command(name: str, arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the command that a kernelspec's kernel is started with, and the variables that it sets.

    `{connection_file}`, and `{python}` and `{launcher}` for a Python kernel, are left to be filled in (see `spawn.py`).

    Args:
        name: the kernelspec, see `find`.
        arguments: words to add.

    Raises:
        UnknownKernelspecError: there is none that can be used.
    """
    directory, spec = find(name)
    return [*_through_our_launcher(_words(directory, spec)), *arguments], spec["env"]


def _words(directory: str, spec: dict[str, Any]) -> list[str]:
    """Return a kernelspec's command with what stands for places filled in."""
    words = [word.replace("{resource_dir}", directory).replace("{prefix}", sys.prefix) for word in spec["argv"]]
    if _PYTHONS.fullmatch(words[0]):
        words[0] = _python_beside(directory)
    return words


def _python_beside(directory: str) -> str:
    """Return the interpreter that a kernelspec's plain "python" means: that of the environment in which it lies."""
    prefix, share, _ = directory.rpartition("/share/jupyter/kernels/")
    own = os.path.join(prefix, "bin", "python")
    return own if share and os.access(own, os.X_OK) else "{python}"


def _through_our_launcher(words: list[str]) -> list[str]:
    """Have an ipykernel started by our launcher, which drops no output and opens no port; leave others as they are."""
    for at in range(1, len(words) - 1):
        if words[at] == "-m" and words[at + 1] in _IPYKERNEL and "-f" in words[at + 2 :]:
            return [*words[:at], "{launcher}", *words[at + 2 :]]
        if not words[at].startswith("-"):
            break
    return words


def logos(directory: str) -> dict[str, bytes]:
    """Return a kernelspec's logos by file name, those that are not too large."""
    found = {}
    for name in LOGOS:
        try:
            with open(os.path.join(directory, name), "rb") as file:
                content = file.read(MOST_LOGO + 1)
        except OSError:
            continue  # it has none
        if len(content) <= MOST_LOGO:
            found[name] = content
    return found
