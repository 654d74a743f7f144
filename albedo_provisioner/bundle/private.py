"""What of ours lies on a host must be the account's own and closed to all others before anything in it is run.

Whoever could write into our directory could have put code of theirs there. A directory that is open is closed; what
others could have changed in it is not trusted but set aside, and put there afresh. What cannot be mended is told.

The text goes to the host ahead of `loader.py`, so any Python has to understand it, as that one.
"""

import os
import stat

_OTHERS = 0o077
_UNDER_REPAIR = stat.S_ISVTX  # of our directory: what is in it has not been looked through to the end
_DIGITS = frozenset("0123456789abcdef")


def why_foreign(path, link=False):
    # type: (str, bool) -> str
    """Return why a path is no directory of the account's own, in words that follow "it"; empty when it is one.

    Args:
        path: a path at which there is something.
        link: whether it may be a symbolic link to such a directory.
    """
    leads = ""
    if os.path.islink(path):
        leads = "is a link to %s, which " % os.readlink(path)
        if not link:
            return "is a symbolic link"
    try:
        status = os.stat(path)
    except OSError as error:
        cause = (error.strerror or str(error)).lower()
        return leads + ("is not there" if not os.path.exists(path) and error.errno == 2 else "cannot be used: " + cause)
    if not stat.S_ISDIR(status.st_mode):
        return leads + "is no directory"
    if status.st_uid != os.geteuid():
        return leads + "belongs to another account (uid %d)" % status.st_uid
    return ""


def is_trusted(path, link=False):
    # type: (str, bool) -> bool
    """Whether a path is a directory of the account's own into which nobody else can have put anything."""
    try:
        return not why_foreign(path, link) and not is_loose(os.stat(path).st_mode)
    except OSError:
        return False


def is_loose(mode):
    # type: (int) -> bool
    """Whether others can have changed what is in a directory of this mode."""
    return bool(mode & (0o022 | _UNDER_REPAIR))


def is_of_ours(name):
    # type: (str) -> bool
    """Whether we put what has this name into our directory."""
    name = name.partition(".")[0]
    return name in ("wheels", "run") or (len(name) == 16 and _DIGITS.issuperset(name))


def secure(root, bundle):
    # type: (str, str) -> None
    """See to it that nothing is in our directory that others could have put there.

    Args:
        root: our directory, which need not exist; it may be a link to a directory of the account's own.
        bundle: the name of the directory in it whose code is wanted.

    Raises:
        OSError: it is not the account's own, or cannot be closed; the text (`strerror`) says what to do.
    """
    if not os.path.lexists(root):
        return
    why = why_foreign(root, True)
    if why:
        raise OSError(None, "it %s; remove it, or have it be a directory of the account's own" % why, root)
    mode = os.stat(root).st_mode
    loose = is_loose(mode)
    if mode & _OTHERS:
        if os.path.islink(root) and not all(map(is_of_ours, os.listdir(root))):
            other = "it is open to other accounts, and closing it would close other things as well, for it is a link"
            raise OSError(None, "%s to %s; give it a directory of its own" % (other, os.readlink(root)), root)
        _close(root, 0o700 | (_UNDER_REPAIR if loose else 0))
    for name in os.listdir(root) if loose else (bundle, "wheels", "run"):
        path = os.path.join(root, name)
        if is_of_ours(name) and os.path.lexists(path):
            _secure_part(path, loose)
    if loose:
        os.chmod(root, 0o700)


def _secure_part(path, loose):
    # type: (str, bool) -> None
    """Close a directory in ours, and take it away if others could change it."""
    if not why_foreign(path):
        mode = os.stat(path).st_mode
        if mode & _OTHERS:
            _close(path, 0o700)
        # Running kernels are not ended for it: what is in `run` is looked at one by one (rundir.py).
        if os.path.basename(path) == "run" or not (loose or is_loose(mode)):
            return
    set_aside(path)


def _close(path, mode):
    # type: (str, int) -> None
    os.chmod(path, mode)
    if os.stat(path).st_mode & _OTHERS:
        raise OSError(None, "it is open to other accounts, and its file system does not let it be closed", path)


def set_aside(path):
    # type: (str) -> None
    """Take away what is not trusted; what is not ours to remove stays, under a name that nothing is run from."""
    import errno
    import shutil

    os.write(2, ("albedo: others could change %s, so it is put there afresh\n" % path).encode("utf-8", "replace"))
    gone = "%s.%d.%s" % (path, os.getpid(), os.urandom(4).hex())
    try:
        os.rename(path, gone)
    except OSError as error:
        if error.errno == errno.ENOENT:  # another client has done so
            return
        raise
    if os.path.islink(gone) or not os.path.isdir(gone):
        os.unlink(gone)
    else:
        shutil.rmtree(gone, True)
