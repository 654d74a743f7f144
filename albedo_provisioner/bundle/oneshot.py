"""Running code once, without a kernel: in a fresh interpreter, its output sent as it comes, all of it ended at the end.

For a host on which no kernel can be started. The code sees what it would see in a kernel, `__main__` and the value of
its last expression included, but what needs IPython.
"""

from __future__ import annotations

import codecs
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from typing import Any

from .entry import folder, report
from .ladder import Ladder
from .spawn import MARK, environment

INTERRUPT_GRACE = 5.0
"""Seconds that code which has been interrupted has to come to its end."""

_ALIVE = 5.0
"""Seconds after which the client is told that there is nothing to tell."""

_READ = 65536

_RUNNER = """
import ast, json, os, sys, traceback
with os.fdopen(int(sys.argv[1]), "w") as told, os.fdopen(int(sys.argv[2])) as given:
    code = given.read()
    sys.argv = [""]
    sys.path.insert(0, "")
    names = {"__name__": "__main__", "__builtins__": __builtins__}
    outcome = {}
    try:
        tree = ast.parse(code, "<code>")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<code>", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<code>", "eval"), names)
            if value is not None:
                outcome["value"] = repr(value)
    except SystemExit as error:
        outcome["exit"] = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:
        lines = traceback.format_exception(type(error), error, error.__traceback__.tb_next)
        outcome.update(ename=type(error).__name__, evalue=str(error), traceback=lines)
    sys.stdout.flush()
    sys.stderr.flush()
    json.dump(outcome, told)
"""


def run(request: dict[str, Any]) -> None:
    """Run `code` in the folder `cwd` for at most `timeout` seconds; report its output, and at last what came of it.

    When the client goes away the code is ended.
    """
    path = folder(request["cwd"])
    mark = f"once-{os.urandom(8).hex()}"
    env = environment(request.get("env", {}), dict(os.environ))
    env.update({MARK: mark, "PWD": path, "PYTHONUNBUFFERED": "1"})
    told, telling = os.pipe()
    giving, given = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", _RUNNER, str(telling), str(giving)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=path,
        env=env,
        pass_fds=(telling, giving),
        start_new_session=True,
    )
    os.close(telling)
    os.close(giving)
    try:
        # Longer than a pipe, the code is read while it is written: the runner reads it before anything else.
        with os.fdopen(given, "w", encoding="utf-8", errors="surrogatepass") as code:
            code.write(request["code"])
    except BrokenPipeError:
        pass  # the interpreter ended at once; what it said is told below
    timeout = request.get("timeout")
    timed_out = _pass_on(process, None if timeout is None else time.monotonic() + float(timeout))
    with os.fdopen(told) as pipe:
        said = pipe.read()
    outcome = json.loads(said) if said else {}
    found = Ladder([], mark=mark, term_grace=0.5).run()
    report(done={**outcome, "code": process.wait(), "timed_out": timed_out, "survivors": found.to_dict()["survivors"]})


def _pass_on(process: subprocess.Popen[bytes], deadline: float | None) -> bool:
    """Report the process's output until it has ended; end it when its time is over, and say whether that was so."""
    assert process.stdout is not None
    assert process.stderr is not None
    texts = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
    timed_out, killed_at = False, None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, "stdout")
        selector.register(process.stderr, selectors.EVENT_READ, "stderr")
        selector.register(0, selectors.EVENT_READ, None)
        # What it has left behind may hold its output open: once it has ended, only what is there already is read.
        while process.poll() is None or len(selector.get_map()) > 1:
            now = time.monotonic()
            if killed_at is not None and now >= killed_at:
                _signal(process, signal.SIGKILL)
                killed_at = None
            if deadline is not None and now >= deadline and not timed_out:
                timed_out, killed_at = True, now + INTERRUPT_GRACE
                _signal(process, signal.SIGINT)
            ended = process.poll() is not None
            ready = selector.select(0 if ended else _pause(now, deadline if not timed_out else killed_at))
            for key, _ in ready:
                data = os.read(key.fd, _READ)
                if data and key.data is not None:
                    report(output={"name": key.data, "text": texts[key.data].decode(data)})
                elif key.data is not None:
                    selector.unregister(key.fileobj)
                elif not data:  # the client has gone
                    _signal(process, signal.SIGKILL)
                    selector.unregister(0)
            if ended and not ready:
                break
            if not ready:
                report(alive=True)
    return timed_out


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    if process.poll() is None:  # not waited for yet, so the group is still its own
        os.killpg(process.pid, number)


def _pause(now: float, due: float | None) -> float:
    return _ALIVE if due is None else max(0.0, min(_ALIVE, due - now))
