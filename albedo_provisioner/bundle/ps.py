"""The process table where there is no /proc, as `ps` prints it. Only `processes` uses this.

POSIX leaves much of ps open; what is used here is common to procps, macOS and the BSDs.
"""

from __future__ import annotations

import calendar
import errno
import os
import subprocess
import sys

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

Row = tuple[int, int, int, int, int, int, str, str]
"""pid, ppid, pgid, sid, start (seconds since the epoch), real user id, state, name."""


def rows(pid: int | None = None) -> list[Row]:
    """All processes, or the one with this pid if it is there.

    Raises:
        OSError: ps is missing or failed.
    """
    found = []
    which = ["-ax"] if pid is None else ["-p", str(pid)]
    for line in _ps([*which, "-o", "pid=,ppid=,pgid=,ruid=,state=,lstart=,comm="]):
        fields = line.split(None, 10)
        if len(fields) < 10:
            continue
        number, ppid, pgid, uid = (int(field) for field in fields[:4])
        # lstart, with LC_ALL=C and TZ=UTC0: "Mon Nov 30 02:29:17 2026".
        _, month, day, clock, year = fields[5:10]
        hour, minute, second = (int(part) for part in clock.split(":"))
        start = calendar.timegm((int(year), _MONTHS.index(month) + 1, int(day), hour, minute, second))
        try:
            sid = os.getsid(number)  # ps has no portable column for it
        except OSError:
            sid = 0
        name = fields[10].rstrip() if len(fields) > 10 else "?"
        found.append((number, ppid, pgid, sid, start, uid, fields[4][0], name))
    return found


def with_environment(entry: str) -> list[int]:
    """Pids of the processes whose environment, as far as ps may see it, holds `entry` ("NAME=value", without spaces).

    Raises:
        OSError: ps is missing or failed.
    """
    # ps prints the environment behind the arguments. The entry among the arguments (somebody's `grep`) does not count,
    # so what ps prints without the environment is taken off first.
    plain = dict(_by_pid(_ps(["-axww", "-o", "pid=,command="])))
    options = ["-axwwE"] if sys.platform == "darwin" else ["axeww"]
    found = []
    for pid, line in _by_pid(_ps([*options, "-o", "pid=,command="])):
        arguments = plain.get(pid)
        if arguments is not None and line.startswith(arguments) and entry in line[len(arguments) :].split():
            found.append(pid)
    return found


def _by_pid(lines: list[str]) -> list[tuple[int, str]]:
    return [(int(fields[0]), fields[1].rstrip()) for line in lines if len(fields := line.split(None, 1)) == 2]


def _ps(arguments: list[str]) -> list[str]:
    """Lines that ps prints, without those about the ps process itself: our child, yet no part of any family."""
    environment = {**os.environ, "LC_ALL": "C", "TZ": "UTC0"}
    command = ["ps", *arguments]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    output, complaint = process.communicate()
    # With -p, ps exits 1 without a word when there is no such process.
    if process.returncode and (complaint or "-p" not in arguments):
        words = complaint.decode("utf-8", "replace").strip()
        raise OSError(errno.EIO, f"{' '.join(command)} failed: {words or f'exit status {process.returncode}'}")
    lines = output.decode("utf-8", "replace").splitlines()
    return [line for line in lines if line.split(None, 1)[:1] not in ([], [str(process.pid)])]
