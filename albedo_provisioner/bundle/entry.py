"""The bridge's side of things: what a connection to this host wants, and handing the connection to a keeper.

The process that the loader started comes here. For a kernel it ends up as a bridge: it passes its standard input and
output to the keeper over the keeper's socket and then only waits for that socket to close, so that sshd sees a running
command for as long as the keeper uses the connection. Killing it closes the connection and hurts nothing else.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import struct
import sys
from typing import Any, NoReturn

from . import rundir
from .spawn import boot_id, folder_path, last_words
from .wire import REPORT, json_frame


def main(request: dict[str, Any]) -> None:
    """Serve one request; the dictionary is what `hosts/bootstrap.py` sent."""
    actions = {"start": start, "attach": attach, "check": check, "sweep": sweep}
    actions[request["do"]](request)


def report(**content: Any) -> None:
    """Tell the client something over the connection, before any keeper speaks."""
    data = json_frame(REPORT, content)
    while data:
        data = data[os.write(1, data) :]


def fail(error: str, **details: Any) -> NoReturn:
    """Tell the client why there will be no kernel, and end."""
    report(error=error, **details)
    sys.exit(0)


def folder(text: str) -> str:
    """Return the folder of a location as an absolute path on this host, or fail with the reason."""
    path = folder_path(text)
    try:
        os.listdir(path) if os.access(path, os.R_OK) else os.stat(path)
        if not os.path.isdir(path):
            fail("folder", path=path, detail="not a folder")
        if not os.access(path, os.X_OK):
            fail("folder", path=path, detail="permission denied")
    except OSError as error:
        fail("folder", path=path, detail=(error.strerror or str(error)).lower())
    return path


def missing(names: list[str]) -> list[str]:
    """Return which of these packages this interpreter lacks. The interpreter was started without its site
    directories, to be quick; they are added here, as any Python program has them.
    """
    import site

    site.main()
    return [name for name in names if importlib.util.find_spec(name) is None]


def check(request: dict[str, Any]) -> None:
    """Answer what a kernel would meet here: folder, home, interpreter, packages."""
    path = folder(request["cwd"])
    lacking = missing(["ipykernel", "zmq"])
    version = None
    if "ipykernel" not in lacking:
        import importlib.metadata

        version = importlib.metadata.version("ipykernel")
    report(
        checked={
            "folder": path,
            "home": os.path.expanduser("~"),
            "python": sys.executable,
            "python_version": ".".join(map(str, sys.version_info[:3])),
            "ipykernel_version": version,
            "lacking": lacking,
        }
    )


def start(request: dict[str, Any]) -> None:
    """Make a keeper with its kernel, and become a bridge to it."""
    folder(request["kernel"]["cwd"])
    try:
        if _keeper_lives(request["kernel_id"]):
            fail("exists", kernel_id=request["kernel_id"])
        _sweep(request["kernel_id"])
        path = rundir.create(request["kernel_id"])
    except OSError as error:
        fail("staging", detail=error.strerror or str(error), path=error.filename or rundir.root())
    os.chdir(path)  # so that the socket's name is short, however long the path is
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(rundir.SOCKET)
    listener.listen(16)
    ready, told = os.pipe()
    if os.fork() == 0:
        os.close(ready)
        from . import daemon

        daemon.main(path, request, listener, told)
    listener.close()
    os.close(told)
    with os.fdopen(ready, "rb") as pipe:
        answer = json.loads(pipe.read() or b'{"error": "keeper", "detail": "it ended at once"}')
    if "error" in answer:
        fail(**answer)
    attach(request)


def sweep(request: dict[str, Any]) -> None:
    """End what a kernel left whose keeper is gone, and answer with the ladder's report."""
    if _keeper_lives(request["kernel_id"]):
        fail("exists", kernel_id=request["kernel_id"])
    report(swept=_sweep(request["kernel_id"]))


def _keeper_lives(kernel_id: str) -> bool:
    """Whether a keeper listens in the kernel's run directory."""
    before = os.open(".", os.O_RDONLY)
    try:
        os.chdir(rundir.path_of(kernel_id))  # so that the socket's name is short, however long the path is
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(rundir.SOCKET)
        return True
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        return False
    finally:
        os.chdir(before)
        os.close(before)


def _sweep(kernel_id: str) -> dict[str, Any]:
    path = rundir.path_of(kernel_id)
    if not os.path.lexists(path):
        return {"ended": [], "survivors": [], "foreign": []}
    from .ladder import Ladder

    report = Ladder([], mark=kernel_id, term_grace=1.0).run()
    rundir.remove(path)
    return report.to_dict()


def attach(request: dict[str, Any]) -> None:
    """Hand this connection to a kernel's keeper and wait until the keeper is done with it."""
    path = rundir.path_of(request["kernel_id"])
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.chdir(path)
        connection.connect(rundir.SOCKET)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        fail("gone", boot_id=boot_id(), node=os.uname().nodename, detail=last_words(path))
    except OSError as error:
        fail("keeper", detail=error.strerror or str(error))
    offer = json.dumps({name: request[name] for name in ("link", "client", "fresh", "hello")}).encode()
    socket.send_fds(connection, [struct.pack("!I", len(offer)) + offer], [0, 1])
    wait(connection)


def wait(connection: socket.socket) -> None:
    """Stay until the keeper closes its end, holding as little as can be."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):
        os.dup2(null, descriptor)
    os.dup2(connection.fileno(), 0)
    os.chdir("/")
    for program in ("/bin/cat", "/usr/bin/cat"):
        if os.access(program, os.X_OK):
            os.execv(program, ["cat"])  # a twentieth of an interpreter's memory, for as long as the connection lasts
    while os.read(0, 4096):
        pass
