"""Every error a caller can get. Each message says what was tried, where, what came back, and what to do."""

from __future__ import annotations

from typing import Any


def in_words(error: BaseException) -> str:
    """Return an error's name and message, as a traceback's last line has them.

    Also that of a caller's own class, whose `__str__` may do anything: what goes wrong in it is nobody else's problem.
    """
    name = type(error).__name__
    try:
        message = str(error)
    except BaseException:  # noqa: BLE001 - it is not ours
        message = "(its message cannot be had)"
    return f"{name}: {message}" if message else name


class AlbedoError(Exception):
    """Base of all errors of this package. `str()` is one sentence or two, fit for a dialog box."""


class ConfigError(AlbedoError):
    """A kernelspec's or a caller's setting is unknown or malformed."""


class LocationError(AlbedoError, ValueError):
    """A text is not a location (`[user@]host:/abs/path`, `host:~/path` or a local path)."""


class HostError(AlbedoError):
    """A host could not be used.

    Attributes:
        host: the host as the user spells it.
        state: "needs_auth", "unreachable" or "unsupported".
        detail: the cause in ssh's (or the host's) own words.
    """

    state = "unreachable"

    def __init__(self, host: str, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.host = host
        self.detail = detail or message

    def __reduce__(self) -> tuple[type[HostError], tuple[str, str, str]]:
        return type(self), (self.host, str(self), self.detail)  # or it could not be pickled or copied


class UnreachableError(HostError):
    """The host cannot be reached: name, network, refused port, timeout, or a connection that broke."""

    state = "unreachable"


class UnansweredError(UnreachableError):
    """The host let us in, and nothing of ours ran there in time: its shell or its interpreter does not get that far."""


class KilledError(UnreachableError):
    """Our process on the host was ended by a signal before it had answered: by somebody there, or for want of memory.

    What changes nothing has been asked twice by then.
    """


class SignInError(HostError):
    """A person could get in but we cannot: no accepted key, a locked key, an unknown or changed host key."""

    state = "needs_auth"


class NoRoomError(SignInError):
    """The connection that is signed in has as many sessions as the server allows; one more sign-in makes room."""


class HostKeyError(SignInError):
    """The host's key is not known, is another than before, or is revoked: a person has to look at it."""


class UnsupportedHostError(HostError):
    """The host lets us in but cannot run a kernel: no Python, one that is too old, no shell."""

    state = "unsupported"


class StagingError(HostError):
    """Our files could not be put on the host: home not writable, disk full."""

    state = "unsupported"


class FolderError(HostError):
    """The location's folder does not exist on its host, is not a folder, or may not be entered."""

    state = "ready"


class NoSuchFolderError(FolderError):
    """There is no such folder on the host."""


class NotAFolderError(FolderError):
    """What is at that path on the host is no folder."""


class NoPermissionError(FolderError):
    """The account may not enter the folder, or not read it where that is needed."""


class KernelStartError(HostError):
    """The kernel could not be started on a host that is otherwise fine (ipykernel missing, kernel died at once)."""

    state = "ready"


class PackagesMissingError(KernelStartError):
    """The interpreter on the host has no ipykernel or no pyzmq, and none was put there for it.

    Attributes:
        report: what the host said of the interpreter (`without` in `bundle/entry.py`); empty in a copy.
    """

    def __init__(self, host: str, message: str, detail: str = "", report: dict[str, Any] | None = None) -> None:
        super().__init__(host, message, detail)
        self.report = report or {}


class KernelExistsError(KernelStartError):
    """There is a kernel of that id on the host already."""


class KernelGoneError(AlbedoError):
    """The kernel does not exist any more; the message says why where that is known.

    Attributes:
        boot_id: the boot id of the host that said so; empty where it has none or did not say.
        node: that host's own name.
    """

    def __init__(self, message: str, boot_id: str = "", node: str = "") -> None:
        super().__init__(message)
        self.boot_id = boot_id
        self.node = node


class LinkAwayError(AlbedoError):
    """The host is out of reach and the request could not be answered in time. The kernel is not known to be dead."""


class MemoryFileError(AlbedoError):
    """A workspace's memory cannot be read or written, or a text is too long for it; the message says which and why."""


class WorkspaceLinkError(AlbedoError):
    """Two workspaces cannot be linked, or one cannot be taken out of its group; the message says why."""
