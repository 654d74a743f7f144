"""Accounts whose password has expired, or which have expired themselves: the server says so, and so do we (H1)."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator

import pytest
from conftest import Workspace
from faces import Real
from kernels import started
from procs import wait_until
from terminal import Terminal, albedo

from albedo_provisioner import AsyncHosts, Hosts
from albedo_provisioner.errors import SignInError


@pytest.fixture
def age(sshd_host: Real) -> Iterator[Callable[..., None]]:
    """Return a function that changes the dates of the account on the real sshd, which looks at them from then on."""
    account = sshd_host.account.name

    def chage(*options: str) -> None:
        command = ["chage", *options, account]

        def done() -> bool:  # /etc/shadow is locked for a moment while another run changes it
            return subprocess.run(command, capture_output=True, check=False).returncode == 0

        wait_until(done, 20, " ".join(command))

    sshd_host.server.restart(UsePAM="yes")
    yield chage
    chage("--lastday", time.strftime("%Y-%m-%d"), "--expiredate", "-1")


async def test_a_password_that_has_to_be_changed_takes_a_terminal(
    sshd_host: Real, workspace: Workspace, age: Callable[..., None]
) -> None:
    age("--lastday", "0")
    alias = str(sshd_host.alias)
    command = f"`ssh -F {workspace.ssh_config} {alias}`"
    state = await AsyncHosts().probe(alias)
    assert (state.state, state.detail) == ("needs_auth", "Password change required but no TTY available")
    assert "has expired" in state.advice
    assert command in state.advice
    found = await AsyncHosts().diagnose(alias)
    assert [(each.check, each.text) for each in found.findings if each.blocks] == [("login", state.advice)]
    with pytest.raises(SignInError, match="has expired"):
        async with started(sshd_host.location()):
            pass
    with Terminal(*albedo("login", alias)) as terminal:
        assert terminal.end() == 1, terminal.shown
        shown = " ".join(terminal.shown.split())
        assert command in shown
        assert "needs no sign-in" not in shown


@pytest.mark.parametrize("way", ["builtin", "program"])
def test_an_account_that_has_expired_is_told_in_the_server_s_words(
    sshd_host: Real, age: Callable[..., None], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setenv("ALBEDO_SSH", way)
    age("--expiredate", "1")
    state = Hosts().probe(str(sshd_host.alias))
    assert state.state == "unreachable"
    assert "Your account has expired; please contact your system administrator" in state.detail
