"""How hosts are spelled, whose keys are trusted, and which words a failure gets; without any network."""

from __future__ import annotations

import base64
import errno
import hmac
import os
import socket
from pathlib import Path

import asyncssh
import pytest

from albedo_provisioner.errors import ConfigError, HostKeyError, SignInError, UnreachableError
from albedo_provisioner.hosts.destination import Destination
from albedo_provisioner.hosts.ssh_config import ssh_command
from albedo_provisioner.hosts.ssh_errors import Attempt, NoAgreementError, key_text, translate
from albedo_provisioner.hosts.ssh_identity import Identities
from albedo_provisioner.hosts.ssh_trust import known_hosts_files, read_known_hosts, trusted_keys


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu", Destination("gpu")),
        ("ann@gpu", Destination("gpu", "ann")),
        ("ann@corp.org@gpu", Destination("gpu", "ann@corp.org")),
        ("gpu.example.org:2222", Destination("gpu.example.org", None, 2222)),
        (" ann@10.0.0.1:22 ", Destination("10.0.0.1", "ann", 22)),
        ("[::1]", Destination("::1")),
        ("ann@[fe80::1%eth0]:2222", Destination("fe80::1%eth0", "ann", 2222)),
        ("fe80::1%eth0", Destination("fe80::1%eth0")),
        ("::1", Destination("::1")),
        ("ssh://ann@gpu:2222/", Destination("gpu", "ann", 2222)),
    ],
)
def test_hosts_are_spelled_as_ssh_has_them(text: str, expected: Destination) -> None:
    assert Destination.parse(text) == expected


@pytest.mark.parametrize("text", ["", "ann@", "gpu:", "gpu:port", "[::1", "a:b:c:d@"])
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a host"):
        Destination.parse(text)


# -- trust


@pytest.fixture(scope="module")
def keys() -> list[asyncssh.SSHKey]:
    return [asyncssh.generate_private_key("ssh-ed25519") for _ in range(3)]


def line(pattern: str, key: asyncssh.SSHKey) -> str:
    return f"{pattern} {key.export_public_key().decode()}"


def test_a_key_is_known_for_its_name_and_port_and_a_hashed_name_counts(
    tmp_path: Path, keys: list[asyncssh.SSHKey]
) -> None:
    digest = hmac.digest(b"salt", b"secret.org", "sha1")
    hashed = f"|1|{base64.b64encode(b'salt').decode()}|{base64.b64encode(digest).decode()}"
    file = tmp_path / "known"
    file.write_text(line("gpu,10.1.1.1", keys[0]) + line("[gpu]:2222", keys[1]) + line(hashed, keys[2]))
    known = read_known_hosts([file])
    assert [key.public_data for key in trusted_keys(known, "gpu", None)[0]] == [keys[0].public_data]
    assert [key.public_data for key in trusted_keys(known, "gpu", 2222)[0]] == [keys[1].public_data]
    assert [key.public_data for key in trusted_keys(known, "10.1.1.1", None)[0]] == [keys[0].public_data]
    assert [key.public_data for key in trusted_keys(known, "secret.org", None)[0]] == [keys[2].public_data]
    assert trusted_keys(known, "other", None)[0] == []


def test_revoked_keys_and_authorities_are_kept_apart(tmp_path: Path, keys: list[asyncssh.SSHKey]) -> None:
    file = tmp_path / "known"
    file.write_text(line("@cert-authority *.org", keys[0]) + line("@revoked *", keys[1]))
    host, authorities, revoked = trusted_keys(read_known_hosts([file]), "gpu.org", None)
    assert host == []
    assert [key.public_data for key in authorities] == [keys[0].public_data]
    assert [key.public_data for key in revoked] == [keys[1].public_data]


def read_config(tmp_path: Path, text: str) -> asyncssh.SSHClientConnectionOptions:
    file = tmp_path / "config"
    file.write_text(text)
    return asyncssh.SSHClientConnectionOptions(config=[file], host="gpu", client_keys=None, agent_path=None)


@pytest.mark.parametrize(
    ("text", "user_files"),
    [
        ("", ["~/.ssh/known_hosts", "~/.ssh/known_hosts2"]),
        ("UserKnownHostsFile none", []),
        ("UserKnownHostsFile ~/one /two%%", ["~/one", "/two%"]),
    ],
)
def test_the_known_hosts_files_are_those_of_the_config_or_ssh_s_own(
    tmp_path: Path, text: str, user_files: list[str]
) -> None:
    config = read_config(tmp_path, f"{text}\nGlobalKnownHostsFile none\n").config
    found = known_hosts_files(config, lambda name: name.replace("%%", "%"))
    assert found == [Path(name).expanduser() for name in user_files]


# -- keys


def test_identity_settings_are_read_from_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    monkeypatch.setenv("OTHER_AGENT", "/run/other")
    default = Identities.from_config(read_config(tmp_path, "").config)
    assert (default.agent, default.configured, default.only) == ("/run/agent", False, False)
    named = Identities.from_config(
        read_config(tmp_path, "IdentityFile ~/a\nIdentityFile /b\nIdentitiesOnly yes\nIdentityAgent none").config
    )
    assert named == Identities([Path.home() / "a", Path("/b")], True, [], True, "")
    assert Identities.from_config(read_config(tmp_path, "IdentityAgent $OTHER_AGENT").config).agent == "/run/other"


def test_a_key_is_printed_as_ssh_prints_it(keys: list[asyncssh.SSHKey]) -> None:
    assert key_text("ssh-ed25519", keys[0].public_data) == f"ED25519 {keys[0].get_fingerprint()}"


# -- words


def test_the_command_to_run_names_our_config_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALBEDO_SSH_CONFIG", raising=False)
    assert ssh_command("gpu") == "ssh gpu"
    monkeypatch.setenv("ALBEDO_SSH_CONFIG", "/a b/config")
    assert ssh_command("gpu") == "ssh -F '/a b/config' gpu"


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (OSError(errno.ECONNREFUSED, "Connect call failed ('1.2.3.4', 22)"), UnreachableError, "connection refused"),
        (OSError("Multiple exceptions: [Errno 111] x, [Errno 101] y"), UnreachableError, "connection refused"),
        (OSError(errno.EHOSTUNREACH, "x"), UnreachableError, "no route to host"),
        (socket.gaierror(-2, "Name or service not known"), UnreachableError, "could not resolve hostname gpu.org"),
        (TimeoutError(), UnreachableError, "timed out while connecting"),
        (asyncssh.PermissionDenied("Permission denied for user"), SignInError, "Permission denied (none)"),
        (asyncssh.DisconnectError(2, "Too many authentication failures"), SignInError, "Too many authentication"),
        (asyncssh.ConnectionLost("Connection lost"), UnreachableError, "connection lost, while connecting"),
        (
            asyncssh.HostKeyNotVerifiable("Host key is revoked for host gpu"),
            HostKeyError,
            "host key of gpu is revoked, by a line",
        ),
        (asyncssh.KeyExchangeFailed("No matching cipher"), NoAgreementError, "no algorithm in common"),
        (asyncssh.ConfigParseError("/c line 3: what"), ConfigError, "/c line 3: what"),
    ],
)
def test_a_failure_gets_one_meaning_and_its_words(error: Exception, kind: type[Exception], words: str) -> None:
    if errno.ECONNREFUSED != 111 and "Errno" in str(error):
        error = OSError(str(error).replace("111", str(errno.ECONNREFUSED)))
    told = translate(error, Attempt("gpu", address="gpu.org:22"))
    assert type(told) is kind
    assert words.lower() in str(told).lower()
    assert "gpu" in str(told) or kind is ConfigError
    assert os.linesep not in str(told)


def test_a_name_that_is_not_found_may_have_addresses_of_the_other_family() -> None:
    error = socket.gaierror(socket.EAI_NODATA, "No address associated with hostname")
    assert "AddressFamily" not in str(translate(error, Attempt("gpu")))
    told = str(translate(error, Attempt("gpu", family="inet6")))
    assert told.endswith("your ssh config has AddressFamily inet6, which leaves other addresses out.")


@pytest.mark.parametrize(
    ("methods", "words"),
    [(["publickey"], "there was no key to offer"), (["password", "password"], "the server takes no keys")],
)
def test_no_key_is_missing_where_the_server_takes_none(methods: list[str], words: str) -> None:
    told = translate(asyncssh.PermissionDenied("Permission denied"), Attempt("gpu", methods=methods))
    assert words in str(told)
