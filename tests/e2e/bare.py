"""A host whose Python has nothing but the standard library, and this machine without a package index."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from faces import Host, Real

import albedo_provisioner


@dataclass
class Bare:
    """An account on a real sshd with such an interpreter.

    Attributes:
        host: the account.
        python: the interpreter.
    """

    host: Real
    python: Path

    @property
    def config(self) -> dict[str, Any]:
        """What a kernelspec says to use it."""
        return {"python": str(self.python)}

    @property
    def sets(self) -> list[Path]:
        """What was put there for interpreters: sets, and whatever else lies beside them, but no notes."""
        directory = self.host.home / ".albedo-remote" / "wheels"
        return [path for path in sorted(directory.glob("*")) if not path.name.startswith("for-")]

    @property
    def site_packages(self) -> Path:
        """Where the interpreter has its own packages."""
        (path,) = (self.python.parent.parent / "lib").glob("python3.*/site-packages")
        return path


def bare(host: Real) -> Bare:
    """Make an interpreter without packages on a host."""
    return Bare(host, bare_python(host))


def bare_python(host: Host, name: str = "bare") -> Path:
    """Make an interpreter without packages, and without pip, on a host and return its path."""
    root = host.home / name
    made = host.run([str(host.python), "-m", "venv", "--without-pip", str(root)])
    assert made.returncode == 0, made.stderr
    return root / "bin" / "python3"


def facts_of(python: Path) -> dict[str, Any]:
    """Return what an interpreter of this machine says of itself to a client."""
    package = str(Path(albedo_provisioner.__file__).parent)
    code = f"import sys; sys.path.insert(0, {package!r}); from bundle import wheels; import json; "
    done = subprocess.run(
        [str(python), "-I", "-c", f"{code}print(json.dumps(wheels.facts()))"],
        capture_output=True,
        text=True,
        check=True,
    )
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def take_the_index_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pip find no package index and no other source, whatever this machine's settings are."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{port}/simple")
