"""Reading, from the system's own texts, whether a process was killed because memory ran out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from albedo_provisioner.bundle.heap import OutOfMemoryWatch

VERSION_2 = (
    "0::/user.slice/a b.slice\n",
    "user.slice/a b.slice/memory.events",
    "low 0\nhigh 0\nmax 9\noom 7\noom_kill {}\n",
)
VERSION_1 = (
    "9:name=systemd:/\n4:cpu,memory:/box\n0::/\n",
    "memory/box/memory.oom_control",
    "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n",
)


@pytest.fixture(params=[VERSION_1, VERSION_2], ids=["v1", "v2"])
def system(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[OutOfMemoryWatch, Path, Callable[[int], object]]:
    """Return a watch on process 7, the file with its group's counts, and a function that writes a count of kills."""
    groups, file, text = request.param
    counts = tmp_path / "groups" / file
    counts.parent.mkdir(parents=True)
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/cgroup").write_text(groups)

    def write(kills: int) -> None:
        counts.write_text(text.format(kills))

    write(3)
    return OutOfMemoryWatch(7, str(tmp_path / "proc"), str(tmp_path / "groups")), counts, write


def test_only_what_was_killed_of_late_counts(
    system: tuple[OutOfMemoryWatch, Path, Callable[[int], object]],
) -> None:
    """K5: a child that was killed for it is no reason to say so of a kernel that dies of something else, much later."""
    watch, _, write = system
    assert watch.kills() == 0
    write(4)
    assert watch.kills() == 1
    watch.renew()
    assert watch.kills() == 1, "the last look may have been just before the process's end"
    watch.renew()
    assert watch.kills() == 0, "that was long ago"
    write(5)
    assert watch.kills() == 1


@pytest.mark.parametrize("text", [None, "", "oom_kill", "oom_kill many\n", "oom_kill 5 6\n", "oom 5\n"])
def test_what_cannot_be_read_is_no_kill(
    system: tuple[OutOfMemoryWatch, Path, Callable[[int], object]], text: str | None
) -> None:
    watch, counts, write = system
    counts.unlink() if text is None else counts.write_text(text)
    assert watch.kills() == 0
    watch.renew()
    write(9)
    watch.renew()
    assert watch.kills() == 0, "how many there were before is not known"
    watch.renew()
    write(10)
    assert watch.kills() == 1


def test_a_process_without_groups_is_never_said_to_have_been_killed(tmp_path: Path) -> None:
    assert OutOfMemoryWatch(7, str(tmp_path), str(tmp_path)).kills() == 0
