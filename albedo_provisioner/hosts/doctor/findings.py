"""What examining a host brings to light; plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OK, NOTE, PROBLEM = "ok", "note", "problem"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        check: what: "config", "ssh", "name", "connection", "sign-in", "login", "python", "memory", "files",
            "processes", "packages", "home", "runtime", "logout", "folder", "kernels", "round trip", "throughput",
            "clock", "sessions" or "forwarding".
        state: "ok", "note" (worth knowing, and kernels work all the same) or "problem".
        text: what was found, in a sentence or a part of one.
        advice: what to do about it; empty where there is nothing to do.
        blocks: whether it keeps a kernel from starting.
        facts: the figures behind the text, for programs: plain JSON; bytes, seconds, and bytes a second.
    """

    check: str
    state: str
    text: str
    advice: str = ""
    blocks: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return {
            "check": self.check,
            "state": self.state,
            "text": self.text,
            "advice": self.advice,
            "blocks": self.blocks,
            "facts": dict(self.facts),
        }


def ok(check: str, text: str, **facts: Any) -> Finding:
    """Return a finding of something that is well."""
    return Finding(check, OK, text, facts=facts)


def note(check: str, text: str, advice: str = "", **facts: Any) -> Finding:
    """Return a finding that is worth knowing."""
    return Finding(check, NOTE, text, advice, facts=facts)


def problem(check: str, text: str, advice: str = "", blocks: bool = True, **facts: Any) -> Finding:
    """Return a finding of something that is not well."""
    return Finding(check, PROBLEM, text, advice, blocks, facts)


@dataclass(frozen=True)
class Diagnosis:
    """All that was found of a host.

    Attributes:
        host: as the user spells it; "this machine" for the local one.
        findings: in the order in which one depends on the other.
    """

    host: str
    findings: tuple[Finding, ...]

    @property
    def can_start(self) -> bool:
        """Whether nothing was found that keeps a kernel from starting there."""
        return not any(finding.blocks for finding in self.findings)

    def finding(self, check: str) -> Finding | None:
        """Return what was found in a check; None when it was not come to."""
        return next((finding for finding in self.findings if finding.check == check), None)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return {
            "host": self.host,
            "can_start": self.can_start,
            "findings": [finding.to_dict() for finding in self.findings],
        }
