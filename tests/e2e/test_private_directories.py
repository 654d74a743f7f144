"""What of ours lies on a host, or here, is the account's own and closed to others before anything in it is used."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from bare import Bare, facts_of
from faces import Real
from kernels import started
from leaks import settled

from albedo_provisioner import AsyncHosts
from albedo_provisioner.errors import ConfigError, StagingError
from albedo_provisioner.home import albedo_home
from albedo_provisioner.hosts.host_python import HostPython
from albedo_provisioner.hosts.wheels import kept_set

if TYPE_CHECKING:
    from conftest import Workspace

PLANTED = "open({mark!r}, 'a').close()\n"


def mode_of(path: Path) -> int:
    """Return who may do what with a path."""
    return stat.S_IMODE(path.stat().st_mode)


def plant(host: Real, directory: Path, name: str) -> Path:
    """Have a file of our code leave a mark when it is run, and return the mark."""
    (code,) = directory.glob(name)
    mark = host.home / "planted-code-ran"
    code.write_text(PLANTED.format(mark=str(mark)) + code.read_text())
    shutil.rmtree(code.parent / "__pycache__", ignore_errors=True)
    return mark


@pytest.mark.first_visit
class TestOnAHost:
    async def test_what_others_could_change_is_not_run_but_put_there_afresh(self, sshd_host: Real) -> None:
        """The examination does not run it either, and a kernel that runs meanwhile goes on."""
        ours = sshd_host.home / ".albedo-remote"
        async with started(sshd_host.location()) as kernel:
            (bundle,) = (path for path in ours.iterdir() if len(path.name) == 16)
            mark = plant(sshd_host, bundle, "albedo_bundle/entry.py")
            ours.chmod(0o777)
            runtime = (await AsyncHosts().diagnose(str(sshd_host.alias))).finding("runtime")
            assert runtime is not None
            assert f"others may write into {ours}" in runtime.text
            assert mode_of(ours) == 0o777
            async with started(sshd_host.location()) as second:
                assert await second.value("1 + 1") == "2"
            assert await kernel.value("1 + 1") == "2"
            assert not mark.exists()
            assert mode_of(ours) == 0o700
            # Closed by hand since, and one of the directories in it was open as well.
            mark = plant(sshd_host, bundle, "albedo_bundle/entry.py")
            bundle.chmod(0o770)
            async with started(sshd_host.location()):
                pass
        assert not mark.exists()
        assert mode_of(bundle) == 0o700
        assert settled(sshd_host.leftovers) == []

    async def test_of_another_account_is_refused_or_replaced(self, sshd_host: Real, other_sshd_host: Real) -> None:
        """Also where a link leads there, or nowhere; doctor says the same."""
        ours = sshd_host.home / ".albedo-remote"
        theirs = other_sshd_host.make_folder("trap")
        closed = theirs / "closed"
        for target, words in (
            (theirs, "another account"),
            (closed, "cannot be used: permission denied"),
            (sshd_host.home / "none", "is not there"),
            (sshd_host.write("file", ""), "is no directory"),
        ):
            other_sshd_host.home.chmod(0o755)
            theirs.chmod(0o755 if target == theirs else 0o700)
            ours.symlink_to(target)
            with pytest.raises(StagingError, match=f"is a link to {target}, which .*{words}.*; remove it"):
                async with started(sshd_host.location()):
                    pass
            found = await AsyncHosts().diagnose(str(sshd_host.alias))
            assert [each.check for each in found.findings if each.blocks] == ["runtime"]
            assert words in next(each for each in found.findings if each.blocks).text
            ours.unlink()
        sshd_host.make_folder(".albedo-remote")
        (run := ours / "run").mkdir()
        os.chown(run, other_sshd_host.account.uid, -1)
        ours.chmod(0o700)
        async with started(sshd_host.location()):
            assert run.stat().st_uid == sshd_host.account.uid

    async def test_may_be_a_link_to_a_directory_of_the_accounts_own(self, sshd_host: Real) -> None:
        """A small home: what is put there lies elsewhere. One that holds other things is not closed."""
        elsewhere = sshd_host.make_folder("scratch/albedo")
        elsewhere.chmod(0o755)
        ours = sshd_host.home / ".albedo-remote"
        ours.symlink_to(elsewhere)
        async with started(sshd_host.location()) as kernel:
            assert await kernel.value("1 + 1") == "2"
        assert mode_of(elsewhere) == 0o700
        assert ours.is_symlink()
        found = await AsyncHosts().diagnose(str(sshd_host.alias))
        assert found.can_start
        assert found.finding("runtime").state == "ok"
        data = sshd_host.write("scratch/albedo/data", "mine")
        elsewhere.chmod(0o775)
        with pytest.raises(StagingError, match="give it a directory of its own"):
            async with started(sshd_host.location()):
                pass
        assert mode_of(elsewhere) == 0o775
        data.unlink()

    async def test_that_holds_packages_is_filled_anew(self, bare_host: Bare) -> None:
        ours = bare_host.host.home / ".albedo-remote"
        async with started(bare_host.host.location(), bare_host.config):
            pass
        (packages,) = bare_host.sets
        for loose in (packages, packages.parent):
            mark = plant(bare_host.host, packages, "ipykernel/__init__.py")
            loose.chmod(0o777)
            async with started(bare_host.host.location(), bare_host.config) as kernel:
                assert await kernel.value("1 + 1") == "2"
            assert not mark.exists()
            assert mode_of(packages) == mode_of(ours / "wheels") == 0o700


class TestOnThisSide:
    def test_is_closed_and_packages_that_others_could_change_go(self, workspace: Workspace) -> None:
        place = workspace.root / "shared"
        (place / "wheels").mkdir(parents=True)
        (place / "memories").mkdir()
        place.chmod(0o755)
        assert albedo_home(place) == place
        assert mode_of(place) == 0o700
        assert (place / "wheels").exists()
        place.chmod(0o777)
        albedo_home(place)
        assert mode_of(place) == 0o700
        assert sorted(path.name for path in place.iterdir()) == ["memories"]

    def test_gives_no_packages_that_others_could_change(self, workspace: Workspace, kept_packages: Path) -> None:
        python = HostPython.from_facts({**facts_of(Path(sys.executable)), "own": {}})
        kept = workspace.albedo_home / "wheels"
        for loose in (None, "*", "."):
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(kept_packages, kept)
            kept.chmod(0o700)
            for path in (*kept.glob("*"),) if loose == "*" else (kept,):
                path.chmod(0o777 if loose else 0o700)
            assert (kept_set(python) is None) == (loose is not None), loose
        assert list(kept.iterdir()) == []
        assert mode_of(kept) == 0o700

    def test_is_refused_where_it_is_everybodys(self, workspace: Workspace) -> None:
        place = workspace.root / "shared"
        place.mkdir()
        place.chmod(0o1777)
        with pytest.raises(ConfigError, match="set ALBEDO_HOME to one that is"):
            albedo_home(place)
        assert mode_of(place) == 0o1777
        workspace.home.chmod(0o755)
        with pytest.raises(ConfigError, match="not for us alone"):
            albedo_home(workspace.home)
