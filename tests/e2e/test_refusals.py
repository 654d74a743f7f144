"""What cannot work says so at once, in a sentence that names the host and the cause, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncssh
import pytest
from faces import Embedded, Host, Real
from jupyter_client.manager import AsyncKernelManager
from kernels import add_kernelspec, started
from leaks import settled

from albedo_provisioner import AsyncHosts
from albedo_provisioner.errors import (
    AlbedoError,
    ConfigError,
    HostKeyError,
    KernelStartError,
    LocationError,
    NoPermissionError,
    NoSuchFolderError,
    NotAFolderError,
    PackagesMissingError,
    SignInError,
    StagingError,
    UnreachableError,
    UnsupportedHostError,
)

if TYPE_CHECKING:
    from conftest import Workspace

AT_ONCE = 20.0
"""Seconds within which a refusal has to come, on a busy machine."""


async def refusal(
    location: str | None,
    kind: type[AlbedoError],
    *words: str,
    config: Mapping[str, Any] | None = None,
    host: Host | None = None,
    seconds: float = AT_ONCE,
) -> str:
    """See a start fail in the right way, and return what it says.

    Args:
        location: where it is tried.
        kind: the error's type.
        words: what its message has to contain.
        config: more of the provisioner's config.
        host: the host that must have nothing left on it afterwards.
        seconds: how soon it has to come.
    """
    manager = AsyncKernelManager(kernel_name=add_kernelspec(location, config))
    began = time.monotonic()
    with pytest.raises(kind) as caught:
        async with asyncio.timeout(seconds * 2):
            await manager.start_kernel()
    assert time.monotonic() - began < seconds
    assert type(caught.value) is kind
    message = str(caught.value)
    for word in words:
        assert word in message, message
    assert "\n" not in message, message
    assert "Traceback" not in message, message
    assert len(message) < 600, message
    assert not re.search(r"(?<![\w.])None\b|<.* object at|Errno", message), message
    if host is not None:
        assert settled(host.leftovers) == []
    return message


class TestTheHost:
    async def test_has_a_name_that_nobody_knows(self) -> None:
        """The host is named as the user spells it."""
        await refusal("no-such-host.invalid:/tmp", UnreachableError, "no-such-host.invalid", "resolve")

    async def test_listens_on_no_such_port(self, workspace: Workspace) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
            workspace.add_to_ssh_config(f"Host shut\n    HostName 127.0.0.1\n    Port {port}\n")
            await refusal("shut:/tmp", UnreachableError, "shut", str(port), "connection refused")

    async def test_does_not_take_our_key(self, embedded_host: Embedded) -> None:
        embedded_host.server.behave(refuse_auth=True)
        message = await refusal(embedded_host.location(), SignInError, "Permission denied", host=embedded_host)
        assert str(embedded_host.alias) in message
        assert "ssh" in message

    async def test_does_not_know_the_account(self, workspace: Workspace, sshd_host: Real) -> None:
        text = sshd_host.server.config_for("stranger", sshd_host.account)
        workspace.add_to_ssh_config(text.replace(sshd_host.account.name, "nobody-of-that-name"))
        await refusal("stranger:/tmp", SignInError, "stranger", "Permission denied", host=sshd_host)

    async def test_has_a_host_key_that_is_not_known(self, workspace: Workspace, remote_host: Host) -> None:
        """Never accepted by us: the person has to."""
        known = self.known_hosts(workspace, str(remote_host.alias))
        before, text = known.read_text(), ""
        known.write_text(text)
        message = await refusal(remote_host.location(), HostKeyError, str(remote_host.alias), "not known", "SHA256:")
        assert re.search(rf"`.*jupyter albedo login {remote_host.alias}`", message), message
        assert known.read_text() == text
        known.write_text(before)

    async def test_has_another_host_key_than_before(self, workspace: Workspace, remote_host: Host) -> None:
        known = self.known_hosts(workspace, str(remote_host.alias))
        before = known.read_text()
        other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
        known.write_text(f"{before.split()[0]} {other}")
        await refusal(remote_host.location(), HostKeyError, str(remote_host.alias), "changed", "SHA256:")
        known.write_text(before)

    def known_hosts(self, space: Workspace, alias: str) -> Path:
        """Return the known-hosts file of a host in the ssh config, made this test's own."""
        text = space.ssh_config.read_text()
        match = re.search(rf"Host {alias}\n(?:    .*\n)*?    UserKnownHostsFile \"(.*)\"", text)
        assert match
        own = space.root / "known_hosts"
        shutil.copy(match[1], own)
        space.ssh_config.write_text(text.replace(match[1], str(own)))
        return own

    async def test_does_not_run_commands(self, embedded_host: Embedded) -> None:
        embedded_host.server.behave(refuse_exec=True)
        await refusal(embedded_host.location(), UnreachableError, str(embedded_host.alias), host=embedded_host)

    async def test_lets_the_account_run_nothing(self, sshd_host: Real) -> None:
        sshd_host.account.set_shell("/usr/sbin/nologin")
        message = await refusal(sshd_host.location(), UnsupportedHostError, str(sshd_host.alias), host=sshd_host)
        assert "not available" in message, message
        assert "was left out" not in message, message  # there is no profile that would be to blame

    async def test_is_for_files_alone(self, sshd_host: Real) -> None:
        sshd_host.server.restart(ForceCommand="internal-sftp")
        message = await refusal(sshd_host.location(), UnsupportedHostError, str(sshd_host.alias), host=sshd_host)
        assert "sftp" in message, message
        assert "was left out" not in message, message

    async def test_has_a_shell_that_ends_at_every_command(self, sshd_host: Real) -> None:
        sshd_host.write(".bashrc", "echo 'Access is closed today'\nexit 3\n")
        name = str(sshd_host.alias)
        message = await refusal(
            sshd_host.location(), UnsupportedHostError, name, "Access is closed today", "exit status 3", host=sshd_host
        )
        assert "~/.bashrc" in message
        assert re.search(r"\. ssh .*'echo works' has to print that; `\[ -t 0 \] \|\| return` at the top", message)
        sshd_host.write(".bashrc", "[ -t 0 ] || return\nexit 3\n")
        async with started(sshd_host.location()):  # what is advised helps
            pass


class TestTheInterpreter:
    async def test_dies_at_its_start(self, embedded_host: Embedded) -> None:
        """Of all that it prints then, what tells."""
        text = (embedded_host.home / ".profile").read_text()
        embedded_host.write(".profile", f"{text}export PYTHONHOME=/no/such/home\n")
        words = ("python3 on", "does not start", "Fatal Python error: ", "'encodings'", "PYTHONHOME = '/no/such/home'")
        message = await refusal(embedded_host.location(), UnsupportedHostError, *words, host=embedded_host)
        assert "no Python frame" not in message

    async def test_has_a_module_in_the_place_of_one_of_its_own(self, embedded_host: Embedded) -> None:
        """The file is named, whatever it is that fails: the loader, what comes after it, or the kernel."""
        profile = (embedded_host.home / ".profile").read_text()
        for number, (module, kind) in enumerate(
            {"json": UnsupportedHostError, "socket": UnsupportedHostError, "logging": KernelStartError}.items()
        ):
            file = embedded_host.write(f"lib{number}/{module}.py", "x = 1\n")
            embedded_host.write(".profile", f"{profile}export PYTHONPATH={file.parent}\n")
            words = (f"module '{module}' has no attribute", f"of the standard library ({file}): rename it")
            message = await refusal(embedded_host.location(), kind, *words, host=embedded_host)
            assert "no Python" not in message
            found = await AsyncHosts().diagnose(str(embedded_host.alias))
            (told,) = [each for each in found.findings if each.blocks]
            assert str(file) in told.text + told.advice
            assert "reinstall" not in told.advice

    async def test_is_not_there(self, any_host: Host) -> None:
        name = any_host.alias or "this machine"
        await refusal(
            any_host.location(), UnsupportedHostError, name, "/nope", config={"python": "/nope"}, host=any_host
        )

    async def test_is_not_a_program(self, remote_host: Host) -> None:
        path = remote_host.write("text", "hello\n")
        config = {"python": str(path)}
        name = str(remote_host.alias)
        await refusal(remote_host.location(), UnsupportedHostError, name, "text", config=config, host=remote_host)

    async def test_is_there_and_cannot_be_loaded(self, embedded_host: Embedded) -> None:
        """It is not said to be missing."""
        script = "#!/bin/sh\necho 'python3: error while loading shared libraries' >&2\nexit 127\n"
        path = embedded_host.write("bin/broken", script)
        path.chmod(0o755)
        config, words = {"python": str(path)}, ("broken", "exit status 127", "error while loading shared libraries")
        message = await refusal(
            embedded_host.location(), UnsupportedHostError, *words, config=config, host=embedded_host
        )
        assert "not found" not in message

    async def test_is_too_old(self, remote_host: Host) -> None:
        remote_host.write_old_python("bin/python3.8")
        name = str(remote_host.alias)
        await refusal(
            remote_host.location(),
            UnsupportedHostError,
            name,
            "3.8.2",
            "3.11",
            config={"python": "~/bin/python3.8"},
            host=remote_host,
        )

    async def test_has_no_ipykernel_and_must_not_be_given_one(self, remote_host: Host) -> None:
        venv = remote_host.home / "bare"
        assert remote_host.run([str(remote_host.python), "-m", "venv", "--without-pip", str(venv)]).returncode == 0
        config = {"python": str(venv / "bin" / "python3"), "provide": False}
        await refusal(
            remote_host.location(),
            PackagesMissingError,
            str(remote_host.alias),
            "ipykernel",
            "pip install",
            config=config,
            host=remote_host,
        )

    async def test_has_an_ipykernel_that_is_broken(self, embedded_host: Embedded) -> None:
        embedded_host.write("lib/ipykernel/__init__.py", "raise ImportError('half installed')\n")
        text = (embedded_host.home / ".profile").read_text()
        embedded_host.write(".profile", f"{text}export PYTHONPATH={embedded_host.home}/lib\n")
        await refusal(
            embedded_host.location(),
            KernelStartError,
            str(embedded_host.alias),
            "half installed",
            host=embedded_host,
        )


class TestTheFolder:
    async def test_is_missing(self, any_host: Host) -> None:
        """K7."""
        folder = any_host.home / "no such folder"
        name = any_host.alias or "this machine"
        await refusal(
            any_host.location("no such folder"), NoSuchFolderError, name, str(folder), "no such file", host=any_host
        )

    async def test_is_a_file(self, remote_host: Host) -> None:
        """K7."""
        path = remote_host.write("file", "")
        name = str(remote_host.alias)
        await refusal(
            remote_host.location("file"), NotAFolderError, name, str(path), "not a directory", host=remote_host
        )

    @pytest.mark.parametrize("mode", [0o000, 0o400, 0o600])
    async def test_may_not_be_entered(self, sshd_host: Real, mode: int) -> None:
        """K7."""
        folder = sshd_host.make_folder("closed")
        folder.chmod(mode)
        name = str(sshd_host.alias)
        await refusal(
            sshd_host.location("closed"), NoPermissionError, name, str(folder), "permission denied", host=sshd_host
        )

    async def test_may_be_entered_and_not_read(self, sshd_host: Real) -> None:
        """K7: that is enough."""
        sshd_host.make_folder("narrow").chmod(0o300)
        async with started(sshd_host.location("narrow")) as kernel:
            assert await kernel.value("1 + 1") == "2"

    async def test_of_another_home_is_said_to_be_missing(self, sshd_host: Real) -> None:
        """K7."""
        location = f"{sshd_host.alias}:~no-such-user/proj"
        with pytest.raises(AlbedoError) as caught:
            async with started(location):
                pass
        assert "no-such-user" in str(caught.value)


@pytest.mark.first_visit
class TestOurFiles:
    async def test_find_a_home_that_may_not_be_written(self, sshd_host: Real) -> None:
        sshd_host.make_folder("proj")
        sshd_host.home.chmod(0o550)
        name = str(sshd_host.alias)
        await refusal(
            sshd_host.location("proj"),
            StagingError,
            name,
            ".albedo-remote",
            "Permission denied. Make it writable",
            host=sshd_host,
        )

    async def test_find_no_home_at_all(self, sshd_host: Real) -> None:
        text = (sshd_host.home / ".profile").read_text()
        sshd_host.write(".profile", text + "export HOME=/no/such/home\n")
        await refusal(f"{sshd_host.alias}:/tmp", StagingError, str(sshd_host.alias), "/no", host=sshd_host)

    async def test_find_the_disk_full(self, sshd_host: Real, full_home: Callable[[int], None]) -> None:
        full_home(16 << 10)
        message = await refusal(
            sshd_host.location(),
            StagingError,
            str(sshd_host.alias),
            "No space left on device. Make room there: ssh ",
            host=sshd_host,
        )
        assert ".albedo-remote" in message
        # Nothing half-done may be taken for a bundle later.
        ours = sshd_host.home / ".albedo-remote"
        assert [path for path in ours.iterdir() if path.name != "run"] == []

    async def test_find_the_disk_full_only_after_staging(
        self, sshd_host: Real, full_home: Callable[[int], None]
    ) -> None:
        full_home(2 << 20)
        async with started(sshd_host.location()):
            pass
        assert sshd_host.run(["sh", "-c", "head -c 10000000 /dev/zero > filler"]).returncode != 0
        with pytest.raises(AlbedoError) as caught:
            async with started(sshd_host.location()):
                pass
        assert str(sshd_host.alias) in str(caught.value)
        assert "No space left" in str(caught.value)
        assert ".albedo-remote/run" in str(caught.value)
        assert "{" not in str(caught.value)
        assert settled(sshd_host.leftovers) == []

    async def test_may_be_no_longer_than_a_limit(self, sshd_host: Real) -> None:
        text = (sshd_host.home / ".profile").read_text()
        sshd_host.write(".profile", text + "ulimit -f 2\n")
        with pytest.raises(AlbedoError) as caught:
            async with started(sshd_host.location()):
                pass
        assert str(sshd_host.alias) in str(caught.value)
        assert settled(sshd_host.leftovers) == []


class TestTheKernelspec:
    @pytest.mark.parametrize(
        "location", ["-oProxyCommand=touch${IFS}x:/tmp", "-l root:/tmp", "host:relative", ":/x", ""]
    )
    async def test_has_a_location_that_is_none(self, location: str) -> None:
        """Also one that looks like an option of ssh."""
        manager = AsyncKernelManager(kernel_name=add_kernelspec(location))
        with pytest.raises((LocationError, ConfigError)) as caught:
            await manager.start_kernel()
        assert "\n" not in str(caught.value)
        if location:
            assert location in str(caught.value) or location.split(":")[0] in str(caught.value)

    async def test_has_no_location(self) -> None:
        await refusal(None, ConfigError, "location")

    @pytest.mark.parametrize(
        ("config", "words"),
        [
            ({"locatoin": "x:/y"}, ["locatoin", "unknown", "location"]),
            ({"grace": "long"}, ["grace"]),
            ({"env": ["A=1"]}, ["env"]),
            ({"env": {"A": 1}}, ["env"]),
            ({"python": 3.11}, ["python"]),
            ({"hold": 1.5}, ["hold"]),
            ({"endpoints": "udp"}, ["endpoints"]),
        ],
    )
    async def test_has_a_setting_that_is_wrong(
        self, config: dict[str, Any], words: list[str], workspace: Workspace
    ) -> None:
        manager = AsyncKernelManager(kernel_name=add_kernelspec(str(workspace.home), config))
        with pytest.raises(ConfigError) as caught:
            await manager.start_kernel()
        for word in words:
            assert word in str(caught.value)
        assert "\n" not in str(caught.value)


async def test_after_a_refusal_the_same_manager_can_start_once_the_cause_is_gone(remote_host: Host) -> None:
    """K7."""
    manager = AsyncKernelManager(kernel_name=add_kernelspec(remote_host.location("later")))
    with pytest.raises(NoSuchFolderError):
        await manager.start_kernel()
    remote_host.make_folder("later")
    await manager.start_kernel()
    await manager.shutdown_kernel(now=True)


async def test_refusals_come_side_by_side(new_embedded_host: Callable[..., Embedded]) -> None:
    """H6: hosts that take two seconds to refuse take two seconds together."""
    hosts = [new_embedded_host() for _ in range(3)]
    for host in hosts:
        host.server.behave(refuse_auth=True, auth_delay=2.0)
    began = time.monotonic()
    await asyncio.gather(*(refusal(host.location(), SignInError, str(host.alias)) for host in hosts))
    assert time.monotonic() - began < 5.5
