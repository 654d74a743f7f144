"""What a connection to this host wants: the loader hands over to here.

Requests that want no kernel's keeper are answered here; the others go to `bridge.py`.
"""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import signal
import sys
import time
from typing import Any, NoReturn

from . import ROOT, in_use, rundir, wheels
from .private import why_foreign
from .spawn import boot_id, folder_path, recorded_process
from .wire import REPORT, json_frame

_END_TIMEOUT = 12.0
"""Seconds that a keeper has to end its kernel and itself; who asks waits 20."""


def main(request: dict[str, Any]) -> None:
    """Serve one request; the dictionary is what `hosts/bootstrap.py` sent."""
    from . import bridge

    in_use.note_use(ROOT)
    if request.get("unpacked"):  # a new version: older ones may be done with
        in_use.sweep_bundles(os.path.dirname(rundir.root()), request["bundle"])
    actions = {
        "start": bridge.start,
        "attach": bridge.attach,
        "check": check,
        "list": list_kernels,
        "describe": describe,
        "end": end,
        "stage": stage,
        "survey": survey,
        "gather": gather,
        "look": look,
        "browse": browse,
        "run": run_once,
    }
    if "stay" in request:
        from . import staying

        staying.serve(request, actions)
    else:
        actions[request["do"]](request)


def run_once(request: dict[str, Any]) -> None:
    """Run code without a kernel."""
    from . import oneshot

    oneshot.run(request)


def report(**content: Any) -> None:
    """Tell the client something over the connection, before any keeper speaks."""
    data = json_frame(REPORT, content)
    while data:
        data = data[os.write(1, data) :]


def fail(error: str, **details: Any) -> NoReturn:
    """Tell the client why there will be no kernel, and end."""
    report(error=error, **details)
    sys.exit(0)


def must_have_room(for_python: bool = True) -> None:
    """Fail if the account may have too few processes and threads for one more kernel.

    Args:
        for_python: whether it is a Python kernel. What others take is not known, so it is one process.
    """
    from .spawn import KEEPER_TASKS, KERNEL_TASKS, task_room

    needed = KEEPER_TASKS + (KERNEL_TASKS if for_python else 1)
    room = task_room(needed)
    if room is not None and room[0] - room[1] < needed:
        fail("tasks", limit=room[0], now=room[1], needed=needed)


def must_be_writable() -> None:
    """Fail if no kernel's directory could be made here: our files may lie here from a time when there was room."""
    try:
        rundir.try_room()
    except OSError as error:
        fail("staging", detail=error.strerror or str(error), path=error.filename or rundir.root())


def folder(text: str) -> str:
    """Return the folder of a location as an absolute path on this host, or fail with the reason."""
    path = folder_path(text)
    must_be_usable(path)
    return path


def must_be_usable(path: str | bytes, to_read: bool = False) -> None:
    """Fail with the reason if a path is no folder that can be entered, and read if that is needed."""
    error = error_of_folder(path, to_read)
    if error is not None:
        shown = path if isinstance(path, str) else path.decode("utf-8", "backslashreplace")
        fail("folder", path=shown, detail=words_of(error), code=errno.errorcode.get(error.errno or 0))


def problem_of_folder(path: str) -> str | None:
    """Return why a kernel could not run in a folder; None when it can."""
    error = error_of_folder(path)
    return None if error is None else words_of(error)


def error_of_folder(path: str | bytes, to_read: bool = False) -> OSError | None:
    """Return why a path is no folder that can be entered, and read if that is needed; None when it is one."""
    try:
        os.listdir(path) if to_read or os.access(path, os.R_OK) else os.stat(path)
    except OSError as error:
        return error
    if not os.path.isdir(path):
        return NotADirectoryError(errno.ENOTDIR, "not a folder")
    return None if os.access(path, os.X_OK) else PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def is_without_room(error: OSError) -> bool:
    """Whether something could not be written because the disk is full, or the account's quota reached."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def words_of(error: OSError) -> str:
    """Return an error in the system's words."""
    return (error.strerror or str(error)).lower()


def must_be_here(request: dict[str, Any]) -> None:
    """Fail if the kernel that a request is about runs on another machine: one name may stand for several, which may
    share a home. What runs there cannot be seen from here, and must not be taken for dead.
    """
    here = os.uname().nodename
    path = rundir.path_of(request["kernel_id"])
    if os.path.lexists(path) and (why := why_foreign(path)) and os.path.lexists(path):  # not removed just now
        fail("staging", path=path, detail=f"it {why}; remove it")  # nothing in it may be believed
    record = rundir.read_record(path)
    node = (record or {}).get("node") or (None if os.path.lexists(path) else request.get("node"))
    if node and node != here:
        fail("elsewhere", node=node, here=here, path=path)


def missing(names: list[str], provide: bool = True) -> list[str]:
    """Return which of these packages this interpreter lacks, although those that were put here for it are added where
    it has not got all itself, unless `provide` is False. The interpreter was started without its site directories, to
    be quick; they are added here, as any Python program has them.
    """
    import site

    site.main()
    lacking = [name for name in names if importlib.util.find_spec(name) is None]
    if lacking and provide and wheels.put_on_path():
        lacking = [name for name in lacking if importlib.util.find_spec(name) is None]
    return lacking


def pip_may_install() -> bool:
    """Whether pip is there and may install into this interpreter; that of a distribution is mostly closed (PEP 668)."""
    import sysconfig

    if importlib.util.find_spec("pip") is None:
        return False
    in_environment = sys.prefix != sys.base_prefix
    return in_environment or not os.path.exists(os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED"))


def without(lacking: list[str]) -> dict[str, Any]:
    """Return what a client has to know when this interpreter lacks packages; `missing` has been called."""
    return {
        "lacking": lacking,
        "python": sys.executable,
        "pip": pip_may_install(),
        "noexec": wheels.cannot_load(),
        "facts": wheels.facts(),
    }


def stage(request: dict[str, Any]) -> None:
    """Take packages for interpreters that lack them."""
    from . import staging

    staging.stage(request)


def check(request: dict[str, Any]) -> None:
    """Answer what a kernel would meet here: folder, home, interpreter, packages."""
    must_have_room()
    must_be_writable()
    report(checked=checked(folder(request["cwd"]), request["needs"], request["provide"]))


def checked(path: str, needs: list[str], provide: bool) -> dict[str, Any]:
    """Return what a kernel with this interpreter would meet in a folder.

    Args:
        path: the folder.
        needs: packages that the interpreter must have.
        provide: whether those that were put here for it count.
    """
    lacking = missing(needs, provide)
    version = None
    if importlib.util.find_spec("ipykernel") is not None:
        from importlib import metadata

        version = metadata.version("ipykernel")
    from .logind import ENABLE_LINGER, threat_of_logout
    from .spawn import LEAST_FILES, raise_file_limit

    files = raise_file_limit()
    threat = threat_of_logout()
    from .importing import why_not_imported

    ours = [each for each in sys.path if each.startswith(wheels.DIRECTORY)]
    return {
        "folder": path,
        "home": os.path.expanduser("~"),
        "python": sys.executable,
        "python_version": ".".join(map(str, sys.version_info[:3])),
        "ipykernel_version": version,
        "pip": pip_may_install(),
        "warning": threat if threat and ENABLE_LINGER in threat else None,
        "without": without(lacking) if lacking else None,
        "broken": None if lacking or "ipykernel" not in needs else why_not_imported(ours),
        "few_files": files if files < LEAST_FILES else None,
    }


def survey(request: dict[str, Any]) -> None:
    """Answer which kernels there could be in a folder of this host."""
    path = folder(request["cwd"])
    must_have_room(not request.get("kernel"))  # also for looking: that takes threads
    must_be_writable()
    missing([])  # for the site directories
    from .survey import survey as look

    found = look(path, request.get("kernel"))  # first: for the other, packages that were put here may be added
    seen = checked(path, ["ipykernel", "zmq"], request["provide"])
    report(survey={"folder": path, "home": os.path.expanduser("~"), **found, "checked": seen})


def gather(request: dict[str, Any]) -> None:
    """Answer what a folder of this host has for an agent."""
    from .browsing import send
    from .gather import gather as look_around

    send(look_around(folder(request["cwd"])))


def look(request: dict[str, Any]) -> None:
    """Answer which folders are there."""
    from .gather import look as look_at

    report(looked=look_at(map(folder_path, request["folders"])))


def browse(request: dict[str, Any]) -> None:
    """Answer what is in a folder of this host, or what repository it is in."""
    from . import browsing

    browsing.browse(request)


def list_kernels(_: dict[str, Any]) -> None:
    """Answer which kernels of this account are on this host."""
    from .place import have_all_made_anew

    have_all_made_anew()
    report(kernels=kernels(), boot_id=boot_id(), node=os.uname().nodename)


def kernels() -> list[dict[str, Any]]:
    """Return the kernels of this account on this host: what their records say, and whether they run."""
    from . import processes

    found = []
    for kernel_id in rundir.kernel_ids():
        record = rundir.read_record(rundir.path_of(kernel_id)) or {}
        kernel = recorded_process(record)
        runs = kernel is not None and bool(processes.still_alive([kernel]))
        found.append(
            {
                "kernel_id": kernel_id,
                "keeper": rundir.keeper_lives(kernel_id),
                "runs": runs,
                "memory": processes.resident_bytes(record["pid"]) if runs else None,
                **{name: record.get(name) for name in ("pid", "folder", "started", "notebook", "boot_id", "node")},
            }
        )
    return found


def describe(request: dict[str, Any]) -> None:
    """Answer what one more client of a kernel needs: the key that its messages are signed with, and where it runs."""
    must_be_here(request)
    from .place import have_made_anew

    path = rundir.path_of(request["kernel_id"])
    try:
        if not os.path.lexists(os.path.join(path, rundir.SOCKET)):
            have_made_anew(request["kernel_id"])
    except TimeoutError as error:
        fail("stuck", detail=str(error))
    record = rundir.read_record(path)
    try:
        with open(os.path.join(path, rundir.CONNECTION)) as file:
            connection = json.load(file)
    except FileNotFoundError:
        record = None
    if record is None:
        fail("gone", boot_id=boot_id(), node=os.uname().nodename)
    described = {name: connection.get(name) for name in ("key", "signature_scheme", "kernel_name")}
    report(described={**described, "folder": record.get("folder"), "notebook": record.get("notebook")})


def end(request: dict[str, Any]) -> None:
    """End a kernel and its keeper, and answer with what is left: by the keeper's hand if it has one that works.

    With `started`, as its record has it, that kernel alone: another one that runs under its id by now is let be.
    """
    from . import processes
    from .place import have_made_anew, keeper_of

    must_be_here(request)
    kernel_id = request["kernel_id"]
    path = rundir.path_of(kernel_id)
    keeper = (rundir.read_record(path) or {}).get("keeper")
    try:
        lives = rundir.keeper_lives(kernel_id) or have_made_anew(kernel_id)
    except TimeoutError:
        lives, keeper = True, keeper_of(kernel_id)
    keeper = keeper or (rundir.read_record(path) or {}).get("keeper")
    if lives and request.get("started") and _runs_another(path, float(request["started"])):
        return report(ended={"ended": [], "survivors": [], "foreign": []})
    if lives and keeper:
        identity = int(keeper[0]), int(keeper[1])
        processes.signal_process(identity, signal.SIGTERM)
        processes.signal_process(identity, signal.SIGCONT)  # one that somebody stopped would never know
        deadline = time.monotonic() + _END_TIMEOUT
        while os.path.lexists(os.path.join(path, rundir.SOCKET)) and processes.still_alive([identity]):
            if time.monotonic() > deadline:
                # It ends nothing any more. What it owns is found without it, by the record and the marks.
                processes.signal_process(identity, signal.SIGKILL)
                break
            time.sleep(0.02)
    return report(ended=sweep_up(kernel_id))


def _runs_another(path: str, started: float) -> bool:
    """Whether the keeper that lives in a run directory has another kernel than the one started then, or is about to."""
    record = rundir.read_record(path)
    return record is None or float(record.get("started") or 0.0) != started


def sweep_up(kernel_id: str) -> dict[str, Any]:
    """End what is left of a kernel without a keeper, remove its run directory, and return the ladder's report."""
    from . import relatives
    from .ladder import Ladder

    path = rundir.path_of(kernel_id)
    try:
        place: int | None = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        place = None
    try:
        record = rundir.read_record(path) or {}
        kernel = recorded_process(record)
        roots = [*([kernel] if kernel else []), *relatives.read(path)]
        found = Ladder(roots, mark=kernel_id, term_grace=1.0).run()
        # Not the directory of a kernel that was started under its id meanwhile. (While ours is open, none gets its
        # number.)
        if place is not None and _is_at(place, path):
            rundir.remove(path)
    finally:
        if place is not None:
            os.close(place)
    return found.to_dict()


def _is_at(descriptor: int, path: str) -> bool:
    """Whether a path leads to what is open."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
