"""The settings of a topic that an append is held to."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.records.batch import NO_TIMESTAMP, BatchHeader

INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class AppendRules:
    """Kafka's topic settings under their names where these are short enough; the defaults are Kafka's."""

    max_message_bytes: int = 1_048_588
    segment_bytes: int = 1_073_741_824
    is_log_append_time: bool = False  # message.timestamp.type
    timestamp_before_max_ms: int = INT64_MAX  # message.timestamp.before.max.ms
    timestamp_after_max_ms: int = 3_600_000  # message.timestamp.after.max.ms
    is_compacted: bool = False  # cleanup.policy contains compact
    target_compression: int | None = None  # None: compression.type=producer, whatever came
    target_compression_level: int | None = None  # compression.gzip.level etc.; None: the codec's default
    validates_records: bool = False  # tidelog.validate.records

    @property
    def may_need_records(self) -> bool:
        """Is there any batch whose records must be looked at?"""
        return self.is_compacted or self.validates_records or self.target_compression is not None

    def needs_records(self, header: BatchHeader) -> bool:
        """Must the records themselves be looked at (`record_validation.validate_records`)?"""
        return (
            self.is_compacted
            or self.validates_records
            or (self.target_compression is not None and self.target_compression != header.compression)
        )

    def takes_timestamp(self, timestamp_ms: int, now_ms: int) -> bool:
        """Is it near enough to now? -1 (none) always is, and any is where the broker sets its own."""
        return (
            self.is_log_append_time
            or timestamp_ms == NO_TIMESTAMP
            or (
                now_ms - timestamp_ms <= self.timestamp_before_max_ms
                and timestamp_ms - now_ms <= self.timestamp_after_max_ms
            )
        )

    def timestamp_range(self, now_ms: int) -> str:
        return f"[{now_ms - self.timestamp_before_max_ms}, {now_ms + self.timestamp_after_max_ms}]"
