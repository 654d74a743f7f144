"""Comparing what a kernel recorded with what a client received."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from albedo_provisioner.bundle.wire import CONTROL, IOPUB, SHELL, STDIN

from .clients import ClientProcess, Line

_CHANNELS = {SHELL: "shell", IOPUB: "iopub", STDIN: "stdin", CONTROL: "control"}


class Ledger:
    """What one kernel process writes down of its messages.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def read(self) -> list[Line]:
        """Return the lines that came since the last call."""
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


def compare(client: ClientProcess, rows: Sequence[Line], rule: str = "all") -> list[str]:
    """Return how what a client received differs from what its kernel sent, in words; nothing when it does not.

    Args:
        client: the client.
        rows: the kernel's lines since the last comparison.
        rule: "all": both rows are the same. "prefix": the client stopped listening, or the kernel was killed, at some
            point. "suffix": the client came at some point. "gaps": messages may be missing. The order, and that nothing
            comes twice or from nowhere, holds in each case.
    """
    found = []
    for channel, name in _CHANNELS.items():
        sent = [
            row
            for row in rows
            if not row["inbound"] and row["channel"] == channel and (channel == IOPUB or row["to"] == client.name)
        ]
        got = [line for line in client.received if line["channel"] == channel]
        if rule in ("prefix", "gaps"):  # what another kernel process sent is compared with its own ledger
            known = {row["digest"] for row in sent}
            got = [line for line in got if line["digest"] in known]
        found += _differences(f"{client.name} {name}", sent, got, rule)
        asked = [line for line in client.sent if line["channel"] == channel]
        heard = [row for row in rows if row["inbound"] and row["channel"] == channel and row["to"] == client.name]
        if channel != IOPUB:
            found += _differences(f"{client.name} to kernel {name}", asked, heard, "all" if rule == "suffix" else rule)
    return found


def _differences(where: str, sent: Sequence[Line], got: Sequence[Line], rule: str) -> list[str]:
    want = [row["digest"] for row in sent]
    have = [line["digest"] for line in got]
    if rule == "prefix":
        want = want[: len(have)]
    elif rule == "suffix":
        want = want[max(0, len(want) - len(have)) :]
    elif rule == "gaps":
        there = set(have)
        want = [each for each in want if each in there]
    if want == have:
        return []
    at = next((n for n, (a, b) in enumerate(zip(want, have, strict=False)) if a != b), min(len(want), len(have)))
    missing, extra = set(want) - set(have), set(have) - set(want)
    return [
        f"{where}: {len(want)} messages were sent and {len(have)} received; {len(missing)} missing, {len(extra)} not "
        f"of the kernel's, {len(have) - len(set(have))} twice; at {at}, sent {_around(sent, want, at)}, "
        f"received {_around(got, have, at)}"
    ]


def _around(lines: Sequence[Line], digests: Sequence[str], at: int) -> str:
    by_digest = {line["digest"]: line for line in lines}
    rows = [by_digest[each] for each in digests[max(0, at - 1) : at + 2]]
    return str([f"{row['type']} {row['size']} of …{row['id'][-6:]}" for row in rows])
