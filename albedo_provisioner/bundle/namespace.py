"""What a session's request wants done before its cell is run: the names that its cells have without an import."""

from __future__ import annotations

TYPE_CHECKING = False  # not from typing: see processes.py
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_put: set[str] = set()


def prepare(server: str, wanted: Mapping[str, Any], shell: Any) -> None:
    """Make ready for a session's cells.

    Args:
        server: the name of the client whose session it is.
        wanted: `tools`, descriptions of the tools that are offered (`toolbox.py`); and `names`, which of those that
            `albedo_bundle` has for cells to put into the namespace. A name that is taken stays as it is, and none is
            put there twice: in a notebook's kernel, or when another process goes on with the session, it is the user's.
        shell: IPython's.
    """
    import albedo_bundle  # type: ignore[import-not-found,unused-ignore]

    from . import toolbox

    toolbox.offer(server, wanted["tools"])
    names = [name for name in wanted["names"] if name not in _put and name not in shell.user_ns]
    shell.push({name: getattr(albedo_bundle, name) for name in names}, interactive=False)
    _put.update(wanted["names"])
