"""A home whose quota is reached: that is said, with what to do, and what runs there goes on."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
from collections.abc import Callable

import pytest
from crash import albedo
from faces import Real, keeper_of
from kernels import eventually, started
from procs import send
from quota import forced_command

from albedo_provisioner import Hosts, Sessions
from albedo_provisioner.errors import StagingError

ADVICE = r"Remove files there, or have the account's quota raised: ssh .* 'quota -s; du -sh ~'"
WORDS = rf"/\.albedo-remote\S*: Disk quota exceeded\. {ADVICE}"


@pytest.fixture
def reach_quota(sshd_host: Real) -> Callable[[], None]:
    """Return what has the account's quota be reached for all that comes from then on."""
    command = forced_command(sshd_host.python, sshd_host.server.root)
    return lambda: sshd_host.server.restart(ForceCommand=command)


async def test_is_told_with_what_to_do(
    sshd_host: Real, sessions: Sessions, reach_quota: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Also where our files lie already; a kernel that is there works on."""
    async with started(sshd_host.location()) as kernel:
        await kernel.run("x = 41")
        reach_quota()
        assert await kernel.value("x + 1") == "42"
        with pytest.raises(StagingError, match=WORDS):
            async with started(sshd_host.location()):
                pass
        await asyncio.to_thread(_look_there, sshd_host, sessions)
        # The kernel's next keeper finds no room for what is its own, and the kernel waits for one.
        send(keeper_of(sshd_host), signal.SIGKILL)
        await eventually(lambda: re.search(f"not yet: .*{WORDS}", caplog.text))
        sshd_host.server.restart()
        assert await kernel.value("x + 2") == "43"


def test_is_told_at_a_first_visit(sshd_host: Real, sessions: Sessions, reach_quota: Callable[[], None]) -> None:
    shutil.rmtree(sshd_host.home / ".albedo-remote", ignore_errors=True)
    reach_quota()
    _look_there(sshd_host, sessions)
    assert not (sshd_host.home / ".albedo-remote").exists()


def _look_there(host: Real, sessions: Sessions) -> None:
    """See what is said where no kernel can be started."""
    assert re.search(WORDS, albedo("add", host.location(), status=1))
    found = {each.check: each for each in Hosts().diagnose(str(host.alias)).findings}
    for check in ("home", "runtime"):
        assert found[check].state == "problem"
        assert "Disk quota exceeded." in found[check].text
        assert re.fullmatch(ADVICE, found[check].advice)
    assert found["packages"].state == "ok"
    result = sessions.open(host.location(), owner="new").execute("6 * 7")
    assert (result.status, result.value, result.kernel.ended) == ("ok", "42", True)
    assert re.search(WORDS, str(result.kernel.note))
