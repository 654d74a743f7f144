"""What a workspace's folder has for an agent: instructions and skills, in one look; and whether folders are there.

Facts alone: what they mean is decided by who asked.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

INSTRUCTIONS = ("AGENTS.md", "CLAUDE.md", "GEMINI.md", ".github/copilot-instructions.md")
"""Files that tell agents about a folder, as they are called in each folder."""

SKILLS = ".agents/skills"
"""The folder that has a folder with a `SKILL.md` for each skill."""

MOST_BYTES = 64 << 10
"""Bytes that are taken of a file of instructions."""

MOST_FRONT_MATTER = 4 << 10
"""Bytes that the front matter of a skill may have; a longer one is left out."""

MOST_BYTES_ALTOGETHER = 512 << 10
MOST_FILES = 200

_LOOK = 5.0
"""Seconds that the whole look may take. What takes longer hangs: a file system whose server is gone."""

_LOOK_AT_FOLDER = 3.0
_HIGHEST = 40  # folders between a workspace and its repository's root
_REPOSITORY = (".git", ".jj", ".hg")


def gather(folder: str) -> dict[str, Any]:
    """Return what there is, as plain JSON.

    Args:
        folder: an absolute path.

    Returns:
        `os`, `arch`, `home`, `folder`, `root` (the repository's, or None), `files` and `skills` (each with `path`,
        `text`, `cut`), those of the root first, `problems` (each with `path`, `detail`), and whether it was `late`: not
        finished in time.
    """
    found = _Found(folder)
    # A thread, because a process that hangs in a file system can be neither interrupted nor ended.
    thread = threading.Thread(target=found.look, daemon=True)
    thread.start()
    thread.join(_LOOK)
    system = os.uname()
    return {
        "os": system.sysname,
        "arch": system.machine,
        "home": os.path.expanduser("~"),
        "folder": folder,
        "root": found.root,
        "files": list(found.files),
        "skills": list(found.skills),
        "problems": list(found.problems),
        "late": thread.is_alive(),
    }


class _Found:
    """What a look has found so far."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.root: str | None = None
        self.files: list[dict[str, Any]] = []
        self.skills: list[dict[str, Any]] = []
        self.problems: list[dict[str, str]] = []
        self._known: set[tuple[int, int]] = set()
        self._left_out: list[str] = []
        self._room = MOST_BYTES_ALTOGETHER
        self._until = time.monotonic() + _LOOK

    def look(self) -> None:
        """Look at the folder, and those above it up to the repository's root."""
        folders = [self.folder]
        for above in _upwards(self.folder):
            if any(os.path.lexists(os.path.join(above, name)) for name in _REPOSITORY):
                self.root = above
                while folders[-1] != above:
                    folders.append(os.path.dirname(folders[-1]))
                break
        for each in reversed(folders):
            for name in INSTRUCTIONS:
                self._take(os.path.join(each, name), self.files)
        for each in reversed(folders):
            for path in self._skills(os.path.join(each, SKILLS)):
                self._take(path, self.skills, front_matter=True)
        if self._left_out:
            others = len(self._left_out) - 1
            more = f", and before {others:,} more skills and files" if others else ""
            self._problem(self._left_out[0], f"there is too much before it{more}")

    def _skills(self, folder: str) -> Iterator[str]:
        try:
            names = sorted(os.listdir(folder))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            self._problem(folder, error.strerror or str(error))
            return
        for name in names:
            if not name.startswith("."):
                yield os.path.join(folder, name, "SKILL.md")

    def _take(self, path: str, to: list[dict[str, Any]], front_matter: bool = False) -> None:
        """Read a file, if there is one, it is a plain one, of this repository, and there is room for it."""
        if time.monotonic() > self._until:
            return  # nobody waits for it any more
        try:
            taken = self._read(path, front_matter)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            self._problem(path, error.strerror or str(error))
            return
        if taken is not None:
            to.append(taken)

    def _read(self, path: str, front_matter: bool) -> dict[str, Any] | None:
        within = os.path.realpath(self.root or self.folder)
        real = os.path.realpath(path)
        if real != within and not real.startswith(within.rstrip("/") + "/"):
            os.lstat(path)  # it may not be there at all
            self._problem(path, "it is a link to outside of the repository")
            return None
        # Without O_NONBLOCK a pipe of that name would make us wait for its other end.
        with open(os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                self._problem(path, "it is no plain file")
                return None
            if (status.st_dev, status.st_ino) in self._known:
                return None  # one file by two names
            if len(self.files) + len(self.skills) >= MOST_FILES or self._room <= 0:
                self._left_out.append(path)
                return None
            most = 2 * MOST_FRONT_MATTER if front_matter else min(MOST_BYTES, self._room)
            data = file.read(most + 1)
        self._known.add((status.st_dev, status.st_ino))
        cut = len(data) > most
        if front_matter:
            data, ended = _front_matter(data)
            cut = len(data) > MOST_FRONT_MATTER or (cut and not ended)
            if cut:
                self._problem(path, f"its front matter is too long: it may have {MOST_FRONT_MATTER:,} bytes")
            if cut or not ended:
                data = b""
        self._room -= min(len(data), most)
        return {"path": path, "text": data[:most].decode("utf-8", "replace"), "cut": cut}

    def _problem(self, path: str, detail: str) -> None:
        if len(self.problems) < MOST_FILES:
            self.problems.append({"path": path, "detail": detail.lower()})


def _front_matter(data: bytes) -> tuple[bytes, bool]:
    """Return what stands between the first two lines of three dashes, if the first line is one, and whether it ends."""
    lines = data.removeprefix(b"\xef\xbb\xbf").splitlines(keepends=True)
    if not lines or lines[0].rstrip() != b"---":
        return b"", True
    end = next((number for number, line in enumerate(lines[1:], 1) if line.rstrip() == b"---"), None)
    return b"".join(lines[1:end]), end is not None


def _upwards(folder: str) -> Iterator[str]:
    for _ in range(_HIGHEST):
        yield folder
        above = os.path.dirname(folder)
        if above == folder:
            return
        folder = above


THERE, GONE, CLOSED, UNKNOWN = "there", "gone", "closed", "unknown"


def look(folders: Iterable[str]) -> list[list[str]]:
    """Say of each folder (an absolute path) whether it is there, and why not.

    Returns:
        "there", "gone", "closed" (the account may not enter it, or one above it) or "unknown", each with the reason.
    """
    answers: dict[str, list[str]] = {}

    def see(folder: str) -> None:
        answers[folder] = _see(folder)

    wanted: Sequence[str] = list(folders)
    threads = [threading.Thread(target=see, args=(folder,), daemon=True) for folder in dict.fromkeys(wanted)]
    until = time.monotonic() + _LOOK_AT_FOLDER
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    late = [UNKNOWN, f"its file system did not answer within {_LOOK_AT_FOLDER:g} s"]
    return [answers.get(folder, late) for folder in wanted]


def _see(folder: str) -> list[str]:
    try:
        status = os.stat(folder)
    except (FileNotFoundError, NotADirectoryError):
        return [GONE, "no such file or directory"]
    except PermissionError as error:
        return [CLOSED, (error.strerror or str(error)).lower()]
    except OSError as error:
        return [UNKNOWN, (error.strerror or str(error)).lower()]
    if not stat.S_ISDIR(status.st_mode):
        return [GONE, "not a folder"]
    return [THERE, ""] if os.access(folder, os.X_OK) else [CLOSED, os.strerror(errno.EACCES).lower()]
