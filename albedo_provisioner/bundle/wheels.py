"""Packages that were put on this host for interpreters without ipykernel or pyzmq: which would fit, and where they are.

Under `~/.albedo-remote/wheels/` lie

- *sets*: directories named by the digest of what is in them, which are the contents of some wheels;
- *notes*: files named after one kind of interpreter at one path, that say which set it uses.

A set goes behind all that the interpreter has of its own, on the path of our own processes alone, and only when the
interpreter lacks something: its own packages always come first. Who uses a set holds it (`in_use.py`), so that it stays
when others are swept away (`staging.py`). The launcher imports this file, so it is cheap to import.
"""

from __future__ import annotations

import os
import re
import sys

from .in_use import hold
from .private import is_trusted

TYPE_CHECKING = False  # not from typing: see processes.py
if TYPE_CHECKING:
    from typing import Any

DIRECTORY = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "wheels")
"""Beside the bundle's directory: the kernelspec may have given the kernel another HOME than the login's."""

DIGEST = re.compile(r"[0-9a-f]{16}")

_MOST_OWN = 5000


def note_path() -> str:
    """Return the path of this interpreter's note. Hosts of several kinds may share a home, so the kind counts."""
    import hashlib  # takes a few milliseconds, and most visits need none of this

    kind = (sys.executable, sys.implementation.name, sys.version_info[:2], abis(), system_facts())
    return os.path.join(DIRECTORY, "for-" + hashlib.sha256(repr(kind).encode()).hexdigest()[:16])


def set_path() -> str | None:
    """Return the directory of the set that this interpreter uses; None when there is none, or it is not ours alone."""
    if not is_trusted(DIRECTORY):
        return None
    try:
        with open(note_path()) as file:
            digest = file.read(100).strip()
    except OSError:
        return None
    path = os.path.join(DIRECTORY, digest)
    return path if DIGEST.fullmatch(digest) and is_trusted(path) else None


def cannot_load() -> bool:
    """Whether nothing compiled could be loaded from where packages are put: the file system is mounted noexec."""
    place = os.path.dirname(DIRECTORY)
    while not os.path.isdir(place):  # where nothing has been put yet, it is the place where it would be made
        place = os.path.dirname(place)
    return bool(os.statvfs(place).f_flag & getattr(os, "ST_NOEXEC", 0))


def put_on_path() -> bool:
    """Append this interpreter's set to this process's `sys.path` and hold it; False when there is none."""
    path = set_path()
    if path is None or not hold(path):
        return False
    if path not in sys.path:
        sys.path.append(path)
    return True


# -- what would fit --------------------------------------------------------------------------------------------------


def facts() -> dict[str, Any]:
    """Return what has to be known of this interpreter to choose wheels for it: plain JSON. The site directories must
    have been set up.
    """
    import platform

    version = platform.python_version()
    return {
        "python": sys.executable,
        "version": list(sys.version_info[:3]),
        "implementation": sys.implementation.name,
        "abis": abis(),
        **system_facts(),
        "markers": {  # PEP 508
            "implementation_name": sys.implementation.name,
            "implementation_version": version,
            "os_name": os.name,
            "platform_machine": platform.machine(),
            "platform_python_implementation": platform.python_implementation(),
            "platform_release": platform.release(),
            "platform_system": platform.system(),
            "platform_version": platform.version(),
            "python_full_version": version,
            "python_version": ".".join(platform.python_version_tuple()[:2]),
            "sys_platform": sys.platform,
        },
        "own": own_packages(),
    }


def abis() -> list[str]:
    """Return the ABIs of extension modules that this interpreter loads, as wheels name them, the best first."""
    version = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    flags = getattr(sys, "abiflags", "")
    threading = "t" if "t" in flags else ""
    return list(dict.fromkeys([version + flags, version + threading]))  # a debug build loads others' modules too


def system_facts() -> dict[str, Any]:
    """Return system, machine, C library and its version (on macOS: the system's)."""
    machine = os.uname().machine
    if sys.maxsize < 1 << 32:  # a 32-bit interpreter on a 64-bit system
        machine = {"x86_64": "i686", "aarch64": "armv7l", "armv8l": "armv7l"}.get(machine, machine)
    libc, version = "", ""
    if sys.platform == "darwin":
        import platform

        version = platform.mac_ver()[0]
    elif sys.platform == "linux":
        libc, version = _libc(machine)
    return {"system": sys.platform, "machine": machine, "libc": libc, "libc_version": _numbers(version)}


def _libc(machine: str) -> tuple[str, str]:
    """Return the kind of C library, "glibc", "musl" or nothing, and its version."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (ValueError, OSError):
        name, version = "", ""
    if name == "glibc":
        return name, version
    import glob
    import subprocess

    for loader in glob.glob("/lib/ld-musl-*.so.1"):
        # Run without arguments it prints its version and how to use it, on stderr.
        said = subprocess.run([loader], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL).stderr
        found = re.search(r"^Version (\d+\.\d+)", said, re.MULTILINE)
        if said.startswith("musl") and found:
            return "musl", found[1]
    return "", ""


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:2]]


def own_packages() -> dict[str, str]:
    """Return the versions of what is installed for this interpreter, by name; what we put there is not its own."""
    import importlib.metadata

    found: dict[str, str] = {}
    path = [entry for entry in sys.path if not entry.startswith(DIRECTORY)]
    for distribution in importlib.metadata.distributions(path=path):
        name = distribution.metadata["Name"]
        if name and distribution.version and len(found) < _MOST_OWN:
            found.setdefault(name, distribution.version)
    return found
