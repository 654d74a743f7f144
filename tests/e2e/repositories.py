"""Git repositories on hosts, made by the host's own account, and what is seen of them."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from faces import Host

from albedo_provisioner import browse

_IDENTITY = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org", "-c", "init.defaultBranch=main")


def git(host: Host, folder: Path, *words: str) -> str:
    """Run git in a folder of a host, and return what it prints."""
    command = shlex.join(["git", "-C", str(folder), *_IDENTITY, *words])
    done = host.run(["/bin/sh", "-c", command])
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def make_repository(host: Host, name: str, files: dict[str, str] | None = None) -> Path:
    """Make a repository in a host's home; with files, they are committed."""
    folder = host.make_folder(name)
    git(host, folder, "init", "--quiet")
    if files is not None:
        for path, text in files.items():
            host.write(folder / path, text)
        commit(host, folder)
    return folder


def commit(host: Host, folder: Path) -> str:
    """Commit everything, and return the commit's id."""
    git(host, folder, "add", "--all")
    git(host, folder, "commit", "--quiet", "--message", "x")
    return git(host, folder, "rev-parse", "HEAD")


def make_tree(folder: Path, tree: dict[bytes, object]) -> None:
    """Make what a tree describes: bytes are a file's content, a dictionary is a folder, a text leads a link there."""
    folder.mkdir(exist_ok=True)
    for name, content in tree.items():
        path = os.path.join(os.fsencode(folder), name)
        if isinstance(content, dict):
            make_tree(Path(os.fsdecode(path)), content)
        elif isinstance(content, str):
            os.symlink(content, path)
        else:
            assert isinstance(content, bytes)
            with open(path, "wb") as file:
                file.write(content)


def by_tree(preview: browse.Preview) -> dict[str, browse.Node]:
    """Return the first level of a preview's tree."""
    return {node.name: node for node in preview.tree.children}
