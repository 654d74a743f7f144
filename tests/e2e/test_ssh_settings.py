"""What an ssh config says for a person at a terminal does not get into our way, and the rest means what it does to ssh
(H4).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import psutil
import pytest
from door import Door
from masters import Master
from recorder import Recorder, eventually, run
from relay import RELAY
from terminal import Terminal, albedo

from albedo_provisioner.errors import UnreachableError
from albedo_provisioner.hosts.destination import find_ssh
from albedo_provisioner.hosts.openssh import ProgramTransport
from albedo_provisioner.hosts.openssh_config import HostSettings
from albedo_provisioner.hosts.openssh_options import version
from albedo_provisioner.hosts.remote import RemoteTransport
from albedo_provisioner.hosts.ssh import SSHTransport
from albedo_provisioner.hosts.transport import Exit, Transport

if TYPE_CHECKING:
    pass

both_ways = pytest.mark.parametrize("way", [SSHTransport, ProgramTransport])

FOR_A_TERMINAL = {
    "RequestTTY": "force",
    "RemoteCommand": "echo not ours",
    "PermitLocalCommand": "yes",
    "LocalCommand": "echo not ours",
    "LogLevel": "QUIET",
    "FingerprintHash": "md5",
    "VisualHostKey": "yes",
    "EscapeChar": "x",
    "ConnectionAttempts": "9",
    "ForwardX11": "yes",
    "ForwardAgent": "yes",
    "LocalForward": "1 127.0.0.1:1",
    "ExitOnForwardFailure": "yes",
    "ControlMaster": "auto",
    "ControlPersist": "yes",
}


def for_a_terminal(**more: str) -> Mapping[str, str]:
    """Return settings for a terminal, those of newer versions of ssh with them if it knows them."""
    if version(str(find_ssh())) < (8, 7):
        return FOR_A_TERMINAL
    return {**FOR_A_TERMINAL, "StdinNull": "yes", "ForkAfterAuthentication": "yes", **more}


@both_ways
async def test_settings_for_a_terminal_change_nothing(door: Door, way: type[Transport]) -> None:
    door.way = way
    door.write(**for_a_terminal(SessionType="subsystem"))
    transport = way("gpu")
    door.transports.append(transport)
    told = await run(transport, "cat", b"bytes\r\nx~.\0")
    assert (bytes(told.out), bytes(told.err), told.how) == (b"bytes\r\nx~.\0", b"", Exit(0))
    door.write("closed", **{**for_a_terminal(SessionType="none"), "Port": "1"})
    assert "connection refused" in await door.refusal(UnreachableError, "closed")


async def test_settings_for_a_terminal_do_not_keep_us_from_a_connection_that_is_signed_in(door: Door) -> None:
    """Whose the settings are is read all the same."""
    door.write("plain")
    path = f"{door.workspace.root}/m"
    door.write(**for_a_terminal(SessionType="none"), ControlPath=path)
    assert (await HostSettings("gpu").ask()).control_path == path
    transport = ProgramTransport("gpu")
    door.transports.append(transport)
    with Master("plain", path) as master:
        told = Recorder()
        channel = await transport.open_by_master("cat", told, master.path)
        channel.write(b"over it")
        channel.write_eof()
        await told.end()
        assert bytes(told.out) == b"over it"
        with Terminal(*albedo("login", "gpu")) as terminal:
            assert terminal.end() == 0, terminal.shown
        assert "You are signed in to gpu already" in terminal.shown
    with Terminal(*albedo("login", "gpu")) as terminal:
        assert terminal.end() == 0, terminal.shown
    assert "gpu needs no sign-in" in terminal.shown


@both_ways
async def test_a_final_pass_leaves_what_the_first_one_set(door: Door, way: type[Transport]) -> None:
    door.way = way
    account = door.options.pop("User")
    door.workspace.add_to_ssh_config("Match final all\n  Port 1\n  HostName nowhere.invalid\n  User nobody-at-all\n")
    door.write(User=account)
    assert await door.whoami() == account


@both_ways
async def test_percent_signs_of_a_proxy_command_are_read_once(door: Door, way: type[Transport]) -> None:
    door.way = way
    seen = door.workspace.root / "seen"
    relay = door.workspace.root / "relay.py"
    relay.write_text(RELAY)
    command = f"""sh -c "echo '%%h %%%%d 100%% %h' > {seen}; exec {sys.executable} {relay} %p\""""
    door.write(ProxyCommand=command, IdentityAgent="none")
    children = set(psutil.Process().children())
    assert await door.whoami() == door.host.account.name
    assert seen.read_text() == "%h %%d 100% 127.0.0.1\n"
    door.write("first", ProxyCommand=command)
    door.workspace.add_to_ssh_config("Match final all\n  Compression no\n")
    assert await door.whoami("first") == door.host.account.name
    assert seen.read_text() == "%h %%d 100% 127.0.0.1\n"
    for transport in door.transports:
        await transport.close()
    # The commands' ends are waited for on this test's loop, which is about to close.
    await eventually(lambda: set(psutil.Process().children()) <= children)


@pytest.mark.parametrize(("criteria", "times"), [("originalhost gpu", (1, 2)), ("host 127.0.0.1", (1, 2))])
async def test_a_command_of_the_config_is_run_no_more_often_than_it_takes(
    door: Door, criteria: str, times: tuple[int, int]
) -> None:
    """Once, by the ssh that goes there; and once for us where it takes that to know which ssh that is."""
    ran = door.workspace.root / "ran"
    door.workspace.add_to_ssh_config("Host gpu\n  HostName 127.0.0.1\n")
    door.workspace.add_to_ssh_config(f'Match {criteria} exec "echo >> {ran}"\n  Compression no\n')
    door.write(Port="1")
    transport = RemoteTransport("gpu")
    door.transports.append(transport)
    for expected in times:
        with pytest.raises(UnreachableError):
            await transport.open("true", Recorder())
        assert len(ran.read_text().splitlines()) == expected
