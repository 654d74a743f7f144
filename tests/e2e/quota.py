"""A home whose quota is reached, where no file system with quotas can be mounted.

sshd runs this file as an account's forced command, with any Python. From then on the kernel of the system refuses the
account's processes to make files and directories, in the words of a quota that is reached, and the account's shell runs
what was asked for. (A filter of system calls knows no paths, so that is so everywhere, and not in the home alone; what
is there can still be written. A shell's `>/dev/null` has to work, and is told from the files that programs make: these
are opened so that other programs do not inherit them.)
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from pathlib import Path

_CALLS = {
    # openat and open, and in which argument their flags are; mkdirat, symlinkat, mkdir, symlink
    "x86_64": (0xC000003E, ((257, 2), (2, 1)), (258, 266, 83, 88)),
    "aarch64": (0xC00000B7, ((56, 2),), (34, 36)),
}

_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2
_LOAD, _AND, _EQUALS, _RETURN = 0x20, 0x54, 0x15, 0x06  # 32-bit words, of classic BPF
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_MAKING = os.O_CREAT | os.O_CLOEXEC


def forced_command(python: Path, folder: Path) -> str:
    """Return what has sshd do so, for its option ForceCommand.

    Args:
        python: an interpreter that the account may run.
        folder: a directory that the account may read; this file is copied there.
    """
    copy = folder / Path(__file__).name
    copy.write_text(Path(__file__).read_text(encoding="utf-8"), encoding="utf-8")
    copy.chmod(0o644)
    return f"{python} -S {copy}"


def _filter() -> bytes:
    architecture, opening, making = _CALLS[platform.machine()]
    refuse = _FAIL | errno.EDQUOT
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUALS, 1, 0, architecture),
        (_RETURN, 0, 0, _ALLOW),
        (_LOAD, 0, 0, _NUMBER),
    ]
    for number in making:
        program += [(_EQUALS, 0, 1, number), (_RETURN, 0, 0, refuse)]
    for number, argument in opening:
        program += [
            (_EQUALS, 0, 5, number),
            (_LOAD, 0, 0, _ARGUMENTS + 8 * argument),
            (_AND, 0, 0, _MAKING),
            (_EQUALS, 0, 1, _MAKING),
            (_RETURN, 0, 0, refuse),
            (_RETURN, 0, 0, _ALLOW),
        ]
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *line) for line in program)


def _install() -> None:
    text = _filter()
    lines = ctypes.create_string_buffer(text, len(text))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(text) // 8, ctypes.addressof(lines)))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    address = ctypes.c_ulong(ctypes.addressof(program))
    for arguments in ((_NO_NEW_PRIVILEGES, 1, 0, 0, 0), (_SECCOMP, _FILTER, address, 0, 0)):
        if prctl(*arguments):
            raise OSError(ctypes.get_errno(), "no filter of system calls can be set")


if __name__ == "__main__":
    _install()
    shell = os.environ["SHELL"]
    os.execv(shell, [shell, "-c", os.environ["SSH_ORIGINAL_COMMAND"]])
