"""A real Jupyter Server in a process of its own, used as JupyterLab uses it: REST and a websocket for each kernel."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import websocket
from jupyter_core.paths import jupyter_config_dir, jupyter_config_path, jupyter_runtime_dir
from kernels import PATIENCE
from procs import wait_until

TOKEN = "a-token-for-this-test"


# `python -m jupyter_server`, of which two seconds of compiling grammars are left out.
_SERVER = """
import runpy
from albedo_provisioner.light_imports import for_notebooks
with for_notebooks():
    runpy.run_module("jupyter_server", run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True)
class Answer:
    """The answer to a REST request."""

    status: int
    content: Any


class NotebookServer:
    """One server, on a free port of loopback.

    Args:
        root: its directory of notebooks.
        options: more command-line options.
        time_to_dead: seconds between the looks of Jupyter's restarter at a kernel.
    """

    def __init__(self, root: Path, *options: str, time_to_dead: float = 0.3) -> None:
        self.root = root
        _write_config()
        self._keyboard, terminal = os.openpty()
        self._log = (root.parent / "server.log").open("w+")
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-c", _SERVER, "--allow-root", "--no-browser", "--ip=127.0.0.1", "--port=0"),
                *(f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={root}"),
                *(f"--AsyncIOLoopKernelRestarter.time_to_dead={time_to_dead}", *options),
            ],
            stdin=terminal,  # without one, SIGINT would not be Ctrl-C to it
            stdout=self._log,
            stderr=self._log,
            cwd=root,
        )
        os.close(terminal)
        about = Path(jupyter_runtime_dir()) / f"jpserver-{self._process.pid}.json"
        try:
            wait_until(
                lambda: self._running() and about.exists() and about.stat().st_size, PATIENCE, "the server is up"
            )
            self._url = json.loads(about.read_text())["url"]
            wait_until(lambda: self._reachable(), PATIENCE, "the server answers")
        except BaseException:
            self.kill()
            raise

    def _running(self) -> bool:
        assert self._process.poll() is None, self.log()
        return True

    def _reachable(self) -> bool:
        try:
            return self.ask("GET", "api/status").status == 200
        except OSError:
            return False

    def log(self) -> str:
        """Return what the server printed."""
        self._log.flush()
        return Path(self._log.name).read_text()

    def ask(self, method: str, path: str, content: object = None) -> Answer:
        """Make a REST request."""
        request = urllib.request.Request(
            urllib.parse.urljoin(self._url, path),
            None if content is None else json.dumps(content).encode(),
            {"Authorization": f"token {TOKEN}", "Content-Type": "application/json"},
            method=method,
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=PATIENCE) as reply:
                body, status = reply.read(), reply.status
        except urllib.error.HTTPError as error:
            with error:
                body, status = error.read(), error.code
        return Answer(status, json.loads(body) if body else None)

    def start(self, kernel_name: str, notebook: str = "a.ipynb") -> Answer:
        """Start a notebook's session."""
        content = {"path": notebook, "name": Path(notebook).name, "type": "notebook", "kernel": {"name": kernel_name}}
        return self.ask("POST", "api/sessions", content)

    def open(self, kernel_id: str) -> Channels:
        """Open a kernel's websocket."""
        url = f"{self._url.replace('http', 'ws', 1)}api/kernels/{kernel_id}/channels?session_id={uuid.uuid4().hex}"
        sock = websocket.create_connection(
            url, timeout=PATIENCE, header=[f"Authorization: token {TOKEN}"], http_no_proxy=["*"]
        )
        return Channels(sock)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop it: with SIGTERM as a service manager does, or with SIGINT and "y" as a person does."""
        if self._process.poll() is None:
            self._process.send_signal(number)
            try:
                if number == signal.SIGINT:
                    os.write(self._keyboard, b"y\n")
                self._process.wait(PATIENCE)
            finally:
                self.kill()
        if not self._log.closed:
            self._log.close()
            os.close(self._keyboard)

    def wait(self) -> None:
        """Wait until it has ended, and let go of what was its own."""
        self._process.wait(PATIENCE)
        self.stop()

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()


def _write_config() -> None:
    """Do without extensions such as JupyterLab, which take long to load."""
    found = {}
    for folder in jupyter_config_path():
        for path in Path(folder, "jupyter_server_config.d").glob("*.json"):
            found |= json.loads(path.read_text()).get("ServerApp", {}).get("jpserver_extensions", {})
    config = {"ServerApp": {"jpserver_extensions": dict.fromkeys(found, False)}}
    Path(jupyter_config_dir(), "jupyter_server_config.json").write_text(json.dumps(config))


@dataclass
class Channels:
    """A kernel's websocket.

    Attributes:
        sock: the websocket.
        messages: all that came, in order.
    """

    sock: websocket.WebSocket
    messages: list[dict[str, Any]] = field(default_factory=list)

    def close(self) -> None:
        """Close it."""
        self.sock.close()

    def send(self, channel: str, msg_type: str, content: dict[str, Any]) -> str:
        """Send a message and return its id."""
        msg_id = uuid.uuid4().hex
        header = {
            "msg_id": msg_id,
            "msg_type": msg_type,
            "session": "test",
            "username": "test",
            "version": "5.3",
            "date": "2024-01-01T00:00:00Z",
        }
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": channel}
        self.sock.send(json.dumps(message))
        return msg_id

    def begin(self, code: str) -> str:
        """Execute code and return the request's id."""
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
        return self.send("shell", "execute_request", content)

    def until(self, condition: Callable[[], Any], seconds: float = PATIENCE) -> Any:
        """Take messages until `condition` is true of them, and return what it says.

        Raises:
            TimeoutError: it was not in time.
        """
        deadline = time.monotonic() + seconds
        while not (answer := condition()):
            left = deadline - time.monotonic()
            self.sock.settimeout(max(left, 0.01))
            try:
                data = self.sock.recv()
            except websocket.WebSocketTimeoutException:
                kinds = [message["msg_type"] for message in self.messages]
                raise TimeoutError(f"not within {seconds:g} s; there came {kinds[-20:]}") from None
            assert data, "the websocket was closed"
            self.messages.append(json.loads(data))
        return answer

    def of(self, msg_id: str, msg_type: str) -> list[dict[str, Any]]:
        """Return the content of what came for a request."""
        return [
            message["content"]
            for message in self.messages
            if message["parent_header"].get("msg_id") == msg_id and message["msg_type"] == msg_type
        ]

    def text(self, msg_id: str, name: str = "stdout") -> str:
        """Return what a request printed so far."""
        return "".join(each["text"] for each in self.of(msg_id, "stream") if each["name"] == name)

    def finish(self, msg_id: str) -> dict[str, Any]:
        """Wait for a request's reply and idle status, and return the reply's content."""
        idle = {"execution_state": "idle"}
        self.until(lambda: self.of(msg_id, "execute_reply") and idle in self.of(msg_id, "status"))
        (reply,) = self.of(msg_id, "execute_reply")
        return reply

    def run(self, code: str) -> str:
        """Execute code that must succeed and return what it printed."""
        msg_id = self.begin(code)
        reply = self.finish(msg_id)
        assert reply["status"] == "ok", reply
        return self.text(msg_id)
