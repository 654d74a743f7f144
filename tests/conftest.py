"""What all tests share: none of them touches the files of the person who runs them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

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


def pytest_report_header() -> list[str]:
    """Say whether missing servers are failures."""
    return ["missing ssh servers are " + ("failures (CI is set)" if os.environ.get("CI") else "skips (CI is not set)")]
