"""`jupyter albedo doctor` and `Hosts.diagnose`: a good host, and one of each kind of sick ones."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from bare import Bare, bare_python, take_the_index_away
from crash import albedo
from door import Door
from faces import Embedded, Host, Real
from kernels import started
from masters import Master
from procs import everyone, wait_until

from albedo_provisioner import AsyncHosts, Hosts
from albedo_provisioner.bundle import spawn
from albedo_provisioner.errors import KernelStartError, LocationError
from albedo_provisioner.hosts.doctor import verdicts
from albedo_provisioner.hosts.doctor.findings import Diagnosis, Finding

if TYPE_CHECKING:
    from conftest import Workspace

THERE = ["login", "python", "packages", "home", "runtime", "logout", "folder", "kernels"]
LINK = ["round trip", "throughput", "clock", "sessions", "forwarding"]


def diagnose(host: Host, folder: str | None = None, python: Path | str | None = None) -> Diagnosis:
    """Examine a host; nothing is left on it for that."""
    place = str(host.alias) if folder is None else f"{host.alias}:{folder}"
    before = sorted(host.home.rglob(".albedo-remote*"))
    found = Hosts().diagnose(place, python=str(python) if python else None)
    assert sorted(host.home.rglob(".albedo-remote*")) == before
    assert not list(host.home.glob(".albedo-doctor*"))
    return found


def only(found: Diagnosis, check: str) -> Finding:
    """Return what a check found; it is told once."""
    (finding,) = [each for each in found.findings if each.check == check]
    return finding


def blocking(found: Diagnosis) -> list[str]:
    """Return the checks that keep a kernel from starting."""
    return [each.check for each in found.findings if each.blocks]


def stand_in(host: Host, path: str, first: str) -> Path:
    """Write an interpreter that does something else before it runs our code."""
    script = (
        f"#!{host.python}\nimport os, sys\nat = sys.argv.index('-c') + 1\n"
        f"code, rest = {first!r} + '\\n' + sys.argv[at], sys.argv[at + 1:]\n"
        f"os.execv({str(host.python)!r}, [{str(host.python)!r}, '-S', '-c', code, *rest])\n"
    )
    full = host.write(path, script)
    full.chmod(0o755)
    return full


class TestAGoodHost:
    @pytest.mark.first_visit
    def test_is_told_to_be_one_in_a_line_for_each_check(
        self, sshd_host: Real, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(verdicts, "_SLOW_LOGIN", 30)  # whatever else this machine does
        folder = sshd_host.make_folder("proj")
        told: list[Finding] = []
        found = Hosts().diagnose(sshd_host.location("proj"), tell=told.append)
        assert [each.check for each in found.findings] == ["config", "name", "ssh", "sign-in", *THERE, *LINK]
        assert [each for each in found.findings if each.state != "ok"] == []
        assert found.can_start
        assert tuple(told) == found.findings
        assert not (sshd_host.home / ".albedo-remote").exists()
        assert len(sshd_host.server.connections()) == 1

        account, port = sshd_host.account.name, sshd_host.server.port
        assert only(found, "config").text.startswith(f"{account}@127.0.0.1:{port}")
        assert str(workspace.ssh_config) in only(found, "config").text
        assert only(found, "ssh").facts["kind"] == "builtin"
        assert f"signed in as {account} with the key ED25519 SHA256:" in only(found, "sign-in").text
        assert str(sshd_host.python) in only(found, "python").text
        assert only(found, "packages").facts["ipykernel"]
        room = os.statvfs(sshd_host.home)
        assert only(found, "home").facts["size"] == room.f_blocks * room.f_frsize
        assert only(found, "folder").facts["path"] == str(folder)
        assert 0 < only(found, "round trip").facts["seconds"] < 1
        assert min(only(found, "throughput").facts.values()) > 1e6
        assert only(found, "sessions").facts["count"] == 8
        assert json.loads(json.dumps(found.to_dict()))["can_start"] is True

    async def test_has_kernels_and_our_files_on_it_already(self, sshd_host: Real) -> None:
        """The kernel that runs there is counted, and nothing is put beside what there is."""
        async with started(sshd_host.location()):
            ours = sshd_host.home / ".albedo-remote"
            before = [path for path in sorted(ours.rglob("*")) if "run" not in path.parts]
            found = await AsyncHosts().diagnose(str(sshd_host.alias))
            assert only(found, "kernels").facts["count"] == 1
            assert only(found, "kernels").facts["memory"] > 1e6
            assert found.finding("folder") is None
            assert [path for path in sorted(ours.rglob("*")) if "run" not in path.parts] == before
        assert found.can_start

    def test_is_told_by_the_command(self, sshd_host: Real) -> None:
        *lines, last = albedo("doctor", str(sshd_host.alias)).splitlines()
        assert last == f"Nothing keeps a kernel from starting on {sshd_host.alias}."
        document = json.loads(albedo("doctor", "--json", str(sshd_host.alias)))
        assert [each["check"] for each in document["findings"]] == [line[9:19].rstrip() for line in lines]
        assert document["can_start"] is True
        assert "problem" not in {each["state"] for each in document["findings"]}

    def test_may_be_this_machine(self, local_host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        found = Hosts().diagnose(".", python=str(local_host.python))
        assert [each.check for each in found.findings] == [check for check in THERE if check != "folder"]
        assert found.host == "this machine"
        assert blocking(found) == []
        monkeypatch.chdir(local_host.home)
        for none in (str(local_host.home / "none"), "./none"):
            found = Hosts().diagnose(none, python=str(local_host.python))
            assert blocking(found) == ["folder"]
            assert any(str(local_host.home / "none") in each.text for each in found.findings)


class TestTheWayThere:
    async def test_is_told_with_what_decided_it(
        self, sshd_host: Real, door: Door, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By the program because of the config or the variable, or over a connection that is signed in."""
        hosts = AsyncHosts()
        door.write("exec")
        workspace.add_to_ssh_config("Match originalhost exec exec true\n  Compression no\n")
        found = await hosts.diagnose("exec")
        assert only(found, "ssh").facts == {"kind": "program", "why": "Match exec"}
        assert found.can_start
        door.write("remarked", Port=f"{sshd_host.server.port} # not 22")
        number = next(at for at, line in enumerate(workspace.ssh_config.read_text().splitlines(), 1) if "# not" in line)
        found = await hosts.diagnose("remarked")
        assert only(found, "ssh").facts["kind"] == "program"
        assert f"line {number}: " in only(found, "ssh").text
        assert (only(found, "ssh").state, found.can_start) == ("note", True)
        assert not re.search("cannot be read|Correct", "".join(each.text + each.advice for each in found.findings))
        door.write("shared", ControlPath=f"{workspace.root}/m")
        with Master("shared"):
            found = await hosts.diagnose("shared")
        assert only(found, "ssh").facts["kind"] == "master"
        assert f"{workspace.root}/m" in only(found, "sign-in").text
        monkeypatch.setenv("ALBEDO_SSH", "program")
        found = await hosts.diagnose(str(sshd_host.alias))
        assert only(found, "ssh").facts == {"kind": "program", "why": "ALBEDO_SSH=program"}

    def test_of_few_sessions_is_a_note(self, sshd_host: Real) -> None:
        sshd_host.server.restart(MaxSessions="2")
        found = diagnose(sshd_host)
        assert only(found, "sessions").state == "note"
        assert only(found, "sessions").facts["count"] == 2
        assert found.can_start

    @pytest.mark.parametrize("text", ["-oProxyCommand=id", "", "a b", "gpu;id", "$(id)"])
    def test_to_what_is_no_host_is_refused(self, text: str) -> None:
        with pytest.raises(LocationError):
            Hosts().diagnose(text)


class TestAHostOutOfReach:
    def test_is_told_of_as_far_as_it_can_be_from_here(self, sshd_host: Real, workspace: Workspace) -> None:
        sshd_host.down()
        text = albedo("doctor", str(sshd_host.alias), status=1)
        lines = [line.split()[:2] for line in text.splitlines()[:-1]]
        assert lines == [
            ["ok", "config"],
            ["ok", "name"],
            ["ok", "ssh"],
            ["problem", "connection"],
        ]
        assert "cannot be reached: connection refused" in text
        assert text.splitlines()[-1].startswith(f"No kernel can start on {sshd_host.alias}")
        workspace.add_to_ssh_config("Host nameless\n  HostName nameless.invalid\n")
        found = Hosts().diagnose("nameless")
        assert blocking(found) == ["name", "connection"]
        assert "nameless.invalid cannot be resolved" in only(found, "name").text

    def test_may_want_a_sign_in(self, embedded_host: Embedded) -> None:
        embedded_host.server.behave(refuse_auth=True)
        found = diagnose(embedded_host)
        assert blocking(found) == ["sign-in"]
        assert "into ~/.ssh/authorized_keys there" in only(found, "sign-in").text

    def test_may_have_a_config_that_cannot_be_read(self, workspace: Workspace) -> None:
        workspace.add_to_ssh_config("Host broken\n    Port many\n")
        found = Hosts().diagnose("broken")
        assert [each.check for each in found.findings] == ["config"]
        assert blocking(found) == ["config"]
        assert "line 2" in only(found, "config").text


class TestALogin:
    def test_that_prints_or_takes_long_is_a_note(self, sshd_host: Real, monkeypatch: pytest.MonkeyPatch) -> None:
        sshd_host.greet("Welcome to gpu!\nDo not smoke here.")
        found = diagnose(sshd_host)
        assert only(found, "login").state == "note"
        assert "Welcome to gpu!" in only(found, "login").text
        assert "smoke" in only(found, "login").facts["printed"]
        monkeypatch.setattr(verdicts, "_SLOW_LOGIN", 0.001)
        assert "every kernel start" in only(diagnose(sshd_host), "login").text
        assert found.can_start

    def test_whose_profile_has_to_be_left_out_is_a_note(self, sshd_host: Real) -> None:
        sshd_host.write(".profile", "exec zsh -l\n")
        found = diagnose(sshd_host, python=sshd_host.python)
        login = only(found, "login")
        assert login.state == "note"
        assert "the login profile ends the shell before a command can run" in login.text
        assert login.text.endswith("(PATH, modules, conda).")  # the advice follows
        assert found.can_start

    def test_that_runs_nothing_is_a_problem(self, sshd_host: Real) -> None:
        sshd_host.account.set_shell("/usr/sbin/nologin")
        found = diagnose(sshd_host)
        assert blocking(found) == ["login"]
        assert only(found, "sign-in").state == "ok"

    def test_without_a_python_or_with_an_old_one_is_a_problem(self, sshd_host: Real) -> None:
        """Of an old one the rest is told as far as it understands us."""
        found = diagnose(sshd_host, python="~/none/python3")
        assert blocking(found) == ["python"]
        assert "none/python3" in only(found, "python").text
        found = diagnose(sshd_host, python=sshd_host.write_old_python("old/python3"))
        assert blocking(found) == ["python"]
        assert "3.8.2" in only(found, "python").text
        assert only(found, "home").state == "ok"
        assert only(found, "clock").state == "ok"
        assert found.finding("packages") is None

    def test_where_a_module_stands_before_one_of_pythons_own_is_a_problem(self, sshd_host: Real) -> None:
        profile = (sshd_host.home / ".profile").read_text()
        sshd_host.write(".profile", f"{profile}export PYTHONPATH=~/mine\n")
        mine = sshd_host.write("mine/json.py", "raise RuntimeError('not that one')\n")
        found = diagnose(sshd_host)
        assert blocking(found) == ["python"]
        told = only(found, "python").text
        assert (
            f"RuntimeError: not that one. A module there takes the place of one of the standard library ({mine})"
            in told
        )
        assert "no Python" not in told

    async def test_that_denies_the_account_its_own_files_is_mended(self, sshd_host: Real) -> None:
        """As far as that goes; what others may do is as the profile has it."""
        profile = (sshd_host.home / ".profile").read_text()
        sshd_host.write(".profile", f"{profile}umask 727\n")
        found = await AsyncHosts().diagnose(str(sshd_host.alias))
        assert blocking(found) == []
        async with started(sshd_host.location()) as kernel:
            assert await kernel.value("oct(__import__('os').umask(0))") == "'0o27'"


class TestPackages:
    def test_that_are_missing_are_brought_along(self, bare_host: Bare) -> None:
        found = diagnose(bare_host.host, python=bare_host.python)
        assert only(found, "packages").state == "note"
        assert "no ipykernel and pyzmq; the first kernel brings it along" in only(found, "packages").text
        assert "are kept here" in only(found, "packages").text
        assert found.can_start

    def test_that_cannot_be_fetched_are_a_problem(
        self, sshd_host: Real, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        python = bare_python(sshd_host)
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(workspace.root / "none"))
        found = diagnose(sshd_host, python=python)
        assert blocking(found) == ["packages"]
        assert "pip is told to ask no package index, and wheels are missing of" in only(found, "packages").text
        take_the_index_away(monkeypatch)
        assert "the package index cannot be reached" in only(diagnose(sshd_host, python=python), "packages").text
        assert list((workspace.albedo_home / "wheels").iterdir()) == []

    def test_that_cannot_be_imported_are_a_problem(self, sshd_host: Real) -> None:
        python = bare_python(sshd_host)
        (site,) = (python.parent.parent / "lib").glob("python3.*/site-packages")
        sshd_host.write(site / "ipykernel" / "__init__.py", "")
        sshd_host.write(site / "zmq" / "__init__.py", "raise ImportError('libzmq.so.5: no such file')")
        found = diagnose(sshd_host, python=python)
        assert blocking(found) == ["packages"]
        assert "libzmq.so.5: no such file" in only(found, "packages").text

    async def test_of_the_users_own_that_are_damaged_are_told_by_add_and_the_start(self, sshd_host: Real) -> None:
        profile = (sshd_host.home / ".profile").read_text()
        sshd_host.write(".profile", f"{profile}export PYTHONPATH=~/mine\n")
        damaged = sshd_host.write("mine/ipykernel/__init__.py", "")
        found = await AsyncHosts().diagnose(str(sshd_host.alias))
        assert blocking(found) == ["packages"]
        told = only(found, "packages").text
        assert told.endswith(f"No module named 'ipykernel.kernelapp' ({damaged}).")
        assert "No module named 'ipykernel.kernelapp'" in (said := albedo("add", sshd_host.location(), status=1))
        assert f"({damaged}). Remove what is damaged there" in said
        assert albedo("list", "--json").strip() == "[]"
        with pytest.raises(KernelStartError, match=r"ipykernel.*jupyter albedo doctor .* install ipykernel anew there"):
            async with started(sshd_host.location()):
                pass
        damaged.parent.rename(sshd_host.home / "elsewhere")
        broken = sshd_host.write("mine/tornado/__init__.py", "from tornado import none\n")
        assert f"({broken}). Remove what is damaged" in albedo("add", sshd_host.location(), status=1)

    def test_cannot_be_brought_to_a_home_that_runs_nothing(
        self, sshd_host: Real, full_home: Callable[[int], None], kept_packages: Path
    ) -> None:
        python = bare_python(sshd_host)
        full_home(64 << 20)
        subprocess.run(["mount", "-o", "remount,noexec", sshd_host.home], check=True)
        found = diagnose(sshd_host, python="/usr/bin/python3")
        assert not python.exists()  # the disk is another one
        assert blocking(found) == ["packages"]
        packages = only(found, "packages")
        assert "noexec" in packages.text
        assert "--python" in packages.text
        assert "venv" not in f"{packages.text} {packages.advice}"  # one below ~ would load nothing either


class TestMemory:
    async def test_that_is_too_little_is_a_problem_and_named_when_a_kernel_dies_of_it(self, sshd_host: Real) -> None:
        profile = (sshd_host.home / ".profile").read_text()
        sshd_host.write(".profile", f"{profile}ulimit -v 60000\n")
        found = await AsyncHosts().diagnose(str(sshd_host.alias))
        assert blocking(found) == ["memory"]
        assert "61 MB of memory (ulimit -v)" in only(found, "memory").text
        with pytest.raises(KernelStartError, match=r"no more than 61 MB of memory there \(ulimit -v\)"):
            async with started(sshd_host.location()):
                pass
        sshd_host.write(".profile", f"{profile}ulimit -v 800000\n")
        found = await AsyncHosts().diagnose(str(sshd_host.alias))
        assert blocking(found) == []
        assert only(found, "memory").state == "note"


class TestOpenFiles:
    async def test_that_are_too_few_are_a_problem_and_named_at_the_start(self, sshd_host: Real) -> None:
        """More are given as far as the account may have them."""
        profile = (sshd_host.home / ".profile").read_text()
        sshd_host.write(".profile", f"{profile}ulimit -n 64\n")
        found = await AsyncHosts().diagnose(str(sshd_host.alias))
        assert blocking(found) == ["files"]
        assert "64 open files" in only(found, "files").text
        with pytest.raises(KernelStartError, match=r"no more than 64 open files on .*\(ulimit -n\)"):
            async with started(sshd_host.location()):
                pass
        assert "no more than 64 open files on" in albedo("add", sshd_host.location(), status=1)
        sshd_host.write(".profile", f"{profile}ulimit -n 200\nulimit -S -n 64\n")
        found = await AsyncHosts().diagnose(str(sshd_host.alias))
        assert blocking(found) == []
        assert only(found, "files").facts == {"limit": 200}
        async with started(sshd_host.location()) as kernel:
            limit = "__import__('resource').getrlimit(__import__('resource').RLIMIT_NOFILE)"
            assert await kernel.value(limit) == "(200, 200)"


class TestProcesses:
    async def test_that_are_too_few_are_a_problem_and_named_at_the_start(self, sshd_host: Real) -> None:
        """All that the account has count, threads too."""
        profile = (sshd_host.home / ".profile").read_text()
        for limit in (3, 8, 14):
            sshd_host.write(".profile", f"{profile}ulimit -u {limit}\n")
            found = await AsyncHosts().diagnose(str(sshd_host.alias))
            assert blocking(found) == ["processes"], found
            told = only(found, "processes")
            assert f"no more than {limit} processes and threads on {sshd_host.alias} (ulimit -u)" in told.text
            assert told.facts["limit"] == limit
            assert told.facts["now"] > 0  # and more than the limit, if they were there before it
            assert "the profile prints nothing" in only(found, "login").text
        with pytest.raises(KernelStartError, match=r"no more than 14 processes and threads on .*\(ulimit -u\)"):
            async with started(sshd_host.location()):
                pass
        assert "no more than 14 processes and threads on" in albedo("add", sshd_host.location(), status=1)
        enough = spawn.KEEPER_TASKS + spawn.KERNEL_TASKS + told.facts["now"] + 20  # connections that end may count yet
        sshd_host.write(".profile", f"{profile}ulimit -u {enough}\n")
        found = await AsyncHosts().diagnose(str(sshd_host.alias))
        assert blocking(found) == []
        assert only(found, "processes").state == "note"
        async with started(sshd_host.location()) as kernel:
            assert await kernel.value("1 + 1") == "2"

    async def test_that_are_as_many_as_a_kernel_takes_are_enough(self, sshd_host: Real) -> None:
        """Beside what serves the connection and the command."""
        uid = sshd_host.account.uid
        wait_until(lambda: not [each for each in everyone() if each.uid == uid], what="no process of a test before")
        profile = (sshd_host.home / ".profile").read_text()
        sshd_host.write(".profile", f"{profile}ulimit -u {spawn.KEEPER_TASKS + spawn.KERNEL_TASKS + 2}\n")
        async with started(sshd_host.location()) as kernel:
            assert await kernel.value("1 + 1") == "2"

    async def test_that_run_out_while_a_kernel_starts_are_named(self, sshd_host: Real) -> None:
        profile = (sshd_host.home / ".profile").read_text()
        sshd_host.write(".profile", f"{profile}ulimit -u 40\n")
        config = {"env": {"PYTHONPATH": str(sshd_host.home / "early")}}
        greedy = "for _ in range(60):\n    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        sshd_host.write("early/ipykernel/__init__.py", f"import threading, time\n{greedy}")
        with pytest.raises(KernelStartError, match=r"no more than 40 processes and threads there \(ulimit -u\)"):
            async with started(sshd_host.location(), config):
                pass


@pytest.mark.first_visit
class TestAHome:
    async def test_has_to_have_as_much_room_as_doctor_says(self, bare_host: Bare) -> None:
        """With packages that are brought along, what Python compiles of them, and IPython's own files."""
        host = bare_host.host
        before = os.statvfs(host.home)
        assert blocking(await AsyncHosts().diagnose(str(host.alias), python=str(bare_host.python))) == []
        async with started(host.location(), bare_host.config) as kernel:
            assert await kernel.value("1 + 1") == "2"
        after = os.statvfs(host.home)
        taken = (before.f_bfree - after.f_bfree) * after.f_frsize
        assert 0.75 < taken / verdicts._PACKAGES_BYTES < 1
        assert 0.75 < (before.f_ffree - after.f_ffree) / verdicts._PACKAGES_FILES < 1

    def test_that_is_full_is_a_problem_and_the_rest_is_told(
        self, sshd_host: Real, full_home: Callable[[int], None]
    ) -> None:
        full_home(8 << 20)
        room = os.statvfs(sshd_host.home)
        sshd_host.write("big", "x" * (room.f_bavail * room.f_frsize - (256 << 10)))
        found = diagnose(sshd_host)
        assert blocking(found) == ["home"]
        assert "No space left on device" in only(found, "home").text
        assert "df -h" in only(found, "home").advice
        assert only(found, "packages").state == "ok"

    def test_that_is_full_is_promised_no_packages(self, bare_host: Bare, full_home: Callable[[int], None]) -> None:
        full_home(1 << 20)
        found = diagnose(bare_host.host, python=bare_python(bare_host.host))
        assert blocking(found) == ["home"]
        assert "the first kernel" not in only(found, "packages").text
        assert "it can be brought along once the home is mended" in only(found, "packages").text

    def test_that_is_not_there_is_a_problem(self, sshd_host: Real) -> None:
        folder = sshd_host.make_folder("proj")
        profile = (sshd_host.home / ".profile").read_text()
        sshd_host.write(".profile", f"{profile}export HOME=/nowhere/ann\n")
        found = diagnose(sshd_host)
        assert blocking(found) == ["home"]
        assert "/nowhere/ann, does not exist. Have it made" in only(found, "home").text
        assert "/nowhere/ann, does not exist. Have it made" in albedo("add", f"{sshd_host.alias}:{folder}", status=1)

    def test_that_cannot_be_written_is_a_problem(self, sshd_host: Real) -> None:
        sshd_host.home.chmod(0o550)
        found = diagnose(sshd_host)
        assert blocking(found) == ["home", "runtime"]
        assert "Permission denied" in only(found, "home").text
        assert only(found, "kernels").state == "ok"

    def test_whose_private_directory_is_not_private_is_told_of(self, sshd_host: Real) -> None:
        ours = sshd_host.make_folder(".albedo-remote")
        ours.chmod(0o755)
        found = diagnose(sshd_host)
        assert only(found, "runtime").state == "note"
        assert f"others may look into {ours}" in only(found, "runtime").text
        assert stat.S_IMODE(ours.stat().st_mode) == 0o755
        ours.rmdir()
        sshd_host.write(".albedo-remote", "")
        found = diagnose(sshd_host)
        ours.unlink()
        assert blocking(found) == ["runtime"]

    def test_with_a_long_path_has_its_sockets_elsewhere(self, sshd_host: Real) -> None:
        long = sshd_host.make_folder("long/" + "x" * 90)
        profile = (sshd_host.home / ".profile").read_text()
        sshd_host.write(".profile", f"{profile}\nexport HOME='{long}'\n")
        found = diagnose(sshd_host)
        assert only(found, "runtime").state == "ok"
        assert "the sockets lie in /tmp/albedo-" in only(found, "runtime").text
        assert not Path(only(found, "runtime").facts["sockets"]).exists()

    def test_that_does_not_answer_holds_nothing_else_up(self, sshd_host: Real) -> None:
        """Nor does a clock that is wrong."""
        hang = (
            "import os, time; os.statvfs = lambda path: time.sleep(60); now = time.time; time.time = lambda: now() + 90"
        )
        found = diagnose(sshd_host, "/nowhere/at/all", python=stand_in(sshd_host, "hung/python3", hang))
        assert "no answer within 6 s" in only(found, "home").text
        assert only(found, "clock").state == "note"
        assert 85 < only(found, "clock").facts["skew"] < 95
        assert only(found, "packages").state == "ok"
        assert blocking(found) == ["folder"]
        assert "no such file" in only(found, "folder").text
