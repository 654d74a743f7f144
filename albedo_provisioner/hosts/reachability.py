"""Who waits for a host, and who learns that it may be worth trying again: the two meet here.

Links that are away retry after pauses, which become long. Whatever suggests that a host can be reached again (this
machine's network changed, another link got through, the user signed in) ends the pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .io_thread import IOThread
from .network import NetworkWatch

SPACING = 0.5
"""Seconds between two announcements. What comes faster is told once, at the end of them: a network that comes up tells
many things in a moment, and links that wake each other must not do it without pause."""

Callback = Callable[[], None]


class Reachability:
    """Who waits for which host. Used on the I/O thread alone; `Reachability.get()` returns the process's one."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[object, Callback]] = {}
        self._watching: dict[object, Callback] = {}
        self._network: NetworkWatch | None = None
        self._spaced = _Spaced()

    @classmethod
    def get(cls) -> Reachability:
        """Return the one that belongs to the running I/O thread (a forked child gets one of its own)."""
        return IOThread.get().only(cls)

    def subscribe(self, host: str, callback: Callback) -> Callback:
        """Have `callback` called whenever there is reason to try a host again, until the returned function is called.

        Args:
            host: as its transport spells it.
            callback: called on the loop; it returns at once and raises nothing.
        """
        token = object()
        self._waiting.setdefault(host, {})[token] = callback

        def cancel() -> None:
            waiting = self._waiting.get(host, {})
            waiting.pop(token, None)
            if not waiting:
                self._waiting.pop(host, None)

        return cancel

    def announce(self, host: str) -> None:
        """Say that a host may be reachable again; those who wait for it are told."""
        self._spaced.call(host, lambda: self._tell(self._waiting.get(host, {})))

    def waited_for(self, host: str) -> bool:
        """Whether anybody waits for a host."""
        return host in self._waiting

    def watch_network(self, callback: Callback) -> Callback:
        """Have `callback` called whenever this machine's network has changed, until the returned function is called."""
        token = object()
        self._watching[token] = callback
        if self._network is None:
            self._network = NetworkWatch(self._network_changed)

        def cancel() -> None:
            self._watching.pop(token, None)
            if not self._watching and self._network is not None:
                self._network.close()
                self._network = None

        return cancel

    def _network_changed(self) -> None:
        self._spaced.call(None, lambda: self._tell(self._watching))

    @staticmethod
    def _tell(callbacks: dict[object, Callback]) -> None:
        for callback in list(callbacks.values()):
            callback()


class _Spaced:
    """Calls functions at once, but those of one name not more often than every `SPACING` seconds; the last always."""

    def __init__(self) -> None:
        self._timers: dict[str | None, asyncio.TimerHandle] = {}
        self._again: dict[str | None, Callback] = {}

    def call(self, name: str | None, function: Callback) -> None:
        if name in self._timers:
            self._again[name] = function
            return
        self._timers[name] = asyncio.get_running_loop().call_later(SPACING, self._next, name)
        function()

    def _next(self, name: str | None) -> None:
        del self._timers[name]
        function = self._again.pop(name, None)
        if function is not None:
            self.call(name, function)
