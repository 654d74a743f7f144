"""Whether what a Python kernel is made of can be imported here: it may be there, and be damaged."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Sequence

_IMPORT = "import sys; sys.path += sys.argv[1:]; import zmq, ipykernel.kernelapp"
_TIMEOUT = 18.0
_FILE = re.compile(r'^  File "(/.*)", line \d+', re.MULTILINE)


def why_not_imported(more: Sequence[str]) -> str | None:
    """Return the last words of an interpreter that cannot import ipykernel and pyzmq, and the file that they are about;
    None when it can.

    Args:
        more: where packages lie that were put here for it.
    """
    command = [sys.executable, "-P", "-c", _IMPORT, *more]
    try:
        told = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"importing them took longer than {_TIMEOUT:g} s"
    if told.returncode == 0:
        return None
    said = told.stderr.decode("utf-8", "replace").strip()
    last = (said.splitlines() or [f"status {told.returncode}"])[-1][:300]
    file = (_FILE.findall(said) or [_where()])[-1]
    return f"{last} ({file})" if file and file not in last else last


def _where() -> str | None:
    """Return where ipykernel lies."""
    spec = importlib.util.find_spec("ipykernel")
    return spec.origin if spec is not None else None
