"""What fails on the way to a host (a ProxyCommand, jump hosts), or is left out by the config, is told as what it is."""

from __future__ import annotations

import asyncio
import time

import psutil
import pytest
from door import Door
from procs import everyone
from recorder import eventually
from terminal import Terminal, albedo

from albedo_provisioner.errors import SignInError, UnreachableError
from albedo_provisioner.hosts.openssh import ProgramTransport
from albedo_provisioner.hosts.ssh import SSHTransport
from albedo_provisioner.hosts.transport import Transport

both_ways = pytest.mark.parametrize("way", [SSHTransport, ProgramTransport])


@both_ways
async def test_the_words_of_a_proxy_command_are_told_and_its_silence_is_no_trouble_of_the_network(
    door: Door, way: type[Transport]
) -> None:
    door.way, children = way, set(psutil.Process().children())
    door.write("talks", ProxyCommand="sh -c 'echo no way out >&2; sleep 0.2; exit 1'")
    door.write("behind", ProxyJump="talks")
    door.write("ends", ProxyCommand="true")
    door.write("execs", ProxyCommand="exec nc %h %p")
    door.write("waits", ProxyCommand="sh -c 'echo at the gate >&2; exec sleep 321'")
    door.write("sleeps", ProxyCommand="sleep 321")
    door.write("asleep", ProxyJump="sleeps")
    assert "its ProxyCommand (sh) " in await door.refusal(UnreachableError, "talks")
    assert "its ProxyCommand (nc) " in await door.refusal(UnreachableError, "execs")
    for name in ("talks", "behind"):
        message = await door.refusal(UnreachableError, name)
        assert "said: no way out." in message
        assert "broken pipe" not in message.lower()
    message = await door.refusal(UnreachableError, "ends")
    assert "its ProxyCommand (true) ended" in message
    assert "said nothing" in message
    silent = {
        "waits": "its ProxyCommand (sh) led to no ssh server within 1 s, and said: at the gate.",
        "sleeps": "its ProxyCommand (sleep) led to no ssh server within 1 s, and said nothing",
        "asleep": "its jump host sleeps led to no ssh server within 1 s, and said nothing",
    }
    for name, words in silent.items():
        message = await door.refusal(UnreachableError, name, connect_timeout=1.0)
        assert words in message
        assert f"terminal: `ssh -F {door.workspace.ssh_config} {name}`" in message
        assert "VPN" not in message
    await eventually(lambda: not [each for each in everyone() if "321" in each.argv])
    await eventually(lambda: set(psutil.Process().children()) <= children)


async def test_jump_hosts_in_a_circle_that_the_program_does_not_notice_are_told(door: Door) -> None:
    """Before one ssh has started hundreds of others."""
    door.way = ProgramTransport
    door.write(ProxyJump="one")
    door.write("one", ProxyJump="two")
    door.write("two", ProxyJump="one")
    began = time.monotonic()
    message = await door.refusal(UnreachableError)
    assert time.monotonic() - began < 8
    assert "lead in a circle (gpu through one, one through two, two through one). Give one an entry" in message


@both_ways
@pytest.mark.parametrize("setting", ["PreferredAuthentications publickey", "PasswordAuthentication no"])
async def test_a_config_that_leaves_out_the_second_factor_is_named(
    door: Door, way: type[Transport], setting: str
) -> None:
    """The key is not said to be refused, and no sign-in is advised that would ask nothing."""
    door.way = way
    door.host.server.restart(PasswordAuthentication="yes", AuthenticationMethods="publickey,password")
    name, _, value = setting.partition(" ")
    door.write(**{name: value})
    message = await door.refusal(SignInError)
    assert "was accepted, and the server wants a second factor as well" in message
    assert f"your ssh config has {setting} for it, so ssh does not ask. Take that setting out, and run `" in message
    assert "refused" not in message
    login = await asyncio.to_thread(_login_in_a_terminal)
    assert f"your ssh config has {setting}" in " ".join(login.split())


def _login_in_a_terminal() -> str:
    with Terminal(*albedo("login", "gpu")) as terminal:
        assert terminal.end() == 1, terminal.shown
        return terminal.shown


async def test_a_config_without_keys_is_no_reason_not_to_ask_for_a_password(door: Door) -> None:
    """H1: what `login` is there for."""
    door.way = ProgramTransport
    door.host.server.restart(PasswordAuthentication="yes")
    door.write(PubkeyAuthentication="no")
    assert "jupyter albedo login gpu` in a terminal and answer" in await door.refusal(SignInError)
    with Terminal(*albedo("login", "gpu")) as terminal:
        terminal.expect("password:")
        terminal.press("\x03")
        terminal.end()
