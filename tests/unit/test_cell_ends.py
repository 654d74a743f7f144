"""A cell's end is told once, by the kernel or by us for it."""

from __future__ import annotations

import json
from typing import Any

from albedo_provisioner.bundle.messages import DELIMITER
from albedo_provisioner.kernels.cell_ends import CellEnds, Said

CELL = {"msg_id": "c", "msg_type": "execute_request"}


def message(kind: str, content: dict[str, Any], parent: str = "c") -> list[bytes]:
    """Return a message on iopub as it is on the wire."""
    parts = ({"msg_type": kind}, {"msg_id": parent}, {}, content)
    return [f"kernel.1.{kind}".encode(), DELIMITER, b"", *(json.dumps(part).encode() for part in parts)]


IDLE = message("status", {"execution_state": "idle"})
ERROR = message("error", {"ename": "KeyboardInterrupt"})


def test_what_the_kernel_has_said_is_known_for_as_long_as_there_is_no_reply() -> None:
    ends = CellEnds()
    assert all(ends.published(parts, {"c"}) for parts in (ERROR, IDLE))
    assert ends.of("c") == Said(idle=True, error={"ename": "KeyboardInterrupt"})
    assert ends.of("c") == Said()
    assert ends.published(ERROR[1:], {"c"})  # some kernels give no topic
    ends.interrupted("c")
    assert ends.of("c") == Said(error={"ename": "KeyboardInterrupt"}, interrupted=True)
    assert ends.published(ERROR, {"c"})
    ends.replied(CELL)
    assert ends.of("c") == Said()


def test_a_reply_without_the_idle_status_is_known() -> None:
    ends = CellEnds()
    ends.replied(CELL)
    ends.replied({"msg_id": "k", "msg_type": "kernel_info_request"})
    assert ends.without_idle() == [CELL]
    assert ends.without_idle() == []
    ends.replied(CELL)
    ends.published(IDLE, set())
    assert ends.without_idle() == []
    ends.published(IDLE, {"c"})
    ends.replied(CELL)
    assert ends.without_idle() == []


def test_what_the_kernel_says_of_an_end_that_was_told_before_goes_no_further() -> None:
    ends = CellEnds()
    ends.told("c")
    assert not ends.published(IDLE, set())
    assert not ends.published(ERROR, set())
    assert ends.published(message("stream", {"text": "late"}), set())
    assert ends.published(message("status", {"execution_state": "idle"}, "d"), set())
