"""What git says of a folder, asked so that nothing of a repository's own is run, and nothing is written.

A repository's config can name programs for git to run (`core.fsmonitor`, `filter.*.clean`, hooks, `gpg.program`,
transports of a partial clone). Whoever unpacks an archive with a `.git` in it, and only looks at the folder, must not
have run them. The user's own config, and the system's, is trusted as ever. Repositories of other accounts are refused
by git itself (`safe.directory`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence

from .commands import Outcome, run_all

_SETTINGS = (
    "core.fsmonitor=",  # not "false": that was the name of a program before git 2.36
    "core.hooksPath=/dev/null",
    "log.showSignature=false",
    "protocol.allow=never",
    "safe.bareRepository=explicit",
    # The answers must be the same whatever the user prefers to see.
    "status.renames=true",
    "core.quotePath=false",
)

_ENVIRONMENT = {
    "GIT_OPTIONAL_LOCKS": "0",  # the index is not refreshed on disk
    "GIT_ALLOW_PROTOCOL": "none",  # missing objects are not fetched, by any program
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_PAGER": "cat",
    "LC_ALL": "C",  # its words are looked at
    "LANGUAGE": "C",
}

_FILTERS = r"^filter\..*\.(clean|process|required)$"
_USAGE = 129

LIST = ("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", ".")
# What .gitattributes call vendored or generated counts for nothing, as on GitHub.
NOT_OWN = (":(exclude,attr:linguist-vendored)", ":(exclude,attr:linguist-generated)")

STATUS = (
    "status",
    "--porcelain=v2",
    "-z",
    "--untracked-files=all",
    # A submodule counts when its commit is another one. Looking into it would obey its config.
    "--ignore-submodules=dirty",
)


class Git:
    """git in one folder.

    Args:
        folder: the folder.
        until: when git is killed, by `time.monotonic`.
    """

    def __init__(self, folder: bytes, until: float) -> None:
        self._folder = folder
        self._until = until
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        self._environment |= _ENVIRONMENT
        self._options = [option for setting in _SETTINGS for option in ("-c", setting)]

    def ask(self, questions: Mapping[str, Sequence[str]]) -> dict[str, Outcome]:
        """Ask git several things side by side; by name, what came of each."""
        commands = {name: ["git", *self._options, *words] for name, words in questions.items()}
        return run_all(commands, self._folder, self._environment, self._until)

    def switch_filters_off(self) -> str:
        """Have git ignore the filters that the repository's own config has; return why that is impossible, or ""."""
        scoped = self.ask({"": ("config", "--show-scope", "-z", "--get-regexp", _FILTERS)})[""]
        if scoped.status == _USAGE:  # before git 2.26: then all of them
            found = self.ask({"": ("config", "-z", "--get-regexp", _FILTERS)})[""]
            keys = {entry.partition(b"\n")[0] for entry in found.output.split(b"\0") if entry}
        else:
            found, parts = scoped, scoped.output.split(b"\0")
            keys = {
                entry.partition(b"\n")[0]
                for scope, entry in zip(parts[::2], parts[1::2], strict=False)
                if scope not in (b"system", b"global", b"command")
            }
        if found.status not in (0, 1):
            return found.words or f"git config ended with status {found.status}"
        for name in {key.rpartition(b".")[0].decode("utf-8", "surrogateescape") for key in keys}:
            if "=" in name:
                return f"{name}: a filter of that name cannot be switched off"
            for setting in ("clean=", "process=", "required=false"):
                self._options += ["-c", f"{name}.{setting}"]
        return ""


def complaints(found: Mapping[str, Outcome], expected: Sequence[str] = ()) -> list[str]:
    """Return what git complained of, each complaint once, but for the questions where that was to be expected."""
    said: dict[str, str] = {}
    for name, outcome in found.items():
        if not outcome.done and name not in expected:
            said.setdefault(outcome.words or f"exit status {outcome.status}", name)
    return [f"git ({name}): {words}" for words, name in said.items()]


def unread(outcome: Outcome) -> Iterator[tuple[bytes, str]]:
    """Return the folders, relative to the worktree's root, that git could not look into, and why; it goes on then."""
    for path, words in re.findall(rb"^warning: could not open directory '(.+?)/?': (.+)$", outcome.complaints, re.M):
        yield path, words.decode("utf-8", "replace").lower()


def is_no_repository(outcome: Outcome) -> bool:
    """Whether git says that the folder is in no repository. (That a worktree's has gone is said in other words.)"""
    return outcome.status == 128 and "not a git repository (or any" in outcome.words


def changes(status: bytes) -> Iterator[bytes]:
    """Return the paths in the output of `STATUS`, relative to the worktree's root: one for each file that differs.

    Of a renamed file it is the new path.
    """
    entries = iter(status.split(b"\0"))
    for entry in entries:
        kind = entry[:2]
        if kind == b"1 ":
            yield entry.split(b" ", 8)[8]
        elif kind == b"2 ":
            yield entry.split(b" ", 9)[9]
            next(entries, None)  # where it was before
        elif kind == b"u ":
            yield entry.split(b" ", 10)[10]
        elif kind == b"? ":
            yield entry[2:].rstrip(b"/")  # a repository in the repository ends with a slash
