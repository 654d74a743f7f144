"""What programs hold of a workspace: its memory and its links, with and without an event loop.

Each method has one line's work done on the I/O thread.
"""

from __future__ import annotations

from ..bundle.memory import Hit
from ..hosts import io_thread
from ..location import Location, place
from .asking import LinkedWorkspace
from .memory import LIMIT, SEARCH_LIMIT
from .workspace import Workspace


class AsyncMemory:
    """The memory of a workspace, for programs with an event loop (any one): see `Memory`."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    async def read(self, max_chars: int | None = None, linked: bool = True) -> str:
        """Return `memory.md`, and below it those of linked workspaces, each under a heading.

        Args:
            max_chars: characters at most; beyond them texts are cut in the middle, which is said there. One's own has
                half of them, and what the others do not need. None for no limit.
            linked: False for one's own alone, as it was saved.

        Raises:
            MemoryFileError: it cannot be read.
        """
        return await io_thread.run(self._workspace.with_memory(lambda memory: memory.read(max_chars, linked)))

    async def save(self, text: str) -> None:
        """Have one's own `memory.md` hold this text and nothing else, at once.

        Raises:
            MemoryFileError: it cannot be written, or is too long (1 MiB); nothing has changed.
        """
        await io_thread.run(self._workspace.with_memory(lambda memory: memory.save(text)))

    async def append(self, text: str) -> None:
        """Add a text at the end of one's own `memory.md`; see `save`."""
        await io_thread.run(self._workspace.with_memory(lambda memory: memory.append(text)))

    async def journal(self, text: str) -> None:
        """Add an entry with the time to the file of this day, `journal/2024-05-01.md` (4 MiB at most); see `save`."""
        await io_thread.run(self._workspace.with_memory(lambda memory: memory.journal(text)))

    async def grep(self, term: str, limit: int = LIMIT) -> list[Hit]:
        """Return the lines that contain a text, whether in upper or lower case: of `memory.md`, then of the journal,
        newest first; one's own, then those of linked workspaces, which begin with `[location] `.

        Args:
            term: the text; no pattern.
            limit: lines at most.

        Raises:
            ValueError: `term` is empty.
            MemoryFileError: one's own memory cannot be read. (That another's cannot is told in its place, as line 0.)
        """
        return await io_thread.run(self._workspace.with_memory(lambda memory: memory.grep(term, limit)))

    async def search(self, query: str, limit: int = SEARCH_LIMIT) -> list[Hit]:
        """Return the paragraphs that have the words of a query, the best first, of one's own memory and that of linked
        workspaces: those with all of the words, or if there is none, those with some.

        Args:
            query: words. Their endings do not matter (in English), nor do accents or capitals.
            limit: paragraphs at most.

        Raises:
            MemoryFileError: one's own memory cannot be read.
            ConfigError: the index is in use by another process for very long.
        """
        return await io_thread.run(self._workspace.with_memory(lambda memory: memory.search(query, limit)))


class AsyncLinks:
    """The workspaces that are linked with one, for programs with an event loop (any one): see `Links`."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    async def list(self) -> list[LinkedWorkspace]:
        """Return them, and whether their folders are there: all are looked at now, each for five seconds at most.

        Raises:
            AlbedoError: the session's own location begins with a home that cannot be found out now.
        """
        return await io_thread.run(self._workspace.linked())

    async def add(self, location: str | Location) -> None:
        """Link a workspace with this one: their groups become one.

        Raises:
            LocationError: `location` is none.
            WorkspaceLinkError: it is this one, they are linked already, or a folder of this machine is not there.
            HostError: it begins with a home that is not known, and the host cannot be asked.
        """
        other = location if isinstance(location, Location) else place(location)
        await io_thread.run(self._workspace.link(other))

    async def remove(self, location: str | Location | None = None) -> None:
        """Take a workspace out of the group.

        Args:
            location: its location, or its id in `list`; None for this one.

        Raises:
            WorkspaceLinkError: it is not linked with this one.
        """
        await io_thread.run(self._workspace.unlink(None if location is None else str(location)))


class Memory:
    """The memory of a workspace: Markdown files on this machine, below `$ALBEDO_HOME/memories`.

    Reads cover the workspaces that are linked with it, writes are its own. Several processes may write at the same
    time. From any thread; calls block. See `AsyncMemory` for what the methods take, return and raise.
    """

    def __init__(self, memory: AsyncMemory) -> None:
        self._memory = memory

    def read(self, max_chars: int | None = None, linked: bool = True) -> str:
        """Return `memory.md` and those of linked workspaces; see `AsyncMemory.read`."""
        return io_thread.run_blocking(self._memory.read(max_chars, linked))

    def save(self, text: str) -> None:
        """Have `memory.md` hold this text; see `AsyncMemory.save`."""
        io_thread.run_blocking(self._memory.save(text))

    def append(self, text: str) -> None:
        """Add a text to `memory.md`; see `AsyncMemory.append`."""
        io_thread.run_blocking(self._memory.append(text))

    def journal(self, text: str) -> None:
        """Add an entry to the journal of this day; see `AsyncMemory.journal`."""
        io_thread.run_blocking(self._memory.journal(text))

    def grep(self, term: str, limit: int = LIMIT) -> list[Hit]:
        """Return the lines that contain a text; see `AsyncMemory.grep`."""
        return io_thread.run_blocking(self._memory.grep(term, limit))

    def search(self, query: str, limit: int = SEARCH_LIMIT) -> list[Hit]:
        """Return the paragraphs that have the words of a query, the best first; see `AsyncMemory.search`."""
        return io_thread.run_blocking(self._memory.search(query, limit))


class Links:
    """The workspaces that are linked with one. From any thread; calls block. See `AsyncLinks`."""

    def __init__(self, links: AsyncLinks) -> None:
        self._links = links

    def list(self) -> list[LinkedWorkspace]:
        """Return them, and whether their folders are there; see `AsyncLinks.list`."""
        return io_thread.run_blocking(self._links.list())

    def add(self, location: str | Location) -> None:
        """Link a workspace with this one; see `AsyncLinks.add`."""
        io_thread.run_blocking(self._links.add(location))

    def remove(self, location: str | Location | None = None) -> None:
        """Take a workspace out of the group; see `AsyncLinks.remove`."""
        io_thread.run_blocking(self._links.remove(location))
