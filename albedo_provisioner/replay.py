"""A cell's outputs from its messages, as a notebook front end would have built them had it been there. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from nbformat import NotebookNode
from nbformat.v4 import new_output as _new_output

from .kernels.journal import JournalCell, Message

_TIMES = {
    "execute_input": "iopub.execute_input",
    "execute_reply": "shell.execute_reply",
    "busy": "iopub.status.busy",
    "idle": "iopub.status.idle",
}
"""What JupyterLab and nbclient call the moments of a cell in its metadata (`execution`)."""


class Replay:
    """What one cell of the journal comes to. Several share `displays`, because one may update what another shows.

    Args:
        cell: the journal's cell.
        saved: the outputs that the notebook's cell has; empty when that does not matter.
        displays: the replays that show something under a display id.
    """

    def __init__(self, cell: JournalCell, saved: Sequence[NotebookNode], displays: dict[str, list[Replay]]) -> None:
        self.cell = cell
        self.count: int | None = None
        """The execution count, once the kernel has told it."""
        self.times: dict[str, str] = {}
        """When what happened, as JupyterLab notes it in a cell's metadata."""
        self.latest = ""
        """When the kernel said its last word about it, ISO 8601."""
        self.went_through_saved = False
        """Whether the outputs saved are what this cell had shown at some moment: the file then has nothing newer."""
        self._saved = normal(saved)
        self._displays = displays
        self._outputs: list[_Output] = []
        self._clear_at_next = False

    def run(self) -> None:
        """Take all messages."""
        for message in self.cell.messages:
            self._take(message)
            self.latest = message.date or self.latest
        self._look()

    def outputs(self) -> list[NotebookNode]:
        """Return the outputs in the notebook's format, with a word about what the journal did not keep."""
        made = [output.made() for output in self._outputs]
        if self.cell.dropped:
            words = (
                f"[albedo] {self.cell.dropped} messages of output are missing here: "
                "they were more than the journal keeps of one cell.\n"
            )
            made.append(new_output("stream", name="stderr", text=words))
        return normal(made)

    def _take(self, message: Message) -> None:
        content, kind = message.content, message.msg_type
        moment = _TIMES.get(str(content.get("execution_state")) if kind == "status" else kind)
        if moment is not None and message.date:
            self.times[moment] = message.date
        if kind in ("execute_input", "execute_reply"):
            count = content.get("execution_count")
            self.count = count if isinstance(count, int) else self.count
        elif kind == "clear_output":
            if content.get("wait"):
                self._clear_at_next = True
            else:
                self._clear()
        elif kind == "update_display_data":
            self._update(content)
        elif kind in ("stream", "display_data", "execute_result", "error"):
            if self._clear_at_next:
                self._clear()
            self._add(kind, content)

    def _clear(self) -> None:
        self._look()
        self._outputs.clear()
        self._clear_at_next = False

    def _add(self, kind: str, content: dict[str, Any]) -> None:
        if kind == "stream":
            name, text = str(content.get("name", "stdout")), str(content.get("text", ""))
            last = self._outputs[-1] if self._outputs else None
            if last is not None and last.kind == "stream" and last.fields["name"] == name:
                last.chunks.append(text)
            elif text:
                self._outputs.append(_Output("stream", {"name": name}, [text]))
            return
        if kind == "error":
            fields = {
                "ename": str(content.get("ename", "")),
                "evalue": str(content.get("evalue", "")),
                "traceback": list(content.get("traceback") or ()),
            }
            self._outputs.append(_Output("error", fields))
            return
        output = _Output(kind, _bundle(content))
        if kind == "execute_result":
            output.fields["execution_count"] = content.get("execution_count")
        output.display_id = _display_id(content)
        if output.display_id is not None:
            self._displays.setdefault(output.display_id, []).append(self)
        self._outputs.append(output)

    def _update(self, content: dict[str, Any]) -> None:
        display_id = _display_id(content)
        for shown in dict.fromkeys(self._displays.get(display_id, ()) if display_id is not None else ()):
            shown._look()
            for output in shown._outputs:
                if output.display_id == display_id:
                    output.fields.update(_bundle(content))

    def _look(self) -> None:
        """See whether the outputs saved are the present ones, or their beginning; called before anything goes away."""
        saved = self._saved
        if self.went_through_saved or not saved or len(saved) > len(self._outputs):
            return
        *front, last = saved
        present = [output.made() for output in self._outputs[: len(saved)]]
        self.went_through_saved = all(map(_same, front, present)) and _begins(present[-1], last)


class _Output:
    """An output in the making. A stream's text is kept in pieces, of which there may be very many."""

    def __init__(self, kind: str, fields: dict[str, Any], chunks: list[str] | None = None) -> None:
        self.kind = kind
        self.fields = fields
        self.chunks = chunks or []
        self.display_id: str | None = None

    def made(self) -> NotebookNode:
        if self.kind != "stream":
            return new_output(self.kind, **self.fields)
        if len(self.chunks) > 1:
            self.chunks = ["".join(self.chunks)]
        return new_output("stream", **self.fields, text=self.chunks[0])


def new_output(output_type: str, **fields: Any) -> NotebookNode:
    """Return an output in the notebook's format."""
    return cast(NotebookNode, cast(Any, _new_output)(output_type, **fields))


def _bundle(content: dict[str, Any]) -> dict[str, Any]:
    return {"data": dict(content.get("data") or {}), "metadata": dict(content.get("metadata") or {})}


def _display_id(content: dict[str, Any]) -> str | None:
    display_id = (content.get("transient") or {}).get("display_id")
    return display_id if isinstance(display_id, str) else None


def normal(outputs: Sequence[NotebookNode]) -> list[NotebookNode]:
    """Return outputs with neighbouring pieces of the same stream as one, so that equal ones compare equal."""
    merged: list[NotebookNode] = []
    for output in outputs:
        if output.output_type == "stream":
            if not output.text:
                continue
            if merged and merged[-1].output_type == "stream" and merged[-1].name == output.name:
                merged[-1] = new_output("stream", name=output.name, text=merged[-1].text + output.text)
                continue
        merged.append(output)
    return merged


def equal(one: Sequence[NotebookNode], other: Sequence[NotebookNode]) -> bool:
    """Whether two cells' outputs are the same to the eye of a reader."""
    first, second = normal(one), normal(other)
    return len(first) == len(second) and all(map(_same, first, second))


def _same(one: NotebookNode, other: NotebookNode) -> bool:
    if one == other:
        return True
    return _same_stream(one, other) and shown(one.text) == shown(other.text)


def _same_stream(one: NotebookNode, other: NotebookNode) -> bool:
    return bool(one.output_type == other.output_type == "stream" and one.name == other.name)


def _begins(whole: NotebookNode, part: NotebookNode) -> bool:
    """Whether an output is the other one, or a stream that begins with it."""
    if _same(whole, part):
        return True
    if not _same_stream(whole, part):
        return False
    if str(whole.text).startswith(part.text):
        return True
    if "\r" not in whole.text and "\b" not in whole.text:
        return False
    # The last line was still being overwritten (a progress bar) when it was saved.
    finished_lines = shown(part.text).rpartition("\n")[0]
    return shown(whole.text).startswith(finished_lines)


def shown(text: str) -> str:
    """Return text as a terminal shows it, and as JupyterLab saves it: after carriage returns and backspaces."""
    if "\r" not in text and "\b" not in text:
        return text
    return "\n".join(map(_overwritten, text.replace("\r\n", "\n").split("\n")))


def _overwritten(line: str) -> str:
    if "\b" in line:
        kept: list[str] = []
        for character in line:
            if character != "\b":
                kept.append(character)
            elif kept and kept[-1] != "\r":
                kept.pop()
        line = "".join(kept)
    result = ""
    for piece in line.split("\r"):
        result = piece + result[len(piece) :]
    return result
