"""What is kept of a job's output: its beginning and its end, whatever the pieces it comes in."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albedo_provisioner.bundle.job_output import LEAST, OutputFile, excerpt
from albedo_provisioner.bundle.job_wire import MOST, Talk, TalkError
from albedo_provisioner.bundle.job_words import sentence

TEXT = b"".join(b"%07d\n" % number for number in range(LEAST // 2))
"""Four times what is kept, every line another."""


@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(1, LEAST // 2), min_size=1, max_size=20))
def test_the_beginning_and_the_end_are_kept_and_what_is_missing_is_counted(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    path = tmp_path_factory.mktemp("jobs") / "1.output"
    file = OutputFile(str(path), LEAST)
    came = 0
    for size in sizes:
        piece = TEXT[came : came + size]
        file.append(piece)
        came += len(piece)
    file.close()
    kept, sent = path.read_bytes(), TEXT[:came]
    assert file.total == came
    if not file.cut:
        assert kept == sent
        return
    assert len(kept) <= LEAST + LEAST // 2 + 100
    marker = b"\n[%20d bytes of output were cut out here]\n" % file.cut
    head, _, tail = kept.partition(marker)
    assert head == sent[: LEAST // 2]
    assert len(tail) >= LEAST // 4
    assert sent.endswith(tail)
    assert len(head) + len(tail) + file.cut == came
    assert kept[file.place(came - 8) :] == sent[-8:]


def test_an_excerpt_says_how_much_is_missing_in_all(tmp_path: Path) -> None:
    file = OutputFile(str(tmp_path / "1.output"), LEAST)
    assert (tmp_path / "1.output").stat().st_mode & 0o777 == 0o600
    file.append(b"short")
    assert excerpt(file.path, 100) == (b"", 0, b"short")
    file.append(TEXT)
    head, missing, tail = excerpt(file.path, 100, file.cut)
    assert head == (b"short" + TEXT)[:50]
    assert tail == TEXT[-50:]
    assert missing == 5 + len(TEXT) - 100


def test_frames_come_whole_however_they_are_cut_and_nonsense_ends_the_conversation() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        talk, other = Talk(ours), Talk(theirs)
        talk.say({"id": 1, "text": "ü" * 1000})
        talk.say({"id": 2}, ())
        heard: list[object] = []
        assert talk.flush()
        while len(heard) < 2:
            heard += other.hear()
        assert heard == [{"id": 1, "text": "ü" * 1000}, {"id": 2}]
        with pytest.raises(ValueError, match="bytes are more than"):
            talk.say({"text": "x" * MOST})
        ours.send(b"\xff\xff\xff\xff")
        with pytest.raises(TalkError):
            other.hear()
        ours.close()
        with pytest.raises(EOFError):
            other.hear()


@pytest.mark.parametrize(
    ("summary", "words"),
    [
        ({"exit_code": 2}, "The job `make -j8` ended with exit code 2 after 40 s."),
        ({"exit_code": -9}, "The job `make -j8` was ended by SIGKILL after 40 s."),
        (
            {"exit_code": -2, "timed_out": True},
            "The job `make -j8` ran out of its time and was ended by SIGINT after 40 s.",
        ),
        ({"problem": "nobody looked after it"}, "The job `make -j8` was lost after 40 s; nobody looked after it."),
    ],
)
def test_how_a_job_ended_is_said_in_a_sentence(summary: dict[str, object], words: str) -> None:
    known = {"command": "make -j8", "exit_code": None, "timed_out": False, "started": 1000.0, "ended": 1040.2}
    assert sentence({**known, **summary}) == words
