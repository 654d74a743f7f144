"""Notes that are kept with the user, and not on this host: for code in kernels.

    from albedo_bundle import memory
    memory.append("The gate opens at 7.")

They are plain files on the machine of whoever uses the kernel. Every call goes there over the link; while that is down
it waits, and it has its effect once. What is read covers the workspaces that are linked with this one.
"""

from __future__ import annotations

from typing import Any


class Hit(str):
    """A place in memory: a text such as `[gpu:/srv/data] memory.md:3: the line`.

    The location stands before it where that is another workspace than one's own.

    Attributes:
        location: the workspace.
        file: "memory.md" or "journal/2024-05-01.md".
        line: the line's number, or that of a paragraph's first line.
        text: the line, or what the paragraph has around the words.
    """

    location: str
    file: str
    line: int
    text: str

    @classmethod
    def make(cls, location: str, own: bool, file: str, line: int, text: str) -> Hit:
        """Return a hit; `own` is whether it is in one's own workspace."""
        hit = cls(f"{'' if own else f'[{location}] '}{file}:{line}: {text}")
        hit.location, hit.file, hit.line, hit.text = location, file, line, text
        return hit

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return {"hit": str(self), "location": self.location, "file": self.file, "line": self.line, "text": self.text}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Hit:
        """Return what `to_dict` was made from."""
        hit = cls(content["hit"])
        hit.location, hit.file, hit.line = content["location"], content["file"], content["line"]
        hit.text = content["text"]
        return hit


class MemoryFileError(RuntimeError):
    """Memory could not be read or written where it is kept; the message says why."""


def read(max_chars: int | None = None, linked: bool = True) -> str:
    """Return `memory.md`, and below it those of linked workspaces, each under a heading.

    Args:
        max_chars: characters at most; beyond them texts are cut in the middle, which is said there. One's own has half
            of them, and what the others do not need. None for no limit.
        linked: False for one's own alone, as it was saved.

    Raises:
        MemoryFileError: it cannot be read.
        CallError: nobody can be asked: this is no kernel of albedo_provisioner's. So do the other functions.
    """
    return str(_ask("read", max_chars=max_chars, linked=linked)["text"])


def save(text: str) -> None:
    """Have one's own `memory.md` hold this text and nothing else, at once.

    Raises:
        MemoryFileError: it cannot be written, or is too long (1 MiB); nothing has changed.
    """
    _ask("save", text=text)


def append(text: str) -> None:
    """Add a text at the end of one's own `memory.md`; see `save`."""
    _ask("append", text=text)


def journal(text: str) -> None:
    """Add an entry with the time to the file of this day, `journal/2024-05-01.md` (4 MiB at most); see `save`."""
    _ask("journal", text=text)


def grep(term: str, limit: int = 50) -> list[Hit]:
    """Return the lines that contain a text, whether in upper or lower case: of `memory.md`, then of the journal, newest
    first; one's own, then those of linked workspaces, which begin with `[location] `.

    Args:
        term: the text; no pattern.
        limit: lines at most.

    Raises:
        ValueError: `term` is empty.
        MemoryFileError: one's own `memory.md` cannot be read. (That another's cannot, or a file of a journal, is told
            in its place, as line 0.)
    """
    return [Hit.from_dict(each) for each in _ask("grep", term=term, limit=limit)["hits"]]


def search(query: str, limit: int = 10) -> list[Hit]:
    """Return the paragraphs that have the words of a query, the best first, of one's own memory and that of linked
    workspaces: those with all of the words, or if there is none, those with some.

    Args:
        query: words. Their endings do not matter (in English), nor do accents or capitals.
        limit: paragraphs at most.

    Raises:
        MemoryFileError: one's own memory cannot be read.
    """
    return [Hit.from_dict(each) for each in _ask("search", query=query, limit=limit)["hits"]]


def _ask(do: str, **arguments: Any) -> dict[str, Any]:
    from .calls import call

    answer, _ = call("memory", {"do": do, **arguments})
    if "error" in answer:
        raise (ValueError if answer["value"] else MemoryFileError)(answer["error"])
    return answer
