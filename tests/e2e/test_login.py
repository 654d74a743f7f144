"""`jupyter albedo login`: the person signs in once in a terminal, and kernels go through."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Workspace
from door import Door, keygen
from faces import Real
from kernels import started
from masters import control_path, ssh
from procs import wait_until
from relay import RELAY
from terminal import Terminal, albedo

from albedo_provisioner.errors import SignInError
from albedo_provisioner.hosts import io_thread
from albedo_provisioner.hosts.hosts import AsyncHosts, Hosts
from albedo_provisioner.kernels import retries
from albedo_provisioner.kernels.survey import survey_on_io_thread

PASSWORD = "open sesame 7"


@pytest.fixture
def no_key(sshd_host: Real) -> Iterator[Real]:
    """Return a real host that lets nobody in but by password."""
    sshd_host.account.set_password(PASSWORD)
    sshd_host.server.restart(PasswordAuthentication="yes", PubkeyAuthentication="no")
    yield sshd_host
    log_out(sshd_host.alias)
    sshd_host.account.set_password("")


def sockets(workspace: Workspace) -> list[Path]:
    """Return our control sockets."""
    return list((workspace.albedo_home / "ssh").glob("*"))


def log_in(alias: str | None, *answers: tuple[str, str]) -> str:
    """Sign in, answering what is asked; return what was shown."""
    assert alias is not None
    with Terminal(*albedo("login", alias)) as terminal:
        for question, answer in answers:
            terminal.expect(question)
            terminal.type(answer)
        assert terminal.end() == 0, terminal.shown
        return " ".join(terminal.shown.split())


def log_out(alias: str | None) -> str:
    """Sign out, and return what was said."""
    command = albedo("login", "--logout", str(alias))
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True).stdout


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[2])
from albedo_provisioner.hosts import io_thread
from albedo_provisioner.hosts.pool import HostPool
from recorder import run

async def whoami():
    return (await run(HostPool.get().transport_for(sys.argv[1]), "id -un")).out.decode().strip()

print(io_thread.run_blocking(whoami()))
"""


def whoami_elsewhere(alias: str | None) -> str:
    """Run a command on a host from another process, and return the account's name."""
    command = [sys.executable, "-c", PROGRAM, str(alias), str(Path(__file__).parent)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert told.returncode == 0, told.stderr
    return told.stdout.strip()


async def test_a_password_is_asked_for_once_and_kernels_of_all_processes_go_through(
    no_key: Real, workspace: Workspace
) -> None:
    with pytest.raises(SignInError, match=r"Permission denied \(password\).*jupyter albedo login") as caught:
        async with started(no_key.location()):
            pass
    assert caught.value.state == "needs_auth"
    assert "the server takes no keys" in str(caught.value)
    shown = log_in(no_key.alias, ("password:", PASSWORD))
    assert f"Signed in to {no_key.alias}" in shown
    (path,) = sockets(workspace)
    assert str(path) in shown
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    async with started(no_key.location()) as kernel:
        assert await kernel.value("6 * 7") == "42"
        assert no_key.connected() == 1
        assert whoami_elsewhere(no_key.alias) == no_key.account.name
        assert no_key.connected() == 1
    assert "already" in log_in(no_key.alias)
    assert "Signed out" in log_out(no_key.alias)
    wait_until(lambda: not sockets(workspace) and not no_key.connected(), what="signed out")


async def test_a_link_that_waits_for_a_sign_in_goes_on_as_soon_as_there_was_one(
    sshd_host: Real, monkeypatch: pytest.MonkeyPatch, no_key_later: None
) -> None:
    """The kernel's first connection was by key, in process; it goes on over the master."""
    monkeypatch.setattr(retries, "_FIRST_RETRY", 60.0)
    async with started(sshd_host.location()) as kernel:
        await kernel.run("x = 41")
        cell = kernel.begin("import time\nfor i in range(20): print(i, flush=True); time.sleep(0.2)")
        await cell.until(lambda: len(cell.lines) > 2)
        sshd_host.server.reconfigure(PasswordAuthentication="yes", PubkeyAuthentication="no")
        sshd_host.cut()
        wait_until(lambda: "Permission denied" in str(kernel.status["away"]), 20, "it waits for a sign-in")
        log_in(sshd_host.alias, ("password:", PASSWORD))
        wait_until(lambda: kernel.status["step"] == "attached", 5, f"it is attached again: {kernel.status}")
        await cell.done()
        assert cell.lines == [str(i) for i in range(20)]
        assert await kernel.value("x") == "41"


@pytest.fixture
def no_key_later(sshd_host: Real) -> Iterator[None]:
    """Let a test switch the host to passwords."""
    sshd_host.account.set_password(PASSWORD)
    yield
    log_out(sshd_host.alias)
    sshd_host.account.set_password("")


def test_a_second_factor_is_asked_for_by_the_server_s_own_questions(no_key: Real, workspace: Workspace) -> None:
    no_key.server.restart(
        UsePAM="yes",
        KbdInteractiveAuthentication="yes",
        PubkeyAuthentication="yes",
        AuthenticationMethods="publickey,keyboard-interactive",
    )
    shown = log_in(no_key.alias, ("Password:", PASSWORD))
    assert f"Signed in to {no_key.alias}" in shown
    assert len(sockets(workspace)) == 1


def test_a_wrong_password_leaves_nothing_and_says_so(no_key: Real, workspace: Workspace) -> None:
    with Terminal(*albedo("login", str(no_key.alias))) as terminal:
        for _ in range(3):
            terminal.expect("password:")
            terminal.type("no")
        assert terminal.end() == 1
    assert f"The sign-in to {no_key.alias} failed" in terminal.shown
    assert sockets(workspace) == []


def test_a_locked_key_s_passphrase_is_asked_for(door: Door) -> None:
    door.write(IdentityFile=str(door.key("locked", "secret")), IdentitiesOnly="yes")
    shown = log_in("gpu", ("Enter passphrase", "secret"))
    assert "Signed in to gpu" in shown
    assert whoami_elsewhere("gpu") == door.host.account.name
    assert "Signed out" in log_out("gpu")


def test_an_unknown_host_key_is_accepted_in_the_terminal_and_no_connection_is_left(
    door: Door, workspace: Workspace
) -> None:
    door.write(UserKnownHostsFile=str(door.known))
    shown = log_in("gpu", ("(yes/no/[fingerprint])?", "yes"))
    assert "is known now" in shown
    assert sockets(workspace) == []
    assert not door.host.connected()
    assert "needs no sign-in" in log_in("gpu")


async def test_a_link_that_waits_for_a_host_key_goes_on_as_soon_as_it_was_accepted(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No connection is left behind then: the line in the known hosts is what is noticed."""
    monkeypatch.setattr(retries, "_FIRST_RETRY", 60.0)
    shutil.copy(door.host.server.known_hosts, door.known)
    door.write(UserKnownHostsFile=str(door.known))
    async with started(f"gpu:{door.host.make_folder('proj')}") as kernel:
        door.known.write_text("")
        door.host.cut()
        wait_until(lambda: "is not known" in str(kernel.status["away"]), 20, "it waits for the key to be accepted")
        assert "is known now" in log_in("gpu", ("(yes/no/[fingerprint])?", "yes"))
        wait_until(lambda: kernel.status["step"] == "attached", 5, f"it is attached again: {kernel.status}")
        assert await kernel.value("6 * 7") == "42"


def test_a_host_that_lets_us_in_gets_no_connection(sshd_host: Real, workspace: Workspace) -> None:
    assert "needs no sign-in" in log_in(sshd_host.alias)
    assert sockets(workspace) == []
    wait_until(lambda: not sshd_host.connected(), what="no connection")


def test_without_a_terminal_it_says_that_it_needs_one(no_key: Real) -> None:
    told = subprocess.run(
        albedo("login", str(no_key.alias)), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert told.returncode == 1
    assert "this is no terminal" in told.stderr


def test_without_a_terminal_it_asks_only_where_ssh_would(door: Door, workspace: Workspace) -> None:
    """Scripts may call it: a host that lets us in is told so, and what ssh would not ask about is no question."""

    def said(alias: str) -> tuple[int, str]:
        command = albedo("login", alias)
        told = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        return told.returncode, told.stdout + told.stderr

    door.write("open")
    assert said("open") == (0, "open needs no sign-in: your keys let you in. Nothing was left running.\n")
    keygen(workspace.home / "other")
    other = (workspace.home / "other.pub").read_text()
    door.known.write_text(f"[127.0.0.1]:{door.host.server.port} {other}")
    door.write("changed", UserKnownHostsFile=str(door.known))
    status, words = said("changed")
    assert status == 1
    assert "The host key of changed has changed" in words
    assert "terminal, and" not in words
    door.write("strict", UserKnownHostsFile="/no/such/file", StrictHostKeyChecking="yes")
    assert "so ssh asks nobody" in said("strict")[1]
    door.write("closed", Port="1")
    assert "cannot be reached: connection refused" in said("closed")[1]
    assert sockets(workspace) == []


def test_a_connection_that_does_not_answer_any_more_is_replaced(no_key: Real, workspace: Workspace) -> None:
    log_in(no_key.alias, ("password:", PASSWORD))
    no_key.freeze()
    assert "Signed in" in log_in(no_key.alias, ("password:", PASSWORD))
    assert whoami_elsewhere(no_key.alias) == no_key.account.name
    assert len(sockets(workspace)) == 1


def test_a_connection_whose_process_is_stopped_is_named_with_what_to_do(no_key: Real, workspace: Workspace) -> None:
    """It is told in time, by a sign-out, too; and what is advised helps."""
    workspace.ssh_config.write_text(f"ControlPath {workspace.root}/own-%C\n" + workspace.ssh_config.read_text())
    path = control_path(str(no_key.alias))
    log_in(no_key.alias, ("password:", PASSWORD))
    (pid,) = re.findall(r"pid=(\d+)", ssh("-O", "check", str(no_key.alias)).stderr)
    os.kill(int(pid), signal.SIGSTOP)
    command = f"kill -9 {pid}; rm {path}"
    try:
        for options in ([], ["--logout"]):
            began = time.monotonic()
            with Terminal(*albedo("login", *options, str(no_key.alias))) as terminal:
                assert terminal.end() == 1, terminal.shown
            assert time.monotonic() - began < 15
            assert f"`{command}`" in " ".join(terminal.shown.split())
    finally:
        subprocess.run(command, shell=True, check=True)
    assert "Signed in" in log_in(no_key.alias, ("password:", PASSWORD))


async def test_a_connection_without_room_gets_another_one_beside_it(no_key: Real, workspace: Workspace) -> None:
    """S10: what there is to do is said, and it helps."""
    no_key.server.restart(PasswordAuthentication="yes", PubkeyAuthentication="no", MaxSessions="1")
    await asyncio.to_thread(log_in, no_key.alias, ("password:", PASSWORD))
    room = (await AsyncHosts().diagnose(str(no_key.alias))).finding("sessions")
    assert room is not None
    assert "one kernel fills it" in room.text
    async with started(no_key.location(), {"python": str(no_key.python)}) as kernel:
        state = await AsyncHosts().probe(str(no_key.alias))
        assert state.state == "needs_auth"
        assert "MaxSessions" in state.advice
        assert "sign in once more" in state.advice
        assert "jupyter albedo stop" not in state.advice  # it would find no room either
        (answer,) = await io_thread.run(survey_on_io_thread([no_key.alias], 15))
        assert [(each.state, each.note) for each in answer.kernels] == [
            ("unknown", "no room on the connection that is signed in")
        ]
        shown = await asyncio.to_thread(log_in, no_key.alias, ("password:", PASSWORD))
        assert "one more is made" in shown
        assert len(sockets(workspace)) == 2
        assert (await AsyncHosts().probe(str(no_key.alias), fresh=True)).state == "ready"
        assert await kernel.value("6 * 7") == "42"
        assert kernel.status["connections"] == 1
    said = await asyncio.to_thread(log_out, no_key.alias)
    assert said.count("Signed out") == 2
    assert sockets(workspace) == []


def test_a_socket_that_a_killed_connection_left_behind_is_replaced(no_key: Real, workspace: Workspace) -> None:
    log_in(no_key.alias, ("password:", PASSWORD))
    (path,) = sockets(workspace)
    found = ssh("-S", str(path), "-O", "check", str(no_key.alias)).stderr
    os.kill(int(re.findall(r"pid=(\d+)", found)[0]), signal.SIGKILL)
    wait_until(lambda: not no_key.connected(), what="it is dead")
    assert path.exists()
    assert "Signed in" in log_in(no_key.alias, ("password:", PASSWORD))
    assert whoami_elsewhere(no_key.alias) == no_key.account.name


def test_a_jump_host_s_question_is_asked_as_well_and_nobody_has_to_sign_in_there(
    no_key: Real, door: Door, workspace: Workspace
) -> None:
    """The jump host wants a password, and so does the host behind it."""
    no_key.server.restart(PasswordAuthentication="yes", PubkeyAuthentication="no", AllowTcpForwarding="yes")
    door.write("bastion")
    door.write("gpu", ProxyJump="bastion")
    state = Hosts().probe("gpu")
    assert "jupyter albedo login gpu`" in state.advice
    shown = log_in("gpu", ("password:", PASSWORD), ("password:", PASSWORD))
    assert "Signed in to gpu" in shown
    assert whoami_elsewhere("gpu") == door.host.account.name
    assert "Signed out" in log_out("gpu")
    wait_until(lambda: not no_key.connected(), what="no connection is left")


def test_a_sign_in_to_a_jump_host_is_enough_for_a_host_behind_it_that_takes_keys(
    no_key: Real, other_sshd_host: Real, door: Door, workspace: Workspace
) -> None:
    server = no_key.server
    server.restart(
        PasswordAuthentication="yes",
        AllowTcpForwarding="yes",
        Match=f"User {no_key.account.name}\n  PubkeyAuthentication no",
    )
    door.write("bastion")
    door.write("gpu", User=other_sshd_host.account.name, ProxyJump="bastion")
    state = Hosts().probe("gpu")
    assert state.state == "needs_auth"
    assert "Signed in to bastion" in log_in("bastion", ("password:", PASSWORD))
    try:
        assert whoami_elsewhere("gpu") == other_sshd_host.account.name
        way = next(each for each in Hosts().diagnose("gpu").findings if each.check == "ssh")
        assert "the jump host bastion" in way.text
        # Nor is the jump host's question asked again where the host behind it has one of its own.
        door.write("asks", ProxyJump="bastion")
        assert "Signed in to asks" in log_in("asks", ("password:", PASSWORD))
        assert whoami_elsewhere("asks") == no_key.account.name
    finally:
        log_out("asks")
        log_out("bastion")
    wait_until(lambda: not no_key.connected(), what="no connection is left")
    assert "through bastion" in Hosts().probe("gpu", fresh=True).advice + Hosts().probe("gpu").detail


def test_who_asks_what_a_host_is_learns_how_to_sign_in(no_key: Real, workspace: Workspace) -> None:
    """H1."""
    state = Hosts().probe(str(no_key.alias))
    assert state.state == "needs_auth"
    assert "jupyter albedo login" in state.advice
    assert state.control_path == f"{workspace.albedo_home}/ssh/%C"
    log_in(no_key.alias, ("password:", PASSWORD))
    state = Hosts().probe(str(no_key.alias), fresh=True)
    assert (state.state, state.control_path) == ("ready", None)


def test_a_sign_in_is_for_the_way_that_it_went_and_for_no_other_to_the_same_address(
    no_key: Real, door: Door, workspace: Workspace
) -> None:
    """One private address behind two gateways is two machines."""
    relay = workspace.home / "relay"
    relay.write_text(f"#!{sys.executable}\n{RELAY}")
    relay.chmod(0o755)
    address = {"HostName": "10.0.0.5", "HostKeyAlias": f"[127.0.0.1]:{no_key.server.port}"}
    door.write("here", **address, ProxyCommand=f"{relay} {no_key.server.port}")
    door.write("there", **address, ProxyCommand="false")
    state = Hosts().probe("here")
    assert (state.state, str(state.control_path).endswith("/%C")) == ("needs_auth", True)
    path = str(state.control_path)
    assert "Signed in to here" in log_in("here", ("password:", PASSWORD))
    assert whoami_elsewhere("here") == no_key.account.name
    assert ssh("-S", path, "-O", "check", "here").returncode == 0
    assert Hosts().probe("there").state == "unreachable"
    assert "There is no connection to there" in log_out("there")
    assert "Signed out of here" in log_out("here")
    assert [each for each in sockets(workspace) if not each.is_dir()] == []


def test_the_user_s_own_control_path_is_used(no_key: Real, workspace: Workspace) -> None:
    workspace.ssh_config.write_text(f"ControlPath {workspace.root}/own-%C\n" + workspace.ssh_config.read_text())
    own = control_path(str(no_key.alias))
    assert own in log_in(no_key.alias, ("password:", PASSWORD))
    assert sockets(workspace) == []
    assert ssh("-O", "check", str(no_key.alias)).returncode == 0
    # And it is the user's own as well: their ssh goes over it.
    assert ssh(str(no_key.alias), "id -un").stdout.strip() == no_key.account.name


def test_a_control_path_where_another_user_s_socket_lies_is_left_alone(no_key: Real, workspace: Workspace) -> None:
    own = workspace.root / "own"
    workspace.ssh_config.write_text(f"ControlPath {own}\n" + workspace.ssh_config.read_text())
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(own))
        os.chown(own, no_key.account.uid, -1)
        shown = log_in(no_key.alias, ("password:", PASSWORD))
        assert "what is there is not yours" in shown
        assert len(sockets(workspace)) == 1
        assert whoami_elsewhere(no_key.alias) == no_key.account.name


def test_who_wants_no_ssh_program_is_told_that_it_would_be_of_no_use(
    no_key: Real, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALBEDO_SSH", "builtin")
    with Terminal(*albedo("login", str(no_key.alias))) as terminal:
        assert terminal.end() == 1
    assert "ALBEDO_SSH=builtin" in terminal.shown


def test_a_host_is_never_an_option(workspace: Workspace) -> None:
    owned = workspace.root / "owned"
    with Terminal(*albedo("login", "--", f"-oProxyCommand=touch {owned}")) as terminal:
        assert terminal.end() == 1, terminal.shown
    assert not owned.exists()
