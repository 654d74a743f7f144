"""Which ssh gets to a host: the one in process, the user's program, or a connection that is signed in already (H4)."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from conftest import Workspace
from door import Door, fingerprint, keygen
from kernels import started
from masters import Master, control_path
from procs import descendants, read, send, wait_until
from recorder import Recorder, eventually, run, start

from albedo_provisioner.errors import ConfigError, HostKeyError, SignInError, UnreachableError
from albedo_provisioner.hosts import openssh_config
from albedo_provisioner.hosts.control_paths import make_our_directory
from albedo_provisioner.hosts.openssh import ProgramChannel, ProgramTransport
from albedo_provisioner.hosts.openssh_config import resolve
from albedo_provisioner.hosts.remote import RemoteTransport
from albedo_provisioner.hosts.ssh import SSHTransport
from albedo_provisioner.hosts.ssh_channel import SSHChannel

PROCESS, PROGRAM = "in process", "by the program"


class Ways:
    """Tells by which way the door was passed.

    Attributes:
        transport: the way to "gpu".
    """

    def __init__(self, door: Door) -> None:
        self.door = door
        self.transport = RemoteTransport("gpu")

    async def taken(self) -> str:
        """Run a command and say which way it went: in process, by the program, or over which master."""
        told = Recorder()
        channel = await self.transport.open("id -un", told)
        assert (await told.end()).status == 0
        assert told.out.decode().strip() == self.door.host.account.name
        if isinstance(channel, SSHChannel):
            return PROCESS
        assert isinstance(channel, ProgramChannel)
        return channel.master or PROGRAM


@pytest.fixture
async def ways(door: Door) -> AsyncIterator[Ways]:
    ways = Ways(door)
    yield ways
    await ways.transport.close()


def with_control_path(door: Door, workspace: Workspace) -> str:
    """Write an entry with a control path for the door, and return the path for it."""
    door.write(ControlPath=f"{workspace.root}/%r@%h-%C")
    return control_path("gpu")


# -- the config decides


async def test_a_plain_config_is_read_in_process_and_no_ssh_is_asked(
    ways: Ways, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    door.write()
    asked: list[str] = []
    monkeypatch.setattr(openssh_config, "resolve", lambda host, **options: asked.append(host) or resolve(host))
    assert await ways.taken() == PROCESS
    assert asked == []


async def test_ssh_is_asked_once_as_long_as_the_config_is_the_same(
    ways: Ways, door: Door, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_control_path(door, workspace)
    included = workspace.home / "more"
    workspace.add_to_ssh_config(f"Include {included}*\n")
    asked: list[str] = []
    monkeypatch.setattr(openssh_config, "resolve", lambda host, **options: asked.append(host) or resolve(host))
    for _ in range(2):
        assert await ways.taken() == PROCESS
        await ways.transport.builtin.close()
    assert len(asked) == 1
    included.write_text("Match all\n  HostbasedAuthentication yes\n")
    assert await ways.taken() == PROGRAM
    assert len(asked) == 2


async def test_match_exec_with_its_tokens_is_for_the_program(ways: Ways, door: Door, workspace: Workspace) -> None:
    user = door.options.pop("User")
    ran = workspace.root / "ran"
    workspace.add_to_ssh_config(f'Match exec "echo %h %n %p >> {ran}; test %n = gpu"\n  User {user}\n')
    door.write()
    assert await ways.taken() == PROGRAM
    assert ran.read_text().splitlines()[-1].split()[1] == "gpu"


@pytest.mark.parametrize(("control_path", "times"), [("", 1), ("  ControlPath ~/none/%C\n", 2)])
async def test_match_exec_behind_other_criteria_is_run_once(
    ways: Ways, door: Door, workspace: Workspace, control_path: str, times: int
) -> None:
    """Twice where ssh has to be asked for a control path first."""
    ran = workspace.root / "ran"
    door.write()
    criteria = f"host 127.0.0.1 user {door.options['User']} !originalhost other"
    workspace.add_to_ssh_config(f'Match {criteria} exec "echo x >> {ran}"\n  Compression yes\n{control_path}')
    assert await ways.taken() == PROGRAM
    assert ran.read_text() == "x\n" * times


async def test_match_exec_that_is_not_run_for_the_host_changes_nothing(ways: Ways, door: Door) -> None:
    door.workspace.add_to_ssh_config('Match host other exec "true"\n  User nobody\n')
    door.write()
    assert await ways.taken() == PROCESS


async def test_a_host_name_that_ssh_completes_is_for_the_program(ways: Ways, door: Door) -> None:
    door.write(CanonicalizeHostname="yes", CanonicalDomains="localdomain")
    assert await ways.taken() == PROGRAM


async def test_known_hosts_that_a_command_tells_are_for_the_program(ways: Ways, door: Door) -> None:
    script = door.workspace.home / "tell"
    script.write_text(f"#!/bin/sh\ncat {door.host.server.known_hosts}\n")
    script.chmod(0o755)
    door.write(UserKnownHostsFile="none", KnownHostsCommand=str(script))
    assert await ways.taken() == PROGRAM


async def test_a_config_that_only_ssh_understands_is_for_the_program(ways: Ways, door: Door) -> None:
    door.write(Port=f"{door.host.server.port} # not 22")
    try:
        resolve("gpu")
    except ConfigError as error:
        pytest.skip(f"this ssh does not understand it either: {error}")
    assert await ways.taken() == PROGRAM


@pytest.mark.parametrize(
    "setting", ["PKCS11Provider /usr/lib/no-such-module.so", "HostbasedAuthentication yes", "VerifyHostKeyDNS yes"]
)
async def test_what_is_not_there_in_process_is_for_the_program(ways: Ways, door: Door, setting: str) -> None:
    name, _, value = setting.partition(" ")
    door.write(**{name: value})
    assert await ways.taken() == PROGRAM


@pytest.mark.parametrize("known", ["negated", "revoked"])
async def test_a_host_key_that_ssh_alone_takes_is_for_the_program(ways: Ways, door: Door, known: str) -> None:
    """Not refused with the advice to sign in, where a sign-in would find nothing to do."""
    key, port = (door.host.server.root / "host_key.pub").read_text(), door.host.server.port
    door.known.write_text(f"!127.0.0.1,[127.0.0.1]:{port} {key}" if known == "negated" else f"@revoked * {key}")
    policy = "yes" if known == "negated" else "no"
    door.write(UserKnownHostsFile=str(door.known), StrictHostKeyChecking=policy)
    assert await ways.taken() == PROGRAM


async def test_of_a_host_key_that_neither_takes_the_keys_are_told_and_of_a_refusal_behind_it_that(
    ways: Ways, door: Door, workspace: Workspace
) -> None:
    other = workspace.home / "other"
    keygen(other)
    server, key = door.host.server, fingerprint(other.with_suffix(".pub"))
    door.known.write_text(f"[127.0.0.1]:{server.port} {other.with_suffix('.pub').read_text()}")
    door.write(UserKnownHostsFile=str(door.known))
    with pytest.raises(HostKeyError, match="has changed") as caught:
        await ways.transport.open("true", Recorder())
    assert f"ED25519 {key} is known" in str(caught.value)
    door.known.write_text(f"!127.0.0.1,[127.0.0.1]:{server.port} {(server.root / 'host_key.pub').read_text()}")
    server.restart(PubkeyAuthentication="no", PasswordAuthentication="yes")
    with pytest.raises(SignInError, match="Permission denied"):
        await ways.transport.open("true", Recorder())


async def test_a_host_with_algorithms_that_only_ssh_has_is_for_the_program(ways: Ways, door: Door) -> None:
    door.write()
    door.host.server.restart(KexAlgorithms="sntrup761x25519-sha512@openssh.com")
    assert await ways.taken() == PROGRAM


async def test_of_a_host_without_a_common_algorithm_what_it_offers_is_told(ways: Ways, door: Door) -> None:
    door.write()
    door.host.server.restart(Ciphers="aes128-cbc")
    with pytest.raises(UnreachableError, match=r"no algorithm in common: .*[Tt]heir offer: aes128-cbc"):
        await ways.transport.open("true", Recorder())


async def test_a_hardware_key_is_for_the_program(ways: Ways, door: Door) -> None:
    keys = door.workspace.home / ".ssh"
    keys.mkdir(mode=0o700)
    (keys / "token.pub").write_text("sk-ssh-ed25519@openssh.com AAAA\n")
    door.write(IdentityFile=f"{keys}/token\n  IdentityFile {door.host.server.client_key}")
    assert await ways.taken() == PROGRAM


@pytest.mark.parametrize(("choice", "way"), [("auto", PROCESS), ("builtin", PROCESS), ("program", PROGRAM)])
async def test_the_user_decides(ways: Ways, door: Door, monkeypatch: pytest.MonkeyPatch, choice: str, way: str) -> None:
    monkeypatch.setenv("ALBEDO_SSH", choice)
    door.write()
    assert await ways.taken() == way


async def test_a_choice_that_there_is_not_is_refused(ways: Ways, door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALBEDO_SSH", "openssh")
    door.write()
    with pytest.raises(ConfigError, match="auto, builtin or program"):
        await ways.taken()


async def test_without_an_ssh_program_all_is_done_in_process(
    ways: Ways, door: Door, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_control_path(door, workspace)
    (make_our_directory() / "another-host's").touch()
    monkeypatch.setenv("PATH", str(workspace.home))
    assert await ways.taken() == PROCESS


async def test_many_commands_at_once_are_no_storm_of_connections(door: Door) -> None:
    """The server turns away those that are too many before they have signed in (MaxStartups)."""
    door.host.server.restart(MaxStartups="6")
    door.write()
    transport = ProgramTransport("gpu")
    told = await asyncio.gather(*(run(transport, f"echo {number}") for number in range(16)))
    assert [int(each.out) for each in told] == list(range(16))


@pytest.mark.parametrize("transport", [SSHTransport, ProgramTransport])
async def test_included_files_and_percent_tokens_mean_the_same_to_both(
    door: Door, transport: type[SSHTransport | ProgramTransport]
) -> None:
    door.way = transport
    user = door.options.pop("User")
    home = door.workspace.home
    shutil.copy(door.host.server.known_hosts, home / f"known-gpu-127.0.0.1-{door.host.server.port}-{user}")
    shutil.copy(door.host.server.client_key, home / f"key-127.0.0.1-{user}")
    (home / "more.conf").write_text(f"User {user}\nIdentityFile {home}/key-%h-%r\n")
    door.options["IdentityFile"] = None
    door.write(UserKnownHostsFile=f"{home}/known-%n-%h-%p-%r", IdentitiesOnly="yes", Include=f"{home}/mo*.conf")
    assert await door.whoami() == user


# -- jump hosts and proxies, through a second connection to a real server


@pytest.mark.parametrize("transport", [SSHTransport, ProgramTransport])
@pytest.mark.parametrize("setting", ["ProxyJump", "ProxyCommand"])
async def test_both_ways_lead_through_a_jump_host_and_a_proxy_command(
    door: Door, transport: type[SSHTransport | ProgramTransport], setting: str
) -> None:
    door.host.server.restart(AllowTcpForwarding="yes")
    door.way = transport
    door.write("bastion")
    value = {"ProxyJump": "bastion", "ProxyCommand": f"ssh -F {door.host.ssh_config} -W [%h]:%p bastion"}[setting]
    door.write("gpu", **{setting: value})
    assert await door.whoami() == door.host.account.name
    await door.transports[0].close()
    await eventually(lambda: not door.host.connected())


@pytest.mark.parametrize("setting", ["ProxyJump", "ProxyCommand"])
async def test_the_program_tells_of_a_jump_host_that_lets_nobody_in(door: Door, setting: str) -> None:
    door.host.server.restart(AllowTcpForwarding="yes")
    door.way = ProgramTransport
    door.write("bastion", IdentityFile="/no/such/key", IdentitiesOnly="yes")
    value = {"ProxyJump": "bastion", "ProxyCommand": f"ssh -F {door.host.ssh_config} -W [%h]:%p bastion"}[setting]
    door.write("gpu", **{setting: value})
    message = await door.refusal(SignInError)
    assert "gpu is reached through another host" in message
    assert "Permission denied" in message
    assert "jupyter albedo login gpu" in message


async def test_the_program_s_other_failures_have_the_same_words(door: Door) -> None:
    door.way = ProgramTransport
    door.write()
    door.write("closed", Port="1")
    door.write("broken", ProxyCommand="sh -c 'echo no way out >&2; exit 1'")
    assert "cannot be reached: connection refused" in await door.refusal(UnreachableError, "closed")
    assert "no way out" in await door.refusal(UnreachableError, "broken")
    assert "could not resolve hostname" in await door.refusal(UnreachableError, "no-such-host.invalid")
    door.host.server.restart(MaxSessions="0")
    assert "does not run commands" in await door.refusal(UnreachableError)
    door.workspace.add_to_ssh_config("Host gpu\n  NoSuchOption yes\n")
    assert "nosuchoption" in (await door.refusal(ConfigError)).lower()


# -- masters


async def test_a_master_of_the_user_s_own_is_used_from_when_it_is_there(
    ways: Ways, door: Door, workspace: Workspace
) -> None:
    path = with_control_path(door, workspace)
    assert await ways.taken() == PROCESS
    await ways.transport.builtin.close()
    with Master("gpu", path):
        assert await ways.taken() == path
        assert door.host.connected() == 1


@pytest.mark.parametrize("how", ["killed", "told to exit"])
async def test_the_death_of_a_master_is_survived(ways: Ways, door: Door, workspace: Workspace, how: str) -> None:
    path = with_control_path(door, workspace)
    with Master("gpu", path) as master:
        _, told = await start(ways.transport, "echo ready; cat")
        await told.until(lambda: told.out)
        if how == "killed":
            master.kill()
            assert os.path.exists(path), "its socket is left"  # noqa: ASYNC240
        else:
            process = master.process
            assert process is not None
            send(process, signal.SIGTERM)
        end = await told.end()
        assert end.status is None
        assert end.error is not None
        assert await ways.taken() == PROCESS


async def test_a_master_without_room_leaves_the_rest_to_new_connections(
    ways: Ways, door: Door, workspace: Workspace
) -> None:
    door.host.server.restart(MaxSessions="2")
    path = with_control_path(door, workspace)
    with Master("gpu", path):
        held = [await start(ways.transport, "cat") for _ in range(2)]
        assert await ways.taken() == PROCESS
        for number, (channel, told) in enumerate(held):
            channel.write(b"%d" % number)
            await told.until(lambda told=told, number=number: told.out == b"%d" % number)  # type: ignore[misc]
            channel.close()
            await told.end()


async def test_a_master_without_room_at_a_host_that_wants_a_sign_in_is_said(
    ways: Ways, door: Door, workspace: Workspace
) -> None:
    door.host.server.restart(MaxSessions="1")
    path = with_control_path(door, workspace)
    with Master("gpu", path):
        await start(ways.transport, "cat")
        door.host.server.reconfigure(MaxSessions="1", PubkeyAuthentication="no")
        with pytest.raises(SignInError, match="no room for another session"):
            await ways.taken()


async def test_a_master_that_does_not_answer_is_left_and_its_channels_learn_it_at_once(
    ways: Ways, door: Door, workspace: Workspace
) -> None:
    path = with_control_path(door, workspace)
    with Master("gpu", path):
        one, one_told = await start(ways.transport, "cat")
        _, other_told = await start(ways.transport, "cat")
        door.host.freeze()
        one.suspect()
        assert (await one_told.end(2)).error is not None
        assert (await other_told.end(2)).error is not None
        assert await ways.taken() == PROCESS
        await ways.transport.builtin.close()
        door.host.thaw()


async def test_a_master_that_has_become_silent_holds_up_an_open_for_seconds_only(
    ways: Ways, door: Door, workspace: Workspace
) -> None:
    path = with_control_path(door, workspace)
    with Master("gpu", path):
        door.host.freeze()
        async with asyncio.timeout(8):
            assert await ways.taken() == PROCESS
        door.host.thaw()


async def test_a_socket_of_another_user_is_not_used(ways: Ways, door: Door, workspace: Workspace) -> None:
    path = with_control_path(door, workspace)
    with Master("gpu", path):
        os.chown(path, door.host.account.uid, -1)
        assert await ways.taken() == PROCESS
        os.chown(path, os.getuid(), -1)
        await ways.transport.builtin.close()
        assert await ways.taken() == path


async def test_a_jump_host_that_the_user_is_signed_in_to_lets_us_through(
    ways: Ways, door: Door, workspace: Workspace
) -> None:
    server = door.host.server
    server.restart(AllowTcpForwarding="yes")
    door.write("bastion", ControlPath=f"{workspace.root}/bastion", IdentityFile="/no/such/key", IdentitiesOnly="yes")
    door.write("gpu", ProxyJump="bastion")
    door.write("by-key", ControlPath=f"{workspace.root}/bastion")
    with Master("by-key", f"{workspace.root}/bastion"):
        assert await ways.taken() == PROGRAM


async def test_a_kernel_moves_between_the_ways_and_loses_nothing(door: Door, workspace: Workspace) -> None:
    """L5: first in process, then over a master, then in process again."""
    path = with_control_path(door, workspace)
    folder = door.host.make_folder("proj")
    async with started(f"gpu:{folder}") as kernel:

        async def attached(connections: int) -> None:
            await eventually(
                lambda: kernel.status["connections"] == connections and kernel.status["step"] == "attached", 30
            )

        cell = kernel.begin("import time\nfor i in range(400): print(i, flush=True); time.sleep(0.02)\n'the end'")
        await cell.until(lambda: len(cell.lines) > 20)
        in_process = door.host.server.connections()
        with Master("gpu", path) as master:
            for connection in in_process:
                for process in (connection, *descendants(connection.pid)):
                    if process.exe.startswith("sshd"):
                        send(process, signal.SIGKILL)
            await attached(2)
            assert door.host.connected() == 1
            master.kill()
            await attached(3)
        await cell.done()
        assert cell.lines == [str(i) for i in range(400)]
        assert cell.value == "'the end'"


PROGRAM_OF_ITS_OWN = """
import asyncio, sys
sys.path.insert(0, sys.argv[2])
from albedo_provisioner.hosts import io_thread
from albedo_provisioner.hosts.pool import HostPool
from recorder import start

async def hold():
    channel, told = await start(HostPool.get().transport_for(sys.argv[1]), "echo ready; cat")
    await told.until(lambda: told.out)
    return channel, told

kept = io_thread.run_blocking(hold())
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, None])
def test_the_program_s_processes_end_with_ours_and_never_by_a_ctrl_c(
    door: Door, monkeypatch: pytest.MonkeyPatch, how: signal.Signals | None
) -> None:
    monkeypatch.setenv("ALBEDO_SSH", "program")
    door.write()
    command = [sys.executable, "-c", PROGRAM_OF_ITS_OWN, "gpu", str(Path(__file__).parent)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"ready\n"
        (ssh,) = [each for each in descendants(process.pid) if each.exe == "ssh"]
        assert os.getsid(ssh.pid) != os.getsid(process.pid), "a Ctrl-C goes to all of a terminal's session"
        if how is None:
            process.stdin.close()
        else:
            process.send_signal(how)
        process.wait(20)
    wait_until(lambda: (now := read(ssh.pid)) is None or now.state == "Z", what="ssh has ended")
    wait_until(lambda: not door.host.connected(), what="no connection is left")
