"""The broker's knowledge of the cluster: its own identity, the brokers and topics of the controller's last
UpdateMetadata, and the settings that are in force now, with the rules for appends and logs that follow from
those of a topic. AlterConfigs changes some settings while the broker runs.

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

import structlog

from tidelog.broker.log.log_config import LogConfig
from tidelog.broker.partition.batch_validation import AppendRules
from tidelog.broker.security.security_snapshot import SecuritySnapshot
from tidelog.kernel.steps import Steps, all_at_once
from tidelog.metadata.entries import group_config_key
from tidelog.model.brokers import BrokerRegistration, Endpoint
from tidelog.model.features import DEFAULT_FEATURES, ELIGIBLE_LEADER_REPLICAS_VERSION
from tidelog.model.topics import NOT_CONFIRMED, TopicPartition
from tidelog.records.compression import Compression
from tidelog.rpc.broker_commands import DEFAULT_BROKER_ENTITY, PartitionState, TopicState, UpdateMetadata
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.settings.other_kafka_settings import no_effect_remark
from tidelog.settings.setting import SettingError
from tidelog.settings.topic_settings import TopicSettings

if TYPE_CHECKING:
    from tidelog.broker.partition.core import PartitionCore

MAX_KNOWN_TOPIC_SETTINGS: Final = 1_000
"""The different overrides whose settings are remembered."""

_NO_OVERRIDES: Final[Mapping[str, str]] = {}
_log = structlog.get_logger(__name__)


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


def warn_of_settings_without_effect(names: Iterable[str]) -> None:
    """Logs each of these settings with the reason."""
    for name in names:
        _log.warning("a Kafka setting has no effect in tidelog", setting=name, remark=no_effect_remark(name))


class CurrentSettings:
    """Holds the broker's settings. Read `broker` at each use, and never keep it: a change replaces it.

    `are_known` says whether `broker` contains the cluster's dynamic settings. They may keep what the static
    ones would delete, so nothing may be deleted by age or size until they are known.
    """

    __slots__ = ("_observers", "_topics", "are_known", "broker")

    def __init__(self, broker: BrokerSettings) -> None:
        self.broker = broker
        self.are_known = False
        self._observers: list[Callable[[BrokerSettings], None]] = []
        self._topics: dict[frozenset[tuple[str, str]], TopicSettings] = {}

    def observe(self, observer: Callable[[BrokerSettings], None]) -> None:
        """Registers `observer`, which is called with the new settings after each change."""
        self._observers.append(observer)

    def topic(self, overrides: Mapping[str, str]) -> TopicSettings:
        """Returns the settings of a topic with these overrides. Most topics have equal overrides, and share
        one object. If this broker does not understand an override, the topic's settings are not confirmed.
        """
        key = frozenset(overrides.items())
        known = self._topics.get(key)
        if known is None:
            known = self._resolved(overrides)
            if len(self._topics) >= MAX_KNOWN_TOPIC_SETTINGS:
                self._topics.clear()
            self._topics[key] = known
        return known

    def _resolved(self, overrides: Mapping[str, str]) -> TopicSettings:
        try:
            return TopicSettings.resolve(self.broker, overrides)
        except SettingError as error:
            _log.error(
                "nothing is deleted from topics with a setting that this broker does not understand",
                setting=error.name,
                reason=str(error),
            )
            understood = {name: text for name, text in overrides.items() if name != error.name}
            return self._resolved({**understood, **NOT_CONFIRMED})

    def replace(self, settings: BrokerSettings) -> None:
        """Puts `settings` in force and calls the observers."""
        self.broker = settings
        self._topics.clear()
        for observer in self._observers:
            observer(settings)

    def apply(self, configs: Mapping[str, Mapping[str, str]]) -> None:
        """Puts the cluster's broker configs in force; the keys are broker ids and DEFAULT_BROKER_ENTITY.

        Settings that only take effect at the start keep their old values. If the configs contradict the
        settings with which this broker was started, none of them is applied, and nothing is deleted.
        """
        try:
            changed = self.broker.with_dynamic(
                dynamic_default=configs.get(DEFAULT_BROKER_ENTITY, {}),
                dynamic=configs.get(str(self.broker.node_id), {}),
            )
        except SettingError as error:
            self.are_known = False
            _log.error(
                "dynamic settings are not applied, so retention and compaction are suspended",
                setting=error.name,
                reason=str(error),
            )
            return
        self.are_known = True
        known = self.broker.without_effect
        warn_of_settings_without_effect([name for name in changed.without_effect if name not in known])
        self.replace(changed)


_PRODUCER: Final = "producer"
_UNCOMPRESSED: Final = "uncompressed"


def append_rules(settings: TopicSettings) -> AppendRules:
    return AppendRules(
        max_message_bytes=settings.max_message_bytes,
        segment_bytes=settings.segment_bytes,
        is_log_append_time=settings.is_log_append_time,
        timestamp_before_max_ms=settings.message_timestamp_before_max_ms,
        timestamp_after_max_ms=settings.message_timestamp_after_max_ms,
        is_compacted=settings.is_compacted,
        target_compression=_target_compression(settings.compression_type),
        target_compression_level=_target_level(settings),
        validates_records=settings.tidelog_validate_records,
    )


def _target_compression(compression_type: str) -> Compression | None:
    if compression_type == _PRODUCER:
        return None
    return Compression.NONE if compression_type == _UNCOMPRESSED else Compression[compression_type.upper()]


def _target_level(settings: TopicSettings) -> int | None:
    """Returns None if the codec has no levels or the setting selects the codec's default."""
    if settings.compression_type == "gzip":
        return None if settings.compression_gzip_level < 0 else settings.compression_gzip_level
    levels = {"lz4": settings.compression_lz4_level, "zstd": settings.compression_zstd_level}
    return levels.get(settings.compression_type)


def log_config(settings: TopicSettings) -> LogConfig:
    return LogConfig(
        segment_bytes=settings.segment_bytes,
        segment_ms=_segment_ms(settings),
        segment_jitter_ms=settings.segment_jitter_ms,
        segment_index_bytes=settings.segment_index_bytes,
        index_interval_bytes=settings.index_interval_bytes,
        retention_ms=settings.retention_ms,
        retention_bytes=settings.retention_bytes,
        file_delete_delay_ms=settings.file_delete_delay_ms,
        flush_ms=settings.flush_ms,
        cleanup_policy=frozenset(settings.cleanup_policy),
    )


def _segment_ms(settings: TopicSettings) -> int:
    """Rolls compacted logs early enough that `max.compaction.lag.ms` can be kept."""
    if settings.is_compacted and settings.max_compaction_lag_ms > 0:
        return min(settings.segment_ms, settings.max_compaction_lag_ms)
    return settings.segment_ms
