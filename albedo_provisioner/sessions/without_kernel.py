"""Running code once on a host where no kernel can be started."""

from __future__ import annotations

from typing import Any

from ..hosts.asking import ask
from ..hosts.visit import Visit
from .outputs import Outputs
from .records import SessionRecord
from .results import ERROR, OK, TIMEOUT, KernelReport, Result


class _Listener:
    """Takes the output on the way to the answer; see `Parcel`."""

    step = "staging"

    def __init__(self, outputs: Outputs) -> None:
        self._outputs = outputs

    def heard(self, visit: Visit, report: dict[str, Any]) -> bool:
        """Take a piece of output, or a sign of life."""
        if "output" in report:
            self._outputs.take("stream", report["output"])
        return "output" in report or "alive" in report

    def writable(self, yes: bool) -> None:
        """Nothing is sent."""


async def run_once(
    session: SessionRecord, code: str, timeout: float | None, outputs: Outputs, cell_id: str, report: KernelReport
) -> Result:
    """Run code in a fresh interpreter in the session's folder, and return what came of it; on the I/O thread.

    Raises:
        AlbedoError: that cannot be done either, or the connection broke meanwhile, by which the code is ended.
    """
    request = {
        "do": "run",
        "cwd": session.location.path,
        "env": session.env,
        "code": code,
        "timeout": timeout,
    }
    answer = await ask(session.location.host, request, session.python, _Listener(outputs))
    done = answer["done"]
    status = OK if not done["code"] and not done.get("exit") else ERROR
    if "ename" in done:
        status = ERROR
        outputs.take("error", done)
    elif "value" in done:
        content = {"data": {"text/plain": done["value"]}, "metadata": {}, "execution_count": None}
        outputs.take("execute_result", content)
    outputs.close()
    return outputs.result(TIMEOUT if done["timed_out"] else status, cell_id, report)
