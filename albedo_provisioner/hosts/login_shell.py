"""The way of a command of ours from a host's ssh server to Python, by the account's login shell; and without it.

What an ssh server runs goes through the account's shell, which reads files of the account's first: those for every
command (`~/.bashrc` under many servers, `~/.zshenv`, `config.fish`, `~/.cshrc`). That is what `ssh HOST COMMAND` does.
We want more of it: PATH, modules and conda as a login has them, so the shell is run once more, as a login shell.

- The command line is the same constant text for every host and every request; all else goes over standard input.
- It begins with empty lines. Whatever reads a line of them before us (a file that asks something) gets what a person
  would give it by pressing Enter.
- The login shell gets an empty standard input and has its output sent to standard error: what a profile prints, or
  tries to read, never touches our stream. (C shells close the descriptors that this takes, and cannot be login shells
  that run a command. They run without, and are told to read `~/.login`.)
- While the login shell is busy, a watcher beside it sends a byte every second on standard error. The client learns from
  it that the host is there and its profile takes long; and when nobody takes the byte any more, it ends the shell and
  what that has started, which would otherwise stay for as long as it likes.
- A profile that ends the shell, has it run something else or never comes to an end can be left out (`Profiles`).
"""

from __future__ import annotations

import time

from .io_thread import IOThread

COMMAND = """exec /bin/sh -c 'while IFS= read -r l; do case $l in *"# albedo") eval "$l"; exit;; esac; done'"""

BEAT = b"\x16"
"""What the watcher says: "synchronous idle", which nothing prints by chance."""

BEGUN = b"albedo: the login shell is done\n"
"""Said on the stream when the shells are behind us. What fails from then on is no profile's fault."""

NO_PYTHON = b"albedo: there is no such interpreter\n"
"""Said on the stream, because the end of the command may not be seen: something that a profile left in the background
may hold the channel open."""

PATIENCE = 15.0
"""Seconds that a login profile may take before it is left out."""

FORGOTTEN_AFTER = 600.0
"""Seconds after which a profile that was left out is tried again by what wants its settings."""

_QUESTIONS = 40
"""How many questions of one shell are answered by an empty line."""

# Some shells read the rest of our lines as a script, when a file has put them in the place of the first one (`exec zsh`
# in ~/.bashrc): this line does the same there.
_FIRST = 'IFS= read -r ALBEDO_ENTER; eval "$ALBEDO_ENTER" # albedo'

_WATCH = (
    "(trap '' PIPE; trap 'exec 2>/dev/null; kill $!; wait $!; exit 0' TERM; exec </dev/null >/dev/null 7<&- 8>&-; "
    "while :; do "
    "sleep 1 2>/dev/null & wait $! || exit; kill -0 $$ 2>/dev/null || exit; printf '\\026' >&2 || break; "
    "done; "
    # Nobody listens. The group is the server's for this command alone, if there is one of this number at all.
    "trap '' TERM; exec 2>/dev/null; "
    "kill -s TERM -- -$$ || kill -s TERM $$; sleep 1; kill -s KILL -- -$$ || kill -s KILL $$) &"
)

_ENTER = (
    "IFS= read -r ALBEDO_RUN; IFS= read -r ALBEDO_PYTHON; IFS= read -r ALBEDO_LABEL; IFS= read -r ALBEDO_LOGIN; "
    "unset ALBEDO_ENTER; export ALBEDO_RUN ALBEDO_PYTHON ALBEDO_LABEL; "
    'if [ -z "$ALBEDO_LOGIN" ]; then exec /bin/sh -c "$ALBEDO_RUN"; fi; '
    f"{_WATCH} ALBEDO_WATCH=$!; export ALBEDO_WATCH; "
    "case ${SHELL:-/bin/sh} in "
    '*csh) exec "$SHELL" -c "if ( -r ~/.login ) source ~/.login; exec /bin/sh -c \\"\\$ALBEDO_RUN\\"";; '
    "esac; "
    "ALBEDO_SPLIT=yes; export ALBEDO_SPLIT; exec 7<&0 8>&1; "
    'exec "${SHELL:-/bin/sh}" -l -c "exec /bin/sh -c \\"\\$ALBEDO_RUN\\"" </dev/null >&2'
)

_RUN = (
    "p=$ALBEDO_PYTHON; l=$ALBEDO_LABEL; s=$ALBEDO_SPLIT; "
    "unset ALBEDO_RUN ALBEDO_PYTHON ALBEDO_LABEL ALBEDO_SPLIT; "
    # (The loader sees to it that no zombie is left: it is the parent, by all those exec.)
    'if [ "$ALBEDO_WATCH" ]; then kill "$ALBEDO_WATCH" 2>/dev/null; fi; '
    'case $p in "~/"*) p=$HOME/${p#??};; "") p=python3;; esac; '
    'if [ "$s" ]; then exec <&7 >&8 7<&- 8>&-; fi; '
    f'echo "{BEGUN.decode().strip()}"; '
    'command -v "$p" >/dev/null 2>&1 || '
    f'{{ echo "{NO_PYTHON.decode().strip()}"; echo "$p: not found" >&2; exit 127; }}; '
    # -S: the site directories take a while to set up, and only some requests need them.
    'exec "$p" -S -c \'import os;exec(b"".join(iter(lambda:os.read(0,1)or b"\\0",b"\\0")))\' "$l"'
)


def first_lines(python: str | None, label: str, login: bool) -> bytes:
    """Return what goes over standard input ahead of the loader.

    Args:
        python: interpreter there, a path (`~/` allowed) or a name; None for the (login) shell's `python3`.
        label: what the process list of the host shows.
        login: by a login shell.
    """
    questions = [""] * _QUESTIONS
    # A C shell that is run once more reads from here too. Those that it leaves over are empty lines to Python.
    lines = [*questions, _FIRST, _ENTER, _RUN, python or "", label, "yes" if login else "", *questions]
    return "".join(f"{line}\n" for line in lines).encode()


class Profiles:
    """Which hosts' login profiles are left out, and why. Used on the I/O thread; `Profiles.get()` is the process's."""

    def __init__(self) -> None:
        self._left_out: dict[str, tuple[str, float]] = {}

    @classmethod
    def get(cls) -> Profiles:
        """Return the one that belongs to the running I/O thread."""
        return IOThread.get().only(cls)

    def why_left_out(self, host: str, wanted: bool) -> str:
        """Return why a host's profile is left out, in words that follow "its login profile"; empty if it is not.

        Args:
            host: as its transport spells it.
            wanted: its settings matter to the request: then it is tried again after a while, as it may be mended.
        """
        why, when = self._left_out.get(host, ("", 0.0))
        return "" if wanted and time.monotonic() - when > FORGOTTEN_AFTER else why

    def leave_out(self, host: str, why: str) -> bool:
        """Remember that a host works without its profile and not with it; whether that is news."""
        known, _ = self._left_out.get(host, ("", 0.0))
        self._left_out[host] = (why, time.monotonic())
        return known != why

    def take(self, host: str) -> None:
        """Remember that a host works with its profile."""
        self._left_out.pop(host, None)
