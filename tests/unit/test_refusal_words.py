"""What is told of the words that a kernel leaves behind when it dies at its start."""

from __future__ import annotations

import pytest

from albedo_provisioner.hosts.refusals import cause_in


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("", ""),
        ("one\ntwo\n\n", "two"),
        (
            "Traceback (most recent call last):\n  raise OSError\nImportError: half installed",
            "ImportError: half installed",
        ),
        ("OSError: a\n\nThe above exception was the cause:\n\nzmq.error.ZMQError: b", "zmq.error.ZMQError: b"),
        (
            "Error: no package x\nCalls: main\nExecution halted\n",
            "Error: no package x / Calls: main / Execution halted",
        ),
        ("ERROR: LoadError: no IJulia\nStacktrace:\n [1] top", "ERROR: LoadError: no IJulia / Stacktrace: / [1] top"),
        ("it began\nR: error while loading libR.so: no such file", "R: error while loading libR.so: no such file"),
        ("no errors so far\n\x1b[31mbash: x: command not found\x1b[0m", "[31mbash: x: command not found[0m"),
        ("Error: " + "x" * 1000, "Error: " + "x" * 293 + " …"),
    ],
)
def test_the_cause_begins_with_the_last_line_that_looks_like_an_error(words: str, cause: str) -> None:
    assert cause_in(words) == cause
