"""A workspace's memory with those that are linked to it: reads cover all of them, writes are one's own.

Blocking, from any thread. What programs hold is in `faces.py`.
"""

from __future__ import annotations

import itertools
import os

from ..bundle.memory import Hit
from ..errors import MemoryFileError
from ..location import Location
from . import index
from .links import WorkspaceGroups
from .scripts import composed
from .store import MEMORY, MemoryFile, MemoryStore
from .text import must_be_text, shares, shortened

LIMIT = 50
"""Lines that `grep` returns if nothing else is asked for."""

SEARCH_LIMIT = 10
"""Paragraphs that `search` returns if nothing else is asked for."""

_LONGEST_LINE = 300

_MOST_LINES = 10_000


class WorkspaceMemory:
    """The memory of one workspace, and what is read along with it.

    Args:
        location: the workspace, with an absolute path.
        home: see `albedo_home`.
    """

    def __init__(self, location: Location, home: str | os.PathLike[str] | None = None) -> None:
        self.store = MemoryStore(location, home)
        self._home = home

    # -- writing: one's own ----------------------------------------------------------------------------------

    def save(self, text: str, call_id: str | None = None) -> None:
        """Have `memory.md` hold this text alone; see `MemoryStore.save`."""
        self.store.save(text, call_id)

    def append(self, text: str, call_id: str | None = None) -> None:
        """Add a text to `memory.md`; see `MemoryStore.append`."""
        self.store.append(text, call_id)

    def journal(self, text: str, call_id: str | None = None) -> None:
        """Add an entry to the journal of this day; see `MemoryStore.journal`."""
        self.store.journal(text, call_id)

    # -- reading: the group's --------------------------------------------------------------------------------

    def read(self, max_chars: int | None = None, linked: bool = True) -> str:
        """Return `memory.md`, and below it that of each linked workspace that has one, under a heading.

        Args:
            max_chars: characters at most; beyond them texts are cut in the middle, which is said there. One's own has
                half of them, and what the others do not need.
            linked: False for one's own alone, as it was saved.

        Raises:
            MemoryFileError: one's own cannot be read. (That another's cannot is said in its place.)
        """
        own = self.store.content().text
        parts = [("", own)]
        for store in self._others() if linked else ():
            try:
                text = store.content().text
            except MemoryFileError as error:
                text = f"({error})"
            if text.strip():
                gap = "" if not own else ("\n" if own.endswith("\n") else "\n\n")
                parts.append((f"{gap if len(parts) == 1 else chr(10)}# Memory of {store.location} (linked)\n\n", text))
        if max_chars is None:
            return "".join(heading + text for heading, text in parts)
        room = max(0, max_chars - sum(len(heading) for heading, _ in parts))
        given = shares([len(text) for _, text in parts], room)
        whole = "".join(heading + shortened(text, size) for (heading, text), size in zip(parts, given, strict=True))
        return shortened(whole, max(max_chars, 0))

    def grep(self, term: str, limit: int = LIMIT) -> list[Hit]:
        """Return the lines that contain a text, upper and lower case being the same: of `memory.md`, then of the
        journal, newest first; one's own, then those of linked workspaces.

        Args:
            term: the text; no pattern.
            limit: lines at most, up to 10,000.

        Raises:
            ValueError: `term` is empty.
            MemoryFileError: one's own `memory.md` cannot be read. (That another's cannot, or a file of a journal, is
                told in its place, as line 0.)
        """
        wanted, limit = _folded(must_be_text(term)), min(limit, _MOST_LINES)
        if not wanted:
            raise ValueError("grep looks for a text, and this one is empty")
        hits: list[Hit] = []
        for store in (self.store, *self._others()):
            try:
                for file in store.files():
                    hits += self._lines(store, file, wanted, limit - len(hits))
                    if len(hits) >= limit:
                        return hits
            except MemoryFileError as error:
                if store is self.store:
                    raise
                hits.append(Hit.make(str(store.location), False, MEMORY, 0, str(error)))
        return hits

    def _lines(self, store: MemoryStore, file: MemoryFile, wanted: str, limit: int) -> list[Hit]:
        """Return the lines of a file that have a text, or as line 0 why it cannot be read."""
        own, place = store is self.store, str(store.location)
        try:
            lines = enumerate(file.read().text.split("\n"), 1)
        except MemoryFileError as error:
            if own and file.name == MEMORY:
                raise
            return [Hit.make(place, own, file.name, 0, str(error))]
        found = ((number, line.rstrip("\r")) for number, line in lines if wanted in _folded(line))
        return [
            Hit.make(place, own, file.name, number, _around(line, wanted))
            for number, line in itertools.islice(found, max(limit, 0))
        ]

    def search(self, query: str, limit: int = SEARCH_LIMIT) -> list[Hit]:
        """Return the paragraphs that say most about the words of a query, the best first; see `index.search`."""
        return index.search((self.store, *self._others()), must_be_text(query), int(limit), self._home)

    def _others(self) -> list[MemoryStore]:
        members = WorkspaceGroups(self._home).group(self.store.location)
        return [MemoryStore(location, self._home) for location in members]


def _folded(text: str) -> str:
    """Return what is the same of texts that differ in upper and lower case, or in how accents are put together."""
    return composed(text).casefold()


def _around(line: str, wanted: str) -> str:
    """Return a line, or of one that is very long what is around the text."""
    if len(line) <= _LONGEST_LINE:
        return line
    at = max(0, _folded(line).find(wanted) - _LONGEST_LINE // 3)
    part = line[at : at + _LONGEST_LINE]
    return f"{'…' if at else ''}{part}{'…' if at + _LONGEST_LINE < len(line) else ''}"
