"""What the results of a session's calls have in them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from faces import Embedded, Host

from albedo_provisioner import AsyncSessions, Sessions
from albedo_provisioner.errors import (
    ConfigError,
)
from albedo_provisioner.sessions.outputs import Limits

CODE = "import sys\nprint('a', flush=True)\nprint('b', file=sys.stderr, flush=True)\nprint('c')\nx = 41\nx + 1"


class TestResults:
    def test_have_all_that_came_of_the_code(self, any_host: Host, sessions: Sessions) -> None:
        session = sessions.open(any_host.location())
        result = session.execute(CODE)
        assert (result.status, result.ok, result.value) == ("ok", True, "42")
        assert (result.stdout, result.stderr, result.error) == ("a\nc\n", "b\n", None)
        assert [output.get("text") for output in result.outputs[:3]] == ["a\n", "b\n", "c\n"]
        assert result.outputs[3] == {
            "output_type": "execute_result",
            "data": {"text/plain": "42"},
            "metadata": {},
            "execution_count": 1,
        }
        report = result.kernel
        assert (report.remote, report.host) == (any_host.remote, any_host.alias or "this machine")
        assert report.location == any_host.location()
        assert (report.execution_count, report.note, report.ended) == (1, None, False)
        assert 0 < result.duration < 30
        content = json.loads(json.dumps(result.to_dict()))
        assert content["value"] == "42"
        assert content["kernel"]["execution_count"] == 1

    def test_tell_an_error_without_a_terminals_colours(self, embedded_host: Embedded, sessions: Sessions) -> None:
        result = sessions.open(embedded_host.location()).execute("print('before')\n1 / 0\nprint('after')")
        assert (result.status, result.error, result.stdout) == (
            "error",
            "ZeroDivisionError: division by zero",
            "before\n",
        )
        assert "ZeroDivisionError" in str(result.traceback)
        assert "\x1b" not in str(result.traceback)
        assert "\x1b" in str(result.traceback_colored)
        assert result.outputs[-1]["ename"] == "ZeroDivisionError"

    def test_have_displays_and_their_updates(self, embedded_host: Embedded, sessions: Sessions) -> None:
        code = (
            "from IPython.display import HTML, display, clear_output\n"
            "display(HTML('gone'))\nclear_output()\n"
            "handle = display(HTML('<b>1</b>'), display_id=True)\nhandle.update(HTML('<b>2</b>'))"
        )
        result = sessions.open(embedded_host.location()).execute(code)
        (output,) = result.outputs
        assert output["data"]["text/html"] == "<b>2</b>"
        assert set(output) == {"output_type", "data", "metadata"}

    def test_are_cut_in_the_middle_and_the_whole_can_be_had(self, embedded_host: Embedded, sessions: Sessions) -> None:
        """S9."""
        session = sessions.open(embedded_host.location())
        code = "import sys\nfor i in range(20000): print(i)\nprint('e' * 3000, file=sys.stderr)"
        result = session.execute(code, limits=Limits(stdout=1000, stderr=100))
        assert result.stdout.startswith("0\n1\n2\n")
        assert result.stdout.endswith("19998\n19999\n")
        assert "characters cut" in result.stdout
        assert len(result.stdout) < 1100
        assert (result.stdout_clipped, result.stderr_clipped) == (True, True)
        assert result.full_stdout() == "".join(f"{i}\n" for i in range(20000))
        assert result.full_stderr() == "e" * 3000 + "\n"
        assert sum(len(str(output.get("text"))) for output in result.outputs) < 1600
        whole = Path(os.environ["ALBEDO_HOME"]) / "outputs" / f"{result.cell_id}.stdout"
        assert whole.stat().st_mode & 0o777 == 0o600
        assert session.execute("1").full_stdout() == ""

    def test_are_within_their_limits_whatever_they_are(self, embedded_host: Embedded, sessions: Sessions) -> None:
        """S9: values, errors, displays, what a pager would show."""
        session = sessions.open(embedded_host.location())
        few = Limits(stdout=100, stderr=100, displays=1000)
        short = session.execute("'v'*800", limits=few)
        assert (short.value, short.value_clipped, short.kernel.note) == (repr("v" * 800), False, None)
        long = session.execute("'v'*3000", cell_id="long", limits=few)
        for result in (long, session.cell("long")):
            assert str(result.value).startswith("'vvv")
            assert "\n[… 2002 characters cut …]\n" in str(result.value)
            assert str(result.value).endswith("vvv'")
            assert (len(str(result.value)) < 1100, result.value_clipped) == (True, True)
            assert result.full_value() == repr("v" * 3000)
            assert "value has 3,002 characters and is cut in its middle; full_value() has all" in str(
                result.kernel.note
            )
            assert [each["text"][:40] for each in result.outputs] == ["[… left out here: an output of 3,002 byt"]
        usual = session.execute("'z' * 3_000_000", cell_id="usual")
        assert usual.full_value() == repr("z" * 3_000_000)
        for result in (usual, session.cell("usual")):
            assert (result.value_clipped, len(str(result.value)) < 201_000) == (True, True)
            assert result.outputs[0]["data"]["text/plain"] == result.value
        failed = session.execute("raise ValueError('m'*3000000 + '!')", limits=few)
        assert len(failed.to_json()) < 10_000
        assert failed.status == "error"
        assert str(failed.error).startswith("ValueError: mmm")
        assert str(failed.traceback).endswith("mmm!")
        assert (failed.error_clipped, failed.traceback_clipped) == (True, True)
        assert failed.full_error() == f"ValueError: {'m' * 3000000}!"
        assert f"ValueError: {'m' * 3000000}!" in str(failed.full_traceback())
        assert "error has 3,000,013 characters" in str(failed.kernel.note)
        (error,) = failed.outputs
        assert (error["output_type"], error["ename"]) == ("error", "ValueError")
        shows = (
            "from IPython.display import display\nhandle = display('small', display_id=True)\nhandle.update('u'*2000)\n"
            "display({'text/plain': 'a'}, raw=True, metadata={'m': 'm' * 2000})\n"
            "for i in range(2000): display({'text/plain': 'i' * (i + 1000)}, raw=True)"
        )
        shown = session.execute(shows, limits=few)
        assert len(shown.to_json()) < 3000
        assert "2,002 outputs of " in str(shown.kernel.note)
        code = "import sys\nfor i in range(2000): print('o' * 200, file=(sys.stdout, sys.stderr)[i % 2], flush=True)"
        in_turns = session.execute(code, limits=few)
        assert (len(in_turns.to_json()) < 3000, len(in_turns.outputs) > 1) == (True, True)
        came: list[object] = []
        paged = session.execute("len?", on_output=came.append)
        (page,) = paged.outputs
        assert (page["output_type"], came) == ("display_data", [page])
        assert "Return the number of items" in page["data"]["text/plain"]
        assert (paged.status, paged.value, paged.execution_count) == ("ok", None, 7)
        (page,) = session.execute("len??", limits=Limits(displays=10)).outputs
        assert "left out here" in page["text"]

    def test_of_a_failure_that_the_kernel_cannot_send_are_not_empty(
        self, embedded_host: Embedded, sessions: Sessions
    ) -> None:
        session = sessions.open(embedded_host.location())
        code = (
            "session = get_ipython().kernel.session\nsend = session.send\n"
            "def refuse(stream, kind, *content, **more):\n    if kind == 'error': '\\ud800'.encode()\n"
            "    return send(stream, kind, *content, **more)\n"
            "session.send = refuse\nraise ValueError"
        )
        result = session.execute(code, cell_id="odd")
        for found in (result, session.cell("odd")):
            assert (found.status, found.stdout) == ("error", "")
            assert "surrogates not allowed" in str(found.error)
            assert found.outputs[-1]["output_type"] == "error"
            assert "the kernel did not send its error" in str(found.kernel.note)
        assert session.execute("1").value == "1"

    def test_of_a_hundred_megabytes_take_no_more_memory_than_their_limits(
        self, embedded_host: Embedded, sessions: Sessions
    ) -> None:
        """S9."""
        session = sessions.open(embedded_host.location())
        result = session.execute("line = 'x' * 999\nfor _ in range(100_000): print(line)", limits=Limits(stdout=10_000))
        assert result.status == "ok"
        assert len(result.to_dict()["stdout"]) < 11_000
        assert len(json.dumps(result.to_dict())) < 100_000
        assert len(result.full_stdout()) == 100_000_000

    def test_come_piece_by_piece_while_the_code_runs(self, embedded_host: Embedded, sessions: Sessions) -> None:
        session = sessions.open(embedded_host.location())
        came: list[object] = []
        code = "import time\nprint('a', flush=True)\ntime.sleep(1)\nprint('b', flush=True)\n7"
        for output in session.stream(code):
            came.append((time.monotonic(), output))
        assert [getattr(each, "status", None) or each.get("text") or each["data"] for _, each in came] == [  # type: ignore[misc]
            "a\n",
            "b\n",
            {"text/plain": "7"},
            "ok",
        ]
        assert came[1][0] - came[0][0] > 0.5  # type: ignore[index]

    async def test_come_piece_by_piece_to_a_program_with_a_loop(
        self, embedded_host: Embedded, async_sessions: AsyncSessions
    ) -> None:
        session = await async_sessions.open(embedded_host.location())
        came = [each async for each in session.stream("print('a')\n7")]
        assert [type(each).__name__ for each in came] == ["dict", "dict", "Result"]
        with pytest.raises(ConfigError):
            async for _ in session.stream("1", timeout=0):
                pass
