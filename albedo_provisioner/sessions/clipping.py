"""Text of any length within a bound: its beginning and its end here, the whole of it in a file."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path


class ClippedText:
    """Takes text piece by piece and keeps at most `limit` characters of it, from both ends.

    What is cut out of the middle is not lost: once the limit is passed, all of it goes to a file if there is to be one.

    Args:
        limit: characters to keep, at least 2.
        path: the file (0600) for the whole text, which is made only when it is needed; None keeps none.
    """

    def __init__(self, limit: int, path: str | os.PathLike[str] | None) -> None:
        self._head_limit = limit // 2
        self._tail_limit = limit - self._head_limit
        self._path = path
        self._head: list[str] = []
        self._head_size = 0
        self._tail: deque[str] = deque()
        self._tail_size = 0
        self._file: int | None = None
        self.cut = 0
        """Characters that are missing from `text`."""
        self.problem: str | None = None
        """Why the file could not be written, in the system's words, if it could not."""

    @property
    def clipped(self) -> bool:
        """Whether anything is missing from `text`."""
        return self.cut > 0

    @classmethod
    def of(cls, text: str, limit: int, path: str | os.PathLike[str] | None) -> ClippedText:
        """Return one of a text that is there already; see the class."""
        clipped = cls(limit, path)
        clipped.add(text)
        clipped.close()
        return clipped

    def add(self, piece: str) -> None:
        """Take a piece."""
        if self._file is not None:
            self._write(piece)
        room = self._head_limit - self._head_size
        if room > 0:
            self._head.append(piece[:room])
            self._head_size += len(self._head[-1])
            piece = piece[room:]
        if piece:
            self._tail.append(piece)
            self._tail_size += len(piece)
            if self._tail_size > self._tail_limit:
                if not self.cut:
                    self._spill()
                self._shorten()

    @property
    def kept(self) -> int:
        """Characters that are kept."""
        return self._head_size + self._tail_size

    @property
    def text(self) -> str:
        """What is kept, with a line in the middle that says how much is not."""
        gap = f"\n[… {self.cut} characters cut …]\n" if self.cut else ""
        return "".join(self._head) + gap + "".join(self._tail)

    def full_text(self) -> str:
        """Return all of it.

        Raises:
            OSError: the file could not be written, is gone or cannot be read.
        """
        if not self.cut:
            return self.text
        if self._path is None or self.problem is not None:
            raise OSError(f"the whole text could not be kept: {self.problem}")
        return Path(self._path).read_text(encoding="utf-8", errors="surrogatepass")

    def close(self) -> None:
        """Close the file: no more pieces will come."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _shorten(self) -> None:
        excess = self._tail_size - self._tail_limit
        self.cut += excess
        self._tail_size -= excess
        while excess:
            first = self._tail.popleft()
            if len(first) > excess:
                self._tail.appendleft(first[excess:])
            excess = max(0, excess - len(first))

    def _spill(self) -> None:
        if self._path is None:
            return
        try:
            Path(self._path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self.problem = error.strerror
            return
        for piece in (*self._head, *self._tail):
            self._write(piece)

    def _write(self, piece: str) -> None:
        data = memoryview(piece.encode("utf-8", "surrogatepass"))
        try:
            while data and self._file is not None:
                data = data[os.write(self._file, data) :]
        except OSError as error:  # a full disk must not cost the result
            self.problem = error.strerror
            self.close()
            if self._path is not None:  # a part of it must not be taken for the whole
                Path(self._path).unlink(missing_ok=True)
