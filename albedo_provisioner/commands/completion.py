"""Completion of `jupyter albedo` in bash, zsh and fish: commands and options, hosts, and folders of hosts.

argcomplete does it: the shell runs the command with the line so far in its environment, and gets what could come next.
(`jupyter` itself passes that on to its subcommands.) What an argument stands for is seen by its metavar, so that it is
the same in all commands.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Iterator

from ..errors import AlbedoError, LocationError
from ..location import Location

SHELLS = ("bash", "zsh", "fish")

PATIENCE = 3.0
"""Seconds that a host has to tell its folders; nobody waits longer for a key that was pressed."""

_DESCRIPTION = """\
Print what makes a shell complete `jupyter albedo`: its commands and options, the names of your hosts (nothing is
asked for that), and the folders of a host, for which it has three seconds.
"""

_EXAMPLES = """\
where it goes:
  jupyter albedo completion bash > ~/.local/share/bash-completion/completions/jupyter
  jupyter albedo completion zsh > ~/.zfunc/_jupyter         (a directory in $fpath, before compinit runs)
  jupyter albedo completion fish > ~/.config/fish/completions/jupyter.fish
or, for one session of bash or zsh:
  eval "$(jupyter albedo completion bash)"
"""


# argcomplete offers files where they fit, and bash would add this machine's to the rest, those of hosts included. Other
# commands of jupyter keep what bash has for them.
_WITHOUT_BASHS_FILES = """
if [[ -z "${ZSH_VERSION-}" ]]; then
    _jupyter_albedo() {
        _python_argcomplete "$@"
        if [[ "${1##*/}" == jupyter-albedo || "${COMP_WORDS[1]-}" == albedo ]]; then
            compopt +o default +o bashdefault 2> /dev/null
        fi
    }
    complete -o nospace -o default -o bashdefault -F _jupyter_albedo jupyter jupyter-albedo
fi"""


# While zsh completes a word whose quote is open, that quote is not in its BUFFER, and what follows a space would be
# taken for a word of its own. The words themselves still have it.
_ZSHS_OPEN_QUOTES = """
_jupyter_albedo() {
    if [[ -n "${compstate[quote]-}" ]]; then
        local -h BUFFER="${(j: :)words[1,CURRENT-1]} $QIPREFIX$IPREFIX$PREFIX"
        local -h CURSOR=${#BUFFER}
    fi
    _python_argcomplete "$@"
}
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "completion",
        help="have a shell complete this command",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("shell", choices=SHELLS)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the code for a shell."""
    from argcomplete.shell_integration import shellcode

    code = shellcode(["jupyter", "jupyter-albedo"], shell=arguments.shell)
    if arguments.shell == "bash":
        code += _WITHOUT_BASHS_FILES
    elif arguments.shell == "zsh":
        first, _, rest = code.partition("\n")  # what zsh is to complete has to stay the first line
        for call in ('_python_argcomplete "$@"', "compdef _python_argcomplete"):
            rest = rest.replace(call, call.replace("_python_argcomplete", "_jupyter_albedo"))
        code = f"{first}\n{_ZSHS_OPEN_QUOTES}{rest}"
    print(code)
    return 0


def is_wanted() -> bool:
    """Whether a shell asks what could come next, and wants no command run."""
    return "_ARGCOMPLETE" in os.environ


def complete(parser: argparse.ArgumentParser) -> None:
    """Tell the shell what could come next, and end the process."""
    import argcomplete

    _set_completers(parser)
    argcomplete.autocomplete(parser, always_complete_options=False)


def _set_completers(parser: argparse.ArgumentParser) -> None:
    completers: dict[str, Callable[[str], Iterable[str]]] = {"LOCATION": locations, "HOST": hosts, "NAME": kernelspecs}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                _set_completers(each)
        elif isinstance(action.metavar, str) and action.metavar in completers and not action.option_strings:
            action.completer = _Completer(completers[action.metavar])  # type: ignore[attr-defined]


class _Completer:
    """What argcomplete calls, for one kind of argument."""

    def __init__(self, find: Callable[[str], Iterable[str]]) -> None:
        self._find = find

    def __call__(self, *, prefix: str, **_: object) -> list[str]:
        """Return what could stand there that begins like that. A host that cannot be asked adds nothing."""
        try:
            return [each for each in self._find(prefix) if each.startswith(prefix)]
        except AlbedoError:
            return []


def kernelspecs(_: str) -> list[str]:
    """Return the names of the kernels that were added."""
    from ..kernelspecs import find_ours

    return [kernelspec.name for kernelspec in find_ours()]


def hosts(prefix: str) -> Iterator[str]:
    """Return hosts, with the user that has been typed already if there is one."""
    from ..hosts.hosts import AsyncHosts

    if ":" in prefix:  # a whole location will do where a host is asked for
        yield from locations(prefix)
        return
    user, at, _ = prefix.rpartition("@")
    for known in AsyncHosts().list():
        yield known.host
        if at and "@" not in known.host:
            yield f"{user}@{known.host}"


def locations(prefix: str) -> Iterator[str]:
    """Return what a location that begins like this could be: hosts, or the folders of the one that it names."""
    at = max(prefix.rfind("/"), prefix.rfind(":")) + 1
    above, begun = prefix[:at], prefix[at:]
    if not above and begun not in ("~", ".", ".."):
        yield from (f"{host}:" for host in hosts(prefix))
    elif not above or (above.endswith(":") and begun == "~"):
        yield f"{prefix}/"
    elif above.endswith(":") and not begun:
        yield from (f"{above}~/{name}/" for name in _folders(above, begun))
    elif above.endswith("/"):
        yield from (f"{above}{name}/" for name in _folders(above, begun))


def _folders(above: str, begun: str) -> Iterator[str]:
    """Return the names of the folders in a place; hidden ones where a dot has been typed."""
    try:
        remote = Location.parse(above).is_remote
    except LocationError:
        remote = False
    if remote:
        from .. import browse

        for entry in browse.list(above, timeout=PATIENCE).entries:
            if entry.kind == "folder" and entry.location is not None and (not entry.hidden or begun.startswith(".")):
                yield entry.name
        return
    try:
        with os.scandir(os.path.expanduser(above)) as entries:
            for local in entries:
                if local.is_dir() and local.name.isprintable() and (local.name[0] != "." or begun.startswith(".")):
                    yield local.name
    except OSError:
        return  # there is nothing to choose from
