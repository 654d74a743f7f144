"""The key of a host on the way to another one, when an ssh that a ProxyCommand runs does not trust it.

That ssh says only that it does not; which key it was is asked of it once more.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess

from . import child
from .ssh_errors import Attempt, key_kind

_TIMEOUT = 10.0

_SSH = re.compile(r"\s*((?:exec\s+)?(?:\S*/)?ssh)\s(.*)", re.DOTALL)
_OFFER = re.compile(r"^debug1: Server host key: (\S+) (SHA256:\S+)", re.MULTILINE)


async def note_untrusted_key(attempt: Attempt) -> None:
    """Note the key in the attempt if it failed for that: `proxy` and `proxy_command` say so."""
    found = _SSH.fullmatch(attempt.proxy_command)
    if found is not None and "Host key verification failed" in attempt.proxy:
        command = f"{found[1]} -v -o BatchMode=yes {found[2]}"
        said = await asyncio.get_running_loop().run_in_executor(None, _run, command)
        offers = _OFFER.findall(said)
        if offers:
            algorithm, fingerprint = offers[-1]  # the ones before it were those of hosts on the way to this one
            trouble = "is another key than before" if "IDENTIFICATION HAS CHANGED" in said else "is not known"
            attempt.proxy_key = f"{key_kind(algorithm)} {fingerprint} {trouble}"


def _run(command: str) -> str:
    """Run a ProxyCommand as ssh does, and return what it says on standard error."""
    try:
        told = child.run(
            [os.environ.get("SHELL") or "/bin/sh", "-c", command],
            _TIMEOUT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        return str(told.stderr.decode(errors="replace"))
    except (OSError, subprocess.TimeoutExpired):
        return ""  # it is only about the fingerprint
