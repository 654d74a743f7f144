"""The fault campaign: random cells crossed with random faults, over a real sshd, compared byte for byte.

    python -m tests.faults --rounds 1000            (prints its seed; --seed S replays, --round N one round of it)
    python -m tests.faults --only cut_down          (one kind of fault; --list names them)
    python -m tests.faults --soak 3600              (one kernel, a cut every few seconds: memory and descriptors)

What is compared: the kernel writes down a digest of every message at the zmq socket that it leaves by (`recording.py`).
A client in a process of its own (`client.py`) writes down a digest of every message that it receives from the relay.
After each round both rows must be the same, in order, once. The same goes for what the client sent to the kernel.
Between the two lie a TCP proxy that breaks connections at a chosen byte (`proxy.py`) and an OpenSSH server of our own
(`place.py`), both of which the faults (`faults.py`) act upon.
"""

import sys
from pathlib import Path

# The end-to-end tests' modules for servers and processes; pytest finds them by itself.
_E2E = str(Path(__file__).resolve().parent.parent / "e2e")
if _E2E not in sys.path:
    sys.path.append(_E2E)
