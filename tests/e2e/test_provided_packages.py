"""A host whose Python has neither ipykernel nor pip: packages are put there, behind all that it has of its own."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from bare import Bare, bare_python, facts_of, take_the_index_away
from faces import Embedded, Local, Real
from jupyter_client.manager import AsyncKernelManager
from kernels import add_kernelspec, eventually, started
from leaks import settled
from packaging.utils import canonicalize_name
from procs import send

import albedo_provisioner
from albedo_provisioner import cli
from albedo_provisioner.bundle.in_use import LOCK
from albedo_provisioner.errors import PackagesMissingError, StagingError
from albedo_provisioner.hosts import asking, io_thread
from albedo_provisioner.hosts.host_python import HostPython
from albedo_provisioner.hosts.wheels import FetchError, wheel_set
from albedo_provisioner.kernelspecs import find_ours

if TYPE_CHECKING:
    from conftest import Workspace

pytestmark = pytest.mark.timeout(300)  # pip and a package index are at work in some of them

ARRIVED = "packages for Python"
"""In a line of the log, once for each time that packages were put on a host."""


def arrivals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if ARRIVED in text and "are there" in text]


def pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", *arguments], check=True, capture_output=True)


def system_python() -> Path:
    """Return the system's own interpreter, if it is one that the tests are about."""
    python = Path("/usr/bin/python3")
    if not python.exists() or facts_of(python)["version"] < [3, 11]:
        pytest.skip("the system has no Python that is new enough")
    if "ipykernel" in facts_of(python)["own"]:
        pytest.skip("the system's Python has an ipykernel")
    return python


async def begun(bare: Bare) -> tuple[AsyncKernelManager, asyncio.Task[None]]:
    """Begin to start a kernel; the caller sees to its end."""
    manager = AsyncKernelManager(kernel_name=add_kernelspec(bare.host.location(), bare.config))
    task = asyncio.create_task(manager.start_kernel())
    await eventually(lambda: manager.provisioner is not None)
    return manager, task


def staged(manager: AsyncKernelManager) -> tuple[int, int | None]:
    """Return how far packages are on their way, in bytes."""
    status: dict[str, Any] = manager.provisioner.status  # type: ignore[union-attr]
    found: tuple[int, int | None] = status.get("staged", (0, None))
    return found


class TestAKernel:
    async def test_starts_where_nothing_is_installed(
        self, bare_host: Bare, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Executes, restarts, debugs; and a second one on the same host is sent nothing."""
        caplog.set_level(logging.INFO)
        take_the_index_away(monkeypatch)  # what is kept here is enough
        async with started(bare_host.host.location(), bare_host.config) as kernel:
            assert len(arrivals(caplog)) == 1
            assert await kernel.value("1 + 1") == "2"
            (directory,) = bare_host.sets
            path = await kernel.json("sys.path", "import sys")
            assert path[-1] == str(directory)
            assert path.index(str(bare_host.site_packages)) < len(path) - 1
            assert (await kernel.json("ipykernel.__file__", "import ipykernel")).startswith(str(directory))
            pid = kernel.status["pid"]
            await kernel.manager.restart_kernel()
            assert await kernel.value("6 * 7") == "42"
            assert kernel.status["pid"] != pid
            arguments = {"clientID": "test", "adapterID": "", "pathFormat": "path", "supportsVariableType": True}
            initialize = {"type": "request", "seq": 1, "command": "initialize", "arguments": arguments}
            assert (await kernel.ask("debug_request", initialize, "control"))["success"]
            attach = {"type": "request", "seq": 2, "command": "attach", "arguments": {}}
            assert (await kernel.ask("debug_request", attach, "control"))["success"]
        before = directory.stat().st_ino
        async with started(bare_host.host.location(), bare_host.config) as kernel:
            assert await kernel.value("1 + 1") == "2"
        assert len(arrivals(caplog)) == 1
        assert [path.stat().st_ino for path in bare_host.sets] == [before]
        for path in [directory.parent, *directory.rglob("*")]:
            if "__pycache__" not in path.parts:  # those the kernel's own Python makes, under the user's umask
                assert path.stat().st_mode & 0o077 == 0, path

    async def test_goes_on_when_its_keeper_is_killed(self, bare_host: Bare) -> None:
        """The new keeper has its pyzmq from the same place, and the kernel itself holds what it uses."""
        async with started(bare_host.host.location(), bare_host.config) as kernel:
            (running,) = [each for each in bare_host.host.processes() if each.pid == kernel.status["pid"]]
            (keeper,) = [each for each in bare_host.host.processes() if each.pid == running.ppid]
            (directory,) = bare_host.sets
            send(keeper, signal.SIGKILL)
            with (directory / LOCK).open("r+") as lock, pytest.raises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            await eventually(lambda: kernel.status["connections"] == 2 and kernel.status["step"] == "attached")
            assert await kernel.value("6 * 7") == "42"
            assert kernel.status["pid"] == running.pid

    async def test_completes_names(self, bare_host: Bare) -> None:
        """In the standard library and in packages; part of what helps with the latter is not put there."""
        async with started(bare_host.host.location(), bare_host.config) as kernel:
            await kernel.run("import re, traitlets, dateutil.parser")
            for code, name in (
                ("re.compile('').fullm", "fullmatch"),
                ("traitlets.HasTr", "HasTraits"),
                ("dateutil.parser.par", "parse"),
            ):
                reply = await kernel.ask("complete_request", {"code": code, "cursor_pos": len(code)})
                assert [match for match in reply["matches"] if match.endswith(name)], (code, reply)

    async def test_gives_nothing_of_it_to_the_processes_that_it_starts(self, bare_host: Bare) -> None:
        async with started(bare_host.host.location(), bare_host.config) as kernel:
            code = "import sys; print([p for p in sys.path if 'albedo-remote' in p])"
            await kernel.run(
                "import os, subprocess, sys\n"
                "def run(code):\n"
                "    return subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)"
            )
            assert await kernel.json(f"run({code!r}).stdout") == "[]\n"
            assert await kernel.json("os.environ.get('PYTHONPATH')") is None
            assert "No module named 'ipykernel'" in await kernel.json("run('import ipykernel').stderr")

    async def test_starts_on_this_machine(self, local_host: Local, workspace: Workspace, kept_packages: Path) -> None:
        shutil.copytree(kept_packages, workspace.albedo_home / "wheels")
        async with started(local_host.location(), {"python": str(bare_python(local_host))}) as kernel:
            assert await kernel.value("1 + 1") == "2"

    async def test_starts_on_the_system_s_own_python(self, bare_host: Bare) -> None:
        """Which may have packages of its own, of any age."""
        python = system_python()
        own = {canonicalize_name(name): version for name, version in facts_of(python)["own"].items()}
        async with started(bare_host.host.location(), {"python": str(python)}) as kernel:
            assert await kernel.value("1 + 1") == "2"
            assert await kernel.json("sys.executable", "import sys") == str(python)
            if "pygments" in own:
                assert await kernel.json("pygments.__version__", "import pygments") == own["pygments"]

    async def test_keeps_the_packages_of_its_own_interpreter(
        self, bare_host: Bare, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Older ones too, and what is put there goes with them."""
        older = "5.14.3"
        wheels = workspace.root / "wheels"
        kept = (workspace.albedo_home / "wheels").glob("*/*.whl")
        wheels.mkdir()
        for wheel in kept:
            shutil.copy(wheel, wheels)
        pip("download", "--no-deps", f"--dest={wheels}", f"traitlets=={older}")
        take_the_index_away(monkeypatch)
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
        target = bare_host.site_packages
        pip("install", "--no-deps", f"--target={target}", f"traitlets=={older}")
        bare_host.host.account.own(target)
        async with started(bare_host.host.location(), bare_host.config) as kernel:
            found = await kernel.json("[traitlets.__version__, traitlets.__file__]", "import traitlets")
            assert found == [older, str(target / "traitlets" / "__init__.py")]
            (directory,) = bare_host.sets
            assert (directory / f"traitlets-{older}.dist-info").is_dir()

    async def test_uses_an_ipykernel_of_its_interpreter_s_own_and_nothing_is_sent(
        self, bare_host: Bare, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Also after another interpreter was given packages, and when it gets an ipykernel later."""
        caplog.set_level(logging.INFO)
        async with started(bare_host.host.location(), bare_host.config):
            pass
        async with started(bare_host.host.location()) as kernel:
            path = await kernel.json("sys.path", "import sys")
            assert not [entry for entry in path if "wheels" in entry]
        (own,) = (bare_host.host.python.parent.parent / "lib").glob("python3.*/site-packages")
        (bare_host.site_packages / "later.pth").write_text(f"{own}\n")
        async with started(bare_host.host.location(), bare_host.config) as kernel:
            path = await kernel.json("sys.path", "import sys")
            assert not [entry for entry in path if "wheels" in entry]
        assert len(arrivals(caplog)) == 1


class TestSending:
    async def test_is_told_in_bytes(self, bare_host: Bare, caplog: pytest.LogCaptureFixture) -> None:
        """K2."""
        caplog.set_level(logging.INFO)
        manager, task = await begun(bare_host)
        await eventually(lambda: staged(manager)[1])
        status: dict[str, Any] = manager.provisioner.status  # type: ignore[union-attr]
        assert status["step"] == "staging"
        seen = set()
        while not task.done():
            seen.add(staged(manager)[0])
            await asyncio.sleep(0.01)
        await task
        await manager.shutdown_kernel(now=True)
        assert len(seen) > 2
        assert [text for text in caplog.messages if "staging, 14" in text or "MB of packages are there" in text]

    async def test_begins_anew_when_the_connection_breaks(
        self, bare_host: Bare, caplog: pytest.LogCaptureFixture
    ) -> None:
        """L5."""
        caplog.set_level(logging.INFO)
        manager, task = await begun(bare_host)
        await eventually(lambda: staged(manager)[0] > 0)
        assert bare_host.host.cut() > 0
        await task
        assert "Sending the packages again" in caplog.text
        await manager.shutdown_kernel(now=True)
        assert len(bare_host.sets) == 1

    async def test_that_is_given_up_leaves_nothing(self, bare_host: Bare) -> None:
        manager, task = await begun(bare_host)
        await eventually(lambda: staged(manager)[0] > 0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert settled(lambda: [str(path) for path in bare_host.sets if "." in path.name]) == []
        assert settled(bare_host.host.leftovers) == []

    async def test_is_done_once_for_kernels_that_start_at_once(
        self, bare_host: Bare, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        managers = [(await begun(bare_host)) for _ in range(3)]
        await asyncio.gather(*(task for _, task in managers))
        assert len(arrivals(caplog)) == 1
        assert len(bare_host.sets) == 1
        await asyncio.gather(*(manager.shutdown_kernel(now=True) for manager, _ in managers))

    async def test_from_two_programs_at_once_succeeds_in_both(self, bare_host: Bare) -> None:
        command = [sys.executable, "-m", "albedo_provisioner", "add", bare_host.host.location()]
        both = [
            await asyncio.create_subprocess_exec(*command, "--python", str(bare_host.python), f"--name=k{number}")
            for number in range(2)
        ]
        assert [await process.wait() for process in both] == [0, 0]
        assert len(bare_host.sets) == 1
        assert sorted(kernelspec.name for kernelspec in find_ours()) == ["k0", "k1"]

    async def test_finds_the_disk_full(
        self, workspace: Workspace, sshd_host: Real, full_home: Callable[[int], None], kept_packages: Path
    ) -> None:
        shutil.copytree(kept_packages, workspace.albedo_home / "wheels")
        full_home(24 << 20)
        python = bare_python(sshd_host)
        manager = AsyncKernelManager(kernel_name=add_kernelspec(sshd_host.location(), {"python": str(python)}))
        with pytest.raises(StagingError, match="No space left"):
            await manager.start_kernel()
        assert sshd_host.leftovers() == []
        assert list((sshd_host.home / ".albedo-remote" / "wheels").iterdir()) == []

    async def test_begins_anew_when_nothing_is_heard_any_more(
        self, bare_host: Bare, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """L6: not on the connection that fell silent."""
        monkeypatch.setattr(asking, "ANSWER_TIMEOUT", 8.0)
        caplog.set_level(logging.INFO)
        manager, task = await begun(bare_host)
        await eventually(lambda: staged(manager)[0] > 0)
        assert bare_host.host.freeze() > 0
        await task
        assert "Sending the packages again" in caplog.text
        await manager.shutdown_kernel(now=True)
        bare_host.host.thaw()


class TestAMachineWithoutAnIndex:
    async def test_is_told_what_is_missing_and_how_to_provide_it(
        self, bare_host: Bare, workspace: Workspace, kept_packages: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shutil.rmtree(workspace.albedo_home / "wheels")
        take_the_index_away(monkeypatch)
        manager = AsyncKernelManager(kernel_name=add_kernelspec(bare_host.host.location(), bare_host.config))
        with pytest.raises(PackagesMissingError) as caught:
            await manager.start_kernel()
        message = str(caught.value)
        for words in ("no ipykernel and pyzmq", "cannot be reached", "pip install", "pip download", "PIP_FIND_LINKS"):
            assert words in message, message
        assert "\n" not in message
        listed = re.search(r"wheels are missing of ([^.]*)\.", message)
        assert listed is not None, message
        assert {"comm", "ipykernel", "pyzmq", "tornado", "traitlets"} <= set(listed[1].split(", "))
        # Of all that is missing only that is told which no directory of wheels has.
        wheels = workspace.root / "my wheels"
        shutil.copytree(next(kept_packages.glob("*/comm-*.whl")).parent, wheels)  # noqa: ASYNC240
        for name in ("comm", "pyzmq"):
            next(wheels.glob(f"{name}-*.whl")).unlink()
        (wheels / "pyzmq-27.0.0-cp38-cp38-win_amd64.whl").touch()  # for another system
        monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        with pytest.raises(PackagesMissingError, match=r"no package index, and wheels are missing of comm, pyzmq\. "):
            await manager.start_kernel()
        assert bare_host.sets == []
        assert settled(bare_host.host.leftovers) == []

    def test_is_told_which_packages_do_not_go_together(
        self, sshd_python: Path, kept_packages: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Where others are taken instead, and with what pip says of it that is of use."""
        monkeypatch.setenv("PIP_FIND_LINKS", str(next(kept_packages.glob("*/comm-*.whl")).parent))
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        facts = {**facts_of(sshd_python), "own": {"traitlets": "4.0.0"}}
        assert io_thread.run_blocking(wheel_set(HostPython.from_facts(facts))).wheels
        assert "newer ones are taken" in caplog.text
        assert "ipykernel" in caplog.text
        assert "ResolutionImpossible" not in caplog.text

    def test_is_not_told_of_newer_packages_where_none_are_to_be_had(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        take_the_index_away(monkeypatch)
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        facts = facts_of(Path(sys.executable))
        with pytest.raises(FetchError):
            io_thread.run_blocking(wheel_set(HostPython.from_facts({**facts, "own": {"traitlets": "5.14.3"}})))
        assert "newer ones are taken" not in caplog.text

    async def test_takes_a_directory_of_wheels(
        self, bare_host: Bare, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wheels = workspace.root / "my wheels"
        wheels.mkdir()
        for wheel in (workspace.albedo_home / "wheels").glob("*/*.whl"):
            shutil.copy(wheel, wheels)
        shutil.rmtree(workspace.albedo_home / "wheels")
        take_the_index_away(monkeypatch)
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", wheels.as_uri())
        async with started(bare_host.host.location(), bare_host.config) as kernel:
            assert await kernel.value("1 + 1") == "2"

    async def test_gives_up_waiting_when_the_caller_does(
        self, bare_host: Bare, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also while pip is at work; it ends, and what it had is removed."""
        shutil.rmtree(workspace.albedo_home / "wheels")
        take_the_index_away(monkeypatch)
        manager, task = await begun(bare_host)
        await eventually(lambda: list(workspace.albedo_home.glob("wheels/.new-*/*/*/pip.log")))
        assert staged(manager) == (0, None)
        began = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - began < 10
        assert settled(lambda: [str(path) for path in workspace.albedo_home.glob("wheels/*")]) == []


def test_a_set_is_whole_for_another_system_and_version_than_this_one(workspace: Workspace, kept_packages: Path) -> None:
    """Requirements with markers are those of the other one: pip by itself takes this interpreter's."""
    facts = facts_of(Path(sys.executable))
    version = "3.12.4" if sys.version_info[:2] != (3, 12) else "3.13.1"
    markers = {
        **facts["markers"],
        "platform_machine": "arm64",
        "platform_system": "Darwin",
        "python_full_version": version,
        "python_version": version[:4],
        "sys_platform": "darwin",
    }
    mac = {"system": "darwin", "machine": "arm64", "libc": "", "libc_version": [14, 5], "markers": markers, "own": {}}
    numbers = [int(number) for number in version.split(".")]
    abi = f"cp{numbers[0]}{numbers[1]}"
    python = HostPython.from_facts({**facts, **mac, "version": numbers, "abis": [abi]})
    found = io_thread.run_blocking(wheel_set(python))
    assert "appnope" in found.names, "ipykernel wants it on macOS alone"
    assert "colorama" not in found.names, "IPython wants it on Windows alone"
    names = [name for name, _, _ in found.wheels]
    assert not [name for name in names if "linux" in name or "win" in name.replace("darwin", "")]
    assert [name for name in names if "macosx" in name]
    assert oct(os.stat(found.directory).st_mode)[-3:] == "700"


def test_an_environment_without_pip_is_told_where_to_get_it(bare_host: Bare, workspace: Workspace) -> None:
    """As uv makes them."""
    shutil.rmtree(workspace.albedo_home / "wheels")
    here = workspace.root / "here"
    venv.EnvBuilder(symlinks=True, with_pip=False).create(here)
    (site,) = (here / "lib").glob("python3.*/site-packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(("pip", "_editable", "distutils")) and not (site / entry.name).exists():
            (site / entry.name).symlink_to(entry)
    package = Path(albedo_provisioner.__file__).parent
    if not (site / package.name).exists():
        (site / package.name).symlink_to(package)
    command = ["-P", "-m", "albedo_provisioner", "add", bare_host.host.location(), "--python", str(bare_host.python)]
    python = str(here / "bin" / "python")
    done = subprocess.run([python, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done
    assert f"there is no pip for {python} on this machine" in done.stderr
    assert "ensurepip" in done.stderr
    assert "Traceback" not in done.stderr
    assert find_ours() == []


class TestTheCommand:
    def test_puts_the_packages_there_and_says_so(self, bare_host: Bare, capsys: pytest.CaptureFixture[str]) -> None:
        arguments = ["add", bare_host.host.location(), "--python", str(bare_host.python)]
        assert cli.main(arguments) == 0
        said = capsys.readouterr().out
        assert "has no ipykernel" in said
        assert " MB) were put below ~/.albedo-remote there" in said
        assert len(bare_host.sets) == 1
        assert cli.main(arguments) == 0
        assert "were put" not in capsys.readouterr().out

    async def test_uses_nothing_of_it_where_that_is_not_wanted(
        self, bare_host: Bare, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """What was put there for other kernels is no ipykernel of the interpreter's own."""
        command = ["add", bare_host.host.location(), "--python", str(bare_host.python), "--replace"]
        assert await asyncio.to_thread(cli.main, command) == 0
        assert len(bare_host.sets) == 1
        assert await asyncio.to_thread(cli.main, [*command, "--no-provide"]) == 1
        assert f"{bare_host.python} on {bare_host.host.alias} has no ipykernel" in capsys.readouterr().err
        config = {**bare_host.config, "provide": False}
        manager = AsyncKernelManager(kernel_name=add_kernelspec(bare_host.host.location(), config))
        with pytest.raises(PackagesMissingError, match="has no ipykernel"):
            await manager.start_kernel()
        assert settled(bare_host.host.leftovers) == []
        async with started(bare_host.host.location(), bare_host.config) as kernel:
            assert await kernel.value("1 + 1") == "2"

    def test_writes_down_that_nothing_may_be_put_there(self, bare_host: Bare) -> None:
        assert cli.main(["add", bare_host.host.location(), "--no-provide"]) == 0
        (kernelspec,) = find_ours()
        assert kernelspec.config["provide"] is False


async def test_packages_that_were_damaged_here_are_fetched_anew(
    embedded_host: Embedded, workspace: Workspace, kept_packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(kept_packages, workspace.albedo_home / "wheels")
    for wheel in (workspace.albedo_home / "wheels").glob("*/comm-*.whl"):
        wheel.write_bytes(b"damaged")
    take_the_index_away(monkeypatch)
    config = {"python": str(bare_python(embedded_host))}
    manager = AsyncKernelManager(kernel_name=add_kernelspec(embedded_host.location(), config))
    with pytest.raises(PackagesMissingError, match="cannot be reached"):
        await manager.start_kernel()
