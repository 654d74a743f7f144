"""Full text search in memory: an index (SQLite's FTS5) of paragraphs, derived from the files.

Before a search every file of the workspaces that are searched is looked at: one that has changed, by whatever hand, is
read again. The index may be removed at any time, and where it cannot be written it is in memory.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
import unicodedata
from collections.abc import Iterator, Sequence

from ..bundle.memory import Hit
from ..derived import DerivedFile
from ..errors import MemoryFileError
from ..home import albedo_home
from . import scripts
from .files import Stamp, stamp_of
from .store import MEMORY, MemoryStore

_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (location TEXT NOT NULL, name TEXT NOT NULL, stamp TEXT NOT NULL,
    PRIMARY KEY (location, name)) STRICT;
CREATE VIRTUAL TABLE IF NOT EXISTS paragraphs USING fts5 (
    text, location UNINDEXED, name UNINDEXED, line UNINDEXED,
    tokenize = "porter unicode61 remove_diacritics 2 categories 'L* N* M* Co'");
"""

_LONG_PARAGRAPH = 2000
"""Characters: lists without empty lines would be one paragraph else, and so would a file that is one line."""

_CUT = 2
"""How texts are cut, as a number: an index of texts that were cut in another way is made anew."""

_ON, _OFF = "\x02", "\x03"  # around what was found, and nowhere else in the index

_SNIPPET = 160  # characters that are shown of a paragraph, around what was found

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
        ConfigError: the index is in use by another process for very long.
    """
    found = "".join(character if _is_of_word(character) else " " for character in scripts.composed(query)).split()
    words = list(itertools.islice((word for word in found if any(map(str.isalnum, word))), _MOST_WORDS))
    if not words or limit < 1:
        return []
    index = DerivedFile(albedo_home(home) / "memory-search.sqlite", _SCHEMA, "index of memory")

    def find(database: sqlite3.Connection) -> list[Hit]:
        problems = _refresh(database, stores)
        return _find(database, stores, words, limit) + problems

    return index.do(find)


def _is_of_word(character: str) -> bool:
    """Say whether a character is of a word: vowel signs and accents of their own are, as in Thai and Hindi."""
    return character.isalnum() or character in "_.-" or unicodedata.category(character).startswith("M")


def _find(database: sqlite3.Connection, stores: Sequence[MemoryStore], words: list[str], limit: int) -> list[Hit]:
    places = [str(store.location) for store in stores]
    hits: list[Hit] = []
    parts = list(itertools.islice((part for word in words for part in scripts.pairs(word)), _MOST_WORDS))
    for operator, wanted in ((" AND ", words), (" OR ", parts)):
        # Each word as a quoted string: what is in it is text, whatever FTS5's syntax makes of it elsewhere.
        # Not FTS5's snippet(): its time goes with the square of what was found in a paragraph.
        rows = database.execute(
            f"SELECT location, name, line, highlight(paragraphs, 0, '{_ON}', '{_OFF}') FROM paragraphs "
            f"WHERE paragraphs MATCH ? AND location IN ({', '.join('?' * len(places))}) ORDER BY rank LIMIT ?",
            (operator.join(f'"{scripts.with_seams(word)}"' for word in wanted), *places, min(limit, _MOST_HITS)),
        )
        for place, name, line, marked in rows:
            below, shown = _snippet(marked)
            hits.append(Hit.make(place, place == places[0], name, line + below, shown))
        if hits:
            break
    return hits


def _snippet(marked: str) -> tuple[int, str]:
    """Return the part of a paragraph that has most of what was found, and how many lines below its beginning that is.

    Args:
        marked: the paragraph, what was found in it between `_ON` and `_OFF`.
    """
    before, *parts = marked.split(_ON)
    texts, spans, at = [before], [], len(before)
    for part in parts:
        found, _, after = part.partition(_OFF)
        spans.append((at, at + len(found)))
        texts += [found, after]
        at += len(found) + len(after)
    text = "".join(texts)
    first, last = _densest(text, spans)
    start, end = spans[first][0], spans[last][1]
    begin = max(0, min(start - max(0, _SNIPPET - (end - start)) // 2, len(text) - _SNIPPET))
    stop = max(end, begin + _SNIPPET)
    while 0 < begin < start and not _is_between_words(text, begin):
        begin += 1
    while end < stop < len(text) and not _is_between_words(text, stop):
        stop -= 1
    shown, at = "…" if begin else "", begin
    for left, right in spans:
        if begin <= left and right <= stop:
            shown += f"{text[at:left]}**{text[left:right]}**"
            at = right
    shown += text[at:stop] + ("…" if stop < len(text) else "")
    return text.count("\n", 0, start), " ".join(scripts.without_seams(shown).split())


def _densest(text: str, spans: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return which of the spans, from the first to the last, have the most different words within a snippet."""
    words = [text[start:end].casefold() for start, end in spans]
    counts: dict[str, int] = {}
    best, most, all_of_them, end = (0, 0), 0, len(set(words)), 0
    for first, (start, _) in enumerate(spans):
        while end < len(spans) and (end <= first or spans[end][1] - start <= _SNIPPET):
            counts[words[end]] = counts.get(words[end], 0) + 1
            end += 1
        if len(counts) > most:
            best, most = (first, end - 1), len(counts)
            if most == all_of_them:
                break
        counts[words[first]] -= 1
        if not counts[words[first]]:
            del counts[words[first]]
    return best


def _is_between_words(text: str, at: int) -> bool:
    return not (_is_of_word(text[at - 1]) and _is_of_word(text[at]))


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
    changed = [name for name, file in there.items() if known.get(name) != _cut_stamp(stamp_of(file.path))]
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
            ((_indexed(text), place, name, line) for line, text in paragraphs(content.text)),
        )
        database.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?)", (place, name, _cut_stamp(content.stamp)))
    return problems


def _cut_stamp(stamp: Stamp | None) -> str:
    return f"{_CUT} {stamp}"


def _indexed(text: str) -> str:
    return scripts.with_seams(text.replace(_ON, " ").replace(_OFF, " "))


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs of a text with the numbers of their first lines; a heading goes with what is below it.

    Long ones come in pieces, cut between lines, or a long line between words.
    """
    lines: list[str] = []
    size = start = 0
    for number, line in enumerate(text.split("\n"), 1):
        ended = not line.strip() and not all(each.startswith("#") or not each.strip() for each in lines)
        if lines and (ended or size + len(line) > _LONG_PARAGRAPH):
            yield start, "\n".join(lines)
            lines, size = [], 0
        if len(line) > _LONG_PARAGRAPH:
            yield from ((number, piece) for piece in _pieces(line) if piece.strip())
        elif line.strip() or lines:
            if not lines:
                start = number
            lines.append(line)
            size += len(line) + 1
    if any(line.strip() for line in lines):
        yield start, "\n".join(lines)


def _pieces(line: str) -> Iterator[str]:
    """Yield a long line in pieces that end where a word does, if one does."""
    start = 0
    while len(line) - start > _LONG_PARAGRAPH:
        room = range(start + _LONG_PARAGRAPH, start + _LONG_PARAGRAPH // 2, -1)
        end = next((at for at in room if _is_between_words(line, at)), room[0])
        yield line[start:end]
        start = end
    yield line[start:]
