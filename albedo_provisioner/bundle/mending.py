"""Compiled files of ours that are cut short mend themselves.

Before 3.12.8 and 3.13.1, Python takes it for done when a full disk takes but a part of a compiled file, and the file
keeps every later process from importing the module (EOFError: marshal data too short). What is ours to mend is what we
put on the host: there such a file is removed, and made anew or not. The user's own files are left as they are; what is
wrong with those is told by `caches.py`.

The text goes to the host ahead of `loader.py`, so any Python has to understand it, as that one; and what is run before
our modules can be imported safely reads it from its file.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any


def mend_below(root):
    # type: (str) -> None
    """Have this process mend what it imports from below a directory of ours, at no cost to what lies elsewhere."""
    from importlib import machinery

    class MendingLoader(machinery.SourceFileLoader):
        """Imports a module from its text where the compiled file makes no sense."""

        def get_code(self, fullname):
            # type: (str) -> CodeType | None
            """Return a module's code."""
            try:
                return super().get_code(fullname)
            except (EOFError, ValueError, TypeError, ImportError):
                from importlib.util import cache_from_source

                cache = cache_from_source(self.path)
                if not os.path.exists(cache):  # it was the text that makes none
                    raise
                os.unlink(cache)
                return super().get_code(fullname)

        def set_data(self, path, data, **more):
            # type: (str, Any, Any) -> None
            """Write a compiled file, or none where there is no room for all of it."""
            super().set_data(path, data, **more)
            try:
                if os.stat(path).st_size < len(data):
                    os.unlink(path)
            except OSError:
                pass  # it was not written at all, or somebody else removed it

    make = machinery.FileFinder.path_hook(
        (machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES),
        (MendingLoader, machinery.SOURCE_SUFFIXES),
        (machinery.SourcelessFileLoader, machinery.BYTECODE_SUFFIXES),
    )
    below = os.path.join(root, "")

    def find_ours(path):
        # type: (str) -> Any
        if not path.startswith(below):
            raise ImportError("another's directory", path=path)
        return make(path)

    sys.path_hooks.insert(0, find_ours)
    for path in [path for path in sys.path_importer_cache if path.startswith(below)]:
        del sys.path_importer_cache[path]
