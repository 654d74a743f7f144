"""What is told of the words that a kernel leaves behind when it dies at its start, and of commands that end early."""

from __future__ import annotations

import pytest

from albedo_provisioner.errors import HostError, KilledError, UnreachableError, UnsupportedHostError
from albedo_provisioner.hosts.last_words import cause_in
from albedo_provisioner.hosts.refusals import ended_early
from albedo_provisioner.hosts.transport import Exit


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


@pytest.mark.parametrize(
    ("how", "begun", "ran", "kind", "words"),
    [
        (Exit(None, "KILL"), True, True, KilledError, "was ended by signal KILL before it had answered: by somebody"),
        (Exit(None, "SEGV"), True, True, KilledError, "was ended by signal SEGV before it had answered."),
        (Exit(143), True, True, KilledError, "was ended by signal TERM before it had answered."),  # by way of a shell
        (Exit(1), True, True, UnsupportedHostError, "ended without an answer (exit status 1). It printed: MemoryError"),
        (Exit(0), True, True, UnreachableError, "our process there ended before it had answered"),
        (Exit(None), True, True, UnsupportedHostError, "ended without an answer (signal unknown)"),
        (Exit(None, "KILL"), True, False, KilledError, "was ended by signal KILL"),
        (Exit(None, "TERM"), False, False, KilledError, "was ended by signal TERM"),
        (Exit(None, "SEGV"), True, False, UnsupportedHostError, "before our code ran (signal SEGV): python3 may be no"),
        (Exit(2), True, False, UnsupportedHostError, "before our code ran (exit status 2): python3 may be no Python"),
        (Exit(126), True, False, UnsupportedHostError, "python3 on far cannot be run (exit status 126)"),
        (Exit(255), False, False, UnsupportedHostError, "an account that may not run commands"),
        (Exit(None, error=OSError("reset")), True, True, UnreachableError, "The connection to far broke: reset"),
    ],
)
def test_of_a_command_that_ended_early_it_is_told_how_far_it_got(
    how: Exit, begun: bool, ran: bool, kind: type[HostError], words: str
) -> None:
    error = ended_early("far", how, "MemoryError", None, begun=begun, ran=ran, left_out="")
    assert type(error) is kind
    assert words in str(error)
