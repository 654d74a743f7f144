"""The transports keep one contract: run a command, with byte streams, flow control and a truthful end."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable

import pytest
from faces import Embedded, Host, Real
from masters import Master
from recorder import Recorder, eventually, run, start

from albedo_provisioner.errors import UnreachableError
from albedo_provisioner.hosts.local import LocalTransport
from albedo_provisioner.hosts.openssh import ProgramTransport
from albedo_provisioner.hosts.ssh import SSHTransport
from albedo_provisioner.hosts.ssh_channel import MAX_CHANNELS, REUSE_TIMEOUT
from albedo_provisioner.hosts.transport import Transport

Opener = Callable[..., SSHTransport]


@pytest.fixture
async def ssh_to() -> AsyncIterator[Opener]:
    """Return a function that makes an ssh transport to a host of the test."""
    made: list[SSHTransport] = []

    def make(host: Host, **options: float) -> SSHTransport:
        assert host.alias is not None
        made.append(SSHTransport(host.alias, **options))
        return made[-1]

    yield make
    for transport in made:
        await transport.close()


@pytest.fixture(params=["embedded", "sshd", "local", "openssh", "master"])
def way(request: pytest.FixtureRequest) -> str:
    """Return how to get to a host: the kinds of hosts in turn, and the ways of the ssh program to a real one."""
    way: str = request.param
    return way


@pytest.fixture
def any_host(request: pytest.FixtureRequest, way: str) -> Host:
    """Return the host that the way leads to."""
    host: Host = request.getfixturevalue({"openssh": "sshd", "master": "sshd"}.get(way, way) + "_host")
    return host


@pytest.fixture
async def transport(any_host: Host, way: str, ssh_to: Opener) -> AsyncIterator[Transport]:
    """Return a transport to each kind of host in turn."""
    if way in ("embedded", "sshd"):
        yield ssh_to(any_host)
    elif way == "local":
        local = LocalTransport()
        yield local
        await local.close()
    else:
        assert any_host.alias is not None
        program = ProgramTransport(any_host.alias)
        if way == "openssh":
            yield program
        else:
            with Master(any_host.alias) as master:
                yield master.transport(program)
                await program.close()
        await program.close()


# -- what every transport does


async def test_output_errors_and_exit_status_arrive_apart(transport: Transport) -> None:
    told = await run(transport, "echo out; echo err >&2; exit 7")
    assert (bytes(told.out), bytes(told.err)) == (b"out\n", b"err\n")
    assert told.how is not None
    assert (told.how.status, told.how.signal, told.how.error) == (7, None, None)


async def test_a_command_killed_by_a_signal_tells_which(transport: Transport, way: str) -> None:
    """The ssh program tells only that it was a signal; over a master it looks like the end of the connection."""
    told = await run(transport, "kill -KILL $$")
    assert told.how is not None
    assert told.how.status is None
    assert told.how.signal == {"openssh": "unknown", "master": None}.get(way, "KILL")
    assert (told.how.error is not None) == (way == "master")


async def test_an_exit_status_of_255_is_the_command_s(transport: Transport) -> None:
    """The ssh program uses the same number for failures of its own."""
    told = await run(transport, "exit 255")
    assert told.how is not None
    assert (told.how.status, told.how.signal, told.how.error) == (255, None, None)


async def test_commands_start_in_the_home_directory(transport: Transport, any_host: Host) -> None:
    told = await run(transport, "pwd -P")
    assert told.out.decode().strip() == str(any_host.home)


async def test_input_of_any_bytes_comes_back_unchanged_and_ends_with_eof(transport: Transport) -> None:
    data = bytes(range(256)) * 4096
    told = await run(transport, "cat", data)
    assert told.out == data


async def test_several_buffers_of_any_kind_are_sent_in_order_and_may_be_changed_afterwards(
    transport: Transport,
) -> None:
    channel, told = await start(transport, "cat")
    parts = [b"head", bytearray(b"x" * 3_000_000), memoryview(b"y" * 100_000), b"tail"]
    expected = b"".join(parts)
    channel.write(*parts)
    parts[1][:] = b"z" * 3_000_000  # type: ignore[index]
    channel.write_eof()
    await told.end()
    assert told.out == expected


async def test_writing_is_paused_while_the_command_does_not_read_and_nothing_is_called_from_within_write(
    transport: Transport,
) -> None:
    channel, told = await start(transport, "read line; wc -c")
    told.inside = True
    for _ in range(80):
        channel.write(bytes(100_000))
    told.inside = False
    await told.until(lambda: told.flow == ["pause"])
    channel.write(b"\n")
    channel.write_eof()
    await told.end(60)  # the shell reads the line byte by byte
    assert told.flow == ["pause", "resume"]


async def test_a_paused_reader_gets_nothing_and_everything_once_it_goes_on(transport: Transport) -> None:
    channel, told = await start(transport, "echo first; read line; head -c 3000000 /dev/zero; echo done >&2")
    await told.until(lambda: told.out == b"first\n")
    channel.pause_reading()
    channel.write(b"go\n")
    probe = await run(transport, "echo later")  # time enough for anything that should not come
    assert probe.out == b"later\n"
    assert told.out == b"first\n"
    told.inside = True
    channel.resume_reading()
    told.inside = False
    await told.end()
    assert len(told.out) == 6 + 3_000_000


async def test_a_reader_that_pauses_at_each_piece_loses_nothing_at_the_end(transport: Transport) -> None:
    class Slow(Recorder):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            channel.pause_reading()
            asyncio.get_running_loop().call_later(0.001, channel.resume_reading)

    told = Slow()
    channel = await transport.open("head -c 2000000 /dev/zero", told)
    how = await told.end()
    assert (len(told.out), how.status) == (2_000_000, 0)


async def test_a_command_may_close_its_output_and_go_on_reading(transport: Transport, any_host: Host) -> None:
    channel, told = await start(transport, "exec >&- 2>&-; cat > late; exit 3")
    channel.write(b"after")
    channel.write_eof()
    assert (await told.end()).status == 3
    assert (any_host.home / "late").read_text() == "after"


async def test_close_tells_the_end_once_and_later_calls_do_nothing(transport: Transport) -> None:
    channel, told = await start(transport, "echo ready; cat")
    await told.until(lambda: told.out)
    told.inside = True
    channel.close()
    channel.close()
    channel.write(b"too late")
    channel.write_eof()
    channel.pause_reading()
    channel.resume_reading()
    told.inside = False
    how = await told.end()
    assert (how.status, how.error) == (None, None)
    await run(transport, "true")  # and nothing more comes meanwhile
    assert told.broken_rules == []


async def test_a_command_notices_that_its_channel_was_closed(transport: Transport, any_host: Host) -> None:
    channel, told = await start(transport, "echo ready; cat >/dev/null; touch noticed")
    await told.until(lambda: told.out)
    channel.close()
    await told.end()
    if any_host.remote:
        watch = "until [ -e noticed ]; do sleep 0.05; done"
        assert (await run(transport, watch)).how.status == 0  # type: ignore[union-attr]


async def test_a_receiver_that_fails_loses_its_own_channel_and_no_other(transport: Transport) -> None:
    class Failing(Recorder):
        def data_received(self, data: bytes) -> None:
            raise ValueError("not this one")

    other, other_told = await start(transport, "cat")
    told = Failing()
    await transport.open("echo x; cat", told)
    how = await told.end()
    assert isinstance(how.error, ValueError)
    other.write(b"still here")
    await other_told.until(lambda: other_told.out == b"still here")


# -- the local transport


async def test_closing_a_local_command_ends_its_process_and_no_other_one() -> None:
    transport = LocalTransport()
    channel, told = await start(transport, "sleep 7777 >/dev/null 2>&1 & echo $!; exec sleep 7778")
    await told.until(lambda: told.out.endswith(b"\n"))
    bystander = int(told.out)
    pidfd = os.pidfd_open(channel.pid)  # type: ignore[attr-defined]
    channel.close()
    await told.end()
    gone = asyncio.Event()
    asyncio.get_running_loop().add_reader(pidfd, gone.set)
    await asyncio.wait_for(gone.wait(), 10)
    asyncio.get_running_loop().remove_reader(pidfd)
    os.close(pidfd)
    os.kill(bystander, 0)
    os.kill(bystander, signal.SIGKILL)


async def test_local_output_that_outlives_its_shell_is_read_to_the_end() -> None:
    told = await run(LocalTransport(), "(read line; echo late) & exit 0", b"")
    assert told.out == b"late\n"


# -- connections of the ssh transport


async def test_all_who_come_at_once_share_one_connection(embedded_host: Embedded, ssh_to: Opener) -> None:
    transport = ssh_to(embedded_host)
    told = await asyncio.gather(*(run(transport, f"echo {n}") for n in range(MAX_CHANNELS)))
    assert [int(each.out) for each in told] == list(range(MAX_CHANNELS))
    assert embedded_host.server.accepted() == 1


async def test_the_next_channel_needs_no_second_handshake(sshd_host: Real, ssh_to: Opener) -> None:
    transport = ssh_to(sshd_host)
    await run(transport, "true")
    await run(transport, "true")
    assert sshd_host.connected() == 1


async def test_a_connection_carries_eight_channels_and_the_next_gets_another(
    embedded_host: Embedded, ssh_to: Opener
) -> None:
    transport = ssh_to(embedded_host)
    channels = await asyncio.gather(*(start(transport, "cat") for _ in range(2 * MAX_CHANNELS + 1)))
    assert sorted(each.sessions for each in embedded_host.server.connections()) == [1, 8, 8]
    for channel, _ in channels:
        channel.close()


@pytest.mark.parametrize("sessions", [1, 3])
async def test_a_server_with_fewer_sessions_per_connection_gets_more_connections(
    sshd_host: Real, ssh_to: Opener, sessions: int
) -> None:
    sshd_host.server.restart(MaxSessions=str(sessions))
    transport = ssh_to(sshd_host)
    channels = await asyncio.gather(*(start(transport, "cat") for _ in range(6)))
    assert sshd_host.connected() == 6 // sessions
    for number, (channel, _) in enumerate(channels):
        channel.write(b"%d" % number)
    for number, (_, told) in enumerate(channels):
        await told.until(lambda told=told, number=number: told.out == b"%d" % number)  # type: ignore[misc]


async def test_a_cut_connection_ends_its_channels_with_an_error_and_the_next_open_reconnects(
    remote_host: Host, ssh_to: Opener
) -> None:
    transport = ssh_to(remote_host)
    channels = [await start(transport, "echo ready; cat") for _ in range(3)]
    for _, told in channels:
        await told.until(lambda told=told: told.out)  # type: ignore[misc]
    remote_host.cut()
    for _, told in channels:
        how = await told.end()
        assert how.status is None
        assert how.error is not None
    assert (await run(transport, "echo back")).out == b"back\n"


async def test_suspecting_a_channel_of_a_half_open_connection_tells_the_others_at_once(
    remote_host: Host, ssh_to: Opener
) -> None:
    transport = ssh_to(remote_host)
    one, one_told = await start(transport, "cat")
    _, other_told = await start(transport, "cat")
    remote_host.freeze()
    started = time.monotonic()
    one.suspect()
    assert (await one_told.end(2)).error is not None
    assert (await other_told.end(2)).error is not None
    assert (await run(transport, "echo new")).out == b"new\n"
    assert time.monotonic() - started < 2
    remote_host.thaw()


async def test_a_connection_that_is_dead_without_anybody_knowing_holds_up_an_open_for_seconds_only(
    remote_host: Host, ssh_to: Opener
) -> None:
    transport = ssh_to(remote_host)
    _, old_told = await start(transport, "cat")
    remote_host.freeze()
    started = time.monotonic()
    assert (await run(transport, "echo new")).out == b"new\n"
    assert time.monotonic() - started < REUSE_TIMEOUT + 3
    assert (await old_told.end(2)).error is not None
    remote_host.thaw()


async def test_a_silent_connection_is_noticed_within_fifteen_seconds(embedded_host: Embedded, ssh_to: Opener) -> None:
    """L6, the transport's part of it."""
    _, told = await start(ssh_to(embedded_host), "cat")
    embedded_host.freeze()
    assert (await told.end(15)).error is not None
    embedded_host.thaw()


async def test_a_connection_without_channels_is_closed_after_a_while(sshd_host: Real, ssh_to: Opener) -> None:
    transport = ssh_to(sshd_host, idle_timeout=0.2)
    channel, told = await start(transport, "cat")
    await run(transport, "true")
    connection = transport.connections[0]
    channel.close()
    await told.end()
    await eventually(lambda: not transport.connections and not connection.alive)
    assert (await run(transport, "echo again")).out == b"again\n"


async def test_a_caller_that_gives_up_leaves_no_place_on_the_connection_taken(
    embedded_host: Embedded, ssh_to: Opener
) -> None:
    transport = ssh_to(embedded_host)
    await run(transport, "true")
    embedded_host.server.behave(latency=0.2)
    for _ in range(2 * MAX_CHANNELS):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(transport.open("cat", Recorder()), 0.02)
    embedded_host.server.behave(latency=0.0)
    await eventually(lambda: not any(each.load for each in transport.connections))
    assert (await run(transport, "echo free")).out == b"free\n"
    # Two for those who gave up, and one more when the server has not yet freed their sessions.
    assert embedded_host.server.accepted() <= 3


async def test_a_caller_that_gives_up_does_not_spoil_the_connect_for_the_others(
    embedded_host: Embedded, ssh_to: Opener
) -> None:
    embedded_host.server.behave(auth_delay=0.3)
    transport = ssh_to(embedded_host)
    impatient = asyncio.create_task(transport.open("cat", Recorder()))
    patient = asyncio.create_task(run(transport, "echo there"))
    await asyncio.sleep(0)
    impatient.cancel()
    assert (await patient).out == b"there\n"
    assert embedded_host.server.accepted() == 1


async def test_a_host_that_hangs_is_given_up_after_the_timeout(embedded_host: Embedded, ssh_to: Opener) -> None:
    embedded_host.server.behave(hold_new=True)
    transport = ssh_to(embedded_host, connect_timeout=0.5)
    started = time.monotonic()
    with pytest.raises(UnreachableError, match="timed out"):
        await transport.open("true", Recorder())
    assert time.monotonic() - started < 3


async def test_closing_the_transport_while_it_connects_is_an_error_of_those_who_wait(
    embedded_host: Embedded, ssh_to: Opener
) -> None:
    embedded_host.server.behave(hold_new=True)
    transport = ssh_to(embedded_host)
    waiting = [asyncio.create_task(transport.open("true", Recorder())) for _ in range(2)]
    await eventually(embedded_host.connected)
    await transport.close()
    for each in waiting:
        with pytest.raises(UnreachableError, match="closed on this side"):
            await each


async def test_closing_the_transport_ends_its_channels(remote_host: Host, ssh_to: Opener) -> None:
    transport = ssh_to(remote_host)
    _, told = await start(transport, "cat")
    await transport.close()
    assert (await told.end(5)).error is not None


async def test_a_hundred_megabytes_arrive_whole(sshd_host: Real, ssh_to: Opener) -> None:
    class Count(Recorder):
        size = 0

        def data_received(self, data: bytes) -> None:
            self.size += len(data)

    told = Count()
    await ssh_to(sshd_host).open("head -c 100000000 /dev/zero", told)
    assert (await told.end(60)).status == 0
    assert told.size == 100_000_000
