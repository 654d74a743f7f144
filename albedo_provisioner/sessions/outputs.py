"""What a cell says, put together as it arrives: streams, displays, value and error, within bounds."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .checks import check_count
from .clipping import ClippedText
from .listener import MOST_WAITING, Listener
from .results import KernelReport, Output, Result

WHOLE = "full_{}() has all of it for a week"
"""How a note says where the whole of a text is that is cut, by the name that the text has in a result."""

_TERMINAL_CODES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")

_MOST_ENTRIES = 1000
"""Outputs that are kept apart; what a cell prints beyond that is added to the newest of its stream."""

_LEAST_OF_ERROR = 1000
"""Characters that an error's message and its traceback may have at least, whatever the limits."""

_LONGEST_KINDS = 200
"""Characters of what is said of the kinds of an output that is left out."""

_LEAST = 200
"""Characters that each of them may have when its stream has had all that it may, until it has had as much again."""


@dataclass(frozen=True)
class Limits:
    """How much of a cell's output a result carries.

    Attributes:
        stdout: characters of stdout.
        stderr: characters of stderr; also of an error's message, and of its traceback, which have 1,000 in any case.
        displays: bytes of displays and values together, as they are in JSON: what is more is left out of `outputs`, and
            a line there says so.
        value: characters of `value`, also where it stands in `outputs`, and of `next_input`; no more than `displays`.
    """

    stdout: int = 200_000
    stderr: int = 50_000
    displays: int = 20_000_000
    value: int = 200_000

    def __post_init__(self) -> None:
        """See that they are numbers that can be kept to.

        Raises:
            ConfigError: one is below zero, or no whole number.
        """
        for name, value in vars(self).items():
            check_count(f"{name} of Limits", value, 0)

    def to_json(self) -> str:
        """Return them as text for a record; empty where nothing differs from what is usual, which costs nothing."""
        return "" if self == Limits() else json.dumps([int(value) for value in vars(self).values()])

    @classmethod
    def from_json(cls, text: str | None) -> Limits:
        """Return those that `to_json` made a text of; the usual ones where an earlier version noted none."""
        return cls(*json.loads(text)) if text else cls()


def plain(text: str) -> str:
    """Return a text without a terminal's colours and other codes (ECMA-48)."""
    return _TERMINAL_CODES.sub("", text)


class Outputs:
    """The outputs of one cell.

    Args:
        limits: how much of them to keep.
        folder: where the whole text of a stream goes that is longer than that, in files of `name`.
        name: the id of the cell's request.
        told: called with a copy of each output as it comes, whole, before anything is cut; see `Listener`.
    """

    def __init__(self, limits: Limits, folder: Path, name: str, told: Callable[[Output], None] | None = None) -> None:
        self.texts = {
            "stdout": ClippedText(limits.stdout, f"{folder}/{name}.stdout"),
            "stderr": ClippedText(limits.stderr, f"{folder}/{name}.stderr"),
        }
        self._limits = limits
        self._folder = folder
        self._name = name
        self._listener = None if told is None else Listener(told, name)
        self._tells = told is not None
        self._value: ClippedText | None = None
        self._error: ClippedText | None = None
        self._traceback: ClippedText | None = None
        self._next_input: ClippedText | None = None
        self._colored = ""
        self._entries: list[Output | ClippedText] = []
        self._streams: list[tuple[str, ClippedText]] = []
        self._size = 0
        self._gap: Output = {}  # the newest line that says what is left out
        self._left_out_there = (0, 0)  # how many outputs, and their bytes
        self._left_out = (0, 0)  # the same of all
        self._clear_at_next = False
        self._from_reply = False  # the error

    def take(self, msg_type: str, content: dict[str, Any]) -> None:
        """Take a message of the cell, the reply included; those that are no output are passed over."""
        if msg_type == "execute_reply":
            for page in content.get("payload") or []:  # as of `print?`, which a notebook shows in a pager
                if page.get("source") == "page":
                    self.take("display_data", {"data": page.get("data")})
                elif page.get("source") == "set_next_input":
                    self._next_input = self._clipped("next_input", str(page.get("text", "")), self._most_value)
        elif msg_type == "clear_output":
            self._clear_at_next = bool(content.get("wait"))
            if not self._clear_at_next:
                self._clear()
        elif msg_type == "update_display_data":
            self._update(content)
        elif msg_type in ("stream", "display_data", "execute_result", "error"):
            if self._clear_at_next:
                self._clear()
                self._clear_at_next = False
            self._add(msg_type, content)

    def take_error_of(self, reply: dict[str, Any]) -> None:
        """Take the error from the kernel's reply where it came by no message of its own."""
        if self._error is None and reply.get("status") == "error":
            self._from_reply = True
            self._add("error", reply)

    def tell_nobody(self) -> None:
        """Call `told` no more: its call has ended, though the code goes on."""
        self._tells = False
        if self._listener is not None:
            self._listener.abandon()

    async def all_told(self) -> None:
        """Wait until `told` was called with all of them."""
        if self._listener is not None and self._tells:
            await self._listener.close()

    def close(self) -> None:
        """Take note that no more will come."""
        for text in self.texts.values():
            text.close()

    def result(self, status: str, cell_id: str, report: KernelReport) -> Result:
        """Return them as a cell's result."""
        value, error, traceback, following = self._value, self._error, self._traceback, self._next_input
        return Result(
            status=status,
            stdout=self.texts["stdout"].text,
            stderr=self.texts["stderr"].text,
            value=value.text if value else None,
            error=error.text if error else None,
            traceback=traceback.text if traceback else None,
            traceback_colored=self._colored if traceback else None,
            outputs=self.outputs,
            kernel=report,
            cell_id=cell_id,
            stdout_clipped=self.texts["stdout"].clipped,
            stderr_clipped=self.texts["stderr"].clipped,
            value_clipped=value is not None and value.clipped,
            error_clipped=error is not None and error.clipped,
            traceback_clipped=traceback is not None and traceback.clipped,
            next_input=following.text if following else None,
            next_input_clipped=following is not None and following.clipped,
            folder=str(self._folder),
            file=self._name,
        )

    def remarks(self) -> list[str]:
        """Return what the user should know of them: what a result does not carry, and that `told` failed."""
        found = []
        if self._next_input is not None:
            found.append("`next_input` has what the code would put into the next cell; it was not run.")
        texts = {
            "value": self._value,
            "error": self._error,
            "traceback": self._traceback,
            "next_input": self._next_input,
        }
        for name, text in texts.items():
            if text is not None and text.clipped:
                rest = WHOLE.format(name) if text.problem is None else f"the rest: {text.problem}"
                found.append(f"The {name} has {text.kept + text.cut:,} characters and is cut in its middle; {rest}.")
        if self._from_reply:
            found.append(
                "The code failed, and the kernel did not send its error, perhaps for lone surrogates in it, which are "
                "no text; `error` is what the kernel answered instead."
            )
        for name, text in self.texts.items():
            if text.problem is not None:
                found.append(f"{name} is cut in its middle, and the whole of it could not be kept: {text.problem}.")
        if self._left_out[0]:
            found.append(f"Left out of `outputs`, as more than the limit for displays: {_amount(*self._left_out)}.")
        if self._listener is not None and self._listener.problem is not None:
            found.append(self._listener.problem)
        return found

    @property
    def outputs(self) -> list[Output]:
        """All outputs in the order they came in; the two streams are cut as `texts` are."""
        found: list[Output] = []
        names = {id(text): name for name, text in self._streams}
        for entry in self._entries:
            if isinstance(entry, ClippedText):
                found.append({"output_type": "stream", "name": names[id(entry)], "text": entry.text})
            else:
                found.append({key: value for key, value in entry.items() if key != "transient"})
        return found

    def _add(self, msg_type: str, content: dict[str, Any]) -> None:
        if msg_type == "stream":
            name = "stderr" if content.get("name") == "stderr" else "stdout"
            text = str(content.get("text", ""))
            self._tell({"output_type": "stream", "name": name, "text": text})
            self.texts[name].add(text)
            self._stream(name).add(text)
            return
        output = _shaped(msg_type, content)
        self._tell(output)
        if msg_type == "error":
            self._take_error(output)
            return
        if msg_type == "execute_result":
            value = output["data"].get("text/plain")
            self._value = self._clipped("value", value, self._most_value) if isinstance(value, str) else None
            if self._value is not None and self._value.clipped and self._limits.value < self._limits.displays:
                output["data"]["text/plain"] = self._value.text
        self._keep(output)

    @property
    def _most_value(self) -> int:
        return min(self._limits.value, self._limits.displays)

    def _clipped(self, name: str, text: str, limit: int) -> ClippedText:
        return ClippedText.of(text, limit, f"{self._folder}/{self._name}.{name}")

    def _take_error(self, output: Output) -> None:
        limit = max(self._limits.stderr, _LEAST_OF_ERROR)
        colored = "\n".join(output["traceback"])
        self._error = self._clipped("error", plain(f"{output['ename']}: {output['evalue']}"), limit)
        self._traceback = self._clipped("traceback", plain(colored), limit)
        self._colored = colored
        if len(colored) > limit:  # a cut might go through a terminal's code
            self._colored = self._traceback.text
            output["traceback"] = [self._colored]
        for key in ("ename", "evalue"):
            output[key] = ClippedText.of(output[key], limit, None).text
        # One has its room beside the displays. A cell may well show many.
        if any(isinstance(entry, dict) and entry["output_type"] == "error" for entry in self._entries):
            self._keep(output)
        else:
            self._entries.append(output)

    def _stream(self, name: str) -> ClippedText:
        """Return what a stream's next text is added to: the newest output if it is of that stream."""
        newest = self._streams[-1] if self._streams else None
        if newest and newest[0] == name and self._entries and self._entries[-1] is newest[1]:
            return newest[1]
        limit = self._limits.stdout if name == "stdout" else self._limits.stderr
        full = len(self._entries) >= _MOST_ENTRIES
        kept = 0 if full else sum(text.kept for known, text in self._streams if known == name)
        if full or kept >= 2 * limit:
            for known, text in reversed(self._streams):
                if known == name:
                    return text
        # No file: the whole of the stream is in that of `texts` already.
        text = ClippedText(max(limit - kept, _LEAST), None)
        self._streams.append((name, text))
        self._entries.append(text)
        return text

    def _keep(self, output: Output) -> None:
        size = _size_of(output, self._limits.displays)
        if self._size + size > self._limits.displays or len(self._entries) >= _MOST_ENTRIES + 100:
            self._leave_out(size, ", ".join(output.get("data", {}))[:_LONGEST_KINDS] or output["output_type"])
        else:
            self._size += size
            self._entries.append(output)

    def _leave_out(self, size: int, kinds: str) -> None:
        """Have a line in place of an output, or of several in a row; of more than are kept apart, one line for all."""
        self._left_out = (self._left_out[0] + 1, self._left_out[1] + size)
        in_a_row = bool(self._entries) and self._entries[-1] is self._gap
        if in_a_row or (self._gap and len(self._entries) >= _MOST_ENTRIES + 100):
            self._left_out_there = (self._left_out_there[0] + 1, self._left_out_there[1] + size)
            what = _amount(*self._left_out_there)
        else:
            self._left_out_there = (1, size)
            self._gap = {"output_type": "stream", "name": "stderr"}
            self._entries.append(self._gap)
            what = f"{_amount(1, size)} ({kinds})"
        self._gap["text"] = f"[… left out here: {what} …]\n"

    def _update(self, content: dict[str, Any]) -> None:
        display = content.get("transient", {}).get("display_id")
        fresh = _shaped("display_data", content)
        self._tell({**fresh, "output_type": "update_display_data"})
        size = _size_of(fresh, self._limits.displays)
        for entry in self._entries:
            if isinstance(entry, dict) and display and entry.get("transient", {}).get("display_id") == display:
                self._size -= _size_of(entry, self._limits.displays)
                if self._size + size > self._limits.displays:
                    self._left_out = (self._left_out[0] + 1, self._left_out[1] + size)
                    words = f"[… left out here: an update of {size:,} bytes …]"
                    entry.update(data={"text/plain": words}, metadata={})
                else:
                    entry.update(data=fresh["data"], metadata=fresh["metadata"])
                self._size += _size_of(entry, self._limits.displays)

    def _clear(self) -> None:
        """Forget the outputs, as a notebook does. What was printed stays in `texts`: an agent may need it."""
        self._entries.clear()
        self._streams.clear()
        self._size, self._gap = 0, {}

    def _tell(self, output: Output) -> None:
        if self._listener is not None and self._tells:
            size = len(output["text"]) if "text" in output else _size_of(output, MOST_WAITING)
            self._listener.tell(copy.deepcopy(output), size)


def _shaped(msg_type: str, content: dict[str, Any]) -> Output:
    if msg_type == "error":
        return {
            "output_type": "error",
            "ename": str(content.get("ename", "")),
            "evalue": str(content.get("evalue", "")),
            "traceback": [str(line) for line in content.get("traceback") or []],
        }
    output: Output = {
        "output_type": msg_type,
        "data": dict(content.get("data") or {}),
        "metadata": dict(content.get("metadata") or {}),
    }
    if msg_type == "execute_result":
        output["execution_count"] = content.get("execution_count")
    if content.get("transient"):
        output["transient"] = dict(content["transient"])
    return output


def _size_of(output: Output, most: int) -> int:
    """Return the bytes of an output in JSON; of one that has more than `most` at least so many as it has letters."""
    content = {key: value for key, value in output.items() if key != "transient"}
    letters = sum(len(value) for value in content.get("data", {}).values() if isinstance(value, str))
    return letters if letters > most else len(json.dumps(content))


def _amount(count: int, size: int) -> str:
    return f"{'an output' if count == 1 else f'{count:,} outputs'} of {size:,} bytes"
