"""Sessions whose process is killed, or leaves them: another one goes on with them."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest
from faces import Embedded, Host, keeper_of
from kernels import kernel_pid
from procs import send

from albedo_provisioner import Sessions
from albedo_provisioner.errors import (
    AlbedoError,
)
from albedo_provisioner.kernels.records import KernelRecords, this_process

PROGRAM = """
import sys
from albedo_provisioner import Sessions
sessions = Sessions()
session = sessions.open(sys.argv[1], "agent")
session.execute("x = 41")
print(session.id, session.status()["process"]["pid"], flush=True)
session.execute("print('BEGUN', flush=True)\\nimport time\\nfor i in range(30):\\n    print(i, flush=True)\\n"
                "    time.sleep(0.1)\\nx + 1", cell_id="turn-7", on_output=lambda o: print("begun", flush=True))
"""


@pytest.fixture
def killed(any_host: Host) -> tuple[str, int]:
    """Run a program that is killed in the middle of a call; return its session's id and its kernel's pid."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, any_host.location()], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        session_id, pid = process.stdout.readline().split()
        assert process.stdout.readline() == "begun\n"
        process.kill()
    return session_id, int(pid)


class TestSurvival:
    def test_another_process_goes_on_with_the_session_and_its_running_cell(
        self, any_host: Host, killed: tuple[str, int], sessions: Sessions
    ) -> None:
        """L3."""
        (listed,) = sessions.list()
        assert (listed["session_id"], listed["owner"], listed["open"]) == (killed[0], "agent", "nowhere")
        session = sessions.resume(killed[0])
        result = session.cell("turn-7")
        assert (result.status, result.value) == ("ok", "42")
        assert result.stdout == "BEGUN\n" + "".join(f"{i}\n" for i in range(30))
        again = session.execute("this would not even be Python", cell_id="turn-7")
        assert (again.status, again.value, again.outputs) == (result.status, result.value, result.outputs)
        assert "other code" in str(again.kernel.note)
        later = session.execute("x")
        assert (later.value, later.kernel.reused, later.kernel.state_lost) == ("41", True, False)
        assert kernel_pid(session) == killed[1]
        assert next(cell.code for cell in session.cells()) == "x = 41"

    def test_also_while_the_host_cannot_be_reached_at_first(
        self, any_host: Host, killed: tuple[str, int], sessions: Sessions
    ) -> None:
        """L4."""
        if not any_host.remote:
            any_host.clear()
            pytest.skip("this machine is always within reach")
        any_host.down()
        session = sessions.resume(killed[0])
        with pytest.raises(AlbedoError, match="refused"):
            session.cell("turn-7")
        threading.Timer(2.0, any_host.up).start()
        any_host.up()
        assert session.cell("turn-7").value == "42"
        assert session.execute("x").value == "41"

    def test_a_kernel_that_is_gone_meanwhile_is_told(
        self, any_host: Host, killed: tuple[str, int], sessions: Sessions
    ) -> None:
        any_host.clear()
        session = sessions.resume(killed[0])
        result = session.cell("turn-7")
        assert result.status == "lost"
        assert "gone" in str(result.kernel.note)
        later = session.execute("'x' in globals()")
        assert (later.value, later.kernel.reused, later.kernel.state_lost) == ("False", False, True)

    def test_a_running_cell_whose_keeper_was_killed_too_is_not_said_never_to_have_run(
        self, any_host: Host, killed: tuple[str, int], sessions: Sessions
    ) -> None:
        send(keeper_of(any_host), signal.SIGKILL)
        session = sessions.resume(killed[0])
        result = session.cell("turn-7")
        assert (result.status, result.kernel.state_lost) == ("lost", False)
        assert "may have run" in str(result.kernel.note)
        assert session.execute("x").value == "41"

    def test_a_session_that_is_open_elsewhere_is_not_taken(self, embedded_host: Embedded, sessions: Sessions) -> None:
        code = (
            "import sys\nfrom albedo_provisioner import Sessions\n"
            "print(Sessions().open(sys.argv[1]).id, flush=True)\ninput()"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code, embedded_host.location()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            session_id = process.stdout.readline().strip()
            with pytest.raises(AlbedoError, match="open in process"):
                sessions.resume(session_id)
            process.communicate("\n")
        assert sessions.resume(session_id).id == session_id
        with pytest.raises(KeyError):
            sessions.resume("nonsense")

    def test_what_was_left_is_resumed(self, embedded_host: Embedded) -> None:
        """Also by another process while the one that left it lives, and after its exit."""
        code = (
            "import sys\nfrom albedo_provisioner import Sessions\nsessions = Sessions()\n"
            "for owner in ('a', 'b'):\n    session = sessions.open(sys.argv[1], owner)\n"
            "    session.execute('x = 41')\n    print(session.id, flush=True)\n"
            "sessions.leave()\nprint('left', flush=True)\ninput()"
        )
        with (
            Sessions() as sessions,
            subprocess.Popen(
                [sys.executable, "-c", code, embedded_host.location()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as process,
        ):
            assert process.stdout is not None
            first, second, left = (process.stdout.readline().strip() for _ in range(3))
            assert left == "left"
            assert [each["open"] for each in sessions.list()] == ["nowhere", "nowhere"]
            session = sessions.resume(first)
            assert session.execute("x").value == "41"
            assert [each["open"] for each in sessions.list()] == ["here", "nowhere"]
            assert sessions.close_owner("b") == 1
            with pytest.raises(KeyError):
                sessions.resume(second)
            process.communicate("\n")
            again = session.execute("x += 1\nx")
            assert (again.value, again.kernel.reused, again.kernel.state_lost) == ("42", True, False)
            (record,) = KernelRecords().all()
            assert record.owner == this_process()

    def test_what_was_left_is_resumed_by_the_same_process(self, embedded_host: Embedded) -> None:
        first = Sessions()
        session = first.open(embedded_host.location())
        session.execute("x = 41")
        first.leave()
        with Sessions() as second:
            assert second.resume(session.id).execute("x").value == "41"

    def test_what_was_left_is_taken_up_by_who_opens_the_same_place(self, embedded_host: Embedded) -> None:
        """Of the same owner, and for the same interpreter; by several at once, one gets it."""
        first = Sessions()
        session = first.open(f"{embedded_host.alias}:", "ann")
        session.execute("x = 41")
        place = str(session.location)
        first.leave()
        with Sessions() as second, Sessions() as third:
            assert second.open(place, "bob").id != session.id
            assert second.open(place, "ann", tools={"f": print}).id != session.id
            assert third.open(place, "ann", python="/usr/bin/python3").id != session.id
            again = second.open(place, "ann")
            assert again.id == session.id
            result = again.execute("x")
            assert (result.value, result.kernel.reused) == ("41", True)
            assert second.open(f"{embedded_host.alias}:", "ann").id == session.id
        with Sessions() as fourth:
            assert fourth.open(place, "ann").id != session.id
            assert fourth.open(place, "ann").execute("'x' in globals()").value == "False"
        program = (
            "import sys\nfrom albedo_provisioner import Sessions\nsession = Sessions().open(sys.argv[1])\n"
            "print(session.id, session.execute(\"n = globals().get('n', 0) + 1; n\").value)"
        )
        command = [sys.executable, "-c", program, place]
        runs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() for _ in range(2)]
        assert [number for _, number in runs] == ["1", "2"]
        assert runs[0][0] == runs[1][0]
        with Sessions() as last:
            last.open(place)
