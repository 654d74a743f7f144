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
