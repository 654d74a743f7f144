"""The command line; see the package's docstring."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import signal
import sys

from sshd import NoSshdError

from .agents import run_agents
from .rounds import ROUNDS
from .run import run
from .soak import soak


def main() -> int:
    """Run a campaign or a soak; the exit status is 1 when anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, metavar="N", help="rounds to play (%(default)s)")
    parser.add_argument("--seed", default=None, metavar="S", help="seed of the rounds; a random one is printed")
    parser.add_argument(
        "--first", type=int, default=1, metavar="N", help="number of the first round, to go on or replay"
    )
    parser.add_argument("--only", action="append", choices=sorted(ROUNDS), metavar="FAULT", help="this fault only")
    parser.add_argument("--list", action="store_true", help="name the faults and end")
    parser.add_argument("--keep-going", action="store_true", help="go on with a fresh kernel after a round that failed")
    parser.add_argument("--soak", type=float, metavar="SECONDS", help="one kernel under cuts for so long, measured")
    parser.add_argument("--agents", type=int, metavar="N", help="rounds of sessions whose agents are killed, instead")
    options = parser.parse_args()
    if options.list:
        print("\n".join(ROUNDS))
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clear up then, too
    signal.signal(signal.SIGINT, signal.default_int_handler)
    seed = options.seed or secrets.token_hex(4)
    try:
        if options.agents:
            return run_agents(options.agents, seed)
        if options.soak:
            return asyncio.run(soak(options.soak, seed))
        failures = asyncio.run(
            run(options.rounds, seed, options.only, first=options.first, keep_going=options.keep_going)
        )
    except NoSshdError as error:
        print(f"no campaign here: {error}", file=sys.stderr)
        return 1
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
