"""The command line, and the order of things; see the package's docstring."""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
import time
from pathlib import Path

from . import hosts, measures, processes, table
from .columns import Column
from .delay import capacity


def main() -> int:
    """Measure, print the table, and say what is left behind."""
    options = _options()
    columns = [
        name
        for name in hosts.NAMES
        if (not name.startswith(hosts.PEER) or (options.peer and hosts.peer_is_installed()))
        and (not options.column or name in options.column)
    ]
    chosen = [
        measure for measure in (*measures.MEASURES, measures.IDLE) if not options.only or measure.name in options.only
    ]
    about = hosts.environment()
    print(about, flush=True)
    if any("@" in name for name in columns):
        rate, round_trip = max(capacity(hosts.DELAY) for _ in range(3))
        link = f"the slow link alone: {rate / 1e6:.0f} MB/s, round trip {round_trip * 1000:.1f} ms"
        about += f"; {link}"
        print(link, flush=True)
    ssh_directory = _listing()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        place = hosts.Hosts(columns)
    except RuntimeError as error:
        print(f"nothing can be measured: {error}", file=sys.stderr)
        return 1
    results: dict[str, dict[str, measures.Result]] = {}
    client_log = place.root / "client.log"
    running = [Column(host, client_log) for host in place.hosts]
    try:
        for measure in chosen:
            began = time.monotonic()
            results |= measures.take(measure, running, options.quick)
            print(f"{measure.name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("interrupted; this is what was measured", file=sys.stderr)
    finally:
        for column in running:
            column.close()
        words = _settle(place)
    print()
    print(table.render(chosen, results, columns, options.markdown))
    if options.json:
        content = {
            "environment": about,
            "results": {
                key: {name: dataclasses.asdict(result) for name, result in row.items()} for key, row in results.items()
            },
        }
        options.json.write_text(json.dumps(content, indent=1))
    if _listing() != ssh_directory:
        words.append("~/.ssh has changed")
    for word in words:
        print(f"left behind, and ended: {word}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=sys.modules[__package__].__doc__)
    names = [measure.name for measure in (*measures.MEASURES, measures.IDLE)]
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--only", action="append", metavar="NAME", choices=names, help=", ".join(names))
    parser.add_argument("--column", action="append", metavar="NAME", choices=hosts.NAMES, help=", ".join(hosts.NAMES))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples there")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--no-peer", dest="peer", action="store_false", help="leave the other provisioner out")
    return parser.parse_args()


def _settle(place: hosts.Hosts) -> list[str]:
    """Wait a moment for what is ending by itself, then end the rest."""
    for host in place.hosts:
        # The peer's shared connection stays for ten minutes: that is how it was configured, no remnant.
        processes.end(host.shared_connection)
    try:
        processes.wait_until(lambda: not processes.marked(place.run), 5, "all has ended", pause=0.1)
    except TimeoutError:
        pass  # `close` tells what it is
    return place.close()


def _listing() -> list[str]:
    directory = Path.home() / ".ssh"
    return sorted(f"{p.name} {p.stat().st_mtime}" for p in directory.iterdir()) if directory.is_dir() else []


if __name__ == "__main__":
    sys.exit(main())
