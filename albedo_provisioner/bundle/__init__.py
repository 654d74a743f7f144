"""What runs on the host. It is imported there as `albedo_bundle`, and in part (the protocol) on this side too.

Standard library and pyzmq only, Python >= 3.11, and cheap to import: a kernel has `albedo_bundle` on its path.
"""

import os

ROOT: str = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The bundle's directory on the host, under the home's `.albedo-remote/`."""
