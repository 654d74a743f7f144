"""Who gets in, by which way, and what a person is told when nobody does (H1, H4)."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator

import psutil
import pytest
from conftest import Workspace
from door import Door, fingerprint, keygen, sign
from recorder import eventually

from albedo_provisioner import Hosts
from albedo_provisioner.errors import ConfigError, SignInError, UnreachableError
from albedo_provisioner.hosts.openssh import ProgramTransport
from albedo_provisioner.hosts.ssh import SSHTransport
from albedo_provisioner.hosts.transport import Transport


@pytest.fixture
def agent(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Run an ssh-agent; return what adds a key to it."""
    path = workspace.root / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()  # it listens
    monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
    askpass = workspace.root / "askpass"
    askpass.write_text("#!/bin/sh\necho secret\n")
    askpass.chmod(0o700)

    def add(*arguments: str) -> None:
        environ = {**os.environ, "SSH_ASKPASS": str(askpass), "SSH_ASKPASS_REQUIRE": "force", "DISPLAY": ":9"}
        subprocess.run(["ssh-add", "-q", *arguments], env=environ, check=True, capture_output=True)

    yield add
    process.terminate()
    process.wait()
    process.stdout.close()


# -- getting in


async def test_alias_port_user_and_key_come_from_the_config(door: Door) -> None:
    door.write()
    assert await door.whoami() == door.host.account.name


async def test_a_user_in_the_spelling_wins_over_the_config(door: Door) -> None:
    door.write(User="nobody-at-all")
    assert await door.whoami(f"{door.host.account.name}@gpu") == door.host.account.name


async def test_include_and_match_are_honoured(door: Door, workspace: Workspace) -> None:
    account = door.options.pop("User")
    door.write()
    (workspace.root / "more").write_text(f"Match originalhost gpu\n  User {account}\n")
    workspace.add_to_ssh_config(f"Match all\nInclude {workspace.root}/mo*\n")
    assert await door.whoami() == account


async def test_match_final_sees_what_the_config_said_before(door: Door, workspace: Workspace) -> None:
    account = door.options.pop("User")
    door.write()
    workspace.add_to_ssh_config(f"Match final originalhost gpu\n  User {account}\n")
    assert await door.whoami() == account


@pytest.mark.parametrize("jumps", [False, True])
async def test_match_final_leaves_the_ports_that_are_spelled(door: Door, workspace: Workspace, jumps: bool) -> None:
    """Neither the port of a jump host nor the one of the host itself is taken from elsewhere."""
    door.host.server.restart(AllowTcpForwarding="yes")
    account, port = door.host.account.name, door.options.pop("Port")
    door.write("gpu 127.0.0.1", **({"ProxyJump": f"{account}@127.0.0.1:{port}", "Port": port} if jumps else {}))
    text = workspace.ssh_config.read_text()
    if jumps:  # the jump host has an entry without a port
        text = text.replace("Host gpu 127.0.0.1", "Host gpu")
        workspace.ssh_config.write_text(text)
        door.write("127.0.0.1", User="nobody-at-all")
    workspace.add_to_ssh_config("Match final all\n  ForwardX11Trusted yes\n")
    assert await door.whoami("gpu" if jumps else f"{account}@gpu:{port}") == account


async def test_the_config_and_known_hosts_of_the_home_are_read_when_no_other_config_is_named(
    door: Door, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    door.write(UserKnownHostsFile=None)
    ssh = workspace.home / ".ssh"
    ssh.mkdir(mode=0o700)
    shutil.copy(workspace.ssh_config, ssh / "config")
    shutil.copy(door.host.server.known_hosts, ssh / "known_hosts")
    monkeypatch.delenv("ALBEDO_SSH_CONFIG")
    assert await door.whoami() == door.host.account.name


async def test_a_missing_identity_file_does_not_keep_the_other_from_being_used(door: Door) -> None:
    door.write(IdentityFile=f"/no/such/key\n  IdentityFile {door.host.server.client_key}")
    assert await door.whoami() == door.host.account.name


async def test_a_key_of_the_agent_opens_the_door(door: Door, agent: Callable[..., None]) -> None:
    key = door.key("held", "secret")
    agent(str(key))
    key.unlink()
    door.write(IdentityFile="/no/such/key")
    assert await door.whoami() == door.host.account.name


async def test_a_locked_key_is_used_through_the_agent_and_no_other_of_its_keys_with_identities_only(
    door: Door, agent: Callable[..., None], workspace: Workspace
) -> None:
    locked = door.key("locked", "secret")
    for number in range(7):  # more than a server listens to (MaxAuthTries 6)
        other = workspace.home / f"other{number}"
        keygen(other)
        agent(str(other))
    agent(str(locked))
    door.write(IdentityFile=str(locked), IdentitiesOnly="yes")
    assert await door.whoami() == door.host.account.name


async def test_a_certificate_beside_the_key_opens_the_door(door: Door, workspace: Workspace) -> None:
    authority = door.key("authority")
    accepted = door.host.server.root / f"keys-{door.host.account.name}"
    accepted.write_text(f"cert-authority {authority.with_suffix('.pub').read_text()}")
    key = workspace.home / "mine"
    keygen(key)
    sign(authority, key.with_suffix(".pub"), "-n", door.host.account.name)
    door.write(IdentityFile=str(key))
    assert await door.whoami() == door.host.account.name


async def test_a_host_certificate_of_a_known_authority_is_trusted(door: Door, workspace: Workspace) -> None:
    authority = workspace.home / "host-authority"
    keygen(authority)
    host_key = door.host.server.root / "host_key.pub"
    sign(authority, host_key, "-h", "-n", "127.0.0.1")
    certificate = door.host.server.root / "host_key-cert.pub"
    door.host.server.restart(HostCertificate=str(certificate))
    known = workspace.home / "known"
    known.write_text(f"@cert-authority * {authority.with_suffix('.pub').read_text()}")
    door.write(UserKnownHostsFile=str(known))
    assert await door.whoami() == door.host.account.name


@pytest.mark.parametrize("hops", [1, 2])
async def test_jump_hosts_lead_to_the_host_and_close_with_it(door: Door, hops: int) -> None:
    door.host.server.restart(AllowTcpForwarding="yes")
    door.write("bastion")
    door.write("bastion2")
    door.write("gpu", ProxyJump=",".join(["bastion", "bastion2"][:hops]))
    assert await door.whoami() == door.host.account.name
    assert door.host.connected() == hops + 1
    await door.transports[0].close()
    await eventually(lambda: not door.host.connected())


async def test_jump_hosts_in_a_circle_are_told_as_that_and_cost_no_other_host_its_answer(
    door: Door, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H3, H4."""
    door.host.server.restart(AllowTcpForwarding="yes")
    door.write("direct", ProxyJump="none")
    door.write("w1", ProxyJump="bast")
    door.write("w2", ProxyJump="w3")
    door.write("w3", ProxyJump="w2")
    loops = workspace.ssh_config.read_text()
    door.write("*", ProxyJump="bast")
    states = Hosts().probe_all(["w1", "direct", "w2", "bast"])
    assert {name: state.state for name, state in states.items()} == {
        "w1": "unreachable",
        "direct": "ready",
        "w2": "unreachable",
        "bast": "unreachable",
    }
    assert states["w1"].advice.startswith(
        "w1 cannot be reached: the jump hosts in your ssh config lead in a circle (w1 through bast, bast through bast)."
        " Give bast an entry with `ProxyJump none` in front of"
    )
    assert "(w2 through w3, w3 through w2). Give w2 an entry" in states["w2"].advice
    assert "(bast through bast)" in states["bast"].advice
    # ssh itself notices it where no entry gives the jump host another name.
    workspace.ssh_config.write_text("Host *\n  ProxyJump alone\n")
    state = Hosts().probe("alone")
    assert state.advice.count("alone through alone") == state.advice.count("`ProxyJump none`") == 1
    monkeypatch.setenv("ALBEDO_SSH", "program")
    state = Hosts().probe("alone", fresh=True)
    assert state.advice.count("alone through alone") == state.advice.count("`ProxyJump none`") == 1
    monkeypatch.delenv("ALBEDO_SSH")
    # What is advised helps.
    workspace.ssh_config.write_text(f"Host bast\n  ProxyJump none\n{loops}")
    door.write("*", ProxyJump="bast")
    assert await door.whoami("w1") == door.host.account.name


async def test_a_proxy_command_runs_in_a_shell_and_may_talk_on_its_standard_error(door: Door) -> None:
    door.host.server.restart(AllowTcpForwarding="yes")
    door.write("bastion")
    inner = f"ssh -F {door.host.ssh_config} -W %h:%p bastion"
    door.write("gpu", ProxyCommand=f"sh -c 'echo noise >&2; ulimit -c 0; exec {inner}'")
    children = set(psutil.Process().children())
    assert await door.whoami() == door.host.account.name
    for transport in door.transports:
        await transport.close()
    # The command's end is waited for on this test's loop, which is about to close.
    await eventually(lambda: set(psutil.Process().children()) <= children)


# -- not getting in


async def test_an_unknown_host_key_is_never_accepted_and_the_message_says_what_to_run(
    door: Door, workspace: Workspace
) -> None:
    door.write(UserKnownHostsFile=str(workspace.root / "missing"))
    message = await door.refusal(SignInError)
    assert f"ED25519 {fingerprint(door.host.server.root / 'host_key.pub')}" in message
    assert (
        f"`ALBEDO_HOME={workspace.albedo_home} ALBEDO_SSH_CONFIG={workspace.ssh_config} jupyter albedo login gpu`"
        in message
    )
    assert not (workspace.root / "missing").exists()


async def test_a_changed_host_key_is_told_apart_from_an_unknown_one(door: Door, workspace: Workspace) -> None:
    other = workspace.home / "other"
    keygen(other)
    known = workspace.home / "known"
    known.write_text(f"[127.0.0.1]:{door.host.server.port} {other.with_suffix('.pub').read_text()}")
    door.write(UserKnownHostsFile=str(known))
    message = await door.refusal(SignInError)
    assert "has changed" in message
    assert fingerprint(other.with_suffix(".pub")) in message
    assert fingerprint(door.host.server.root / "host_key.pub") in message


async def test_a_known_hosts_file_with_a_malformed_line_still_counts(door: Door, workspace: Workspace) -> None:
    known = workspace.home / "known"
    known.write_text("nonsense\n@what ever it is\n" + door.host.server.known_hosts.read_text())
    door.write(UserKnownHostsFile=str(known))
    assert await door.whoami() == door.host.account.name


@pytest.mark.parametrize("way", [SSHTransport, ProgramTransport])
@pytest.mark.parametrize("asks", [False, True])
async def test_a_refused_key_is_named_with_what_helps(door: Door, way: type[Transport], asks: bool) -> None:
    """A sign-in by hand, where the server would ask for something."""
    door.way = way
    key = door.workspace.home / "stranger"
    keygen(key)
    if asks:
        door.host.server.restart(PasswordAuthentication="yes")
    door.write(IdentityFile=str(key), IdentitiesOnly="yes")
    message = await door.refusal(SignInError)
    assert f"Permission denied ({'publickey,password' if asks else 'publickey'})" in message
    assert fingerprint(key.with_suffix(".pub")) in message
    places = f"ALBEDO_HOME={door.workspace.albedo_home} ALBEDO_SSH_CONFIG={door.workspace.ssh_config}"
    assert (f"`{places} jupyter albedo login gpu`" in message) is asks
    assert ("into ~/.ssh/authorized_keys there" in message) is not asks


@pytest.mark.parametrize("public_half", [True, False])
async def test_the_ssh_program_has_a_sign_in_by_hand_where_a_key_is_locked(
    door: Door, monkeypatch: pytest.MonkeyPatch, public_half: bool
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/no/such/agent")
    door.way = ProgramTransport
    if public_half:
        key = door.key("locked", "secret")
    else:  # an old key, which tells nothing of itself while it is locked
        key = door.workspace.home / "locked"
        keygen(key, "secret", "-t", "rsa", "-m", "PEM")
        key.with_suffix(".pub").unlink()
    door.write(IdentityFile=str(key), IdentitiesOnly="yes")
    message = await door.refusal(SignInError)
    assert "jupyter albedo login gpu`" in message
    assert "authorized_keys" not in message


async def test_no_key_at_all_is_said(door: Door) -> None:
    door.write(IdentityFile="/no/such/key")
    message = await door.refusal(SignInError)
    assert "Permission denied (publickey)" in message
    assert "/no/such/key: no such file" in message


async def test_a_locked_key_asks_nothing_and_the_message_says_how_to_unlock_it(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = door.key("locked", "secret")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/no/such/agent")
    door.write(IdentityFile=str(key))
    message = await door.refusal(SignInError)
    assert f"{key} needs a passphrase" in message
    assert f"`ssh-add {key}`" in message


async def test_a_password_is_never_asked_for(door: Door) -> None:
    door.host.server.restart(
        PasswordAuthentication="yes", KbdInteractiveAuthentication="yes", PubkeyAuthentication="no"
    )
    door.write()
    assert "Permission denied (keyboard-interactive,password)" in await door.refusal(SignInError)


@pytest.mark.parametrize("way", [SSHTransport, ProgramTransport])
async def test_a_second_factor_is_a_sign_in_that_we_cannot_do(door: Door, way: type[Transport]) -> None:
    """The key that was taken is not said to be refused."""
    door.way = way
    door.host.server.restart(PasswordAuthentication="yes", AuthenticationMethods="publickey,password")
    door.write()
    message = await door.refusal(SignInError)
    assert "Permission denied (password); ED25519 SHA256:" in message
    assert "was accepted, and the server wants a second factor as well. Run `" in message
    assert "refused" not in message


@pytest.mark.parametrize("way", [SSHTransport, ProgramTransport])
@pytest.mark.parametrize("setting", ["PubkeyAuthentication no", "PreferredAuthentications password"])
async def test_a_config_that_leaves_out_what_the_host_takes_is_named(
    door: Door, way: type[Transport], setting: str
) -> None:
    """A sign-in in a terminal would ask nothing, so none is advised."""
    door.way = way
    name, _, value = setting.partition(" ")
    door.write(**{name: value})
    message = await door.refusal(SignInError)
    assert "Take that setting out" in message
    assert name in message
    assert "jupyter albedo login" not in message


async def test_a_name_that_does_not_exist_is_said(door: Door) -> None:
    message = await door.refusal(UnreachableError, "no-such-host.invalid")
    assert "could not resolve hostname no-such-host.invalid" in message


async def test_a_refused_port_is_said_with_the_address_behind_the_alias(door: Door) -> None:
    door.host.down()
    door.write()
    message = await door.refusal(UnreachableError)
    assert f"gpu (127.0.0.1:{door.host.server.port}) cannot be reached: connection refused" in message
    door.host.up()


async def test_a_server_that_is_no_ssh_server_is_said(door: Door) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        door.write(Port=str(listener.getsockname()[1]))
        message = await door.refusal(UnreachableError, connect_timeout=0.3)
    assert "timed out while" in message


async def test_a_failing_jump_host_is_named_with_its_own_trouble(door: Door, workspace: Workspace) -> None:
    door.write("bastion", UserKnownHostsFile=str(workspace.root / "missing"))
    door.write("gpu", ProxyJump="bastion")
    message = await door.refusal(SignInError)
    assert message.startswith("gpu is reached through bastion, and that failed. The host key of bastion is not known")
    assert (
        f"`ALBEDO_HOME={workspace.albedo_home} ALBEDO_SSH_CONFIG={workspace.ssh_config} jupyter albedo login gpu`"
        in message
    )


@pytest.mark.parametrize("way", [SSHTransport, ProgramTransport])
@pytest.mark.parametrize("setting", ["ProxyJump", "ProxyCommand"])
async def test_an_unknown_key_on_the_way_is_told_with_its_fingerprint(
    door: Door, workspace: Workspace, way: type[Transport], setting: str
) -> None:
    """H1: a person can accept it."""
    door.way = way
    door.host.server.restart(AllowTcpForwarding="yes")
    key = f"ED25519 {fingerprint(door.host.server.root / 'host_key.pub')}"
    command = {"ProxyJump": "bastion", "ProxyCommand": f"ssh -F {workspace.ssh_config} -W [%h]:%p bastion"}[setting]
    door.write("bastion", UserKnownHostsFile=str(door.known))
    door.write("gpu", **{setting: command})
    message = await door.refusal(SignInError)
    assert key in message
    assert "not known" in message
    assert "jupyter albedo login gpu` in a terminal and accept" in message
    # Nobody takes another key for a new one.
    keygen(workspace.home / "other")
    other = (workspace.home / "other.pub").read_text()
    door.known.write_text(f"[127.0.0.1]:{door.host.server.port} {other}")
    message = await door.refusal(SignInError)
    assert key in message
    assert re.search("has changed|another key than before", message)
    # The way is free, and it is the host's own key.
    shutil.copy(door.host.server.known_hosts, door.known)
    door.write("lab", UserKnownHostsFile="/no/such/file", **{setting: command})
    message = await door.refusal(SignInError, "lab")
    assert message.startswith(f"The host key of lab is not known: it offers {key}. Run `")


@pytest.mark.parametrize("way", [SSHTransport, ProgramTransport])
async def test_a_proxy_command_that_has_to_sign_in_says_so(door: Door, way: type[Transport]) -> None:
    door.way = way
    door.write("bastion", IdentityFile="/no/such/key", IdentitiesOnly="yes")
    door.write(ProxyCommand=f"ssh -F {door.workspace.ssh_config} -W [%h]:%p bastion")
    message = await door.refusal(SignInError)
    assert "gpu is reached through another host, and that failed" in message
    assert "Permission denied (publickey)" in message


@pytest.mark.parametrize("way", [SSHTransport, ProgramTransport])
async def test_a_jump_host_that_forbids_forwarding_is_said(door: Door, way: type[Transport]) -> None:
    door.way = way
    door.write("bastion")
    door.write("gpu", ProxyJump="bastion")
    message = await door.refusal(UnreachableError)
    assert re.search(r"its jump host( bastion)? forbids forwarding \(administratively prohibited\)\.", message)
    door.write("lab", ProxyCommand=f"ssh -F {door.workspace.ssh_config} -W [%h]:%p bastion")
    assert "its ProxyCommand's host forbids forwarding" in await door.refusal(UnreachableError, "lab")
    await eventually(lambda: not door.host.connected())


async def test_a_failing_proxy_command_is_quoted(door: Door) -> None:
    door.write(ProxyCommand="sh -c 'echo no way out >&2; exit 1'")
    assert "no way out" in await door.refusal(UnreachableError)


async def test_a_proxy_command_that_does_not_exist_is_said(door: Door) -> None:
    door.write(ProxyCommand="no-such-program %h %p")
    assert "no-such-program" in await door.refusal(UnreachableError)


async def test_a_host_that_runs_no_commands_is_said(door: Door) -> None:
    door.host.server.restart(MaxSessions="0")
    door.write()
    assert "does not run commands" in await door.refusal(UnreachableError)


async def test_a_broken_config_is_named_with_file_and_line(door: Door, workspace: Workspace) -> None:
    workspace.ssh_config.write_text("Host gpu\n  Port many\n")
    message = await door.refusal(ConfigError)
    assert f"{workspace.ssh_config} line 2" in message


@pytest.mark.parametrize("spelling", ["", "ann@", "a:b:c:d@"])
async def test_a_text_that_is_no_host_is_a_config_error(door: Door, spelling: str) -> None:
    assert "is not a host" in await door.refusal(ConfigError, spelling)
