"""What we put on a host: the bundle, named by the digest of its content, as one archive.

A host that has a directory of that name has all of it (see `bundle/loader.py`), so a later visit sends nothing.
"""

from __future__ import annotations

import ast
import functools
import gzip
import hashlib
import io
import tarfile
from dataclasses import dataclass
from importlib import resources

from ..bundle.in_use import LOCK


@dataclass(frozen=True)
class Bundle:
    """The bundle of this version.

    Attributes:
        digest: 16 hexadecimal digits over all names and contents; the directory's name on a host.
        archive: a gzipped tar of it.
    """

    digest: str
    archive: bytes


@functools.cache
def bundle() -> Bundle:
    """Return the bundle; it is packed once per process."""
    folder = resources.files("albedo_provisioner") / "bundle"
    files = {
        f"albedo_bundle/{entry.name}": entry.read_bytes()
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".py")
    }
    files[LOCK] = b""  # what its users lock
    digest = hashlib.sha256()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in files.items():
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return Bundle(digest.hexdigest()[:16], gzip.compress(packed.getvalue(), mtime=0))


def loader() -> bytes:
    """Return the text of `bundle/loader.py`, and of what it takes: it goes over the wire every time."""
    # No json.py of the directory that the shells leave us in is meant by what is imported from here on.
    first = "import sys\nsys.path[:] = [path for path in sys.path if path]"
    texts = "\n".join(map(bare_text, ("private.py", "mending.py", "loader.py")))
    texts = f"{bare_text('shadows.py')}\nsys.excepthook = explain\n{texts}"
    return f"{first}\n{texts}".encode()


@functools.cache
def bare_text(name: str) -> str:
    """Return the text of a file of the bundle without comments and docstrings."""
    source = (resources.files("albedo_provisioner") / "bundle" / name).read_text()
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            node.body[:1] = [] if len(node.body) > 1 else [ast.Pass()]
    return ast.unparse(tree)
