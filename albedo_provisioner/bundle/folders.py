"""What there is in a folder of this host, entry by entry.

Paths are bytes throughout: a name on a file system need not be text in any encoding.
"""

from __future__ import annotations

import errno
import os
import queue
import stat
import threading
import time
from collections.abc import Callable
from typing import Any

from .entry import words_of

MOST_SCANNED = 100_000
"""Entries of a folder that are looked at, at most."""

_LOOK = 5.0
"""Seconds that looking at all the entries may take. What takes longer hangs: a file system whose server is gone."""

_WORKERS = 4


def text(name: bytes) -> str:
    """Return a name as Python has it: bytes that are no UTF-8 become lone surrogates, which can be turned back."""
    return name.decode("utf-8", "surrogateescape")


def entries(folder: bytes, files: bool, most: int) -> tuple[list[dict[str, Any]], bool]:
    """Return what is in a folder, folders first, and whether there is more.

    Args:
        folder: its path.
        files: what is no folder is wanted as well.
        most: entries to return.

    Raises:
        OSError: the folder cannot be read.
    """
    with os.scandir(folder) as scan:
        found = [entry for entry, _ in zip(scan, range(MOST_SCANNED + 1), strict=False)]
    more = len(found) > MOST_SCANNED
    described = _describe(found[:MOST_SCANNED])
    wanted = [each for each in described if files or each["kind"] == "folder" or each["error"]]
    wanted.sort(key=lambda each: (each["kind"] != "folder", each["name"].casefold(), each["name"]))
    kept = wanted[:most]
    _look(kept, lambda each: _add_details(folder, each))
    return kept, more or len(wanted) > most


def _describe(found: list[os.DirEntry[bytes]]) -> list[dict[str, Any]]:
    """Return what each entry is. Only a link has to be looked at for that."""
    described = []
    for entry in found:
        link = entry.is_symlink()
        each: dict[str, Any] = {"name": text(entry.name), "kind": "other", "link": link, "error": None, "entry": entry}
        described.append(each | {"size": None, "modified": None, "vcs": None})
    _look([each for each in described if each["link"]], _follow)
    for each in described:
        scanned = each.pop("entry")
        if not each["link"]:
            each["kind"] = "folder" if scanned.is_dir() else "file" if scanned.is_file() else "other"
    return described


def _follow(each: dict[str, Any]) -> None:
    each["kind"] = kind_of(os.stat(each["entry"].path).st_mode)


def kind_of(mode: int) -> str:
    """Return what something is by its mode: "folder", "file" or "other"."""
    return "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"


def _add_details(folder: bytes, each: dict[str, Any]) -> None:
    path = os.path.join(folder, each["name"].encode("utf-8", "surrogateescape"))
    if each["error"]:  # of a link that leads nowhere, what the link itself is
        each["modified"] = os.lstat(path).st_mtime_ns
        return
    status = os.stat(path)
    each["modified"] = status.st_mtime_ns
    if each["kind"] == "file":
        each["size"] = status.st_size
    elif each["kind"] == "folder":
        if not os.access(path, os.R_OK | os.X_OK):
            each["error"] = os.strerror(errno.EACCES).lower()
        each["vcs"] = vcs_of(path)


def vcs_of(folder: bytes) -> str | None:
    """Return which kind of repository has its root here, by what lies there: "jj", "git", or None."""
    if os.path.isdir(os.path.join(folder, b".jj")):
        return "jj"
    # A worktree and a submodule have a file of that name.
    return "git" if os.path.lexists(os.path.join(folder, b".git")) else None


def _look(found: list[dict[str, Any]], look: Callable[[dict[str, Any]], None]) -> None:
    """Look at entries; what comes of one that cannot be looked at, or takes too long, is noted in it as `error`."""
    waiting: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    for each in found:
        waiting.put(each)
    seen: set[int] = set()

    def work() -> None:
        while True:
            try:
                each = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                look(each)
            except OSError as error:
                each["error"] = words_of(error)
            seen.add(id(each))

    # Threads, because what hangs in a file system can be neither interrupted nor ended; several, so that one entry
    # that hangs does not hide the others.
    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(_WORKERS, len(found)))]
    until = time.monotonic() + _LOOK
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    for each in found:
        if id(each) not in seen:
            each["error"] = "no answer in time"
