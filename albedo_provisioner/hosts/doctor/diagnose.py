"""From a host to all that is found about it: what can be said from here, then one visit, then what it means."""

from __future__ import annotations

from collections.abc import Callable

from ...errors import AlbedoError, ConfigError, SignInError
from ...location import Location, parse_host, place
from ..activity import Activity
from ..host_python import HostPython
from ..io_thread import in_thread
from ..openssh import ProgramChannel
from ..pool import HostPool
from ..remote import RemoteTransport, Way
from ..ssh_channel import SSHChannel
from ..wheels import kept_set, trial
from . import here, verdicts
from .examination import Examined, examine
from .findings import Diagnosis, Finding, ok, problem

Tell = Callable[[Finding], None]


def parse_place(text: str) -> tuple[str | None, str | None]:
    """Return the host of a host or location as it is typed, and the folder if it names one.

    Raises:
        LocationError: it is neither.
    """
    if isinstance(text, str) and (text.startswith("~") or "/" in text.partition(":")[0]):
        return None, place(text).path
    host = parse_host(text)
    named = host is not None and text not in (host, f"{host}:") and text.rpartition("]")[2].count(":") > 0
    return host, Location.parse(text).path if named else None


async def diagnose(host: str | None, folder: str | None, python: str | None, tell: Tell) -> Diagnosis:
    """Examine a host; on the I/O thread. Whatever is found is in what is returned; nothing is raised for it.

    Args:
        host: `[user@]host` as the user spells it; None for this machine.
        folder: a folder that a kernel is to run in; None to look at none.
        python: the interpreter there, as for a kernel.
        tell: called with each finding as soon as it is known.
    """
    transport = HostPool.get().transport_for(host)
    found: list[Finding] = []

    def add(*findings: Finding) -> None:
        for finding in findings:
            found.append(finding)
            tell(finding)

    expected: Way | ConfigError | None = None
    unread: Finding | None = None
    if isinstance(transport, RemoteTransport):
        told, resolved = await here.config(transport.host)
        if told.blocks:
            unread = told  # by ssh; in process it may go all the same
        else:
            add(told)
        if resolved is not None:
            add(await here.name(resolved))
        try:
            expected = await transport.way()
        except ConfigError as error:
            expected = error
    activity, token = Activity.get(), object()
    try:
        examined = await examine(transport, folder, python, lambda step: activity.enter(transport.host, token, step))
    finally:
        activity.leave(transport.host, token)
    if unread is not None:
        add(unread if examined.connected is None else here.config_of_ours_alone(unread))
    examined.not_fetched = await _try_fetching(examined)
    if isinstance(transport, RemoteTransport):
        add(*_way_there(expected, examined, transport.unread), *_reached(examined, found))
    elif examined.connected is None and examined.error is not None:
        add(problem("connection", str(examined.error)))
    add(*await in_thread(lambda: list(verdicts.of_host(transport.host, examined))))
    if isinstance(transport, RemoteTransport) and examined.connected is not None:
        add(*verdicts.of_link(examined))
    return Diagnosis(transport.host, tuple(found))


async def _try_fetching(examined: Examined) -> str | None:
    """Return why packages that the host lacks cannot be fetched here; see `Examined.not_fetched`."""
    without = (examined.looks.get("packages", {}).get("facts") or {}).get("without")
    try:
        python = HostPython.from_facts(without["facts"]) if without else None
        if python is None or not python.platforms() or await in_thread(kept_set, python) is not None:
            return ""
        return await trial(python)
    except (AlbedoError, OSError, KeyError, ValueError):
        return None  # the verdict meets the same, and tells it


def _way_there(expected: Way | ConfigError | None, examined: Examined, unread: str) -> list[Finding]:
    """Say by which ssh it went, or would have gone; `unread` is why ssh in process could not read the config."""
    taken, channel = None, examined.channel
    if isinstance(channel, SSHChannel):
        taken = Way("builtin", "another way was tried first, and does not lead there")
    elif isinstance(channel, ProgramChannel):
        kind = "program" if channel.master is None else "master"
        taken = Way(kind, "ssh in process was tried first, and does not lead there")
        if unread and kind == "program":
            return [here.way_of_unread(taken, unread)]
    if isinstance(expected, Way) and (taken is None or taken.kind == expected.kind):
        taken = expected
    return [] if taken is None or isinstance(examined.error, ConfigError) else [here.way(taken)]


def _reached(examined: Examined, found: list[Finding]) -> list[Finding]:
    """Say whether the host was reached and let us in."""
    error = examined.error
    if examined.connected is None:
        if isinstance(error, SignInError):
            return [problem("sign-in", str(error))]
        if isinstance(error, ConfigError):
            return [] if any(finding.blocks for finding in found) else [problem("config", str(error))]
        return [problem("connection", str(error))]
    text = f"signed in, and a command begun, after {examined.connected:.2f} s"
    channel = examined.channel
    if isinstance(channel, SSHChannel):
        attempt = channel.connection.attempt
        key = f" with the key {attempt.offered[-1]}" if attempt.offered else ""
        through = f", through {attempt.via}" if attempt.via else ""
        text = f"signed in as {attempt.user}{key}{through}, and a command begun, after {examined.connected:.2f} s"
    elif isinstance(channel, ProgramChannel) and channel.master is not None:
        text += f", over {channel.master}"
    return [ok("sign-in", text, seconds=examined.connected)]
