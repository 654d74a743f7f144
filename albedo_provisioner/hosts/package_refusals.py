"""What it means when an interpreter on a host has not got what a kernel is made of, or has it damaged."""

from __future__ import annotations

import shlex
from typing import Any

from ..bundle.shadows import IN_THE_WAY
from ..errors import KernelStartError, PackagesMissingError
from .ssh_config import command_line


def lacks_packages(host: str, report: dict[str, Any], why_not: str = "") -> PackagesMissingError:
    """Return the error for an interpreter without ipykernel or pyzmq.

    Args:
        host: the host as the user spells it; "this machine" for this one.
        report: what it said of the interpreter (`without` in `bundle/entry.py`).
        why_not: why they could not be put there from here; empty when that was not tried.
    """
    python = report["python"]
    message = f"{python} on {host} has no {_names_of(report)}"
    hint = ""
    if why_not:
        message += f", and no packages for it can be fetched on this machine: {why_not}"
        version = ".".join(str(number) for number in report["facts"]["version"][:2])
        hint = (
            f" Or bring wheels here: `python{version} -m pip download -d wheels ipykernel` on a machine of that kind "
            "with a network, and set PIP_FIND_LINKS to that directory."
        )
    return PackagesMissingError(
        host, f"{message}. {mending(host, python, report['pip'])}{hint}", why_not or f"no {_names_of(report)}", report
    )


def cannot_import(host: str, python: str, why: str, pip: bool) -> KernelStartError:
    """Return the error for an interpreter whose ipykernel is there, and is damaged.

    Args:
        host: the host as the user spells it; "this machine" for this one.
        python: the interpreter's path.
        why: what it said, and of which file.
        pip: whether pip may install into it.
    """
    mend = mending_import(host, python, why, pip)
    message = f"The ipykernel and pyzmq of {python} on {host} cannot be imported: {why}. {mend}"
    return KernelStartError(host, message.rstrip(), why)


def mending_import(host: str, python: str, why: str, pip: bool) -> str:
    """Return what to do about an ipykernel that is there and cannot be imported; arguments as for `cannot_import`."""
    if IN_THE_WAY in why:
        return ""  # it is not damaged, and what to do was said
    if not pip:
        return f"Remove what is damaged there (often below ~/.local/lib). {mending(host, python, pip)}"
    command = shlex.join([python, "-m", "pip", "install", "--force-reinstall", "ipykernel"])
    return (
        "Remove what is damaged there (often below ~/.local/lib), or install it anew: "
        f"{command_line(host, command)} - or use another interpreter (--python, or the setting 'python')."
    )


def mounted_noexec(host: str, report: dict[str, Any]) -> PackagesMissingError:
    """Return the error for an interpreter without packages on a host where none can be put; as `lacks_packages`."""
    python = report["python"]
    cause = "the home is mounted noexec, so nothing compiled can be loaded from there"
    return PackagesMissingError(
        host,
        f"{python} on {host} has no {_names_of(report)}, and none can be put there: {cause}. Use an interpreter that "
        "has its own (--python, or the setting 'python').",
        cause,
        report,
    )


def _names_of(report: dict[str, Any]) -> str:
    """Return what an interpreter lacks, in words."""
    return " and ".join(sorted("pyzmq" if name == "zmq" else name for name in report["lacking"]))


def mending(host: str, python: str, pip: bool) -> str:
    """Return how to get ipykernel for an interpreter of a host, in a sentence with the command to run here.

    Args:
        host: the host as the user spells it; "this machine" for this one.
        python: the interpreter's path.
        pip: whether pip may install into it. Into that of a distribution it may not, so an environment is to be made.
    """
    if pip:
        command = shlex.join([python, "-m", "pip", "install", "ipykernel"])
        use = "use another interpreter (--python, or the setting 'python')"
        return f"Install it with: {command_line(host, command)} - or {use}."
    command = f"{shlex.quote(python)} -m venv ~/albedo-python && ~/albedo-python/bin/pip install ipykernel"
    return (
        f"This Python is closed to pip, so make an environment: {command_line(host, command)} - and use that "
        "interpreter: --python '~/albedo-python/bin/python' (the setting 'python')."
    )
