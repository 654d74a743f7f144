"""Two accounts on one host cannot touch each other's kernels."""

from __future__ import annotations

import json

from faces import Real
from kernels import started

INTRUDER = """
import errno, os, pathlib, signal, socket, sys
home, run, pid, base = sys.argv[1:]
found = []
def attempt(what, action):
    try:
        action()
    except PermissionError:
        found.append(f"{what}: refused")
    except OSError as error:
        found.append(f"{what}: {errno.errorcode.get(error.errno)}")
    else:
        found.append(f"{what}: done")
def connect(path):
    with socket.socket(socket.AF_UNIX) as each:
        each.connect(path)
attempt("list", lambda: os.listdir(f"{home}/.albedo-remote"))
attempt("list the run directory", lambda: os.listdir(run))
attempt("read the key", lambda: open(f"{run}/connection.json").read())
attempt("write", lambda: open(f"{run}/new", "w"))
attempt("connect to the keeper", lambda: connect(os.path.relpath(f"{run}/keeper")))
attempt("connect to the kernel", lambda: connect(f"{base}-1"))
attempt("signal", lambda: os.kill(int(pid), signal.SIGTERM))
attempt("read the environment", lambda: open(f"/proc/{pid}/environ").read())
print("\\n".join(found))
"""


async def test_another_account_can_touch_nothing_of_a_kernel(sshd_host: Real, other_sshd_host: Real) -> None:
    async with started(sshd_host.location()) as kernel, started(other_sshd_host.location()) as other:
        pid = kernel.status["pid"]
        file = json.loads(await kernel.json("open(ipykernel.connect.get_connection_file()).read()", "import ipykernel"))
        (run,) = (sshd_host.home / ".albedo-remote" / "run").iterdir()
        script = other_sshd_host.write("intruder.py", INTRUDER)
        argv = [str(other_sshd_host.python), str(script), str(sshd_host.home), str(run), str(pid), file["ip"]]
        said = other_sshd_host.run(argv)
        assert said.stderr == ""
        assert [line for line in said.stdout.splitlines() if not line.endswith(": refused")] == []
        assert len(said.stdout.splitlines()) == 8
        assert await kernel.value("1 + 1") == "2"
        assert await other.value("1 + 1") == "2"
