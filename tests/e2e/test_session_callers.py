"""What a program that holds sessions may do wrong, and what that costs: an answer in words, and nothing else."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from faces import Embedded
from procs import wait_until

from albedo_provisioner import Sessions


@pytest.fixture
def sessions() -> Iterator[Sessions]:
    with Sessions() as made:
        yield made


class Unspeakable(Exception):
    """An error whose own text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("not even this")

    __repr__ = __str__


class TestOutputs:
    def test_a_receiver_that_raises_changes_nothing_and_is_told_of(
        self, embedded_host: Embedded, sessions: Sessions, caplog: pytest.LogCaptureFixture
    ) -> None:
        session = sessions.open(embedded_host.location())
        session.execute("x = 41")
        kernel = session._session._core._held.kernel
        assert kernel is not None
        shown = "from IPython.display import HTML, display\nprint(1, flush=True)\ndisplay(HTML('<b>2</b>'))\n"
        code = f"{shown}print(3)\nx + 1"
        caplog.set_level(logging.WARNING, "albedo_provisioner")

        def divide(output: dict[str, Any]) -> None:
            output.clear()  # what it is given is its own
            raise ZeroDivisionError("no")

        def unspeakable(output: dict[str, Any]) -> None:
            raise Unspeakable

        def leave(output: dict[str, Any]) -> None:
            raise SystemExit(3)

        for receiver, words in ((divide, "ZeroDivisionError: no"), (unspeakable, "Unspeakable"), (leave, "SystemExit")):
            caplog.clear()
            result = session.execute(code, on_output=receiver)
            assert (result.status, result.stdout, result.value) == ("ok", "1\n3\n", "42"), receiver
            assert [output["output_type"] for output in result.outputs] == [
                "stream",
                "display_data",
                "stream",
                "execute_result",
            ]
            assert f"on_output failed with {words}" in str(result.kernel.note)
            (logged,) = caplog.records
            assert logged.exc_info is not None
            assert logged.exc_info[0] is not None
            assert words.startswith(logged.exc_info[0].__name__)
        after = session.execute("x")
        assert (after.value, after.kernel.note, after.kernel.reused) == ("41", None, True)
        assert kernel.connections == 1  # the link took no notice

    def test_a_tools_error_whose_text_cannot_be_had_is_the_cells_alone(
        self, embedded_host: Embedded, sessions: Sessions, caplog: pytest.LogCaptureFixture
    ) -> None:

        class OddDict(dict):  # type: ignore[type-arg]
            def items(self) -> Any:
                raise RuntimeError("no items")

        def fail() -> None:
            raise Unspeakable(Unspeakable())

        session = sessions.open(embedded_host.location(), tools={"fail": fail, "odd": OddDict})
        result = session.execute("tools.fail()")
        assert "Unspeakable" in str(result.error)
        assert "no items" in str(session.execute("tools.odd()").error)
        assert session.execute("1").value == "1"
        assert not [record for record in caplog.records if record.exc_info]

    def test_a_stream_that_is_left_early_interrupts_the_code_and_says_nothing(
        self, embedded_host: Embedded, sessions: Sessions, caplog: pytest.LogCaptureFixture
    ) -> None:
        session = sessions.open(embedded_host.location())
        session.execute("x = 41\nimport time")
        code = "for i in range(600):\n    print(i, flush=True)\n    time.sleep(0.1)"
        for output in session.stream(code, cell_id="left"):
            assert output
            break
        gc.collect()
        wait_until(lambda: session.status()["execution_state"] == "idle", what="the code was interrupted")
        assert session.cell("left").status == "interrupted"
        assert session.execute("x").value == "41"
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
