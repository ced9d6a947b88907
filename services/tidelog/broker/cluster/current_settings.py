"""The settings that are in force now, and the rules for appends and logs that follow from those of a topic.

AlterConfigs changes some of them while the broker runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import structlog

from tidelog.broker.log.log_config import LogConfig
from tidelog.broker.partition.batch_validation import AppendRules
from tidelog.model.topics import NOT_CONFIRMED
from tidelog.records.compression import Compression
from tidelog.rpc.broker_commands import DEFAULT_BROKER_ENTITY
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.settings.other_kafka_settings import no_effect_remark
from tidelog.settings.setting import SettingError
from tidelog.settings.topic_settings import TopicSettings

MAX_KNOWN_TOPIC_SETTINGS: Final = 1_000
"""The different overrides whose settings are remembered."""

_log = structlog.get_logger(__name__)


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
