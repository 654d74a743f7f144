"""Tables: whole where a program reads them, and no wider than the terminal where a person does."""

from __future__ import annotations

import pytest

from albedo_provisioner.commands.table import in_columns

ROWS = [
    ("NAME", "LOCATION", "WHERE"),
    ("albedo-gpu-proj", "gpu:/home/ann/a/long/way/down/proj", "user"),
    ("r", "lab:/srv", "environment"),
]


def test_columns_are_as_wide_as_they_need_to_be() -> None:
    assert in_columns(ROWS) == [
        "NAME             LOCATION                            WHERE",
        "albedo-gpu-proj  gpu:/home/ann/a/long/way/down/proj  user",
        "r                lab:/srv                            environment",
    ]


@pytest.mark.parametrize("width", [100, 64, 50, 38])
def test_the_widest_cells_lose_their_middle_where_there_is_no_room(width: int) -> None:
    lines = in_columns(ROWS, width)
    assert max(map(len, lines)) <= width
    assert all(row[0] in line for row, line in zip(ROWS, lines, strict=True))
    if width < 64:
        assert "gpu:" in lines[1]
        assert "…" in lines[1]
        assert "/proj" in lines[1] or width < 50
        assert lines[2].split()[1] == "lab:/srv"


def test_what_a_row_is_known_by_is_never_cut() -> None:
    lines = in_columns(ROWS, 5)
    assert all(line.startswith(row[0]) for row, line in zip(ROWS, lines, strict=True))
    assert in_columns([("an-id-of-its-own",)], 4) == ["an-id-of-its-own"]
