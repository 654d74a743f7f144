"""What runs on the host. It is imported there as `albedo_bundle`, and in part (the protocol) on this side too.

Standard library and pyzmq only, Python >= 3.11, and cheap to import: a kernel has `albedo_bundle` on its path.

What code in cells may use is fetched at its first use:

    from albedo_bundle import run      # start programs as jobs of this kernel: jobs.py
    from albedo_bundle import tools    # call functions of the program whose session it is: toolbox.py
    from albedo_bundle import memory   # notes that are kept with the user: memory.py
"""

import os

ROOT: str = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The bundle's directory on the host, under the home's `.albedo-remote/`."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .jobs import run as run
    from .toolbox import ToolError as ToolError
    from .toolbox import tools as tools

_FOR_CELLS = {"run": "jobs", "tools": "toolbox", "ToolError": "toolbox", "memory": "memory"}
"""Names that are there for code in cells, and the modules that they are in, or are themselves."""


def __getattr__(name: str) -> object:
    """Return what code in cells imports from here; its module is loaded only then."""
    module = _FOR_CELLS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    found = importlib.import_module(f".{module}", __name__)
    return found if module == name else getattr(found, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_FOR_CELLS})
