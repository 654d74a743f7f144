"""The Python environments of this host that a person may mean: in a folder, and conda's.

Versions are read from what lies in an environment; nothing of it is run.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import sys
from typing import Any

_IN_FOLDER = (".venv", "venv", "env", ".conda")
_CONDA_ROOTS = ("miniconda3", "anaconda3", "miniforge3", "mambaforge", "micromamba", ".conda")
_SYSTEM_CONDA_ROOTS = ("/opt/conda", "/opt/miniconda3", "/opt/anaconda3", "/opt/miniforge3")


def in_folder(folder: str) -> list[dict[str, Any]]:
    """Return the environments that belong to a folder, those that people's tools would take first at the beginning:
    `.venv` (venv, uv, poetry), `venv`, pixi's, poetry's own.
    """
    return _described(_roots_in_folder(folder), "folder")


def broken_in_folder(folder: str) -> list[dict[str, Any]]:
    """Return those environments of a folder that have no interpreter any more, and why that is so, in words."""
    found = []
    for root in _roots_in_folder(folder):
        python = os.path.join(root, "bin", "python")
        if not _is_environment(root) or os.access(python, os.X_OK):
            continue
        if os.path.exists(python):
            why = f"{python} may not be run"
        elif os.path.islink(python):
            why = f"its interpreter is gone ({_end_of_link(python)})"
        else:
            why = f"there is no {python}"
        found.append({"root": root, "why": why})
    return found


def _roots_in_folder(folder: str) -> list[str]:
    roots = [os.path.join(folder, name) for name in _IN_FOLDER]
    roots += _directories_in(os.path.join(folder, ".pixi", "envs"), first="default")
    return roots + _poetry(folder)


def _end_of_link(path: str) -> str:
    """Return where a symbolic link leads in the end, there or not."""
    for _ in range(40):  # as many as the system follows
        try:
            path = os.path.join(os.path.dirname(path), os.readlink(path))
        except OSError:
            break
    return os.path.normpath(path)


def conda() -> list[dict[str, Any]]:
    """Return conda's environments: what it has written down, and what lies where it puts them."""
    home = os.path.expanduser("~")
    roots = [os.path.join(home, name) for name in _CONDA_ROOTS] + list(_SYSTEM_CONDA_ROOTS)
    roots += [os.environ[name] for name in ("CONDA_PREFIX", "MAMBA_ROOT_PREFIX") if os.environ.get(name)]
    if os.environ.get("CONDA_EXE"):
        roots.append(os.path.dirname(os.path.dirname(os.environ["CONDA_EXE"])))
    places = [os.path.join(root, "envs") for root in roots]
    for name in ("CONDA_ENVS_PATH", "CONDA_ENVS_DIRS"):
        places += [path for path in os.environ.get(name, "").split(os.pathsep) if path]
    found = roots + [path for place in places for path in _directories_in(place)]
    try:
        with open(os.path.join(home, ".conda", "environments.txt"), encoding="utf-8") as file:
            found += [line.strip() for line in file if line.strip()]
    except (OSError, ValueError):
        pass  # no conda, or one that never made an environment
    return _described([path for path in found if _is_conda(path)], "conda")


def describe(root: str) -> dict[str, Any] | None:
    """Return an environment's interpreter, its version, that of ipykernel, and a name; None when it is none."""
    python = os.path.join(root, "bin", "python")
    if not os.access(python, os.X_OK) or not _is_environment(root):
        return None
    base = os.path.basename(root)
    has_envs = os.path.isdir(os.path.join(root, "envs")) or os.path.isfile(os.path.join(root, "condabin", "conda"))
    return {
        "python": python,
        "version": _version(root),
        "ipykernel": ipykernel_in(root),
        "name": "base" if _is_conda(root) and has_envs else base,
    }


def ipykernel_in(root: str) -> str | None:
    """Return the version of ipykernel in an environment's own packages, or None."""
    for name in _python_directories(root):
        try:
            packages = os.listdir(os.path.join(root, "lib", name, "site-packages"))
        except OSError:
            continue
        for entry in packages:
            match = re.fullmatch(r"ipykernel-(.+)\.dist-info", entry)
            if match:
                return match[1]
    return None


def _described(roots: list[str], kind: str) -> list[dict[str, Any]]:
    found = []
    for root in dict.fromkeys(os.path.normpath(root) for root in roots):
        described = describe(root)
        if described is not None:
            found.append({**described, "kind": kind})
    return found


def _is_environment(root: str) -> bool:
    return _is_conda(root) or os.path.isfile(os.path.join(root, "pyvenv.cfg"))


def _is_conda(root: str) -> bool:
    return os.path.isfile(os.path.join(root, "conda-meta", "history"))


def _directories_in(parent: str, first: str = "") -> list[str]:
    try:
        names = sorted(os.listdir(parent), key=lambda name: (name != first, name))
    except OSError:
        return []
    return [os.path.join(parent, name) for name in names]


def _version(root: str) -> str | None:
    try:
        with open(os.path.join(root, "pyvenv.cfg"), encoding="utf-8") as file:
            text = file.read(10_000)
    except (OSError, ValueError):
        text = ""
    match = re.search(r"^version(?:_info)?\s*=\s*(\d+\.\d+(?:\.\d+)?)", text, re.MULTILINE)
    if match:
        return match[1]
    for path in _directories_in(os.path.join(root, "conda-meta")):
        match = re.fullmatch(r"python-(\d+\.\d+\.\d+)\S*-[^-]+\.json", os.path.basename(path))
        if match:
            return match[1]
    return next((name.removeprefix("python") for name in _python_directories(root)), None)


def _python_directories(root: str) -> list[str]:
    names = (os.path.basename(path) for path in _directories_in(os.path.join(root, "lib")))
    return [name for name in names if re.fullmatch(r"python3\.\d+t?", name)]


def _poetry(folder: str) -> list[str]:
    """Return the directories of the environments that poetry keeps for a folder in its cache.

    Their names are made as in poetry's `EnvManager.generate_env_name`: the project's name, a digest of the folder's
    path, and the version of Python.
    """
    import tomllib

    try:
        with open(os.path.join(folder, "pyproject.toml"), "rb") as file:
            project = tomllib.load(file)
        name = str(
            project.get("project", {}).get("name") or project.get("tool", {}).get("poetry", {}).get("name") or ""
        )
    except (OSError, ValueError, AttributeError):
        return []  # no project, or none that can be read
    if not name:
        return []
    digest = hashlib.sha256(os.path.normcase(os.path.realpath(folder)).encode()).digest()
    short = re.sub(r'[ $`!*@"\\\r\n\t]', "_", name.lower())[:42]
    wanted = f"{short}-{base64.urlsafe_b64encode(digest).decode()[:8]}-py"
    places = [os.environ["POETRY_VIRTUALENVS_PATH"]] if os.environ.get("POETRY_VIRTUALENVS_PATH") else []
    if os.environ.get("POETRY_CACHE_DIR"):
        places.append(os.path.join(os.environ["POETRY_CACHE_DIR"], "virtualenvs"))
    home = os.path.expanduser("~")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    if sys.platform == "darwin":
        cache = os.path.join(home, "Library", "Caches")
    places.append(os.path.join(cache, "pypoetry", "virtualenvs"))
    found = [path for place in places for path in _directories_in(place)]
    return [path for path in found if os.path.basename(path).startswith(wanted)]
