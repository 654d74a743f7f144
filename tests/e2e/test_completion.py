"""Completion of the command line, in real shells; and `jupyter albedo browse`, whose folders it completes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import unavailable
from faces import Embedded, Host, Local
from repositories import make_repository
from terminal import Terminal

from albedo_provisioner import cli
from albedo_provisioner.commands import completion

if TYPE_CHECKING:
    from conftest import Workspace

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def commands_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put `jupyter` and `jupyter-albedo` where a shell finds them."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PS1", "> ")


def install(shell: str, path: str) -> None:
    """Write a shell's code where the help says that it goes, below the home."""
    file = Path.home() / path
    file.parent.mkdir(parents=True)
    file.write_text(subprocess.run(["jupyter", "albedo", "completion", shell], capture_output=True, text=True).stdout)
    assert (
        f"~/{path}" in subprocess.run(["jupyter", "albedo", "completion", "-h"], capture_output=True, text=True).stdout
    )


class TestRealShells:
    """Each completes a command, a host without asking it, and a folder of that host."""

    @pytest.fixture
    def host(self, embedded_host: Embedded, commands_on_path: None) -> Embedded:
        embedded_host.make_folder("proj with space/sub")
        embedded_host.make_folder("other")
        embedded_host.make_folder(".hidden")
        return embedded_host

    def with_keys(self, terminal: Terminal, begin: str, host: Embedded) -> None:
        """Type and press Tab as a person would, in a shell with line editing."""
        terminal.expect("> ")
        terminal.type(f"{begin}; echo re''ady")
        terminal.expect("ready")
        before = host.server.accepted()
        terminal.press("jupyter albedo brow\t")
        terminal.expect("brow")
        terminal.expect("se")
        terminal.press(f"{str(host.alias)[:-1]}\t")
        terminal.expect(":")
        assert host.server.accepted() == before, "hosts' names are known without asking"
        terminal.press("~/pr")
        self.press_tab_until(terminal, "space/")
        self.press_tab_until(terminal, "sub/")
        terminal.type(" --only repo")
        terminal.expect("in no repository")
        terminal.type("exit")
        assert terminal.end() == 0

    def press_tab_until(self, terminal: Terminal, text: str) -> None:
        """Press Tab, again as a person would when the host took longer than its time on a busy machine."""
        for _ in range(4):
            terminal.press("\t")
            try:
                return terminal.expect(text, 10)
            except AssertionError:
                continue
        return terminal.expect(text, 0)

    def test_bash(self, host: Embedded) -> None:
        with Terminal("bash", "--norc", "--noprofile", "-i") as terminal:
            self.with_keys(terminal, 'eval "$(jupyter albedo completion bash)"', host)

    def test_bash_offers_this_machines_files_where_they_fit_alone(
        self, workspace: Workspace, commands_on_path: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        workspace.add_to_ssh_config("Host hdead\n    Hostname 127.0.0.1\n    Port 1\n")
        here = workspace.root / "here"
        here.mkdir()
        (here / "afile.ipynb").touch()
        monkeypatch.chdir(here)
        with Terminal("bash", "--norc", "--noprofile", "-i") as terminal:
            terminal.expect("> ")
            terminal.type('eval "$(jupyter albedo completion bash)"; echo re""ady')
            terminal.expect("ready")
            terminal.expect("> ")
            for place in ("hdead:", "hdead:~/my\\ af", "af"):
                terminal.press(f"jupyter albedo browse {place}\t\x15")  # Tab, and the line is taken back
                terminal.type("ec''ho tri''ed")
                terminal.expect("tried")
                terminal.expect("> ")
            assert "afile" not in terminal.shown
            for command in ("albedo recover", "nosuchcommand"):
                terminal.press(f"jupyter {command} af\t")
                terminal.expect("afile.ipynb")
                terminal.press("\x15")
            terminal.type("exit 0")
            assert terminal.end() == 0

    def test_zsh(self, host: Embedded) -> None:
        if shutil.which("zsh") is None:
            unavailable("there is no zsh")
        with Terminal("zsh", "-f", "-i") as terminal:
            install("zsh", ".zfunc/_jupyter")
            self.with_keys(terminal, "fpath=(~/.zfunc $fpath); autoload -Uz compinit; compinit -u -D", host)

    def test_zsh_goes_on_in_a_quote_that_is_open(self, host: Embedded) -> None:
        if shutil.which("zsh") is None:
            unavailable("there is no zsh")
        with Terminal("zsh", "-f", "-i") as terminal:
            terminal.expect("> ")
            begin = 'autoload -Uz compinit; compinit -u -D; eval "$(jupyter albedo completion zsh)"'
            terminal.type(f"{begin}; echo re''ady")
            terminal.expect("ready")
            for quote in "\"'":
                terminal.press(f"jupyter albedo browse {quote}{host.alias}:~/proj with ")
                self.press_tab_until(terminal, "space/")
                self.press_tab_until(terminal, "sub/")
                terminal.type(f"{quote} --only repo")
                terminal.expect("in no repository")
            terminal.type("exit 0")
            assert terminal.end() == 0

    def test_fish(self, host: Embedded) -> None:
        if shutil.which("fish") is None:
            unavailable("there is no fish")

        install("fish", ".config/fish/completions/jupyter.fish")

        def completed(line: str) -> list[str]:
            script = "complete --do-complete $argv[1]"
            done = subprocess.run(["fish", "-c", script, line], capture_output=True, text=True, check=True)
            return [row.partition("\t")[0] for row in done.stdout.splitlines()]

        assert "browse" in completed("jupyter albedo brow")
        assert completed(f"jupyter albedo add {host.alias}") == [f"{host.alias}:"]
        folders = [f"{host.alias}:~/other/", f"{host.alias}:~/proj with space/"]
        # A host that takes longer than its time, on a busy machine, adds nothing.
        assert any(sorted(completed(f"jupyter albedo add {host.alias}:~/")) == folders for _ in range(4))
        assert completed(f"jupyter albedo add {host.alias}:~/.h") == [f"{host.alias}:~/.hidden/"]


class TestPlaces:
    def test_hosts_come_without_being_asked_with_the_user_that_was_typed(self, workspace: Workspace) -> None:
        workspace.add_to_ssh_config("Host gpu lab2\n    Port 1\n")
        assert list(completion.locations("g")) == ["gpu:", "lab2:"]
        assert "ann@gpu:" in completion.locations("ann@")
        assert list(completion.hosts("")) == ["gpu", "lab2"]

    def test_folders_of_this_machine_are_listed_here(self, local_host: Local, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("proj", "prose", ".dot", "line\nbreak"):
            local_host.make_folder(name)
        local_host.write("private", "a file")
        monkeypatch.chdir(local_host.home)
        finds = completion._Completer(completion.locations)
        assert sorted(finds(prefix="~/pr")) == ["~/proj/", "~/prose/"]
        assert sorted(finds(prefix="./pro")) == ["./proj/", "./prose/"]
        assert finds(prefix=f"{local_host.home}/.d") == [f"{local_host.home}/.dot/"]
        assert (finds(prefix="~"), finds(prefix="."), finds(prefix="..")) == (["~/"], ["./"], ["../"])
        assert finds(prefix="/nowhere/at/all") == []

    def test_a_host_that_cannot_be_asked_adds_nothing_and_is_not_waited_for(
        self, embedded_host: Embedded, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert completion.PATIENCE == 3.0
        monkeypatch.setattr(completion, "PATIENCE", 30.0)  # on a busy machine
        finds = completion._Completer(completion.locations)
        embedded_host.make_folder("proj")
        assert finds(prefix=f"{embedded_host.alias}:") == [f"{embedded_host.alias}:~/proj/"]
        assert finds(prefix=f"{embedded_host.alias}:~") == [f"{embedded_host.alias}:~/"]
        monkeypatch.setattr(completion, "PATIENCE", 1.0)
        embedded_host.freeze()
        began = time.monotonic()
        assert finds(prefix=f"{embedded_host.alias}:~/") == []
        assert time.monotonic() - began < 5
        embedded_host.down()
        assert finds(prefix=f"{embedded_host.alias}:~/") == []


class TestBrowse:
    def test_shows_a_folder_to_people_and_to_programs(self, any_host: Host, capsys: Capture) -> None:
        make_repository(any_host, "proj", {"a.py": "x" * 1500, "src/b.sh": "x" * 500})
        any_host.write("proj/src/new", "")
        any_host.make_folder("proj/.hidden")
        (any_host.make_folder("proj/\x1b[31mred")).chmod(0o755)
        where = any_host.location("proj")
        assert cli.main(["browse", where, "--files"]) == 0
        out = capsys.readouterr().out
        assert "git repository, branch main, commit " in out
        assert "1 file changed" in out
        assert "3 files, 2.0 kB, Python 75 %, Shell 25 %" in out
        rows = [line.split()[0] for line in out.splitlines()[3:]]
        assert rows == ["NAME", "\\x1b[31mred/", "src/", "a.py"][: len(rows)], "nothing that a terminal would obey"
        assert ".hidden" not in out
        assert cli.main(["browse", f"{where}/src", "--json"]) == 0
        answers = json.loads(capsys.readouterr().out)
        assert answers["repo"]["root"] == where
        assert answers["preview"]["tree"]["name"] == "src"
        assert answers["list"]["entries"] == []
        assert cli.main(["browse", where, "--only", "list", "--all"]) == 0
        out = capsys.readouterr().out
        assert ".hidden/" in out
        assert "repository" not in out

    def test_what_cannot_be_looked_at_is_a_sentence_and_status_1(self, remote_host: Host, capsys: Capture) -> None:
        """H5, M6: at a host out of reach a place is refused, with ssh's words."""
        assert cli.main(["browse", remote_host.location("nowhere")]) == 1
        assert "cannot be used: no such file or directory" in capsys.readouterr().err
        remote_host.down()
        for command in ("browse", "add"):
            assert cli.main([command, f"{remote_host.alias}:~/proj"]) == 1
            assert "refused" in capsys.readouterr().err
