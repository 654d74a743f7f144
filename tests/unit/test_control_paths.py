"""Where our control sockets lie: private, found by all processes of the user, and short enough for a socket."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from albedo_provisioner.errors import AlbedoError
from albedo_provisioner.hosts import control_paths
from albedo_provisioner.hosts.control_paths import make_our_directory, our_directories, socket_identity

DIGEST = "x" * 40  # what %C is, by its length
WHILE_BINDING = ".ABCDEFGHIJKLMNOP"  # what ssh adds to the name until it listens


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an ALBEDO_HOME that is not there yet; its path, in a test's directory, counts as short."""
    monkeypatch.setenv("ALBEDO_HOME", str(tmp_path / "h"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "r"))
    (tmp_path / "r").mkdir(mode=0o700)
    monkeypatch.setattr(control_paths, "_LONGEST_DIRECTORY", len(str(tmp_path)) + 10)
    return tmp_path / "h"


def test_a_new_directory_is_private_and_below_our_home(home: Path) -> None:
    assert make_our_directory() == home / "ssh"
    assert (home / "ssh").stat().st_mode & 0o777 == 0o700


def test_a_home_with_a_long_path_is_left_for_the_runtime_directory(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALBEDO_HOME", str(tmp_path / ("h" * 60)))
    assert make_our_directory() == tmp_path / "r" / "albedo"
    assert make_our_directory() in our_directories()


def test_a_directory_that_others_may_enter_is_not_used(home: Path, tmp_path: Path) -> None:
    (home / "ssh").mkdir(parents=True)
    (home / "ssh").chmod(0o755)
    assert make_our_directory() == tmp_path / "r" / "albedo"
    (tmp_path / "r" / "albedo").chmod(0o777)
    with pytest.raises(AlbedoError, match="ALBEDO_HOME"):
        make_our_directory()


def test_a_link_to_a_directory_is_not_used(home: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    home.mkdir()
    (home / "ssh").symlink_to(tmp_path / "elsewhere")
    assert make_our_directory() == tmp_path / "r" / "albedo"


def test_the_longest_directory_leaves_room_for_what_ssh_makes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    longest = "d" * control_paths._LONGEST_DIRECTORY
    assert len(f"{longest}/{DIGEST}{WHILE_BINDING}\0") <= 104


def test_only_a_socket_has_an_identity_and_another_one_at_its_path_has_another(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    assert socket_identity(path) is None
    Path(path).touch()
    assert socket_identity(path) is None
    os.unlink(path)
    seen = set()
    for _ in range(2):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            seen.add(socket_identity(path))
        os.unlink(path)
    assert len(seen) == 2
    assert None not in seen
