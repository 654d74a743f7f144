"""A disk without room for what sessions put on record: what cannot be done is said, and nothing else is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from faces import Embedded
from kernels import PATIENCE
from procs import wait_until

from albedo_provisioner import Sessions
from albedo_provisioner.errors import AlbedoError, ConfigError

UNTIL_GO = "import os, time\nprint('begun', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\n"


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Have what is put on record here go to a small disk, and return where that is."""
    place = tmp_path / "disk"
    place.mkdir()
    options = "size=1m,nodev,nosuid,mode=700"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=False).returncode:
        pytest.skip("a disk cannot be mounted here")
    monkeypatch.setenv("ALBEDO_HOME", str(place))
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """Take all the room that a disk has, for a while."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    assert os.statvfs(disk).f_bavail == 0
    yield
    filler.unlink()


def test_sessions_say_what_cannot_be_done_and_lose_nothing(embedded_host: Embedded, small_disk: Path) -> None:
    elsewhere = embedded_host.location(embedded_host.make_folder("elsewhere"))
    with Sessions() as sessions:
        session = sessions.open(embedded_host.location(), tools={"echo": lambda text: text})
        session.execute("x = 41")
        with full(small_disk):
            for act in (
                lambda: session.execute("x = 0"),
                lambda: session.execute("1", reset=True),
                lambda: session.move(elsewhere),
                lambda: sessions.open(elsewhere),
                lambda: session.memory.append("a note"),
            ):
                with pytest.raises(AlbedoError, match=r"full|No space left"):
                    act()
            assert session.memory.read() == ""
            assert session.status()["execution_state"] == "idle"
            assert [cell.code for cell in session.cells()] == ["x = 41"]
            program = "import sys\nfrom albedo_provisioner import Sessions\nSessions().open(sys.argv[1])"
            other = subprocess.run(
                [sys.executable, "-c", program, elsewhere], stderr=subprocess.PIPE, timeout=PATIENCE, check=False
            )
            assert b"ConfigError: The record of sessions in " in other.stderr
        result = session.execute("tools.echo(x + 1)")
        assert (result.value, result.kernel.reused, result.kernel.note) == ("42", True, None)
        with full(small_disk):
            session.reset()
            for reset in (False, True):
                with pytest.raises(ConfigError, match="full"):
                    session.execute("1", reset=reset)
        result = session.execute("'x' in globals()")
        assert (result.value, result.kernel.state_reset, result.kernel.state_lost) == ("False", True, False)
        assert result.kernel.note == "The session was reset, so the state of earlier calls is gone."
        with full(small_disk):
            os.kill(session.status()["process"]["pid"], signal.SIGKILL)
            wait_until(lambda: session.status()["process"]["state"] == "exited", PATIENCE, "its end is known")
            for _ in range(2):
                with pytest.raises(ConfigError, match="full"):
                    session.execute("1")
        note = str(session.execute("1").kernel.note)
        assert note == f"The state of earlier calls was lost: The kernel on {embedded_host.alias} was ended by SIGKILL."
        assert session.execute("1").kernel.note is None


def test_a_result_that_cannot_be_kept_is_had_all_the_same(embedded_host: Embedded, small_disk: Path) -> None:
    """Its code does not run again, and what came of it is known once there is room."""
    begun, results = threading.Event(), []
    with Sessions() as sessions:
        session = sessions.open(embedded_host.location())
        session.execute("n = 41")

        def call() -> None:
            code = f"{UNTIL_GO}n += 1\nn"
            results.append(session.execute(code, cell_id="c", on_output=lambda _: begun.set()))

        thread = threading.Thread(target=call)
        thread.start()
        assert begun.wait(PATIENCE)
        with full(small_disk):
            embedded_host.write("go", "")
            thread.join(PATIENCE)
            assert (results[0].status, results[0].value) == ("ok", "42")
            assert "(Not kept: The record of sessions" in str(results[0].kernel.note)
        assert session.cell("c").value == "42"
        assert session.execute("n += 1", cell_id="c").value == "42"
        assert session.execute("n").value == "42"
