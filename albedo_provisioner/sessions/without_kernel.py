"""Running code once on a host where no kernel can be started; the host's half is `bundle/oneshot.py`."""

from __future__ import annotations

import asyncio
import json
import struct
import time
from typing import Any

from ..bundle.oneshot import INTERRUPT_GRACE, MOST_CODE
from ..errors import AlbedoError
from ..hosts.asking import ask
from ..hosts.staging import bare_text
from ..hosts.visit import Visit
from ..kernels.endings import how_it_ended
from .entries import SessionRecord
from .outputs import Outputs
from .results import ERROR, INTERRUPTED, LOST, OK, TIMEOUT, KernelReport, Result, is_interrupt

_MOST_OUTCOME = 256 << 20
"""Bytes of what came of the code that are taken from the host."""

_AT_THE_HOST = """
import_ours(request, read, report, is_trusted)
from albedo_bundle import entry
entry.main(request)
"""
"""Nothing is put on the host for it, since that its disk is full may be the reason why there is no kernel."""


class RunAlone:
    """One run of code in a fresh interpreter; on the I/O thread. It is a `Parcel` that takes the code to the host.

    Args:
        session: whose folder and environment it has.
        code: the code.
        timeout: seconds for the code, after which it is interrupted; None for no limit.
        outputs: take what it prints.
        cell_id: the id of its call.

    Attributes:
        cell_id: that id.
        since: when it was made, by the monotonic clock.
        begun: whether the code may have begun. As long as not, it certainly has not.
        notes: what its result is to say.
    """

    step = "asking"

    def __init__(
        self, session: SessionRecord, code: str, timeout: float | None, outputs: Outputs, cell_id: str
    ) -> None:
        self.cell_id = cell_id
        self.since = time.monotonic()
        self.begun = False
        self.notes: list[str] = []
        self._session = session
        self._code = code.encode("utf-8", "surrogatepass")
        self._timeout = timeout
        self._outputs = outputs
        self._outcome: list[str] = []
        self._size = 0
        self._visit: Visit | None = None
        self._asking: asyncio.Task[dict[str, Any]] | None = None
        self._called_off = False

    async def run(self, report: KernelReport) -> Result:
        """Run it, and return what came of it: "lost" if its host has not told.

        Raises:
            AlbedoError: that cannot be done, and the code has not begun.
        """
        location = self._session.location
        if len(self._code) > MOST_CODE:
            raise AlbedoError(f"The code has {len(self._code)} bytes, of {MOST_CODE} at most.")
        request = {
            "do": "run",
            "code": bare_text("unstaged.py") + _AT_THE_HOST,
            "cwd": location.path,
            "env": self._session.env,
            "timeout": self._timeout,
            "grace": INTERRUPT_GRACE,
        }
        self._asking = asyncio.ensure_future(ask(location.host, request, self._session.python, self))
        try:
            status = self._ended((await self._asking)["done"])
        except asyncio.CancelledError:
            if not self._called_off:
                raise
            status = INTERRUPTED
            self.notes.append("The call was interrupted before the code could begin, and it was not run.")
        except AlbedoError as error:
            if not self.begun:
                raise
            status = LOST
            self.notes.append(
                f"What came of the code was not told: it may have run, in part or to its end, and what it had printed "
                f"by then may be missing. {str(error).rstrip('.')}."
            )
        self._outputs.close()
        result = self._outputs.result(status, self.cell_id, report)
        if status == ERROR and result.error is None:
            result.error = self.notes[0]
        return result

    def interrupt(self) -> bool:
        """Interrupt the code; False when it is over. It has some seconds to come to its end then, as after a time-out.

        What has not begun yet will not.
        """
        if self._asking is None or self._asking.done():
            return False
        if self._visit is None:
            self._called_off = True
            self._asking.cancel()
        else:
            self._visit.write(b"!")
        return True

    def heard(self, visit: Visit, report: dict[str, Any]) -> bool:
        """Send the code when asked to, and take what comes before the answer."""
        if report.get("need") == "code":
            self._visit, self.begun = visit, True
            visit.write(struct.pack("!I", len(self._code)), self._code)
        elif "output" in report:
            self._outputs.take("stream", report["output"])
        elif "outcome" in report:
            self._size += len(report["outcome"])
            if self._size <= _MOST_OUTCOME:
                self._outcome.append(report["outcome"])
        else:
            return "alive" in report
        return True

    def writable(self, yes: bool) -> None:
        """Nothing is sent in pieces."""

    def _ended(self, done: dict[str, Any]) -> str:
        """Take what came of the code, note what there is to say of its end, and return the result's status."""
        outcome = json.loads("".join(self._outcome)) if self._outcome else None
        if outcome is not None and "ename" in outcome:
            self._outputs.take("error", outcome)
        elif outcome is not None and "value" in outcome:
            content = {"data": {"text/plain": outcome["value"]}, "metadata": {}, "execution_count": None}
            self._outputs.take("execute_result", content)
        if done["timed_out"]:
            self.notes.append(f"The code ran for more than {self._timeout or 0:g} s and was interrupted{_after(done)}.")
        elif done["interrupted"] and (done["killed"] or outcome is None):
            self.notes.append(f"The code was interrupted{_after(done)}.")
        elif outcome is None:
            host = self._session.location.host or "this machine"
            self.notes.append(f"The interpreter on {host} {how_it_ended(done)} and had not told what came of the code.")
        elif done["code"] != 0:
            self.notes.append(f"The code had come to its end when its interpreter {how_it_ended(done)}.")
        if done["ended"]:
            names = ", ".join(map(_shown, done["ended"]))
            more = f" and {done['count'] - len(done['ended'])} more" if done["count"] > len(done["ended"]) else ""
            self.notes.append(f"What it had left running ended with it: {names}{more}.")
        if done["left"]:
            self.notes.append(f"This could not be ended: {'; '.join(map(_shown, done['left']))}.")
        if done["timed_out"]:
            return TIMEOUT
        if done["interrupted"] and (outcome is None or is_interrupt(outcome)):
            return INTERRUPTED
        return ERROR if (outcome is None and done["code"] != 0) or "ename" in (outcome or {}) else OK


def _after(done: dict[str, Any]) -> str:
    return f"; it did not stop within {INTERRUPT_GRACE:g} s, so it was killed" if done["killed"] else ""


def _shown(name: str) -> str:
    """Return what a process calls itself, which may hold anything, fit for a sentence."""
    return "".join(filter(str.isprintable, name))
