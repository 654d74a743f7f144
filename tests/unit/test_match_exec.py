"""Whether a `Match exec` is run for a host is seen without ssh where that is certain, and left to ssh elsewhere."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from albedo_provisioner.hosts.destination import Destination
from albedo_provisioner.hosts.match_exec import runs_a_command
from albedo_provisioner.hosts.ssh_config import config_lines

ME = getpass.getuser()


@pytest.mark.parametrize(
    ("config", "runs"),
    [
        ("Match exec true", True),
        ("Match originalhost gpu exec true", True),
        ("Match originalhost other exec true", False),
        ("Match host gpu exec true", True),
        ("Match host g* user ann exec true", True),
        ("Match host other exec true", False),
        ("Match !host other exec true", True),
        ("Match !host gpu exec true", False),
        (f"Match localuser {ME} exec true", True),
        ("Match localuser nobody-else exec true", False),
        ("Match user bob exec true", False),
        ("User bob\nMatch user ann exec true", True),  # what is spelled counts before it
        ("Host gpu\n  HostName %h.example.org\nMatch host gpu.example.org exec true", True),
        ("Host gpu\n  HostName 10.0.0.5\nMatch host gpu exec true", False),
        ("Host !gpu *\n  HostName 10.0.0.5\nMatch host gpu exec true", True),
        ("Match host gpu\n  HostName 10.0.0.5\nMatch host gpu exec true", False),  # ssh has to say
        ('Match originalhost gpu exec "test %p = 22"', True),
        ('Match originalhost other exec "test %p = 22"', False),
        ("Match originalhost = gpu exec=true", True),
        ("Match host other # exec true", False),
        ("Match final host gpu exec true", False),
        ("Match host gpu", False),
    ],
)
def test_what_is_certain_is_seen(config: str, runs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config"
    file.write_text(config)
    monkeypatch.setenv("ALBEDO_SSH_CONFIG", str(file))
    assert runs_a_command(config_lines(), Destination.parse("ann@gpu")) is runs


def test_the_user_is_that_of_the_config_where_none_is_spelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config"
    file.write_text("Host gpu\n  User bob\nMatch user bob exec true\n")
    monkeypatch.setenv("ALBEDO_SSH_CONFIG", str(file))
    assert runs_a_command(config_lines(), Destination.parse("gpu"))
    assert not runs_a_command(config_lines(), Destination.parse("ann@gpu"))
