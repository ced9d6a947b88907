"""This broker's view of the cluster: its own identity, and the brokers, topics and settings of the
controller's last UpdateMetadata.

A consumer may read from the replica in its rack (KIP-392). If `replica.selector.class` names Kafka's
`RackAwareReplicaSelector`, with or without its package, a consumer that sends its rack (`client.rack`) reads
from a replica in that rack. With `LeaderSelector`, and without the setting, all consumers read from the
leader.
"""

from __future__ import annotations

import uuid
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tidelog.broker.security.security_snapshot import SecuritySnapshot
from tidelog.kernel.steps import Steps, all_at_once
from tidelog.metadata.entries import group_config_key
from tidelog.model.brokers import BrokerRegistration, Endpoint
from tidelog.model.features import DEFAULT_FEATURES, ELIGIBLE_LEADER_REPLICAS_VERSION
from tidelog.model.topics import TopicPartition
from tidelog.rpc.broker_commands import PartitionState, TopicState, UpdateMetadata

if TYPE_CHECKING:
    from tidelog.broker.partition.core import PartitionCore
    from tidelog.settings.broker_settings import BrokerSettings


_NO_OVERRIDES: Final[Mapping[str, str]] = {}


class MetadataView:
    """Handlers read the view, and only the controller's commands change it. `version` grows with each change,
    so responses made from the view can be cached.
    """

    def __init__(self, cluster_id: str) -> None:
        self.cluster_id = cluster_id
        self.version = 0
        self.controller_id = -1
        self.controller_epoch = 0
        self.brokers: dict[int, BrokerRegistration] = {}
        self.topics: dict[str, TopicState] = {}
        self.topic_names: dict[uuid.UUID, str] = {}
        self._sorted_names: list[str] | None = None  # the keys of `topics`, once they are needed
        self.broker_configs: Mapping[str, Mapping[str, str]] = {}
        self.features = DEFAULT_FEATURES
        self.security = SecuritySnapshot()
        self._security_observers: list[Callable[[SecuritySnapshot], None]] = []

    def observe_security(self, observer: Callable[[SecuritySnapshot], None]) -> None:
        """Registers `observer`, which is called with each new snapshot."""
        self._security_observers.append(observer)

    def security_after(self, update: UpdateMetadata) -> Steps[SecuritySnapshot]:
        """Returns the security entries after an update, without a change of the view. A full update may have
        hundreds of thousands of entries.
        """
        known = self.security
        if update.security is None:
            return known
        return (yield from (known.replaced if update.is_full else known.updated)(update.security))

    def apply(self, update: UpdateMetadata, security: SecuritySnapshot | None = None) -> None:
        """Puts an update in force. `security` is the result of `security_after`, which is computed here if it
        is not given.
        """
        if security is None:
            security = all_at_once(self.security_after(update))
        self.version += 1
        self.controller_id = update.controller_id
        self.controller_epoch = update.controller_epoch
        self.brokers = {broker.broker_id: broker for broker in update.brokers}
        if update.is_full:
            self.topics.clear()
            self.topic_names.clear()
            self._sorted_names = None
        for deleted in update.deleted_topics:
            known = self.topics.get(deleted.name)
            if known is not None and known.topic_id == deleted.topic_id:
                del self.topics[deleted.name]
                self._name_changed(deleted.name)
            self.topic_names.pop(deleted.topic_id, None)
        for topic in update.topics:
            replaced = self.topics.get(topic.name)
            if replaced is not None and replaced.topic_id != topic.topic_id:
                self.topic_names.pop(replaced.topic_id, None)
            self.topics[topic.name] = topic
            if replaced is None:
                self._name_changed(topic.name)
            self.topic_names[topic.topic_id] = topic.name
        if update.broker_configs is not None:
            self.broker_configs = update.broker_configs
        if update.feature_levels is not None:
            self.features = update.feature_levels
        if update.security is not None:
            self.security = security
            for observer in self._security_observers:
                observer(self.security)

    def _name_changed(self, name: str) -> None:
        names = self._sorted_names
        if names is None:
            return
        at = bisect_left(names, name)
        if name in self.topics:
            names.insert(at, name)
        else:
            del names[at]

    def sorted_topics(self) -> Sequence[str]:
        """Returns the sorted names of all topics. The next update changes the returned list."""
        if self._sorted_names is None:
            self._sorted_names = sorted(self.topics)
        return self._sorted_names

    @property
    def uses_elr(self) -> bool:
        """Whether replicas that left an ISR below its minimum may lead (KIP-966)."""
        return self.features.levels.get(ELIGIBLE_LEADER_REPLICAS_VERSION, 0) > 0

    def group_overrides(self, group_id: str) -> Mapping[str, str]:
        """Returns the texts of the settings that a group overrides."""
        entries = self.security.group_configs
        entry = entries.get(group_config_key(group_id)) if entries else None
        return _NO_OVERRIDES if entry is None else entry.configs

    def groups_with_settings(self) -> list[str]:
        """Returns the groups that override settings."""
        return [entry.group_id for entry in self.security.group_configs.values()]

    def learn_id(self, topic_id: uuid.UUID, topic: str) -> None:
        """Adds the id of a topic that this broker hosts before `apply` names it, because its followers use
        the id.
        """
        self.topic_names.setdefault(topic_id, topic)

    def forget_id(self, topic_id: uuid.UUID) -> None:
        """Removes the id of a topic that was deleted and created again. Requests with the old id are rejected
        even before `apply` names the new one.
        """
        self.topic_names.pop(topic_id, None)

    def partition(self, topic: str, partition: int) -> PartitionState | None:
        state = self.topics.get(topic)
        if state is None:
            return None
        partitions = state.partitions
        if 0 <= partition < len(partitions) and partitions[partition].partition == partition:
            return partitions[partition]
        # While a topic is being created, some partitions may be missing, so the others are not at their
        # index.
        return next((found for found in partitions if found.partition == partition), None)

    def node(self, broker_id: int, listener_name: str) -> tuple[BrokerRegistration, Endpoint] | None:
        """Returns a live broker with its address on the client's listener, or None if there is none."""
        broker = self.brokers.get(broker_id)
        endpoint = None if broker is None else broker.endpoint(listener_name)
        return None if broker is None or endpoint is None else (broker, endpoint)

    def nodes(
        self, broker_ids: Iterable[int], listener_name: str
    ) -> list[tuple[BrokerRegistration, Endpoint]]:
        """Returns the brokers of `broker_ids` that `node` knows, in the order of their ids (KIP-951)."""
        found = (self.node(broker_id, listener_name) for broker_id in sorted(broker_ids))
        return [node for node in found if node is not None]

    def endpoints(self, listener_name: str) -> Iterable[tuple[BrokerRegistration, Endpoint]]:
        """Returns each live broker with its address on the client's listener."""
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


UNREGISTERED: Final = -1


class BrokerIdentity:
    """The id never changes. The epoch is higher after each registration; `BrokerLife` alone sets it."""

    __slots__ = ("broker_epoch", "broker_id")

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.broker_epoch = UNREGISTERED


_RACK_AWARE: Final = "RackAwareReplicaSelector"


def is_rack_aware(selector_class: str | None) -> bool:
    """Returns whether this `replica.selector.class` lets consumers read from followers."""
    return selector_class is not None and selector_class.rpartition(".")[2] == _RACK_AWARE


def closest_replica(
    settings: BrokerSettings,
    metadata: MetadataView,
    core: PartitionCore,
    rack: str,
    fetch_offset: int,
    listener_name: str,
) -> int | None:
    """Returns the follower in the consumer's rack with the highest log end offset, None if the consumer
    should read from the leader.

    A follower must be alive and in sync, have `fetch_offset`, and have an address on the consumer's listener.
    If the leader is in the consumer's rack, the consumer reads from the leader.
    """
    if not is_rack_aware(settings.replica_selector_class) or settings.broker_rack == rack:
        return None
    best, best_end_offset = None, fetch_offset - 1
    for replica in core.in_sync_replicas:
        known = metadata.brokers.get(replica)
        if replica == core.broker_id or known is None or known.rack != rack:
            continue
        end_offset = core.follower_end_offset(replica)
        if end_offset > best_end_offset and known.endpoint(listener_name) is not None:
            best, best_end_offset = replica, end_offset
    return best
