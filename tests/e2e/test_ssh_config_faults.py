"""An ssh config that ssh does not take is said to be so, with what is wrong, where, and what to do about it."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest
from terminal import albedo

from albedo_provisioner import Hosts

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


def test_the_family_of_addresses_is_named_where_it_leaves_none(workspace: Workspace) -> None:
    workspace.add_to_ssh_config("Host gpu\n  HostName 127.0.0.1\n  AddressFamily inet6\n")
    assert "AddressFamily inet6" in Hosts().probe("gpu", fresh=True).advice
