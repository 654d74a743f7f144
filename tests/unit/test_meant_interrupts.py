"""Interrupts that a keeper cannot send at once: what becomes of them when their cells come."""

from __future__ import annotations

import json
import signal
import time
from typing import Any, cast

from albedo_provisioner.bundle.interrupts import Interrupts
from albedo_provisioner.bundle.kernel import Kernel
from albedo_provisioner.bundle.messages import DELIMITER


class KernelAsked:
    """What interrupts want to know of a kernel; `adopted` if an earlier keeper may have passed on anything."""

    begun = "another"

    def __init__(self, *, adopted: bool = False) -> None:
        self.asked: dict[str, str] = {}
        self.exit = None
        self.taken_back: list[str] = []
        self.given_up: list[str] = []
        self._adopted = adopted

    def is_asked(self, cell: str) -> bool | None:
        return True if cell in self.asked or self._adopted else None

    def take_back(self, cell: str) -> bool:
        self.taken_back.append(cell)
        return True

    def give_up(self, cells: list[str]) -> None:
        self.given_up += cells


def test_one_that_overtakes_its_cell_has_it_given_up_unless_another_one_may_be_hit_for_it() -> None:
    """L7: control traffic may be here first, and what went out over a dead connection comes yet."""
    kernel, sent, answers = KernelAsked(), list[Any](), list[Any]()
    interrupts = Interrupts(
        cast(Kernel, kernel), lambda request, answer: sent.append(request), lambda cell, interrupted: None
    )
    interrupts.put("ours", {"signum": signal.SIGINT}, answers.append)
    assert (answers, sent, kernel.given_up) == ([], [], [])
    interrupts.put("mine", {"signum": signal.SIGINT, "only": True}, answers.append)
    assert answers == [{"behind": True, "taken_back": True, "cell": "mine", "unseen": True}]
    assert (sent, kernel.given_up) == ([], ["mine"])


def test_one_that_overtakes_its_cell_takes_it_back_when_that_comes_behind_another_clients() -> None:
    """L7: an earlier keeper may have passed the cell on, for all that is known here."""
    kernel, sent, answers = KernelAsked(adopted=True), list[Any](), list[Any]()
    interrupts = Interrupts(
        cast(Kernel, kernel), lambda request, answer: sent.append(request), lambda cell, interrupted: None
    )
    kernel.asked["another"] = "execute_request"
    header, parent = {"msg_type": "status"}, {"msg_id": "another"}
    parts = [json.dumps(part).encode() for part in (header, parent, {}, {"execution_state": "busy"})]
    interrupts.heard([DELIMITER, b"", *parts])
    interrupts.put("ours", {"signum": signal.SIGINT, "only": True}, answers.append)
    interrupts.serve(time.monotonic())
    assert (answers, kernel.taken_back) == ([], [])
    kernel.asked["ours"] = "execute_request"
    interrupts.serve(time.monotonic())
    assert (answers, kernel.taken_back, sent) == ([{"behind": True, "taken_back": True}], ["ours"], [])
