"""What hosts cost: the first visit to one on which nothing is installed, 50 kernels on one, 20 asked at once.

    python -m tests.benchmarks.any_host [bare] [many] [probe] [--quick]

An sshd of its own on loopback, as the other benchmarks have it (`hosts.py`); TMPDIR says on which disk its home lies.
Each round has a client process of its own. `bare` has pip fetch the wheels of ipykernel once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import processes
from .hosts import OURS, Host, Hosts, environment

DEADLINE = 300.0
"""Seconds that one client process may take."""

KERNELS = 50
HOSTS = 20

Samples = dict[str, float]


def main() -> int:
    """Measure what is wanted, and print a table of each."""
    if sys.argv[1:2] == ["--worker"]:
        print(json.dumps(WORKERS[sys.argv[2]](sys.argv[3:])), flush=True)
        return 0
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.any_host", description=__doc__)
    parser.add_argument("measures", nargs="*", metavar="MEASURE", help=f"of {', '.join(MEASURES)}; all by default")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    options = parser.parse_args()
    unknown = set(options.measures) - set(MEASURES)
    if unknown:
        parser.error(f"there is no measure {', '.join(sorted(unknown))}")
    print(environment())
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was made is removed then, too
    place = Hosts([OURS])
    try:
        for name in options.measures or MEASURES:
            print(f"\n{name}:", flush=True)
            MEASURES[name](place, options.quick)
    finally:
        for word in place.close():
            print(f"left behind, and ended: {word}")
    return 0


def ask(host: Host, worker: str, *arguments: str) -> Any:
    """Have a client process of its own do something, and return what it says."""
    command = [sys.executable, "-m", __spec__.name, "--worker", worker, *arguments]
    done = subprocess.run(command, env=host.environ, capture_output=True, text=True, timeout=DEADLINE, check=False)
    if done.returncode:
        raise RuntimeError(f"{worker}: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(done.stdout.splitlines()[-1])


def show(rounds: Sequence[Samples], unit: str = "s") -> None:
    """Print the median and the best of each sample."""
    for name in rounds[0]:
        values = [each[name] for each in rounds]
        print(f"  {name:<46} {statistics.median(values):8.2f} {unit}  (best {min(values):.2f})")


# -- a first visit to a host where nothing is installed ---------------------------------------------------------------


def bare(place: Hosts, quick: bool) -> None:
    """Measure first visits, step by step, and the starts after them."""
    (host,) = place.hosts
    assert host.sshd is not None
    interpreters = {"nothing installed": _bare_python(place), "its own ipykernel": sys.executable}
    for name, python in interpreters.items():
        arguments = ("start", str(host.alias), python, str(host.sshd.pid), f"{host.mark}host")
        rounds: list[Samples] = []
        again: list[Samples] = []
        if python != sys.executable:
            print(f"  fetching, once: {ask(host, *arguments)['fetching']:.2f} s")
        for _ in range(2 if quick else 5):
            host.forget_visits()
            rounds.append(ask(host, *arguments))
            again.append(ask(host, *arguments))
        print(f"  first visit, {name}:")
        show(rounds)
        print(f"  second start, {name}:")
        show([{name: each[name] for name in ("all", _PROCESSOR)} for each in again])


def _bare_python(place: Hosts) -> str:
    root = place.root / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(root)], check=True)
    return str(root / "bin" / "python3")


class _Steps(logging.Handler):
    """Notes when each step began, by the lines that JupyterLab's log shows."""

    WORDS = (
        ("fetching", "fetching ipykernel"),
        ("sending, and unpacking meanwhile", "staging, 0.0 of"),
        ("writing out", " MB of packages are there"),
        ("asking again", "packages for Python"),
        ("starting", ": starting"),
        ("until ready", ": attached"),
    )

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[tuple[str, float]] = [("connecting and asking", time.monotonic())]

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        for name, words in self.WORDS:
            if words in text:
                if name == "writing out" and text.split("staging, ")[1].split()[0] != text.split(" of ")[1].split()[0]:
                    continue  # a part of it is there
                if name not in (step for step, _ in self.begun):
                    self.begun.append((name, time.monotonic()))
                return

    def samples(self, ended: float) -> Samples:
        times = [*(at for _, at in self.begun), ended]
        steps = {name: times[number + 1] - at for number, (name, at) in enumerate(self.begun)}
        return {**steps, "all": ended - times[0]}


_PROCESSOR = "processor time, both sides"


def _start(arguments: Sequence[str]) -> Samples:
    """Start a kernel and return the seconds that each step took."""
    from jupyter_client.manager import KernelManager

    alias, python, sshd, mark = arguments
    used = -_processor_time(int(sshd), mark)
    _write_kernelspec("bare", alias, {"python": python})
    steps = _Steps()
    for name in ("traitlets", "albedo_provisioner"):
        logging.getLogger(name).addHandler(steps)
        logging.getLogger(name).setLevel(logging.INFO)
    manager = KernelManager(kernel_name="bare")
    manager.log = logging.getLogger("traitlets")
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=120)
    ended = time.monotonic()
    used += _processor_time(int(sshd), mark)
    client.stop_channels()
    manager.shutdown_kernel()
    return {**steps.samples(ended), _PROCESSOR: used}


def _processor_time(sshd: int, mark: str) -> float:
    """Return the seconds used so far by this process, the ssh server's, and what runs on the host, ended or not."""
    own = os.times()
    seconds = own.user + own.system + own.children_user + own.children_system
    server = processes.psutil.Process(sshd)
    ended = server.cpu_times()
    seconds += ended.children_user + ended.children_system
    there = {process.pid: process for process in (*server.children(recursive=True), *processes.marked(mark))}
    for process in there.values():
        times = process.cpu_times()
        seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


def _write_kernelspec(name: str, alias: str, config: dict[str, Any], **more: Any) -> None:
    directory = Path(os.environ["JUPYTER_DATA_DIR"]) / "kernels" / name
    directory.mkdir(parents=True, exist_ok=True)
    provisioner = {"provisioner_name": "albedo-provisioner", "config": {"location": f"{alias}:~", **config}}
    spec = {"argv": [], "display_name": name, "language": "python", "metadata": {"kernel_provisioner": provisioner}}
    (directory / "kernel.json").write_text(json.dumps({**spec, **more}))


# -- many kernels on one host ----------------------------------------------------------------------------------------

_SMALL_KERNEL = """
import json, sys, zmq
from jupyter_client.session import Session
info = json.load(open(sys.argv[1]))
session, context = Session(key=info["key"].encode()), zmq.Context()
def bind(kind, channel):
    socket = context.socket(kind)
    socket.bind(f"{info['transport']}://{info['ip']}-{info[channel + '_port']}")
    return socket
shell, iopub, control = bind(zmq.ROUTER, "shell"), bind(zmq.PUB, "iopub"), bind(zmq.ROUTER, "control")
stdin, heartbeat = bind(zmq.ROUTER, "stdin"), bind(zmq.REP, "hb")
poller = zmq.Poller()
for socket in (shell, control, heartbeat):
    poller.register(socket, zmq.POLLIN)
while True:
    for socket, _ in poller.poll():
        if socket is heartbeat:
            heartbeat.send(heartbeat.recv())
            continue
        idents, message = session.recv(socket, mode=0)
        kind = message["header"]["msg_type"]
        def say(state):
            session.send(iopub, "status", {"execution_state": state}, parent=message, ident=b"status")
        say("busy")
        content = {"status": "ok", "restart": False, "execution_count": 1, "user_expressions": {}, "payload": []}
        if kind == "kernel_info_request":
            content |= {"protocol_version": "5.3", "implementation": "small", "implementation_version": "1"}
            content |= {"banner": "", "language_info": {"name": "small", "version": "1", "mimetype": "text/x"}}
        if kind == "execute_request":
            stream = {"name": "stdout", "text": message["content"]["code"]}
            session.send(iopub, "stream", stream, parent=message, ident=b"stream")
        session.send(socket, kind.replace("request", "reply"), content, parent=message, ident=idents)
        say("idle")
        if kind == "shutdown_request":
            sys.exit(0)
"""
"""A kernel that answers with the code that it is given, and takes a fraction of ipykernel's memory."""


def many(place: Hosts, quick: bool) -> None:
    """Measure many kernels on one host."""
    (host,) = place.hosts
    assert host.sshd is not None
    script = place.root / "small_kernel.py"
    script.write_text(_SMALL_KERNEL)
    directory = host.home / ".local" / "share" / "jupyter" / "kernels" / "small"
    host.forget_visits()
    directory.mkdir(parents=True)
    spec = {"argv": [sys.executable, str(script), "{connection_file}"], "display_name": "small", "language": "x"}
    (directory / "kernel.json").write_text(json.dumps(spec))
    arguments = [str(host.alias), str(KERNELS), str(host.sshd.pid), f"{host.mark}host"]
    for name, value in ask(host, "many", *arguments).items():
        print(f"  {name:<46} {value:8.2f}")


def _many(arguments: Sequence[str]) -> Samples:
    return asyncio.run(_use_many(arguments[0], int(arguments[1]), int(arguments[2]), arguments[3]))


async def _use_many(alias: str, count: int, sshd: int, mark: str) -> Samples:
    from jupyter_client.manager import AsyncKernelManager

    _write_kernelspec("small", alias, {"python": sys.executable, "kernel": "small"})
    before = processes.memory(processes.psutil.Process())[0]
    managers = [AsyncKernelManager(kernel_name="small") for _ in range(count)]

    async def start(manager: AsyncKernelManager) -> Any:
        await manager.start_kernel()
        client = manager.client()
        client.start_channels()
        await client.wait_for_ready(timeout=DEADLINE / 2)
        return client

    began = time.monotonic()
    clients = await asyncio.gather(*(start(manager) for manager in managers))
    started = time.monotonic()

    async def answer(number: int) -> None:
        said = []
        reply = await clients[number].execute_interactive(
            f"{number}", timeout=DEADLINE / 2, output_hook=lambda message: said.append(message["content"].get("text"))
        )
        assert reply["content"]["status"] == "ok", reply
        assert f"{number}" in said, said

    await asyncio.gather(*(answer(number) for number in range(count)))
    answered = time.monotonic()
    helpers = processes.helpers(mark)
    keepers = [process for process in helpers if process.name() == "albedo-keeper"]
    samples = {
        "kernels": float(count),
        "s until all are ready": started - began,
        "s until all have answered a cell": answered - started,
        "connections": float(len(processes.sessions(sshd))),
        "MiB beside each kernel on the host (keeper, PSS)": sum(processes.memory(each)[1] for each in keepers)
        / max(1, len(keepers))
        / 2**20,
        "keepers": float(len(keepers)),
        "MiB here for each kernel": (processes.memory(processes.psutil.Process())[0] - before) / count / 2**20,
    }
    for client in clients:
        client.stop_channels()
    began = time.monotonic()
    await asyncio.gather(*(manager.shutdown_kernel(now=True) for manager in managers))
    samples["s until all have ended"] = time.monotonic() - began
    return samples


# -- many hosts asked at once -----------------------------------------------------------------------------------------


def probe(place: Hosts, quick: bool) -> None:
    """Measure how long it takes to ask many hosts at once, beside one alone."""
    (host,) = place.hosts
    names = [f"probed{number}" for number in range(HOSTS)]
    config = Path(host.environ["ALBEDO_SSH_CONFIG"])
    aliased = config.read_text().replace(f"Host {host.alias}\n", f"Host {host.alias} {' '.join(names)}\n")
    config.write_text(aliased)
    rounds: list[Samples] = []
    for _ in range(2 if quick else 5):
        one = ask(host, "probe", names[0])
        rounds.append({"one host alone": one, f"{HOSTS} hosts at once": ask(host, "probe", *names)})
    show(rounds)


def _probe(arguments: Sequence[str]) -> float:
    from albedo_provisioner import Hosts as Ours

    began = time.monotonic()
    states = Ours().probe_all(arguments)
    took = time.monotonic() - began
    assert all(state.state == "ready" for state in states.values()), states
    return took


MEASURES: dict[str, Callable[[Hosts, bool], None]] = {"bare": bare, "many": many, "probe": probe}
WORKERS: dict[str, Callable[[Sequence[str]], Any]] = {"start": _start, "many": _many, "probe": _probe}


if __name__ == "__main__":
    sys.exit(main())
