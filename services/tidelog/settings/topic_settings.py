"""All settings of a topic, under Kafka's names. A setting that the topic does not override comes from its
broker.

The definitions are those of Kafka's `LogConfig`, and the broker settings that provide defaults are those of
Kafka's `ServerTopicConfigSynonyms`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidelog.kernel.instants import DAY_MS
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import SETTINGS_CONFIRMED
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.settings.other_kafka_settings import nearest_name, problem_of_value
from tidelog.settings.setting import (
    LONG_MAX,
    LOW,
    MEDIUM,
    Setting,
    SettingError,
    Value,
    at_least,
    boolean,
    default_from,
    definition_of,
    definitions,
    optional_integer,
    settings_of,
    strings,
)

_THROTTLED_REPLICA = re.compile(r"[0-9]+:[0-9]+")


def _throttled_replicas(value: tuple[str, ...]) -> str | None:
    if value == ("*",) or all(_THROTTLED_REPLICA.fullmatch(entry) for entry in value):
        return None
    return "must be * or a list of partition:broker"


_BROKER: Final = definitions(BrokerSettings)


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """All settings as plain attributes: `retention.ms` is `retention_ms`."""

    cleanup_policy: tuple[str, ...] = default_from(
        _BROKER.log_cleanup_policy,
        doc=f"{definition_of(_BROKER.log_cleanup_policy).doc} If empty, all data is kept.",
    )
    compression_type: str = default_from(_BROKER.compression_type)
    compression_gzip_level: int = default_from(_BROKER.compression_gzip_level)
    compression_lz4_level: int = default_from(_BROKER.compression_lz4_level)
    compression_zstd_level: int = default_from(_BROKER.compression_zstd_level)
    delete_retention_ms: int = default_from(_BROKER.log_cleaner_delete_retention_ms)
    errors_deadletterqueue_group_enable: bool = boolean(
        False, MEDIUM, "Whether share groups may use the topic as their dead letter topic."
    )
    file_delete_delay_ms: int = default_from(_BROKER.log_segment_delete_delay_ms)
    flush_messages: int = default_from(_BROKER.log_flush_interval_messages)
    flush_ms: int = default_from(
        _BROKER.log_flush_interval_ms,
        _BROKER.log_flush_scheduler_interval_ms,
        default=LONG_MAX,
        doc="Maximum time before a record is flushed to disk.",
        rules=(at_least(0),),
    )
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
    index_interval_bytes: int = default_from(_BROKER.log_index_interval_bytes)
    internal_segment_bytes: int | None = optional_integer(
        MEDIUM, "Maximum size of a segment file below the minimum of segment.bytes; for tests.", internal=True
    )
    local_retention_ms: int = default_from(
        _BROKER.log_local_retention_ms,
        doc="Age at which the local copy of data in an object store is deleted; -2 uses retention.ms.",
    )
    local_retention_bytes: int = default_from(
        _BROKER.log_local_retention_bytes,
        doc="Maximum local size of a partition whose data is in an object store; -2 uses retention.bytes.",
    )
    max_compaction_lag_ms: int = default_from(_BROKER.log_cleaner_max_compaction_lag_ms)
    max_message_bytes: int = default_from(_BROKER.message_max_bytes)
    message_timestamp_after_max_ms: int = default_from(_BROKER.log_message_timestamp_after_max_ms)
    message_timestamp_before_max_ms: int = default_from(_BROKER.log_message_timestamp_before_max_ms)
    message_timestamp_type: str = default_from(_BROKER.log_message_timestamp_type)
    min_cleanable_dirty_ratio: float = default_from(_BROKER.log_cleaner_min_cleanable_ratio)
    min_compaction_lag_ms: int = default_from(_BROKER.log_cleaner_min_compaction_lag_ms)
    min_insync_replicas: int = default_from(_BROKER.min_insync_replicas)
    preallocate: bool = default_from(_BROKER.log_preallocate)
    remote_log_copy_disable: bool = boolean(
        False, MEDIUM, "Whether copying data to the object store is stopped."
    )
    remote_log_delete_on_disable: bool = boolean(
        False, MEDIUM, "Whether the object store's data is deleted when remote.storage.enable is turned off."
    )
    remote_storage_enable: bool = boolean(
        False, MEDIUM, "Whether closed segments are copied to the object store."
    )
    retention_bytes: int = default_from(_BROKER.log_retention_bytes)
    retention_ms: int = default_from(
        _BROKER.log_retention_ms,
        _BROKER.log_retention_minutes,
        _BROKER.log_retention_hours,
        default=7 * DAY_MS,
        doc="Age at which data is deleted; -1 keeps it forever.",
        rules=(at_least(-1),),
    )
    segment_bytes: int = default_from(_BROKER.log_segment_bytes)
    segment_index_bytes: int = default_from(_BROKER.log_index_size_max_bytes)
    segment_jitter_ms: int = default_from(
        _BROKER.log_roll_jitter_ms,
        _BROKER.log_roll_jitter_hours,
        default=0,
        doc="Maximum random time that is subtracted from segment.ms, so that segments do not all roll at "
        "once.",
        rules=(at_least(0),),
    )
    segment_ms: int = default_from(
        _BROKER.log_roll_ms,
        _BROKER.log_roll_hours,
        default=7 * DAY_MS,
        doc="Maximum age of an active segment; an older one is closed even if it is not full.",
        rules=(at_least(1),),
    )
    unclean_leader_election_enable: bool = default_from(_BROKER.unclean_leader_election_enable)
    tidelog_settings_confirmed: bool = boolean(
        True,
        MEDIUM,
        "Whether the topic's settings are known. They are not if a recovery did not find them. Then "
        "neither retention nor compaction removes records, and no replica outside the ISR becomes leader "
        "unless the topic's own settings allow it.",
        internal=True,
    )
    tidelog_validate_records: bool = default_from(_BROKER.tidelog_validate_records, importance=LOW)

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
    name: TOPIC_SETTINGS[name].synonyms for name in sorted(TOPIC_SETTINGS) if TOPIC_SETTINGS[name].synonyms
}
"""The broker settings that provide the default of a topic setting. The first one that is set takes effect."""

_OF_SEVERAL: Final[Mapping[str, Callable[[BrokerSettings], int]]] = {
    "flush.ms": lambda broker: broker.flush_ms,
    "retention.ms": lambda broker: broker.retention_ms,
    "segment.jitter.ms": lambda broker: broker.roll_jitter_ms,
    "segment.ms": lambda broker: broker.roll_ms,
}
"""The topic settings whose default comes from several broker settings, which LogSettings combines."""


def broker_default(broker: BrokerSettings, name: str) -> Value:
    """Returns the value of topic setting `name` for topics that do not override it."""
    combined = _OF_SEVERAL.get(name)
    if combined is not None:
        return combined(broker)
    synonyms = BROKER_SYNONYMS.get(name)
    return TOPIC_SETTINGS[name].default if synonyms is None else broker.value_of(synonyms[0])


def are_confirmed(overrides: Mapping[str, str]) -> bool:
    """Returns whether the settings of a topic with these `overrides` are known. Raises SettingError."""
    text = overrides.get(SETTINGS_CONFIRMED)
    return text is None or bool(TOPIC_SETTINGS[SETTINGS_CONFIRMED].parse(text))


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
