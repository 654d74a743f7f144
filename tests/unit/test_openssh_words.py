"""What the ssh program's log says, line by line, and which error comes of it. The logs are OpenSSH's own, shortened."""

from __future__ import annotations

import pytest

from albedo_provisioner.errors import AlbedoError, ConfigError, HostKeyError, SignInError, UnreachableError
from albedo_provisioner.hosts.openssh_words import Words
from albedo_provisioner.hosts.ssh_errors import Attempt

CONNECTED = """\
debug1: Reading configuration data /home/ann/.ssh/config
/home/ann/.ssh/config line 3: Unsupported option "rhostsrsaauthentication"
debug1: Connecting to gpu.example [192.0.2.7] port 2222.
debug1: Connection established.
debug1: Authenticating to gpu.example:2222 as 'ann'
debug1: SSH2_MSG_KEXINIT sent
debug1: Server host key: ssh-ed25519 SHA256:RGs7/M67EdX8981rWOBSDiKHDIYQkB9IjlZkvRJhiMU
"""
SIGNING_IN = """\
debug1: SSH2_MSG_SERVICE_ACCEPT received
debug1: Authentications that can continue: publickey,password
debug1: Next authentication method: publickey
debug1: Offering public key: /home/ann/.ssh/id ED25519 SHA256:GgjV5IXMFUP+D24YLq8TQ3TDl7dj3mty8ezGWiLBArY agent
debug1: Authentications that can continue: publickey,password
"""
OPENED = """\
Authenticated to gpu.example ([192.0.2.7]:2222) using "publickey".
debug1: Entering interactive session.
debug1: Sending command: exec /bin/sh
"""


def said(*texts: str) -> Words:
    words = Words(Attempt("gpu"))
    for line in "".join(texts).splitlines():
        words.take(line)
    return words


@pytest.mark.parametrize(
    ("log", "kind", "parts"),
    [
        (
            CONNECTED + SIGNING_IN + "ann@gpu.example: Permission denied (publickey,password).\n",
            SignInError,
            ["ann@gpu: Permission denied (publickey,password)", "GgjV5IXMFUP", "(agent)", "jupyter albedo login gpu"],
        ),
        (
            CONNECTED + "Host key verification failed.\n",
            HostKeyError,
            ["not known", "ED25519 SHA256:RGs7/M67EdX8981rWOBSDiKHDIYQkB9IjlZkvRJhiMU"],
        ),
        (
            CONNECTED
            + "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n"
            + "Offending ED25519 key in /home/ann/.ssh/known_hosts:7\nHost key verification failed.\n",
            HostKeyError,
            ["has changed", "/home/ann/.ssh/known_hosts:7"],
        ),
        (CONNECTED + SIGNING_IN + "Connection closed by 192.0.2.7 port 2222\n", UnreachableError, ["while signing in"]),
        ("ssh: connect to host gpu port 22: No route to host\n", UnreachableError, ["no route to host"]),
        (
            "ssh: Could not resolve hostname gpu: Name or service not known\n",
            UnreachableError,
            ["could not resolve hostname gpu: name or service not known"],
        ),
        (
            "/c: line 2: Bad configuration option: nosuch\n/c: terminating, 1 bad configuration options\n",
            ConfigError,
            ["/c: line 2: Bad configuration option: nosuch"],
        ),
        ("", UnreachableError, ["ssh ended without a word"]),
    ],
)
def test_an_end_before_the_command_runs_is_told_as_ssh_in_process_would(
    log: str, kind: type[AlbedoError], parts: list[str]
) -> None:
    error = said(log).refusal()
    assert type(error) is kind
    assert all(part in str(error) for part in parts), str(error)


@pytest.mark.parametrize(
    ("log", "returncode", "status", "signal", "broken"),
    [
        ("debug1: Exit status 0\n", 0, 0, None, ""),
        ("debug1: Exit status 255\n", 255, 255, None, ""),
        ("debug1: client_input_channel_req: channel 0 rtype exit-signal reply 0\n", 255, None, "unknown", ""),
        ("Timeout, server gpu not responding.\n", 255, None, None, "Timeout, server gpu not responding."),
        ("", -15, None, None, "signal 15"),
    ],
)
def test_an_end_of_the_command_is_told_apart_from_one_of_the_connection(
    log: str, returncode: int, status: int | None, signal: str | None, broken: str
) -> None:
    words = said(CONNECTED, SIGNING_IN, OPENED, log)
    assert words.opened
    how = words.ending(returncode)
    assert (how.status, how.signal) == (status, signal)
    assert (how.error is not None) == bool(broken)
    assert broken in str(how.error)


def test_a_master_tells_when_it_has_opened_the_channel_and_how_it_ended() -> None:
    words = said("debug1: mux_client_request_session: master session id: 2\n")
    assert words.opened
    words.take("debug2: Received exit status from master 255")
    assert words.ending(255).status == 255
    words = said("debug1: mux_client_request_session: master session id: 2\n")
    words.take("debug2: Control master terminated unexpectedly")
    assert "master" in str(words.ending(255).error)
