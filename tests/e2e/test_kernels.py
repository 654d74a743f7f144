"""Where a kernel finds itself on its host: folder, environment, import path, and what is left when it has ended."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from faces import Embedded, Host, Local
from kernels import started
from leaks import settled
from procs import Process, wait_until

from albedo_provisioner.errors import AlbedoError

if TYPE_CHECKING:
    from conftest import Workspace


def files_below(folder: Path) -> list[str]:
    """Return what lies in a directory, at any depth, sockets and links too."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


class TestPlace:
    async def test_a_kernel_runs_in_its_folder_with_the_hosts_home_and_our_bundle(self, any_host: Host) -> None:
        """K1."""
        folder = any_host.make_folder("my proj/é")
        async with started(any_host.location("my proj/é")) as kernel:
            found = await kernel.json(
                "[os.getcwd(), os.environ['HOME'], os.environ['PWD'], albedo_bundle.ROOT, sys.executable, os.getuid()]",
                "import os, sys, albedo_bundle",
            )
            status = kernel.status
        cwd, home, pwd, root, python, uid = found
        assert cwd == pwd == str(folder)
        assert home == str(any_host.home)
        assert root.startswith(f"{any_host.home}/.albedo-remote/")
        assert python == str(any_host.python)
        assert uid == any_host.home.stat().st_uid
        assert (status["step"], status["process"], status["away"]) == ("attached", "running", None)

    async def test_a_tilde_is_the_home_on_the_host(self, remote_host: Host) -> None:
        """K1."""
        remote_host.make_folder("proj")
        async with started(f"{remote_host.alias}:~/proj") as kernel:
            assert await kernel.json("os.getcwd()", "import os") == str(remote_host.home / "proj")
            assert kernel.manager.provisioner.resolve_path("data.csv") == str(remote_host.home / "proj/data.csv")

    async def test_a_very_long_home_is_no_obstacle(self, workspace: Workspace, local_host: Local) -> None:
        """K1, K8: unix sockets allow about a hundred bytes for a path."""
        home = local_host.home / ("h" * 60) / ("o" * 60)
        home.mkdir(parents=True)
        os.environ["HOME"] = str(home)
        async with started(str(home), {"python": str(local_host.python)}) as kernel:
            assert await kernel.json("os.environ['HOME']", "import os") == str(home)
            assert await kernel.value("from albedo_bundle import run\nrun('true').wait()") == "0"
            call = "from albedo_bundle.calls import call\ntry:\n    call('nobody', {}, timeout=0.1)\n"
            assert await kernel.value(call + "except TimeoutError:\n    reached = True\nreached") == "True"
        os.environ["HOME"] = str(local_host.home)
        wait_until(lambda: not (home / ".albedo-remote" / "run").exists(), what="the run directory is gone")


class TestEnvironment:
    async def test_it_is_the_hosts_login_environment_with_what_the_kernelspec_adds(
        self, remote_host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """K1."""
        monkeypatch.setenv("SECRET_OF_THIS_MACHINE", "canary")
        monkeypatch.setenv("CHANGED_BY_CALLER", "before")
        profile = remote_host.home / ".profile"
        remote_host.write(".profile", profile.read_text() + "export FROM_PROFILE='a b'\nexport MODULES=/opt/m\n")
        spec_env = {"DATA": "${HOME}/data:$MODULES", "DOLLAR": "$$5", "UNKNOWN": "${NOT_THERE}"}
        given = {**os.environ, "JPY_SESSION_NAME": "/nb/täglich.ipynb", "GIVEN": "$HOME 'x'\n\"y\"", "PATH": "/here"}
        given["CHANGED_BY_CALLER"] = "after"
        config = {"env": {"EXTRA": "${FROM_PROFILE}!"}}
        async with started(remote_host.location(), config, spec_env=spec_env, options={"env": given}) as kernel:
            environ = await kernel.json("dict(os.environ)", "import os")
        assert environ["PATH"].split(":")[0] == str(remote_host.python.parent)
        assert (environ["FROM_PROFILE"], environ["MODULES"]) == ("a b", "/opt/m")
        assert (environ["DATA"], environ["DOLLAR"]) == (f"{remote_host.home}/data:/opt/m", "$5")
        assert environ["UNKNOWN"] == "${NOT_THERE}"
        assert environ["EXTRA"] == "a b!"
        assert environ["JPY_SESSION_NAME"] == "/nb/täglich.ipynb"
        assert environ["GIVEN"] == given["GIVEN"]
        assert environ["CHANGED_BY_CALLER"] == "after"
        assert "canary" not in environ.values()
        ours = {"ALBEDO_HOME", "ALBEDO_SSH_CONFIG", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "ALBEDO_TEST_RUN"}
        assert not ours & set(environ)
        # The embedded host marks all that it starts with a variable of its own.
        assert {n for n in environ if n.startswith("ALBEDO")} - {"ALBEDO_DEMO_HOST"} == {"ALBEDO_KERNEL_ID"}

    async def test_our_bundle_comes_last_on_the_import_path_and_reaches_no_other_process(self, any_host: Host) -> None:
        """K1."""
        any_host.write("proj/here.py", "x = 1")
        any_host.write("proj/lib/theirs.py", "x = 2")
        profile = any_host.home / ".profile"
        any_host.write(".profile", profile.read_text() + f"export PYTHONPATH={any_host.home}/proj/lib\n")
        async with started(any_host.location("proj")) as kernel:
            found = await kernel.json(
                "[sys.path, albedo_bundle.ROOT, os.environ['PYTHONPATH'], child.returncode, child.stderr[-200:]]",
                "import sys, os, subprocess, albedo_bundle, here, theirs\n"
                "child = subprocess.run([sys.executable, '-c', 'import theirs, albedo_bundle'],"
                " capture_output=True, text=True)",
            )
        path, root, pythonpath, status, stderr = found
        # IPython itself adds its extensions' directory behind everything once it has started.
        assert [entry for entry in path if not entry.endswith(".ipython")][-1] == root
        assert "" in path, "the current folder"
        assert pythonpath == f"{any_host.home}/proj/lib"
        assert status == 1
        assert "No module named 'albedo_bundle'" in stderr

    async def test_umask_and_signals_are_those_of_a_login(self, remote_host: Host) -> None:
        """K1."""
        profile = remote_host.home / ".profile"
        remote_host.write(".profile", profile.read_text() + "umask 027\n")
        async with started(remote_host.location()) as kernel:
            found = await kernel.json(
                "[os.stat('made').st_mode & 0o777, [str(signal.getsignal(n)) for n in numbers],"
                " sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), masks, os.getsid(0) == os.getpid()]",
                "import os, signal, subprocess\n"
                "os.close(os.open('made', os.O_CREAT, 0o666))\n"
                "numbers = [signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGTSTP]\n"
                "masks = subprocess.run(['grep', '-E', 'Sig(Ign|Blk)', '/proc/self/status'],"
                " capture_output=True, text=True).stdout.split()[1::2]",
            )
        mode, handlers, blocked, masks, leads = found
        assert mode == 0o640
        assert handlers == [str(signal.SIG_DFL)] * 4
        assert blocked == []
        assert [int(mask, 16) & 0x7FFF_FFFF for mask in masks] == [0, 0]
        assert leads, "a session of its own"

    async def test_its_files_on_the_host_are_private(self, remote_host: Host) -> None:
        """K1."""
        profile = remote_host.home / ".profile"
        remote_host.write(".profile", profile.read_text() + "umask 000\n")
        async with started(remote_host.location()) as kernel:
            ours = remote_host.home / ".albedo-remote"
            (run,) = (ours / "run").iterdir()
            modes = {str(path.relative_to(ours)): path.lstat().st_mode & 0o77 for path in (ours, run, run.parent)}
            modes |= {path.name: path.lstat().st_mode & 0o77 for path in run.iterdir() if path.is_file()}
            # Whatever a socket's own mode: nobody else gets through the directory.
            assert set(modes.values()) == {0}, modes
            assert json.loads((run / "connection.json").read_text())["transport"] == "ipc"
            assert await kernel.value("__import__('os').getpid()") == str(kernel.status["pid"])
            assert _tcp_listeners(remote_host.processes()) == []

    async def test_the_output_of_a_forked_child_arrives(self, remote_host: Host) -> None:
        """K4."""
        code = "import os\nif os.fork() == 0:\n    print('from a child', flush=True)\n    os._exit(0)\nos.wait()"
        async with started(remote_host.location()) as kernel:
            cell = await kernel.run(code)
            await cell.until(lambda: "from a child" in cell.stdout)


def _tcp_listeners(processes: list[Process]) -> list[str]:
    """Return the command lines of those that listen on a TCP port."""
    listening = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                listening.add(f"socket:[{fields[9]}]")
    found = []
    for process in processes:
        try:
            links = [os.readlink(path) for path in Path(f"/proc/{process.pid}/fd").iterdir()]
        except OSError:
            continue  # it has ended
        if listening & set(links):
            found.append(" ".join(process.argv))
    return found


class TestWhatIsLeft:
    async def test_after_a_normal_end_only_the_bundle_is_left(self, workspace: Workspace, any_host: Host) -> None:
        """K8."""
        async with started(any_host.location()) as kernel:
            assert await kernel.value("1 + 1") == "2"
            assert files_below(workspace.runtime_dir)
        # The keeper goes last of all, a moment after it has answered.
        assert settled(any_host.leftovers) == []
        assert [path.name for path in (any_host.home / ".albedo-remote").iterdir()] != []
        assert files_below(workspace.runtime_dir) == []
        assert files_below(workspace.temp) == []

    async def test_after_a_failed_start_not_even_that(self, workspace: Workspace, any_host: Host) -> None:
        """K8."""
        with pytest.raises(AlbedoError):
            async with started(any_host.location("missing")):
                pass
        with pytest.raises(AlbedoError):
            async with started(any_host.location(), {"python": "/no/such/python"}):
                pass
        assert settled(any_host.leftovers) == []
        assert [path for path in files_below(workspace.runtime_dir) if not path.endswith(".json")] == []
        assert files_below(workspace.temp) == []

    @pytest.mark.first_visit
    async def test_a_second_kernel_finds_the_bundle_there(self, embedded_host: Embedded) -> None:
        """K8, K2."""
        async with started(embedded_host.location()):
            pass
        ours = embedded_host.home / ".albedo-remote"
        (before,) = [(path, path.stat().st_ino) for path in ours.iterdir() if path.name != "run"]
        async with started(embedded_host.location()):
            pass
        (after,) = [(path, path.stat().st_ino) for path in ours.iterdir() if path.name != "run"]
        assert after == before

    async def test_two_hosts_at_once_do_not_mix(self, embedded_host: Embedded, sshd_host: Host) -> None:
        """K1."""
        async with started(embedded_host.location()) as one, started(sshd_host.location()) as two:
            homes = [await each.json("os.environ['HOME']", "import os") for each in (one, two)]
        assert homes == [str(embedded_host.home), str(sshd_host.home)]
