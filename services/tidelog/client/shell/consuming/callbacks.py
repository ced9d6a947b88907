"""The calls from a consumer into its application: rebalance callbacks, and reports of its health."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeAlias

from tidelog.client.core.consuming.consumer import ConsumerCore
from tidelog.client.core.consuming.membership import MemberState
from tidelog.client.shell.tasks import CALLED_IN_CALLBACK
from tidelog.model.topics import TopicPartition

MISSED_HEARTBEATS: Final = 3
HEARTBEAT_INTERVAL_MS: Final = 5_000


class ConsumerHealth(NamedTuple):
    """The state of a consumer, with the reason in one sentence.

    `state` is `joining`, `joined`, `lagging`, `stuck`, `failed` or `closed`.
    """

    state: str
    reason: str
    assigned_partitions: int
    lag: int
    """The records up to the ends of the partitions that the application has not got."""
    since_last_poll_ms: int
    since_last_heartbeat_ms: int | None

    @property
    def is_healthy(self) -> bool:
        """Whether the consumer works, although it may still be joining its group or lag behind."""
        return self.state in ("joining", "joined", "lagging")


def health_of(core: ConsumerCore, at_ms: int, lagging_records: int, *, is_closed: bool) -> ConsumerHealth:
    """Returns whether a consumer has joined, lags by more than `lagging_records`, or is stuck, and why."""
    lag = sum(partition.lag or 0 for partition in core.partitions.values())
    membership = core.membership if core.pattern or core.topics else None
    if (
        membership is not None
        and membership.state is MemberState.OUTSIDE
        and not core.is_removed_for_slowness
    ):
        membership = None
    since_poll_ms = 0 if core.is_polling else at_ms - core.last_poll_ms
    heartbeat_ms = (
        None if membership is None or membership.last_answer_ms is None else at_ms - membership.last_answer_ms
    )
    state, reason = "closed", "The consumer is closed."
    if not is_closed:
        state, reason = _judged(core, since_poll_ms, heartbeat_ms, lag, lagging_records)
    return ConsumerHealth(state, reason, len(core.partitions), lag, since_poll_ms, heartbeat_ms)


def _judged(
    core: ConsumerCore, since_poll_ms: int, heartbeat_ms: int | None, lag: int, lagging_records: int
) -> tuple[str, str]:
    membership = core.membership
    if membership is not None and membership.state is MemberState.FAILED:
        return "failed", f"The coordinator refuses the member: {membership.error}."
    if core.is_removed_for_slowness:
        return "stuck", (
            f"The application did not poll for {since_poll_ms} ms, more than max.poll.interval.ms "
            f"({core.settings.max_poll_interval_ms}), so the consumer left its group."
        )
    if membership is not None and membership.is_active and membership.awaits_others:
        return "joining", "A rebalance of the group is going on; the coordinator waits for all members."
    if heartbeat_ms is not None and heartbeat_ms > MISSED_HEARTBEATS * HEARTBEAT_INTERVAL_MS:
        return "stuck", f"The coordinator has not answered a heartbeat for {heartbeat_ms} ms."
    for subject, why in core.problems.reasons.items():
        return "stuck", f"{subject[0].upper()}{subject[1:]}: {why}."
    without_leader = [place for place in core.partitions if core.view.leader(place).leader < 0]
    if without_leader:
        return "stuck", f"{without_leader[0]} has no leader."
    if membership is not None and membership.state is MemberState.JOINING:
        return "joining", "The coordinator has not given partitions yet."
    if membership is not None and membership.state in (
        MemberState.RECONCILING,
        MemberState.REVOKING,
        MemberState.LOSING,
    ):
        return "joining", "The assignment is changing; it changes only while the application polls."
    if lag > lagging_records:
        return "lagging", f"{lag} records are behind the positions."
    return "joined", f"{len(core.partitions)} partitions are assigned, {lag} records are left."


logger: Final = logging.getLogger("tidelog.client")

RebalanceCallback: TypeAlias = Callable[[list[TopicPartition]], Awaitable[None] | None]
"""Gets partitions; it may be a coroutine function."""


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
