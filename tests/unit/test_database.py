"""The small SQLite files that several processes use."""

from __future__ import annotations

import multiprocessing
import sqlite3
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from albedo_provisioner import database
from albedo_provisioner.database import opened
from albedo_provisioner.errors import ConfigError

SCHEMA = "CREATE TABLE IF NOT EXISTS words (word TEXT)"
ROUNDS, PROCESSES = 30, 6


def write_one_each_round(folder: Path, together: Barrier) -> None:
    """Make and fill a new file each round, in the same moment as all others do."""
    for number in range(ROUNDS):
        together.wait()
        with opened(folder / f"{number}.sqlite", SCHEMA, "words") as database:
            database.execute("INSERT INTO words VALUES ('one')")


def test_a_file_that_many_processes_make_at_once_refuses_none(tmp_path: Path) -> None:
    """SQLite itself does not wait when several turn a new file to WAL mode."""
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(PROCESSES, timeout=20)
    processes = [context.Process(target=write_one_each_round, args=(tmp_path, together)) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    for number in range(ROUNDS):
        with sqlite3.connect(tmp_path / f"{number}.sqlite") as database:
            assert database.execute("SELECT count(*) FROM words").fetchone() == (PROCESSES,)


def test_a_file_that_another_process_keeps_locked_is_not_said_to_lack_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_BUSY_TIMEOUT", 0.1)
    path = tmp_path / "words.sqlite"
    with opened(path, SCHEMA, "words") as other:
        other.execute("BEGIN EXCLUSIVE")
        expected = pytest.raises(ConfigError, match=r"locked for more than 0.1 s: see which one .*fuser -v")
        with expected as told, opened(path, SCHEMA, "words") as mine:
            mine.execute("INSERT INTO words VALUES ('one')")
        assert "room" not in str(told.value)
    with opened(path, SCHEMA, "words") as mine:
        mine.execute("INSERT INTO words VALUES ('one')")
