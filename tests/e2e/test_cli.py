"""`jupyter albedo`: what it writes, what it refuses, and what it says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
from faces import Host
from jupyter_client.kernelspec import KernelSpecManager

from albedo_provisioner import cli, kernelspecs
from albedo_provisioner.hosts.package_refusals import mending
from albedo_provisioner.location import Location

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a Python environment of the test's own; where the user's kernelspecs go, conftest's workspace says."""
    prefix = tmp_path / "env"
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr("jupyter_core.paths.ENV_JUPYTER_PATH", [str(prefix / "share" / "jupyter")])
    monkeypatch.setattr("jupyter_core.paths.SYSTEM_JUPYTER_PATH", [])
    return prefix


def add(*arguments: str) -> int:
    return cli.main(["add", "--no-check", *arguments])


def refused(capsys: Capture, *arguments: str, status: int = 1) -> str:
    """The one sentence that `jupyter albedo` refuses these arguments with."""
    try:
        found = cli.main(arguments)
    except SystemExit as error:
        found = int(str(error.code))
    out, err = capsys.readouterr()
    assert found == status
    assert out == ""
    assert "Traceback" not in err
    return err


def written(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((kernelspecs.user_directory() / name / "kernel.json").read_text())
    return document


def names() -> list[str]:
    return [kernelspec.name for kernelspec in kernelspecs.find_ours()]


def make_foreign(name: str, text: str = '{"argv": ["x"], "display_name": "X", "language": "x"}') -> Path:
    directory = kernelspecs.user_directory() / name
    directory.mkdir(parents=True)
    (directory / "kernel.json").write_text(text)
    return directory


# ----------------------------------------------------------------------------------------------------------- add


def test_add_writes_a_kernelspec_that_jupyter_finds(capsys: Capture) -> None:
    assert add("gpu:~/proj") == 0
    assert "albedo-gpu-proj" in capsys.readouterr().out
    spec = KernelSpecManager().find_kernel_specs()
    assert "albedo-gpu-proj" in spec
    files = {path.name for path in Path(spec["albedo-gpu-proj"]).iterdir()}
    assert files == {"kernel.json", "logo-svg.svg"}
    assert [path.name for path in kernelspecs.user_directory().parent.iterdir()] == ["kernels"], "no staging is left"


def test_the_kernelspec_holds_the_location_and_only_the_settings_given() -> None:
    assert add("gpu:~/proj") == 0
    assert written("albedo-gpu-proj") == {
        "argv": [
            sys.executable,
            *("-m", "albedo_provisioner", "run-kernel", "--kernelspec", "albedo-gpu-proj", "-f", "{connection_file}"),
        ],
        "display_name": "Python 3 · gpu:~/proj",
        "language": "python",
        "interrupt_mode": "signal",
        "metadata": {
            "debugger": True,
            "kernel_provisioner": {
                "provisioner_name": "albedo-provisioner",
                "config": {"location": "gpu:~/proj"},
            },
        },
    }


def test_every_setting_reaches_the_kernelspec() -> None:
    arguments = ["--name", "data", "--display-name", "Data", "--python", "~/venv/bin/python", "--grace", "90"]
    assert add("ann@gpu:/srv/d/", *arguments, "--env", "A=1", "--env", "B=x=y z", "--env", "C=") == 0
    document = written("data")
    assert document["display_name"] == "Data"
    assert document["metadata"]["kernel_provisioner"]["config"] == {
        "location": "ann@gpu:/srv/d",
        "python": "~/venv/bin/python",
        "env": {"A": "1", "B": "x=y z", "C": ""},
        "grace": 90,
    }


def test_a_local_folder_is_stored_absolute_and_shown_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert add("~/proj") == 0
    document = written("albedo-local-proj")
    assert document["metadata"]["kernel_provisioner"]["config"]["location"] == "/home/ann/proj"
    assert document["display_name"] == "Python 3 · ~/proj"


def test_sys_prefix_writes_into_the_running_environment(environment: Path) -> None:
    assert add("gpu:~/proj", "--sys-prefix") == 0
    (found,) = kernelspecs.find_ours()
    assert found.directory == environment / "share" / "jupyter" / "kernels" / "albedo-gpu-proj"
    assert found.where == "environment"


def test_a_location_whose_environment_may_not_be_written_gets_a_sentence(capsys: Capture, environment: Path) -> None:
    environment.write_text("a file where a directory should be")
    message = refused(capsys, "add", "--no-check", "gpu:~/proj", "--sys-prefix")
    assert "could not be written" in message
    assert "--sys-prefix" in message


@pytest.mark.parametrize(
    ("location", "name"),
    [
        ("gpu:~/proj", "albedo-gpu-proj"),
        ("gpu:", "albedo-gpu"),
        ("gpu:/", "albedo-gpu"),
        ("ann@gpu:~/My Proj (2)", "albedo-gpu-my-proj-2"),
        ("gpu.example.org:/x", "albedo-gpu.example.org-x"),
        ("[::1]:/x/é", "albedo-1-e"),
        ("/srv", "albedo-local-srv"),
    ],
)
def test_the_name_is_made_from_host_and_folder(location: str, name: str) -> None:
    assert kernelspecs.default_name(Location.parse(location)) == name


def test_folders_in_other_scripts_get_valid_and_different_names() -> None:
    made = {kernelspecs.default_name(Location.parse(text)) for text in ("gpu:~/日本", "gpu:~/中国", "gpu:~/データ")}
    assert len(made) == 3
    assert all(name.isascii() and name.startswith("albedo-gpu-") for name in made)


def test_adding_a_location_again_updates_its_kernelspec() -> None:
    assert add("gpu:~/proj") == 0
    assert add("gpu:~/proj/", "--grace", "5") == 0
    assert names() == ["albedo-gpu-proj"]
    assert kernelspecs.find_ours()[0].config["grace"] == 5
    assert {p.name for p in kernelspecs.find_ours()[0].directory.iterdir()} == {"kernel.json", "logo-svg.svg"}


def test_another_folder_of_the_same_name_gets_a_name_of_its_own() -> None:
    assert add("gpu:~/proj") == add("gpu:/srv/proj") == add("gpu:/srv/proj") == 0
    assert {k.name: k.location for k in kernelspecs.find_ours()} == {
        "albedo-gpu-proj": "gpu:~/proj",
        "albedo-gpu-proj-2": "gpu:/srv/proj",
    }


def test_a_name_of_another_location_is_only_taken_with_replace(capsys: Capture) -> None:
    assert add("gpu:~/proj", "--name", "mine") == 0
    capsys.readouterr()
    message = refused(capsys, "add", "--no-check", "gpu:/srv", "--name", "Mine")
    assert "mine is for gpu:~/proj" in message
    assert "--replace" in message
    assert add("gpu:/srv", "--name", "mine", "--replace") == 0
    assert {k.name: k.location for k in kernelspecs.find_ours()} == {"mine": "gpu:/srv"}


@pytest.mark.parametrize("text", ['{"argv": [], "metadata": {}}', "not json", '["list"]', '{"metadata": 3}'])
def test_somebody_elses_kernelspec_is_never_touched(capsys: Capture, text: str) -> None:
    directory = make_foreign("theirs", text)
    for arguments in (["add", "--no-check", "gpu:/x", "--name", "theirs", "--replace"], ["remove", "theirs"]):
        assert "not made by jupyter albedo" in refused(capsys, *arguments)
    assert (directory / "kernel.json").read_text() == text
    assert names() == []


def test_the_native_kernel_is_not_shadowed(capsys: Capture) -> None:
    assert "choose another --name" in refused(capsys, "add", "--no-check", "gpu:/x", "--name", "python3")


@pytest.mark.parametrize("name", ["a b", "a/b", "../x", "", "é", "a\n"])
def test_a_name_that_jupyter_would_not_take_is_refused(capsys: Capture, name: str) -> None:
    assert "not a kernelspec name" in refused(capsys, "add", "--no-check", "gpu:/x", "--name", name)
    assert names() == []


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["add"], 2, "which location?"),
        (["add", "gpu:proj"], 1, "gpu:~/proj"),
        (["add", "-oProxyCommand=x:/"], 2, "like an option"),
        (["add", "--", "-oProxyCommand=x:/"], 1, "like an option"),
        (["add", "x", "-y"], 2, "unrecognized arguments: -y"),
        (["add", "gpu:/x", "--python", "-c"], 2, "--python"),
        (["add", "gpu:/x", "--python=-c"], 1, "Python interpreter"),
        (["add", "gpu:/x", "--env", "A"], 2, "NAME=value"),
        (["add", "gpu:/x", "--env", "A B=1"], 1, "environment variable"),
        (["add", "gpu:/x", "--env", "A=\udcff"], 1, "not text"),
        (["add", "gpu:/x", "--grace", "soon"], 2, "number of seconds"),
        (["add", "gpu:/x", "--grace=-1"], 1, "zero or more"),
        (["add", "gpu:/x", "--grace", "nan"], 1, "zero or more"),
        (["add", "gpu:/x", "--user", "--sys-prefix"], 2, "not allowed with"),
        (["frobnicate"], 2, "invalid choice"),
        ([], 2, "COMMAND"),
    ],
)
def test_wrong_arguments_are_refused_in_words(capsys: Capture, arguments: list[str], status: int, words: str) -> None:
    assert words in refused(capsys, *arguments, status=status)
    assert names() == []


# ---------------------------------------------------------------------------------------------------- the check


def test_the_host_is_asked_and_the_absolute_folder_is_stored(any_host: Host) -> None:
    """H5: `~` is resolved on the host."""
    folder = any_host.make_folder("proj")
    typed = f"{any_host.alias}:~/proj" if any_host.remote else str(folder)
    assert cli.main(["add", typed]) == 0
    (found,) = kernelspecs.find_ours()
    assert found.location == any_host.location("proj")
    assert found.display_name == (f"Python 3 · {typed}" if any_host.remote else "Python 3 · ~/proj")


def test_a_folder_that_is_not_there_is_refused_and_nothing_is_written(any_host: Host, capsys: Capture) -> None:
    """K7, at the earliest moment."""
    message = refused(capsys, "add", any_host.location("nowhere"))
    assert "nowhere" in message
    assert names() == []


def test_a_python_that_has_and_gets_no_ipykernel_is_refused_with_the_command_that_mends_it(
    local_host: Host, capsys: Capture, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    venv.EnvBuilder(symlinks=True, with_pip=False).create(bare)
    folder = local_host.make_folder("proj")
    message = refused(capsys, "add", str(folder), "--no-provide", "--python", str(bare / "bin" / "python"))
    assert "no ipykernel" in message
    assert f"{bare}/bin/python -m venv" in message, "there is no pip in it, so an environment is to be made"
    assert "pip install ipykernel" in message
    assert names() == []


def test_the_mending_command_goes_through_ssh_to_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALBEDO_SSH_CONFIG", raising=False)
    for host, ssh in (("gpu", "ssh gpu '"), ("ann@[::1]", "ssh ann@::1 '")):
        assert f"Install it with: {ssh}" in mending(host, "/opt/my python", pip=True)
        assert f"make an environment: {ssh}" in mending(host, "/opt/my python", pip=False)
    monkeypatch.setenv("ALBEDO_SSH_CONFIG", "/etc/my config")
    assert "ssh -F '/etc/my config' gpu '" in mending("gpu", "p", pip=True)


def test_an_unreachable_host_is_one_sentence_and_nothing_is_written(capsys: Capture) -> None:
    message = refused(capsys, "add", "no-such-host.invalid:/x")
    assert "no-such-host.invalid" in message
    assert names() == []


# ----------------------------------------------------------------------------------------------- list and remove


def test_list_shows_a_table_of_ours_only(capsys: Capture) -> None:
    make_foreign("theirs")
    assert add("gpu:~/proj", "--python", "/opt/bin/python3") == add("/srv/日本", "--sys-prefix") == 0
    capsys.readouterr()
    assert cli.main(["list"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["NAME", "LOCATION", "KERNEL", "PYTHON", "WHERE"]
    assert ["albedo-gpu-proj", "gpu:~/proj", "-", "/opt/bin/python3", "user"] in lines
    assert [line[1:] for line in lines if "/srv/日本" in line] == [["/srv/日本", "-", "python3", "environment"]]
    assert len(lines) == 3


def test_list_as_json_is_whole(capsys: Capture) -> None:
    assert add("gpu:~/proj", "--grace", "5") == 0
    capsys.readouterr()
    assert cli.main(["list", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry == {
        "name": "albedo-gpu-proj",
        "display_name": "Python 3 · gpu:~/proj",
        "location": "gpu:~/proj",
        "python": None,
        "kernel": None,
        "where": "user",
        "directory": str(kernelspecs.user_directory() / "albedo-gpu-proj"),
        "config": {"location": "gpu:~/proj", "grace": 5},
    }


def test_an_empty_list_says_what_to_do_and_stays_readable_for_programs(capsys: Capture) -> None:
    assert cli.main(["list"]) == 0
    assert "jupyter albedo add" in capsys.readouterr().err
    assert cli.main(["list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_remove_says_what_it_removed_and_goes_on_after_a_wrong_name(capsys: Capture) -> None:
    assert add("gpu:/a") == add("gpu:/b") == add("gpu:/c") == 0
    capsys.readouterr()
    assert cli.main(["remove", "albedo-gpu-a", "nonsense", "Albedo-GPU-b"]) == 1
    out, err = capsys.readouterr()
    assert [line.split()[:3] for line in out.splitlines()] == [
        ["Removed", "albedo-gpu-a", "(gpu:/a)"],
        ["Removed", "albedo-gpu-b", "(gpu:/b)"],
    ]
    assert "no kernelspec 'nonsense'" in err
    assert names() == ["albedo-gpu-c"]
    assert not (kernelspecs.user_directory() / "albedo-gpu-a").exists()


def test_a_kernelspec_directory_that_is_a_link_is_unlinked_and_its_target_kept(tmp_path: Path) -> None:
    assert add("gpu:/a") == 0
    directory = kernelspecs.user_directory() / "albedo-gpu-a"
    target = directory.rename(tmp_path / "kept")
    directory.symlink_to(target)
    assert cli.main(["remove", "albedo-gpu-a"]) == 0
    assert not directory.is_symlink()
    assert (target / "kernel.json").exists()


# ---------------------------------------------------------------------------------------------- as a real process


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "albedo_provisioner", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        check=False,
    )


def test_help_lists_the_commands_and_not_the_hidden_one() -> None:
    done = run("--help")
    assert done.returncode == 0
    for command in ("add", "list", "remove", "demo"):
        assert f"\n    {command} " in done.stdout
    assert "run-kernel" not in done.stdout
    assert "run-kernel" not in run("frobnicate").stderr
    assert "examples:" in run("add", "--help").stdout


def test_a_name_that_the_terminal_cannot_show_is_escaped() -> None:
    done = run("add", "--no-check", "gpu:~/日本", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u65e5" in done.stdout


def test_a_reader_that_goes_away_is_no_error() -> None:
    assert add("gpu:/a") == 0
    done = subprocess.run(
        ["bash", "-c", 'exec 3>&2; "$0" -m albedo_provisioner list --json 2>&3 | true', sys.executable],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""


def test_list_loads_neither_ssh_nor_the_whole_of_jupyter() -> None:
    code = (
        "import sys; from albedo_provisioner.cli import main; main(['list']);"
        "print(*sorted({'asyncssh', 'zmq', 'asyncio', 'jupyter_client', 'ipykernel', 'tornado'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_ctrl_c_ends_it_quietly() -> None:
    code = """
import os, signal, sys
from albedo_provisioner import cli
cli._choose = lambda *_: (os.kill(os.getpid(), signal.SIGINT), signal.pause())
sys.exit(cli.main(["add", "gpu:~/proj"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, "", "")
