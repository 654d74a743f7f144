"""What runs on the host. It is imported there as `albedo_bundle`, and in part (the protocol) on this side too.

Standard library and pyzmq only, Python >= 3.11, and cheap to import: a kernel has `albedo_bundle` on its path.

    from albedo_bundle import run      # start programs as jobs of this kernel: jobs.py
"""

import os

ROOT: str = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The bundle's directory on the host, under the home's `.albedo-remote/`."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .jobs import run as run


def __getattr__(name: str) -> object:
    """Return what code in cells imports from here; its module is loaded only then."""
    if name == "run":
        from .jobs import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
