"""Work that several callers want at the same time, done once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")
News = TypeVar("News")


class _Work(Generic[T, News]):
    def __init__(self) -> None:
        self.task: asyncio.Task[T] | None = None
        self.listeners: list[Callable[[News], None]] = []
        self.last: News | None = None

    def tell(self, news: News) -> None:
        self.last = news
        for listener in list(self.listeners):
            listener(news)


class Joint(Generic[T, News]):
    """Work by key. Used on one loop alone."""

    def __init__(self) -> None:
        self._under_way: dict[Hashable, _Work[T, News]] = {}

    async def do(
        self,
        key: Hashable,
        begin: Callable[[Callable[[News], None]], Awaitable[T]],
        told: Callable[[News], None] = lambda _: None,
    ) -> T:
        """Return the result of the work under a key, beginning it unless it is under way already.

        It is cancelled when the last of those who wait for it is.

        Args:
            key: what the work is known by.
            begin: called with what to tell news by.
            told: called with the news, the newest so far at once.

        Raises:
            Exception: whatever the work raises, for all who wait for it.
        """
        work = self._under_way.get(key)
        if work is None:
            work = self._under_way[key] = _Work()
            task = work.task = asyncio.ensure_future(self._run(key, work, begin))
        else:
            assert work.task is not None
            task = work.task
        work.listeners.append(told)
        if work.last is not None:
            told(work.last)
        try:
            return await asyncio.shield(task)
        finally:
            work.listeners.remove(told)
            if not work.listeners and not task.done():
                if self._under_way.get(key) is work:
                    del self._under_way[key]  # nobody may join what is being cancelled
                task.cancel()
                await asyncio.wait([task])

    async def _run(
        self, key: Hashable, work: _Work[T, News], begin: Callable[[Callable[[News], None]], Awaitable[T]]
    ) -> T:
        try:
            return await begin(work.tell)
        finally:
            if self._under_way.get(key) is work:
                del self._under_way[key]
