"""What `recover` puts into a notebook, what it leaves, and that it does nothing twice."""

from __future__ import annotations

import copy
import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nbformat import NotebookNode, validate
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from albedo_provisioner.kernels.journal import JournalCell, Message
from albedo_provisioner.recovery import Recovery, recover
from albedo_provisioner.replay import shown

BEGAN = 1_700_000_000.0
"""When the first cell of a journal was asked for."""


def date(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat().replace("+00:00", "Z")


def stream(text: str, name: str = "stdout") -> Message:
    return Message("stream", {"name": name, "text": text})


def display(text: str, display_id: str | None = None, kind: str = "display_data") -> Message:
    transient = {} if display_id is None else {"display_id": display_id}
    return Message(kind, {"data": {"text/plain": text}, "metadata": {}, "transient": transient})


def clear(wait: bool = False) -> Message:
    return Message("clear_output", {"wait": wait})


def result(text: str, count: int) -> Message:
    return Message("execute_result", {"data": {"text/plain": text}, "metadata": {}, "execution_count": count})


def ran(code: str, *outputs: Message, count: int = 1, at: float = 0.0, state: str = "done", **more: Any) -> JournalCell:
    """Return a cell of a journal that was asked for `at` seconds after the first and took a second per message."""
    messages = [Message("status", {"execution_state": "busy"}), Message("execute_input", {"execution_count": count})]
    messages += outputs
    if state == "done":
        messages += [
            Message("execute_reply", {"status": "ok", "execution_count": count}),
            Message("status", {"execution_state": "idle"}),
        ]
    if state == "queued":
        messages = []
    asked = BEGAN + at
    dated = [Message(each.msg_type, each.content, date(asked + i)) for i, each in enumerate(messages)]
    finished = asked + len(dated) if state == "done" else None
    return JournalCell(f"m{at}", code, state=state, asked=asked, finished=finished, messages=tuple(dated), **more)


def notebook(*cells: NotebookNode) -> NotebookNode:
    made: NotebookNode = new_notebook(cells=list(cells))  # type: ignore[no-untyped-call]
    return made


def cell(source: str, outputs: list[Any] | None = None, count: int | None = None, **more: Any) -> NotebookNode:
    made: NotebookNode = new_code_cell(source, outputs=outputs or [], execution_count=count, **more)  # type: ignore[no-untyped-call]
    return made


def out(text: str, name: str = "stdout") -> NotebookNode:
    made: NotebookNode = new_output("stream", name=name, text=text)  # type: ignore[no-untyped-call]
    return made


def texts(found: Recovery, index: int = 0) -> list[str]:
    """Return a cell's outputs as texts."""
    return [
        output.text if output.output_type == "stream" else output.get("data", {}).get("text/plain", output.get("ename"))
        for output in found.notebook.cells[index].outputs
    ]


class TestOutputs:
    def test_pieces_of_a_stream_become_one_and_streams_stay_apart(self) -> None:
        run = ran("x", stream("a\n"), stream("b\n"), stream("oh\n", "stderr"), stream("c\n"))
        found = recover(notebook(cell("x")), [run])
        assert texts(found) == ["a\nb\n", "oh\n", "c\n"]
        assert [output.name for output in found.notebook.cells[0].outputs] == ["stdout", "stderr", "stdout"]

    def test_result_and_count(self) -> None:
        found = recover(notebook(cell("x")), [ran("x", result("42", 7), count=7)])
        (output,) = found.notebook.cells[0].outputs
        assert (output.output_type, output.execution_count, output.data) == ("execute_result", 7, {"text/plain": "42"})
        assert found.notebook.cells[0].execution_count == 7
        validate(found.notebook)

    def test_error(self) -> None:
        error = Message("error", {"ename": "ValueError", "evalue": "no", "traceback": ["line 1", "line 2"]})
        (output,) = recover(notebook(cell("x")), [ran("x", error)]).notebook.cells[0].outputs
        assert output == {
            "output_type": "error",
            "ename": "ValueError",
            "evalue": "no",
            "traceback": ["line 1", "line 2"],
        }

    def test_clear_output_takes_away_at_once(self) -> None:
        assert texts(recover(notebook(cell("x")), [ran("x", stream("a"), clear(), stream("b"))])) == ["b"]

    def test_clear_output_that_waits_takes_away_at_the_next_output(self) -> None:
        run = ran("x", stream("a"), clear(wait=True), stream("b"), clear(wait=True))
        assert texts(recover(notebook(cell("x")), [run])) == ["b"]

    def test_a_display_is_updated_by_another_cell(self) -> None:
        runs = [
            ran("x", display("0 %", "bar"), display("0 %", "bar"), display("other")),
            ran("y", display("100 %", "bar", "update_display_data"), count=2, at=60),
        ]
        found = recover(notebook(cell("x"), cell("y")), runs)
        assert texts(found) == ["100 %", "100 %", "other"]
        assert found.notebook.cells[1].outputs == []
        assert "transient" not in found.notebook.cells[0].outputs[0]

    def test_an_update_of_nothing_shown_is_nothing(self) -> None:
        found = recover(notebook(cell("x")), [ran("x", display("1", "bar", "update_display_data"), stream("a"))])
        assert texts(found) == ["a"]

    def test_what_the_journal_did_not_keep_is_told(self) -> None:
        found = recover(notebook(cell("x")), [ran("x", stream("a\n"), dropped=31)])
        assert texts(found)[0] == "a\n"
        assert "31 messages of output are missing" in texts(found)[1]
        assert "31 messages" in found.changes[0].text

    def test_a_running_cell_gets_its_output_so_far_and_no_count(self) -> None:
        found = recover(notebook(cell("x")), [ran("x", stream("a\n"), state="running")])
        assert texts(found) == ["a\n"]
        assert found.notebook.cells[0].execution_count is None
        assert "still runs" in found.changes[0].text

    def test_the_rest_of_a_running_cell_comes_later(self) -> None:
        first = recover(notebook(cell("x")), [ran("x", display("1"), clear(), display("2"), state="running")])
        later = recover(
            first.notebook, [ran("x", display("1"), clear(), display("2"), clear(), display("3"))], BEGAN + 9999
        )
        assert texts(later) == ["3"]
        assert later.notebook.cells[0].execution_count == 1

    def test_a_cell_whose_kernel_ended_is_told_so(self) -> None:
        found = recover(notebook(cell("x")), [ran("x", stream("a\n"), state="ended", count=5)])
        assert found.notebook.cells[0].execution_count == 5
        assert "kernel ended while it ran" in found.changes[0].text

    def test_a_waiting_cell_is_left_alone(self) -> None:
        assert recover(notebook(cell("x")), [ran("x", state="queued")]).changes == ()

    def test_unknown_and_malformed_messages_do_no_harm(self) -> None:
        odd = [Message("comm_open", {}), Message("display_data", {}), Message("stream", {}), Message("error", {})]
        validate(recover(notebook(cell("x")), [ran("x", *odd)]).notebook)


class TestMatching:
    def test_by_id_before_source(self) -> None:
        book = notebook(cell("x", id="one"), cell("x", id="two"))
        found = recover(book, [ran("x", stream("a"), cell_id="two")])
        assert [texts(found, 0), texts(found, 1)] == [[], ["a"]]

    def test_by_id_also_when_the_source_was_changed_and_that_is_told(self) -> None:
        found = recover(notebook(cell("x + 1", id="one")), [ran("x", stream("a"), cell_id="one")])
        assert texts(found) == ["a"]
        assert "changed since" in found.changes[0].text

    def test_by_source_where_the_id_is_not_known(self) -> None:
        assert texts(recover(notebook(cell("x")), [ran("x", stream("a"), cell_id="of an older format")])) == ["a"]

    def test_not_by_a_source_that_two_cells_have(self) -> None:
        found = recover(notebook(cell("x"), cell("x")), [ran("x", stream("a"))])
        assert [texts(found, 0), texts(found, 1)] == [[], []]
        assert [change.action for change in found.changes] == ["left", "left"]
        assert "same source" in found.changes[0].text

    def test_a_cell_known_by_its_id_does_not_get_what_another_one_did(self) -> None:
        runs = [ran("x", stream("mine"), cell_id="one"), ran("x", stream("its"), count=2, at=60, cell_id="deleted")]
        assert texts(recover(notebook(cell("x", id="one")), runs)) == ["mine"]

    def test_the_newest_run_counts(self) -> None:
        runs = [ran("x", stream("old")), ran("x", stream("new"), count=2, at=60)]
        found = recover(notebook(cell("x")), runs)
        assert (texts(found), found.notebook.cells[0].execution_count) == (["new"], 2)

    def test_what_tools_run_uncounted_is_not_a_cell(self) -> None:
        assert recover(notebook(cell("x")), [ran("x", stream("a"), store_history=False)]).changes == ()

    def test_text_cells_are_not_touched(self) -> None:
        book = notebook(new_markdown_cell("x"))  # type: ignore[no-untyped-call]
        assert recover(book, [ran("x", stream("a"))]).notebook == book


class TestNewer:
    """The file's outputs against the journal's."""

    def assert_left(self, found: Recovery, *words: str) -> None:
        assert texts(found) == ["file"]
        assert [change.action for change in found.changes] == ["left"]
        assert all(word in found.changes[0].text for word in words)

    @pytest.mark.parametrize("count", [2, 3])
    def test_the_same_count_or_a_higher_one_stays(self, count: int) -> None:
        book = notebook(cell("x", [out("file")], count))
        words = ("In [2], as the journal's", "none like it") if count == 2 else ("In [3]", "the journal's of In [2]")
        self.assert_left(recover(book, [ran("x", stream("journal"), count=2)]), *words)

    def test_a_lower_count_gives_way(self) -> None:
        found = recover(notebook(cell("x", [out("file")], 1)), [ran("x", stream("journal"), count=2)])
        assert texts(found) == ["journal"]
        assert "in the place of older output" in found.changes[0].text

    def test_any_count_gives_way_when_the_file_is_older_than_the_run(self) -> None:
        book = notebook(cell("x", [out("file")], 57))
        assert texts(recover(book, [ran("x", stream("journal"), count=2)], BEGAN - 1)) == ["journal"]

    def test_the_hosts_clock_may_be_wrong(self) -> None:
        run = ran("x", stream("journal"), count=2, sent=date(BEGAN - 3600))  # the host is an hour ahead
        self.assert_left(recover(notebook(cell("x", [out("file")], 57)), [run], BEGAN - 3590))

    def test_output_without_a_count_stays_when_saved_after_the_run(self) -> None:
        run = ran("x", stream("journal"))
        book = notebook(cell("x", [out("file")]))
        self.assert_left(recover(book, [run], BEGAN + 3600), "saved after")
        self.assert_left(recover(book, [run]))
        assert texts(recover(book, [run], BEGAN + 2)) == ["journal"]

    def test_the_beginning_of_the_same_output_is_gone_on_with_whatever_the_clock_says(self) -> None:
        run = ran("x", stream("a\nb\n"), stream("c\n"), result("1", 1))
        for count in (None, 1):
            found = recover(notebook(cell("x", [out("a\n"), out("b")], count)), [run], BEGAN + 3600)
            assert texts(found) == ["a\nb\nc\n", "1"]

    def test_so_is_what_was_shown_on_the_way_and_then_cleared_or_updated(self) -> None:
        run = ran("x", display("0 %", "bar"), display("50 %", "bar", "update_display_data"), clear(), stream("done"))
        for shown_then in ("0 %", "50 %"):
            output = new_output("display_data", data={"text/plain": shown_then})  # type: ignore[no-untyped-call]
            assert texts(recover(notebook(cell("x", [output])), [run], BEGAN + 3600)) == ["done"]

    def test_a_progress_bar_saved_on_its_way_is_gone_on_with(self) -> None:
        run = ran("x", stream("start\n"), stream("\r10 %"), stream("\r90 %"), stream("\r100 %\n"))
        found = recover(notebook(cell("x", [out("start\n10 %")])), [run], BEGAN + 3600)
        assert texts(found) == ["start\n\r10 %\r90 %\r100 %\n"]

    def test_the_same_output_as_jupyterlab_saves_it_is_complete(self) -> None:
        run = ran("x", stream("\r10 %"), stream("\r100 %\n"))
        found = recover(notebook(cell("x", [out("100 %\n")], 1)), [run])
        assert (found.changes, found.complete) == ((), 1)

    def test_output_taken_away_or_never_saved_comes_back(self) -> None:
        for count in (None, 1):
            assert texts(recover(notebook(cell("x", [], count)), [ran("x", stream("a"))], BEGAN + 3600)) == ["a"]

    def test_a_later_run_without_output_stays(self) -> None:
        found = recover(notebook(cell("x", [], 9)), [ran("x", stream("a"), count=2)], BEGAN + 3600)
        assert texts(found) == []
        assert found.changes[0].action == "left"

    def test_a_run_without_output_takes_nothing_away(self) -> None:
        assert recover(notebook(cell("x", [out("file")], 1)), [ran("x", count=2)], BEGAN + 3600).changes == ()

    @pytest.mark.parametrize(("moment", "kept"), [(-60, "journal"), (60, "file")])
    def test_times_noted_in_the_cell_come_first(self, moment: float, kept: str) -> None:
        run = ran("x", stream("journal"), count=2)
        times = {"iopub.execute_input": date(BEGAN + 1 + moment), "shell.execute_reply": date(BEGAN + 2 + moment)}
        book = notebook(cell("x", [out("file")], 1 if kept == "file" else 9, metadata={"execution": times}))
        found = recover(book, [run], BEGAN + 3600)
        assert texts(found) == [kept]
        if kept == "journal":
            assert found.notebook.cells[0].metadata.execution["iopub.execute_input"] == date(BEGAN + 1)

    def test_only_the_number_is_missing(self) -> None:
        found = recover(notebook(cell("x", [out("a")])), [ran("x", stream("a"), count=4)])
        assert found.notebook.cells[0].execution_count == 4
        empty = recover(notebook(cell("y")), [ran("y", count=4)])
        assert empty.notebook.cells[0].execution_count == 4
        assert "without output" in empty.changes[0].text


def test_everything_else_stays() -> None:
    book = notebook(new_markdown_cell("# t"), cell("y", [out("y")], 3, metadata={"tags": ["a"]}), cell("x", id="x1"))  # type: ignore[no-untyped-call]
    book.metadata.custom = {"k": [1, 2]}
    before = copy.deepcopy(book)
    found = recover(book, [ran("x", stream("a"))]).notebook
    assert book == before, "the notebook given is not changed"
    found.cells[2].outputs, found.cells[2].execution_count = [], None
    assert found == before


@pytest.mark.parametrize(
    ("text", "seen"),
    [("a\rb", "b"), ("abc\rX", "Xbc"), ("a\r\nb", "a\nb"), ("ab\bc", "ac"), ("\ba", "a"), ("12\r\n\r3", "12\n3")],
)
def test_text_as_a_terminal_shows_it(text: str, seen: str) -> None:
    assert shown(text) == seen


# ------------------------------------------------------------------------------------------------------- twice


_texts = st.sampled_from(["a\n", "b", "10%\r", "\rc\n", "d\b", ""])
_messages = st.one_of(
    st.builds(stream, _texts, st.sampled_from(["stdout", "stderr"])),
    st.builds(display, _texts, st.sampled_from([None, "p", "q"]), st.sampled_from(["display_data"])),
    st.builds(display, _texts, st.sampled_from(["p", "q"]), st.just("update_display_data")),
    st.builds(clear, st.booleans()),
    st.builds(result, _texts, st.integers(1, 4)),
    st.just(Message("error", {"ename": "E", "evalue": "", "traceback": []})),
)
_runs = st.lists(
    st.builds(
        lambda code, outputs, count, state, cell_id, dropped: (code, outputs, count, state, cell_id, dropped),
        st.sampled_from(["x", "y", "z"]),
        st.lists(_messages, max_size=6),
        st.integers(1, 4),
        st.sampled_from(["done", "running", "ended", "queued"]),
        st.sampled_from([None, "one", "two", "gone"]),
        st.sampled_from([0, 0, 3]),
    ),
    max_size=5,
)
_outputs = st.lists(st.builds(out, st.sampled_from(["a\n", "b", "c\n"])), max_size=2)
_cells = st.lists(st.tuples(st.sampled_from(["x", "y"]), _outputs, st.sampled_from([None, 1, 3, 9])), max_size=3)


@settings(max_examples=300)
@given(_runs, _cells, st.sampled_from([None, BEGAN - 1, BEGAN + 63, BEGAN + 9999]))
def test_recovering_twice_changes_nothing(runs: Any, cells: Any, saved: float | None) -> None:
    journal = [
        ran(code, *outputs, count=count, at=60.0 * i, state=state, cell_id=cell_id, dropped=dropped)
        for i, (code, outputs, count, state, cell_id, dropped) in enumerate(runs)
    ]
    ids = ["one", "two", "three"]
    book = notebook(*(cell(source, list(o), n, id=ids[i]) for i, (source, o, n) in enumerate(cells)))
    first = recover(book, journal, saved)
    validate(first.notebook)
    for later in (saved, BEGAN + 10_000):
        again = recover(first.notebook, journal, later)
        assert again.notebook == first.notebook
        assert again.written == 0
