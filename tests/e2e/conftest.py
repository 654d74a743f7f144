"""The hosts that end-to-end tests run kernels on, a fresh client side for each test, and the proof of nothing left.

    def test_something(any_host):            # three times: embedded, a real sshd, this machine
        folder = any_host.make_folder("proj")
        location = any_host.location("proj")

`embedded_host`, `sshd_host`, `other_sshd_host` and `local_host` give one kind each, `remote_host` the two that are
reached by ssh, `new_embedded_host` as many embedded ones as a test wants. Where there can be no real sshd its tests are
skipped with the reason, and fail when CI is set.
"""

from __future__ import annotations

import compileall
import fcntl
import io
import itertools
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import leaks
import pytest
from account_python import NoPythonError, account_python, cache_directory
from bare import Bare, bare, facts_of
from door import Door
from faces import Embedded, Host, Local, Real, embedded, own_python, real
from forked_host import ForkedHost, prepare
from notebook_server import NotebookServer
from sshd import SYSTEM_TEMP, Account, Accounts, NoSshdError, SshServer, reserve_accounts

from albedo_provisioner import AsyncSessions, Sessions
from albedo_provisioner.demo.profiles import write_profiles
from albedo_provisioner.hosts import asking, io_thread
from albedo_provisioner.hosts.host_python import HostPython
from albedo_provisioner.hosts.staging import bundle
from albedo_provisioner.hosts.wheels import wheel_set

AccountHost = Callable[[str], AbstractContextManager[Real]]

# Hosts never share a name, so that what one test learnt about its host is not believed by the next.
_numbers = itertools.count(1)


def unavailable(reason: str) -> NoReturn:
    """Skip the test, or fail it where everything has to be there."""
    if os.environ.get("CI"):
        pytest.fail(f"{reason} (CI is set, so this is a failure)", pytrace=False)
    pytest.skip(reason)


@dataclass
class Workspace:
    """The client's side of one test.

    Attributes:
        root: its directory; short, because sockets lie below it.
        home: HOME.
        temp: TMPDIR.
        albedo_home: ALBEDO_HOME.
        data_dir, runtime_dir, config_dir: Jupyter's.
        ssh_config: ALBEDO_SSH_CONFIG; the host fixtures add their hosts to it, a test may too.
        findings: what the hosts of this test found left on them.
    """

    root: Path
    home: Path
    temp: Path
    albedo_home: Path
    data_dir: Path
    runtime_dir: Path
    config_dir: Path
    ssh_config: Path
    findings: list[str] = field(default_factory=list)

    @property
    def kernels(self) -> Path:
        """The directory for kernelspecs of this test; Jupyter finds what lies in it."""
        return self.data_dir / "kernels"

    def add_to_ssh_config(self, text: str) -> None:
        """Append to the ssh config."""
        with self.ssh_config.open("a", encoding="utf-8") as file:
            file.write(text)

    def check(self, host: Host) -> None:
        """Note what is left on a host, and remove it; what is kept for the next look at a folder ends first."""
        io_thread.run_blocking(asking.end_kept())
        left = leaks.settled(host.leftovers)
        if left:
            self.findings += left
            host.clear()


@pytest.fixture(autouse=True)
def workspace(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """Give the test a client side of its own: HOME, TMPDIR, Jupyter's directories, our records, the ssh config."""
    tmp_path_factory.getbasetemp()  # decided now, before TMPDIR says otherwise
    root = Path(tempfile.mkdtemp(prefix="alb-", dir=SYSTEM_TEMP)).resolve()
    space = Workspace(
        root=root,
        home=root / "home",
        temp=root / "tmp",
        albedo_home=root / "albedo",
        data_dir=root / "data",
        runtime_dir=root / "run",
        config_dir=root / "config",
        ssh_config=root / "ssh_config",
    )
    for path in (space.home, space.temp, space.data_dir, space.runtime_dir, space.config_dir):
        path.mkdir(mode=0o700)
    space.kernels.mkdir()
    space.ssh_config.touch()
    for name, value in {
        "HOME": space.home,
        "TMPDIR": space.temp,
        "ALBEDO_HOME": space.albedo_home,
        "ALBEDO_SSH_CONFIG": space.ssh_config,
        "JUPYTER_DATA_DIR": space.data_dir,
        "JUPYTER_RUNTIME_DIR": space.runtime_dir,
        "JUPYTER_CONFIG_DIR": space.config_dir,
        leaks.MARK: leaks.TOKEN,
    }.items():
        monkeypatch.setenv(name, str(value))
    for name in ("JUPYTER_PATH", "JUPYTER_CONFIG_PATH", "IPYTHONDIR", "SSH_AUTH_SOCK", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", None)  # tempfile remembers what TMPDIR was
    yield space
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(autouse=True)
def leaves_nothing(workspace: Workspace) -> Iterator[None]:
    """Fail a test that leaves a process, a run directory or a temporary file, here or on its hosts (K6, K8)."""
    before = leaks.mine()
    yield
    io_thread.run_blocking(asking.end_kept())
    left = list(workspace.findings)
    left += leaks.settled(lambda: [str(process) for process in leaks.leaked_processes(before)])
    leaks.kill(leaks.leaked_processes(before))
    left += leaks.settled(lambda: [str(path) for path in leaks.temporary_files(workspace.temp)], 1)
    if left:
        pytest.fail("the test left behind:\n  " + "\n  ".join(dict.fromkeys(left)), pytrace=False)


@pytest.fixture
def server(workspace: Workspace) -> Iterator[NotebookServer]:
    """Run a Jupyter Server."""
    root = workspace.root / "notebooks"
    root.mkdir()
    server = NotebookServer(root)
    yield server
    server.stop()


# Sessions


@pytest.fixture
def sessions() -> Iterator[Sessions]:
    """Hold sessions for the test, and end them."""
    with Sessions() as made:
        yield made


@pytest.fixture
async def async_sessions() -> AsyncIterator[AsyncSessions]:
    """Do as `sessions` for a test with an event loop."""
    async with AsyncSessions() as made:
        yield made


# Hosts


@pytest.fixture(scope="session")
def compiled_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with what we put on a host, compiled."""
    folder = tmp_path_factory.mktemp("bundle")
    with tarfile.open(fileobj=io.BytesIO(bundle().archive)) as archive:
        archive.extractall(folder, filter="data")
    compileall.compile_dir(folder, quiet=2)
    for path in folder.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return folder


@pytest.fixture
def visited(request: pytest.FixtureRequest, compiled_bundle: Path) -> Callable[[Host], None]:
    """Return what makes a fresh host one that we have been on before, unless the test is about a first visit.

    To send our files to a host and to compile them is a good part of the work of a short test.
    """
    if request.node.get_closest_marker("first_visit"):
        return lambda host: None
    return lambda host: host.have_been_visited(compiled_bundle)


@pytest.fixture(scope="session")
def forks() -> None:
    """Have embedded hosts start at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(SYSTEM_TEMP))
        kept = prepare()
    leaks.kept.insert(0, lambda: kept)


@pytest.fixture
def new_embedded_host(
    workspace: Workspace, visited: Callable[[Host], None], forks: None
) -> Iterator[Callable[..., Embedded]]:
    """Return a function that makes one more embedded host; it takes what `EmbeddedHost` takes."""
    made: list[Embedded] = []

    def make(alias: str | None = None, **options: Any) -> Embedded:
        server = ForkedHost(alias or f"box{next(_numbers)}", parent=SYSTEM_TEMP, **options)
        leaks.kept.append(lambda: [server.pid])
        workspace.add_to_ssh_config(server.ssh_config.read_text())
        host = embedded(server, workspace.ssh_config)
        visited(host)
        made.append(host)
        return host

    excused = len(leaks.kept)
    yield make
    for host in made:
        workspace.check(host)
        host.server.close()
    del leaks.kept[excused:]


@pytest.fixture
def embedded_host(new_embedded_host: Callable[..., Embedded]) -> Embedded:
    """Return an embedded host of the test's own."""
    return new_embedded_host()


@pytest.fixture(scope="session")
def accounts() -> Iterator[Accounts]:
    """Reserve two accounts for this run."""
    if os.getuid() != 0:
        unavailable("other accounts' hosts need root")
    try:
        reserved = reserve_accounts()
    except NoSshdError as error:
        unavailable(str(error))
    with reserved.lock:
        yield reserved
        for account in (reserved.ann, reserved.bob):
            account.end_processes()


@pytest.fixture(scope="session")
def sshd_python(accounts: Accounts) -> Path:
    """Return an interpreter with ipykernel for the accounts."""
    try:
        return account_python(accounts.ann.uid, accounts.ann.gid)
    except NoPythonError as error:
        unavailable(str(error))


@pytest.fixture(scope="session")
def sshd_server(accounts: Accounts) -> Iterator[SshServer]:
    """Run a real sshd for the whole run. Tests use `sshd_host`, which puts it back into its usual shape."""
    try:
        server = SshServer(accounts)
    except NoSshdError as error:
        unavailable(str(error))
    leaks.kept.insert(0, lambda: [server.pid] if server.pid else [])
    yield server
    server.close()


@pytest.fixture
def account_host(
    workspace: Workspace,
    accounts: Accounts,
    sshd_server: SshServer,
    sshd_python: Path,
    visited: Callable[[Host], None],
) -> AccountHost:
    """Return a function that has a host of one of the accounts on the real sshd meanwhile."""

    @contextmanager
    def host_of(name: str) -> Iterator[Real]:
        account: Account = getattr(accounts, name)
        account.reset(sshd_python.parent)
        sshd_server.restore()
        alias = f"{name}{next(_numbers)}"
        workspace.add_to_ssh_config(sshd_server.config_for(alias, account))
        host = real(sshd_server, account, alias, sshd_python, workspace.ssh_config)
        visited(host)
        yield host
        sshd_server.thaw()
        workspace.check(host)

    return host_of


@pytest.fixture
def sshd_host(account_host: AccountHost) -> Iterator[Real]:
    """Return ann's account on a real sshd."""
    with account_host("ann") as host:
        yield host


@pytest.fixture
def full_home(sshd_host: Real) -> Iterator[Callable[[int], None]]:
    """Return a function that puts the home on the real sshd on a disk of so many bytes."""
    mounted = []

    def mount(size: int) -> None:
        home, account = sshd_host.home, sshd_host.account
        profile = (home / ".profile").read_text()
        options = f"size={size},uid={account.uid},gid={account.gid},mode=750"
        result = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(home)], check=False)
        if result.returncode:
            pytest.skip("a disk cannot be mounted here")
        mounted.append(home)
        sshd_host.write(".profile", profile)

    yield mount
    for home in mounted:
        subprocess.run(["umount", "--lazy", str(home)], check=True)


@pytest.fixture(scope="session")
def kept_packages(sshd_python: Path) -> Path:
    """Return the directory in which packages for the accounts' interpreter are kept, fetched once for all runs."""
    home = cache_directory() / "albedo-home"
    with (cache_directory() / "packages.lock").open("w") as lock, pytest.MonkeyPatch.context() as patch:
        fcntl.flock(lock, fcntl.LOCK_EX)
        patch.setenv("ALBEDO_HOME", str(home))
        patch.setenv("PIP_CACHE_DIR", str(cache_directory() / "pip"))
        facts = HostPython.from_facts({**facts_of(sshd_python), "own": {}})
        return io_thread.run_blocking(wheel_set(facts)).directory.parent


@pytest.fixture
def bare_host(
    workspace: Workspace,
    sshd_host: Real,
    full_home: Callable[[int], None],
    kept_packages: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Bare]:
    """Return ann's account with an interpreter that has neither ipykernel nor pip, the packages being kept here.

    Its home is in memory: there are thousands of small files in the packages.
    """
    full_home(1 << 30)
    monkeypatch.setenv("PIP_CACHE_DIR", str(cache_directory() / "pip"))
    shutil.copytree(kept_packages, workspace.albedo_home / "wheels")
    yield bare(sshd_host)
    workspace.check(sshd_host)


@pytest.fixture
async def door(workspace: Workspace, sshd_host: Real) -> AsyncIterator[Door]:
    """Return a door to ann's account; which keys it accepts is as before afterwards."""
    accepted = sshd_host.server.root / f"keys-{sshd_host.account.name}"
    before = accepted.read_text()
    door = Door(workspace, sshd_host)
    yield door
    for transport in door.transports:
        await transport.close()
    accepted.write_text(before)


@pytest.fixture
def other_sshd_host(account_host: AccountHost) -> Iterator[Real]:
    """Return bob's account on the same sshd: another home, and nothing of ann's to be seen."""
    with account_host("bob") as host:
        yield host


@pytest.fixture
def local_host(workspace: Workspace, visited: Callable[[Host], None]) -> Iterator[Local]:
    """Return this machine, with a fresh home."""
    python = own_python()
    write_profiles(workspace.home, str(python.parent))
    host = Local("local", None, workspace.home, python, None, workspace.temp)
    visited(host)
    yield host
    workspace.check(host)


@pytest.fixture(params=["embedded", "sshd", "local"])
def any_host(request: pytest.FixtureRequest) -> Host:
    """Return each kind of host in turn."""
    host: Host = request.getfixturevalue(f"{request.param}_host")
    return host


@pytest.fixture(params=["embedded", "sshd"])
def remote_host(request: pytest.FixtureRequest) -> Host:
    """Return each kind of host that is reached by ssh in turn."""
    host: Host = request.getfixturevalue(f"{request.param}_host")
    return host
