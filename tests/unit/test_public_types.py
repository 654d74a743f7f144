"""What a user's type checker sees of the public names."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import albedo_provisioner
from albedo_provisioner.sessions import results

PROGRAM = """
from typing import Any, assert_type

from albedo_provisioner import (
    AsyncHosts, AsyncSession, AsyncSessions, CellRecord, Hosts, KernelReport, Limits, Location, Result, Session,
    Sessions,
)
from albedo_provisioner.errors import AlbedoError, SignInError


def blocking() -> None:
    told: list[dict[str, Any]] = []
    with Sessions(max_kernels=8, idle_timeout=1800, home=None) as sessions:
        assert_type(sessions, Sessions)
        session = sessions.open("gpu:~/proj", owner="conv-1", python="python3", env={"A": "1"})
        assert_type(session, Session)
        assert_type(sessions.open(Location.parse("gpu:~/proj")), Session)
        assert_type(sessions.join(notebook="a.ipynb", owner="conv-1"), Session)
        assert_type(sessions.join("5188722c"), Session)
        result = session.execute("1", timeout=60, reset=False, cell_id="a", on_output=told.append, limits=Limits(10))
        assert_type(result, Result)
        assert_type((result.status, result.stdout, result.value, result.error), tuple[str, str, str | None, str | None])
        assert_type(result.outputs, list[dict[str, Any]])
        assert_type(result.kernel, KernelReport)
        assert_type((result.kernel.reused, result.kernel.note), tuple[bool, str | None])
        assert_type(result.to_dict(), dict[str, Any])
        assert_type(result.full_stdout(), str)
        for output in session.stream("1", timeout=60):
            assert_type(output, dict[str, Any] | Result)
        assert_type((session.id, session.owner, session.location), tuple[str, str, Location])
        assert_type(session.status(), dict[str, Any])
        assert_type(session.interrupt(), bool)
        session.reset()
        session.move("gpu:/srv")
        assert_type(session.cells(), list[CellRecord])
        assert_type(session.cell("a"), Result)
        assert_type(sessions.list(), list[dict[str, Any]])
        assert_type(sessions.resume(session.id), Session)
        assert_type(sessions.close_owner("conv-1"), int)
        session.close()
        sessions.leave()
    try:
        assert_type(Hosts().probe("gpu").state, str)
    except SignInError as error:
        assert_type(error.host, str)
    except AlbedoError as refused:
        print(refused)


async def with_a_loop() -> None:
    async with AsyncSessions(max_kernels=8, idle_timeout=1800, home=None) as sessions:
        assert_type(sessions, AsyncSessions)
        session = await sessions.open("gpu:~/proj", owner="conv-1")
        assert_type(session, AsyncSession)
        assert_type(await sessions.join(notebook="a.ipynb"), AsyncSession)
        assert_type(await session.execute("1", timeout=60), Result)
        async for output in session.stream("1"):
            assert_type(output, dict[str, Any] | Result)
        assert_type(await session.status(), dict[str, Any])
        assert_type(await session.interrupt(), bool)
        await session.reset()
        await session.move("gpu:/srv")
        assert_type(await session.cells(), list[CellRecord])
        assert_type(await session.cell("a"), Result)
        assert_type(await sessions.list(), list[dict[str, Any]])
        assert_type(await sessions.resume(session.id), AsyncSession)
        assert_type(await sessions.close_owner("conv-1"), int)
        await session.close()
        await sessions.leave()
    assert_type((await AsyncHosts().probe("gpu")).state, str)


def wrong(session: Session) -> None:
    session.execute(1)  # type: ignore[arg-type]
    session.execute("1", timout=3)  # type: ignore[call-arg]
"""

_REVEALED = re.compile(r'Revealed type is "(.*)"')


def public_names(kind: type) -> list[str]:
    return [name for name in dir(kind) if not name.startswith("_")]


@pytest.mark.timeout(400)  # libraries are checked as well, unless mypy has been run here before
def test_programs_of_users_are_checked_and_every_public_name_has_a_type(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    cache = os.environ.get("MYPY_CACHE_DIR") or request.config.rootpath / ".mypy_cache"
    faces = [name for name in albedo_provisioner.__all__ if isinstance(getattr(albedo_provisioner, name), type)]
    names = [(kind, name) for kind in faces for name in public_names(getattr(albedo_provisioner, kind))]
    questions = "".join(
        f"\n\ndef ask_{number}(it: albedo_provisioner.{kind}) -> None:\n    reveal_type(it.{name})"
        for number, (kind, name) in enumerate(names)
    )
    program = tmp_path / "program.py"
    program.write_text(f"import albedo_provisioner\n{PROGRAM}{questions}\n")
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={cache}", str(program)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "500"},
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    revealed = _REVEALED.findall(checked.stdout)
    assert len(revealed) == len(names) > 50
    without = [(*name, type_) for name, type_ in zip(names, revealed, strict=True) if re.search(r"(^|-> )Any$", type_)]
    assert without == []


def test_what_is_there_with_a_loop_is_there_without_one() -> None:
    for name in ("Session", "Sessions", "Hosts"):
        blocking = getattr(albedo_provisioner, name)
        assert public_names(blocking) == public_names(getattr(albedo_provisioner, f"Async{name}"))


def test_all_public_names_can_be_imported() -> None:
    module = importlib.import_module("albedo_provisioner")
    assert module.Result is results.Result
    for name in module.__all__:
        assert getattr(module, name).__name__ == name
