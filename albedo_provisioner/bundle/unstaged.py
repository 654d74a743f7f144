"""Has our modules on a host without putting them there, for what has to work where the disk is full.

Its text goes there in the request, ahead of what needs it, and the loader runs it; any Python has to understand it.
"""

import os
import sys

TYPE_CHECKING = False  # typing takes its time, and old ones have less in it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def import_ours(request, read, report, is_trusted):
    # type: (dict[str, Any], Callable[[int], bytes], Callable[..., None], Callable[..., bool]) -> None
    """Make our modules importable: those that were put here by none but us, or else all of them from memory.

    The arguments are what the loader gives to code that comes with a request.
    """
    root = os.path.join(os.path.expanduser("~"), ".albedo-remote")
    directory = os.path.join(root, request["bundle"])
    sys.dont_write_bytecode = True
    if is_trusted(root, True) and is_trusted(directory):
        sys.path.insert(0, directory)
        return
    import importlib.util  # what a finder takes itself has to be there before it
    import io
    import struct
    import tarfile

    report(need="bundle")
    files = {}
    with tarfile.open(fileobj=io.BytesIO(read(struct.unpack("!I", read(4))[0]))) as archive:
        for member in archive:
            content = archive.extractfile(member)
            files[member.name] = content.read() if content else b""
    sys.meta_path.insert(0, FromMemory(directory, files, importlib.util.spec_from_loader))


class FromMemory:
    """Imports modules from texts, as if they lay in a directory."""

    def __init__(self, directory, files, make_spec):
        # type: (str, dict[str, bytes], Callable[..., Any]) -> None
        self.directory = directory
        self.files = files
        self.make_spec = make_spec

    def find_spec(self, name, path=None, target=None):
        # type: (str, object, object) -> Any
        """Find a module among the texts."""
        for ending, package in (("/__init__.py", True), (".py", False)):
            file = name.replace(".", "/") + ending
            if file in self.files:
                return self.make_spec(name, self, origin=file, is_package=package)
        return None

    def create_module(self, spec):
        # type: (object) -> None
        """Leave it to Python."""

    def exec_module(self, module):
        # type: (Any) -> None
        """Run a module's text."""
        file = module.__spec__.origin
        module.__file__ = os.path.join(self.directory, file)
        exec(compile(self.files[file], module.__file__, "exec"), module.__dict__)

    def get_source(self, name):
        # type: (str) -> str
        """Return a module's text."""
        return self.files[name.replace(".", "/") + ".py"].decode("utf-8")
