"""What jj says of a folder, asked so that it writes nothing.

jj looks at the working copy, and records what it finds, with nearly every command. It is told not to: what it says of
files is how they were when somebody used it last (its last snapshot).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from .commands import Outcome, run_all

_OPTIONS = ("--ignore-working-copy", "--no-pager", "--color=never")

CHANGE = (
    *("log", "--no-graph", "-r", "@", "-T"),
    'change_id ++ " " ++ commit_id ++ " " ++ committer.timestamp().format("%s")',
)
"""The working copy's change and commit, and when that was made, in seconds since the epoch."""

# Of what jj can print only a template has a sign between names that cannot be part of one.
_NAMES = r'path ++ "\0"'

CHANGED = ("diff", "-r", "@", "-T", _NAMES, ".")
"""The files below the folder that differ from the parent, relative to the root. An older jj has no `-T` here."""

LIST = ("file", "list", "-r", "@", "-T", _NAMES, ".")
"""The files below the folder, likewise."""


def ask(questions: Mapping[str, Sequence[str]], folder: bytes, until: float) -> dict[str, Outcome]:
    """Ask jj several things side by side; by name, what came of each.

    Args:
        questions: the arguments.
        folder: the folder.
        until: when jj is killed, by `time.monotonic`.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "JJ_"))}
    commands = {name: ["jj", *_OPTIONS, *words] for name, words in questions.items()}
    return run_all(commands, folder, environment, until)


def complaints(found: Mapping[str, Outcome]) -> list[str]:
    """Return what jj complained of, each complaint once."""
    said = {
        outcome.words or f"exit status {outcome.status}": name for name, outcome in found.items() if not outcome.done
    }
    return [f"jj ({name}): {words}" for words, name in said.items()]


def paths(outcome: Outcome) -> list[bytes]:
    """Return the paths in the answer to `CHANGED` or `LIST`."""
    return [path for path in outcome.output.split(b"\0") if path]
