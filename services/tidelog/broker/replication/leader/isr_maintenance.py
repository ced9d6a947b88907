"""A leader's periodic work on the ISR, under Kafka's names, and the notifications of ISR changes.

`isr-expiration` has each partition that this broker leads look for followers that fell behind, every half of
`replica.lag.time.max.ms`. `isr-change-propagation` tells the controller which state keys this broker changed,
by the rules of `partition/isr_propagation.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from tidelog.broker.cluster.current_settings import CurrentSettings
from tidelog.broker.hosting.hosted_partitions import HostedPartitions
from tidelog.broker.partition.events import IsrCheckDue, ProposeIsr
from tidelog.broker.partition.isr_propagation import PROPAGATION_CHECK_INTERVAL_MS, IsrPropagation
from tidelog.broker.replication.leader.isr_writer import IsrWriter, ProposingReplica
from tidelog.kernel.clock import Clock
from tidelog.kernel.instants import MonotonicMs
from tidelog.metadata.entries import ISR_CHANGE_COUNTER_KEY, IsrChangeEntry
from tidelog.metadata.store import Compare, Get, MetadataStore, Put, StoreError, StoreUnavailableError
from tidelog.metrics.telemetry import Telemetry
from tidelog.model.errors import KafkaError
from tidelog.model.topics import TopicPartition

PARTITIONS_PER_TURN: Final = 200
"""The partitions that are checked before the event loop may do other work."""
MAX_NOTIFIED_PARTITIONS: Final = 2_500
"""The partitions of one notification. With the longest topic names it stays below the store's limit of 1
MiB.
"""
MAX_PUBLISH_ATTEMPTS: Final = 100
"""The attempts to write a notification. Other brokers may write theirs first each time; the next period tries
again.
"""

_log = structlog.get_logger(__name__)


class IsrMaintenance:
    """The ISR of all partitions that this broker leads. `propose` and `isr_changed` may be called before
    `start`.
    """

    def __init__(
        self,
        hosted: HostedPartitions,
        settings: CurrentSettings,
        clock: Clock,
        telemetry: Telemetry,
        store: MetadataStore,
    ) -> None:
        self._hosted = hosted
        self._settings = settings
        self._clock = clock
        self._telemetry = telemetry
        self._store = store
        self.writer = IsrWriter(store, clock, self._on_refused)
        self._propagation = IsrPropagation(clock.monotonic_ms())
        self._tasks: list[asyncio.Task[None]] = []
        self._last_expiration_ms = MonotonicMs(0)
        self._has_skipped = False

    def start(self) -> None:
        """Starts the two periodic tasks."""
        self._last_expiration_ms = self._clock.monotonic_ms()
        self._tasks = [
            asyncio.create_task(
                self._repeat(self._expiration_interval_ms, self._expire_if_awake), name="isr-expiration"
            ),
            asyncio.create_task(
                self._repeat(lambda: PROPAGATION_CHECK_INTERVAL_MS, self.propagate_isr_changes),
                name="isr-change-propagation",
            ),
        ]

    async def stop(self) -> None:
        """Stops the tasks. The store, or the next leader, decides the pending proposals."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.writer.stop()

    def propose(self, replica: ProposingReplica, proposal: ProposeIsr) -> None:
        """Starts to write a proposal. The replica receives the outcome as an event."""
        self.writer.propose(replica, proposal)

    def isr_changed(self, topic_partition: TopicPartition, *, is_expansion: bool) -> None:
        """Counts a change that the store has accepted, and schedules a notification."""
        if is_expansion:
            self._telemetry.isr_expands += 1
        else:
            self._telemetry.isr_shrinks += 1
        self._propagation.isr_changed(topic_partition, self._clock.monotonic_ms())

    async def _expire_if_awake(self) -> None:
        """Expires followers, except after the process was suspended. It has not received their fetches in
        that time, so they get one more period.
        """
        now_ms = self._clock.monotonic_ms()
        interval_ms = self._expiration_interval_ms()
        late_ms = now_ms - self._last_expiration_ms - interval_ms
        self._last_expiration_ms = now_ms
        self._has_skipped = late_ms > interval_ms and not self._has_skipped
        if self._has_skipped:
            _log.warning("this broker was suspended; it skips one check of the ISR", late_ms=late_ms)
        else:
            await self.expire_followers()

    async def expire_followers(self) -> None:
        """Proposes to remove followers that fell behind from the ISRs that this broker leads."""
        replicas = self._hosted.replicas
        for number, (topic_partition, replica) in enumerate(list(replicas.items())):
            if number % PARTITIONS_PER_TURN == PARTITIONS_PER_TURN - 1:
                await asyncio.sleep(0)
            if not replica.core.is_leader or replicas.get(topic_partition) is not replica:
                continue
            try:
                replica.step(IsrCheckDue(self._clock.monotonic_ms()))
            except KafkaError as error:
                _log.error("ISR check failed", partition=str(topic_partition), reason=str(error))

    async def propagate_isr_changes(self) -> None:
        """Writes a notification, if one is due."""
        changed = self._propagation.take(self._clock.monotonic_ms())
        if not changed:
            return
        try:
            await publish_isr_changes(self._store, changed)
        except BaseException as error:
            self._propagation.not_published()
            if not isinstance(error, StoreError):
                raise
            _log.warning(
                "ISR changes cannot be published; the next period tries again",
                partitions=len(changed),
                reason=str(error),
            )
            return
        self._propagation.published(self._clock.monotonic_ms())

    def _on_refused(self) -> None:
        self._telemetry.failed_isr_updates += 1

    def _expiration_interval_ms(self) -> int:
        return max(1, self._settings.broker.replica_lag_time_max_ms // 2)

    async def _repeat(self, interval_ms: Callable[[], int], duty: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(interval_ms() / 1000)
            try:
                await duty()
            except Exception as error:  # noqa: BLE001 - a bug must not end the task: the next period tries again
                _log.error("ISR task failed", duty=duty.__name__, exc_info=error)


async def publish_isr_changes(store: MetadataStore, partitions: Sequence[TopicPartition]) -> None:
    """Writes `/isr_change_notification/isr_change_<10 digits>`: the partitions whose ISR this leader changed.

    The numbers come from a counter that the same transaction raises by compare-and-set, so two leaders never
    write the same key. The counter holds the next number.

    Raises StoreUnavailableError. The caller may then write the same partitions again: a repeated notification
    only makes the controller read the same state keys once more.
    """
    for start in range(0, len(partitions), MAX_NOTIFIED_PARTITIONS):
        await _publish(store, tuple(partitions[start : start + MAX_NOTIFIED_PARTITIONS]))


async def _publish(store: MetadataStore, partitions: tuple[TopicPartition, ...]) -> None:
    counter = await store.get(ISR_CHANGE_COUNTER_KEY)
    skipped = 0
    for _ in range(MAX_PUBLISH_ATTEMPTS):
        number = (0 if counter is None else int(counter.value)) + skipped
        entry = IsrChangeEntry(number, partitions)
        revision = 0 if counter is None else counter.mod_revision
        result = await store.txn(
            [Compare.mod_revision(ISR_CHANGE_COUNTER_KEY, revision), Compare.absent(entry.key)],
            [Put(ISR_CHANGE_COUNTER_KEY, b"%d" % (number + 1)), Put(entry.key, entry.encode())],
            [Get(ISR_CHANGE_COUNTER_KEY)],
        )
        if result.succeeded:
            return
        (stored,) = result.reads
        if stored == counter:
            skipped += 1  # the counter was lost or set back; never overwrite a notification
        else:
            counter, skipped = stored, 0
    raise StoreUnavailableError("other brokers kept writing their notifications first")
