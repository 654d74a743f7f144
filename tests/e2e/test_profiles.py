"""What a login profile does never harms a kernel: greetings, on any shell, in the background, by the megabyte."""

from __future__ import annotations

import asyncio
import logging
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
from faces import Embedded, Host, Real
from jupyter_client.manager import AsyncKernelManager
from kernels import add_kernelspec, eventually, started

GREETING = "Welcome to 'gpu', \"mind\" the $HOME\nalbedo: 100% ünïcode"
HOSTS_LOG = "albedo_provisioner.hosts"


@dataclass(frozen=True)
class Shell:
    """A login shell, and a file of its profile."""

    path: str
    profile: str

    def __str__(self) -> str:
        return f"{Path(self.path).name}-{self.profile}"


SHELLS = [
    Shell("/bin/sh", ".profile"),
    Shell("/bin/bash", ".bash_profile"),
    Shell("/bin/dash", ".profile"),
    Shell("/bin/ksh", ".profile"),
    Shell("/usr/bin/zsh", ".zprofile"),
    Shell("/usr/bin/fish", ".config/fish/config.fish"),
    Shell("/usr/bin/tcsh", ".cshrc"),
    Shell("/usr/bin/tcsh", ".login"),
]


def greeting(caplog: pytest.LogCaptureFixture) -> str:
    """Return what the log of the hosts says that was printed."""
    return "\n".join(record.getMessage() for record in caplog.records if record.name.startswith(HOSTS_LOG))


@pytest.fixture(params=SHELLS, ids=str)
def shell(request: pytest.FixtureRequest, sshd_host: Real) -> Shell:
    """Give the account each shell in turn."""
    shell: Shell = request.param
    if not Path(shell.path).exists():
        pytest.skip(f"{shell.path} is not installed")
    sshd_host.account.set_shell(shell.path)
    if shell.path.endswith("csh"):
        sshd_host.write(".cshrc", f"setenv PATH {sshd_host.python.parent}:$PATH\n")
    return shell


async def test_a_greeting_of_any_shell_reaches_the_debug_log_and_no_stream(
    sshd_host: Real, shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    """K3."""
    sshd_host.greet(GREETING, [shell.profile])
    with caplog.at_level(logging.DEBUG, HOSTS_LOG):
        async with started(sshd_host.location()) as kernel:
            cell = await kernel.run("import os\nprint(os.environ['SHELL'])")
            assert cell.stdout == f"{shell.path}\n"
            assert cell.stderr == ""
            assert await kernel.value("1 + 1") == "2"
    for line in GREETING.splitlines():
        assert line in greeting(caplog)


async def test_a_variable_of_any_shells_profile_reaches_the_kernel(sshd_host: Real, shell: Shell) -> None:
    setting = "setenv ALBEDO_TEST 41" if shell.path.endswith("csh") else "export ALBEDO_TEST=41"
    path = sshd_host.home / shell.profile
    sshd_host.write(shell.profile, f"{path.read_text() if path.exists() else ''}\n{setting}\n")
    async with started(sshd_host.location()) as kernel:
        assert await kernel.value("__import__('os').environ['ALBEDO_TEST']") == "'41'"


class TestProfiles:
    async def test_one_that_takes_five_seconds_is_only_slower(self, sshd_host: Real) -> None:
        profile = sshd_host.home / ".profile"
        sshd_host.write(".profile", f"{profile.read_text() if profile.exists() else ''}\nsleep 5\n")
        async with started(sshd_host.location()) as kernel:
            assert await kernel.value("6 * 7") == "42"

    async def test_one_that_prints_later_in_the_background_disturbs_nothing(self, remote_host: Host) -> None:
        """K3."""
        done = remote_host.home / "printed"
        text = (remote_host.home / ".profile").read_text()
        later = f"(sleep 1; echo later; echo later >&2; echo later | tee /dev/stderr; touch {done}) &\necho now\n"
        remote_host.write(".profile", text + later)
        async with started(remote_host.location()) as kernel:
            cell = kernel.begin("import time\nfor i in range(100):\n    print(i, flush=True)\n    time.sleep(0.02)")
            await eventually(done.exists)
            await cell.done()
            assert cell.lines == [str(i) for i in range(100)]
            assert kernel.status["connections"] == 1

    async def test_one_that_prints_a_megabyte_is_only_slower(
        self, remote_host: Host, caplog: pytest.LogCaptureFixture
    ) -> None:
        """K3."""
        text = (remote_host.home / ".profile").read_text()
        remote_host.write(".profile", text + "yes 0123456789abcdef | head -c 1000000\necho the very end\n")
        with caplog.at_level(logging.DEBUG, HOSTS_LOG):
            async with started(remote_host.location()) as kernel:
                assert await kernel.value("1 + 1") == "2"
        assert "the very end" in greeting(caplog)

    async def test_one_that_reads_its_input_gets_nothing_of_ours(self, remote_host: Host) -> None:
        """K3."""
        text = (remote_host.home / ".profile").read_text()
        taken = remote_host.home / "taken"
        remote_host.write(".profile", text + f"cat > {taken}\nread answer\n")
        async with started(remote_host.location()) as kernel:
            assert await kernel.value("1 + 1") == "2"
        assert taken.read_text() == ""

    async def test_one_that_changes_folder_and_sets_odd_options_disturbs_nothing(self, sshd_host: Real) -> None:
        """K3."""
        text = (sshd_host.home / ".profile").read_text()
        odd = "cd /\nset -o noclobber\nalias exec='echo no' cat='echo no'\nIFS=:\nexport CDPATH=/\nunset LANG\nfalse\n"
        sshd_host.write(".profile", text + odd)
        async with started(sshd_host.location()) as kernel:
            assert await kernel.json("os.getcwd()", "import os") == str(sshd_host.home)

    async def test_the_folder_home_and_interpreter_may_have_awkward_names(self, embedded_host: Embedded) -> None:
        """K1."""
        name = "it's \"my\" $HOME; rm -rf * `x` \\ 'ü'"
        embedded_host.make_folder(name)
        python = embedded_host.write(
            f"{name}/py thon", f'#!/bin/sh\nexec {shlex.quote(str(embedded_host.python))} "$@"\n'
        )
        python.chmod(0o755)
        async with started(embedded_host.location(name), {"python": f"~/{name}/py thon"}) as kernel:
            assert await kernel.json("os.getcwd()", "import os") == str(embedded_host.home / name)


class TestSteps:
    @pytest.mark.first_visit
    async def test_a_first_visit_tells_each_step_while_it_lasts(
        self, embedded_host: Embedded, caplog: pytest.LogCaptureFixture
    ) -> None:
        """K2."""
        embedded_host.server.behave(auth_delay=0.3, latency=0.05)
        manager = AsyncKernelManager(kernel_name=add_kernelspec(embedded_host.location()))
        seen: list[str] = []
        with caplog.at_level(logging.INFO):
            start = asyncio.create_task(manager.start_kernel())

            def look() -> bool:
                if manager.provisioner is not None:
                    step = manager.provisioner.status["step"]  # type: ignore[attr-defined]
                    if step not in seen[-1:]:
                        seen.append(step)
                return start.done()

            await eventually(look)
            await start
        try:
            look()
            assert [step for step in seen if step != "ended"] == ["connecting", "staging", "starting", "attached"]
            told = [record.getMessage().rpartition(": ")[2] for record in caplog.records if "Kernel " in record.msg]
            assert [step for step in told if not step.startswith("staging, copying ")][:4] == [
                *("connecting", "staging", "starting", "attached")
            ]
        finally:
            await manager.shutdown_kernel(now=True)
        assert manager.provisioner is None or manager.provisioner.status["step"] == "ended"  # type: ignore[attr-defined]

    async def test_a_later_visit_has_nothing_to_stage(
        self, embedded_host: Embedded, caplog: pytest.LogCaptureFixture
    ) -> None:
        """K2."""
        with caplog.at_level(logging.INFO):
            async with started(embedded_host.location()):
                caplog.clear()
            caplog.clear()
            async with started(embedded_host.location()):
                told = [record.getMessage().rpartition(": ")[2] for record in caplog.records if "Kernel " in record.msg]
        assert told == ["connecting", "starting", "attached"]
