"""What it means when a host runs our command and nothing comes of it: one place that finds the words.

(What it means when a host cannot be reached at all is told by `ssh_errors.py`.)
"""

from __future__ import annotations

import errno
import os
import re
from typing import Any

from ..bundle import shadows
from ..bundle.spawn import KERNEL_TASKS
from ..errors import (
    AlbedoError,
    FolderError,
    HostError,
    KernelExistsError,
    KernelGoneError,
    KernelStartError,
    KilledError,
    NoPermissionError,
    NoSuchFolderError,
    NotAFolderError,
    SignInError,
    StagingError,
    UnansweredError,
    UnreachableError,
    UnsupportedHostError,
)
from .last_words import FATAL, NO_MORE_TASKS, cause_in
from .package_refusals import lacks_packages
from .ssh_config import command_line, ssh_command
from .transport import Exit

_FOLDER_ERRORS: dict[str, type[FolderError]] = {
    "ENOENT": NoSuchFolderError,
    "ENOTDIR": NotAFolderError,
    "EACCES": NoPermissionError,
    "EPERM": NoPermissionError,
}


def refused(host: str, report: dict[str, Any], python: str | None) -> AlbedoError:
    """Return the error for a report with `error` in it (see `bundle/loader.py`, `entry.py` and `daemon.py`)."""
    kind = report["error"]
    detail = str(report.get("detail", ""))
    if kind == "python":
        return old_python(host, report["python"], report["version"])
    if kind == "staging":
        message = f"Our files could not be put on {host}: {report['path']}: {detail}."
        return StagingError(host, f"{message}{_mending_of_home(host, detail)}", detail)
    if kind == "home":
        return no_home(host, str(report["path"]))
    if kind == "folder":
        error = _FOLDER_ERRORS.get(str(report.get("code")), FolderError)
        return error(host, f"The folder {report['path']} on {host} cannot be used: {detail}.", detail)
    if kind == "packages":
        return lacks_packages(host, report)
    if kind == "spawn":
        return KernelStartError(host, f"{report['program']} could not be run on {host}: {detail}.", detail)
    if kind == "kernelspec":
        return KernelStartError(
            host,
            f"The kernel cannot be started on {host}: {detail}. Name another with the setting 'kernel' "
            "(jupyter albedo add --kernel NAME).",
            detail,
        )
    if kind == "files":
        return few_files(host, int(report["limit"]))
    if kind == "tasks":
        return few_tasks(host, int(report["limit"]), int(report["now"]), int(report["needed"]))
    if kind == "exists":
        return KernelExistsError(host, f"A kernel with the id {report['kernel_id']} is already on {host}.")
    if kind == "elsewhere":
        return UnreachableError(
            host,
            f"{host} led to the machine {report['here']} this time, and the kernel runs on {report['node']}. (If that "
            f"is the same machine with a new name, remove {report['path']} there: it is made anew, under that name.)",
            f"it led to {report['here']}, and the kernel runs on {report['node']}",
        )
    if kind == "gone":
        how = "neither it nor its keeper is there"
        if report.get("severed"):
            how = "its run directory and its keeper were gone, so that nothing could reach it, and it was ended"
        return KernelGoneError(
            f"{host} has this kernel no more: {how}.",
            str(report.get("boot_id") or ""),
            str(report.get("node") or ""),
        )
    if kind == "stuck":
        return UnreachableError(host, f"The kernel's keeper on {host} does not answer: {detail}.", detail)
    mending = f" {making_room(host, detail)}" if is_full(detail) else ""
    message = f"The kernel's keeper could not be started on {host}: {detail or kind}.{mending}"
    return KernelStartError(host, message, detail)


_QUOTA_REACHED = re.compile("quota exceeded", re.IGNORECASE)
_FULL = re.compile(f"no space left|{_QUOTA_REACHED.pattern}", re.IGNORECASE)
"""What systems say of a disk that is full; their words differ (Linux, musl, macOS), and so do their numbers."""


def is_full(detail: str) -> bool:
    """Whether what a host's system said means that there is no room for more: a full disk, or a quota reached."""
    return _FULL.search(detail) is not None


def is_quota(detail: str) -> bool:
    """Whether it is the account's quota that is reached: what the file system has left tells nothing then."""
    return _QUOTA_REACHED.search(detail) is not None


def making_room(host: str, detail: str) -> str:
    """Return what to do about a home without room, as a sentence.

    Args:
        host: the host as the user spells it; "this machine" for the local one.
        detail: what its system said.
    """
    if is_quota(detail):
        return f"Remove files there, or have the account's quota raised: {command_line(host, 'quota -s; du -sh ~')}"
    return f"Make room there: {command_line(host, 'df -h ~; df -i ~; quota')}"


def _mending_of_home(host: str, detail: str) -> str:
    if is_full(detail):
        return f" {making_room(host, detail)}"
    if detail in (os.strerror(errno.EACCES), os.strerror(errno.EROFS)):
        return " Make it writable for the account: kernels need a directory of their own there."
    return ""


def no_home(host: str, path: str) -> StagingError:
    """Return the error for an account whose home is not there."""
    return StagingError(
        host,
        f"The account's home on {host}, {path}, does not exist. Have it made there by whoever runs the host, or see "
        "what sets HOME: kernels need a directory of their own in it.",
        f"its home {path} does not exist",
    )


def few_files(host: str, limit: int) -> KernelStartError:
    """Return the error for a host on which a process may open too few files for a kernel."""
    return KernelStartError(
        host,
        f"A process may have no more than {limit} open files on {host} (ulimit -n), and a Python kernel has more from "
        "the start. See where the login sets that (its profile, limits.conf), and allow 1024.",
        f"no more than {limit} open files (ulimit -n)",
    )


def few_tasks(host: str, limit: int, now: int, needed: int) -> KernelStartError:
    """Return the error for a host on which the account may have too few processes and threads for one more kernel.

    Args:
        host: the host as the user spells it.
        limit: how many it may have.
        now: how many it has.
        needed: how many a kernel takes.
    """
    return KernelStartError(
        host,
        f"The account may have no more than {limit} processes and threads on {host} (ulimit -u) and has {now} now; a "
        f"kernel takes {needed}. See where the login sets that (its profile, limits.conf), or end what is not "
        "needed there.",
        f"no more than {limit} processes and threads (ulimit -u), and {now} there now",
    )


def old_python(host: str, python: str, version: str) -> UnsupportedHostError:
    """Return the error for a host whose interpreter `python` is too old."""
    return UnsupportedHostError(
        host,
        f"{host} has Python {version} ({python}), and python >= 3.11 is needed there; name a newer one with the "
        "setting 'python' (jupyter albedo add --python PATH).",
        f"python {version} ({python}), and python >= 3.11 is needed",
    )


_WANTS_NEW_PASSWORD = "Password change required but no TTY available"
"""What OpenSSH's server says in place of running a command when the account's password has expired (session.c)."""


def wants_new_password(printed: str) -> bool:
    """Whether a server ran no command because the account's password has expired.

    Args:
        printed: what came on standard error before anything of ours ran.
    """
    return _WANTS_NEW_PASSWORD in printed


def password_expired(host: str) -> SignInError:
    """Return the error for an account that has to choose a new password first, which takes a terminal."""
    return SignInError(
        host,
        f"The password of the account on {host} has expired, and the server runs no command before there is a new one. "
        f"Run `{ssh_command(host)}` in a terminal and choose it there.",
        _WANTS_NEW_PASSWORD,
    )


_CRASHES = ("ILL", "TRAP", "ABRT", "BUS", "FPE", "SEGV", "SYS", "unknown")
"""Signals by which a program may end of itself, each time that it is run."""


def ended_early(
    host: str, how: Exit, said: str, python: str | None, *, begun: bool, ran: bool, left_out: str, in_the_way: str = ""
) -> HostError:
    """Return the error for a command that ended before our code there had given the answer that was awaited.

    Args:
        host: the host as the user spells it.
        how: how the command ended.
        said: the last line that the host printed meanwhile.
        python: the interpreter that was asked for, if any.
        begun: whether the account's shells were done by then.
        ran: whether our code had begun to run, too.
        left_out: why its login profile was left out, in words that follow "its login profile"; empty if it was not.
        in_the_way: what `module_in_the_way` says.
    """
    name = python or "python3"
    # Where it goes no better without the profile, that was not the cause, and there may be none.
    words = _beside(said, left_out if begun else "")
    if how.error is not None:
        return UnreachableError(host, f"The connection to {host} broke: {how.error}", str(how.error))
    killed_by = how.killed_by
    if killed_by is not None and (ran or killed_by not in _CRASHES):
        cause = f"was ended by signal {killed_by} before it had answered"
        why = ": by somebody there, or by the system, which does that when memory runs out" * (killed_by == "KILL")
        return KilledError(host, f"Our process on {host} {cause}{why}.{words}", f"our process there {cause}")
    if ran and how.status == 0:  # who keeps a kernel ended when it had just taken the connection: all else is told
        cause = "our process there ended before it had answered"
        return UnreachableError(host, f"The connection to {host} broke: {cause}.{words}", cause)
    blamed = f"{said} ({in_the_way})" if in_the_way and in_the_way not in said else said
    if ran and in_the_way:
        return UnsupportedHostError(
            host, f"Our process on {host} failed: {said}. {shadows.advice(said, in_the_way)}.", blamed
        )
    if ran:
        cause = f"ended without an answer ({how.words})"
        return UnsupportedHostError(
            host, f"Our process on {host} {cause}.{words}", said or f"our process there {cause}"
        )
    if not begun:
        return UnsupportedHostError(
            host,
            f"The command on {host} ended before our code ran ({how.words}): an account that may not run commands, or "
            "a file that ends the shell (its login profile; ~/.bashrc, ~/.zshenv, config.fish). "
            f"{command_line(host, 'echo works')} has to print that; `[ -t 0 ] || return` at the top of such a file "
            f"leaves what follows to shells at a terminal.{words}",
            said or how.words,
        )
    if how.status in (126, 127):  # what is not there is told by `no_python`; this is, and the system cannot load it
        return UnsupportedHostError(
            host, f"{name} on {host} cannot be run ({how.words}).{words}", said or f"{name}: {how.words}"
        )
    if said.startswith(FATAL):
        advice = "See what it is set up with there (PYTHONHOME, PYTHONPATH in its profile), or use another interpreter"
        return UnsupportedHostError(
            host,
            f"{name} on {host} does not start ({how.words}): {said}. {advice} (--python, the setting 'python').",
            said,
        )
    if in_the_way:
        return UnsupportedHostError(
            host, f"{name} on {host} fails before our code runs: {said}. {shadows.advice(said, in_the_way)}.", blamed
        )
    return UnsupportedHostError(
        host,
        f"The command on {host} ended before our code ran ({how.words}): {name} may be no Python.{words}",
        said or how.words,
    )


def no_python(host: str, python: str | None, said: str, left_out: str) -> UnsupportedHostError:
    """Return the error for a host on which there is no such interpreter; arguments as for `ended_early`."""
    name = python or "python3"
    return UnsupportedHostError(
        host,
        f"{name} was not found on {host}; python >= 3.11 is needed there. Name one with the setting 'python' "
        f"(jupyter albedo add --python PATH).{_beside(said, left_out)}",
        said or f"{name}: not found",
    )


def _beside(said: str, left_out: str) -> str:
    """Return the sentences about what a host printed, and about a profile that was left out."""
    words = f" Its login profile {left_out}, and was left out." if left_out else ""
    return words + (f" It printed: {said}" if said else "")


def reads_our_input(host: str, begun: bool) -> UnsupportedHostError:
    """Return the error for a command whose standard input something else has read.

    Args:
        host: the host as the user spells it.
        begun: whether the account's shells were done by then.
    """
    cause = "something there reads the standard input of the command, and prints it"
    files = (
        "the interpreter may be no Python" if begun else "a file that its shell reads (~/.bashrc, ~/.zshenv, a profile)"
    )
    return UnsupportedHostError(
        host,
        f"Our code does not run on {host}: {cause}: {files}. Have it do that for logins at a terminal alone "
        "([ -t 0 ]), or give it another input (</dev/null).",
        cause,
    )


def took_too_long(
    host: str, seconds: float, said: str, python: str | None, *, begun: bool, shell: bool, ran: bool
) -> UnreachableError:
    """Return the error for a command that has not said anything within so many seconds: `UnansweredError` if not `ran`.

    Args:
        host: the host as the user spells it.
        seconds: how long that was.
        said: the last line that the host printed meanwhile.
        python: the interpreter that was asked for, None for the login shell's `python3`.
        begun: whether the account's shells were done by then.
        shell: whether its login shell was at work.
        ran: whether our code ran by then.
    """
    cause = f"{host} took longer than {seconds:g} s to answer"
    advice = ""
    if not begun and shell:
        cause += ": its login profile takes that long"
    elif not begun:
        cause += (
            ": the network may be slow, or a file that its shell reads for every command (~/.bashrc, ~/.zshenv, "
            f"config.fish) takes that long or waits for input; what it asks is shown by: {command_line(host, 'true')}"
        )
    elif not ran:
        name = python or "python3"
        where = "in a terminal" if host == "this machine" else f"after `{ssh_command(host)}`"
        cause += f": its shell started {name}, which does nothing"
        advice = (
            " A program of that name may stand before the real one or wait for something, or its disk is slow. See "
            f"what `{name} -V` does {where}, or use another interpreter (--python, the setting 'python')."
        )
    words = f" It printed: {said}" if said else ""
    kind = UnreachableError if ran else UnansweredError
    return kind(host, f"{cause}.{advice}{words}", cause)


def start_failed(host: str, exit_: dict[str, Any]) -> KernelStartError:
    """Return the error for a kernel whose process ended before it listened.

    Args:
        host: the host as the user spells it.
        exit_: how it ended, as its keeper says it (`Kernel.exit` in `bundle/kernel.py`).
    """
    code = exit_.get("code")
    how = f"signal {-code}" if isinstance(code, int) and code < 0 else f"exit status {code}"
    words = str(exit_.get("words") or "")
    limit = exit_.get("memory_limit")
    little = ""
    if isinstance(limit, int) and limit < LITTLE_MEMORY:
        little = f". A process may have no more than {limit / 1e6:.0f} MB of memory there (ulimit -v)."
    room = exit_.get("task_room")
    if room and (room[0] - room[1] < KERNEL_TASKS or NO_MORE_TASKS.search(words)):
        little += (
            f". The account may have no more than {room[0]} processes and threads there (ulimit -u) and had {room[1]} "
            f"without this kernel, which takes {KERNEL_TASKS} at least."
        )
    cause = cause_in(words)
    if cause.startswith(("ModuleNotFoundError: ", "ImportError: ")) and shadows.IN_THE_WAY not in cause:
        little += (
            ". What its Python imports is damaged or lacks something: `jupyter albedo doctor "
            f"{'.' if host == 'this machine' else host}` looks at it; install ipykernel anew there (pip install "
            "--force-reinstall ipykernel), or use another interpreter (--python, the setting 'python')."
        )
    return KernelStartError(
        host,
        f"The kernel on {host} ended while starting ({how}): {cause or 'it printed nothing'}{little}",
        words,
    )


LITTLE_MEMORY = 1 << 30
"""Bytes of address space that a kernel, or what it imports, may well want."""
