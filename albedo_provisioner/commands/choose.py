"""Which kernel of a host `jupyter albedo add` takes: as it is told, as a person answers, or as is safe to assume."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ConfigError, KernelStartError
from .table import in_columns, say, terminal_width

if TYPE_CHECKING:
    from ..hosts.offers import OfferedKernelspec, OfferedPython, Offers


@dataclass(frozen=True)
class Choice:
    """What was chosen.

    Attributes:
        python: the interpreter on the host; None for the login shell's `python3`.
        kernelspec: the kernelspec of the host; None for the Python kernel.
        label: what the picker shows before the location.
    """

    python: str | None
    kernelspec: OfferedKernelspec | None
    label: str


def by_name(offers: Offers, name: str, python: str | None) -> Choice:
    """Choose a kernelspec of the host.

    Args:
        offers: what there is.
        name: its name, or its directory's path there.
        python: the interpreter that was asked for, if any.

    Raises:
        ConfigError: there is no such one.
    """
    found = offers.find_kernelspec(name)
    if found is None:
        host = offers.location.host or "this machine"
        damaged = offers.why_damaged(name)
        if damaged is not None:
            raise ConfigError(f"The kernelspec {name!r} on {host} is damaged ({damaged}). Mend it there.")
        there = ", ".join(sorted(spec.kernel for spec in offers.kernelspecs)) or "none at all"
        raise ConfigError(f"There is no kernelspec {name!r} on {host} for this account; there is: {there}.")
    return _of_kernelspec(found, python)


def must_be_runnable(choice: Choice, offers: Offers) -> None:
    """See that the program of a chosen kernelspec is there.

    Raises:
        KernelStartError: it is not.
    """
    spec, host = choice.kernelspec, offers.location.host or "this machine"
    if spec is not None and spec.missing:
        raise KernelStartError(
            host,
            f"The kernelspec {spec.name!r} on {host} cannot be started: its program {spec.missing} is not there, or "
            f"may not be run. Mend it there ({spec.directory}), or choose another. (--no-check adds it anyway.)",
            f"{spec.missing} is not there",
        )


def by_default(offers: Offers, typed: str, provide: bool) -> Choice:
    """Choose without a person: the folder's own environment, else the login shell's `python3`.

    Whoever keeps an environment in a project's folder means it by running anything there, and tools that run in a
    folder take it too. All else that a host has is no hint about this folder, so it is not taken unasked.

    Args:
        offers: what there is.
        typed: the location as it was typed.
        provide: whether an environment that has no ipykernel can be given one.
    """
    lacking = []
    for each in offers.pythons:
        if each.kind == "folder":
            if _usable(each, provide):
                say(f"The folder has an environment of its own, which is taken: {each.python}", file=sys.stderr)
                return _of_python(each)
            lacking.append(each)
    for each in lacking:
        why = f"Python {each.version}" if _old(each) else "it has no ipykernel"
        command = _command(typed, "--python", each.python)
        say(f"The folder's own environment is not taken ({why}). To take it: {command}", file=sys.stderr)
    return Choice(None, None, "Python 3")


def by_question(offers: Offers) -> Choice:
    """Ask the person at the terminal; what there is only one of is not asked for.

    Raises:
        KeyboardInterrupt: the person wants none.
    """
    choices = _choices(offers)
    if len(choices) == 1:
        return choices[0]
    say(f"What there is on {offers.location.host or 'this machine'}:")
    width = terminal_width()
    for number, row in enumerate(_table(offers, width and width - len("  10  ")), 1):
        say(f"  {number:>2}  {row}")
    _tell_late(offers)
    while True:
        try:
            answer = input("Which one? [1] ").strip() or "1"
        except EOFError:
            raise KeyboardInterrupt from None
        if answer.isdecimal() and 1 <= int(answer) <= len(choices):
            return choices[int(answer) - 1]
        say(f"A number from 1 to {len(choices)}, or Ctrl-C for none.")


def print_all(offers: Offers, typed: str) -> None:
    """Print what there is, each with the command that adds it."""
    for row, choice in zip(_table(offers), _choices(offers), strict=True):
        if choice.kernelspec is not None:
            options = ["--kernel", choice.kernelspec.kernel]
        else:
            options = ["--python", choice.python or "python3"]
        say(f"{row}\n    {_command(typed, *options)}")
    _tell_late(offers)


def tell_broken(offers: Offers) -> None:
    """Say which environments of the folder are passed over because they have no interpreter any more."""
    for root, why in offers.broken:
        say(
            f"The folder's environment {_short(root, offers.home)} cannot be used: {why}. Make it anew.",
            file=sys.stderr,
        )


def _command(typed: str, *options: str) -> str:
    location = typed + "~" if typed.endswith(":") else typed
    # A leading ~ is for the host; typed without quotes, a shell would make it this machine's.
    return f"jupyter albedo add {_quoted(location)} {' '.join(map(_quoted, options))}"


def _quoted(word: str) -> str:
    return word if ":~" in word and shlex.quote(word.replace("~", "")) == word.replace("~", "") else shlex.quote(word)


def _tell_late(offers: Offers) -> None:
    for what in offers.late:
        say(f"Looking for {what} took too long or failed; some are missing.", file=sys.stderr)


def _usable(offered: OfferedPython, provide: bool) -> bool:
    return not _old(offered) and (provide or offered.ipykernel is not None)


def _old(offered: OfferedPython) -> bool:
    numbers = (offered.version or "").split(".")
    return len(numbers) > 1 and (int(numbers[0]), int(numbers[1])) < (3, 11)


def _pythons(offers: Offers) -> Sequence[OfferedPython]:
    return offers.pythons


def _specs(offers: Offers) -> Sequence[OfferedKernelspec]:
    return [spec for spec in offers.kernelspecs if not spec.native]


def _choices(offers: Offers) -> list[Choice]:
    """Return all choices, in the order of `_table`."""
    return [
        *map(_of_python, _pythons(offers)),
        *(_of_kernelspec(spec, None) for spec in _specs(offers)),
    ]


def _of_python(offered: OfferedPython) -> Choice:
    label = f"Python 3 ({offered.name})" if offered.kind == "conda" else "Python 3"
    return Choice(None if offered.kind == "login" else offered.python, None, label)


def _of_kernelspec(spec: OfferedKernelspec, python: str | None) -> Choice:
    return Choice(python, spec, spec.display_name)


def _table(offers: Offers, width: int | None = None) -> list[str]:
    kinds = {"folder": "the folder's", "login": "the login shell's", "conda": "conda"}
    rows = [
        (
            f"Python {each.version or '3'}",
            f"ipykernel {each.ipykernel}" if each.ipykernel else "no ipykernel",
            f"{kinds[each.kind]} {each.name}".rstrip() if each.kind == "conda" else kinds[each.kind],
            _short(each.python, offers.home),
        )
        for each in _pythons(offers)
    ]
    rows += [
        (spec.display_name, f"kernelspec {spec.name}", _language(spec), _short(spec.directory, offers.home))
        for spec in _specs(offers)
    ]
    return in_columns(rows, width)


def _language(spec: OfferedKernelspec) -> str:
    return f"{spec.language} (its program is missing)" if spec.missing else spec.language


def _short(path: str, home: str) -> str:
    short = "~" + path[len(home) :] if home != "/" and path.startswith(home + "/") else path
    return short if short.isprintable() else repr(short)
