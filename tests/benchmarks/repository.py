"""A git repository of 10,000 files, to be looked at."""

from __future__ import annotations

import subprocess
from pathlib import Path

FOLDERS, FILES, CHANGED = 100, 10_000, 10


def repository(directory: Path) -> Path:
    """Return the repository in a directory, which is made when it is not there yet; all of its columns share it."""
    folder = directory / "repository"
    if folder.exists():
        return folder
    for number in range(FILES):
        file = folder / f"package{number % FOLDERS:02}" / f"module{number // FOLDERS:02}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"number = {number}\n" * (number % 37))
    for words in ("init --quiet", "add .", "-c user.name=a -c user.email=a@example.org commit --quiet -m x"):
        subprocess.run(["git", "-C", folder, *words.split()], check=True)
    for file in sorted(folder.glob("package00/*.py"))[:CHANGED]:
        file.write_text("changed = True\n")
    return folder
