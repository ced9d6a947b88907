"""The application's functions that a consumer calls when its partitions change."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from tidelog.model.topics import TopicPartition

logger: Final = logging.getLogger("tidelog.client")

RebalanceCallback: TypeAlias = Callable[[list[TopicPartition]], Awaitable[None] | None]
"""Gets partitions; it may be a coroutine function."""
CALLED_IN_CALLBACK: Final = (
    "a rebalance callback can't call poll, unsubscribe or close of its consumer, because they wait for the "
    "callback: call them after it has ended"
)


class RebalanceCallbacks:
    """The callbacks of one subscription. They run one at a time."""

    def __init__(self) -> None:
        self._on_assigned: RebalanceCallback | None = None
        self._on_revoked: RebalanceCallback | None = None
        self._on_lost: RebalanceCallback | None = None
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[Any] | None = None
        """The task in which a callback runs."""
        self.error: Exception | None = None
        """The exception of a callback, for the next poll."""

    def replace(
        self,
        on_assigned: RebalanceCallback | None,
        on_revoked: RebalanceCallback | None,
        on_lost: RebalanceCallback | None,
    ) -> None:
        self._on_assigned, self._on_revoked, self._on_lost = on_assigned, on_revoked, on_lost

    @property
    def is_running(self) -> bool:
        return self._task is not None

    async def assigned(self, places: tuple[TopicPartition, ...]) -> None:
        await self._call(self._on_assigned, places)

    async def given_up(self, places: tuple[TopicPartition, ...], *, is_lost: bool) -> None:
        await self._call(self._on_lost if is_lost else self._on_revoked, places)

    async def _call(self, callback: RebalanceCallback | None, places: tuple[TopicPartition, ...]) -> None:
        """Tells the application of partitions, if there are some."""
        if callback is None or not places:
            return
        async with self._lock:
            self._task = asyncio.current_task()
            try:
                waiting = callback(list(places))
                if inspect.isawaitable(waiting):
                    await waiting
            except Exception as error:  # the group must go on whatever the application's function raises
                if self.error is not None:
                    logger.error("a rebalance callback failed", exc_info=self.error)
                self.error = error
            finally:
                self._task = None

    def check_caller(self) -> None:
        """Raises RuntimeError in a callback."""
        if self._task is not None and self._task is asyncio.current_task():
            raise RuntimeError(CALLED_IN_CALLBACK)

    def raise_error(self) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise error

    def log_error(self) -> None:
        if self.error is not None:
            logger.error("a rebalance callback failed", exc_info=self.error)
