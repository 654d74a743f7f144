"""The hosts themselves: both servers behave alike, can be broken in every way, and nothing they leave goes unseen."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncssh
import leaks
import pytest
from faces import Embedded, Host, Real
from procs import alive, everyone, send, wait_until

# A stand-in for the bridge: hands its standard input and output to whoever listens, then stays until it is let go.
# It has to end for the channel to close: it still has the descriptors itself.
BRIDGE = """
import os, socket, sys
conn = socket.socket(socket.AF_UNIX)
conn.connect(sys.argv[1])
socket.send_fds(conn, [b"x"], [0, 1])
conn.recv(1)
"""

# A stand-in for the keeper: echoes on the descriptors it was handed until their end, over and over.
KEEPER = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("ready", flush=True)
while True:
    conn, _ = listener.accept()
    _, (source, sink), _, _ = socket.recv_fds(conn, 1, 2)
    while data := os.read(source, 65536):
        view = memoryview(data)
        while view:
            view = view[os.write(sink, view):]
    os.close(source)
    os.close(sink)
    conn.close()
"""


def ssh(host: Host, *command: str, **options: str) -> list[str]:
    """Return the command line of OpenSSH's client for that host."""
    extra = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    assert host.alias is not None
    return ["ssh", "-F", str(host.ssh_config), "-o", "BatchMode=yes", *extra, host.alias, *command]


def run_ssh(host: Host, *command: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(ssh(host, *command), input=data, capture_output=True, timeout=60, check=False)


@asynccontextmanager
async def connection(host: Host) -> AsyncIterator[asyncssh.SSHClientConnection]:
    assert host.alias is not None
    async with asyncssh.connect(host.alias, config=[str(host.ssh_config)]) as conn:
        yield conn


@pytest.fixture
def keeper(remote_host: Host) -> Iterator[Path]:
    """A process on the host that takes descriptors; the path of its socket."""
    host = remote_host
    path = host.home / "keeper.sock"
    host.write("bridge.py", BRIDGE)
    host.write("keeper.py", KEEPER)
    with subprocess.Popen(ssh(host, f"exec python3 keeper.py {path}"), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield path
        host.thaw()
        for each in host.processes():
            send(each, signal.SIGKILL)


class TestEveryHost:
    def test_has_a_home_of_its_own_and_a_python_with_ipykernel(self, any_host: Host) -> None:
        result = any_host.run(["python3", "-c", "import ipykernel, os; print(os.path.expanduser('~'), os.getcwd())"])
        assert result.stderr == ""
        assert result.stdout.split() == [str(any_host.home)] * 2

    def test_makes_folders_and_files_that_belong_to_the_account(self, any_host: Host) -> None:
        folder = any_host.make_folder("a/b")
        any_host.write("a/b/c.txt", "hello")
        result = any_host.run(["sh", "-c", "cat a/b/c.txt && touch a/b/d.txt"])
        assert (result.stdout, result.stderr) == ("hello", "")
        assert any_host.location("a/b").endswith(str(folder))

    def test_needs_nothing_of_the_real_users_home(self, any_host: Host) -> None:
        assert os.environ["HOME"] != str(Path(f"~{os.environ.get('USER', 'root')}").expanduser())
        assert os.environ["ALBEDO_SSH_CONFIG"].startswith(str(Path(os.environ["HOME"]).parent))


class TestCommandsByOpenSsh:
    def test_succeed(self, remote_host: Host) -> None:
        result = run_ssh(remote_host, "true")
        assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")

    def test_report_their_status_and_keep_their_outputs_apart(self, remote_host: Host) -> None:
        result = run_ssh(remote_host, "echo out; echo err >&2; exit 7")
        assert (result.returncode, result.stdout, result.stderr) == (7, b"out\n", b"err\n")

    def test_run_in_the_home_with_a_clean_environment(self, remote_host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SECRET_OF_THE_CLIENT", "1")
        lines = run_ssh(remote_host, "pwd; env").stdout.decode().splitlines()
        assert lines[0] == str(remote_host.home)
        environ = dict(line.split("=", 1) for line in lines[1:])
        assert environ["HOME"] == str(remote_host.home)
        assert "SSH_CONNECTION" in environ
        assert not {"SECRET_OF_THE_CLIENT", "ALBEDO_HOME", "JUPYTER_DATA_DIR", leaks.MARK} & set(environ)

    def test_find_the_python_through_a_login_shell(self, remote_host: Host) -> None:
        result = run_ssh(
            remote_host, "exec $SHELL -lc 'exec python3 -c \"import ipykernel, sys; print(sys.executable)\"'"
        )
        assert result.stdout.decode().strip() == str(remote_host.python), result.stderr

    def test_take_and_give_many_bytes_unchanged(self, remote_host: Host) -> None:
        data = os.urandom(1 << 20) * 8
        result = run_ssh(remote_host, "cat", data=data)
        assert result.stdout == data

    @pytest.mark.parametrize("files", [(".profile",), (".bash_profile",)], ids=str)
    def test_are_greeted_by_a_login_shell_only(self, remote_host: Host, files: tuple[str, ...]) -> None:
        remote_host.greet("Welcome to 'the' machine\nBe nice", files)
        plain = run_ssh(remote_host, "echo x")
        assert (plain.stdout, plain.stderr) == (b"x\n", b"")
        login = run_ssh(remote_host, "bash -lc 'command -v python3'")
        expected = b"Welcome to 'the' machine\nBe nice\n"
        assert login.stdout == expected + bytes(remote_host.python.parent / "python3") + b"\n"
        assert login.stderr == expected

    def test_may_not_forward_ports(self, remote_host: Host) -> None:
        result = subprocess.run(
            [*ssh(remote_host)[:-1], "-W", "127.0.0.1:1", *ssh(remote_host)[-1:]],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=30,
            check=False,
        )
        assert result.returncode != 0
        assert b"prohibited" in result.stderr


class TestChannels:
    """By asyncssh; what a channel does at its end is the same on both servers."""

    async def test_carry_bytes_and_status(self, remote_host: Host) -> None:
        async with connection(remote_host) as conn:
            result = await conn.run("cat; echo err >&2; exit 3", input=b"\0\xff\n", encoding=None)
        assert (result.exit_status, result.stdout, result.stderr) == (3, b"\0\xff\n", b"err\n")

    async def test_report_the_signal_that_ended_the_command(self, remote_host: Host) -> None:
        async with connection(remote_host) as conn:
            result = await conn.run("kill -KILL $$")
        assert result.exit_signal is not None
        assert result.exit_signal[0] == "KILL"

    async def test_end_the_commands_input_at_eof(self, remote_host: Host) -> None:
        async with connection(remote_host) as conn, conn.create_process("wc -c", encoding=None) as process:
            process.stdin.write(b"12345")
            process.stdin.write_eof()
            assert (await process.stdout.read()).strip() == b"5"

    async def test_close_the_commands_pipes_when_the_client_closes_them(self, remote_host: Host) -> None:
        remote_host.write(
            "wait.py", "import sys\nprint('up', flush=True)\nsys.stdin.read()\nopen('seen', 'w').close()\n"
        )
        async with connection(remote_host) as conn:
            process = await conn.create_process("exec python3 wait.py")
            assert await process.stdout.readline() == "up\n"
            process.close()
            wait_until((remote_host.home / "seen").exists, what="the command has seen the end of its input")
        wait_until(lambda: not remote_host.processes(), what="the command is over")

    @pytest.mark.parametrize("held", ["</dev/null", "</dev/null >/dev/null", "</dev/null 2>/dev/null"])
    async def test_stay_open_while_another_process_holds_an_output(self, remote_host: Host, held: str) -> None:
        """What OpenSSH does: the command's end alone does not close the channel."""
        async with connection(remote_host) as conn:
            start = time.monotonic()
            process = await conn.create_process(f"sleep 1 {held} & echo $!")
            holder = int(await process.stdout.readline())
            await process.wait_closed()
            assert time.monotonic() - start > 0.8
        wait_until(lambda: not alive(holder))  # its files are closed a moment before it is gone

    async def test_close_at_once_when_another_process_holds_the_input_only(self, remote_host: Host) -> None:
        async with connection(remote_host) as conn:
            process = await conn.create_process("sleep 100 >/dev/null 2>&1 & echo $!")
            holder = int(await process.stdout.readline())
            await process.wait_closed()
        assert alive(holder)
        os.kill(holder, signal.SIGKILL)

    async def test_slow_the_command_down_when_the_client_does_not_read(self, remote_host: Host) -> None:
        remote_host.write(
            "flood.py",
            "import os, sys\n"
            "for n in range(100):\n"
            "    left = memoryview(bytes(1 << 20))\n"
            "    while left:\n"
            "        left = left[os.write(1, left):]\n"
            "    open('n', 'w').write(str(n))\n",
        )
        async with connection(remote_host) as conn:
            process = await conn.create_process("exec python3 flood.py", encoding=None)
            counter = remote_host.home / "n"
            # The client's window is 2 MiB; with pipes and buffers on the way some more leaves the command, not 100.
            wait_until(counter.exists, what="the flood has begun")
            rest = 0
            while data := await process.stdout.read(1 << 20):
                rest += len(data)
            assert rest == 100 << 20

    async def test_are_refused_past_the_limit(self, remote_host: Host) -> None:
        limit_sessions(remote_host, 2)
        async with connection(remote_host) as conn:
            first = await conn.create_process("sleep 100")
            second = await conn.create_process("sleep 100")
            with pytest.raises(asyncssh.ChannelOpenError, match="open failed"):
                await conn.create_process("true")
            first.close()
            second.close()
        for process in remote_host.processes():
            send(process, signal.SIGKILL)


def limit_sessions(host: Host, count: int) -> None:
    if isinstance(host, Embedded):
        host.server.behave(max_sessions=count)
    else:
        assert isinstance(host, Real)
        host.server.restart(MaxSessions=str(count))


class TestHandingOver:
    """The command hands its descriptors to another process of the host (SCM_RIGHTS), as the bridge does."""

    async def test_the_other_process_talks_to_the_client(self, remote_host: Host, keeper: Path) -> None:
        async with (
            connection(remote_host) as conn,
            conn.create_process(f"exec python3 bridge.py {keeper}", encoding=None) as process,
        ):
            for size in (1, 1000, 3 << 20):
                data = os.urandom(size)
                process.stdin.write(data)
                assert await process.stdout.readexactly(size) == data
            process.stdin.write_eof()
            assert await process.stdout.read() == b""

    async def test_killing_the_command_ends_the_channel(self, remote_host: Host, keeper: Path) -> None:
        """The command's end closes its input; the keeper sees that, lets go of the output, and the channel closes."""
        async with connection(remote_host) as conn:
            process = await conn.create_process(f"exec python3 bridge.py {keeper}", encoding=None)
            process.stdin.write(b"hello")
            assert await process.stdout.readexactly(5) == b"hello"
            (bridge,) = [each for each in remote_host.processes() if "bridge.py" in each.argv]
            send(bridge, signal.SIGKILL)
            assert await process.stdout.read() == b""
            await process.wait_closed()
            assert process.exit_signal is not None
            assert process.exit_signal[0] == "KILL"
            result = await conn.run(f"exec python3 bridge.py {keeper} & sleep 0; kill $!")
            assert result.exit_status == 0  # the connection is as good as before

    async def test_a_cut_connection_ends_it_for_the_other_process(self, remote_host: Host, keeper: Path) -> None:
        async with connection(remote_host) as conn:
            process = await conn.create_process(f"exec python3 bridge.py {keeper}", encoding=None)
            process.stdin.write(b"hello")
            assert await process.stdout.readexactly(5) == b"hello"
            remote_host.cut()
            await process.wait_closed()
        # The keeper is free for the next one, so the end of the first reached it.
        async with (
            connection(remote_host) as conn,
            conn.create_process(f"exec python3 bridge.py {keeper}", encoding=None) as process,
        ):
            process.stdin.write(b"again")
            assert await process.stdout.readexactly(5) == b"again"
            process.stdin.write_eof()
            assert await process.stdout.read() == b""


class TestTheLink:
    async def test_is_cut(self, remote_host: Host) -> None:
        async with connection(remote_host) as conn:
            process = await conn.create_process("echo up; sleep 100")
            assert await process.stdout.readline() == "up\n"
            assert remote_host.connected() == 1
            assert remote_host.cut() >= 1
            await process.wait_closed()
            await conn.wait_closed()
            assert process.exit_status is None
        assert run_ssh(remote_host, "true").returncode == 0
        # sshd signals nobody: what does not look at its pipes goes on.
        (sleeper,) = [each for each in remote_host.processes() if each.argv[0] == "sleep"]
        for process_left in remote_host.processes():
            send(process_left, signal.SIGKILL)
        wait_until(lambda: not alive(sleeper.pid))

    def test_is_down_and_up_again(self, remote_host: Host) -> None:
        assert run_ssh(remote_host, "true").returncode == 0
        remote_host.down()
        result = run_ssh(remote_host, "true")
        assert result.returncode == 255
        assert b"Connection refused" in result.stderr
        remote_host.up()
        assert run_ssh(remote_host, "true").returncode == 0

    async def test_is_half_open_and_new_ones_work(self, remote_host: Host) -> None:
        async with connection(remote_host) as conn:
            process = await conn.create_process("exec cat")
            process.stdin.write("one\n")
            assert await process.stdout.readline() == "one\n"
            assert remote_host.freeze() == 1
            process.stdin.write("two\n")
            assert run_ssh(remote_host, "echo other").stdout == b"other\n"
            assert not process.stdout.at_eof()
            remote_host.thaw()
            assert await process.stdout.readline() == "two\n"
            process.stdin.write_eof()
            await process.wait_closed()

    async def test_half_open_can_be_cut(self, remote_host: Host) -> None:
        async with connection(remote_host) as conn:
            process = await conn.create_process("exec cat")
            process.stdin.write("one\n")
            assert await process.stdout.readline() == "one\n"
            remote_host.freeze()
            remote_host.cut()
            await conn.wait_closed()
        wait_until(lambda: not remote_host.processes(), what="cat has seen the end of its input")


class TestEmbeddedHost:
    """What only an embedded host can do."""

    def test_cuts_after_so_many_bytes(self, embedded_host: Embedded) -> None:
        embedded_host.server.cut_after(sent=200_000)
        result = run_ssh(embedded_host, "head -c 1000000 /dev/zero")
        assert result.returncode == 255
        assert len(result.stdout) < 200_000  # a reset takes what the client has not read yet with it
        assert len(run_ssh(embedded_host, "head -c 1000000 /dev/zero").stdout) == 1_000_000
        embedded_host.server.cut_after(received=200_000)
        assert run_ssh(embedded_host, "cat >/dev/null", data=bytes(1_000_000)).returncode == 255

    def test_delays_every_byte(self, embedded_host: Embedded) -> None:
        embedded_host.server.behave(latency=0.03)
        start = time.monotonic()
        assert run_ssh(embedded_host, "true").returncode == 0
        assert time.monotonic() - start > 5 * 0.06  # ssh needs at least five round trips to get there

    def test_delays_sign_in_and_commands(self, embedded_host: Embedded) -> None:
        embedded_host.server.behave(auth_delay=0.4, exec_delay=0.3)
        start = time.monotonic()
        assert run_ssh(embedded_host, "cat", data=b"early").stdout == b"early"
        assert time.monotonic() - start > 0.7

    def test_refuses_keys_until_told_otherwise(self, embedded_host: Embedded) -> None:
        embedded_host.server.behave(refuse_auth=True)
        result = run_ssh(embedded_host, "true")
        assert result.returncode == 255
        assert b"Permission denied (publickey)" in result.stderr
        embedded_host.server.behave(refuse_auth=False)
        assert run_ssh(embedded_host, "true").returncode == 0

    def test_refuses_other_users_and_keys(self, embedded_host: Embedded, workspace: object) -> None:
        assert (
            b"Permission denied"
            in subprocess.run(
                ssh(embedded_host, "true", User="somebody"), capture_output=True, stdin=subprocess.DEVNULL, check=False
            ).stderr
        )

    def test_refuses_commands(self, embedded_host: Embedded) -> None:
        embedded_host.server.behave(refuse_exec=True)
        assert b"exec request failed" in run_ssh(embedded_host, "true").stderr

    def test_hangs_for_newcomers(self, embedded_host: Embedded) -> None:
        embedded_host.server.freeze(new=True)
        with socket.create_connection(("127.0.0.1", embedded_host.server.port), 5) as sock:
            sock.settimeout(0.3)
            with pytest.raises(TimeoutError):
                sock.recv(1)
            embedded_host.thaw()
            sock.settimeout(10)
            assert sock.recv(4) == b"SSH-"

    def test_knows_its_connections_and_commands(self, embedded_host: Embedded) -> None:
        with subprocess.Popen(ssh(embedded_host, "exec cat"), stdin=subprocess.PIPE) as client:
            (command,) = wait_until(lambda: [each for each in embedded_host.server.commands() if each.running])
            assert command.command == "exec cat"
            assert command.pid is not None
            assert alive(command.pid)
            (conn,) = embedded_host.server.connections()
            assert (conn.number, conn.sessions, conn.frozen) == (command.connection, 1, False)
            assert conn.sent > 100
            assert conn.received > 100
            assert client.stdin is not None
            client.stdin.close()
        wait_until(lambda: not embedded_host.server.commands())
        assert embedded_host.server.accepted() == 1

    def test_uses_the_shell_it_is_given(self, new_embedded_host: Callable[..., Embedded]) -> None:
        host = new_embedded_host(shell="/bin/bash", environ={"EXTRA": "1"})
        assert run_ssh(host, "echo $0 $SHELL $EXTRA ${BASH_VERSION:+really}").stdout == b"bash /bin/bash 1 really\n"

    def test_two_of_them_are_apart(self, new_embedded_host: Callable[..., Embedded]) -> None:
        first, second = new_embedded_host(), new_embedded_host()
        first.down()
        assert run_ssh(first, "true").returncode == 255
        assert run_ssh(second, "pwd").stdout.decode().strip() == str(second.home)
        assert first.home != second.home

    def test_ends_with_all_it_started_when_it_is_closed(self, new_embedded_host: Callable[..., Embedded]) -> None:
        host = new_embedded_host()
        pid = detached_sleep(host)
        host.server.close()
        assert not alive(pid)
        assert not host.server.root.exists()

    def test_ends_with_all_it_started_when_it_is_told_to_terminate(
        self, new_embedded_host: Callable[..., Embedded]
    ) -> None:
        host = new_embedded_host()
        pid = detached_sleep(host)
        os.kill(host.server.pid, signal.SIGTERM)
        wait_until(lambda: not host.server.root.exists(), what="the directory is gone")
        assert not alive(pid)

    def test_says_what_it_printed_when_it_died(self, new_embedded_host: Callable[..., Embedded]) -> None:
        host = new_embedded_host()
        os.kill(host.server.pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match=f"{host.alias} died"):
            host.connected()

    async def test_never_loses_input_that_had_to_wait(self, embedded_host: Embedded) -> None:
        """Input past the command's pipe and our own buffer, and the end right behind it."""
        data = os.urandom(3 << 20)
        async with connection(embedded_host) as conn:
            for _ in range(5):
                result = await conn.run("sleep 0.05; cat", input=data, encoding=None)
                assert result.stdout == data

    def test_ends_with_all_it_started_when_its_owner_is_killed(self, workspace: object) -> None:
        script = (
            "from albedo_provisioner.demo.server import EmbeddedHost\n"
            "import subprocess, sys\n"
            "host = EmbeddedHost()\n"
            "subprocess.run(['ssh', '-F', str(host.ssh_config), host.alias,"
            " 'setsid sleep 1000 >/dev/null 2>&1 </dev/null & echo $!'], stdin=subprocess.DEVNULL)\n"
            "print(host.pid, host.root, flush=True)\n"
            "sys.stdin.read()\n"
        )
        root_of_package = Path(__file__).resolve().parents[2]
        with subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(root_of_package)},
            text=True,
        ) as owner:
            assert owner.stdout is not None
            sleeper = int(owner.stdout.readline())
            server, root = owner.stdout.readline().split()
            assert alive(sleeper)
            owner.kill()
        wait_until(lambda: not alive(sleeper), what="the command is gone")
        wait_until(lambda: not alive(int(server)), what="the server is gone")
        assert not Path(root).exists()


def detached_sleep(host: Host) -> int:
    """Start a process on the host that outlives its connection, and return its id."""
    result = run_ssh(host, "setsid sleep 1000 >/dev/null 2>&1 </dev/null & echo $!")
    return int(result.stdout)


class TestRealSshd:
    """What only a real sshd can show."""

    def test_is_another_account_with_another_home(self, sshd_host: Real) -> None:
        assert run_ssh(sshd_host, "id -u; pwd").stdout.decode().split() == [
            str(sshd_host.account.uid),
            str(sshd_host.home),
        ]
        assert sshd_host.account.uid != os.getuid()
        assert sshd_host.home != Path.home()

    def test_two_accounts_are_apart(self, sshd_host: Real, other_sshd_host: Real) -> None:
        sshd_host.write("secret", "x")
        assert run_ssh(other_sshd_host, f"cat {sshd_host.home}/secret").returncode != 0

    def test_gets_other_options_until_the_next_test(self, sshd_host: Real) -> None:
        sshd_host.server.restart(Banner="/etc/hostname")
        assert run_ssh(sshd_host, "true").returncode == 0

    def test_has_its_usual_options_again(self, sshd_host: Real) -> None:
        assert "Banner" not in (sshd_host.server.root / "sshd_config").read_text()

    @pytest.mark.parametrize("shell", ["/bin/sh", "/usr/bin/zsh", "/usr/bin/fish", "/usr/bin/tcsh"])
    def test_greets_on_any_login_shell_and_finds_the_python(self, sshd_host: Real, shell: str) -> None:
        if not Path(shell).exists():
            pytest.skip(f"there is no {shell}")
        sshd_host.account.set_shell(shell)
        sshd_host.greet('Welcome, it\'s a "nice" day')
        flag = "-l" if not shell.endswith("tcsh") else ""
        # tcsh is a login shell when it is asked to be one by its name; a command on stdin comes after its profile.
        command = f"exec {shell} -lc 'which python3'" if flag else "exec -a -tcsh /usr/bin/tcsh"
        result = run_ssh(sshd_host, "bash -c " + repr(command) if not flag else command, data=b"which python3\n")
        assert b'Welcome, it\'s a "nice" day\n' in result.stdout
        assert b'Welcome, it\'s a "nice" day\n' in result.stderr
        assert bytes(sshd_host.python.parent / "python3") in result.stdout.splitlines()


class TestLeavesNothing:
    """The watchdog bites. Each test looks with its eyes, then cleans up, or it would be bitten itself."""

    def test_sees_a_process_on_the_host(self, any_host: Host) -> None:
        if any_host.remote:
            pid = detached_sleep(any_host)
        else:
            result = subprocess.run(
                ["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 </dev/null & echo $!"],
                stdout=subprocess.PIPE,
                check=True,
            )
            pid = int(result.stdout)
        assert any(f"process {pid} " in each for each in any_host.leftovers())
        any_host.clear()
        assert not alive(pid)
        assert any_host.leftovers() == []

    def test_sees_a_run_directory_and_suffers_a_bundle(self, any_host: Host) -> None:
        any_host.make_folder(".albedo-remote/0123456789abcdef")
        assert any_host.leftovers() == []
        any_host.make_folder(".albedo-remote/run")
        assert any_host.leftovers() == []
        any_host.make_folder(".albedo-remote/run/k1")
        any_host.make_folder(".albedo-remote/.incoming")
        assert len(any_host.leftovers()) == 2
        any_host.clear()
        (any_host.home / ".albedo-remote" / ".incoming").rmdir()

    def test_sees_a_temporary_file_on_the_host(self, any_host: Host) -> None:
        any_host.run(["python3", "-c", "import tempfile; tempfile.mkdtemp(prefix='albedo-left-')"])
        assert len(any_host.leftovers()) == 1
        any_host.clear()

    def test_sees_children_and_what_they_detached(self) -> None:
        before = leaks.mine()
        with subprocess.Popen(["sleep", "1000"], env={}) as child:
            subprocess.run(["sh", "-c", "setsid sleep 1000 &"], check=True)
            wait_until(lambda: len(leaks.leaked_processes(before)) == 2)
            orphan = next(each for each in leaks.leaked_processes(before) if each.pid != child.pid)
            leaks.kill([orphan])
            child.kill()
        assert leaks.settled(lambda: [str(each) for each in leaks.leaked_processes(before)]) == []
        assert orphan.pid not in {each.pid for each in everyone() if each.state != "Z"}
