"""Where a job's output comes from and goes to: pipes, files, and other jobs."""

from __future__ import annotations

import os
import selectors

from .job_output import OutputFile

TYPE_CHECKING = False  # not from typing: see processes.py
if TYPE_CHECKING:
    from .job_process import JobProcess

READ = 65536


class Stream:
    """One of a program's outputs: the pipe it comes from and the file it goes to.

    Args:
        path: the file, which must not exist.
        keep: bytes of it to keep.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, path: str, keep: int) -> None:
        self.file = OutputFile(path, keep)
        self.incoming, self.outgoing = os.pipe()
        os.set_blocking(self.incoming, False)
        self.read_up = False
        """Whether all that the program itself can have written has been read."""

    def close(self) -> None:
        """Take no more."""
        if self.incoming >= 0:
            os.close(self.incoming)
        self.incoming = -1
        self.file.close()


class Feeder:
    """Gives a job's output to another's standard input, from its beginning.

    Args:
        source: the job whose output it is.
        descriptor: the other's input, a pipe; closed at the end.
        reader: the other.
    """

    def __init__(self, source: JobProcess, descriptor: int, reader: JobProcess) -> None:
        self.position = 0
        """How much of it has been given."""
        self._source = source
        self._descriptor = descriptor
        self._reader = reader
        self._writing = False
        # A descriptor of its own: the file may be closed, and removed, before all of it has been handed on.
        self._file = os.open(source.streams["output"].file.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        os.set_blocking(descriptor, False)

    def look(self) -> None:
        """Go on if there is something to give, and stop waiting if there is not."""
        source = self._source
        if self._descriptor < 0:
            return
        file = source.streams["output"].file
        if file.lost:
            self._reader.input_problem = f"not all of its input could be kept for it ({file.problem})"
            self.close()
        elif self.position == file.total and source.read_up:
            self.close()
        elif (self.position < file.total) != self._writing:
            self._writing = not self._writing
            if self._writing:
                source.selector.register(self._descriptor, selectors.EVENT_WRITE, self._write)
            else:
                source.selector.unregister(self._descriptor)

    def _write(self, _: int) -> None:
        data = os.pread(self._file, READ, self._source.streams["output"].file.place(self.position))
        try:
            self.position += os.write(self._descriptor, data)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:  # the other program wants no more
            return self.close()
        self.look()
        return self._source.throttle()

    def close(self) -> None:
        """Give no more."""
        if self._writing:
            self._source.selector.unregister(self._descriptor)
        os.close(self._descriptor)
        os.close(self._file)
        self._descriptor, self._writing = -1, False
        self._source.feeders.remove(self)
        self._source.throttle()
