"""The first of our code to run on a host; its text is sent there ahead of everything else.

It takes a request from standard input, sees to it that the bundle is there (receiving it when it is not), and hands
over to it. The text is sent with every connection, so it is short; and it must be understood by any Python there is,
because telling that a Python is too old is one of its tasks: no f-strings, no annotations, nothing new. The text of
`private.py` and of `mending.py` comes before it.
"""

import json
import os
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .mending import mend_below
    from .private import is_trusted, secure
    from .shadows import in_the_way


def read(size):
    # type: (int) -> bytes
    """Take exactly so many bytes; nothing that comes after them is touched."""
    pieces = []
    while size:
        piece = os.read(0, min(size, 1 << 20))
        if not piece:
            sys.exit(0)  # the client went away
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def report(**content):
    # type: (object) -> None
    """Tell the client something: a REPORT frame of the link's protocol (wire.py)."""
    data = json.dumps(content).encode("utf-8")
    data = struct.pack("!IB", len(data), 6) + data
    while data:
        data = data[os.write(1, data) :]


def unpack(archive, target):
    # type: (bytes, str) -> None
    """Put the archive's files at target, which appears complete or not at all."""
    import io
    import shutil
    import tarfile

    fresh = "%s.%d.%s" % (target, os.getpid(), os.urandom(4).hex())
    try:
        os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
        os.mkdir(fresh, 0o700)
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            for member in files:
                path = os.path.join(fresh, member.name)
                os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
                with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                    content = files.extractfile(member)
                    file.write(content.read() if content else b"")
                    file.flush()
                    os.fsync(file.fileno())
        try:
            os.rename(fresh, target)
        except OSError:
            if not os.path.isdir(target):  # else another client was first, with the same files
                raise
            shutil.rmtree(fresh, True)
    except (OSError, EOFError, tarfile.TarError) as error:
        shutil.rmtree(fresh, True)
        refuse(error, target)


def refuse(error, path):
    # type: (Exception, str) -> None
    """Tell why our files cannot be put, or used, at a path, and end."""
    detail = getattr(error, "strerror", None) or str(error)
    report(error="staging", detail=detail, path=getattr(error, "filename", None) or path)
    sys.exit(0)


def probe():
    # type: () -> None
    """Tell what this host is; nothing is put on it for that, and an old Python will do."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:
        import multiprocessing

        cores = multiprocessing.cpu_count()
    report(
        probed={
            "os": os.uname()[0],
            "arch": os.uname()[4],
            "home": os.path.expanduser("~"),
            "cores": cores,
            "python": sys.executable,
            "python_version": "%d.%d.%d" % sys.version_info[:3],
        }
    )
    sys.exit(0)


def forget_watcher():
    # type: () -> None
    """Take note of the end of the process that watched our login shell and was told to end (hosts/login_shell.py)."""
    watcher = os.environ.pop("ALBEDO_WATCH", None)
    if watcher:
        try:
            os.waitpid(int(watcher), os.WNOHANG)
        except (OSError, ValueError):
            pass  # the shells have done so, or were put in the place of its parent


def main():
    # type: () -> None
    """Serve one request."""
    forget_watcher()
    mask = os.umask(0o077)
    os.umask(mask & 0o077)  # with another one the account itself could not read what is written
    request = json.loads(read(struct.unpack("!I", read(4))[0]).decode("utf-8"))
    os.write(1, request["marker"].encode("ascii"))
    if request["do"] == "probe":
        probe()
    root = os.path.join(os.path.expanduser("~"), ".albedo-remote")
    if sys.version_info >= (3, 11):
        mend_below(root)
    if "code" in request:
        # What brings its code with it puts nothing here either: examine.py, which tells of an old Python, too, or what
        # is to run where nothing can be put (unstaged.py).
        given = {"request": request, "read": read, "report": report, "is_trusted": is_trusted, "in_the_way": in_the_way}
        exec(request["code"], given)
        sys.exit(0)
    if sys.version_info < (3, 11):
        report(error="python", python=sys.executable, version="%d.%d.%d" % sys.version_info[:3])
        sys.exit(0)
    home = os.path.expanduser("~")
    if not os.path.isdir(home):
        report(error="home", path=home)
        sys.exit(0)
    bundle = os.path.join(root, request["bundle"])
    try:
        secure(root, request["bundle"])
    except OSError as error:
        refuse(error, root)
    if not os.path.isdir(bundle):
        report(need="bundle")
        unpack(read(struct.unpack("!I", read(4))[0]), bundle)
        request["unpacked"] = True
    sys.dont_write_bytecode = False  # compiled once, not at every start
    sys.path.insert(0, bundle)
    from albedo_bundle import entry  # type: ignore[import-not-found,unused-ignore]

    entry.main(request)


main()
