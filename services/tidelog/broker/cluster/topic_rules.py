"""Translates a topic's settings into the rules for appends and the configuration of its logs."""

from __future__ import annotations

from typing import Final

from tidelog.broker.log.log_config import LogConfig
from tidelog.broker.partition.batch_validation import AppendRules
from tidelog.records.compression import Compression
from tidelog.settings.topic_settings import TopicSettings

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
