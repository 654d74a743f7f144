"""One command of ours on a host, from the login shell to the first byte that means something.

How our code gets to run, whatever the account's shell is and whatever its profile does:

- The command line is the same constant text for every host and every request; all else goes over standard input.
- It has the account's own shell, as a login shell, run our interpreter, so that PATH, modules and conda are those of
  a login. That shell gets an empty standard input and has its output sent to standard error: what a profile prints,
  or tries to read, never touches our stream. (C shells close the descriptors that this takes, and cannot be login
  shells that run a command. They run without, and are told to read `~/.login`.)
- The interpreter reads `bundle/loader.py` from standard input, and the loader a request. The stream proper begins
  behind a random marker; what comes before it is a profile's after all, and goes to the debug log.
"""

from __future__ import annotations

import json
import logging
import os
import struct
from collections.abc import Callable
from typing import Any

from .staging import bundle, loader
from .transport import Buffer, Channel, Exit, Transport

log = logging.getLogger("albedo_provisioner.hosts")

_COMMAND = (
    "exec /bin/sh -c '"
    "IFS= read -r ALBEDO_RUN; IFS= read -r ALBEDO_PYTHON; IFS= read -r ALBEDO_LABEL; "
    "s=${SHELL:-/bin/sh}; ALBEDO_SPLIT=yes; "
    "case $s in *csh) ALBEDO_SPLIT=;; esac; "
    "export ALBEDO_RUN ALBEDO_PYTHON ALBEDO_LABEL ALBEDO_SPLIT; "
    'if [ "$ALBEDO_SPLIT" ]; then exec 7<&0 8>&1; '
    'exec "$s" -l -c "exec /bin/sh -c \\"\\$ALBEDO_RUN\\"" </dev/null >&2; '
    'else exec "$s" -c "if ( -r ~/.login ) source ~/.login; exec /bin/sh -c \\"\\$ALBEDO_RUN\\""; fi'
    "'"
)

_NO_PYTHON = "albedo: there is no such interpreter"

_RUN = (
    "p=$ALBEDO_PYTHON; l=$ALBEDO_LABEL; s=$ALBEDO_SPLIT; "
    "unset ALBEDO_RUN ALBEDO_PYTHON ALBEDO_LABEL ALBEDO_SPLIT; "
    'case $p in "~/"*) p=$HOME/${p#??};; "") p=python3;; esac; '
    'if [ "$s" ]; then exec <&7 >&8 7<&- 8>&-; fi; '
    # Said on the stream, because the end of the command may not be seen: something that a profile left in the
    # background may hold the channel open.
    f'command -v "$p" >/dev/null 2>&1 || {{ echo "{_NO_PYTHON}"; echo "$p: not found" >&2; exit 127; }}; '
    # -S: the site directories take a while to set up, and only some requests need them.
    'exec "$p" -S -c \'import os;exec(b"".join(iter(lambda:os.read(0,1)or b"\\0",b"\\0")))\' "$l"'
)

_NOISE = 64 * 1024
"""Most bytes of a profile's output to remember, for the error message if nothing else comes."""

_MOST_NOISE = 4 << 20
"""Bytes without a marker after which the host is taken not to run our command at all."""


class Visit:
    """A request to a host and the byte stream that follows from it. Used on the I/O thread's loop.

    Args:
        transport: the way to the host.
        request: what the bundle's `entry.py` is to do.
        python: interpreter there, a path (`~/` allowed) or a name; None for the login shell's `python3`.
        received: called with the bytes of the stream.
        closed: called once, at the end, with how it ended and what the host printed on the side (last part).
        writable: called with False when writing should pause, with True when it may go on.
    """

    def __init__(
        self,
        transport: Transport,
        request: dict[str, Any],
        python: str | None,
        *,
        received: Callable[[bytes], None],
        closed: Callable[[Exit, str], None],
        writable: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self.host = transport.host
        self._transport = transport
        self._request = request
        self._python = python
        self._received = received
        self._closed = closed
        self._writable = writable
        self._marker = b"\0albedo:" + os.urandom(12).hex().encode() + b"\n"
        self._before = bytearray()  # what came before the marker
        self._marked = False
        self._closed_already = False
        self._noise = bytearray()
        self.channel: Channel | None = None

    async def open(self) -> None:
        """Go there and send the request.

        Raises:
            HostError: the host cannot be reached or does not let us in.
        """
        request = {**self._request, "marker": self._marker.decode(), "bundle": bundle().digest}
        data = json.dumps(request).encode()
        lines = [_RUN, self._python or "", f"albedo {self._request['do']} {self._request.get('kernel_id', '')}"]
        self.channel = await self._transport.open(_COMMAND, self)
        self.channel.write(
            "".join(f"{line}\n" for line in lines).encode() + loader() + b"\0" + struct.pack("!I", len(data)) + data
        )

    def send_bundle(self) -> int:
        """Send the archive, which the host asked for with the report `need: bundle`; return its size in bytes."""
        archive = bundle().archive
        self.write(struct.pack("!I", len(archive)), archive)
        return len(archive)

    @property
    def printed(self) -> str:
        """What the host printed on the side so far (its last part)."""
        return self._noise.decode("utf-8", "replace").strip()

    @property
    def last_words(self) -> str:
        """What the host printed last on the side, as a sentence; empty when it printed nothing."""
        printed = self.printed
        return f"It printed: {printed.splitlines()[-1]}" if printed else ""

    def write(self, *buffers: Buffer) -> None:
        """Send bytes on the stream."""
        if self.channel is not None:
            self.channel.write(*buffers)

    def close(self) -> None:
        """End it now; `closed` follows."""
        if self.channel is not None:
            self.channel.close()

    def retire(self) -> None:
        """Use the connection that it runs on for nothing new."""
        if self.channel is not None:
            self.channel.retire()

    def suspect(self) -> None:
        """End it, and use the connection that it ran on for nothing new."""
        if self.channel is not None:
            self.channel.suspect()

    # -- ChannelReceiver -----------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Pass on what comes behind the marker."""
        if self._marked:
            self._received(data)
            return
        self._before += data
        at = self._before.find(self._marker)
        if at < 0 and _NO_PYTHON.encode() + b"\n" in self._before:
            self._closed_already = True
            self._closed(Exit(127), f"{self._python or 'python3'}: not found")
            self.close()
            return
        if at < 0:
            if len(self._before) > _MOST_NOISE:
                self.close()
            return
        self._marked = True
        self._print(bytes(self._before[:at]))
        rest = bytes(self._before[at + len(self._marker) :])
        self._before.clear()
        if rest:
            self._received(rest)

    def stderr_received(self, data: bytes) -> None:
        """Keep what the host prints on the side for whoever looks for a cause."""
        self._print(data)

    def pause_writing(self) -> None:
        """Tell the owner to wait."""
        self._writable(False)

    def resume_writing(self) -> None:
        """Tell the owner to go on."""
        self._writable(True)

    def closed(self, how: Exit) -> None:
        """Tell the owner how it ended."""
        if self._closed_already:
            return
        self._print(bytes(self._before))
        self._closed(how, self.printed)

    def _print(self, data: bytes) -> None:
        if data:
            log.debug("%s printed: %s", self.host, data.decode("utf-8", "replace").rstrip())
            self._noise += data
            del self._noise[:-_NOISE]
