"""Starts the Python kernel. Run as a script, by the interpreter that the kernel is for, in the kernel's folder.

`import albedo_bundle` must work in a kernel, but our directory must not come before the user's packages, nor reach
the processes that the kernel starts: so it is appended to this process's path, and PYTHONPATH stays as it was.
"""

import os
import runpy
import sys

# Python put the script's own directory first. What `python -m ipykernel_launcher` would have there is the current
# directory, unless it runs in safe-path mode, and then neither.
if not sys.flags.safe_path:
    sys.path[0] = ""
sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
runpy.run_module("ipykernel_launcher", run_name="__main__", alter_sys=True)
