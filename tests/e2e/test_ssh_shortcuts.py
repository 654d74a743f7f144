"""The shortcuts through asyncssh deliver the very same bytes as its own ways, however they are cut."""

from __future__ import annotations

import hashlib
import random
from collections.abc import AsyncIterator

import asyncssh
import pytest
from faces import Host, Real
from recorder import run, start

from albedo_provisioner.hosts import ssh_connect, ssh_shortcuts
from albedo_provisioner.hosts.ssh import SSHTransport
from albedo_provisioner.hosts.ssh_shortcuts import Inbound

# Random bytes, then what they should hash to, on standard error.
RANDOM = "head -c {size} /dev/urandom > bulk && cat bulk && sha256sum < bulk >&2 && rm bulk"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Inbound]:
    """Return the protocols made in the test, as they come."""
    protocols: list[Inbound] = []

    def remember(connection: object) -> object:
        protocol = ssh_shortcuts.protocol_for(connection)
        if isinstance(protocol, Inbound):
            protocols.append(protocol)
        return protocol

    monkeypatch.setattr(ssh_connect, "protocol_for", remember)
    return protocols


@pytest.fixture
async def transport(remote_host: Host) -> AsyncIterator[SSHTransport]:
    assert remote_host.alias is not None
    transport = SSHTransport(remote_host.alias)
    yield transport
    await transport.close()


async def check(transport: SSHTransport, size: int) -> None:
    told = await run(transport, RANDOM.format(size=size))
    assert len(told.out) == size
    assert told.err.split()[0].decode() == hashlib.sha256(told.out).hexdigest()


async def test_bulk_output_takes_the_short_way(transport: SSHTransport, made: list[Inbound]) -> None:
    """Fails when asyncssh has a version that nobody has tried this with: try, then raise FIRST_UNTESTED."""
    await check(transport, 20_000_000)
    assert made[0].bulk_packets * 65536 > 15_000_000


async def test_an_unknown_version_of_asyncssh_goes_its_own_way(
    transport: SSHTransport, made: list[Inbound], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asyncssh, "__version__", "99.0")
    await check(transport, 2_000_000)
    assert made == []


@pytest.mark.parametrize("most", [3, 700, 40_000, 200_000])
async def test_it_does_not_matter_where_the_stream_is_cut(
    transport: SSHTransport, made: list[Inbound], monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    pieces = random.Random(most)
    whole = Inbound.get_buffer
    monkeypatch.setattr(Inbound, "get_buffer", lambda self, hint: whole(self, hint)[: pieces.randint(1, most)])
    await check(transport, 20_000 * min(most, 500))


async def test_new_keys_in_the_middle_of_the_stream_are_taken(sshd_host: Real, made: list[Inbound]) -> None:
    sshd_host.server.restart(RekeyLimit="1M")
    assert sshd_host.alias is not None
    transport = SSHTransport(sshd_host.alias)
    await check(transport, 8_000_000)
    assert made[0].bulk_packets > 0
    await transport.close()


@pytest.mark.parametrize(
    "cipher", ["aes256-gcm@openssh.com", "chacha20-poly1305@openssh.com", "aes128-ctr", "aes128-cbc"]
)
async def test_ciphers_of_the_config_are_used_with_or_without_the_short_way(
    sshd_host: Real, made: list[Inbound], cipher: str
) -> None:
    sshd_host.server.restart(Ciphers=cipher)
    assert sshd_host.ssh_config is not None
    text = sshd_host.ssh_config.read_text()
    sshd_host.ssh_config.write_text(f"Ciphers {cipher}\n{text}")
    assert sshd_host.alias is not None
    transport = SSHTransport(sshd_host.alias)
    await check(transport, 5_000_000)
    assert (made[0].bulk_packets > 0) == ("gcm" in cipher)
    await transport.close()


async def test_a_forged_byte_ends_the_connection(
    transport: SSHTransport, made: list[Inbound], monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, told = await start(transport, "read line; head -c 10000000 /dev/zero; read line")
    updated = Inbound.buffer_updated

    def forge(self: Inbound, nbytes: int) -> None:
        if self.bulk_packets > 20:
            self._buffer[self._held + nbytes // 2] ^= 1
        updated(self, nbytes)

    monkeypatch.setattr(Inbound, "buffer_updated", forge)
    channel.write(b"\n")
    how = await told.end()
    assert isinstance(how.error, asyncssh.DisconnectError)
    assert not told.out.strip(b"\0")
