"""Whose host keys are trusted: the user's policy and files, the same by both kinds of ssh (H4)."""

from __future__ import annotations

import asyncio
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from conftest import Workspace
from door import Door, fingerprint, keygen, sign

from albedo_provisioner.errors import HostKeyError, SignInError
from albedo_provisioner.hosts.openssh import ProgramTransport
from albedo_provisioner.hosts.remote import RemoteTransport
from albedo_provisioner.hosts.ssh import SSHTransport


@pytest.fixture(params=[SSHTransport, ProgramTransport])
def any_door(request: pytest.FixtureRequest, door: Door) -> Door:
    """Return the door, to be knocked at by each kind of ssh in turn."""
    door.way = request.param
    return door


def found_by_ssh(door: Door) -> str:
    """Return what ssh itself finds in known hosts for the door."""
    name = f"[127.0.0.1]:{door.host.server.port}"
    told = subprocess.run(
        ["ssh-keygen", "-F", name, "-f", str(door.known)],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return told.stdout


def output_of(command: str) -> str:
    return subprocess.run(command.split(), capture_output=True, text=True, check=True).stdout


def line(door: Door, key: Path, name: str = "") -> str:
    return f"{name or f'[127.0.0.1]:{door.host.server.port}'} {key.with_suffix('.pub').read_text()}"


@pytest.mark.parametrize("policy", [None, "ask", "yes"])
async def test_an_unknown_key_is_refused_and_nothing_is_remembered(
    any_door: Door, policy: str | None, workspace: Workspace
) -> None:
    any_door.write(UserKnownHostsFile=str(any_door.known), StrictHostKeyChecking=policy)
    message = await any_door.refusal(SignInError)
    assert f"ED25519 {fingerprint(any_door.host.server.root / 'host_key.pub')}" in message
    assert (
        f"`ALBEDO_HOME={workspace.albedo_home} ALBEDO_SSH_CONFIG={workspace.ssh_config} jupyter albedo login gpu`"
        in message
    )
    assert not any_door.known.exists()


async def test_an_unknown_key_is_not_said_to_be_asked_about_where_it_is_not(any_door: Door) -> None:
    any_door.write(UserKnownHostsFile=str(any_door.known), StrictHostKeyChecking="yes")
    message = await any_door.refusal(SignInError)
    assert "StrictHostKeyChecking yes, so ssh asks nobody" in message
    found = re.search(r"`(ssh-keyscan -p \d+ 127\.0\.0\.1)` prints it", message)
    assert found is not None, message
    any_door.known.write_text(output_of(found[1]))
    assert await any_door.whoami() == any_door.host.account.name


@pytest.mark.parametrize("hashed", ["no", "yes"])
async def test_accept_new_remembers_an_unknown_key_as_ssh_does_and_touches_no_other_line(
    any_door: Door, hashed: str
) -> None:
    before = "# mine\nother.example ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ mine too\n"
    any_door.known.write_text(before)
    any_door.write(
        UserKnownHostsFile=f"{any_door.known} /no/such/file", StrictHostKeyChecking="accept-new", HashKnownHosts=hashed
    )
    assert await any_door.whoami() == any_door.host.account.name
    text = any_door.known.read_text()
    assert text.startswith(before)
    assert len(text.splitlines()) == 3
    assert ("127.0.0.1" in text) == (hashed == "no")
    assert (any_door.host.server.root / "host_key.pub").read_text().split()[1] in found_by_ssh(any_door)
    # And what was remembered is trusted by who is strict.
    any_door.write("strict", UserKnownHostsFile=str(any_door.known), StrictHostKeyChecking="yes")
    assert await any_door.whoami("strict") == any_door.host.account.name
    assert any_door.known.read_text() == text


async def test_a_file_of_known_hosts_that_is_made_is_private(door: Door, workspace: Workspace) -> None:
    known = workspace.home / ".ssh/known"
    door.write(UserKnownHostsFile=str(known), StrictHostKeyChecking="accept-new")
    assert await door.whoami() == door.host.account.name
    assert stat.S_IMODE(known.stat().st_mode) == 0o600
    assert stat.S_IMODE(known.parent.stat().st_mode) == 0o700


async def test_a_last_line_without_an_end_stays_whole(door: Door) -> None:
    """ssh 9.2 appends to that very line."""
    door.known.write_text("# no end")
    door.write(UserKnownHostsFile=str(door.known), StrictHostKeyChecking="accept-new")
    assert await door.whoami() == door.host.account.name
    assert [len(line.split()) for line in door.known.read_text().splitlines()] == [3, 3]


async def test_accept_new_goes_on_when_the_file_remembers_nothing(any_door: Door) -> None:
    any_door.write(UserKnownHostsFile="/dev/null", StrictHostKeyChecking="accept-new")
    assert await any_door.whoami() == any_door.host.account.name


@pytest.mark.parametrize("policy", ["accept-new", "no", "ask"])
async def test_no_unknown_key_is_taken_when_there_is_no_file_at_all_and_that_is_said(
    any_door: Door, policy: str
) -> None:
    any_door.write(UserKnownHostsFile="none", StrictHostKeyChecking=policy)
    message = await any_door.refusal(SignInError)
    assert "is not known" in message
    assert "has UserKnownHostsFile none, so there is no file to keep a new key in" in message
    assert "login" not in message, "ssh asks nobody there"
    any_door.write("gpu2", UserKnownHostsFile="/dev/null", StrictHostKeyChecking="no")
    assert await any_door.whoami("gpu2") == any_door.host.account.name, "what it says helps"


@pytest.mark.parametrize("policy", ["accept-new", "yes", "ask"])
async def test_a_changed_key_is_refused_and_told_apart(any_door: Door, workspace: Workspace, policy: str) -> None:
    other = workspace.home / "other"
    keygen(other)
    any_door.known.write_text(line(any_door, other))
    any_door.write(UserKnownHostsFile=str(any_door.known), StrictHostKeyChecking=policy)
    message = await any_door.refusal(SignInError)
    assert "has changed" in message
    assert fingerprint(any_door.host.server.root / "host_key.pub") in message
    assert any_door.known.read_text() == line(any_door, other)


async def test_who_wants_no_checking_gets_in_whatever_is_known_and_no_line_changes(
    any_door: Door, workspace: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    other = workspace.home / "other"
    keygen(other)
    any_door.known.write_text(line(any_door, other))
    any_door.write(UserKnownHostsFile=str(any_door.known), StrictHostKeyChecking="off", UpdateHostKeys="no")
    assert await any_door.whoami() == any_door.host.account.name
    assert any_door.known.read_text() == line(any_door, other)
    if any_door.way is SSHTransport:
        assert "StrictHostKeyChecking off" in caplog.text, "as the config says it"


@pytest.mark.parametrize("policy", ["accept-new", "ask", "yes"])
async def test_a_revoked_key_is_refused(any_door: Door, policy: str) -> None:
    any_door.known.write_text("@revoked * " + (any_door.host.server.root / "host_key.pub").read_text())
    any_door.write(UserKnownHostsFile=str(any_door.known), StrictHostKeyChecking=policy)
    assert "revoked" in await any_door.refusal(SignInError)


async def test_the_line_that_revokes_a_key_is_named(door: Door) -> None:
    key = (door.host.server.root / "host_key.pub").read_text()
    door.known.write_text(f"# keys\n@revoked other {key}@revoked * {key}")
    door.write(UserKnownHostsFile=str(door.known))
    for way in (RemoteTransport, SSHTransport, ProgramTransport):
        door.way = way
        message = await door.refusal(HostKeyError)
        assert f"is revoked, by {door.known}, line 3: " in message
        assert "jupyter albedo login" not in message
    door.write("aliased", UserKnownHostsFile=f"/no/such/file {door.known}", HostKeyAlias="other")
    message = await door.refusal(HostKeyError, "aliased")
    assert f"is revoked, by {door.known}, line 2 or {door.known}, line 3: " in message


async def test_a_revoked_key_is_refused_in_process_even_where_nothing_is_checked(door: Door) -> None:
    """Stricter than ssh, which goes on with a warning that nobody would see."""
    door.known.write_text("@revoked * " + (door.host.server.root / "host_key.pub").read_text())
    door.write(UserKnownHostsFile=str(door.known), StrictHostKeyChecking="no")
    assert "revoked" in await door.refusal(SignInError)


async def test_an_alias_is_what_keys_are_known_by(any_door: Door) -> None:
    any_door.known.write_text("the-alias " + (any_door.host.server.root / "host_key.pub").read_text())
    any_door.write(UserKnownHostsFile=str(any_door.known), HostKeyAlias="the-alias")
    assert await any_door.whoami() == any_door.host.account.name


async def test_an_alias_is_what_a_new_key_is_remembered_by(any_door: Door) -> None:
    any_door.write(
        UserKnownHostsFile=str(any_door.known),
        HostKeyAlias="The-Alias",
        StrictHostKeyChecking="accept-new",
        HashKnownHosts="no",
    )
    assert await any_door.whoami() == any_door.host.account.name
    assert any_door.known.read_text().startswith("the-alias ssh-ed25519 ")


async def test_the_global_file_counts_and_the_second_of_several(any_door: Door) -> None:
    shutil.copy(any_door.host.server.known_hosts, any_door.known)
    any_door.write("gpu", UserKnownHostsFile=f"/no/such/file {any_door.known}")
    any_door.write("gpu2", UserKnownHostsFile="none", GlobalKnownHostsFile=str(any_door.known))
    assert await any_door.whoami() == any_door.host.account.name
    assert await any_door.whoami("gpu2") == any_door.host.account.name


async def test_a_certificate_of_an_unknown_authority_is_no_more_than_the_key_in_it(
    any_door: Door, workspace: Workspace
) -> None:
    authority, stranger = workspace.home / "authority", workspace.home / "stranger"
    keygen(authority)
    keygen(stranger)
    server = any_door.host.server
    sign(authority, server.root / "host_key.pub", "-h", "-n", "127.0.0.1")
    server.restart(HostCertificate=str(server.root / "host_key-cert.pub"))
    any_door.known.write_text(
        f"@cert-authority * {stranger.with_suffix('.pub').read_text()}" + server.known_hosts.read_text()
    )
    any_door.write(UserKnownHostsFile=str(any_door.known))
    assert await any_door.whoami() == any_door.host.account.name
    any_door.write("new", UserKnownHostsFile="none")
    assert fingerprint(server.root / "host_key.pub") in await any_door.refusal(SignInError, "new")


async def test_a_jump_host_s_key_is_under_the_policy_of_its_own_entry(any_door: Door) -> None:
    any_door.host.server.restart(AllowTcpForwarding="yes")
    any_door.write("bastion", UserKnownHostsFile=str(any_door.known), StrictHostKeyChecking="accept-new")
    any_door.write("gpu", ProxyJump="bastion")
    assert await any_door.whoami() == any_door.host.account.name
    assert found_by_ssh(any_door)


async def test_of_many_connections_at_once_each_remembers_a_whole_line(door: Door) -> None:
    """Several processes may meet a new host at the same time; a line twice does no harm, half a line would."""
    door.write(UserKnownHostsFile=str(door.known), StrictHostKeyChecking="accept-new", HashKnownHosts="no")
    assert set(await asyncio.gather(*(door.whoami() for _ in range(5)))) == {door.host.account.name}
    assert len(set(door.known.read_text().splitlines())) == 1
    assert door.known.read_text().endswith("\n")
