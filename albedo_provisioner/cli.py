"""`jupyter albedo`: make, list and remove kernelspecs for kernels on other hosts; try it all in a demo.

The commands that have to do with running kernels are in `commands/`.

Exit status: 0 done, 1 it could not be done (one sentence on stderr says why), 2 wrong usage, 130 interrupted.

What needs ssh is imported by the commands that need it, so that `list` and `--help` answer at once.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from . import __version__, kernelspecs
from .commands import browse, completion, doctor, hosts, kernels, link, login, mcp, memory, recover, stop
from .commands.table import print_table, say
from .commands.waiting import PATIENCE, Waiting, waiting
from .errors import AlbedoError, KernelStartError, LocationError
from .location import Location, place

if TYPE_CHECKING:
    from .commands.choose import Choice
    from .hosts.check import CheckedLocation
    from .hosts.offers import Offers

RUN_KERNEL = "run-kernel"
"""What our kernelspecs' command runs. It is no choice for people, so the parser does not know it."""

_LOCATION_HELP = "where the kernel runs: [user@]host:/absolute/path, host:~/path, or a folder of this machine"

_ADD_DESCRIPTION = """\
Add a kernel on another host to Jupyter's kernel picker.

The location is checked on its host first: that it can be reached over ssh (as your ssh config says), that the folder
is there, and that Python 3.11 or newer is. If that Python has no ipykernel, ipykernel and what it needs are put beside
it, below ~/.albedo-remote there; the Python itself stays as it is, and its own packages come first.
"""

_ADD_EXAMPLES = """\
examples:
  jupyter albedo add gpu:                      (what is there, to choose from)
  jupyter albedo add gpu:~/proj
  jupyter albedo add gpu:~/proj --kernel ir
  jupyter albedo add ann@gpu:/srv/data --python '~/venv/bin/python' --name data
  jupyter albedo add gpu:~/proj --env OMP_NUM_THREADS=8 --grace 3600
  jupyter albedo add --join 5188722c           (a kernel that runs already, as `jupyter albedo kernels` lists it)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `jupyter albedo`.

    Args:
        argv: the arguments; None for the process's own.

    Returns:
        The exit status.

    Raises:
        SystemExit: after `--help` and `--version` (0) and for wrong usage (2), as argparse does.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Folders may have names that a terminal's encoding lacks; better escaped than a traceback.
            stream.reconfigure(errors="backslashreplace")
    if completion.is_wanted():
        completion.complete(_parser())
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if words[:1] == [RUN_KERNEL]:
            return _run_kernel(words[1:])
        arguments = _parse(words)
        status: int = arguments.run(arguments)
        sys.stdout.flush()
        return status
    except AlbedoError as error:
        say(f"jupyter albedo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has gone (`| head`). Nothing is wrong, and Python must not complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = _parser()
    arguments, unknown = parser.parse_known_args(argv)
    for text in unknown:
        if text.startswith("-") and ":" in text:
            # Most likely meant as a location, by somebody who tries to slip ssh an option. Say so, not "unrecognized".
            try:
                Location.parse(text)
            except LocationError as error:
                parser.error(str(error))
    if unknown:
        parser.error(f"unrecognized arguments: {shlex.join(unknown)}")
    if getattr(arguments, "join", None) is not None and arguments.location is not None:
        parser.error("--join opens a kernel where it runs: without a location")
    if getattr(arguments, "location", "") is None and arguments.join is None:
        parser.error("which location? For example: jupyter albedo add gpu:~/proj")
    if arguments.run is _add and arguments.kernel is not None and not arguments.check:
        parser.error("--kernel takes the kernel's language and name from the host, so not with --no-check")
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jupyter albedo",
        description="Jupyter kernels on other hosts over ssh that behave like local ones.",
        epilog="`jupyter albedo COMMAND --help` tells more about a command.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    add = commands.add_parser(
        "add",
        help="add a kernel on another host to the kernel picker",
        usage="%(prog)s LOCATION [options]",
        description=_ADD_DESCRIPTION,
        epilog=_ADD_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    # Optional only for argparse: see `_parse`, which has better words for a missing one.
    add.add_argument("location", nargs="?", metavar="LOCATION", help=_LOCATION_HELP)
    add.add_argument("--name", help="the kernelspec's name (default: made from the location, like albedo-gpu-proj)")
    add.add_argument("--display-name", metavar="TEXT", help='what the picker shows (default: "Python 3 · LOCATION")')
    add.add_argument(
        "--python",
        metavar="PATH",
        help="the interpreter on the host (default: its python3); quote a leading ~, or your shell expands it here",
    )
    add.add_argument(
        "--kernel",
        metavar="NAME",
        help="a kernelspec of the host, such as ir for R: its name, or the path of its directory there",
    )
    add.add_argument(
        "--join",
        metavar="ID",
        help="in place of a location: open the kernel that runs already with this id (or its beginning)",
    )
    add.add_argument(
        "--env",
        metavar="K=V",
        action="append",
        default=[],
        type=_variable,
        help="an environment variable for the kernel; may be given several times",
    )
    add.add_argument(
        "--grace",
        metavar="SECONDS",
        type=_seconds,
        help="how long an idle kernel stays when nobody is linked to it (default: 86400, a day)",
    )
    add.add_argument(
        "--no-provide",
        dest="provide",
        action="store_false",
        help="put no packages on the host: refuse a Python that has no ipykernel of its own",
    )
    add.add_argument(
        "--no-check", dest="check", action="store_false", help="write the kernelspec without asking the host anything"
    )
    add.add_argument(
        "--replace", action="store_true", help="take the name from another location's kernelspec made by this command"
    )
    where = add.add_mutually_exclusive_group()
    where.add_argument("--user", action="store_true", help="for your account (the default)")
    where.add_argument("--sys-prefix", action="store_true", help="for the running Python environment")
    add.set_defaults(run=_add)

    show = commands.add_parser(
        "list", help="list the kernels that were added", description="List the kernels that were added."
    )
    show.add_argument("--json", action="store_true", help="as JSON, for programs")
    show.set_defaults(run=_list)

    remove = commands.add_parser(
        "remove",
        help="remove kernels from the kernel picker",
        description="Remove kernels from the kernel picker. Only what `add` made is removed; no host is asked.",
    )
    remove.add_argument("names", nargs="+", metavar="NAME", help="a kernelspec's name, as `list` shows it")
    remove.set_defaults(run=_remove)

    for command in (hosts, doctor, browse, kernels, recover, stop, memory, link, login, mcp, completion):
        command.add_parser(commands)

    demo = commands.add_parser(
        "demo",
        help="see it work, without a host of your own",
        description="Run a kernel over an ssh server inside this machine, cut the link, and show that nothing is lost.",
    )
    demo.add_argument("--serve", action="store_true", help="only keep the demo host running, to try it from JupyterLab")
    demo.set_defaults(run=_demo)

    return parser


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=value")
    return name, value


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None


# ------------------------------------------------------------------------------------------------------ commands


def _add(arguments: argparse.Namespace) -> int:
    if arguments.join is not None:
        from .commands import join

        return join.run(arguments)
    location = place(arguments.location)
    display_name = arguments.display_name
    # Before the host is asked: what is wrong on this side can be said at once.
    if arguments.name is not None:
        kernelspecs.check_name(arguments.name)
    settings = kernelspecs.Settings(location, arguments.python, dict(arguments.env), arguments.grace, arguments.provide)
    appearance = None
    if arguments.check:
        choice, offers = _choose(location, arguments)
        if choice is None:
            return 2
        settings = dataclasses.replace(settings, python=choice.python)
        if choice.kernelspec is not None:
            settings = dataclasses.replace(settings, kernel=choice.kernelspec.kernel)
            appearance = kernelspecs.Appearance(
                choice.kernelspec.language,
                choice.kernelspec.interrupt_mode,
                choice.kernelspec.debugger,
                choice.kernelspec.logos,
            )
        # The interpreter that looked around has looked at itself, too.
        seen = offers.checked if offers is not None and choice.python == arguments.python else None
        checked = _check(settings, seen)
        settings = dataclasses.replace(settings, location=checked.location)
        display_name = display_name or kernelspecs.default_display_name(checked.location, checked.home, choice.label)
    elif display_name is None and not location.is_remote:
        display_name = kernelspecs.default_display_name(location, os.path.expanduser("~"))
    added = kernelspecs.add(
        settings,
        name=arguments.name,
        display_name=display_name,
        replace=arguments.replace,
        environment=arguments.sys_prefix,
        appearance=appearance,
    )
    if settings.location.host is not None and arguments.check:
        _note_host(settings.location.host)
    say(f"Added {added.name} ({added.display_name}) in {added.directory}")
    return 0


def _choose(location: Location, arguments: argparse.Namespace) -> tuple[Choice | None, Offers | None]:
    """Return which kernel of the host is to be added, and what there is to choose from if that was asked.

    There is no choice when what there is was printed instead.
    """
    from .commands import choose
    from .hosts.offers import offers_at

    if arguments.python is not None and arguments.kernel is None:
        return choose.Choice(arguments.python, None, "Python 3"), None
    with _waiting_for(location):
        offers = offers_at(location, arguments.python, arguments.kernel, arguments.provide)
    choose.tell_broken(offers)
    if arguments.kernel is not None:
        choice = choose.by_name(offers, arguments.kernel, arguments.python)
    elif sys.stdin.isatty() and sys.stdout.isatty():
        choice = choose.by_question(offers)
    elif arguments.location.endswith(":"):
        choose.print_all(offers, arguments.location)
        say("jupyter albedo: which of these? Nobody can be asked here.", file=sys.stderr)
        return None, offers
    else:
        choice = choose.by_default(offers, arguments.location, arguments.provide)
    choose.must_be_runnable(choice, offers)
    return choice, offers


def _check(settings: kernelspecs.Settings, checked: CheckedLocation | None) -> CheckedLocation:
    """See whether a kernel could run, unless that was seen already, and put packages there that are lacking."""
    from .hosts.check import check_location

    location = settings.location
    if checked is None:
        with _waiting_for(location):
            checked = check_location(location, settings.python, provide=settings.provide)
    if settings.kernel is not None:
        # A kernelspec's kernel is no matter of this interpreter's, which then runs the keeper alone.
        checked = checked.for_keeper()
    checked.must_do()
    if checked.warning is not None:
        say(f"Note: {location.host or 'this machine'} {checked.warning}.", file=sys.stderr)
    if checked.without is not None:
        _provide(settings, checked, checked.without)
    return checked


def _waiting_for(location: Location) -> AbstractContextManager[Waiting]:
    text = f"connecting to {location.host} ..." if location.is_remote else "checking this machine ..."
    return waiting(text, PATIENCE)


def _note_host(host: str) -> None:
    from .hosts.recent import RecentHosts

    RecentHosts().note(host)


def _provide(settings: kernelspecs.Settings, checked: CheckedLocation, without: dict[str, Any]) -> None:
    """Put packages on a host that lacks them, or refuse it."""
    host = settings.location.host or "this machine"
    if not settings.provide:
        from .hosts.package_refusals import lacks_packages

        raise KernelStartError(host, f"{lacks_packages(host, without)} (--no-check adds the kernel anyway.)")
    from .hosts.provide import provide_at

    with waiting("putting ipykernel and what it needs on the host ...", PATIENCE):
        wheels = provide_at(settings.location, settings.python, without, lambda progress: None)
    lacking = "ipykernel" if settings.kernel is None else "pyzmq"
    say(
        f"Python {checked.python_version} on {host} ({checked.python}) has no {lacking}: {len(wheels.wheels)} packages "
        f"({wheels.size / 1e6:.1f} MB) were put below ~/.albedo-remote there, behind its own."
    )


def _list(arguments: argparse.Namespace) -> int:
    found = kernelspecs.find_ours()
    if arguments.json:
        entries = [
            {
                "name": kernelspec.name,
                "display_name": kernelspec.display_name,
                "location": kernelspec.location,
                "python": kernelspec.config.get("python"),
                "kernel": kernelspec.config.get("kernel"),
                "where": kernelspec.where,
                "directory": str(kernelspec.directory),
                "config": kernelspec.config,
            }
            for kernelspec in found
        ]
        print(json.dumps(entries, indent=2, ensure_ascii=False))
        return 0
    if not found:
        say("No kernels were added yet; add one with: jupyter albedo add host:~/folder", file=sys.stderr)
        return 0
    rows = [
        (k.name, k.location, str(k.config.get("kernel") or "-"), str(k.config.get("python") or "python3"), k.where)
        for k in found
    ]
    print_table(("NAME", "LOCATION", "KERNEL", "PYTHON", "WHERE"), rows)
    return 0


def _remove(arguments: argparse.Namespace) -> int:
    status = 0
    for name in arguments.names:
        try:
            removed = kernelspecs.remove(name)
        except AlbedoError as error:
            # The others are removed all the same; who asked for three is not helped by stopping at the first.
            say(f"jupyter albedo: {error}", file=sys.stderr)
            status = 1
        else:
            say(f"Removed {removed.name} ({removed.location}) from {removed.directory}")
    return status


def _demo(arguments: argparse.Namespace) -> int:
    from .demo.run import main as run_demo

    return run_demo(serve=arguments.serve)


def _run_kernel(words: Sequence[str]) -> int:
    from .commands.run_kernel import main as run_kernel

    return run_kernel(words)
