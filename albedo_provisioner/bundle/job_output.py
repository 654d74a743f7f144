"""A job's output on disk: a private file of bounded size, its beginning and its end kept, that survives a full disk."""

from __future__ import annotations

import os

LEAST = 1 << 20
"""Bytes that are kept at the least."""

KEEP = 64 << 20
"""Bytes that are kept unless the job says otherwise."""

_MARKER = "\n[{:>20} bytes of output were cut out here]\n"
_MARKER_SIZE = len(_MARKER.format(0))
_COPY = 1 << 20


class OutputFile:
    """Takes bytes and keeps the first and the last of them.

    The file has what came until that is more than `keep` bytes. Then its middle is cut: there are the first half of
    `keep`, a line that says how much is missing, and the last quarter. It grows to `keep` again before that is done
    once more, so that each byte is moved once at most, and in the file itself: a full disk is no obstacle.

    Args:
        path: the file, which must not exist.
        keep: bytes to keep, beside the line.

    Attributes:
        path: the file.
        total: bytes that have come.
        cut: how many of them are not in the file any more, out of the middle.
        lost: how many of them could not be written.
        size: bytes in the file.
        problem: why not, in the system's words; empty when all could.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, path: str, keep: int = KEEP) -> None:
        self.path = path
        self.total = 0
        self.cut = 0
        self.lost = 0
        self.problem = ""
        self._head = max(keep, LEAST) // 2
        self._tail = self._head // 2
        self.size = 0
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o600)

    @property
    def lag(self) -> int:
        """Bytes by which a reader may be behind without missing any."""
        return self._tail

    @property
    def whole(self) -> bool:
        """Whether everything that came is in the file, as it came."""
        return not self.cut and not self.lost

    def append(self, data: bytes) -> None:
        """Take bytes; never raises for a disk that cannot take them."""
        self.total += len(data)
        try:
            while data:
                written = os.pwrite(self._file, data, self.size)
                self.size += written
                data = data[written:]
            if self.size > 2 * self._head:
                self._cut()
        except OSError as error:
            self.lost += len(data)
            self.problem = error.strerror or str(error)

    def _cut(self) -> None:
        """Take out the middle, in place."""
        marked = _MARKER_SIZE if self.cut else 0
        first, target = self.size - self._tail, self._head + _MARKER_SIZE
        self.cut += first - self._head - marked
        moved = 0
        while part := os.pread(self._file, _COPY, first + moved):
            os.pwrite(self._file, part, target + moved)
            moved += len(part)
        os.pwrite(self._file, _MARKER.format(self.cut).encode(), self._head)
        self.size = target + moved
        os.ftruncate(self._file, self.size)

    def place(self, position: int) -> int:
        """Return where in the file a byte of what came is, if that was neither cut nor lost."""
        if position < self._head or not self.cut:
            return position
        return position - self.cut + _MARKER_SIZE

    def close(self) -> None:
        """Take no more; the file stays."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def excerpt(path: str, most: int, cut: int = 0) -> tuple[bytes, int, bytes]:
    """Return the beginning of a job's output, how many bytes are missing after it, and the end.

    Args:
        path: the file.
        most: bytes of the file to return at most; all of it comes as the end if it has no more.
        cut: how many bytes have been cut out of the file's own middle.

    Raises:
        OSError: the file is not there any more, or cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        size = os.fstat(descriptor).st_size
        if size <= most:
            return b"", 0, os.pread(descriptor, size, 0)
        head = most // 2
        tail = most - head
        missing = size - most + (cut - _MARKER_SIZE if cut else 0)
        return os.pread(descriptor, head, 0), missing, os.pread(descriptor, tail, size - tail)
    finally:
        os.close(descriptor)
