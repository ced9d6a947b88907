"""A leader's duties about its ISRs: has changes written, and two periodic tasks under Kafka's names (SPEC C3,
C5).

`isr-expiration` has each partition led here look for followers that fell behind, every half of
`replica.lag.time.max.ms`. `isr-change-propagation` tells the controller which state keys this broker
changed, by the rules of `partition/isr_propagation.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import structlog
from tidelog.broker.partition.events import IsrCheckDue, ProposeIsr
from tidelog.broker.partition.isr_propagation import PROPAGATION_CHECK_INTERVAL_MS, IsrPropagation
from tidelog.broker.replication.isr_notifications import publish_isr_changes
from tidelog.broker.replication.isr_writer import IsrWriter
from tidelog.metadata.store import MetadataStore, StoreError
from tidelog.model.errors import KafkaError

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.replica import Replica
    from tidelog.model.topics import TopicPartition

PARTITIONS_A_TURN: Final = 200
"""So many partitions are checked before the event loop may do something else."""

_log = structlog.get_logger(__name__)


class IsrMaintenance:
    """`propose` and `isr_changed` may be called before `start`, too."""

    def __init__(self, broker: Broker, store: MetadataStore) -> None:
        self._broker = broker
        self._store = store
        self.writer = IsrWriter(store, broker.clock, self._on_refused)
        self._propagation = IsrPropagation(broker.clock.monotonic_ms())
        self._tasks: list[asyncio.Task[None]] = []
        self._last_expiration_ms = 0
        self._has_skipped = False

    def start(self) -> None:
        self._last_expiration_ms = self._broker.clock.monotonic_ms()
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
        """What is pending is left to the store, or to the next leader."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.writer.stop()

    def propose(self, replica: Replica, proposal: ProposeIsr) -> None:
        """Have it written; the replica is told what became of it."""
        self.writer.propose(replica, proposal)

    def isr_changed(self, topic_partition: TopicPartition) -> None:
        """The store took a change: the controller will be told."""
        self._propagation.isr_changed(topic_partition, self._broker.clock.monotonic_ms())

    async def _expire_if_awake(self) -> None:
        """A process that stood still has not heard its followers either: they get one period to be heard."""
        now_ms = self._broker.clock.monotonic_ms()
        interval_ms = self._expiration_interval_ms()
        late_ms = now_ms - self._last_expiration_ms - interval_ms
        self._last_expiration_ms = now_ms
        self._has_skipped = late_ms > interval_ms and not self._has_skipped
        if self._has_skipped:
            _log.warning("this broker stood still, followers are not judged by it", late_ms=late_ms)
        else:
            await self.expire_followers()

    async def expire_followers(self) -> None:
        """Take those that fell behind out of the ISRs that this broker leads."""
        broker = self._broker
        for number, (topic_partition, replica) in enumerate(list(broker.replicas.items())):
            if number % PARTITIONS_A_TURN == PARTITIONS_A_TURN - 1:
                await asyncio.sleep(0)
            if not replica.core.is_leader or broker.replicas.get(topic_partition) is not replica:
                continue
            try:
                replica.step(IsrCheckDue(), broker.clock.monotonic_ms())
            except KafkaError as error:
                _log.error("ISR check failed", partition=str(topic_partition), reason=str(error))

    async def propagate_isr_changes(self) -> None:
        """Write a notification, if it is time for one."""
        now_ms = self._broker.clock.monotonic_ms
        changed = self._propagation.take(now_ms())
        if not changed:
            return
        try:
            await publish_isr_changes(self._store, changed)
        except BaseException as error:
            self._propagation.not_published()
            if not isinstance(error, StoreError):
                raise
            _log.warning("ISR changes can't be published", partitions=len(changed), reason=str(error))
            return
        self._propagation.published(now_ms())

    def _on_refused(self) -> None:
        self._broker.telemetry.failed_isr_updates += 1

    def _expiration_interval_ms(self) -> int:
        return max(1, self._broker.settings.replica_lag_time_max_ms // 2)

    async def _repeat(self, interval_ms: Callable[[], int], duty: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(interval_ms() / 1000)
            try:
                await duty()
            except Exception as error:  # noqa: BLE001 - a bug: the duty has to be done at its next turn, too
                _log.error("ISR task failed", duty=duty.__name__, exc_info=error)
