"""Hosts whose shells do not do as they are told: profiles that end them, replace them, ask, or never come to an end."""

from __future__ import annotations

import asyncio
import logging
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from faces import Embedded, Host, Real
from kernels import eventually, started
from leaks import settled
from procs import everyone, wait_until
from terminal import Terminal

from albedo_provisioner import AsyncSessions
from albedo_provisioner.errors import UnreachableError, UnsupportedHostError
from albedo_provisioner.hosts import asking, login_shell, visit
from albedo_provisioner.hosts.check import check_location
from albedo_provisioner.hosts.hosts import AsyncHosts, Hosts
from albedo_provisioner.hosts.ssh_channel import SSHChannel
from albedo_provisioner.kernels import link
from albedo_provisioner.kernels.records import KernelRecords
from albedo_provisioner.location import Location

HOSTS_LOG = "albedo_provisioner.hosts"


def commands(host: Real) -> int:
    """Return how many commands the real sshd has been asked to run."""
    return host.server.log().count("Starting session: command for")


def warnings(caplog: pytest.LogCaptureFixture) -> str:
    """Return what was said loudly of hosts."""
    found = [r for r in caplog.records if r.name.startswith(HOSTS_LOG) and r.levelno >= logging.WARNING]
    return "\n".join(record.getMessage() for record in found)


class TestALoginProfileIsLeftOut:
    """And said to be."""

    @pytest.mark.parametrize(
        "end",
        [
            pytest.param("exec zsh -l", id="another shell"),
            pytest.param("exec no-such-shell -l", id="no shell"),
            pytest.param("while :; do echo again and again; done", id="endless output"),
        ],
    )
    async def test_when_it_ends_or_replaces_the_shell(
        self, sshd_host: Real, caplog: pytest.LogCaptureFixture, end: str
    ) -> None:
        """K3: `ssh HOST COMMAND` works there."""
        config = {"python": str(sshd_host.python)}
        sshd_host.write(".profile", f"export ALBEDO_TEST=41\necho 'Choose a machine'\n{end}\n")
        before = commands(sshd_host)
        async with started(sshd_host.location(), config) as kernel:
            assert await kernel.value("1 + 1") == "2"
            assert await kernel.value("'ALBEDO_TEST' in __import__('os').environ") == "False"
        said = warnings(caplog)
        assert f"{sshd_host.alias}: its login profile" in said
        assert "left out" in said
        assert "It printed: " in said
        asked = commands(sshd_host) - before
        caplog.clear()
        # The second time no time is lost.
        async with started(sshd_host.location(), config):
            pass
        assert commands(sshd_host) - before == 2 * asked - 1
        assert warnings(caplog) == ""

    async def test_when_it_never_comes_to_an_end(
        self, sshd_host: Real, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(login_shell, "PATIENCE", 2.5)  # it is 15 seconds
        sshd_host.write(".profile", "echo 'Waiting for the licence server'\nsleep 600\n")
        async with started(sshd_host.location(), {"python": str(sshd_host.python)}) as kernel:
            assert await kernel.value("1 + 1") == "2"
            # What was given up is gone.
            assert settled(lambda: [str(each) for each in sshd_host.processes() if each.argv[:1] == ["sleep"]]) == []
        assert "its login profile takes longer than 2.5 s" in warnings(caplog)
        assert "Waiting for the licence server" in warnings(caplog)

    async def test_when_it_prints_too_much_though_it_comes_to_its_end(
        self,
        sshd_host: Real,
        async_sessions: AsyncSessions,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """S2: the login that is given up gets through all the same, and must find nothing to do."""
        lines = f"export PATH={sshd_host.python.parent}:$PATH\nhead -c 4400000 /dev/zero | tr '\\0' x\n"
        sshd_host.write(".bash_profile", lines)
        sshd_host.account.set_shell("/bin/bash")
        config = {"python": str(sshd_host.python)}
        kill = SSHChannel.kill
        # As over a slow connection: the host is past the profile before it hears that nobody waits for that any more.
        monkeypatch.setattr(SSHChannel, "kill", lambda channel: asyncio.get_running_loop().call_later(2, kill, channel))
        before = commands(sshd_host)
        async with started(sshd_host.location(), config) as kernel:
            assert await kernel.value("1 + 1") == "2"
            (one,) = (sshd_host.home / ".albedo-remote" / "run").iterdir()
            assert one.name == await kernel.json("os.environ['ALBEDO_KERNEL_ID']", "import os")
        assert "prints more than 4 MB, so it is left out" in warnings(caplog)
        assert commands(sshd_host) - before >= 2
        # Nor is code run twice that is run without a kernel.
        monkeypatch.setattr(login_shell, "FORGOTTEN_AFTER", 0.0)
        sshd_host.write("broken/ipykernel/__init__.py", "raise ImportError('half installed')\n")
        env = {"PYTHONPATH": str(sshd_host.home / "broken")}
        session = await async_sessions.open(sshd_host.location(), python=str(sshd_host.python), env=env)
        result = await session.execute("open('ran', 'a').write('once ')")
        assert (result.status, result.kernel.ended) == ("ok", True)
        await eventually(lambda: not sshd_host.processes())
        assert (sshd_host.home / "ran").read_text() == "once "

    async def test_until_it_has_been_mended(
        self, embedded_host: Embedded, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        profile = (embedded_host.home / ".profile").read_text()
        embedded_host.write(".profile", "exit 0\n")
        hosts = AsyncHosts()
        await hosts.probe(str(embedded_host.alias))
        assert "ends the shell before a command can run (exit status 0)" in warnings(caplog)
        embedded_host.write(".profile", f"{profile}\nexport ALBEDO_TEST=41\n")
        monkeypatch.setattr(login_shell, "FORGOTTEN_AFTER", 0.0)  # it is ten minutes
        async with started(embedded_host.location()) as kernel:
            assert await kernel.value("__import__('os').environ['ALBEDO_TEST']") == "'41'"

    def test_when_a_host_is_only_asked_what_it_is(self, sshd_host: Real, caplog: pytest.LogCaptureFixture) -> None:
        """H1."""
        sshd_host.write(".profile", "exec zsh -l\n")
        state = Hosts().probe(str(sshd_host.alias))
        assert state.python_version is not None, state
        assert "left out" in warnings(caplog)


class TestAQuestion:
    """Nobody is there to answer it."""

    @pytest.mark.parametrize(
        ("shell", "files"),
        [
            ("/usr/bin/fish", {".config/fish/config.fish": "read -P 'Which project? ' answer\n"}),
            ("/bin/bash", {".bashrc": "read -p 'Which project? ' answer\nread -n 1 -p 'Sure? ' answer\n"}),
            ("/bin/bash", {".profile": "until read -p 'Which project? ' answer; do :; done\n"}),
            ("/bin/bash", {".profile": "read answer < /dev/tty\nread -p 'Which project? ' answer\n"}),
            ("/usr/bin/zsh", {".zshenv": "read 'answer?Which project? '\nvared -p 'Sure? ' answer\n"}),
            ("/usr/bin/tcsh", {".cshrc": 'echo -n "Which project? "\nset answer = $<\n'}),
            ("/bin/bash", {".bashrc": "exec zsh\n"}),
        ],
        ids=["fish", "bashrc", "profile, again and again", "terminal", "zsh", "tcsh", "another shell"],
    )
    def test_of_a_shells_file_gets_an_empty_answer(
        self, sshd_host: Real, shell: str, files: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """K3."""
        monkeypatch.setattr(login_shell, "PATIENCE", 2.5)
        if not Path(shell).exists():
            pytest.skip(f"{shell} is not installed")
        sshd_host.account.set_shell(shell)
        for name, text in files.items():
            sshd_host.write(name, text)
        checked = check_location(Location.parse(sshd_host.location()), str(sshd_host.python))
        assert checked.ipykernel_version is not None

    def test_that_takes_all_there_is_is_said(self, sshd_host: Real, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(asking, "ANSWER_TIMEOUT", 2.0)
        sshd_host.write(".bashrc", "echo 'Paste your token:'\ncat > /dev/null\n")
        with pytest.raises(UnreachableError) as caught:
            check_location(Location.parse(sshd_host.location()))
        message = str(caught.value)
        assert "~/.bashrc" in message
        assert "waits for input" in message
        assert "Paste your token:" in message
        assert settled(sshd_host.leftovers) == []

    @pytest.mark.parametrize("to", ["", " >&2"])
    def test_that_takes_and_prints_all_there_is_is_said_without_what_is_ours(
        self, sshd_host: Real, caplog: pytest.LogCaptureFixture, to: str
    ) -> None:
        """There may be a kernel's key in it."""
        caplog.set_level("DEBUG", "albedo_provisioner")
        sshd_host.write(".bashrc", f"cat{to}\n")
        with pytest.raises(UnsupportedHostError, match="something there reads the standard input") as caught:
            check_location(Location.parse(sshd_host.location()))
        assert "~/.bashrc" in str(caught.value)
        for said in (str(caught.value), caplog.text):
            assert "needs" not in said  # a word of the request
            assert "main()" not in said
        assert settled(sshd_host.leftovers) == []

    def test_that_only_prints_what_is_ours_does_no_harm(
        self, sshd_host: Real, caplog: pytest.LogCaptureFixture
    ) -> None:
        """As a terminal does that somebody put in between."""
        caplog.set_level("DEBUG", "albedo_provisioner")
        script = (
            f"#!{sshd_host.python}\nimport os, sys\nos.write(1, {visit._ECHO + b'with a key'!r})\n"
            f"os.execv({str(sshd_host.python)!r}, [{str(sshd_host.python)!r}, *sys.argv[1:]])\n"
        )
        python = sshd_host.write("echo/python3", script)
        python.chmod(0o755)
        assert check_location(Location.parse(sshd_host.location()), str(python)).ipykernel_version is not None
        assert "with a key" not in caplog.text

    def test_that_takes_no_empty_answer_can_be_seen_as_the_message_says(
        self, sshd_host: Real, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(asking, "ANSWER_TIMEOUT", 2.0)
        menu = 'select project in alpha beta; do [ -n "$project" ] && break; done\n'
        sshd_host.write(".bashrc", f"PS3='Which project? '\n{menu}")
        with pytest.raises(UnreachableError) as caught:
            check_location(Location.parse(sshd_host.location()))
        found = re.search(r"what it asks is shown by: (ssh .* true)\. It printed: Which project\?", str(caught.value))
        assert found is not None, str(caught.value)
        with Terminal(*shlex.split(found[1])) as terminal:
            terminal.expect("1) alpha")
            terminal.expect("Which project?")
            terminal.type("1")
            assert terminal.end() == 0


class TestWhatIsGivenUpIsGone:
    """Nothing of a command that has not come to our code yet stays on the host."""

    @pytest.mark.parametrize("way", ["builtin", "program"])
    def test_when_a_host_took_too_long(self, sshd_host: Real, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
        monkeypatch.setenv("ALBEDO_SSH", way)
        monkeypatch.setattr(asking, "ANSWER_TIMEOUT", 2.5)
        sshd_host.write(".profile", "sleep 601 & sleep 600\n")
        with pytest.raises(UnreachableError, match="its login profile takes that long"):
            check_location(Location.parse(sshd_host.location()))
        assert settled(sshd_host.leftovers) == []

    def test_when_it_is_a_file_for_every_command_that_takes_long(
        self, sshd_host: Real, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(asking, "ANSWER_TIMEOUT", 2.0)
        sshd_host.write(".bashrc", "sleep 600\n")
        with pytest.raises(UnreachableError, match=r"config.fish\) takes that long or waits for input"):
            check_location(Location.parse(sshd_host.location()))
        assert settled(sshd_host.leftovers) == []

    async def test_and_no_kernel_is_waited_for_that_cannot_have_been_started(
        self, sshd_host: Real, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(link, "GREETING_TIMEOUT", 2.0)
        sshd_host.write(".bashrc", "sleep 600\n")
        before = commands(sshd_host)
        with pytest.raises(UnreachableError, match=r"config.fish\) takes that long or waits for input"):
            async with started(sshd_host.location()):
                pytest.fail("a kernel was started")
        assert commands(sshd_host) - before == 1
        assert KernelRecords().all() == []
        assert settled(sshd_host.leftovers) == []

    async def test_when_a_kernel_is_to_be_started_with_an_interpreter_that_hangs(
        self, sshd_host: Real, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It may have read what it was sent, so that is looked for, once."""
        monkeypatch.setattr(link, "GREETING_TIMEOUT", 4.0)
        python = sshd_host.write("bin/hanging", "#!/bin/sh\nsleep 600\n")
        python.chmod(0o755)
        before = commands(sshd_host)
        with pytest.raises(UnreachableError, match="which does nothing"):
            async with started(sshd_host.location(), {"python": str(python)}):
                pytest.fail("a kernel was started")
        assert commands(sshd_host) - before <= 3  # with one that makes sure of its end
        assert settled(sshd_host.leftovers) == []

    def test_when_it_is_the_interpreter_that_hangs(self, sshd_host: Real, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(asking, "ANSWER_TIMEOUT", 4.0)
        sshd_host.write("bin/python3", "#!/bin/sh\nsleep 600\n")
        (sshd_host.home / "bin" / "python3").chmod(0o755)
        sshd_host.write(".profile", "PATH=$HOME/bin:$PATH\n")
        with pytest.raises(UnreachableError) as caught:
            check_location(Location.parse(sshd_host.location()))
        assert " took longer than 4 s to answer: its shell started python3, which does nothing. A program" in str(
            caught.value
        )
        assert re.search(r"See what `python3 -V` does after `ssh -F \S+ \S+`, or use another", str(caught.value))
        assert settled(sshd_host.leftovers) == []

    @pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
    def test_when_the_program_that_asks_is_ended(self, remote_host: Host, end: signal.Signals) -> None:
        begun = remote_host.home / "begun"
        remote_host.write(".profile", f"touch {begun}\nsleep 600\n")
        command = [sys.executable, "-m", "albedo_provisioner", "add", remote_host.location()]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            wait_until(begun.exists, 30, "the login profile is at work")
            process.send_signal(end)
        assert settled(remote_host.leftovers) == []

    async def test_when_the_link_breaks(self, sshd_host: Real) -> None:
        begun = sshd_host.home / "begun"
        sshd_host.write(".profile", f"touch {begun}\nsleep 600\n")
        asking = asyncio.create_task(AsyncHosts().probe(str(sshd_host.alias)))
        await eventually(begun.exists)
        began = time.monotonic()
        sshd_host.cut()
        assert (await asking).state == "unreachable"
        assert time.monotonic() - began < 10
        assert settled(sshd_host.leftovers) == []


async def test_nothing_of_the_way_there_is_left_beside_a_kernel(sshd_host: Real) -> None:
    """K8: neither a process nor a variable; not a zombie either."""

    def zombies() -> set[int]:
        # Those of tests before count for nothing: where process 1 waits for nobody, they stay.
        return {each.pid for each in everyone() if each.uid == sshd_host.account.uid and each.state == "Z"}

    before = zombies()
    async with started(sshd_host.location()) as kernel:
        names = "sorted(name for name in __import__('os').environ if name.startswith('ALBEDO'))"
        assert await kernel.json(names) == ["ALBEDO_KERNEL_ID"]
        assert not [each for each in sshd_host.processes() if each.argv[:1] in (["sleep"], ["/bin/sh"], ["sh"])]
        assert not zombies() - before
