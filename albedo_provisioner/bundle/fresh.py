"""What the fresh interpreter of `oneshot.py` does: run code that comes on one descriptor, and tell the end on another.

The text of this file is the command of that interpreter, so nothing of ours is imported. What is told: a newline when
the code is about to begin, then a line of JSON when it has come to its end.
"""

from __future__ import annotations

import ast
import contextlib
import json
import linecache
import os
import sys
import traceback
import types
from typing import Any

NAME = "<code>"
"""The file that tracebacks name."""

MOST = 8 << 20
"""Characters that a value, a message or a traceback may have; beyond that it is cut in the middle."""

_AWAITS = 0x80  # inspect.CO_COROUTINE; importing inspect takes a while


class Telling:
    """The descriptor on which the code's end is told. Its children never have it: programs that it starts are not given
    it, forked children close it. Should the code close it, or have it lead elsewhere, nothing is told.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._pipe = os.fstat(descriptor)
        os.set_inheritable(descriptor, False)
        os.register_at_fork(after_in_child=self.close)

    def tell(self, line: str) -> None:
        """Write a line, if that is still possible."""
        data = f"{line}\n".encode()
        while data and self._is_ours():
            data = data[os.write(self._descriptor, data) :]

    def close(self) -> None:
        """Tell nothing any more."""
        if self._is_ours():
            os.close(self._descriptor)
        self._descriptor = -1

    def _is_ours(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._pipe)
        except OSError:
            return False


def main() -> None:
    """Run the code, and tell what came of it."""
    telling = Telling(int(sys.argv[1]))
    with os.fdopen(int(sys.argv[2]), encoding="utf-8", errors="surrogatepass") as given:
        code = given.read()
    sys.argv = [""]
    sys.path.insert(0, "")
    # In place of the module that this text is in, so that what the code defines is in `__main__`.
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    linecache.cache[NAME] = (len(code), None, code.splitlines(True), NAME)
    runner = os.getpid()
    telling.tell("")
    outcome = run(code, module.__dict__)
    if os.getpid() != runner:  # a child that was forked by the code, and has come to its end too
        with contextlib.suppress(Exception):  # the code may have closed it, or put anything in its place
            sys.stderr.writelines(outcome.get("traceback", []))
    for stream in (sys.stdout, sys.stderr):  # one that fails must not cost what the other holds
        with contextlib.suppress(Exception):
            stream.flush()
    telling.tell(json.dumps(outcome))


def run(code: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run code, and return what came of it.

    Args:
        code: the code.
        names: its namespace.

    Returns:
        `value`: the `repr` of its last expression, if that has one. `ename`, `evalue` and `traceback`: the error, if it
        raised one, as in Jupyter's messages; a `SystemExit` that means success is none.
    """
    try:
        value = evaluate(compiled(code), names)
        return {} if value is None else {"value": cut(repr(value))}
    except SystemExit as error:
        if error.code is None or error.code == 0:
            return {}
        if not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
        return {"ename": "SystemExit", "evalue": cut(str(error)), "traceback": []}
    except BaseException as error:  # noqa: BLE001 - it is told
        return described(error)


def compiled(code: str) -> list[types.CodeType]:
    """Return the statements of code, and its last expression if it ends with one."""
    tree = ast.parse(code, NAME)
    last = tree.body[-1] if tree.body else None
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    if not isinstance(last, ast.Expr):
        return [compile(tree, NAME, "exec", flags, dont_inherit=True)]
    del tree.body[-1]
    return [
        compile(tree, NAME, "exec", flags, dont_inherit=True),
        compile(ast.Expression(last.value), NAME, "eval", flags, dont_inherit=True),
    ]


def evaluate(units: list[types.CodeType], names: dict[str, Any]) -> object:
    """Run pieces of code one after the other, on an event loop if one of them awaits; return the last one's value."""
    if any(unit.co_flags & _AWAITS for unit in units):
        import asyncio

        return asyncio.run(evaluate_on_loop(units, names))
    value = None
    for unit in units:
        value = eval(unit, names)
    return value


async def evaluate_on_loop(units: list[types.CodeType], names: dict[str, Any]) -> object:
    """Do as `evaluate` on the running event loop."""
    value = None
    for unit in units:
        value = eval(unit, names)
        if unit.co_flags & _AWAITS:
            value = await value
    return value


def described(error: BaseException) -> dict[str, Any]:
    """Return an error as Jupyter's messages have it. Its class is the code's own, and may do anything."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != NAME:
        frames = frames.tb_next
    try:
        message = str(error)
    except BaseException:  # noqa: BLE001 - it is not ours
        message = "(its message cannot be had)"
    lines = traceback.format_exception(type(error), error, frames)
    return {"ename": type(error).__name__, "evalue": cut(message), "traceback": [cut("".join(lines))]}


def cut(text: str) -> str:
    """Return a text that is no longer than `MOST` characters, and a word about it where it was."""
    return text if len(text) <= MOST else f"{text[: MOST // 2]} [… cut …] {text[-MOST // 2 :]}"


if __name__ == "__main__":
    main()
