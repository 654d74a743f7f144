"""A disk that takes but a part of a compiled file leaves none of ours behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from albedo_provisioner.bundle import mending

IMPORT = """
import resource, sys
sys.dont_write_bytecode = False
sys.path.insert(0, sys.argv[2])
exec(open(sys.argv[1]).read())
mend_below(sys.argv[3])
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))  # as a full disk: a write comes out short
import ours
assert ours.LAST == 2999
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""


def import_below(root: Path, mended: Path) -> list[Path]:
    """Have a module imported where there is no room for it, and return its compiled files."""
    (root / "ours.py").write_text("".join(f"n{number} = {number}\n" for number in range(3000)) + "LAST = n2999\n")
    command = [sys.executable, "-c", IMPORT, mending.__file__, str(root), str(mended)]
    subprocess.run(command, check=True)
    return list(root.rglob("*.pyc"))


def test_a_file_that_has_no_room_is_not_kept(tmp_path: Path) -> None:
    assert import_below(tmp_path, tmp_path.parent) == []


@pytest.mark.skipif(sys.version_info >= (3, 12, 8), reason="this Python keeps none by itself")
def test_other_directories_are_left_to_python(tmp_path: Path) -> None:
    (cut,) = import_below(tmp_path, tmp_path / "elsewhere")
    assert cut.stat().st_size == 4096
