"""`jupyter albedo hosts`: the hosts that we know, and what they are."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from ..errors import LocationError
from ..location import parse_host
from .kernels import add_timeout
from .table import print_table, say
from .waiting import waiting

if TYPE_CHECKING:
    from ..hosts.hosts import KnownHost
    from ..hosts.probe import HostState

_DESCRIPTION = """\
List the hosts that you used last and those that your ssh config names, without asking them anything.

With --probe, or with names of hosts, they are asked, all at the same time: whether a kernel could run there
("ready"), or why not ("unsupported", "needs_auth", "unreachable"). Nothing is put on a host for that. The exit status
is 0 whatever they answer.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "hosts",
        help="list the hosts that you have, and what they are",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("hosts", nargs="*", metavar="HOST", type=_host, help="[user@]host, or . for this machine")
    parser.add_argument("--probe", action="store_true", help="ask them what they are")
    parser.add_argument("--json", action="store_true", help="as JSON, for programs")
    add_timeout(parser)
    parser.set_defaults(run=run)


def _host(text: str) -> str:
    try:
        parse_host(text)
    except LocationError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def run(arguments: argparse.Namespace) -> int:
    """List the hosts, and ask them if that is wanted."""
    from ..hosts.hosts import Hosts
    from ..hosts.probe import DEADLINE
    from ..hosts.ssh_config import config_troubles

    hosts = Hosts(timeout=arguments.timeout or DEADLINE)
    known = {host.host: host for host in hosts.list()}
    names = list(dict.fromkeys(arguments.hosts)) or list(known)
    states = {}
    if arguments.probe or arguments.hosts:
        with waiting("asking the hosts ..."):
            states = hosts.probe_all(names)
    told = {state.advice for state in states.values()}
    for trouble in config_troubles() if not arguments.hosts else ():
        if trouble not in told:
            say(trouble, file=sys.stderr)
    if arguments.json:
        print(json.dumps([_as_json(name, known.get(name), states) for name in names], indent=2, ensure_ascii=False))
    elif not names:
        say("No host was used yet, and the ssh config names none; any that `ssh HOST` reaches will do.")
    elif states:
        _print_states(names, states)
    else:
        _print_names(list(known.values()))
    return 0


def _print_names(hosts: list[KnownHost]) -> None:
    from ..kernels.survey import when

    print_table(("HOST", "LAST USED"), [(host.host, when(host.used)) for host in hosts])


def _print_states(names: list[str], states: dict[str, HostState]) -> None:
    rows = []
    for name in names:
        state = states[name]
        system = f"{state.os} {state.arch}" if state.os else "-"
        cores = "-" if state.cores is None else str(state.cores)
        detail = "see below" if state.detail and state.detail == state.advice else state.detail
        rows.append((name, state.state, system, cores, state.python_version or "-", detail))
    print_table(("HOST", "STATE", "SYSTEM", "CORES", "PYTHON", "DETAIL"), rows)
    # What is wrong with the ssh config is the same for all hosts, and said once.
    for advice in filter(None, dict.fromkeys(states[name].advice for name in names)):
        say(advice)


def _as_json(name: str, known: KnownHost | None, states: dict[str, HostState]) -> dict[str, Any]:
    listed: dict[str, Any] = {
        "host": name,
        "source": known.source if known else None,
        "used": known.used if known else None,
    }
    return {**states[name].to_dict(), **listed} if name in states else listed
