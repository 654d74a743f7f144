"""The repository that a folder is in, as its host's git or jj tells of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..location import Location
from .listing import seconds
from .names import location_of, spelled


@dataclass(frozen=True)
class Repository:
    """The repository that a folder is in. A field that could not be found out is None, and `problems` say why.

    Attributes:
        host: the host as the user spells it; None for this machine.
        location: the folder's location; None when its path cannot be spelled as one.
        kind: "git", "jj", or None for a folder in no repository (a bare git repository is none: nobody works in it).
        root: the location of the worktree's or workspace's root.
        branch: git's current branch, also one without a commit yet; None when there is none.
        detached: whether git's HEAD is on no branch; None elsewhere.
        change: jj's id of the working copy's change.
        commit: the id of the current commit (jj: the working copy's); None before the first.
        unborn: whether git's branch has no commit yet; None when that is not known, and elsewhere.
        changed: how many files of the whole worktree differ from that commit, untracked ones included, those that git
            ignores left out; a submodule counts when its commit is another one. In jj's: how many differ from the
            working copy's parent; where git cannot be asked as well, as they were when jj was used last.
        touched: when it was last changed, in seconds since the epoch: the commit's time, or that of the newest file
            that differs; without a repository the folder's own.
        problems: what went wrong, in git's or jj's words.
    """

    host: str | None
    location: Location | None
    kind: str | None
    root: Location | None
    branch: str | None
    detached: bool | None
    change: str | None
    commit: str | None
    unborn: bool | None
    changed: int | None
    touched: float | None
    problems: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        branch = self.branch and self.branch.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        plain = {"location": spelled(self.location), "root": spelled(self.root), "branch": branch}
        return {**asdict(self), **plain, "problems": list(self.problems)}


def repository(host: str | None, facts: Mapping[str, Any]) -> Repository:
    """Return what a host's facts (`bundle/browsing.py`) say of a folder's repository."""
    root = facts.get("root")
    return Repository(
        host,
        location_of(host, str(facts["folder"])),
        facts["kind"],
        None if root is None else location_of(host, root),
        facts.get("branch"),
        facts.get("detached"),
        facts.get("change"),
        facts.get("commit"),
        facts.get("unborn"),
        facts.get("changed"),
        seconds(facts["touched"]),
        tuple(map(str, facts["problems"])),
    )
