"""All settings of a topic, under Kafka's names. A setting that the topic does not override comes from its
broker.

The definitions are those of Kafka's `LogConfig`, and the broker settings that provide defaults are those of
Kafka's `ServerTopicConfigSynonyms`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidelog.kernel.instants import DAY_MS, HOUR_MS, MINUTE_MS
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import SETTINGS_CONFIRMED
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.settings.log_settings import (
    CLEANUP_POLICIES,
    COMPRESSION_TYPES,
    MAX_MESSAGE_BYTES_DEFAULT,
    MIN_SEGMENT_BYTES,
    TIMESTAMP_TYPES,
)
from tidelog.settings.other_kafka_settings import nearest_name, problem_of_value
from tidelog.settings.setting import (
    LONG_MAX,
    LOW,
    MEDIUM,
    Setting,
    SettingError,
    Value,
    at_least,
    between,
    between_or,
    boolean,
    double,
    integer,
    long,
    one_of,
    optional_integer,
    settings_of,
    string,
    strings,
)

_THROTTLED_REPLICA = re.compile(r"[0-9]+:[0-9]+")


def _throttled_replicas(value: tuple[str, ...]) -> str | None:
    if value == ("*",) or all(_THROTTLED_REPLICA.fullmatch(entry) for entry in value):
        return None
    return "must be * or a list of partition:broker"


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """All settings as plain attributes: `retention.ms` is `retention_ms`."""

    cleanup_policy: tuple[str, ...] = strings(
        ("delete",),
        MEDIUM,
        "Treatment of old data: delete removes it, compact keeps the last record of each key; both "
        "are possible. If empty, all data is kept.",
        one_of(*CLEANUP_POLICIES),
    )
    compression_type: str = string(
        "producer",
        MEDIUM,
        "Codec in which batches are stored. With producer, they are stored as the producer sent them.",
        one_of(*COMPRESSION_TYPES),
    )
    compression_gzip_level: int = integer(
        -1, MEDIUM, "Compression level if compression.type is gzip.", between_or(1, 9, -1)
    )
    compression_lz4_level: int = integer(
        9, MEDIUM, "Compression level if compression.type is lz4.", between(1, 17)
    )
    compression_zstd_level: int = integer(
        3, MEDIUM, "Compression level if compression.type is zstd.", between(-131072, 22)
    )
    delete_retention_ms: int = long(
        DAY_MS, MEDIUM, "Time that a tombstone stays in a compacted topic.", at_least(0)
    )
    errors_deadletterqueue_group_enable: bool = boolean(
        False, MEDIUM, "Whether share groups may use the topic as their dead letter topic."
    )
    file_delete_delay_ms: int = long(
        MINUTE_MS, MEDIUM, "Time that the files of a deleted segment stay on disk.", at_least(0)
    )
    flush_messages: int = long(
        LONG_MAX, MEDIUM, "Number of records after which a partition is flushed to disk.", at_least(1)
    )
    flush_ms: int = long(LONG_MAX, MEDIUM, "Maximum time before a record is flushed to disk.", at_least(0))
    follower_replication_throttled_replicas: tuple[str, ...] = strings(
        (),
        MEDIUM,
        "Replicas whose fetches are throttled on the follower: a list of partition:broker, or * for all.",
        _throttled_replicas,
    )
    leader_replication_throttled_replicas: tuple[str, ...] = strings(
        (),
        MEDIUM,
        "Replicas whose fetches are throttled on the leader: a list of partition:broker, or * for all.",
        _throttled_replicas,
    )
    index_interval_bytes: int = integer(
        4096, MEDIUM, "Number of bytes of the log between two entries of the offset index.", at_least(0)
    )
    internal_segment_bytes: int | None = optional_integer(
        MEDIUM, "Maximum size of a segment file below the minimum of segment.bytes; for tests.", internal=True
    )
    local_retention_ms: int = long(
        -2,
        MEDIUM,
        "Age at which the local copy of data in an object store is deleted; -2 uses retention.ms.",
        at_least(-2),
    )
    local_retention_bytes: int = long(
        -2,
        MEDIUM,
        "Maximum local size of a partition whose data is in an object store; -2 uses retention.bytes.",
        at_least(-2),
    )
    max_compaction_lag_ms: int = long(
        LONG_MAX,
        MEDIUM,
        "Maximum age of a record before its log becomes eligible for compaction.",
        at_least(1),
    )
    max_message_bytes: int = integer(
        MAX_MESSAGE_BYTES_DEFAULT, MEDIUM, "Maximum size of a record batch, after compression.", at_least(0)
    )
    message_timestamp_after_max_ms: int = long(
        HOUR_MS,
        MEDIUM,
        "Maximum time that a record's timestamp may be ahead of the broker's clock. Ignored with "
        "LogAppendTime.",
        at_least(0),
    )
    message_timestamp_before_max_ms: int = long(
        LONG_MAX,
        MEDIUM,
        "Maximum time that a record's timestamp may be behind the broker's clock. Ignored with "
        "LogAppendTime.",
        at_least(0),
    )
    message_timestamp_type: str = string(
        "CreateTime",
        MEDIUM,
        "Timestamp of a record: CreateTime is the producer's, LogAppendTime is the broker's time at "
        "the append.",
        one_of(*TIMESTAMP_TYPES),
    )
    min_cleanable_dirty_ratio: float = double(
        0.5, MEDIUM, "Minimum share of uncompacted bytes in a log for compaction to start.", between(0, 1)
    )
    min_compaction_lag_ms: int = long(
        0, MEDIUM, "Minimum age of a record before compaction may remove it.", at_least(0)
    )
    min_insync_replicas: int = integer(
        1,
        MEDIUM,
        "Minimum size of the ISR, including the leader. Below it, the broker rejects requests with acks=all.",
        at_least(1),
    )
    preallocate: bool = boolean(
        False, MEDIUM, "Whether the whole space of a new segment is reserved on disk at once."
    )
    remote_log_copy_disable: bool = boolean(
        False, MEDIUM, "Whether copying data to the object store is stopped."
    )
    remote_log_delete_on_disable: bool = boolean(
        False, MEDIUM, "Whether the object store's data is deleted when remote.storage.enable is turned off."
    )
    remote_storage_enable: bool = boolean(
        False, MEDIUM, "Whether closed segments are copied to the object store."
    )
    retention_bytes: int = long(
        -1, MEDIUM, "Maximum size of a partition, above which its oldest data is deleted; -1 sets no limit."
    )
    retention_ms: int = long(
        7 * DAY_MS, MEDIUM, "Age at which data is deleted; -1 keeps it forever.", at_least(-1)
    )
    segment_bytes: int = integer(
        1024**3, MEDIUM, "Maximum size of a segment file.", at_least(MIN_SEGMENT_BYTES)
    )
    segment_index_bytes: int = integer(
        10 * 1024**2, MEDIUM, "Maximum size of a segment's offset index.", at_least(4)
    )
    segment_jitter_ms: int = long(
        0,
        MEDIUM,
        "Maximum random time that is subtracted from segment.ms, so that segments do not all roll at once.",
        at_least(0),
    )
    segment_ms: int = long(
        7 * DAY_MS,
        MEDIUM,
        "Maximum age of an active segment; an older one is closed even if it is not full.",
        at_least(1),
    )
    unclean_leader_election_enable: bool = boolean(
        False,
        MEDIUM,
        "Whether a replica outside the ISR may become leader if no other replica is available. "
        "Records may be lost.",
    )
    tidelog_settings_confirmed: bool = boolean(
        True,
        MEDIUM,
        "Whether the topic's settings are known. They are not if a recovery did not find them. Then "
        "neither retention nor compaction removes records, and no replica outside the ISR becomes leader "
        "unless the topic's own settings allow it.",
        internal=True,
    )
    tidelog_validate_records: bool = boolean(
        False,
        LOW,
        "Whether the broker checks each record of a batch when it appends the batch, not only the "
        "batch's header.",
    )

    @classmethod
    def resolve(cls, broker: BrokerSettings, overrides: Mapping[str, str]) -> TopicSettings:
        """Returns the settings of a topic with these `overrides` on this broker. If they are not confirmed,
        the topic has no cleanup policy. Raises SettingError for the first invalid override.
        """
        values: dict[str, Any] = {  # each of the type of its field
            TOPIC_SETTINGS[name].attribute: broker_default(broker, name) for name in BROKER_SYNONYMS
        }
        for name, text in overrides.items():
            definition = _definition(name)
            values[definition.attribute] = definition.parse(text)
        internal_segment_bytes = values.get("internal_segment_bytes")
        if internal_segment_bytes is not None:
            values["segment_bytes"] = internal_segment_bytes
        if not values.get("tidelog_settings_confirmed", True):
            values["cleanup_policy"] = ()
        return cls(**values)

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def is_deleted(self) -> bool:
        """Whether retention by age and size applies."""
        return "delete" in self.cleanup_policy

    @property
    def is_log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"


TOPIC_SETTINGS: Mapping[str, Setting] = settings_of(TopicSettings)

BROKER_SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "cleanup.policy": ("log.cleanup.policy",),
    "compression.gzip.level": ("compression.gzip.level",),
    "compression.lz4.level": ("compression.lz4.level",),
    "compression.type": ("compression.type",),
    "compression.zstd.level": ("compression.zstd.level",),
    "delete.retention.ms": ("log.cleaner.delete.retention.ms",),
    "file.delete.delay.ms": ("log.segment.delete.delay.ms",),
    "flush.messages": ("log.flush.interval.messages",),
    "flush.ms": ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    "index.interval.bytes": ("log.index.interval.bytes",),
    "local.retention.bytes": ("log.local.retention.bytes",),
    "local.retention.ms": ("log.local.retention.ms",),
    "max.compaction.lag.ms": ("log.cleaner.max.compaction.lag.ms",),
    "max.message.bytes": ("message.max.bytes",),
    "message.timestamp.after.max.ms": ("log.message.timestamp.after.max.ms",),
    "message.timestamp.before.max.ms": ("log.message.timestamp.before.max.ms",),
    "message.timestamp.type": ("log.message.timestamp.type",),
    "min.cleanable.dirty.ratio": ("log.cleaner.min.cleanable.ratio",),
    "min.compaction.lag.ms": ("log.cleaner.min.compaction.lag.ms",),
    "min.insync.replicas": ("min.insync.replicas",),
    "preallocate": ("log.preallocate",),
    "retention.bytes": ("log.retention.bytes",),
    "retention.ms": ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    "segment.bytes": ("log.segment.bytes",),
    "segment.index.bytes": ("log.index.size.max.bytes",),
    "segment.jitter.ms": ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    "segment.ms": ("log.roll.ms", "log.roll.hours"),
    "unclean.leader.election.enable": ("unclean.leader.election.enable",),
    "tidelog.validate.records": ("tidelog.validate.records",),
}
"""The broker settings that provide the default of a topic setting. The first one that is set takes effect."""

_UNIT_MS = {"hours": HOUR_MS, "minutes": MINUTE_MS}


def broker_default(broker: BrokerSettings, name: str) -> Value:
    """Returns the value of topic setting `name` for topics that do not override it."""
    for synonym in BROKER_SYNONYMS.get(name, ()):
        value = in_topic_unit(synonym, broker.value_of(synonym))
        if value is not None:
            return max(value, -1) if name == "retention.ms" and isinstance(value, int) else value
    return TOPIC_SETTINGS[name].default


def are_confirmed(overrides: Mapping[str, str]) -> bool:
    """Returns whether the settings of a topic with these `overrides` are known. Raises SettingError."""
    text = overrides.get(SETTINGS_CONFIRMED)
    return text is None or bool(TOPIC_SETTINGS[SETTINGS_CONFIRMED].parse(text))


def in_topic_unit(broker_name: str, value: Value) -> Value:
    """Converts hours or minutes of a broker setting to the milliseconds of the topic setting."""
    unit_ms = _UNIT_MS.get(broker_name.rpartition(".")[2])
    return value * unit_ms if unit_ms is not None and isinstance(value, int) else value


def validate_overrides(overrides: Mapping[str, str | None], broker: BrokerSettings | None = None) -> None:
    """Raises KafkaError(INVALID_CONFIG) if these cannot be the overrides of a topic.

    With `broker`, rules between settings use the broker's values for settings that the topic does not
    override.
    """
    missing = sorted(name for name, text in overrides.items() if text is None)
    if missing:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(missing)}"
        )
    given = {name: text for name, text in overrides.items() if text is not None}
    try:
        settings = TopicSettings.resolve(broker or _DEFAULT_BROKER, given)
    except SettingError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
    least_ms, greatest_ms = settings.min_compaction_lag_ms, settings.max_compaction_lag_ms
    if least_ms > greatest_ms:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"min.compaction.lag.ms ({least_ms}) is greater than max.compaction.lag.ms ({greatest_ms})",
        )
    for name in given:
        problem = problem_of_value(name, getattr(settings, TOPIC_SETTINGS[name].attribute))
        if problem is not None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, problem)


_DEFAULT_BROKER = BrokerSettings()


def _definition(name: str) -> Setting:
    definition = TOPIC_SETTINGS.get(name)
    if definition is None:
        hint = nearest_name(name, TOPIC_SETTINGS)
        raise SettingError(name, f"Unknown topic config name: {name}{hint}")
    return definition
