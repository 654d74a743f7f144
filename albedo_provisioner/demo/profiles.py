"""What a login shell reads in a fresh home, and the greetings that people put there."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

# One per family of shells. bash falls back to ~/.profile as long as there is no ~/.bash_profile.
LOGIN_FILES = (".profile", ".zprofile", ".login", ".config/fish/config.fish")


def write_profiles(home: Path, first_on_path: str | None) -> None:
    """Write the login files of sh, bash, zsh, tcsh and fish into `home`.

    Args:
        home: the home directory.
        first_on_path: a directory to put in front of PATH. It has to be done by the profile: `/etc/profile` of many
            systems sets PATH anew, so what the server puts into the environment does not survive a login shell.
    """
    directory = shlex.quote(first_on_path) if first_on_path else None
    posix = f"PATH={directory}:$PATH\nexport PATH\n" if directory else ""
    texts = {
        ".profile": posix,
        ".zprofile": posix,
        ".login": f"setenv PATH {directory}:$PATH\n" if directory else "",
        ".config/fish/config.fish": f"set -gx PATH {directory} $PATH\n" if directory else "",
        ".zshrc": "",  # an interactive zsh without one asks the person to make one
    }
    for name, text in texts.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def greet(home: Path, text: str, files: Sequence[str] = LOGIN_FILES) -> None:
    """Let login files print `text`, on standard output and on standard error.

    Args:
        home: the home directory.
        text: one or more lines.
        files: names relative to the home. A `.bash_profile` that does not exist yet starts by reading `.profile`,
            as people's own do.
    """
    quoted = [shlex.quote(line) for line in text.splitlines()]
    # `echo a` and `sh -c '... >&2'` mean the same in all five shells; `>&2` alone does not in tcsh.
    lines = [f"echo {line}\nsh -c 'echo \"$1\" >&2' greeting {line}\n" for line in quoted]
    for name in files:
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        if name == ".bash_profile" and not before:
            before = '[ -f "$HOME/.profile" ] && . "$HOME/.profile"\n'
        path.write_text(before + "".join(lines), encoding="utf-8")
