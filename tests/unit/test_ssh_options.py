"""What ssh in process reads in a config is what `ssh -G` says of it."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albedo_provisioner.hosts.destination import Destination, ssh_arguments
from albedo_provisioner.hosts.ssh_identity import Identities
from albedo_provisioner.hosts.ssh_options import read_options

headers = st.sampled_from(
    [
        "Host gpu",
        "Host *",
        "Host !gpu *",
        "Match all",
        "Match final all",
        "Match !final all",
        "Match canonical all",
        "Match final host gpu",
        "Match final host 192.0.2.*",
        "Match final originalhost gpu",
        "Match originalhost lab",
        "Match originalhost=gpu",
        "Match !originalhost = gpu user ann # or = bob",
        'Match originalhost gpu exec "test 22 = 22 && test a=a"',
        'Match originalhost gpu exec "test 22 = 23"',
        'Match exec="true = 1" user "ann"',
        'Match !exec "test = 1" originalhost gpu',
        'Match originalhost lab exec "false = 1"',
        "Match user ann",
        "Match final user ann",
    ]
)
lines = st.sampled_from(
    [
        "HostName 192.0.2.7",
        "HostName %h.example",
        "User ann",
        "User bob",
        "Port 22",
        "Port 2222",
        "HostKeyAlias one",
        "HostKeyAlias two",
        "IdentityFile ~/a",
        "IdentityFile ~/b",
        "ServerAliveInterval 7",
        "Compression yes",
        "Compression no",
        "ProxyJump none",
        "ProxyJump lab",
    ]
)
configs = st.lists(st.tuples(headers, st.lists(lines, min_size=1, max_size=3)), max_size=6)


@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh to compare with")
@given(blocks=configs, spelling=st.sampled_from(["gpu", "ann@gpu", "gpu:2200", "192.0.2.7"]))
@settings(max_examples=60, deadline=None)
def test_all_passes_are_read_as_by_ssh(
    tmp_path_factory: pytest.TempPathFactory, blocks: list[tuple[str, list[str]]], spelling: str
) -> None:
    file = tmp_path_factory.getbasetemp() / "config"
    file.write_text("".join("\n  ".join([header, *body]) + "\n" for header, body in blocks))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ALBEDO_SSH_CONFIG", str(file))
        options, _ = asyncio.run(read_options(Destination.parse(spelling)))
        command = ["ssh", "-G", *ssh_arguments(spelling)]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    said: dict[str, list[str]] = {}
    for line in told:
        name, _, value = line.partition(" ")
        said.setdefault(name, []).append(value)
    config = options.config
    assert {
        "hostname": [options.host],
        "user": [options.username],
        "port": [str(options.port)],
        "hostkeyalias": [str(config.get("HostKeyAlias"))] if config.get("HostKeyAlias") else said.get("hostkeyalias"),
        "serveraliveinterval": [str(config.get("ServerAliveInterval") or 0)],
        "compression": ["yes" if config.get("Compression") else "no"],
        "proxyjump": [str(config.get("ProxyJump"))] if config.get("ProxyJump") else None,
    } == {
        name: said.get(name)
        for name in ("hostname", "user", "port", "hostkeyalias", "serveraliveinterval", "compression", "proxyjump")
    }
    identities = Identities.from_config(config)
    if identities.configured:
        assert identities.files == [Path(name).expanduser() for name in said["identityfile"]]
