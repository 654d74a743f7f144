"""What a folder is made of: its languages, and the two upper levels of its tree with what has changed in each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..location import Location
from .languages import language_of, type_of
from .names import location_of, shown, spelled

MOST_NODES = 100
"""Nodes of one folder that a tree shows, at most."""

_COUNTED = ("programming", "markup")


@dataclass(frozen=True)
class Language:
    """A language's part of a folder.

    Attributes:
        name: as GitHub calls it.
        type: "programming" or "markup" (HTML, notebooks and the like).
        bytes: size of its files.
        files: how many there are.
    """

    name: str
    type: str
    bytes: int
    files: int

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return {"name": self.name, "type": self.type, "bytes": self.bytes, "files": self.files}


@dataclass(frozen=True)
class Node:
    """A file or folder in the tree.

    Attributes:
        name: its name; see `Entry.name`.
        kind: "folder", "file", "other" (a link, a device), or "gone" for a file that was deleted.
        files: how many files there are below it; 1 for a file.
        bytes: their size.
        changed: how many of them differ from the last commit, deleted ones included; None when that is not known.
        children: what is in a folder of the first level; nothing for the second.
        left_out: how many children there are beyond these.
    """

    name: str
    kind: str
    files: int
    bytes: int
    changed: int | None
    children: tuple[Node, ...] = ()
    left_out: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON; `raw` has the name's bytes in base64 where `name` has lost some."""
        counts = {name: getattr(self, name) for name in ("kind", "files", "bytes", "changed", "left_out")}
        return {**shown(self.name), **counts, "children": [child.to_dict() for child in self.children]}


@dataclass(frozen=True)
class Preview:
    """What a folder is made of. In a repository that is what git knows or would add: ignored files are left out, and
    those that `.gitattributes` call `linguist-vendored` or `linguist-generated`. Elsewhere it is all but what lies in
    hidden folders.

    Attributes:
        host: the host as the user spells it; None for this machine.
        location: the folder's location; None when its path cannot be spelled as one.
        languages: the largest first; programming and markup languages alone, as on GitHub.
        tree: the folder with two levels below it.
        truncated: not all of its files were looked at.
        problems: what went wrong, in git's words; and which folders below it cannot be read, the first twenty of them.
    """

    host: str | None
    location: Location | None
    languages: tuple[Language, ...]
    tree: Node
    truncated: bool
    problems: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return {
            "host": self.host,
            "location": spelled(self.location),
            "languages": [language.to_dict() for language in self.languages],
            "tree": self.tree.to_dict(),
            "truncated": self.truncated,
            "problems": list(self.problems),
        }


def preview(host: str | None, facts: Mapping[str, Any]) -> Preview:
    """Return what a host's facts (`bundle/browsing.py`) say of a folder."""
    files = [(str(path), str(kind), int(size)) for path, kind, size in facts["files"]]
    folder = str(facts["folder"])
    return Preview(
        host,
        location_of(host, folder),
        tuple(_languages(files)),
        _tree(folder.rpartition("/")[2], files, facts["changed"]),
        bool(facts["more"]),
        tuple(map(str, facts["problems"])),
    )


def _languages(files: Iterable[tuple[str, str, int]]) -> list[Language]:
    sizes: dict[str, list[int]] = {}
    for path, kind, size in files:
        language = language_of(path.rpartition("/")[2]) if kind == "file" else None
        if language is not None:
            sizes.setdefault(language, []).append(size)
    found = [Language(name, type_of(name), sum(each), len(each)) for name, each in sizes.items()]
    return sorted((each for each in found if each.type in _COUNTED), key=lambda each: (-each.bytes, each.name))


@dataclass
class _Counts:
    kind: str
    files: int = 0
    bytes: int = 0
    changed: int = 0
    children: dict[str, _Counts] = field(default_factory=dict)

    def below(self, name: str, kind: str) -> _Counts:
        found = self.children.get(name)
        if found is None:
            found = self.children[name] = _Counts(kind)
        return found


def _tree(name: str, files: Iterable[tuple[str, str, int]], changed: Iterable[str] | None) -> Node:
    root = _Counts("folder")
    for path, kind, size in files:
        for each in _path_in(root, path, kind):
            each.files += kind == "file"
            each.bytes += size
    for path in changed or ():
        for each in _path_in(root, path, "gone"):
            each.changed += 1
    return _node(name, root, changed is not None)


def _path_in(root: _Counts, path: str, kind: str) -> list[_Counts]:
    """Return the tree's nodes that a path belongs to, made if they are not there yet: itself, or what it is below."""
    found = [root]
    parts = path.split("/")
    for depth, part in enumerate(parts[:2]):
        last = depth == len(parts) - 1
        found.append(found[-1].below(part, kind if last else "folder"))
    return found


def _node(name: str, counts: _Counts, known: bool) -> Node:
    order = sorted(counts.children.items(), key=lambda item: (item[1].kind != "folder", item[0].casefold(), item[0]))
    return Node(
        name,
        counts.kind,
        counts.files,
        counts.bytes,
        counts.changed if known else None,
        tuple(_node(child, each, known) for child, each in order[:MOST_NODES]),
        max(0, len(order) - MOST_NODES),
    )
