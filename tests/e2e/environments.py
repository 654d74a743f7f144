"""Python environments made on a test's host: real virtual environments, and conda's layout made by hand.

conda itself is not to be had in the tests; what is looked at of its environments is what these have too.
"""

from __future__ import annotations

from pathlib import Path

from faces import Host

_VENV = """
import os, pathlib, sys, sysconfig, venv
root = pathlib.Path(sys.argv[1])
venv.EnvBuilder(symlinks=True, with_pip=False).create(root)
if sys.argv[2] == "yes":
    # The packages of the host's interpreter, as if they had been installed into this one.
    mine = next((root / "lib").glob("python3*")) / "site-packages"
    for entry in pathlib.Path(sysconfig.get_path("purelib")).iterdir():
        if not (mine / entry.name).exists():
            (mine / entry.name).symlink_to(entry)
"""


def make_environment(host: Host, path: str, ipykernel: bool = True) -> Path:
    """Make a virtual environment below the host's home, with or without ipykernel, and return its interpreter."""
    root = host.home / path
    done = host.run([str(host.python), "-c", _VENV, str(root), "yes" if ipykernel else "no"])
    assert done.returncode == 0, done.stderr
    return root / "bin" / "python"


def make_conda(host: Host, path: str, version: str | None = None, runs: bool = False) -> Path:
    """Make an environment below the host's home as conda lays it out, and return its interpreter.

    Args:
        host: the host.
        path: relative to the home.
        version: of the Python that its records tell of; None for records that say nothing.
        runs: leave it what makes its interpreter find its packages, which conda's own does without.
    """
    python = make_environment(host, path)
    if not runs:
        (host.home / path / "pyvenv.cfg").unlink()
    host.write(f"{path}/conda-meta/history", "")
    if version is not None:
        host.write(f"{path}/conda-meta/python-{version}-h955ad1f_0_cpython.json", "{}")
    return python
