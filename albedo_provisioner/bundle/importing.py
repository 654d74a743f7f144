"""Whether what a Python kernel is made of can be imported here: it may be there, and be damaged."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Sequence

from . import wheels
from .texts import text_of

_MAIN = """
import sys
mending, caches, shadows, root, first, later, *more = sys.argv[1:]
mend, tell, shade = {}, {}, {}
exec(mending, mend)
exec(caches, tell)
exec(shadows, shade)
mend["mend_below"](root)
sys.path += more
try:
    for name in first.split():
        __import__(name)
    for name in later.split():
        try:
            __import__(name)
        except ImportError:
            pass
except Exception as error:
    told = tell["words_of"](error) or shade["words_of"](error)
    if not told:
        raise
    print(told, file=sys.stderr)
    sys.exit(3)
"""
_FIRST = "zmq ipykernel.kernelapp"
_LATER = (
    "ipykernel.debugger ipykernel.subshell_manager tornado.platform.asyncio tornado.queues psutil sqlite3 "
    "IPython.core.completerlib IPython.core.debugger IPython.core.logger IPython.core.oinspect "
    "IPython.extensions.storemagic IPython.utils.wildcard traitlets.config.argcomplete_config"
)
"""What else kernels import until they have run their first cell, where it is there."""

_TOLD = 3  # its exit status when it has told of a file itself
_TIMEOUT = 18.0
_FILE = re.compile(r'^  File "(/.*)", line \d+', re.MULTILINE)


def why_not_imported(more: Sequence[str]) -> str | None:
    """Return the last words of an interpreter that cannot import ipykernel and pyzmq, and the file that they are about;
    None when it can.

    Args:
        more: where packages lie that were put here for it.
    """
    texts = [*map(text_of, ("mending", "caches", "shadows")), os.path.dirname(wheels.DIRECTORY), _FIRST, _LATER]
    # A look that leaves nothing on the host has this one leave nothing, either.
    quiet = ["-B"] if sys.dont_write_bytecode else []
    try:
        told = subprocess.run(
            [sys.executable, *quiet, "-P", "-c", _MAIN, *texts, *more],
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
    last = (said.splitlines() or [f"status {told.returncode}"])[-1]
    if told.returncode == _TOLD:
        return last
    file = (_FILE.findall(said) or [_where()])[-1]
    last = last[:300]
    return f"{last} ({file})" if file and file not in last else last


def _where() -> str | None:
    """Return where ipykernel lies."""
    spec = importlib.util.find_spec("ipykernel")
    return spec.origin if spec is not None else None
