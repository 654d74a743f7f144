"""`tools` in a cell: functions of the program that runs the cell, called from here and done there.

    tools.read_file("notes.txt")

What there is comes with a cell's request, as descriptions: nothing of a function itself is here, and nothing of what is
described is ever evaluated. Who may call what, and how often, is decided where the functions are.
"""

from __future__ import annotations

import builtins
import inspect
import keyword
from collections.abc import Callable, Mapping
from typing import Any

from . import cells, values
from .calls import CallError, call, call_async
from .wire import TOOL


class ToolError(Exception):
    """A tool could not be called, or raised an error of a kind that there is none of here: a subclass has its name."""


_offered: dict[str, dict[str, Callable[..., Any]]] = {}
"""Functions by their names, by the name of the client that offers them: several may use one kernel."""


class Tools:
    """Functions of the program that runs this cell; they are done there."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        functions = _functions()
        if name in functions:
            return functions[name]
        if name.startswith("_"):  # what IPython looks for on everything
            raise AttributeError(name)
        if not functions:
            raise AttributeError(f"no tools are offered here, so there is no {name!r}")
        raise AttributeError(f"there is no tool {name!r}; there are {', '.join(sorted(functions))}")

    def __dir__(self) -> list[str]:
        return sorted(_functions())

    def __repr__(self) -> str:
        functions = sorted(_functions().items())
        if not functions:
            return "<tools: none are offered here>"
        return "<tools:\n" + "".join(f"    tools.{name}{inspect.signature(each)}\n" for name, each in functions) + ">"


def _functions() -> dict[str, Callable[..., Any]]:
    """Return what is offered to the cell that runs, or that ran last."""
    cell = cells.current()
    return _offered.get(cell.server, {}) if cell else {}


def offer(server: str, descriptions: list[dict[str, Any]]) -> None:
    """Have a client offer these tools, and no others, from now on.

    Args:
        server: the client's name.
        descriptions: see `describe` in `sessions/tools.py`.
    """
    _offered[server] = {each["name"]: _function(each) for each in descriptions if _is_name(each["name"])}


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("_")


class _Text:
    """Stands for a default or an annotation: shown as it was written, and nothing else."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _function(description: Mapping[str, Any]) -> Callable[..., Any]:
    """Return what stands for a tool here."""
    name = str(description["name"])
    signature = _signature(description)

    def tool(*args: Any, **kwargs: Any) -> Any:
        signature.bind(*args, **kwargs)  # a call that cannot be is told here, in Python's own words
        try:
            return _result(*call(TOOL, *_request(name, args, kwargs)))
        except CallError as error:
            raise ToolError(f"tools.{name}: {error}") from None

    async def awaitable(*args: Any, **kwargs: Any) -> Any:
        signature.bind(*args, **kwargs)
        try:
            return _result(*await call_async(TOOL, *_request(name, args, kwargs)))
        except CallError as error:
            raise ToolError(f"tools.{name}: {error}") from None

    made: Any
    for made, path in ((tool, name), (awaitable, f"{name}.awaitable")):
        made.__name__, made.__qualname__, made.__module__ = path.rpartition(".")[2], f"tools.{path}", __name__
        made.__doc__ = str(description["doc"]) or None
        made.__signature__ = signature
    tool.awaitable = awaitable  # type: ignore[attr-defined]
    return tool


def _signature(description: Mapping[str, Any]) -> inspect.Signature:
    parameters = []
    for each in description["parameters"]:
        default, annotation = each.get("default"), each.get("annotation")
        parameters.append(
            inspect.Parameter(
                str(each["name"]),
                getattr(inspect.Parameter, str(each["kind"])),
                default=inspect.Parameter.empty if default is None else _Text(str(default)),
                annotation=inspect.Parameter.empty if annotation is None else _Text(str(annotation)),
            )
        )
    returns = description.get("returns")
    return inspect.Signature(
        parameters, return_annotation=inspect.Signature.empty if returns is None else _Text(str(returns))
    )


def _request(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
    cell = cells.current()
    if cell is None or not cell.server:
        raise ToolError(f"tools.{name}: no tools are offered to this code: it is no cell of a session's")
    content, blobs = values.encode({"args": list(args), "kwargs": kwargs})
    return {"name": name, **content}, blobs


def _result(answer: dict[str, Any], blobs: list[bytes]) -> Any:
    found = values.decode(answer, blobs)
    if "raised" in found:
        raise _error(found["raised"])
    return found["value"]


def _error(raised: Mapping[str, Any]) -> Exception:
    """Return the error that a tool raised: of the same builtin class if there is one, with the same message."""
    name, message = str(raised["name"]), str(raised["message"])
    kind = getattr(builtins, name, None)
    if raised.get("builtin") and isinstance(kind, type) and issubclass(kind, Exception):
        choices = [raised["args"], [message]]
        if "group" in raised:
            choices = [[raised["of"], [_error(each) for each in raised["group"]]]]
        for args in choices:
            try:
                error = kind(*args)
            except (TypeError, ValueError):
                continue  # one that is made of other things than JSON has
            if str(error) == message:
                return error
    made: Exception = type(name, (ToolError,), {"__module__": __name__})(message)
    return made


tools = Tools()
