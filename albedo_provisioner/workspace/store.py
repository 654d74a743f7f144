"""The memory of one workspace: `memory.md` and a journal with a file for each day, in its folder.

Blocking, from any thread; several processes may use one folder at the same time.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import AlbedoError, MemoryFileError
from ..location import Location
from .files import Content, is_same_file, locked, make_private, read_regular, stamp_of, swap, write_beside
from .folders import memory_folder
from .hands import PATIENCE, HeldFile, held
from .ledger import Ledger
from .text import must_be_text

log = logging.getLogger("albedo_provisioner.workspace")

MEMORY = "memory.md"
JOURNAL = "journal"

MOST_MEMORY = 1 << 20
"""Bytes that `memory.md` may have."""

MOST_JOURNAL = 4 << 20
"""Bytes that the journal of a day may have."""

Change = Callable[[bytes], bytes]
"""Returns the new content of a file for the old one."""


@dataclass(frozen=True)
class MemoryFile:
    """A file of a memory.

    Attributes:
        name: `memory.md` or `journal/2024-05-01.md`.
        path: where it is.
        problem: why it cannot be read, if that is known already.
    """

    name: str
    path: Path
    problem: str = ""

    def read(self) -> Content:
        """Return what it holds.

        Raises:
            MemoryFileError: it cannot be read.
        """
        if self.problem:
            raise MemoryFileError(self.problem)
        return read_regular(self.path)


class MemoryStore:
    """The files of one workspace's memory.

    Args:
        location: the workspace, with an absolute path.
        home: see `albedo_home`.
    """

    def __init__(self, location: Location, home: str | os.PathLike[str] | None = None) -> None:
        self.location = location
        self._home = home

    def folder(self) -> Path | None:
        """Return where the files are; None when there are none yet.

        Raises:
            MemoryFileError: it cannot be read.
        """
        return memory_folder(self.location, self._home, make=False)

    def content(self) -> Content:
        """Return what `memory.md` holds.

        Raises:
            MemoryFileError: it cannot be read.
        """
        folder = self.folder()
        return Content(b"", None) if folder is None else read_regular(folder / MEMORY)

    @property
    def has_files(self) -> bool:
        """Whether there are any."""
        return next(self.files(), None) is not None

    def files(self) -> Iterator[MemoryFile]:
        """Yield the files there are: `memory.md`, then the journal's, newest first.

        Raises:
            MemoryFileError: it cannot be found out where they are.
        """
        folder = self.folder()
        if folder is None:
            return
        if os.path.lexists(folder / MEMORY):
            yield MemoryFile(MEMORY, folder / MEMORY)
        try:
            days = sorted((name for name in os.listdir(folder / JOURNAL) if not name.startswith(".")), reverse=True)
        except FileNotFoundError:
            return
        except OSError as error:
            yield MemoryFile(JOURNAL, folder / JOURNAL, f"The journal in {folder} cannot be listed: {error.strerror}.")
            return
        for name in days:
            if name.endswith(".md"):
                # A name that is no UTF-8 can stand in no text.
                shown = f"{JOURNAL}/{os.fsencode(name).decode('utf-8', 'backslashreplace')}"
                plain = shown == f"{JOURNAL}/{name}"
                problem = "" if plain else f"{shown} in {folder} is left out, as its name is no UTF-8: rename it."
                yield MemoryFile(shown, folder / JOURNAL / name, problem)

    # -- writing ---------------------------------------------------------------------------------------------

    def save(self, text: str, call_id: str | None = None) -> None:
        """Have `memory.md` hold this text and nothing else.

        Args:
            text: Markdown.
            call_id: the call's id; one whose id is on record is not carried out again.

        Raises:
            MemoryFileError: it cannot be written, or is too long; nothing has changed.
            TypeError: it is no text.
        """
        saved = _ended(_encoded(text))
        self._change(MEMORY, lambda _: saved, MOST_MEMORY, call_id, late=_unchanged)

    def append(self, text: str, call_id: str | None = None) -> None:
        """Add a text at the end of `memory.md`, beginning with a line of its own; see `save`."""
        added = _ended(_encoded(text))
        self._change(MEMORY, lambda before: _ended(before) + added, MOST_MEMORY, call_id)

    def journal(self, text: str, call_id: str | None = None) -> str:
        """Add an entry to the journal of this day, below the time, and return the file's name; see `save`."""
        name = f"{JOURNAL}/{time.strftime('%Y-%m-%d')}.md"
        entry = f"## {time.strftime('%H:%M:%S')}\n\n".encode() + _ended(_encoded(text))

        def with_entry(before: bytes) -> bytes:
            return _ended(before) + (b"\n" if before else b"") + entry

        self._change(name, with_entry, MOST_JOURNAL, call_id)
        return name

    def _change(self, name: str, change: Change, most: int, call_id: str | None, late: Change | None = None) -> None:
        """Change a file, once for a call's id.

        Args:
            name: the file's, in the folder.
            change: returns the new content for the old one.
            most: bytes that the file may have.
            call_id: the call's.
            late: the change to what a person has written while ours was made; the same if nothing is said.
        """
        folder = memory_folder(self.location, self._home)
        assert folder is not None
        path = folder / name
        make_private(path.parent)
        ledger = Ledger(self._home)
        with locked(folder):
            if call_id is not None and ledger.is_done(folder, call_id):
                return
            self._sweep(path.parent, folder, ledger)
            call = None if call_id is None else _Call(ledger, folder, call_id)
            replaced = self._replace(path, change, most, call)
            late = late or change
            while replaced.written_after is not None:
                # A person's program wrote in the very moment of the rename: that is what the change is made of then.
                replaced = self._replace(path, _rescue(replaced, late), sys.maxsize, None)
                late = _unchanged  # who comes once more has opened the file with the change in it

    def _replace(self, path: Path, change: Change, most: int, call: _Call | None) -> _Replaced:
        """Put the changed content in a file's place, in a moment when no person's program writes it."""
        until = time.monotonic() + PATIENCE
        while (replaced := self._replace_if_quiet(path, change, most, call)) is None:
            if time.monotonic() > until:
                raise MemoryFileError(f"{path} is written again and again by another program: end that one.")
        return replaced

    def _replace_if_quiet(self, path: Path, change: Change, most: int, call: _Call | None) -> _Replaced | None:
        """Return None when a person's program came between, and nothing has changed."""
        with held(path) as file:
            data = change(file.content.data)
            if len(data) > most or file.content.cut:
                raise MemoryFileError(
                    f"{path.name} of {self.location} would have {len(data):,} bytes, and may have {most:,}: save a "
                    f"shorter text, or shorten {path}."
                )
            fresh = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
            write_beside(fresh, data)
            ours = stamp_of(fresh)
            try:
                if call is not None:
                    call.begin(fresh)
                if not file.is_disturbed():
                    swap(fresh, path)
            finally:
                happened = not is_same_file(stamp_of(fresh), ours)  # then the note of it stands, whatever went wrong
                if not happened:
                    if call is not None:
                        call.withdraw()
                    fresh.unlink()
            if not happened:
                return None
            if call is not None:
                call.finish()
            return _Replaced(data, self._written_after(file, fresh))

    def _written_after(self, file: HeldFile, swapped: Path) -> bytes | None:
        """Return what a person's program has written in the moment of the rename, by whichever way."""
        renamed = read_regular(swapped)
        swapped.unlink(missing_ok=True)
        if renamed.stamp is not None and not is_same_file(renamed.stamp, file.content.stamp):
            return renamed.data  # another file had been renamed to that name
        return file.written_after()

    def _sweep(self, written_in: Path, folder: Path, ledger: Ledger) -> None:
        """Remove what processes that were killed had written beside the files and did not rename."""
        left = list(written_in.glob(".*.md.*"))
        if left:
            ledger.settle(folder)
            for each in left:
                each.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Call:
    """A call with an id, which is noted together with the rename that is its effect."""

    ledger: Ledger
    folder: Path
    id: str

    def begin(self, written: Path) -> None:
        self.ledger.begin(self.folder, self.id, written)

    def withdraw(self) -> None:
        self.ledger.withdraw(self.folder, self.id)

    def finish(self) -> None:
        try:
            self.ledger.finish(self.folder, self.id)
        except AlbedoError as error:
            log.info("%s", error)  # it has happened, and that will be found out


@dataclass(frozen=True)
class _Replaced:
    """What a file holds now, and what was written into the one before it in the moment of the rename."""

    data: bytes
    written_after: bytes | None


def _rescue(replaced: _Replaced, change: Change) -> Change:
    """Return the change that puts what was written late in its place, as if it had come before ours."""
    late = change(replaced.written_after or b"")

    def with_late(now: bytes) -> bytes:
        # What somebody has saved anew since stays, as the last of several that save the same file.
        return late + now[len(replaced.data) :] if now.startswith(replaced.data) else now

    return with_late


def _unchanged(data: bytes) -> bytes:
    return data


def _encoded(text: str) -> bytes:
    return must_be_text(text).encode(
        "utf-8", "backslashreplace"
    )  # half characters, which JSON can bring, have no bytes


def _ended(data: bytes) -> bytes:
    """Return lines whose last one is ended, so that what follows begins a line."""
    return data if not data or data.endswith(b"\n") else data + b"\n"
