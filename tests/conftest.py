"""What all tests share: none of them touches the files of the person who runs them."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from albedo_provisioner.light_imports import for_notebooks

with for_notebooks():
    import nbformat  # noqa: F401

# How long an example takes says nothing on a machine that others use as well.
hypothesis.settings.register_profile("albedo", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("albedo")


@pytest.fixture(scope="session", autouse=True)
def away_from_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Point HOME, Jupyter's directories and ours into a temporary directory, for the whole run.

    Session-wide on purpose: hypothesis runs one test many times. End-to-end tests get fresh ones each (`workspace`).
    """
    root, real_home = tmp_path_factory.mktemp("home"), Path.home()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(root))
        patch.setenv("ALBEDO_HOME", str(root / "albedo"))
        for name in ("DATA", "RUNTIME", "CONFIG"):
            patch.setenv(f"JUPYTER_{name}_DIR", str(root / f"jupyter-{name.lower()}"))
        for name in ("JUPYTER_PATH", "JUPYTER_CONFIG_PATH", "ALBEDO_SSH_CONFIG", "SSH_AUTH_SOCK"):
            patch.delenv(name, raising=False)
        # pip looks for the person's package index in HOME.
        for name in (".config/pip/pip.conf", ".pip/pip.conf"):
            if (real_home / name).is_file() and "PIP_CONFIG_FILE" not in os.environ:
                patch.setenv("PIP_CONFIG_FILE", str(real_home / name))
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options for the long form."""
    parser.addoption(
        "--every-host",
        action="store_true",
        help="run what is for several kinds of hosts on each of them, instead of on one, by turns",
    )
    parser.addoption("--sessions", type=int, default=12, metavar="N", help="sessions in the stress test (%(default)s)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave one kind of host to each test that could run on several, unless all are wanted.

    Nothing is left out when tests are chosen by `-k` or by their whole names. Which kind it is, is decided by the
    test's name: the same every time, and each kind as often as the others.
    """
    named = config.getoption("keyword") or any("[" in argument for argument in config.args)
    if config.getoption("--every-host") or named:
        return
    variants: dict[tuple[object, ...], list[pytest.Item]] = {}
    for item in items:
        params: dict[str, object] = getattr(getattr(item, "callspec", None), "params", {})
        if {"any_host", "remote_host"} & set(params):
            rest = sorted((name, repr(value)) for name, value in params.items() if not name.endswith("_host"))
            variants.setdefault((item.nodeid.partition("[")[0], *rest), []).append(item)
    dropped = []
    for key, kinds in variants.items():
        turn = zlib.crc32(repr(key).encode()) % len(kinds)
        dropped += [item for number, item in enumerate(kinds) if number != turn]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        left = set(map(id, dropped))
        items[:] = [item for item in items if id(item) not in left]


def pytest_report_header() -> list[str]:
    """Say whether missing servers are failures."""
    return ["missing ssh servers are " + ("failures (CI is set)" if os.environ.get("CI") else "skips (CI is not set)")]
