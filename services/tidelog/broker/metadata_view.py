"""What this broker tells clients of the cluster: brokers, topics, settings, as the controller last said
(UpdateMetadata).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping

from tidelog.model.brokers import BrokerRegistration, Endpoint
from tidelog.model.topics import TopicPartition
from tidelog.rpc.broker_commands import PartitionState, TopicState, UpdateMetadata


class MetadataView:
    """Read by handlers, written by the controller's commands alone. `version` grows with each change, so
    answers made from it can be cached.
    """

    def __init__(self, cluster_id: str) -> None:
        self.cluster_id = cluster_id
        self.version = 0
        self.controller_id = -1
        self.controller_epoch = 0
        self.brokers: dict[int, BrokerRegistration] = {}
        self.topics: dict[str, TopicState] = {}
        self.topic_names: dict[uuid.UUID, str] = {}
        self.broker_configs: Mapping[str, Mapping[str, str]] = {}

    def apply(self, update: UpdateMetadata) -> None:
        self.version += 1
        self.controller_id = update.controller_id
        self.controller_epoch = update.controller_epoch
        self.brokers = {broker.broker_id: broker for broker in update.brokers}
        if update.is_full:
            self.topics.clear()
            self.topic_names.clear()
        for deleted in update.deleted_topics:
            known = self.topics.get(deleted.name)
            if known is not None and known.topic_id == deleted.topic_id:
                del self.topics[deleted.name]
            self.topic_names.pop(deleted.topic_id, None)
        for topic in update.topics:
            replaced = self.topics.get(topic.name)
            if replaced is not None and replaced.topic_id != topic.topic_id:
                self.topic_names.pop(replaced.topic_id, None)
            self.topics[topic.name] = topic
            self.topic_names[topic.topic_id] = topic.name
        if update.broker_configs is not None:
            self.broker_configs = update.broker_configs

    def learn_id(self, topic_id: uuid.UUID, topic: str) -> None:
        """A partition of the topic is hosted here, before `apply` tells of it: its followers ask by id."""
        self.topic_names.setdefault(topic_id, topic)

    def forget_id(self, topic_id: uuid.UUID) -> None:
        """The topic was deleted, and made again under another id: what names the old one is refused from now
        on, before `apply` tells of the new one.
        """
        self.topic_names.pop(topic_id, None)

    def partition(self, topic: str, partition: int) -> PartitionState | None:
        state = self.topics.get(topic)
        if state is None:
            return None
        partitions = state.partitions
        if 0 <= partition < len(partitions) and partitions[partition].partition == partition:
            return partitions[partition]
        # Of a topic that is still being made some may be missing, and the others stand before their place.
        return next((found for found in partitions if found.partition == partition), None)

    def node(self, broker_id: int, listener_name: str) -> tuple[BrokerRegistration, Endpoint] | None:
        """One live broker with its address on the listener that the asking client uses; None if there is
        none.
        """
        broker = self.brokers.get(broker_id)
        endpoint = None if broker is None else broker.endpoint(listener_name)
        return None if broker is None or endpoint is None else (broker, endpoint)

    def nodes(
        self, broker_ids: Iterable[int], listener_name: str
    ) -> list[tuple[BrokerRegistration, Endpoint]]:
        """Those of them that `node` knows, in order of id: the addresses that go with an answer (KIP-951)."""
        found = (self.node(broker_id, listener_name) for broker_id in sorted(broker_ids))
        return [node for node in found if node is not None]

    def endpoints(self, listener_name: str) -> Iterable[tuple[BrokerRegistration, Endpoint]]:
        """Each live broker with its address on the listener that the asking client uses."""
        for broker in self.brokers.values():
            for endpoint in broker.endpoints:
                if endpoint.listener_name == listener_name:
                    yield broker, endpoint

    def offline_replicas(self, state: PartitionState) -> list[int]:
        return [replica for replica in state.replicas if replica not in self.brokers]

    def all_partitions(self) -> Iterable[TopicPartition]:
        for topic in self.topics.values():
            for state in topic.partitions:
                yield TopicPartition(topic.name, state.partition)
