"""Telling which file takes the place of a module of Python's own, such as a `json.py` on PYTHONPATH, when that is why
something fails: what Python says of it names the module, and often not the file.

The text goes to the host ahead of `loader.py`, so any Python has to understand it, as that one.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

MARK = "albedo: in the place of a module of Python's own: "
"""What is printed ahead of the file."""

IN_THE_WAY = "A module there takes the place of one of the standard library"
"""How what is said of such a file begins."""


def in_the_way(error):
    # type: (BaseException) -> str
    """Return the file in the place of a module of Python's own that an error is about; empty for none."""
    own = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
    names = getattr(sys, "stdlib_module_names", ())  # since Python 3.10
    trace, files = getattr(error, "__traceback__", None), []
    while trace is not None:
        files.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    for path in reversed(files):  # one that failed while it was imported
        folder, name = os.path.split(path)
        if name == "__init__.py":
            folder, name = os.path.split(folder)
        beside = folder in map(os.path.abspath, sys.path)  # a module `json` of some package is not meant
        if beside and name.rpartition(".py")[0] in names and not path.startswith(own):
            return str(path)
    for name in names:
        path = getattr(sys.modules.get(name), "__file__", None) or ""
        if ("'%s'" % name) in str(error) and path.startswith("/") and not path.startswith(own):
            return path
    return ""


def advice(said, file):
    # type: (str, str) -> str
    """Return what to do about a file in the place of a module of Python's own, in a sentence without its full stop.

    The file is named, unless it was already.
    """
    name = " (%s)" % file if file not in said else ""
    return "%s%s: rename it, or take its folder out of PYTHONPATH (see its profile)" % (IN_THE_WAY, name)


def words_of(error):
    # type: (BaseException) -> str
    """Return what an error says with the file that is to blame and what to do; empty if there is no such one."""
    path, said = in_the_way(error), "%s: %s" % (type(error).__name__, error)
    return "%s. %s" % (said, advice(said, path)) if path else ""


def explain(kind, error, trace):
    # type: (type[BaseException], BaseException, TracebackType | None) -> None
    """Print what ends the process as Python does, and before it which file is to blame if that is one; for
    `sys.excepthook`.
    """
    path = in_the_way(error)
    if path:
        os.write(2, (MARK + path + "\n").encode("utf-8", "backslashreplace"))
    sys.__excepthook__(kind, error, trace)
