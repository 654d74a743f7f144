"""What a cell says, put together as it arrives: streams, displays, value and error, within bounds."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import in_words
from .checks import check_count
from .clipping import ClippedText
from .results import KernelReport, Output, Result

log = logging.getLogger("albedo_provisioner.sessions")

_TERMINAL_CODES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")

_MOST_ENTRIES = 1000
"""Outputs that are kept apart; what a cell prints beyond that is added to the newest of its stream."""

_LEAST = 200
"""Characters that each of them may have, whatever its stream has had already."""


@dataclass(frozen=True)
class Limits:
    """How much of a cell's output a result carries.

    Attributes:
        stdout: characters of stdout.
        stderr: characters of stderr.
        displays: bytes of displays and values together, as they are in JSON.
    """

    stdout: int = 200_000
    stderr: int = 50_000
    displays: int = 20_000_000

    def __post_init__(self) -> None:
        """See that they are numbers that can be kept to.

        Raises:
            ConfigError: one is below zero, or no whole number.
        """
        for name, value in vars(self).items():
            check_count(f"{name} of Limits", value, 0)


def plain(text: str) -> str:
    """Return a text without a terminal's colours and other codes (ECMA-48)."""
    return _TERMINAL_CODES.sub("", text)


class Outputs:
    """The outputs of one cell.

    Args:
        limits: how much of them to keep.
        folder: where the whole text of a stream goes that is longer than that, in files of `name`.
        name: the id of the cell's request.
        told: called with a copy of each output as it comes, whole, before anything is cut. It is the caller's code:
            what it raises is noted and changes nothing else.
    """

    def __init__(self, limits: Limits, folder: Path, name: str, told: Callable[[Output], None] | None = None) -> None:
        self.texts = {
            "stdout": ClippedText(limits.stdout, f"{folder}/{name}.stdout"),
            "stderr": ClippedText(limits.stderr, f"{folder}/{name}.stderr"),
        }
        self.value: str | None = None
        self.error: Output | None = None
        self.truncated = False
        """Whether displays were left out because they were too large together."""
        self.problem: str | None = None
        """What `told` raised first, in words, if it raised anything."""
        self._limits = limits
        self._folder = folder
        self._name = name
        self._told = told
        self._entries: list[Output | ClippedText] = []
        self._streams: list[tuple[str, ClippedText]] = []
        self._size = 0
        self._clear_at_next = False

    def take(self, msg_type: str, content: dict[str, Any]) -> None:
        """Take a message of the cell; those that are no output are passed over."""
        if msg_type == "clear_output":
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

    def tell_nobody(self) -> None:
        """Call `told` no more: its call has ended, though the code goes on."""
        self._told = None

    def close(self) -> None:
        """Take note that no more will come."""
        for text in self.texts.values():
            text.close()

    def result(self, status: str, cell_id: str, report: KernelReport) -> Result:
        """Return them as a cell's result."""
        error = self.error
        return Result(
            status=status,
            stdout=self.texts["stdout"].text,
            stderr=self.texts["stderr"].text,
            value=self.value,
            error=f"{error['ename']}: {error['evalue']}" if error else None,
            traceback=plain("\n".join(error["traceback"])) if error else None,
            traceback_colored="\n".join(error["traceback"]) if error else None,
            outputs=self.outputs,
            kernel=report,
            cell_id=cell_id,
            stdout_clipped=self.texts["stdout"].clipped,
            stderr_clipped=self.texts["stderr"].clipped,
            folder=str(self._folder),
            file=self._name,
        )

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
            self.error = output
        elif msg_type == "execute_result":
            value = output["data"].get("text/plain")
            self.value = value if isinstance(value, str) else None
        self._keep(output)

    def _stream(self, name: str) -> ClippedText:
        """Return what a stream's next text is added to: the newest output if it is of that stream."""
        newest = self._streams[-1] if self._streams else None
        if newest and newest[0] == name and self._entries and self._entries[-1] is newest[1]:
            return newest[1]
        if len(self._entries) >= _MOST_ENTRIES:
            for known, text in reversed(self._streams):
                if known == name:
                    return text
        kept = sum(text.kept for known, text in self._streams if known == name)
        limit = self._limits.stdout if name == "stdout" else self._limits.stderr
        # No file: the whole of the stream is in that of `texts` already.
        text = ClippedText(max(limit - kept, _LEAST), None)
        self._streams.append((name, text))
        self._entries.append(text)
        return text

    def _keep(self, output: Output) -> None:
        size = _size_of(output)
        if self._size + size > self._limits.displays or len(self._entries) >= _MOST_ENTRIES + 100:
            self.truncated = True
            kinds = ", ".join(output.get("data", {})) or output["output_type"]
            output = {
                "output_type": "stream",
                "name": "stderr",
                "text": f"[… an output of {size} bytes left out here ({kinds}) …]\n",
            }
            if self._entries and self._entries[-1] == output:
                return
            size = 0
        self._size += size
        self._entries.append(output)

    def _update(self, content: dict[str, Any]) -> None:
        display = content.get("transient", {}).get("display_id")
        fresh = _shaped("display_data", content)
        self._tell({**fresh, "output_type": "update_display_data"})
        for entry in self._entries:
            if isinstance(entry, dict) and display and entry.get("transient", {}).get("display_id") == display:
                self._size += _size_of(fresh) - _size_of(entry)
                entry.update(data=fresh["data"], metadata=fresh["metadata"])

    def _clear(self) -> None:
        """Forget the outputs, as a notebook does. What was printed stays in `texts`: an agent may need it."""
        self._entries.clear()
        self._streams.clear()
        self._size = 0

    def _tell(self, output: Output) -> None:
        if self._told is None:
            return
        try:
            self._told(copy.deepcopy(output))
        except BaseException as error:
            if self.problem is None:
                self.problem = in_words(error)
                log.exception("on_output of cell %s failed; it is told further outputs all the same", self._name)


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


def _size_of(output: Output) -> int:
    if output["output_type"] == "error":
        return sum(map(len, output["traceback"]))
    return sum(len(value) if isinstance(value, str) else len(repr(value)) for value in output["data"].values())
