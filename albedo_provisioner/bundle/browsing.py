"""What people want to know of a folder before they work in it: what is in it, its repository, what it is made of.

Facts alone are gathered here; what they mean is made out on the client's side, for local and remote folders alike.
"""

from __future__ import annotations

import base64
import json
import os
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from . import folders, git, jj
from .entry import must_be_usable, report, words_of
from .folders import text

COMMANDS = 10.0
"""Seconds that the programs that are asked have, all together."""

MOST_FILES = 50_000
"""Files that a preview looks at, at most."""

WALK = 5.0
"""Seconds that looking at a preview's files may take."""

_MOST_CHANGED = 10_000
"""Changed files whose times are looked at, at most."""

# A report has at most 1 MiB, and base64 makes 4 bytes of 3.
_PIECE = 512 << 10

_MOST_UNREAD = 20
"""Folders that cannot be read of which a preview tells, at most; the others are counted."""


def browse(request: dict[str, Any]) -> None:
    """Answer one question about the folder `cwd`, or one `below` it."""
    folder = path_of(request["cwd"], request.get("below", ""))
    must_be_usable(folder, to_read=request["want"] != "repo")
    answer: dict[str, Any]
    if request["want"] == "list":
        entries, more = folders.entries(folder, request["files"], request["most"])
        answer = {"entries": entries, "more": more}
    else:
        answer = {"repo": repository, "preview": preview}[request["want"]](folder, request["seconds"])
    send({"folder": text(folder), **answer})


def path_of(location: str, below: str) -> bytes:
    """Return the absolute path of a location's folder (it may begin with `~`), or of one below it."""
    path = os.path.expanduser(location.encode("utf-8", "surrogateescape"))
    return os.path.abspath(os.path.join(path, below.encode("utf-8", "surrogateescape")) if below else path)


def send(answer: dict[str, Any]) -> None:
    """Answer in as many pieces as it takes, which `browse/visit.py` puts together."""
    data = zlib.compress(json.dumps(answer).encode())
    pieces = [data[start : start + _PIECE] for start in range(0, len(data), _PIECE)]
    for piece in pieces[:-1]:
        report(piece=base64.b64encode(piece).decode())
    report(browsed=base64.b64encode(pieces[-1]).decode())


# Repositories


def _find(folder: bytes) -> tuple[str | None, bytes]:
    """Return what kind of repository a folder seems to be in, by what lies there, and its root."""
    here = os.path.realpath(folder)
    while True:
        kind = folders.vcs_of(here)
        if kind is not None or here == os.path.dirname(here):
            return kind, here
        here = os.path.dirname(here)


def repository(folder: bytes, seconds: float) -> dict[str, Any]:
    """Return the facts about the repository that a folder is in. What could not be found out is None.

    Args:
        folder: the folder.
        seconds: what the programs that are asked have, at most `COMMANDS`.
    """
    kind, root = _find(folder)
    until = time.monotonic() + min(COMMANDS, seconds)
    if kind == "jj":
        return _jj(folder, root, until)
    facts = _git(folder, until) if kind == "git" else None
    return facts or {"kind": None, "touched": os.stat(folder).st_mtime_ns, "problems": []}


def _git(folder: bytes, until: float) -> dict[str, Any] | None:
    asking = git.Git(folder, until)
    cannot = asking.switch_filters_off()
    questions: dict[str, tuple[str, ...]] = {
        "root": ("rev-parse", "--show-toplevel"),
        "branch": ("symbolic-ref", "--quiet", "HEAD"),
        "commit": ("log", "-1", "--format=%H %ct", "--no-show-signature"),
    }
    if not cannot:
        questions["changed"] = git.STATUS
    found = asking.ask(questions)
    if git.is_no_repository(found["root"]):
        return None  # what lies there only has the name
    facts: dict[str, Any] = {"kind": "git", "root": None, "commit": None, "changed": None, "touched": None}
    facts |= {"branch": None, "detached": None, "problems": [cannot] if cannot else []}
    root = found["root"].output.removesuffix(b"\n") if found["root"].done else None
    branch, commit, changed = found["branch"], found["commit"], found.get("changed")
    unborn = branch.done and commit.status == 128 and "does not have any commits yet" in commit.words
    expected = [*(["commit"] if unborn else []), *(["branch"] if branch.status == 1 else [])]
    facts["problems"] += git.complaints(found, expected)
    if root is not None:
        facts["root"] = text(root)
    if branch.done:
        facts["branch"], facts["detached"] = text(branch.output.strip().removeprefix(b"refs/heads/")), False
    elif branch.status == 1:
        facts["detached"] = True
    facts["unborn"] = True if unborn else (False if commit.done else None)
    times = []
    if commit.done:
        digest, seconds = commit.output.split()
        facts["commit"] = text(digest)
        times.append(int(seconds) * 1_000_000_000)
    if changed is not None and changed.done and root is not None:
        paths = list(git.changes(changed.output))
        facts["changed"] = len(paths)
        times += _times(root, paths[:_MOST_CHANGED])
        facts["touched"] = max(times, default=None)
    return facts


def _times(root: bytes, paths: list[bytes]) -> Iterator[int]:
    for path in paths:
        try:
            yield os.lstat(os.path.join(root, path)).st_mtime_ns
        except OSError:
            continue  # it was deleted: that is the change


def _jj(folder: bytes, root: bytes, until: float) -> dict[str, Any]:
    found = jj.ask({"change": jj.CHANGE, "changed": jj.CHANGED}, root, until)
    facts: dict[str, Any] = {"kind": "jj", "root": text(root), "change": None, "commit": None}
    facts |= {"changed": None, "touched": None, "problems": jj.complaints(found)}
    if found["change"].done and found["change"].output.count(b" ") == 2:
        change, commit, seconds = found["change"].output.split()
        facts |= {"change": text(change), "commit": text(commit), "touched": int(seconds) * 1_000_000_000}
    if os.path.lexists(os.path.join(root, b".git")):
        # git has the same parent, and looks at the files as they are now.
        by_git = _git(folder, until)
        if by_git is not None and by_git["changed"] is not None:
            touched = max((facts["touched"] or 0), by_git["touched"] or 0) or None
            return {**facts, "changed": by_git["changed"], "touched": touched}
    if found["changed"].done:
        changed = jj.paths(found["changed"])
        times = [*_times(root, changed[:_MOST_CHANGED]), *([facts["touched"]] if facts["touched"] else [])]
        facts |= {"changed": len(changed), "touched": max(times, default=None)}
    return facts


# Previews


def preview(folder: bytes, seconds: float) -> dict[str, Any]:
    """Return the files below a folder with their sizes, and those of them that differ from the last commit.

    In a repository git, or jj, says which files there are. Elsewhere all are looked for, but not in hidden folders.

    Args:
        folder: the folder.
        seconds: what the programs that are asked have, at most `COMMANDS`, and then going through files, at most
            `WALK`.
    """
    problems: list[str] = []
    unread: dict[bytes, str] = {}
    kind, root = _find(folder)
    found: dict[str, Any] | None = None
    if kind is not None:
        found = _by_git(folder, seconds, problems, unread)
        if found is None and kind == "jj":
            found = _by_jj(folder, root, seconds, problems, unread)
    if found is None:
        files, more = _walk(folder, time.monotonic() + min(WALK, seconds), unread)
        found = {"files": files, "more": more, "changed": None}
    return {**found, "problems": [*problems, *_told(unread)]}


def _told(unread: dict[bytes, str]) -> list[str]:
    """Return what could not be read, a line each."""
    told = [f"{path.decode('utf-8', 'backslashreplace')}: {words}" for path, words in unread.items()]
    left = len(told) - _MOST_UNREAD
    return told if left <= 0 else [*told[:_MOST_UNREAD], f"{left:,} more cannot be read"]


def _by_git(folder: bytes, seconds: float, problems: list[str], unread: dict[bytes, str]) -> dict[str, Any] | None:
    asking = git.Git(folder, time.monotonic() + min(COMMANDS, seconds))
    cannot = asking.switch_filters_off()
    questions: dict[str, tuple[str, ...]] = {
        "root": ("rev-parse", "--show-toplevel"),
        "list": (*git.LIST, *git.NOT_OWN),
    }
    if not cannot:
        questions["changed"] = (*git.STATUS, "--", ".")
    found = asking.ask(questions)
    if git.is_no_repository(found["root"]):
        return None
    problems += [cannot] if cannot else []
    problems += git.complaints(found)
    listed = found["list"].output.split(b"\0") if found["list"].done else []
    # One that is in conflict is listed several times; a repository in the repository ends with a slash.
    paths = list(dict.fromkeys(path.rstrip(b"/") for path in listed if path))
    if found["root"].done:
        root = found["root"].output.removesuffix(b"\n")
        if not _is_in(folder, root):  # by core.worktree: the folder that was asked for is no part of that
            problems.append(f"git: the repository's worktree is elsewhere, at {text(root)}")
            return None
        for path, words in git.unread(found["list"]):
            unread[os.path.relpath(os.path.join(root, path), os.path.realpath(folder))] = words
    if not paths:
        return None  # refused, or all in here is ignored: then it is a folder like any other
    changed = None
    if found["root"].done and "changed" in found and found["changed"].done:
        changed = _inside(folder, found["root"].output.removesuffix(b"\n"), git.changes(found["changed"].output))
    return {**_sizes(folder, paths, seconds, unread), "changed": changed}


def _by_jj(
    folder: bytes, root: bytes, seconds: float, problems: list[str], unread: dict[bytes, str]
) -> dict[str, Any] | None:
    found = jj.ask({"list": jj.LIST, "changed": jj.CHANGED}, folder, time.monotonic() + min(COMMANDS, seconds))
    problems += jj.complaints(found)
    if not found["list"].done:
        return None
    changed = _inside(folder, root, jj.paths(found["changed"])) if found["changed"].done else None
    listed = [os.fsencode(path) for path in _inside(folder, root, jj.paths(found["list"]))]
    return {**_sizes(folder, listed, seconds, unread), "changed": changed}


def _is_in(folder: bytes, root: bytes) -> bool:
    """Whether a folder is in another one, or is that one."""
    inside = os.path.relpath(os.path.realpath(folder), os.path.realpath(root))
    return inside.split(b"/", 1)[0] != b".."


def _inside(folder: bytes, root: bytes, paths: Iterable[bytes]) -> list[str]:
    """Return paths that are relative to a repository's root as relative to a folder in it."""
    inside = os.path.relpath(os.path.realpath(folder), root)
    prefix = b"" if inside == b"." else inside + b"/"
    return [text(path.removeprefix(prefix)) for path in paths][:MOST_FILES]


def _sizes(folder: bytes, paths: Sequence[bytes], seconds: float, unread: dict[bytes, str]) -> dict[str, Any]:
    """Return what these files are, and how large, as far as the time goes."""
    files: list[tuple[str, str, int]] = []
    until = time.monotonic() + min(WALK, seconds)
    for path in paths[:MOST_FILES]:
        if time.monotonic() > until:
            break
        files.append((text(path), *_kind_and_size(folder, path, unread)))
    return {"files": files, "more": len(files) < len(paths)}


def _walk(folder: bytes, until: float, unread: dict[bytes, str]) -> tuple[list[tuple[str, str, int]], bool]:
    """Return what is below a folder, the upper levels first, and whether that is not all."""
    found: list[tuple[str, str, int]] = []
    waiting = [b""]
    for inside in waiting:
        try:
            with os.scandir(os.path.join(folder, inside)) as entries:
                names = []
                for entry in entries:
                    names.append(entry.name)
                    if len(names) > MOST_FILES:
                        break
        except OSError as error:
            unread[inside or b"."] = words_of(error)
            continue
        for name in sorted(names):
            if len(found) == MOST_FILES or time.monotonic() > until:
                return found, True
            path = os.path.join(inside, name)
            kind, size = _kind_and_size(folder, path, unread)
            found.append((text(path), kind, size))
            if kind == "folder" and not name.startswith(b"."):
                waiting.append(path)
    return found, False


def _kind_and_size(folder: bytes, path: bytes, unread: dict[bytes, str]) -> tuple[str, int]:
    """Return what something is, links not followed, and a file's size. What is not there is "gone"."""
    try:
        status = os.lstat(os.path.join(folder, path))
    except (FileNotFoundError, NotADirectoryError):
        return "gone", 0
    except OSError as error:
        unread.setdefault(os.path.dirname(path) or b".", words_of(error))
        return "other", 0
    kind = folders.kind_of(status.st_mode)
    return kind, status.st_size if kind == "file" else 0
