"""What the facts that a host tells mean for a kernel there: facts in, findings out."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

from ...bundle import shadows
from ...bundle.spawn import FEW_FILES, KEEPER_TASKS, KERNEL_TASKS, LEAST_FILES
from ...errors import AlbedoError
from ..host_python import HostPython
from ..openssh import ProgramChannel
from ..package_refusals import mending, mending_import, mounted_noexec
from ..probe import OLDEST_PYTHON
from ..refusals import (
    LITTLE_MEMORY,
    few_files,
    few_tasks,
    is_full,
    is_quota,
    making_room,
    no_home,
    old_python,
)
from ..ssh_channel import MAX_CHANNELS, SSHChannel
from ..wheels import TRIAL_TIMEOUT, kept_set
from .examination import Examined
from .findings import Finding, note, ok, problem

_SLOW_LOGIN = 3.0  # seconds
_LONG_TRIP = 0.3  # seconds
_SLOW_LINK = 200e3  # bytes a second
_SKEW = 2.0  # seconds
_FEW_TASKS = 100  # processes and threads

_BUNDLE_BYTES, _BUNDLE_FILES = 2 << 20, 160
_PACKAGES_BYTES, _PACKAGES_FILES = 50 << 20, 3500
_LITTLE_BYTES, _LITTLE_FILES = 500 << 20, 5000
_MEMORY_NEEDED = 80 << 20

Facts = dict[str, Any]


def of_host(host: str, examined: Examined) -> Iterator[Finding]:
    """Yield what there is to say of a host that began our command.

    Args:
        host: as the user spells it; "this machine" for the local one.
        examined: what it told.
    """
    if examined.connected is None:
        return
    if examined.here is None:
        yield _nothing_ran(examined)
        return
    yield _login(host, examined)
    yield _python(host, examined.here)
    if examined.memory is not None and examined.memory < LITTLE_MEMORY:
        yield _memory(examined.memory)
    if examined.open_files is not None and examined.open_files < FEW_FILES:
        yield _open_files(host, examined.open_files)
    looks = {name: seen.get("facts") for name, seen in examined.looks.items()}
    yield from _tasks(host, looks.get("tasks") or {})
    lacking = bool((looks.get("packages") or {}).get("without"))
    home = looks.get("home") or {}
    no_room = bool(home) and _home(host, home, lacking).state == "problem"
    verdicts: dict[str, Callable[[Facts], Finding]] = {
        "packages": lambda seen: _packages(host, examined, seen, bool(home.get("noexec")), no_room),
        "home": lambda seen: _home(host, seen, lacking),
        "runtime": lambda seen: _runtime(host, seen),
        "logout": lambda seen: _logout(host, seen),
        "folder": _folder,
        "kernels": lambda seen: _kernels(host, seen),
    }
    if "ours" in looks:
        failed = examined.looks["ours"]["failed"]
        shadow = examined.looks["ours"].get("shadow")
        advice = f"{shadows.advice(failed, shadow)}." if shadow else "Try another Python (--python)."
        yield problem("packages", f"our code does not run there: {failed}.", advice)
    if home.get("missing"):
        del verdicts["runtime"]  # it would say the same
    for name, verdict in verdicts.items():
        if name in looks:
            seen = looks[name]
            failed = examined.looks[name].get("failed")
            yield note(name, f"could not be looked at: {failed}") if seen is None else verdict(seen)
    if examined.error is not None and not _died_of_memory(examined):
        yield problem("connection", str(examined.error))


def _nothing_ran(examined: Examined) -> Finding:
    """Say why our code did not get to run on a host that let us in."""
    ended, error = examined.ended, str(examined.error)
    if ended is None or ended.error is not None:
        return problem("connection", error)
    return problem("python" if examined.begun else "login", error)


def _login(host: str, examined: Examined) -> Finding:
    took = examined.answered or 0.0
    text = f"our code ran {took:.2f} s after the login began"
    lines = examined.printed.splitlines()
    facts: Facts = {"seconds": took, "printed": examined.printed[-2000:]}
    if examined.left_out:
        return note(
            "login",
            f"the login profile {examined.left_out}, so it is left out, with what it sets (PATH, modules, conda).",
            "Have the profile do that for logins at a terminal alone ([ -t 0 ]).",
            **facts,
        )
    if took > _SLOW_LOGIN:
        return note(
            "login",
            f"{text}; every kernel start and every new connection of a link waits for that.",
            "See what the login profile does there that takes so long.",
            **facts,
        )
    if lines:
        shown = "".join(filter(str.isprintable, lines[0].strip()))[:60]
        return note(
            "login", f"{text}; the profile prints {_many(len(lines), 'line')} ({shown!r}), which do no harm", **facts
        )
    return ok("login", f"{text}; the profile prints nothing", **facts)


def _python(host: str, here: Facts) -> Finding:
    python, version = str(here["python"]), str(here["version"])
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_PYTHON:
        return problem("python", str(old_python(host, python, version)), **here)
    return ok("python", f"Python {version} ({python}) on {here['os']} {here['arch']}", **here)


def _packages(host: str, examined: Examined, seen: Facts, noexec: bool, no_room: bool) -> Finding:
    here: Facts = examined.here or {}
    facts: Facts = {name: seen[name] for name in ("ipykernel", "pyzmq", "provided")}
    if seen["broken"]:
        return problem(
            "packages",
            f"ipykernel and pyzmq are there and cannot be imported: {seen['broken']}.",
            mending_import(host, str(here["python"]), seen["broken"], bool(seen["pip"])),
            **facts,
        )
    if seen["without"] is None:
        whose = "put there by us" if seen["provided"] else "the interpreter's own"
        return ok("packages", f"ipykernel {seen['ipykernel']} and pyzmq {seen['pyzmq']}, {whose}", **facts)
    lacking = " and ".join(sorted("pyzmq" if name == "zmq" else str(name) for name in seen["without"]["lacking"]))
    if noexec:
        return problem("packages", str(mounted_noexec(host, seen["without"])), **facts)
    mend = mending(host, str(here["python"]), bool(seen["pip"]))
    try:
        interpreter = HostPython.from_facts(seen["without"]["facts"])
        kept = kept_set(interpreter)
    except (AlbedoError, OSError, KeyError, ValueError) as error:
        return problem("packages", f"no {lacking}, and none can be put there: {error}.", mend, **facts)
    brought = "it can be brought along once the home is mended" if no_room else "the first kernel brings it along"
    if kept is not None:
        size = f"{len(kept.wheels)} packages, {kept.size / 1e6:.0f} MB, are kept here for it"
        return note("packages", f"no {lacking}; {brought} ({size})", **facts)
    if not interpreter.platforms():
        return problem("packages", f"no {lacking}, and which packages fit {interpreter} is not known.", mend, **facts)
    if importlib.util.find_spec("pip") is None:
        return problem(
            "packages", f"no {lacking}, and there is no pip on this machine to fetch it with.", mend, **facts
        )
    if examined.not_fetched:
        text = (
            f"no {lacking}, and no packages for it can be fetched on this machine: {examined.not_fetched.rstrip('.')}."
        )
        return problem("packages", text, f"{mend} Or have pip find wheels for it here (PIP_FIND_LINKS).", **facts)
    known = "" if examined.not_fetched is not None else f" (whether it can was not known within {TRIAL_TIMEOUT:g} s)"
    fetched = "after pip" if no_room else "once pip"
    return note("packages", f"no {lacking}; {brought}, {fetched} has fetched it here{known}", **facts)


def _home(host: str, seen: Facts, lacking: bool) -> Finding:
    if seen.get("missing"):
        return problem("home", str(no_home(host, str(seen["home"]))), home=seen["home"])
    free, files = int(seen["free"]), int(seen["free_files"])
    counted = int(seen["files"]) > 0  # some file systems do not count
    text = f"{seen['directory']}: {_size(free)} of {_size(int(seen['size']))} free"
    text += f", room for {files:,} files" if counted else ""
    facts: Facts = {name: seen.get(name) for name in ("home", "free", "size", "free_files", "files", "noexec", "error")}
    room = making_room(host, str(seen.get("error", "")))
    if "error" in seen:
        full = is_full(seen["error"])
        advice = room if full else "Make it writable for the account: kernels need a directory of their own there."
        beside = "" if is_quota(seen["error"]) else f" ({text})"
        return problem(
            "home", f"nothing can be written to {seen['directory']}: {seen['error']}{beside}.", advice, **facts
        )
    bytes_needed = _PACKAGES_BYTES if lacking else _BUNDLE_BYTES
    files_needed = _PACKAGES_FILES if lacking else _BUNDLE_FILES
    if free < bytes_needed or (counted and files < files_needed):
        what = "ipykernel and our files" if lacking else "our files"
        wanted = f"{_size(bytes_needed)} and {files_needed:,} files are wanted for {what}"
        return problem("home", f"{text}; {wanted}.", room, **facts)
    if free < _LITTLE_BYTES or (counted and files < _LITTLE_FILES):
        return note("home", f"{text}, which is little.", room, **facts)
    if seen["owner"] == seen["uid"] and seen["mode"] & 0o022:
        advice = "Let nobody else write there: chmod go-w ~"
        return note("home", f"{text}; others may write in the home (mode {seen['mode']:04o}).", advice, **facts)
    return ok("home", text, **facts)


def _died_of_memory(examined: Examined) -> bool:
    """Whether our code there came to its end by itself, where no more was to be expected."""
    little = examined.memory is not None and examined.memory < _MEMORY_NEEDED
    return little and examined.ended is not None and examined.ended.error is None


def _memory(limit: int) -> Finding:
    text = f"a process may have no more than {_size(limit)} of memory (ulimit -v)"
    advice = "See where the login sets that (its profile, limits.conf)."
    if limit < _MEMORY_NEEDED:
        return problem("memory", f"{text}, which no kernel can live on.", advice, limit=limit)
    return note("memory", f"{text}; what needs more ends, and sometimes without a word.", advice, limit=limit)


def _open_files(host: str, limit: int) -> Finding:
    if limit < LEAST_FILES:
        return problem("files", str(few_files(host, limit)), limit=limit)
    text = f"a process may have no more than {limit} open files (ulimit -n); code that opens many will fail."
    return note("files", text, "See where the login sets that (its profile, limits.conf).", limit=limit)


def _tasks(host: str, seen: Facts) -> Iterator[Finding]:
    limit, now = seen.get("limit"), seen.get("now")
    if limit is None or now is None:
        return
    needed = KEEPER_TASKS + KERNEL_TASKS
    if limit - now < needed:
        yield problem("processes", str(few_tasks(host, limit, now, needed)), **seen)
    elif limit - now < _FEW_TASKS:
        text = (
            f"the account may have no more than {limit} processes and threads (ulimit -u) and has {now} now; a kernel "
            f"takes {needed}, and code that starts many will fail."
        )
        yield note("processes", text, "See where the login sets that (its profile, limits.conf).", **seen)


def _runtime(host: str, seen: Facts) -> Finding:
    directory = seen["directory"]
    if seen["foreign"]:
        path, why = seen["foreign"][0]
        advice = "Remove it there, or have it be a directory of the account's own (a link to one will do)."
        return problem("runtime", f"{path} {why}.", advice)
    if seen["error"]:
        text = f"no private directory with a socket can be made: {seen['path']}: {seen['error']}."
        needed = "A home on a file system with unix sockets, that can be written, is needed."
        return problem("runtime", text, making_room(host, seen["error"]) if is_full(seen["error"]) else needed)
    if seen["loose"]:
        paths = " and ".join(seen["loose"])
        text = (
            f"others may write into {paths}; the next kernel closes it, and has what could be changed put there afresh"
        )
        return note("runtime", text, open=seen["open"], loose=seen["loose"])
    if seen["open"]:
        text = f"others may look into {' and '.join(seen['open'])}; the next kernel closes it"
        return note("runtime", text, open=seen["open"], loose=[])
    if seen["elsewhere"]:
        text = f"{directory} is private; the sockets lie in {seen['sockets']}, for the home's path is too long for them"
        return ok("runtime", text, sockets=seen["sockets"])
    return ok("runtime", f"{directory} is private, and sockets can be made in it", sockets=seen["sockets"])


def _logout(host: str, seen: Facts) -> Finding:
    if not seen["threat"]:
        return ok("logout", "kernels outlive the login", ends=False)
    if seen["ends"]:
        text = str(seen["threat"])
        return problem("logout", f"{host} {text}.", blocks=False, ends=True)
    return ok("logout", f"{host} {seen['threat']}; kernels are moved out of it, and lingering is on", ends=False)


def _folder(seen: Facts) -> Finding:
    if seen["problem"]:
        return problem("folder", f"{seen['path']} cannot be used: {seen['problem']}.", "Make it, or name another.")
    return ok("folder", f"{seen['path']} is there", path=seen["path"])


def _kernels(host: str, seen: Facts) -> Finding:
    kernels = [kernel for kernel in seen["kernels"] if kernel["node"] in (None, seen["node"])]
    elsewhere = sorted({str(kernel["node"]) for kernel in seen["kernels"]} - {"None", str(seen["node"])})
    left = [kernel for kernel in kernels if not kernel["keeper"]]
    memory = sum(kernel["memory"] or 0 for kernel in kernels)
    text = f"{_many(len(kernels), 'kernel')} there" + (f", {_size(memory)}" if memory else "")
    if elsewhere:
        others = _many(len(seen["kernels"]) - len(kernels), "kernel")
        text += f" ({seen['node']}); {others} with this home on {', '.join(elsewhere)}"
    if left:
        return note(
            "kernels",
            f"{text}, {len(left)} of them without a keeper, which was killed.",
            f"See: jupyter albedo kernels {'.' if host == 'this machine' else host}",
            count=len(kernels),
            memory=memory,
        )
    return ok("kernels", text, count=len(kernels), memory=memory)


def of_link(examined: Examined) -> Iterator[Finding]:
    """Yield what there is to say of the way to a host that began our command."""
    trip, skew = examined.round_trip, examined.skew
    if trip is not None and skew is not None:
        text = f"{trip * 1000:.1f} ms"
        if trip > _LONG_TRIP:
            yield note("round trip", f"{text}: so long every completion and every cell waits", seconds=trip)
        else:
            yield ok("round trip", text, seconds=trip)
        yield from _throughput(examined)
        if abs(skew) > _SKEW + trip:
            ahead = "ahead of" if skew > 0 else "behind"
            text = (
                f"its clock is {abs(skew):.0f} s {ahead} this machine's; kernels do not mind, times of files mislead."
            )
            yield note("clock", text, "Have it keep time (NTP), or this machine.", skew=skew)
        else:
            yield ok("clock", f"within {max(abs(skew), trip):.1f} s of this machine's", skew=skew)
    yield from _sessions(examined)
    yield ok("forwarding", "none is needed; the server may forbid it")


def _throughput(examined: Examined) -> Iterator[Finding]:
    up, down = examined.up, examined.down
    if up is None or down is None:
        yield note("throughput", "too slow to be measured within some seconds", up=up, down=down)
    elif min(up, down) < _SLOW_LINK:
        text = f"{_size(up)}/s to it, {_size(down)}/s from it: a first visit and large outputs take their time"
        yield note("throughput", text, up=up, down=down)
    else:
        yield ok("throughput", f"{_size(up)}/s to it, {_size(down)}/s from it, over one channel", up=up, down=down)


def _sessions(examined: Examined) -> Iterator[Finding]:
    count = examined.sessions
    if isinstance(examined.channel, ProgramChannel) and examined.channel.master is not None:
        yield _room(count)
    elif count is None:
        if not isinstance(examined.channel, SSHChannel):
            yield ok("sessions", "not counted: each kernel has an ssh process of its own")
    elif count < MAX_CHANNELS:
        text = (
            f"the server allows {_many(count, 'session')} on a connection (MaxSessions), so kernels need more of them"
        )
        yield note("sessions", text, count=count)
    else:
        yield ok("sessions", f"{MAX_CHANNELS} kernels can share a connection", count=count)


def _room(count: int | None) -> Finding:
    """Say how much room there is on a connection that is signed in already."""
    if count is None:
        return note("sessions", "how much room there is on the connection that is signed in was not found out")
    if count >= MAX_CHANNELS:
        return ok("sessions", f"the connection that is signed in has room for {count} kernels at least", count=count)
    text = f"the connection that is signed in has room for {_many(count, 'more session')} (MaxSessions)"
    if count == 1:
        text += ": one kernel fills it, and even a look at that kernel from elsewhere finds no room then"
    return note("sessions", f"{text}.", "Sign in once more then; that makes one more connection.", count=count)


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if count >= 10 or unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _many(count: int, what: str) -> str:
    return f"no {what}s" if count == 0 else f"{count} {what}{'' if count == 1 else 's'}"
