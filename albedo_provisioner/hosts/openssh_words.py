"""What the `ssh` program says in its log (at LogLevel DEBUG1), and what that means.

The log is ssh's own word and nobody else's: it goes to a pipe of its own, so nothing that a host prints is taken for
it. What is learned goes into the same `Attempt` as with ssh in process, and the same errors come of it (`ssh_errors`).
"""

from __future__ import annotations

import os
import re
import socket

import asyncssh

from ..errors import AlbedoError
from .ssh_config import config_complaint, config_error
from .ssh_errors import Attempt, JumpHostError, key_kind, last_line, translate
from .transport import Exit

# Lines kept for the message in case of failure, and how much of each.
MOST_LINES = 50
MOST_CHARACTERS = 500

# What ssh says in passing. The last line that is none of these is the reason when it ends.
_ASIDE = re.compile(
    r"debug\d: |Authenticated to |Transferred: |Bytes per second: |Warning: Permanently added |Pseudo-terminal "
    r"|Authenticated using |Connection closed by UNKNOWN |\*\* |\s*$|.*\[pre-?auth\]"
)

_STEPS = (
    ("debug1: Connection established", "greeting its ssh server"),
    ("debug1: SSH2_MSG_KEXINIT sent", "agreeing on keys"),
    ("debug1: SSH2_MSG_SERVICE_ACCEPT received", "signing in"),
    ("Authenticated to ", "opening a channel"),
)

_SYSTEM_ERRORS = {os.strerror(number): number for number in range(1, 134)}


class Words:
    """Takes ssh's log, line by line.

    Args:
        attempt: where to note what is learned while connecting.

    Attributes:
        opened: whether the host runs the command now.
        jumps: whether ssh reaches the host through another ssh of its own (ProxyJump).
        lines: what was said and is no debugging aid, the newest last.
        revoked: under which name and port (None for 22) a host key is known that is revoked, if that was the trouble.
    """

    def __init__(self, attempt: Attempt) -> None:
        self.opened = False
        self.jumps = False
        self.lines: list[str] = []
        self.revoked: tuple[str, int | None] | None = None
        self._attempt = attempt
        self._signalled = False
        self._keys_allowed = False
        self._status: int | None = None

    @property
    def through_proxy(self) -> bool:
        """Whether another program makes the connection, and its words may be on ssh's standard error."""
        return bool(self._attempt.via)

    @property
    def reason(self) -> str:
        """The last thing that ssh said, for "it failed because"."""
        return self.lines[-1] if self.lines else "ssh ended without a word"

    def take(self, line: str) -> None:
        """Take one line of the log."""
        if not _ASIDE.match(line):
            self.lines.append(line.strip()[:MOST_CHARACTERS])
            del self.lines[:-MOST_LINES]
        if self.opened:
            self._take_end(line)
        else:
            self._take_beginning(line)

    def _take_end(self, line: str) -> None:
        if line.startswith("debug1: client_input_channel_req: ") and " rtype exit-signal " in line:
            self._signalled = True
        elif found := re.match(r"debug\d: (?:Exit status|.*Received exit status from master) (\d+)", line):
            self._status = int(found[1])
        elif line.startswith("debug2: ") and "Control master terminated unexpectedly" in line:
            self.lines.append("the connection of the master ended")

    def _take_beginning(self, line: str) -> None:
        attempt = self._attempt
        # The command has been asked for, by ssh itself or by the master for it. The host's own words come after.
        if line.startswith("debug1: Sending command: ") or " master session id: " in line:
            self.opened = True
            self.lines.clear()
            return
        for beginning, step in _STEPS:
            if line.startswith(beginning):
                attempt.step = step
        if found := re.match(r"debug1: Connecting to (\S+) (?:\[.*\] )?port (\d+)", line):
            attempt.address = f"{found[1]}:{found[2]}"
        elif found := re.match(r"debug1: Authenticating to (.+) as '(.*)'", line):
            attempt.user = found[2]
            attempt.address = found[1]
        elif found := re.match(r"debug1: Executing proxy command: (.*)", line):
            attempt.proxy_command = found[1]
            attempt.via = attempt.via or "its ProxyCommand"
        elif line.startswith("debug1: Setting implicit ProxyCommand from ProxyJump: "):
            attempt.via = f"its jump host {line.split()[-1]}"
            self.jumps = True
        elif attempt.via and (found := re.match(r"debug1: kex_exchange_identification: banner line \d+: (.+)", line)):
            attempt.proxy = attempt.proxy or last_line(found[1])  # a proxy's words for its client, such as HTTP's
        elif found := re.match(r"debug1: Server host (?:key|certificate): (\S+) (SHA256:[^\s,]+)", line):
            # A certificate's fingerprint is that of the key in it.
            attempt.untrusted = f"{key_kind(found[1].replace('-cert-v01', ''))} {found[2]}"
        elif line.startswith("debug1: Next authentication method: publickey"):
            self._keys_allowed = True
        elif line.startswith("Authenticated using ") and "partial success" in line:
            attempt.take_partial_success()
        elif found := re.match(r"The \S+ host key for (?:\[(.+)\]:(\d+)|(.+)) is marked as revoked", line):
            self.revoked = found[1] or found[3], int(found[2]) if found[2] else None
        elif "you have requested strict checking" in line:
            attempt.strict = True
        elif found := re.match(r"debug1: Authentications that can continue: (\S*)", line):
            attempt.methods[:] = found[1].split(",")
        elif found := re.match(r"debug1: Offering public key: .* (\S+) (SHA256:\S+)(.*)", line):
            origin = " (agent)" if found[3].split()[-1:] == ["agent"] else ""
            attempt.offered.append(f"{found[1]} {found[2]}{origin}")
        elif line.startswith("debug1: Server accepts key: "):
            attempt.unused = True  # until it has signed with it
        elif found := re.match(r"debug1: Trying private key: (.+)", line):
            attempt.unused |= os.path.exists(found[1])  # it would have been offered if it could be read
        elif found := re.match(r"(?:no such identity: |Load key \")(.+?)\"?: (.+)", line):
            attempt.notes.append(f"{found[1]}: {found[2].lower()}")
        elif found := re.match(r"(?:Offending|debug1: .*offending) (\S+) key in (\S+)", line):
            attempt.known.append(f"the {found[1]} key in {found[2]}")

    def refusal(self) -> AlbedoError:
        """Return the error for an ssh that ended before the host ran the command."""
        attempt, reason = self._attempt, self.reason
        attempt.mute = self.through_proxy and attempt.step == "connecting"
        everything = "\n".join(self.lines)
        error: Exception
        if attempt.via and attempt.proxy and attempt.step == "connecting":
            # The proxy or jump host failed, and said why itself.
            error = JumpHostError(attempt.proxy)
        elif complaint := config_complaint(self.lines):
            return config_error(complaint)
        elif "Permission denied (" in reason or "Too many authentication failures" in everything:
            if "publickey" in attempt.methods and not self._keys_allowed and not attempt.accepted:
                attempt.forbids = "PubkeyAuthentication no (or PreferredAuthentications without publickey)"
            error = asyncssh.PermissionDenied("Permission denied")
        elif "Host key verification failed" in everything or "REVOKED HOST KEY" in everything:
            revoked = "REVOKED HOST KEY" in everything
            if revoked:
                attempt.untrusted = ""
            elif "HOST IDENTIFICATION HAS CHANGED" in everything and not attempt.known:
                attempt.known.append("another key")
            error = asyncssh.HostKeyNotVerifiable("Host key is revoked" if revoked else reason)
        elif found := re.search(r"Could not resolve hostname (.+?): (.+)", everything):
            attempt.address = attempt.address or f"{found[1]}:22"
            error = socket.gaierror(socket.EAI_NONAME, found[2].lower())
        elif found := re.search(r"connect to host (.+) port (\d+): (.+)", everything):
            attempt.address = f"{found[1]}:{found[2]}"
            number = _SYSTEM_ERRORS.get(found[3])
            error = OSError(number, found[3]) if number else OSError(found[3].lower())
        elif "no matching" in reason.lower():
            error = asyncssh.KeyExchangeFailed(reason)
        elif "open failed" in reason:
            error = asyncssh.ChannelOpenError(asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, reason)
        else:
            error = asyncssh.ConnectionLost(reason)
        return translate(error, attempt)

    def ending(self, returncode: int) -> Exit:
        """Return what the end of ssh says about the command it ran."""
        if returncode < 0:
            return Exit(None, error=ConnectionError(f"ssh was ended by signal {-returncode}"))
        if returncode != 255 or self._status == 255:
            return Exit(returncode)
        if self._signalled:
            return Exit(None, signal="unknown")  # the program does not say which
        # A master does not say that a signal ended the command: that looks like the end of the connection.
        return Exit(None, error=ConnectionError(self.reason if self.lines else "the connection ended"))
