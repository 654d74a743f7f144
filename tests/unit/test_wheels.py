"""Which wheels fit an interpreter elsewhere, and how a host takes them; without any network."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import io
import json
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import packaging.tags
import pytest

from albedo_provisioner.bundle import in_use, staging, wheels
from albedo_provisioner.bundle.wire import Frame, FrameReader
from albedo_provisioner.hosts.host_python import HostPython
from albedo_provisioner.hosts.joint import Joint

# ---------------------------------------------------------------------------------------------------- what fits


def python(**other: Any) -> HostPython:
    """Return this interpreter as a host's, with some facts of another one."""
    return HostPython.from_facts({**wheels.facts(), "own": {}, **other})


def test_the_platforms_of_this_machine_are_those_that_packaging_finds() -> None:
    ours, theirs = python().platforms(), list(packaging.tags.platform_tags())
    if sys.platform == "darwin":  # pip goes down from the newest by itself
        assert ours == theirs[:1]
    else:
        # Versions of packaging differ in where the one that no index has stands.
        assert [name for name in ours if "many" in name or "musl" in name] == [
            name for name in theirs if "many" in name or "musl" in name
        ]
        assert set(ours) == set(theirs)


def test_the_abi_of_this_interpreter_is_the_one_that_packaging_finds() -> None:
    first = next(packaging.tags.cpython_tags())
    assert python().abis[0] == first.abi


def test_musl_has_platforms_of_its_own() -> None:
    found = python(system="linux", machine="aarch64", libc="musl", libc_version=[1, 2]).platforms()
    assert found == ["musllinux_1_2_aarch64", "musllinux_1_1_aarch64", "musllinux_1_0_aarch64", "linux_aarch64"]


def test_an_old_glibc_gets_no_new_wheels() -> None:
    found = python(system="linux", machine="x86_64", libc="glibc", libc_version=[2, 17]).platforms()
    assert found[:2] == ["manylinux_2_17_x86_64", "manylinux2014_x86_64"]
    assert found[-2:] == ["manylinux1_x86_64", "linux_x86_64"]


@pytest.mark.parametrize(("version", "platform"), [([14, 5], "macosx_14_5_arm64"), ([10, 16], "macosx_11_0_arm64")])
def test_macos_is_told_by_its_version(version: list[int], platform: str) -> None:
    found = python(system="darwin", machine="arm64", libc="", libc_version=version)
    assert found.platforms() == [platform]


def test_nothing_is_known_to_fit_other_implementations_and_systems() -> None:
    assert python(implementation="pypy").platforms() == []
    assert python(system="freebsd14", libc="").platforms() == []


@pytest.mark.parametrize(
    "facts",
    [
        {"machine": "x86_64 --index-url=http://elsewhere"},
        {"abis": ["cp311", "-r/etc/passwd"]},
        {"version": ["3", "x", "1"]},
        {"version": [3, 11]},
        {"markers": None},
        {"own": []},
    ],
)
def test_what_a_host_says_cannot_become_an_option_of_pip(facts: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        python(**facts)


def test_of_a_hosts_packages_only_names_and_versions_are_taken() -> None:
    own = {"Ruamel.Yaml": "0.17.0", "-r /etc/passwd": "1", "x\n--index-url y": "1", "x": "1; y", "apt": "2.6.0+deb12"}
    assert python(own=own).own == {"ruamel-yaml": "0.17.0", "apt": "2.6.0+deb12"}


# --------------------------------------------------------------------------------------------------- taking them


def wheel(**files: bytes) -> bytes:
    """Return a wheel with these files; `__` in a name stands for `/`."""
    return archive({name.replace("__", "/"): content for name, content in files.items()})


def archive(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for name, content in files.items():
            file.writestr(name, content)
    return packed.getvalue()


def listing(*contents: bytes, names: list[str] | None = None) -> dict[str, Any]:
    names = names or [f"p{number}-1-py3-none-any.whl" for number in range(len(contents))]
    digests = [hashlib.sha256(content).hexdigest() for content in contents]
    whole = "".join(f"{name}\0{sha}\n" for name, sha in zip(names, digests, strict=True))
    files = [[name, len(content), sha] for name, content, sha in zip(names, contents, digests, strict=True)]
    return {"digest": hashlib.sha256(whole.encode()).hexdigest()[:16], "files": files}


def stage(directory: Path, wanted: dict[str, Any], sent: bytes, before: str = "") -> list[dict[str, Any]]:
    """Have a process take wheels into a directory, and return all that it reports."""
    code = (
        "import json, sys\nfrom albedo_provisioner.bundle import staging, wheels\n"
        f"wheels.DIRECTORY = staging.DIRECTORY = {str(directory)!r}\n{before}\n"
        "staging.stage({'wheels': json.loads(sys.argv[1])})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(wanted)], input=sent, capture_output=True, check=False
    )
    assert done.stderr == b""
    return [frame.json() for frame in FrameReader().feed(done.stdout) if isinstance(frame, Frame)]


def test_wheels_are_unpacked_as_an_installer_does(tmp_path: Path) -> None:
    first = archive({"a/__init__.py": b"A", "a/": b"", "a-1.data/purelib/b.py": b"B", "a-1.data/scripts/run": b"no"})
    second = archive({"a/more.py": b"M", "a-1.data/platlib/c.so": b"C", "a-1.data/data/share/x": b"no"})
    wanted = listing(first, second)
    reports = stage(tmp_path / "wheels", wanted, first + second)
    assert reports[0] == {"need": "wheels"}
    assert {"taken": len(first) + len(second)} in reports
    target = Path(reports[-1]["staged"])
    assert target == tmp_path / "wheels" / wanted["digest"]
    found = {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()}
    assert found == {"a/__init__.py": b"A", "a/more.py": b"M", "b.py": b"B", "c.so": b"C", ".in-use": b""}
    assert stage(tmp_path / "wheels", wanted, b"") == [{"staged": str(target)}], "the second time nothing is sent"
    notes = [path for path in (tmp_path / "wheels").iterdir() if path.name.startswith("for-")]
    assert [note.read_text() for note in notes] == [wanted["digest"]]


def test_what_no_kernel_uses_is_left_out(tmp_path: Path) -> None:
    """And time zones only where the system has its own."""
    kept = [
        "tornado/testing.py",
        "a/tests/data.py",
        "zmq/latest/x.py",
        "jedi/third_party/typeshed/stdlib/re.pyi",
        "c.so",
    ]
    left_out = ["tornado/test/x.py", "zmq/tests/deep/x.py", "zmq/x.pyx", "debugpy/a/b.c", "x.hpp"]
    left_out += ["jedi/third_party/django-stubs/x.pyi", "jedi/third_party/typeshed/stubs/x.pyi"]
    zone = "tzdata/zoneinfo/Europe/Berlin"
    content = archive(dict.fromkeys([*kept, *left_out, zone, "tzdata/__init__.py"], b"x"))
    for zones, more in (("/nowhere", [zone]), (str(tmp_path), [])):
        directory = tmp_path / zones.strip("/").replace("/", "-")
        reports = stage(directory, listing(content), content, f"staging._SYSTEM_TIME_ZONES = ({zones!r},)")
        target = Path(reports[-1]["staged"])
        found = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
        assert found == {*kept, *more, "tzdata/__init__.py", ".in-use"}


@pytest.mark.parametrize(
    "name", ["../evil.py", "/etc/evil.py", "a/../../evil.py", "a\\evil.py", "x.data/purelib/../../evil.py", "a//b"]
)
def test_a_name_that_leads_elsewhere_is_refused_and_nothing_is_left(tmp_path: Path, name: str) -> None:
    hostile = archive({"good.py": b"", name: b"evil"})
    (*_, last) = stage(tmp_path / "wheels", listing(hostile), hostile)
    assert last["error"] == "staging"
    assert list(tmp_path.rglob("*")) == [tmp_path / "wheels"]


def test_a_damaged_wheel_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    good = wheel(a=b"1")
    sent = bytearray(good)
    sent[5] ^= 1
    (*_, last) = stage(tmp_path / "wheels", listing(good), bytes(sent))
    assert "did not arrive as it was sent" in last["detail"]
    (*_, last) = stage(tmp_path / "wheels", listing(b"no zip at all"), b"no zip at all")
    assert last["error"] == "staging"
    assert list((tmp_path / "wheels").iterdir()) == []


def test_a_client_that_goes_away_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    content = wheel(a=b"1" * 1000)
    reports = stage(tmp_path / "wheels", listing(content, content), content + content[:100])
    assert not [report for report in reports if "staged" in report or "error" in report]
    assert list((tmp_path / "wheels").iterdir()) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"digest": "0" * 16}, "digest"),
        ({"digest": "../../../x"}, "digest"),
        ({"files": [["p0-1-py3-none-any.whl", 1 << 40, "0" * 64]]}, "digest"),
    ],
)
def test_a_list_that_is_none_is_refused_before_anything_is_taken(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    content = wheel(a=b"1")
    (report,) = stage(tmp_path / "wheels", {**listing(content), **change}, content)
    assert words in report["detail"]
    assert not (tmp_path / "wheels").exists()


def test_more_than_may_be_sent_is_refused_before_anything_is_taken(tmp_path: Path) -> None:
    content = wheel(a=b"1")
    wanted = listing(content)
    wanted["files"][0][1] = staging.MOST_BYTES + 1
    (report,) = stage(tmp_path / "wheels", wanted, content)
    assert "more than" in report["detail"]


def test_more_than_may_be_unpacked_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    content = wheel(a=b"0" * 5000, b=b"0" * 5000)
    (*_, last) = stage(tmp_path / "wheels", listing(content), content, "staging.MOST_UNPACKED = 9000")
    assert "hold more than" in last["detail"]
    (*_, last) = stage(tmp_path / "wheels", listing(content), content, "staging.MOST_FILES = 1")
    assert "hold more than" in last["detail"]
    assert list((tmp_path / "wheels").iterdir()) == []


# ------------------------------------------------------------------------------------------------------ sweeping


def make_set(directory: Path, name: str, age: float) -> Path:
    path = directory / name
    path.mkdir(parents=True)
    (path / in_use.LOCK).touch()
    (path / "module.py").touch()
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_only_what_nobody_used_for_long_and_nobody_uses_is_swept_away(tmp_path: Path) -> None:
    directory = tmp_path / "wheels"
    month = in_use.UNUSED + 60
    old = make_set(directory, "0" * 16, month)
    young = make_set(directory, "1" * 16, month - 3600)
    used = make_set(directory, "2" * 16, month)
    abandoned = make_set(directory, "3" * 16 + ".123.abcd", 3600)
    filling = make_set(directory, "4" * 16 + ".123.abcd", 3600)
    foreign = make_set(directory, "somebody's", month)
    content = wheel(a=b"1")
    locks = [os.open(path / in_use.LOCK, os.O_RDWR) for path in (used, filling)]
    try:
        for lock, kind in zip(locks, (fcntl.LOCK_SH, fcntl.LOCK_EX), strict=True):
            fcntl.flock(lock, kind)
        (*_, last) = stage(directory, listing(content), content)
    finally:
        for lock in locks:
            os.close(lock)
    assert "staged" in last
    assert not old.exists()
    assert not abandoned.exists()
    for path in (young, used, filling, foreign):
        assert (path / "module.py").exists()
    left = {path.name for path in directory.iterdir() if not path.name.startswith("for-")}
    assert left == {young.name, used.name, filling.name, foreign.name, Path(last["staged"]).name}


def test_a_set_in_use_counts_as_used_now_and_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "DIRECTORY", str(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert not wheels.put_on_path()
    path = make_set(tmp_path, "a" * 16, 1e6)
    Path(wheels.note_path()).write_text("a" * 16)
    assert wheels.put_on_path()
    assert sys.path[-1] == str(path)
    assert time.time() - path.stat().st_mtime < 60
    with (path / in_use.LOCK).open("r+") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(in_use._held.pop(str(path)))


@pytest.mark.parametrize("text", ["", "../../etc", "b" * 16, "\0"])
def test_a_note_that_names_no_set_is_as_good_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(wheels, "DIRECTORY", str(tmp_path))
    Path(wheels.note_path()).write_text(text)
    assert wheels.set_path() is None


# ------------------------------------------------------------------------------------------------- done once


async def test_work_that_is_wanted_twice_is_done_once_and_both_hear_of_it() -> None:
    joint: Joint[str, int] = Joint()
    begun, go_on = 0, asyncio.Event()
    heard: list[list[int]] = [[], []]

    async def work(tell: Callable[[int], None]) -> str:
        nonlocal begun
        begun += 1
        tell(1)
        await go_on.wait()
        tell(2)
        return "done"

    first = asyncio.create_task(joint.do("key", work, heard[0].append))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    second = asyncio.create_task(joint.do("key", work, heard[1].append))
    await asyncio.sleep(0)
    go_on.set()
    assert await asyncio.gather(first, second) == ["done", "done"]
    assert begun == 1
    assert heard == [[1, 2], [1, 2]]
    assert await joint.do("key", work) == "done"
    assert begun == 2, "what is done is not kept"


async def test_work_ends_only_when_the_last_who_waits_gives_up() -> None:
    joint: Joint[None, None] = Joint()
    ended = False

    async def work(_: Callable[[None], None]) -> None:
        nonlocal ended
        try:
            await asyncio.Event().wait()
        finally:
            ended = True

    tasks = [asyncio.create_task(joint.do("key", work)) for _ in range(2)]
    await asyncio.sleep(0)
    for task, expected in zip(tasks, (False, True), strict=True):
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended is expected


async def test_all_who_wait_learn_why_work_failed() -> None:
    joint: Joint[None, None] = Joint()

    async def work(_: Callable[[None], None]) -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    results = await asyncio.gather(*(joint.do("key", work) for _ in range(2)), return_exceptions=True)
    assert [str(result) for result in results] == ["no", "no"]
