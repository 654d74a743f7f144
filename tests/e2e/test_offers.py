"""What `jupyter albedo add` finds on a host, and what it takes of it: told, asked, or left alone with it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from environments import make_conda, make_environment
from faces import Embedded, Host, Real
from procs import wait_until

from albedo_provisioner import cli, kernelspecs
from albedo_provisioner.commands import choose
from albedo_provisioner.errors import ConfigError
from albedo_provisioner.hosts.offers import Offers, offers_at
from albedo_provisioner.location import Location

Capture = pytest.CaptureFixture[str]

SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><path d="M0 0"/></svg>'
PNG = b"\x89PNG\r\n\x1a\n and so on"


def offers(host: Host, folder: str = "") -> Offers:
    return offers_at(Location.parse(host.location(folder)))


def write_spec(host: Host, directory: Path, **more: object) -> Path:
    spec = {"argv": ["/bin/false", "{connection_file}"], "display_name": "It", "language": "it", **more}
    host.write(directory / "kernel.json", json.dumps(spec))
    return directory


def user_specs(host: Host) -> Path:
    return host.home / ".local" / "share" / "jupyter" / "kernels"


class TestEnvironments:
    def test_those_of_the_folder_come_first_with_their_versions(self, any_host: Host) -> None:
        venv = make_environment(any_host, "proj/.venv")
        bare = make_environment(any_host, "proj/venv", ipykernel=False)
        pixi = make_conda(any_host, "proj/.pixi/envs/default", version="3.12.9")
        found = offers(any_host, "proj").pythons
        assert [each.python for each in found[:3]] == [str(venv), str(bare), str(pixi)]
        assert [each.kind for each in found[:4]] == ["folder", "folder", "folder", "login"]
        login = found[3]
        assert login.version == ".".join(map(str, sys.version_info[:3])) or any_host.kind == "sshd"
        assert [each.version for each in found[:3]] == [login.version, login.version, "3.12.9"]
        assert [each.ipykernel for each in found[:3]] == [login.ipykernel, None, login.ipykernel]

    def test_poetrys_are_found_in_its_cache(self, embedded_host: Embedded) -> None:
        folder = embedded_host.make_folder("proj")
        embedded_host.write("proj/pyproject.toml", '[tool.poetry]\nname = "My Project"\n')
        digest = base64.urlsafe_b64encode(hashlib.sha256(str(folder.resolve()).encode()).digest()).decode()[:8]
        cache = ".cache/pypoetry/virtualenvs"
        python = make_environment(embedded_host, f"{cache}/my_project-{digest}-py3.11", ipykernel=False)
        make_environment(embedded_host, f"{cache}/my_project-AAAAAAAA-py3.11", ipykernel=False)
        found = [each for each in offers(embedded_host, "proj").pythons if each.kind == "folder"]
        assert [each.python for each in found] == [str(python)]

    def test_condas_are_found_without_conda(self, remote_host: Host) -> None:
        base = make_conda(remote_host, "miniforge3", version="3.12.9")
        remote_host.make_folder("miniforge3/envs")
        inside = make_conda(remote_host, "miniforge3/envs/ml", version="3.13.1")
        elsewhere = make_conda(remote_host, "scratch/big")
        remote_host.write(".conda/environments.txt", f"{elsewhere.parent.parent}\n/gone/away\n")
        found = {each.python: each for each in offers(remote_host).pythons if each.kind == "conda"}
        assert set(found) >= {str(base), str(inside), str(elsewhere)}
        assert (found[str(base)].name, found[str(base)].version) == ("base", "3.12.9")
        assert (found[str(inside)].name, found[str(inside)].version) == ("ml", "3.13.1")
        assert found[str(elsewhere)].version == ".".join(map(str, sys.version_info[:2])) or remote_host.kind == "sshd"

    def test_one_whose_interpreter_is_gone_is_passed_over_and_that_is_said(
        self, any_host: Host, capsys: Capture
    ) -> None:
        python = make_environment(any_host, "proj/.venv")
        python.unlink()
        python.symlink_to("python3")
        python.with_name("python3").unlink()
        python.with_name("python3").symlink_to("/opt/python3.10/bin/python3.10")
        make_environment(any_host, "proj/venv").unlink()
        any_host.make_folder("proj/env")  # no environment at all
        assert cli.main(["add", any_host.location("proj")]) == 0
        told = capsys.readouterr().err.splitlines()
        notes = [line for line in told if not line.endswith(" ...")]  # what a slow look waits for
        assert len(notes) == 2
        assert "/proj/.venv cannot be used: its interpreter is gone (/opt/python3.10/bin/python3.10)" in notes[0]
        assert "/proj/venv cannot be used: there is no " in notes[1]
        (spec,) = kernelspecs.find_ours()
        assert "python" not in spec.config

    @pytest.mark.parametrize("text", ["[", "name = 3", "[project]\nname = 3", "tool = 3"])
    def test_a_folder_with_a_strange_project_file_is_a_folder(self, embedded_host: Embedded, text: str) -> None:
        embedded_host.write("proj/pyproject.toml", text)
        assert offers(embedded_host, "proj").pythons[0].kind == "login"


class TestKernelspecs:
    def test_they_are_found_where_jupyter_looks_and_in_environments(self, remote_host: Host) -> None:
        mine = write_spec(remote_host, user_specs(remote_host) / "Mine", display_name="Mine\x1b[31m")
        make_environment(remote_host, "proj/.venv", ipykernel=False)
        other = write_spec(remote_host, remote_host.home / "proj/.venv/share/jupyter/kernels/other")
        write_spec(remote_host, user_specs(remote_host) / "elsewhere", metadata={"kernel_provisioner": {}})
        remote_host.write(user_specs(remote_host) / "broken" / "kernel.json", "{")
        found = {spec.kernel: spec for spec in offers(remote_host, "proj").kernelspecs}
        assert found["mine"].directory == str(mine)
        assert found["mine"].display_name == "Mine[31m", "nothing that a terminal would obey"
        assert found[str(other)].name == "other"
        assert not {"elsewhere", "broken"} & set(found)
        assert found["python3"].native
        with pytest.raises(ConfigError, match=r"'Broken' on .* is damaged \(.*/broken/kernel\.json: Expecting"):
            choose.by_name(offers(remote_host, "proj"), "Broken", None)

    def test_a_logo_is_taken_when_it_is_small_and_no_more_than_a_picture(self, embedded_host: Embedded) -> None:
        for name, svg, png in [
            ("good", SVG, PNG),
            ("script", SVG.replace(b"<path", b"<SCRIPT>x</SCRIPT><path"), b"no picture"),
            ("handler", SVG.replace(b"<path", b"<path onclick='x'"), PNG + b"x" * 65536),
        ]:
            directory = write_spec(embedded_host, user_specs(embedded_host) / name)
            (directory / "logo-svg.svg").write_bytes(svg)
            (directory / "logo-64x64.png").write_bytes(png)
        found = {spec.name: spec.logos for spec in offers(embedded_host).kernelspecs}
        assert found["good"] == {"logo-svg.svg": SVG, "logo-64x64.png": PNG}
        assert found["script"] == found["handler"] == {}


class TestNobodyToAsk:
    def test_a_bare_host_gets_a_list_with_the_commands_and_status_2(self, remote_host: Host, capsys: Capture) -> None:
        write_spec(remote_host, user_specs(remote_host) / "it")
        python = make_conda(remote_host, "miniforge3/envs/ml", runs=True)
        assert cli.main(["add", f"{remote_host.alias}:"]) == 2
        out, err = capsys.readouterr()
        assert "which of these?" in err
        assert kernelspecs.find_ours() == []
        commands = [shlex.split(line) for line in out.splitlines() if line.startswith("    jupyter albedo add ")]
        assert [words for words in commands if str(python) in words]
        for words in commands:
            assert cli.main(words[2:]) == 0, words
        assert {spec.config.get("kernel") for spec in kernelspecs.find_ours()} >= {None, "it"}

    def test_a_folder_gets_the_plain_python(self, any_host: Host) -> None:
        any_host.make_folder("proj")
        make_conda(any_host, "miniforge3/envs/ml")
        assert cli.main(["add", any_host.location("proj")]) == 0
        (spec,) = kernelspecs.find_ours()
        assert set(spec.config) == {"location"}

    def test_one_command_on_the_host_is_enough(self, sshd_host: Real) -> None:
        write_spec(sshd_host, user_specs(sshd_host) / "it")
        for options in ([], ["--kernel", "it", "--name", "it"], ["--python", str(sshd_host.python), "--name", "own"]):
            before = sshd_host.server.log().count("Starting session: command for")
            assert cli.main(["add", sshd_host.location(), *options]) == 0
            assert sshd_host.server.log().count("Starting session: command for") == before + 1, options

    def test_a_folder_with_an_environment_gets_that(self, any_host: Host, capsys: Capture) -> None:
        python = make_environment(any_host, "proj/.venv")
        assert cli.main(["add", any_host.location("proj")]) == 0
        assert str(python) in capsys.readouterr().err
        (spec,) = kernelspecs.find_ours()
        assert spec.config["python"] == str(python)

    def test_one_that_cannot_run_a_kernel_is_not_taken_and_that_is_said(
        self, embedded_host: Embedded, capsys: Capture
    ) -> None:
        make_environment(embedded_host, "proj/.venv", ipykernel=False)
        assert cli.main(["add", embedded_host.location("proj"), "--no-provide"]) == 0
        err = capsys.readouterr().err
        assert "no ipykernel" in err
        assert ".venv/bin/python" in err
        (spec,) = kernelspecs.find_ours()
        assert "python" not in spec.config

    @pytest.mark.timeout(300)  # pip and a package index are at work
    def test_one_that_has_no_ipykernel_is_given_one_behind_its_own_packages(
        self, embedded_host: Embedded, capsys: Capture
    ) -> None:
        python = make_environment(embedded_host, "proj/.venv", ipykernel=False)
        assert cli.main(["add", embedded_host.location("proj")]) == 0
        assert "has no ipykernel" in capsys.readouterr().out
        (spec,) = kernelspecs.find_ours()
        assert spec.config["python"] == str(python)

    def test_a_kernelspec_that_is_not_there_is_refused_with_those_that_are(
        self, embedded_host: Embedded, capsys: Capture
    ) -> None:
        assert cli.main(["add", embedded_host.location(), "--kernel", "nope"]) == 1
        err = capsys.readouterr().err
        assert "no kernelspec 'nope'" in err
        assert "python3" in err
        assert kernelspecs.find_ours() == []

    def test_a_kernelspec_whose_program_is_not_there_is_refused(self, embedded_host: Embedded, capsys: Capture) -> None:
        write_spec(embedded_host, user_specs(embedded_host) / "noexe", argv=["/no/such/program", "{connection_file}"])
        assert cli.main(["add", embedded_host.location(), "--kernel", "noexe"]) == 1
        assert "its program /no/such/program is not there" in capsys.readouterr().err
        assert kernelspecs.find_ours() == []
        assert cli.main(["add", f"{embedded_host.alias}:"]) == 2
        assert "(its program is missing)" in capsys.readouterr().out

    def test_a_kernelspec_unseen_is_refused(self, capsys: Capture) -> None:
        with pytest.raises(SystemExit):
            cli.main(["add", "gpu:~/x", "--kernel", "ir", "--no-check"])
        assert "--no-check" in capsys.readouterr().err


class TestAtATerminal:
    def ask(self, location: str, answers: str) -> tuple[int, str]:
        """Run `add` at a terminal, type the answers once it asks, and return its status and what it showed."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "albedo_provisioner", "add", location],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        shown = b""
        try:
            while chunk := os.read(ours, 4096):
                shown += chunk
                if b"[1]" in shown and answers:
                    os.write(ours, answers.encode())
                    answers = ""
        except OSError:
            pass  # the terminal's other side was closed
        finally:
            os.close(ours)
        wait_until(lambda: process.poll() is not None, 30)
        return process.returncode, shown.decode()

    def test_the_person_is_asked_and_the_answer_counts(self, remote_host: Host) -> None:
        make_environment(remote_host, "proj/.venv")
        write_spec(remote_host, user_specs(remote_host) / "it", display_name="The It")
        status, shown = self.ask(remote_host.location("proj"), "nonsense\n99\n1\n")
        assert status == 0, shown
        assert "The It" in shown
        assert "the folder's" in shown
        (spec,) = kernelspecs.find_ours()
        assert spec.config["python"].endswith("/proj/.venv/bin/python")

    def test_the_end_of_the_terminal_is_no_answer(self, embedded_host: Embedded) -> None:
        make_environment(embedded_host, "proj/.venv")
        status, shown = self.ask(embedded_host.location("proj"), "\x04")
        assert status == 130, shown
        assert kernelspecs.find_ours() == []
