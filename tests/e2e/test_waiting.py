"""What commands show to those who wait: a person at a terminal, or a pipe (K2)."""

from __future__ import annotations

import re

import pytest
from bare import Bare
from crash import albedo as run_albedo
from faces import Embedded
from terminal import Terminal, albedo

from albedo_provisioner.commands import waiting
from albedo_provisioner.hosts.activity import Doing
from albedo_provisioner.hosts.progress import Progress


class TestAPerson:
    def test_sees_packages_on_their_way(self, bare_host: Bare) -> None:
        """A bar with bytes, that goes away; the second time there is nothing to send."""
        command = albedo("add", bare_host.host.location(), "--python", str(bare_host.python), "--name", "bare")
        with Terminal(*command) as terminal:
            terminal.expect(f"{bare_host.host.alias}: connecting")
            terminal.expect(f"{bare_host.host.alias}: copying ")
            terminal.expect(f"{bare_host.host.alias}: fetching")
            terminal.expect("MB of packages are there  [")
            terminal.expect("[########################]", 120)
            assert terminal.end() == 0
        last = [line.rpartition("\x1b[2K")[2] for line in terminal.shown.split("\n")]
        assert any(line.startswith("Added bare ") for line in last)
        assert not any("connecting" in line or "[#" in line for line in last)
        with Terminal(*command, "--replace") as terminal:
            assert terminal.end() == 0
        assert "MB of packages are there" not in terminal.shown

    def test_sees_which_hosts_are_waited_for(self, embedded_host: Embedded) -> None:
        embedded_host.server.behave(auth_delay=1.0)
        alias = str(embedded_host.alias)
        for command, line in (
            (("hosts", alias, "."), "2 hosts: "),
            (("kernels", alias), f"{alias}: connecting ..."),
            (("doctor", alias), f"{alias}: connecting ..."),
            (("stop", "12345678"), "looking for the kernels ..."),
        ):
            with Terminal(*albedo(*command)) as terminal:
                terminal.expect(line)
                terminal.end()
            assert "Traceback" not in terminal.shown
            last = [line.rpartition("\x1b[2K")[2] for line in terminal.shown.split("\n")]
            assert not any("connecting ..." in line for line in last), terminal.shown
        assert "ok       config" in run_albedo("doctor", alias, status=0)


class TestAPipe:
    def test_is_told_once_and_only_when_it_takes_long(self, capsys: pytest.CaptureFixture[str]) -> None:
        with waiting.waiting("asking ...", 60):
            pass
        assert capsys.readouterr().err == ""
        said = ""
        with waiting.waiting("asking ...", 0) as line:
            line.follow({"gpu": Doing("connecting")})
            while not said:
                said = capsys.readouterr().err
        assert said + capsys.readouterr().err == "asking ...\n"


def test_the_line_says_what_goes_on_and_is_cut_to_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    line = waiting.Waiting("asking ...", True)
    line.follow({"gpu": Doing("staging", Progress(6_000_000, 12_000_000))})
    assert "gpu: 6.0 of 12.0 MB of packages are there" in capsys.readouterr().err
    line.follow({"gpu": Doing("staging", Progress(0, 64_000, packages=False))})
    assert capsys.readouterr().err.endswith("gpu: copying 64 kB of our own files ...")
    with line.aside():
        line.follow({f"host{number}": Doing("asking") for number in range(9)})
        print("aside")
    shown = capsys.readouterr()
    assert shown.out == "aside\n"
    assert re.fullmatch(r"\r\x1b\[2K\r\x1b\[2K9 hosts: host0 \(asking\), .{34}", shown.err), shown.err
    line.follow({})
    assert capsys.readouterr().err.endswith("\x1b[2Kasking ...")
