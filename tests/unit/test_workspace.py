"""Memory, links and context: what can be said without files."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from albedo_provisioner.bundle.gather import _front_matter as front_matter
from albedo_provisioner.bundle.memory import Hit
from albedo_provisioner.location import Location
from albedo_provisioner.workspace import asking
from albedo_provisioner.workspace.folders import slug_of
from albedo_provisioner.workspace.index import paragraphs
from albedo_provisioner.workspace.skills import read_skill
from albedo_provisioner.workspace.text import shares, shortened

names = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1, max_size=40)


class TestSlug:
    def test_is_the_location_with_all_but_letters_and_digits_turned_into_dashes(self) -> None:
        """M1."""
        assert slug_of(Location.parse("ann@gpu.example.org:/home/ann/my proj_2")) == (
            "ann-gpu-example-org--home-ann-my-proj-2"
        )
        assert slug_of(Location.parse("/srv/Übung")) == "-srv-Übung"

    @given(path=names)
    def test_is_a_name_that_every_file_system_takes(self, path: str) -> None:
        slug = slug_of(Location(None, f"/{path}" * 20))
        assert all(each.isalnum() or each == "-" for each in slug)
        assert 0 < len(slug.encode()) <= 200


class TestParagraphs:
    def test_have_the_number_of_their_first_line_and_headings_go_with_what_is_below(self) -> None:
        text = "\n# Gate\n\nIt opens at 7.\nAnd closes.\n\n\n- one\n- two\n"
        assert list(paragraphs(text)) == [(2, "# Gate\n\nIt opens at 7.\nAnd closes."), (8, "- one\n- two")]

    def test_of_a_long_line_end_where_words_do(self) -> None:
        line = "words of a line " * 1000
        found = list(paragraphs(f"before\n{line}\nafter"))
        assert [found[0], found[-1]] == [(1, "before"), (3, "after")]
        assert "".join(text for _, text in found[1:-1]) == line
        assert all(number == 2 and len(text) <= 2000 for number, text in found[1:-1])
        assert {word for _, text in found[1:-1] for word in text.split()} == {"words", "of", "a", "line"}
        assert [len(text) for _, text in paragraphs("x" * 5000)] == [2000, 2000, 1000]

    @given(lines=st.lists(st.sampled_from(["", "  ", "# head", "text", "x" * 900]), max_size=30))
    def test_leave_nothing_out_and_are_bounded(self, lines: list[str]) -> None:
        found = list(paragraphs("\n".join(lines)))
        for start, text in found:
            assert lines[start - 1 : start - 1 + len(text.split("\n"))] == text.split("\n")
            assert len(text) < 2000 + 100 * 30
        told = [line for _, text in found for line in text.split("\n") if line.strip()]
        assert told == [line for line in lines if line.strip()]


class TestBudget:
    @given(text=st.text(max_size=300), limit=st.integers(0, 300))
    def test_of_a_text_is_kept(self, text: str, limit: int) -> None:
        short = shortened(text, limit)
        assert len(short) <= limit
        assert short == text or len(text) > limit

    def test_leaves_both_ends(self) -> None:
        short = shortened("a" * 500 + "b" * 500, 200)
        assert short.startswith("aaa")
        assert short.endswith("bbb")
        assert "characters and more left out" in short

    @given(sizes=st.lists(st.integers(0, 1000), max_size=8), budget=st.integers(0, 3000))
    def test_is_shared_and_nothing_of_it_lies_idle(self, sizes: list[int], budget: int) -> None:
        given_ = shares(sizes, budget)
        assert all(0 <= have <= want for have, want in zip(given_, sizes, strict=True))
        assert sum(given_) <= budget or sum(sizes) <= budget
        if given_ != sizes:
            assert sum(given_) >= budget - len(sizes)
            assert given_[0] >= min(sizes[0], budget // 2)


class TestSkill:
    def test_is_read_from_front_matter(self) -> None:
        text = front_matter(b"---\nname: deploy\ndescription: >\n  How to\n  deploy.\n---\n# Deploy\n")[0].decode()
        skill, problem = read_skill(text, "folder", "gpu:/p/.agents/skills/folder/SKILL.md")
        assert (skill.name, skill.description, problem) == ("deploy", "How to deploy.", "")
        assert skill.location == "gpu:/p/.agents/skills/folder/SKILL.md"

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            (b"# no front matter", "no front matter"),
            (b"---\nname: [1\n---\n", "no YAML"),
            (b"---\n- a\n- b\n---\n", "no front matter"),
            (b"---\n" + b"[" * 3000 + b"\n---\n", "no YAML"),
            (b"---\nname: !!python/object/apply:os.system ['true']\n---\n", "no YAML"),
        ],
    )
    def test_that_says_nothing_of_itself_has_its_folders_name_and_a_problem(self, text: bytes, words: str) -> None:
        skill, problem = read_skill(front_matter(text)[0].decode(), "deploy", "x")
        assert (skill.name, skill.description) == ("deploy", "")
        assert words in problem

    def test_has_front_matter_if_that_has_an_end(self) -> None:
        assert front_matter(b"---\nname: x\nnever ended") == (b"name: x\nnever ended", False)
        assert front_matter(b"name: x\n---\n") == (b"", True)

    @pytest.mark.parametrize(
        ("text", "name", "description", "problem"),
        [
            (
                "name: 2024-01-01\ndescription: 3.5",
                "deploy",
                "",
                "its name is no text to YAML (2024-01-01): put it in quotes; "
                "its description is no text to YAML (3.5): put it in quotes",
            ),
            ("name: {a: b}\ndescription: How.", "deploy", "How.", "its name is no text but a mapping"),
            ("name: x\ndescription: [a]", "x", "", "its description is no text but a list"),
            ("name:\ndescription: ''", "deploy", "", "its name is empty; its description is empty"),
            ("other: 1", "deploy", "", "it has no name; it has no description"),
            (
                f"name: x\ndescription: {'y' * 1025}",
                "x",
                "y" * 1023 + "…",
                "its description has 1,025 characters, and is cut after 1,024",
            ),
            (f"name: x\ndescription: {'y' * 1024}", "x", "y" * 1024, ""),
        ],
    )
    def test_whose_fields_are_no_texts_says_so(self, text: str, name: str, description: str, problem: str) -> None:
        skill, found = read_skill(text, "deploy", "x")
        assert (skill.name, skill.description, found) == (name, description, problem)

    @given(text=st.text(max_size=200))
    def test_is_one_line_whatever_stands_there(self, text: str) -> None:
        skill, _ = read_skill(text, "deploy", "x")
        assert (skill.name + skill.description).isprintable()


def test_a_hit_is_a_text_that_survives_the_wire() -> None:
    own = Hit.make("gpu:/a", True, "memory.md", 3, "the gate")
    other = Hit.make("gpu:/b", False, "journal/2024-05-01.md", 1, "the gate")
    assert [own, other] == ["memory.md:3: the gate", "[gpu:/b] journal/2024-05-01.md:1: the gate"]
    again = Hit.from_dict(other.to_dict())
    assert (again, again.location, again.file, again.line, again.text) == (
        other,
        "gpu:/b",
        "journal/2024-05-01.md",
        1,
        "the gate",
    )


def test_a_question_that_is_asked_anew_may_be_answered_before_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    complaints: list[dict[str, Any]] = []

    async def ask() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        under_way, release = asking._UnderWay(), asyncio.Event()

        async def answer(text: str) -> str:
            if text == "first":
                await release.wait()
            return text

        first = under_way.begin("host", lambda: answer("first"))
        monkeypatch.setattr(asking, "HOPELESS", -1.0)
        assert await under_way.begin("host", lambda: answer("second")) == "second"
        await asyncio.sleep(0)  # what is called when it is done has been called
        release.set()
        assert await first == "first"
        await asyncio.sleep(0)
        assert under_way._tasks == {}

    asyncio.run(ask())
    assert complaints == []
