"""An ssh config that ssh does not take is said to be so, with what is wrong, where, and what to do about it."""

from __future__ import annotations

import os
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest
from door import Door
from faces import Real
from procs import everyone, wait_until
from terminal import albedo

from albedo_provisioner import Hosts
from albedo_provisioner.errors import ConfigError, UnreachableError
from albedo_provisioner.home import albedo_home
from albedo_provisioner.hosts import openssh_config
from albedo_provisioner.hosts.openssh import ProgramTransport
from albedo_provisioner.hosts.openssh_config import HostSettings

if TYPE_CHECKING:
    from conftest import Workspace

both_ways = pytest.mark.parametrize("way", ["builtin", "program"])


def said_of(host: str) -> str:
    """Return what is told of a host that cannot be reached because of the config."""
    state = Hosts().probe(host, fresh=True)
    assert state.state == "unreachable"
    assert state.detail == state.advice
    return state.advice


@both_ways
def test_files_that_include_each_other(workspace: Workspace, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """H3, H4."""
    monkeypatch.setenv("ALBEDO_SSH", way)
    other = workspace.root / "other config"
    other.write_text(f"# more\n\nInclude {workspace.ssh_config}\nHost lab\n")
    workspace.add_to_ssh_config(f'Host gpu\n  Port 22\nInclude "{other}"\n')
    assert said_of("gpu") == (
        "The ssh config cannot be read: too many recursive configuration includes. "
        f"{other} line 3 includes {workspace.ssh_config}, which includes it."
    )
    assert [known.host for known in Hosts().list()] == ["gpu", "lab"]


@both_ways
def test_a_line_that_makes_no_sense(workspace: Workspace, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """H4."""
    monkeypatch.setenv("ALBEDO_SSH", way)
    workspace.add_to_ssh_config("Host gpu\n  Port many\n")
    advice = said_of("gpu")
    assert f"{workspace.ssh_config} line 2: " in advice
    assert advice.endswith(" Correct that line and try again.")


def test_a_line_that_ssh_in_process_passes_over_is_named_when_it_goes_wrong(
    sshd_host: Real, workspace: Workspace
) -> None:
    """It goes where it would without that line; where nobody is, the line may be why. All say the same."""
    workspace.ssh_config.write_text(f"{workspace.ssh_config.read_text()}  UseKeychain yes\n")
    name = str(sshd_host.alias)
    complaint = "Bad configuration option: usekeychain"
    assert Hosts().probe(name).state == "ready"
    found = Hosts().diagnose(name)
    assert found.can_start
    assert found.findings[0].state == "note"
    assert complaint in found.findings[0].text
    (albedo_home() / "ssh").mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(workspace.albedo_home / "ssh" / "m"))  # somebody is signed in to another host
        assert Hosts().probe(name, fresh=True).state == "ready"
        assert subprocess.run(albedo("add", sshd_host.location()), check=False).returncode == 0
    sshd_host.down()
    state = Hosts().probe(name, fresh=True)
    assert state.state == "unreachable"
    assert "connection refused. See whether it is up" in state.advice
    assert "Your ssh program does not take the config: " in state.advice
    assert complaint in state.advice


@pytest.mark.parametrize("fault", ["mode", "owner"])
def test_a_file_that_others_may_write(workspace: Workspace, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """H4: ssh refuses it, and no line of it is to blame."""
    monkeypatch.setenv("ALBEDO_SSH", "program")
    other = workspace.root / "other config"
    other.write_text("Host gpu\n  HostName 127.0.0.1\n")
    workspace.add_to_ssh_config(f'Include "{other}"\n')
    if fault == "mode":
        other.chmod(0o666)
        mending = f"`chmod 600 '{other}'`"
    elif os.getuid() == 0:
        os.chown(other, 12345, 12345)
        mending = "It belongs to another account (12345)"
    else:
        pytest.skip("giving a file away takes root")
    advice = said_of("gpu")
    assert f"Bad owner or permissions on {other}" in advice
    assert mending in advice
    assert "line" not in advice


@both_ways
def test_a_named_file_that_is_not_there(workspace: Workspace, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """H4: the default one is not taken in its place, nor none at all."""
    monkeypatch.setenv("ALBEDO_SSH", way)
    monkeypatch.setenv("ALBEDO_SSH_CONFIG", str(workspace.root / "no such"))
    advice = said_of("gpu")
    assert f"{workspace.root}/no such, which the variable ALBEDO_SSH_CONFIG names" in advice
    assert "No such file or directory" in advice


def hosts(*options: str) -> tuple[str, str]:
    """Run `jupyter albedo hosts`; return what it says on both outputs."""
    told = subprocess.run(albedo("hosts", *options), capture_output=True, text=True, check=True)
    return told.stdout, told.stderr


def test_hosts_that_are_not_listed_because_of_a_file_are_not_missing_without_a_word(workspace: Workspace) -> None:
    """H3: a file that is not there, one that cannot be read, and one in a circle; a pattern may fit no file."""
    folder = workspace.root / "folder"
    folder.mkdir()
    workspace.add_to_ssh_config(f"Host gpu\nInclude {workspace.root}/gone {folder}\nInclude {folder}/*.conf\n")
    listed, said = hosts()
    assert listed.split() == ["HOST", "LAST", "USED", "gpu", "-"]
    where = f"{workspace.ssh_config} line 2 includes"
    assert said.splitlines() == [
        f"{where} {workspace.root}/gone, which is not there.",
        f"{where} {folder}, which cannot be read: Is a directory.",
    ]
    workspace.add_to_ssh_config(f"Include {workspace.ssh_config}\n")
    assert "line 4 includes itself" in hosts()[1]
    workspace.ssh_config.unlink()
    listed, said = hosts()
    assert "ALBEDO_SSH_CONFIG" in said
    assert "cannot be read: No such file or directory" in said


def test_what_is_wrong_with_the_config_is_said_once_for_all_hosts(workspace: Workspace) -> None:
    workspace.add_to_ssh_config("Host gpu lab\n  Port many\n")
    listed, said = hosts("--probe")
    assert f"{listed}{said}".count("Port") + f"{listed}{said}".count("port") == 1
    assert [line.split()[1] for line in listed.splitlines()[1:3]] == ["unreachable"] * 2


async def test_what_a_config_runs_ends_with_us(
    door: Door, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what has started more, when it takes too long; `leaves_nothing` looks."""
    monkeypatch.setattr(openssh_config, "RESOLVE_TIMEOUT", 1.0)
    door.write(ProxyCommand="sh -c 'sleep 321; true'")
    workspace.add_to_ssh_config('Match originalhost gpu exec "sleep 321; true"\n  Compression no\n')
    with pytest.raises(ConfigError, match="took longer than 1 s"):
        await HostSettings("gpu").ask()
    door.way = ProgramTransport
    assert "timed out" in await door.refusal(UnreachableError, connect_timeout=1.0)
    wait_until(lambda: not [each for each in everyone() if "321" in each.argv], what="nothing is left")


def test_the_family_of_addresses_is_named_where_it_leaves_none(workspace: Workspace) -> None:
    workspace.add_to_ssh_config("Host gpu\n  HostName 127.0.0.1\n  AddressFamily inet6\n")
    assert "AddressFamily inet6" in Hosts().probe("gpu", fresh=True).advice
