"""Decides when clients may be sent to a broker: it is registered, it knows the cluster, and it has caught up.

A broker has caught up when it is in the ISR of every partition that it follows and that has a leader. A
partition that a reassignment brings to this broker does not count, because that may take hours. Once the
broker has caught up, it stays ready until it registers again. If it falls behind later, it still serves the
partitions that it leads and describes the cluster to clients; if it were not ready then, three brokers that
can't reach each other would leave clients without any. Metrics show which ISRs are complete.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from tidelog.metadata.entries import InvalidEntryError, PartitionStateEntry, decode_entry, partition_state_key
from tidelog.metadata.store import MetadataStore, StoreError
from tidelog.model.topics import TopicPartition

if TYPE_CHECKING:
    from tidelog.broker.cluster.view import BrokerIdentity, MetadataView

LOOK_INTERVAL_MS: Final = 200
READS_AT_A_TIME: Final = 64
_NAMED: Final = 3
"""The number of partitions that a reason names."""

_log = structlog.get_logger(__name__)


class BrokerReadiness:
    """Answers probes with `why_not`. Call `stop` at the end.

    A leader that takes this broker into an ISR notifies the controller, and the controller all brokers, only
    after some seconds without changes (Kafka's rules). So the states of missing partitions are read from the
    store.
    """

    def __init__(self, identity: BrokerIdentity, metadata: MetadataView, store: MetadataStore) -> None:
        self._identity = identity
        self._metadata = metadata
        self._store = store
        self._epoch = -1
        self._is_caught_up = False
        self._seen_in_sync: set[TopicPartition] = set()
        self._looking: asyncio.Task[None] | None = None

    def why_not(self) -> str | None:
        """Returns the reason why clients should not be sent to this broker, None if there is no reason."""
        identity = self._identity
        known = self._metadata.brokers.get(identity.broker_id)
        if known is None or known.broker_epoch != identity.broker_epoch:
            return "the broker is registered, but the controller has not seen the registration yet"
        if self._epoch != identity.broker_epoch:
            self._epoch = identity.broker_epoch
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
        return f"{len(lagging)} partitions are not in sync yet: {names}"

    def lagging(self) -> list[TopicPartition]:
        """Returns the partitions of this broker that do not have it in their ISR, by its latest metadata."""
        broker_id, brokers = self._identity.broker_id, self._metadata.brokers
        found = (
            TopicPartition(topic.name, state.partition)
            for topic in self._metadata.topics.values()
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
                        if state is not None and self._identity.broker_id in state.isr
                    )
            await asyncio.sleep(LOOK_INTERVAL_MS / 1000)

    async def _state(self, partition: TopicPartition) -> PartitionStateEntry | None:
        try:
            item = await self._store.get(partition_state_key(partition.topic, partition.partition))
            entry = None if item is None else decode_entry(item.key, item.value)
        except (StoreError, InvalidEntryError) as error:
            _log.debug("a partition's state can't be read", partition=str(partition), reason=str(error))
            return None
        return entry if isinstance(entry, PartitionStateEntry) else None
