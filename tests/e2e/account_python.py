"""An interpreter with ipykernel that any account of this machine can run, made once and kept between runs.

The tests' own interpreter often lies where other accounts may not look (a home directory), and so may the one that
its virtual environment stands on.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# As it was before any fixture changed it: pip finds its configuration and cache through it.
_ENVIRON = dict(os.environ)
_WANTED = ("ipykernel", "ipywidgets")
_CHECK = "import sys; assert sys.version_info >= (3, 11), sys.version; import venv, sqlite3; print(sys.version)"


class NoPythonError(Exception):
    """There is no interpreter that the account can run, or none could be made."""


def cache_directory() -> Path:
    """Return the directory that is kept between runs; world-readable, ours alone to write.

    Raises:
        NoPythonError: it is somebody else's.
    """
    path = Path(_ENVIRON.get("ALBEDO_TEST_CACHE") or "/var/tmp/test-cache-albedo")
    path.mkdir(mode=0o755, parents=True, exist_ok=True)
    status = path.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise NoPythonError(f"{path} is not ours alone to write; set ALBEDO_TEST_CACHE to another directory")
    path.chmod(0o755)
    return path


def account_python(uid: int, gid: int) -> Path:
    """Return an interpreter, in a virtual environment of its own, that the account can run and that has ipykernel.

    Raises:
        NoPythonError: see the message.
    """
    base, version = _base_python(uid, gid)
    requirements = [f"{name}=={importlib.metadata.version(name)}" for name in _WANTED]
    key = hashlib.sha256(repr((str(base), version, requirements)).encode()).hexdigest()[:16]
    root = cache_directory() / f"python-{key}"
    python, complete = root / "bin" / "python3", root / "complete"
    with (cache_directory() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            shutil.rmtree(root, ignore_errors=True)
            _make(base, root, requirements)
            complete.touch()
    found = _as_account([str(python), "-c", "import ipykernel; print(ipykernel.__version__)"], uid, gid)
    if found.returncode:
        raise NoPythonError(f"{python} does not work for uid {uid}: {found.stderr.strip()}")
    return python


def _base_python(uid: int, gid: int) -> tuple[Path, str]:
    """Return an interpreter that the account can run, and its version."""
    said = []
    for candidate in _candidates():
        result = _as_account([str(candidate), "-c", _CHECK], uid, gid)
        if result.returncode == 0:
            return candidate, result.stdout.strip()
        said.append(f"{candidate}: {result.stderr.strip().splitlines()[-1:] or result.returncode}")
    raise NoPythonError(f"no Python >= 3.11 that uid {uid} can run; tried {'; '.join(said) or 'none'}")


def _candidates() -> Iterator[Path]:
    if chosen := _ENVIRON.get("ALBEDO_TEST_PYTHON"):
        yield Path(chosen)
        return
    names = ["python3", *(f"python3.{minor}" for minor in range(20, 10, -1))]
    own = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    seen = set()
    for path in [*(Path(d) / n for d in ("/usr/bin", "/usr/local/bin") for n in names), own]:
        if path.exists() and (real := path.resolve()) not in seen:
            seen.add(real)
            yield path


def _as_account(argv: list[str], uid: int, gid: int) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/", "LANG": "C.UTF-8"}
    try:
        return subprocess.run(
            argv,
            user=uid,
            group=gid,
            extra_groups=[],
            cwd="/",
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except OSError as error:  # it may not be run by that account at all
        return subprocess.CompletedProcess(argv, 126, "", str(error))


def _make(base: Path, root: Path, requirements: list[str]) -> None:
    if importlib.util.find_spec("pip") is not None:
        # Needs no ensurepip, which Debian keeps in a package of its own (python3-venv).
        _run([str(base), "-I", "-m", "venv", "--without-pip", str(root)])
        pip = [sys.executable, "-m", "pip", "--python", str(root / "bin" / "python3")]
    else:
        _run([str(base), "-I", "-m", "venv", str(root)])
        pip = [str(root / "bin" / "python3"), "-m", "pip"]
    _run([*pip, "install", "--quiet", "--disable-pip-version-check", "--no-input", *requirements])
    for path in [root, *root.rglob("*")]:
        if not path.is_symlink():  # whatever umask the suite runs under
            path.chmod(path.stat().st_mode | (0o555 if path.is_dir() or path.stat().st_mode & 0o100 else 0o444))


def _run(argv: list[str]) -> None:
    result = subprocess.run(
        argv, env=_ENVIRON, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if result.returncode:
        raise NoPythonError(f"{' '.join(argv)} failed with status {result.returncode}:\n{result.stdout}{result.stderr}")
