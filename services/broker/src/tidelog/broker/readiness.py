"""When clients may be sent to a broker: it is registered, the controller has told it what there is, and it
has caught up.

Caught up is in the ISR of every partition that it follows and that has a leader. One that a reassignment
brings here does not count: that may take hours. Once caught up the broker stays ready as long as this life
lasts. If it falls behind later, it still serves what it leads and tells clients of the cluster; were it not
ready, three brokers that can't reach each other would leave clients without any. Whose ISR is whole is the
matter of metrics, and of whoever rolls the cluster.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog
from tidelog.metadata import keys
from tidelog.metadata.entries import InvalidEntryError, PartitionStateEntry, decode_entry
from tidelog.metadata.store import MetadataStore, StoreError
from tidelog.model.topics import TopicPartition

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

LOOK_INTERVAL_MS: Final = 200
READS_AT_A_TIME: Final = 64
_NAMED: Final = 3  # partitions that a reason names

_log = structlog.get_logger(__name__)


class BrokerReadiness:
    """`why_not` is asked by probes; `stop` at the end.

    That a leader has taken this broker into an ISR it tells the controller, and that all brokers, only after
    some seconds of quiet (Kafka's rules). So while something is missing, its state is read from the store.
    """

    def __init__(self, broker: Broker, store: MetadataStore) -> None:
        self._broker = broker
        self._store = store
        self._epoch = -1
        self._is_caught_up = False
        self._seen_in_sync: set[TopicPartition] = set()
        self._looking: asyncio.Task[None] | None = None

    def why_not(self) -> str | None:
        broker = self._broker
        known = broker.metadata.brokers.get(broker.broker_id)
        if known is None or known.broker_epoch != broker.broker_epoch:
            return "registered, waiting for the controller to take notice"
        if self._epoch != broker.broker_epoch:
            self._epoch = broker.broker_epoch
            self._is_caught_up = False
            self._seen_in_sync.clear()
        if self._is_caught_up:
            return None
        lagging = self.lagging()
        if not lagging:
            self._is_caught_up = True
            self._seen_in_sync.clear()
            return None
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look(), name="readiness")
        names = ", ".join(map(str, lagging[:_NAMED])) + (", ..." if len(lagging) > _NAMED else "")
        return f"catching up, not yet in sync: {len(lagging)} partitions, {names}"

    def lagging(self) -> list[TopicPartition]:
        """Those that it should be in sync with and, for all that is known, is not."""
        broker_id, brokers = self._broker.broker_id, self._broker.metadata.brokers
        found = (
            TopicPartition(topic.name, state.partition)
            for topic in self._broker.metadata.topics.values()
            for state in topic.partitions
            if broker_id in state.replicas
            and broker_id not in state.isr
            and broker_id not in state.adding_replicas
            and state.leader in brokers
        )
        return [topic_partition for topic_partition in found if topic_partition not in self._seen_in_sync]

    async def stop(self) -> None:
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            await asyncio.wait([looking])

    async def _look(self) -> None:
        while lagging := self.lagging():
            for start in range(0, len(lagging), READS_AT_A_TIME):
                epoch = self._epoch
                together = lagging[start : start + READS_AT_A_TIME]
                states = await asyncio.gather(*(self._state(partition) for partition in together))
                if epoch == self._epoch:
                    self._seen_in_sync.update(
                        partition
                        for partition, state in zip(together, states, strict=True)
                        if state is not None and self._broker.broker_id in state.isr
                    )
            await asyncio.sleep(LOOK_INTERVAL_MS / 1000)

    async def _state(self, partition: TopicPartition) -> PartitionStateEntry | None:
        try:
            item = await self._store.get(keys.partition_state(partition.topic, partition.partition))
            entry = None if item is None else decode_entry(item.key, item.value)
        except (StoreError, InvalidEntryError) as error:
            _log.debug("a partition's state can't be read", partition=str(partition), reason=str(error))
            return None
        return entry if isinstance(entry, PartitionStateEntry) else None
