"""Full text search in memory: an index (SQLite's FTS5) of paragraphs, derived from the files.

Before a search every file of the workspaces that are searched is looked at: one that has changed, by whatever hand, is
read again. The index may be removed at any time.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
import unicodedata
from collections.abc import Iterator, Sequence

from ..bundle.memory import Hit
from ..database import opened
from ..errors import ConfigError, MemoryFileError
from ..home import albedo_home
from . import scripts
from .files import stamp_of
from .store import MEMORY, MemoryStore

_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (location TEXT NOT NULL, name TEXT NOT NULL, stamp TEXT NOT NULL,
    PRIMARY KEY (location, name)) STRICT;
CREATE VIRTUAL TABLE IF NOT EXISTS paragraphs USING fts5 (
    text, location UNINDEXED, name UNINDEXED, line UNINDEXED,
    tokenize = "porter unicode61 remove_diacritics 2 categories 'L* N* M* Co'");
"""

_LONG_PARAGRAPH = 2000  # characters; lists without empty lines would be one paragraph else

_SNIPPET = 24  # words around what was found

_LONG_SNIPPET = 64  # where each character is a word; FTS5's limit, https://sqlite.org/fts5.html#the_snippet_function

_MOST_WORDS = 64  # of a query

_MOST_HITS = 1000


def search(
    stores: Sequence[MemoryStore], query: str, limit: int, home: str | os.PathLike[str] | None = None
) -> list[Hit]:
    """Return the paragraphs that have the words of a query, the best first: all of the words, else some of them.

    In scripts without spaces between words, what stands together in the query is looked for as it is, wherever in a
    sentence, and if nothing has that, any two characters of it.

    Args:
        stores: the workspaces to search; the first is one's own.
        query: words; nothing in them is taken for more than that.
        limit: hits at most.
        home: see `albedo_home`.

    Raises:
        MemoryFileError: one's own `memory.md` cannot be read. (Other files are told of at the end, as line 0.)
        ConfigError: the index cannot be used.
    """
    found = "".join(character if _is_of_word(character) else " " for character in query).split()
    words = list(itertools.islice((word for word in found if any(map(str.isalnum, word))), _MOST_WORDS))
    if not words or limit < 1:
        return []
    path = albedo_home(home) / "memory-search.sqlite"
    for attempt in (1, 2):
        try:
            with opened(path, _SCHEMA, "index of memory") as database:
                problems = _refresh(database, stores)
                return _find(database, stores, words, limit) + problems
        except ConfigError as error:
            damaged = isinstance(error.__cause__, sqlite3.DatabaseError) and not isinstance(
                error.__cause__, sqlite3.OperationalError
            )
            if attempt == 2 or not damaged:
                raise
            for suffix in ("", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
    return []


def _is_of_word(character: str) -> bool:
    """Say whether a character is of a word: vowel signs and accents of their own are, as in Thai and Hindi."""
    return character.isalnum() or character in "_.-" or unicodedata.category(character).startswith("M")


def _find(database: sqlite3.Connection, stores: Sequence[MemoryStore], words: list[str], limit: int) -> list[Hit]:
    places = [str(store.location) for store in stores]
    hits: list[Hit] = []
    snippet = _LONG_SNIPPET if any(map(scripts.has_such, words)) else _SNIPPET
    parts = list(itertools.islice((part for word in words for part in scripts.pairs(word)), _MOST_WORDS))
    for operator, wanted in ((" AND ", words), (" OR ", parts)):
        # Each word as a quoted string: what is in it is text, whatever FTS5's syntax makes of it elsewhere.
        rows = database.execute(
            f"SELECT location, name, line, snippet(paragraphs, 0, '**', '**', '…', {snippet}) FROM paragraphs "
            f"WHERE paragraphs MATCH ? AND location IN ({', '.join('?' * len(places))}) ORDER BY rank LIMIT ?",
            (operator.join(f'"{scripts.with_seams(word)}"' for word in wanted), *places, min(limit, _MOST_HITS)),
        )
        hits = [Hit.make(place, place == places[0], name, line, _one_line(text)) for place, name, line, text in rows]
        if hits:
            break
    return hits


def _one_line(text: str) -> str:
    return " ".join(scripts.without_seams(text).split())


def _refresh(database: sqlite3.Connection, stores: Sequence[MemoryStore]) -> list[Hit]:
    """Have the index show what is in the files now, and return what could not be read, but for one's own memory.md."""
    problems = []
    for store in stores:
        try:
            problems += _refresh_one(database, store, store is stores[0])
        except MemoryFileError as error:
            if store is stores[0]:
                raise
            problems.append(Hit.make(str(store.location), False, MEMORY, 0, str(error)))
    return problems


def _refresh_one(database: sqlite3.Connection, store: MemoryStore, own: bool) -> list[Hit]:
    place = str(store.location)
    known = dict(database.execute("SELECT name, stamp FROM files WHERE location = ?", (place,)))
    there = {file.name: file for file in store.files()}
    changed = [name for name, file in there.items() if known.get(name) != str(stamp_of(file.path))]
    gone = [name for name in known if name not in there]
    contents, problems = {}, []
    for name in changed:
        try:
            contents[name] = there[name].read()
        except MemoryFileError as error:
            if own and name == MEMORY:
                raise
            problems.append(Hit.make(place, own, name, 0, str(error)))
    if not (contents or gone or known.keys() & set(changed)):
        return problems
    if not database.in_transaction:
        database.execute("BEGIN IMMEDIATE")
    for name in (*changed, *gone):
        database.execute("DELETE FROM paragraphs WHERE location = ? AND name = ?", (place, name))
        database.execute("DELETE FROM files WHERE location = ? AND name = ?", (place, name))
    for name, content in contents.items():
        database.executemany(
            "INSERT INTO paragraphs (text, location, name, line) VALUES (?, ?, ?, ?)",
            ((scripts.with_seams(text), place, name, line) for line, text in paragraphs(content.text)),
        )
        database.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?)", (place, name, str(content.stamp)))
    return problems


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs of a text with the numbers of their first lines; a heading goes with what is below it."""
    lines: list[str] = []
    size = start = 0
    for number, line in enumerate(text.split("\n"), 1):
        only_heading = bool(lines) and all(each.startswith("#") or not each.strip() for each in lines)
        if lines and ((not line.strip() and not only_heading) or size > _LONG_PARAGRAPH):
            yield start, "\n".join(lines)
            lines, size = [], 0
        if line.strip() or lines:
            if not lines:
                start = number
            lines.append(line)
            size += len(line)
    if any(line.strip() for line in lines):
        yield start, "\n".join(lines)
