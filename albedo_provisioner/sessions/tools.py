"""Tools: functions of this program that cells of a session may call, each cell those that it was given.

A cell sees `tools.name(...)` (`bundle/toolbox.py`), made from descriptions: names, signatures and docstrings. A call
comes over the link (`kernels/calls.py`) with the id of the cell in whose name it is made, and is done here if that cell
has leave to: a `Grant` lasts exactly as long as its cell runs. So what a cell leaves behind, a thread or a task, can do
nothing any more, also while a later cell runs.

A call is done once. One whose answer was lost with the process that did it is refused in words, and not done again.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import keyword
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from ..bundle import values
from ..bundle.wire import Buffer
from ..errors import AlbedoError, ConfigError, in_words
from ..kernels.calls import Call
from .checks import check_text

log = logging.getLogger("albedo_provisioner.sessions")

Tool = Callable[..., Any]
"""A function, or a coroutine function."""

MAX_TOOL_CALLS = 50

_DEEPEST_GROUP, _LARGEST_GROUP = 3, 20
"""Groups of errors that are passed with what is in them: within each other, and of how many errors."""

_MOST_TEXT = 20_000
"""Characters of a docstring, or of an error's message, that a kernel is told."""

_MOST_DEFAULT = 200
_MOST_ENDED = 1000

_ENDED = "the cell that this was called for has ended, and its tools went with it"
_GONE = "the program that offered this tool has ended; whether the tool was done is not known, and it is not done again"

_within: ContextVar[Grant | None] = ContextVar("albedo_tool_call", default=None)
"""The grant in whose name a tool runs, for what it calls in turn."""


class Grant:
    """A cell's leave to call tools.

    Args:
        functions: those that it may call.
        most: how many calls it may make.
        loop: the loop that coroutine functions run on; None to give each call one of its own.

    Attributes:
        made: how many calls it has made.
        ended: whether the cell is over.
    """

    def __init__(self, functions: Mapping[str, Tool], most: int, loop: asyncio.AbstractEventLoop | None) -> None:
        self.made = 0
        self.ended = False
        self._functions = functions
        self._most = most
        self._loop = loop
        self._under_way: set[asyncio.Task[dict[str, Any]]] = set()

    def end(self) -> None:
        """The cell is over: take back what is under way, and let nothing more be called."""
        self.ended = True
        for work in self._under_way:
            work.cancel()

    async def do(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Call a tool and return what came of it: its `value`, or the error that it `raised`.

        Raises:
            AlbedoError: it may not be called, or has been taken back.
        """
        function = self._functions.get(name)
        if function is None:
            offered = f"it was given {', '.join(sorted(self._functions))}" if self._functions else "it was given none"
            raise AlbedoError(f"this cell was not given that tool; {offered}")
        if self.made >= self._most:
            raise AlbedoError(f"this cell has made the {self._most} calls of tools that it may make")
        self.made += 1
        work = asyncio.get_running_loop().create_task(_run(function, args, kwargs, self._loop, self))
        self._under_way.add(work)
        try:
            return await work
        except asyncio.CancelledError:
            if self.ended:
                raise AlbedoError(_ENDED) from None
            raise
        finally:
            self._under_way.discard(work)


class SessionTools:
    """The tools of a session.

    Args:
        functions: by their names; None when the program that offered them is gone.

    Raises:
        ConfigError: a name is no identifier, or there is no function.
    """

    def __init__(self, functions: Mapping[str, Tool] | None) -> None:
        if functions is not None and not isinstance(functions, Mapping):
            raise ConfigError(
                f"tools is of type {type(functions).__name__}, and has to be a mapping of names to functions."
            )
        for name, function in (functions or {}).items():
            if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name) or name[0] == "_":
                raise ConfigError(
                    f"A tool is named {name!r}; it has to be a Python identifier that does not begin with '_'."
                )
            if not callable(function):
                raise ConfigError(f"The tool {name!r} is a {type(function).__name__}, and has to be a function.")
        self.functions = dict(functions or {})
        self.descriptions = [describe(name, function) for name, function in sorted(self.functions.items())]
        self._grants: dict[str, Grant] = {}
        self._ended: dict[str, None] = {}  # the newest cells that are over, oldest first

    def replace(self, other: SessionTools) -> None:
        """Have the functions of another one from the next cell on; cells that run keep what they were given."""
        self.functions, self.descriptions = other.functions, other.descriptions

    @property
    def names(self) -> tuple[str, ...]:
        """Their names, in order."""
        return tuple(sorted(self.functions))

    def check(self, names: Iterable[str] | None) -> tuple[str, ...] | None:
        """See that all these are tools of the session, and return them; None stands for all.

        Raises:
            ConfigError: one is not.
        """
        if names is None:
            return None
        if isinstance(names, str) or not isinstance(names, Iterable):
            raise ConfigError(f"tools is {names!r:.100}, and has to be a list of names.")
        wanted = tuple(names)  # it may be an iterator
        for name in wanted:
            check_text("A name in tools", name)
        if unknown := sorted(set(wanted) - set(self.functions)):
            there = ", ".join(self.names) or "none"
            raise ConfigError(f"The session has no tool {', '.join(map(repr, unknown))}; it has {there}.")
        return wanted

    def grant(self, cell: str, names: Iterable[str] | None, most: int, loop: asyncio.AbstractEventLoop | None) -> Grant:
        """Give a cell leave to call these tools, until `end`; None stands for all of the session's."""
        allowed = self.functions if names is None else {name: self.functions[name] for name in names}
        grant = self._grants[cell] = Grant(dict(allowed), most, loop)
        return grant

    def end(self, cell: str) -> None:
        """A cell is over."""
        grant = self._grants.pop(cell, None)
        if grant is not None:
            grant.end()
        self._ended[cell] = None
        if len(self._ended) > _MOST_ENDED:
            del self._ended[next(iter(self._ended))]

    def inside(self) -> bool:
        """Whether the caller is a tool that a cell of the session waits for."""
        grant = _within.get()
        return grant is not None and grant in self._grants.values()

    async def answer(self, call: Call) -> tuple[dict[str, Any], Sequence[Buffer]]:
        """Do a call of a tool; see `Handler`."""
        grant = self._grants.get(call.cell)
        if grant is None:
            raise AlbedoError(_ENDED if call.cell in self._ended or not call.cell else _GONE)
        name = call.arguments.get("name")
        try:
            args = values.decode(call.arguments.get("args"), call.blobs)
            kwargs = values.decode(call.arguments.get("kwargs"), call.blobs)
        except (ValueError, RecursionError) as error:
            raise AlbedoError(f"what it was called with cannot be read: {error}") from None
        if not isinstance(name, str) or not isinstance(args, list) or not isinstance(kwargs, dict):
            raise AlbedoError("that is no call of a tool")
        answer = await grant.do(name, args, kwargs)
        try:
            return values.encode(answer)
        except Exception as error:  # noqa: BLE001 - of a class of its own, it may raise anything when looked at
            what = error if isinstance(error, (TypeError, ValueError)) else in_words(error)
            raise AlbedoError(f"it returned what cannot be passed: {what}") from None


# -- doing one ---------------------------------------------------------------------------------------------------


async def _run(
    function: Tool,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    loop: asyncio.AbstractEventLoop | None,
    grant: Grant,
) -> dict[str, Any]:
    """Call a function away from the I/O thread, which it must not hold up: on `loop`, or on a thread of its own."""

    async def on_loop(made: Any = None) -> dict[str, Any]:
        _within.set(grant)
        try:
            return {"value": await (function(*args, **kwargs) if made is None else made)}
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and _cancelling():
                raise
            return _raised(error)

    def on_thread() -> dict[str, Any]:
        _within.set(grant)
        try:
            return {"value": function(*args, **kwargs)}
        except BaseException as error:  # noqa: BLE001 - whatever it was, the cell is told of it
            return _raised(error)

    if inspect.iscoroutinefunction(function):
        return await _await_on(on_loop, loop)
    answer = await asyncio.get_running_loop().run_in_executor(None, on_thread)
    made = answer.get("value")
    return await _await_on(lambda: on_loop(made), loop) if inspect.isawaitable(made) else answer


def _cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _await_on(make: Callable[[], Any], loop: asyncio.AbstractEventLoop | None) -> dict[str, Any]:
    """Await a coroutine on the caller's loop, or else on one of its own; cancelling us cancels it there."""
    if loop is not None and not loop.is_closed():
        found: dict[str, Any] = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(make(), loop))
        return found
    own: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []

    async def main() -> dict[str, Any]:
        task = asyncio.current_task()
        assert task is not None
        own.append((asyncio.get_running_loop(), task))
        answer: dict[str, Any] = await make()
        return answer

    try:
        return await asyncio.get_running_loop().run_in_executor(None, lambda: asyncio.run(main()))
    except asyncio.CancelledError:
        for its_loop, task in own:
            if not its_loop.is_closed():
                its_loop.call_soon_threadsafe(task.cancel)
        raise


def _raised(error: BaseException, depth: int = 0) -> dict[str, Any]:
    """Return what a cell is told of an error that a tool raised. Its arguments go along where they can be passed, so
    that a builtin one is what it was here; and so do the errors of a group.
    """
    try:
        filename = error.filename if isinstance(error, OSError) else None
        args = list(error.args) if filename is None else [*error.args, filename]
        if len(repr(args)) > _MOST_TEXT:
            args = []
        json.dumps(values.encode(args)[0])
    except BaseException:  # noqa: BLE001 - the error, and what is in it, may be of any class, whose code may do anything
        args = []
    try:
        message = str(error)
    except BaseException as second:  # noqa: BLE001 - as above
        message = f"(its __str__ raised {type(second).__name__})"
    raised = {
        "name": type(error).__name__,
        "message": message[:_MOST_TEXT],
        "builtin": type(error).__module__ == "builtins",
        "args": args,
    }
    if isinstance(error, BaseExceptionGroup) and depth < _DEEPEST_GROUP and len(error.exceptions) <= _LARGEST_GROUP:
        raised["of"] = str(error.message)[:_MOST_TEXT]
        raised["group"] = [_raised(each, depth + 1)["raised"] for each in error.exceptions]
    return {"raised": raised}


# -- describing them ---------------------------------------------------------------------------------------------


def describe(name: str, function: Tool) -> dict[str, Any]:
    """Return what a kernel is told of a function, as plain JSON: name, docstring, and the texts of its signature."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some that are written in C have none
        signature = inspect.Signature(
            [
                inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL),
                inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD),
            ]
        )
    return {
        "name": name,
        "doc": (inspect.getdoc(function) or "")[:_MOST_TEXT],
        "parameters": [
            {
                "name": parameter.name,
                "kind": parameter.kind.name,
                "default": None if parameter.default is parameter.empty else _shown(parameter.default),
                "annotation": _annotation(parameter.annotation),
            }
            for parameter in signature.parameters.values()
        ],
        "returns": _annotation(signature.return_annotation),
    }


def _shown(default: object) -> str:
    try:
        return repr(default)[:_MOST_DEFAULT]
    except Exception:  # noqa: BLE001 - of a class of the caller's, it may raise anything
        return "..."


def _annotation(annotation: Any) -> str | None:
    if annotation is inspect.Signature.empty:
        return None
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return str(text)[:_MOST_DEFAULT]
