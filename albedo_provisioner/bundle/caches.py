"""Telling which compiled file of the user's keeps a module from being imported: one that a full disk has cut short.

Python says that its data are too short, and not in which file (see also `mending.py`). Kernels of Pythons older than
ours import this as well.
"""

from __future__ import annotations

import shlex

_UNREADABLE = (EOFError, ValueError, TypeError)
"""What Python raises for data that are no compiled module."""


def words_of(error: BaseException) -> str | None:
    """Return what an error says with the compiled file that is to blame, and what to do; None if there is no such one.

    Args:
        error: what was raised by an import.
    """
    path = _unreadable_file(error)
    if path is None:
        return None
    said = f"{type(error).__name__}: {error}"
    return f"{said}: a compiled file is cut short, as by a full disk; this mends it: rm {shlex.quote(path)}"


def _unreadable_file(error: BaseException) -> str | None:
    trace = error.__traceback__ if isinstance(error, _UNREADABLE) else None
    if trace is None:
        return None
    while trace.tb_next is not None:
        trace = trace.tb_next
    frame = trace.tb_frame
    if not frame.f_code.co_filename.startswith("<frozen importlib") or frame.f_code.co_name != "_compile_bytecode":
        return None
    path = frame.f_locals.get("bytecode_path")
    return path if isinstance(path, str) else None
