"""The connection to one leader: had when it is wanted, had again when it is lost, with pauses that grow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog
from tidelog.broker.replication.leader_channel import ChannelLostError, LeaderChannel, OnLost
from tidelog.model.brokers import Endpoint

FIRST_BACKOFF_MS: Final = 50
"""Pause before the second attempt; doubles up to `replica.fetch.backoff.ms`."""

OpenChannel = Callable[[Endpoint, OnLost], Awaitable[LeaderChannel]]

_log = structlog.get_logger(__name__)


class LeaderLink:
    """`on_up` when there is a channel, `on_down` when it is lost; who still wants it says so again."""

    def __init__(
        self,
        leader_id: int,
        find_endpoint: Callable[[], Endpoint | None],
        open_channel: OpenChannel,
        *,
        longest_backoff_ms: int,
        on_up: Callable[[], None],
        on_down: Callable[[], None],
    ) -> None:
        self.channel: LeaderChannel | None = None
        self._leader_id = leader_id
        self._find_endpoint = find_endpoint
        self._open_channel = open_channel
        self._longest_backoff_ms = longest_backoff_ms
        self._on_up = on_up
        self._on_down = on_down
        self._backoff_ms = 0
        self._task: asyncio.Task[None] | None = None
        self._retry = asyncio.Event()
        self._told = ""
        self._is_closed = False

    def want(self) -> None:
        """Connect, unless that is done or under way."""
        if self.channel is None and self._task is None and not self._is_closed:
            self._task = asyncio.create_task(self._connect(), name=f"connect to broker {self._leader_id}")

    def retry_now(self) -> None:
        """Something is known that was not: an attempt need not wait."""
        self._retry.set()

    def lose(self, reason: str) -> None:
        """Let go of the channel, if there is one, as if it broke."""
        if self.channel is not None:
            self.channel.close()
            self._lost(reason)

    def works(self) -> None:
        """An answer came: the next loss is not counted with those before."""
        if self._backoff_ms:
            self._backoff_ms = 0
            self._told = ""

    async def close(self) -> None:
        self._is_closed = True
        if self.channel is not None:
            self.channel.close()
            self.channel = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _connect(self) -> None:
        while True:
            await self._pause()
            endpoint = self._find_endpoint()
            try:
                if endpoint is None:
                    if self._backoff_ms < self._longest_backoff_ms:
                        continue  # roles are told before addresses
                    raise ChannelLostError("it is not among the live brokers, or lacks the listener")
                channel = await self._open_channel(endpoint, self._lost)
            except ChannelLostError as error:
                self._tell("leader can't be reached", str(error))
                continue
            if channel.is_closed:  # lost before it was here
                continue
            self.channel, self._task = channel, None
            self._on_up()
            return

    async def _pause(self) -> None:
        pause_ms = self._backoff_ms
        self._backoff_ms = min(max(2 * pause_ms, FIRST_BACKOFF_MS), self._longest_backoff_ms)
        self._retry.clear()
        if pause_ms:
            try:
                async with asyncio.timeout(pause_ms / 1000):
                    await self._retry.wait()
            except TimeoutError:
                return

    def _lost(self, reason: str) -> None:
        if self.channel is None:  # while connecting
            return
        self.channel = None
        self._tell("connection to leader lost", reason)
        self._on_down()

    def _tell(self, what: str, reason: str) -> None:
        """Once each time it is another thing."""
        if self._told != what + reason:
            self._told = what + reason
            _log.warning(what, leader=self._leader_id, reason=reason)
