"""Examines a host for `jupyter albedo doctor`. Its text goes there in the request, and the loader runs it.

Nothing is put on the host for it, so that a full disk, or a home that cannot be written, can be told of; and as in the
loader, any Python has to understand it, for one that is too old is told of as well. What takes our other modules
(`health.py`) has them from memory (`unstaged.py`).

Each look has a thread and some seconds of its own: one that fails or hangs keeps none of the others from being told.
"""

import os
import resource
import sys
import threading
import time

TYPE_CHECKING = False  # typing takes its time, and old ones have less in it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PATIENCE = {"packages": 20.0}
"""Seconds that a look may take, where that is not `LOOK`."""

LOOK = 6.0

WRITTEN = 1 << 20
"""Bytes that are written for a try: our files take about so many."""

FEW_FILES = 256
"""As in spawn.py: fewer open files than that are few."""

_BLOCK = 1 << 18


def home():
    # type: () -> dict[str, Any]
    """Return what there is to say of the home's file system: room, kind, and whether it can be written."""
    path = os.path.expanduser("~")
    if not os.path.isdir(path):
        return {"home": path, "missing": True}
    ours = os.path.join(path, ".albedo-remote")
    found = {"home": path, "mode": os.stat(path).st_mode & 0o7777, "owner": os.stat(path).st_uid, "uid": os.getuid()}
    found["there"] = os.path.isdir(ours) and os.stat(ours).st_uid == os.getuid()  # else `runtime` tells of it
    directory = ours if found["there"] else path
    found["directory"] = directory
    room = os.statvfs(directory)
    found["free"], found["size"] = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
    found["free_files"], found["files"] = room.f_favail, room.f_files
    found["noexec"] = bool(room.f_flag & getattr(os, "ST_NOEXEC", 0))
    try:
        write(directory)
    except OSError as error:
        found["error"] = error.strerror or str(error)
    return found


def write(directory):
    # type: (str) -> None
    """Write a file for a try; it has no name any more while it is written, so nothing can be left of it."""
    path = os.path.join(directory, ".albedo-doctor-%d" % os.getpid())
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        os.unlink(path)
        left = WRITTEN
        while left > 0:
            left -= os.write(file, b"\0" * min(left, _BLOCK))
        os.fsync(file)
    finally:
        os.close(file)


def look(function, kept):
    # type: (Callable[[], dict[str, Any]], list[dict[str, Any]]) -> None
    """Have one look, and keep what is seen, or why nothing is."""
    try:
        kept.append({"facts": function()})
    except Exception as error:  # noqa: BLE001 - whatever it was, it is told
        kept.append({"failed": "%s: %s" % (type(error).__name__, error)})


def look_at_all(looks, report):
    # type: (dict[str, Callable[[], dict[str, Any]]], Callable[..., None]) -> None
    """Have all looks at the same time, and report each."""
    began, under_way = time.time(), []
    for name, function in looks.items():
        kept = []  # type: list[dict[str, Any]]
        thread = threading.Thread(target=look, args=(function, kept))
        thread.daemon = True
        try:
            thread.start()
        except RuntimeError as error:  # the account has as many as it may have
            kept.append({"failed": str(error)})
            thread = threading.current_thread()
        under_way.append((name, thread, kept))
    for name, thread, kept in under_way:
        patience = PATIENCE.get(name, LOOK)
        if thread is not threading.current_thread():
            thread.join(max(0.0, began + patience - time.time()))
        report(look=name, **(kept[0] if kept else {"failed": "no answer within %g s" % patience}))


def measure(read, report):
    # type: (Callable[[int], bytes], Callable[..., None]) -> None
    """Answer, take bytes and give bytes, for as long as the client wants it."""
    import json
    import struct

    while True:
        wanted = json.loads(read(struct.unpack("!I", read(4))[0]).decode("utf-8"))
        if wanted["do"] == "give":
            block, left = memoryview(os.urandom(_BLOCK)), min(wanted["size"], 1 << 26)
            while left > 0:
                left -= os.write(1, block[: min(left, _BLOCK)])
            continue
        left = min(wanted["size"], 1 << 26)
        while left > 0:
            left -= len(read(min(left, _BLOCK)))
        report(time=time.time())


def main(request, read, report, import_ours, in_the_way):
    # type: (dict[str, Any], Callable[[int], bytes], Callable[..., None], Callable[[], None], Callable[..., str]) -> None
    """Tell all there is to say of this host, then help to measure the way to it."""
    version = "%d.%d.%d" % sys.version_info[:3]
    here = {"python": sys.executable, "version": version, "os": os.uname()[0], "arch": os.uname()[4]}
    # Said first: with too little memory nothing else may come of it.
    memory = resource.getrlimit(resource.RLIMIT_AS)[0]
    # As many files as a kernel would get: a low limit is raised at its start, as far as it may be (spawn.py).
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = soft if soft >= FEW_FILES or hard == resource.RLIM_INFINITY else hard
    report(here=here, memory=None if memory == resource.RLIM_INFINITY else memory, files=files)
    looks = {"home": home}
    if sys.version_info >= (3, 11):
        try:
            import_ours()
            from albedo_bundle import health  # type: ignore[import-not-found,unused-ignore]

            report(look="tasks", facts=health.tasks())  # by no thread: there may be none to be had
            looks.update(health.looks(request))
        except Exception as error:  # noqa: BLE001 - whatever it was, it is told
            report(look="ours", failed="%s: %s" % (type(error).__name__, error), shadow=in_the_way(error))
    look_at_all(looks, report)
    report(looked=True)
    measure(read, report)
