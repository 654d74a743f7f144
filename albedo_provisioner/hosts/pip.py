"""pip, run on this side in a process of its own to fetch wheels for another machine's interpreter.

pip finds the package index, proxies, certificates and local directories of wheels as the user has configured them
(`pip config`, `PIP_INDEX_URL`, `PIP_FIND_LINKS`, ...), and checks what it fetches against the index's digests.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from . import child
from .host_python import HostPython

_LOG = "pip.log"
_MOST_WORDS = 160

# Options that a person may have set for pip and that would make no sense here, or hide what went wrong.
_NOT_OURS = (
    "PIP_QUIET",
    "PIP_VERBOSE",
    "PIP_TARGET",
    "PIP_DEST",
    "PIP_PYTHON",
    "PIP_PLATFORM",
    "PIP_ABI",
    "PIP_NO_DEPS",
)


class PipError(Exception):
    """pip could not fetch something; the text is its own last words.

    Attributes:
        offline: whether the package index could not be reached.
    """

    def __init__(self, words: str, offline: bool = False) -> None:
        super().__init__(words)
        self.offline = offline


async def download(
    requirements: Sequence[str],
    python: HostPython,
    directory: Path,
    constraints: Path | None = None,
    alone: bool = False,
) -> None:
    """Fetch the wheels of some packages and of all they require, for another interpreter.

    pip evaluates the markers of requirements (`python_version < "3.12"`) for the interpreter that it runs in, so some
    that the other one needs may be missing, and some that it does not need be there.

    Args:
        requirements: what, in pip's words.
        python: for which interpreter.
        directory: where to put them; pip's log goes there too.
        constraints: a file that says which versions must be taken, where there is a choice.
        alone: without what they require.

    Raises:
        PipError: they cannot be had.
    """
    if importlib.util.find_spec("pip") is None:
        raise PipError(
            f"there is no pip for {sys.executable} on this machine; put it there ('{sys.executable} -m ensurepip', or "
            f"'uv pip install pip')"
        )
    # -P: a file pip.py in the current directory is not pip.
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-color", "--progress-bar=off"]
    command += ["--only-binary=:all:", "--retries=2", f"--dest={directory}"]
    command += [f"--implementation={'cp' if python.implementation == 'cpython' else python.implementation}"]
    command += [f"--python-version={'.'.join(map(str, python.version))}"]
    command += [f"--abi={abi}" for abi in python.abis]
    command += [f"--platform={platform}" for platform in python.platforms()]
    command += [f"--constraint={constraints}"] if constraints is not None else []
    command += ["--no-deps"] if alone else []
    status = await _run([*command, "--", *requirements], directory)
    if status != 0:
        raise _error((directory / _LOG).read_text("utf-8", "replace"), status)


async def _run(command: list[str], directory: Path) -> int:
    """Run a command, its output going to the log, and return its status. It ends when we are cancelled."""
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    process = _start(command, directory)
    child.watch_exit(process, ended.set_result)
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        child.end(process)
        await ended
        raise


def _start(command: list[str], directory: Path) -> subprocess.Popen[bytes]:
    environ = {name: value for name, value in os.environ.items() if name not in _NOT_OURS}
    environ |= {"PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_REQUIRE_VIRTUALENV": "0"}
    log = os.open(directory / _LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(command, cwd=directory, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    finally:
        os.close(log)


def _error(printed: str, status: int) -> PipError:
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    errors = [error for error in errors if not error.startswith("ResolutionImpossible: ")]  # it only names a page
    words = (errors or lines or [f"pip ended with status {status}"])[-1]
    offline = re.search(r"Retrying \(Retry\(|NewConnectionError|NameResolutionError", printed) is not None
    if offline:
        words = f"the package index cannot be reached; {words}"
    return PipError(words if len(words) <= _MOST_WORDS else f"{words[:_MOST_WORDS]} …", offline)
