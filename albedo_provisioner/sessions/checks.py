"""What callers give to sessions, looked at before anything is done: a mistake is told where it was made."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from numbers import Integral, Real

from ..errors import ConfigError


def check_text(name: str, value: object) -> None:
    """See that a value is a text, and one that can be sent and put on record.

    Raises:
        ConfigError: it is not.
    """
    if not isinstance(value, str):
        raise ConfigError(f"{name} is of type {type(value).__name__}, and has to be a text.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{name} holds the lone surrogate {value[error.start]!r} at character {error.start}, which is no text: "
            "decode what it was made from with the right encoding, or with errors='replace'."
        ) from None


def check_count(name: str, value: object, least: int) -> None:
    """See that a value is a whole number of at least so much.

    Raises:
        ConfigError: it is not.
    """
    if not isinstance(value, Integral):
        raise ConfigError(f"{name} is {value!r:.100}, and has to be a whole number.")
    if value < least:
        raise ConfigError(f"{name} is {value}, and has to be at least {least}.")


def check_seconds(name: str, value: object) -> None:
    """See that a value is a time.

    Raises:
        ConfigError: it is not.
    """
    if not isinstance(value, Real) or not float(value) > 0:
        raise ConfigError(f"{name} is {value!r:.100}, and has to be seconds above zero.")


def check_receiver(name: str, value: object) -> None:
    """See that a value is a function that can be told something, and has nobody wait for it.

    Raises:
        ConfigError: it is not.
    """
    if not callable(value):
        raise ConfigError(f"{name} is of type {type(value).__name__}, and has to be a function.")
    if inspect.iscoroutinefunction(value):
        raise ConfigError(f"{name} is a coroutine function, which nobody would await; it has to be a plain function.")


def check_variables(name: str, value: object) -> None:
    """See that a value is a mapping of texts to texts.

    Raises:
        ConfigError: it is not.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} is of type {type(value).__name__}, and has to be a mapping of names to texts.")
    for key, text in value.items():
        check_text(f"A name in {name}", key)
        check_text(f"{name}[{key!r}]", text)
