"""What came of a cell: plain data that an agent can hand on."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

Output = dict[str, Any]
"""One output in nbformat's shape: a stream, display_data, execute_result or error."""

OK, ERROR, TIMEOUT, INTERRUPTED, LOST = "ok", "error", "timeout", "interrupted", "lost"


@dataclass
class KernelReport:
    """What became of the kernel, and of what earlier calls had put into it.

    Attributes:
        reused: the kernel was there already, with the state of earlier calls.
        remote: it runs on another host.
        host: which, as the user spells it; "this machine" for the local one.
        location: the session's folder.
        execution_count: the cell's number in its kernel; None when the kernel never told one.
        state_lost: what earlier calls had put into the kernel is gone although nobody asked for that; `note` says why.
        state_reset: it is gone because a fresh kernel was asked for: by this call, a `reset` or a `move`.
        ended: there is no kernel now: the next call starts a fresh one.
        note: what the user should know, in a sentence or two; None when there is nothing to say.
    """

    reused: bool = False
    remote: bool = False
    host: str = ""
    location: str = ""
    execution_count: int | None = None
    state_lost: bool = False
    state_reset: bool = False
    ended: bool = False
    note: str | None = None


@dataclass
class Result:
    """What came of one cell.

    Attributes:
        status: "ok", "error" (the code raised), "timeout", "interrupted", or "lost" (the kernel ended under it, or
            never answered).
        stdout: what it printed; cut in the middle beyond the limit.
        stderr: the same of stderr.
        value: the `text/plain` of its last expression; None when that has none. Cut in the middle beyond the limit, as
            are the next two.
        error: "NameError: name 'x' is not defined"; None when it raised nothing.
        traceback: the error's traceback, without a terminal's colours; None when there is none.
        outputs: everything in order of arrival, in nbformat's shapes; what a pager would show is a display.
        kernel: what became of the kernel.
        duration: seconds from sending the code to its end.
        cell_id: by which `Session.cell` finds it again.
        tool_calls_made: how many calls of tools it made.
        stdout_clipped: whether `stdout` is cut; `full_stdout()` has all of it for a while.
        stderr_clipped: the same of `stderr`.
        traceback_colored: the traceback as a terminal shows it; without colours when it is cut.
        value_clipped: whether `value` is cut; `full_value()` has all of it for a while.
        error_clipped: the same of `error`.
        traceback_clipped: the same of `traceback`.
        next_input: the text that the code would have a notebook put into the next cell, as `%load` and `%recall` do; it
            was not run. None when there is none. Cut in the middle beyond the limit for displays.
        next_input_clipped: whether it is cut; `full_next_input()` has all of it for a while.
    """

    status: str
    stdout: str = ""
    stderr: str = ""
    value: str | None = None
    error: str | None = None
    traceback: str | None = None
    outputs: list[Output] = field(default_factory=list)
    kernel: KernelReport = field(default_factory=KernelReport)
    duration: float = 0.0
    cell_id: str = ""
    tool_calls_made: int = 0
    stdout_clipped: bool = False
    stderr_clipped: bool = False
    traceback_colored: str | None = None
    value_clipped: bool = False
    error_clipped: bool = False
    traceback_clipped: bool = False
    next_input: str | None = None
    next_input_clipped: bool = False
    folder: str = ""
    """Where the whole texts are, if they are anywhere."""
    file: str = ""
    """The name of their files there, without its ending."""

    @property
    def ok(self) -> bool:
        """Whether the cell came to its end without an error."""
        return self.status == OK

    @property
    def execution_count(self) -> int | None:
        """The cell's number in its kernel."""
        return self.kernel.execution_count

    def full_stdout(self) -> str:
        """Return all that was printed on stdout.

        Raises:
            OSError: it was cut, and the whole is not kept any more.
        """
        return self._full("stdout", self.stdout, self.stdout_clipped)

    def full_stderr(self) -> str:
        """Return all that was printed on stderr; see `full_stdout`."""
        return self._full("stderr", self.stderr, self.stderr_clipped)

    def full_value(self) -> str | None:
        """Return all of the value; see `full_stdout`."""
        return None if self.value is None else self._full("value", self.value, self.value_clipped)

    def full_error(self) -> str | None:
        """Return all of the error; see `full_stdout`."""
        return None if self.error is None else self._full("error", self.error, self.error_clipped)

    def full_traceback(self) -> str | None:
        """Return all of the traceback, without colours; see `full_stdout`."""
        return None if self.traceback is None else self._full("traceback", self.traceback, self.traceback_clipped)

    def full_next_input(self) -> str | None:
        """Return all of `next_input`; see `full_stdout`."""
        return None if self.next_input is None else self._full("next_input", self.next_input, self.next_input_clipped)

    def _full(self, name: str, text: str, clipped: bool) -> str:
        if not clipped:
            return text
        path = Path(self.folder) / f"{self.file or self.cell_id}.{name}"
        try:
            return path.read_text(encoding="utf-8", errors="surrogatepass")
        except FileNotFoundError as error:
            why = f"The whole of {name} is not kept: it is too old, or there was no room for it."
            raise FileNotFoundError(error.errno, why, str(path)) from None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON with the attributes as keys."""
        content: dict[str, Any] = json.loads(self.to_json())
        return content

    def to_json(self) -> str:
        """Return `to_dict()` as text."""
        content = {**vars(self), "kernel": vars(self.kernel)}
        del content["folder"], content["file"]
        return json.dumps(content)

    @classmethod
    def from_dict(cls, content: dict[str, Any], folder: str, file: str) -> Result:
        """Return what `to_dict` was made from; keys of a later version are passed over.

        Args:
            content: that.
            folder: where the whole texts of results are.
            file: the name of this one's files there, without its ending.
        """
        known = {each.name for each in fields(cls)}
        report = {each.name for each in fields(KernelReport)}
        kernel = KernelReport(**{key: value for key, value in content.get("kernel", {}).items() if key in report})
        rest = {key: value for key, value in content.items() if key in known and key not in _OURS}
        return cls(**rest, kernel=kernel, folder=folder, file=file)


_OURS = ("kernel", "folder", "file")
"""Attributes that are not taken over as they are in a dictionary."""


def status_of(reply: dict[str, Any]) -> str:
    """Return a result's status from the content of the kernel's reply."""
    return OK if reply.get("status") == "ok" else ERROR


def is_interrupt(reply: dict[str, Any]) -> bool:
    """Whether the content of the kernel's reply is that of a cell which an interrupt ended."""
    # In a cell that awaits something ipykernel makes a CancelledError of it.
    return reply.get("ename") in ("KeyboardInterrupt", "CancelledError") or reply.get("status") == "aborted"
