"""Starts the Python kernel. Run as a script, by the interpreter that the kernel is for, in the kernel's folder.

Two things make it differ from `python -m ipykernel_launcher`:

- `import albedo_bundle` must work in a kernel, but our directory must not come before the user's packages, nor reach
  the processes that the kernel starts: so it is appended to this process's path, and PYTHONPATH stays as it was.
- The kernel's output socket drops messages beyond a queue of 1,000, silently. The keeper reads at any speed, but when
  the processors are busy a cell can be that far ahead of it for a moment; so the queue is made longer.
"""

import os
import sys

QUEUE = 200_000
"""Messages that may wait for the keeper; they wait there for milliseconds."""


def main() -> None:
    """Run the kernel until it ends."""
    # Python put the script's own directory first. As with ipykernel_launcher, nothing of the current directory may be
    # imported while the kernel is set up; it adds that directory itself afterwards.
    if not sys.flags.safe_path:
        del sys.path[0]
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

    import zmq
    from ipykernel.kernelapp import IPKernelApp

    bind = getattr(IPKernelApp, "_bind_socket", None)
    if bind is not None:  # else a version that does it otherwise, with the queue it has

        def bind_with_room(self: IPKernelApp, socket: "zmq.Socket[bytes]", port: int) -> int:
            if socket.type in (zmq.PUB, zmq.XPUB):
                socket.sndhwm = QUEUE
            return int(bind(self, socket, port))

        IPKernelApp._bind_socket = bind_with_room  # type: ignore[method-assign]
    IPKernelApp.launch_instance()


if __name__ == "__main__":
    main()
