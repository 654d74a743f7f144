"""The memory of one workspace: `memory.md` and a journal with a file for each day, in its folder.

Blocking, from any thread; several processes may use one folder at the same time.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ..errors import AlbedoError, MemoryFileError
from ..location import Location
from .files import Content, locked, make_private, read_regular, rename, stamp_of, write_beside
from .folders import memory_folder
from .ledger import Ledger

log = logging.getLogger("albedo_provisioner.workspace")

MEMORY = "memory.md"
JOURNAL = "journal"

MOST_MEMORY = 1 << 20
"""Bytes that `memory.md` may have."""

MOST_JOURNAL = 4 << 20
"""Bytes that the journal of a day may have."""

_ATTEMPTS = 5  # at finding a file unchanged between reading and replacing it, should a person save it just then


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

    def files(self) -> Iterator[tuple[str, Path]]:
        """Yield names and paths of the files there are: `memory.md`, then the journal's, newest first.

        Raises:
            MemoryFileError: they cannot be listed.
        """
        folder = self.folder()
        if folder is None:
            return
        if os.path.lexists(folder / MEMORY):
            yield MEMORY, folder / MEMORY
        try:
            days = sorted((name for name in os.listdir(folder / JOURNAL) if not name.startswith(".")), reverse=True)
        except FileNotFoundError:
            return
        except OSError as error:
            raise MemoryFileError(f"The journal in {folder} cannot be listed: {error.strerror}.") from error
        for name in days:
            if name.endswith(".md"):
                yield f"{JOURNAL}/{name}", folder / JOURNAL / name

    # -- writing ---------------------------------------------------------------------------------------------

    def save(self, text: str, call_id: str | None = None) -> None:
        """Have `memory.md` hold this text and nothing else.

        Args:
            text: Markdown.
            call_id: the call's id; one whose id is on record is not carried out again.

        Raises:
            MemoryFileError: it cannot be written, or is too long; nothing has changed.
        """
        self._change(MEMORY, lambda _: _ended(_encoded(text)), MOST_MEMORY, call_id)

    def append(self, text: str, call_id: str | None = None) -> None:
        """Add a text at the end of `memory.md`, beginning with a line of its own; see `save`."""
        self._change(MEMORY, lambda before: _ended(before) + _ended(_encoded(text)), MOST_MEMORY, call_id)

    def journal(self, text: str, call_id: str | None = None) -> str:
        """Add an entry to the journal of this day, below the time, and return the file's name; see `save`."""
        name = f"{JOURNAL}/{time.strftime('%Y-%m-%d')}.md"
        heading = f"## {time.strftime('%H:%M:%S')}\n\n".encode()

        def with_entry(before: bytes) -> bytes:
            return _ended(before) + (b"\n" if before else b"") + heading + _ended(_encoded(text))

        self._change(name, with_entry, MOST_JOURNAL, call_id)
        return name

    def _change(self, name: str, change: Callable[[bytes], bytes], most: int, call_id: str | None) -> None:
        folder = memory_folder(self.location, self._home)
        assert folder is not None
        path = folder / name
        make_private(path.parent)
        ledger = Ledger(self._home)
        with locked(folder):
            if call_id is not None and ledger.is_done(folder, call_id):
                return
            self._sweep(path.parent, folder, ledger)
            fresh = self._write_changed(path, change, most)
            try:
                if call_id is not None:
                    ledger.begin(folder, call_id, fresh)
                rename(fresh, path)
            except BaseException:
                if os.path.lexists(fresh):  # else it has happened, and the note of it stands
                    if call_id is not None:
                        ledger.withdraw(folder, call_id)
                    fresh.unlink()
                raise
            if call_id is not None:
                _finish(ledger, folder, call_id)

    def _write_changed(self, path: Path, change: Callable[[bytes], bytes], most: int) -> Path:
        """Write the changed content beside the file, of which a person's editor knows no lock."""
        for attempt in range(_ATTEMPTS):
            before = read_regular(path)
            data = change(before.data)
            if len(data) > most or before.cut:
                raise MemoryFileError(
                    f"{path.name} of {self.location} would have {len(data):,} bytes, and may have {most:,}: save a "
                    f"shorter text, or shorten {path}."
                )
            fresh = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
            write_beside(fresh, data)
            if attempt == _ATTEMPTS - 1 or stamp_of(path) == before.stamp:
                break
            fresh.unlink()
        return fresh

    def _sweep(self, written_in: Path, folder: Path, ledger: Ledger) -> None:
        """Remove what processes that were killed had written beside the files and did not rename."""
        left = list(written_in.glob(".*.md.*"))
        if left:
            ledger.settle(folder)
            for each in left:
                each.unlink(missing_ok=True)


def _finish(ledger: Ledger, folder: Path, call_id: str) -> None:
    try:
        ledger.finish(folder, call_id)
    except AlbedoError as error:
        log.info("%s", error)  # it has happened, and that will be found out


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")  # half characters, which JSON can bring, have no bytes


def _ended(data: bytes) -> bytes:
    """Return lines whose last one is ended, so that what follows begins a line."""
    return data if not data or data.endswith(b"\n") else data + b"\n"
