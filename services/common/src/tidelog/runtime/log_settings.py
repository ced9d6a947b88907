"""Broker settings of the log: where it lives, how it rolls, is kept, flushed and cleaned.

Most are the defaults of a topic setting (topic_settings.py names which).
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.runtime.setting import (
    CLUSTER_WIDE,
    HIGH,
    LONG_MAX,
    LOW,
    MEDIUM,
    at_least,
    between,
    between_or,
    boolean,
    double,
    integer,
    long,
    not_empty,
    one_of,
    optional_integer,
    optional_long,
    optional_strings,
    string,
    strings,
)

COMPRESSION_TYPES = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
CLEANUP_POLICIES = ("compact", "delete")
MIN_SEGMENT_BYTES = 1024 * 1024
MAX_DOUBLE = 1.7976931348623157e308
MAX_MESSAGE_BYTES_DEFAULT = 1024 * 1024 + 12
HOUR_MS = 3_600_000
MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False)
class LogSettings:
    """`log.*` and what belongs to it; a link of BrokerSettings' chain."""

    # --- places ---
    log_dir: tuple[str, ...] = strings(
        ("/tmp/kafka-logs",), HIGH, "Data directories, where log.dirs is not set.", not_empty
    )
    log_dirs: tuple[str, ...] | None = optional_strings(
        HIGH, "Data directories, comma-separated; log.dir where this is not set.", not_empty
    )
    log_dir_failure_timeout_ms: int = long(
        30_000,
        LOW,
        "How long a failed data directory may stay unknown to the controller before the broker stops.",
        at_least(1),
    )
    num_recovery_threads_per_data_dir: int = integer(
        2,
        HIGH,
        "Threads per data directory for recovery at the start and flushing at the end.",
        at_least(1),
        mode=CLUSTER_WIDE,
    )

    # --- what new topics are like, and what they accept ---
    auto_create_topics_enable: bool = boolean(
        True, HIGH, "Create a topic when a client asks for one that is not there."
    )
    delete_topic_enable: bool = boolean(True, HIGH, "Whether topics can be deleted at all.")
    num_partitions: int = integer(
        1, MEDIUM, "Partitions of a topic that is created without a number of its own.", at_least(1)
    )
    default_replication_factor: int = integer(
        1, MEDIUM, "Replicas of a topic that is created without a number of its own."
    )
    min_insync_replicas: int = integer(
        1,
        HIGH,
        "In-sync replicas, the leader included, below which acks=all is refused.",
        at_least(1),
        mode=CLUSTER_WIDE,
    )
    unclean_leader_election_enable: bool = boolean(
        False,
        HIGH,
        "Let a replica outside the ISR lead when no other is left, at the price of lost records.",
        mode=CLUSTER_WIDE,
    )
    message_max_bytes: int = integer(
        MAX_MESSAGE_BYTES_DEFAULT,
        HIGH,
        "Largest record batch accepted, after compression.",
        at_least(0),
        mode=CLUSTER_WIDE,
    )
    compression_type: str = string(
        "producer",
        HIGH,
        "Codec that batches are stored in; producer keeps what was sent.",
        one_of(*COMPRESSION_TYPES),
        mode=CLUSTER_WIDE,
    )
    compression_gzip_level: int = integer(
        -1, MEDIUM, "Level where compression.type is gzip.", between_or(1, 9, -1), mode=CLUSTER_WIDE
    )
    compression_lz4_level: int = integer(
        9, MEDIUM, "Level where compression.type is lz4.", between(1, 17), mode=CLUSTER_WIDE
    )
    compression_zstd_level: int = integer(
        3, MEDIUM, "Level where compression.type is zstd.", between(-131072, 22), mode=CLUSTER_WIDE
    )
    log_message_timestamp_type: str = string(
        "CreateTime",
        MEDIUM,
        "Whose time a record carries: the producer's, or the broker's at the append.",
        one_of(*TIMESTAMP_TYPES),
        mode=CLUSTER_WIDE,
    )
    log_message_timestamp_before_max_ms: int = long(
        LONG_MAX,
        MEDIUM,
        "How far a record's time may lie behind the broker's; not with LogAppendTime.",
        at_least(0),
        mode=CLUSTER_WIDE,
    )
    log_message_timestamp_after_max_ms: int = long(
        HOUR_MS,
        MEDIUM,
        "How far a record's time may lie ahead of the broker's; not with LogAppendTime.",
        at_least(0),
        mode=CLUSTER_WIDE,
    )

    # --- rolling ---
    log_segment_bytes: int = integer(
        1024**3, HIGH, "Size of a segment file.", at_least(MIN_SEGMENT_BYTES), mode=CLUSTER_WIDE
    )
    log_roll_ms: int | None = optional_long(
        HIGH, "Age at which a segment is closed, full or not; log.roll.hours if unset.", mode=CLUSTER_WIDE
    )
    log_roll_hours: int = integer(168, HIGH, "As log.roll.ms, in hours.", at_least(1))
    log_roll_jitter_ms: int | None = optional_long(
        HIGH,
        "Most that is taken off log.roll.ms at random; log.roll.jitter.hours if unset.",
        mode=CLUSTER_WIDE,
    )
    log_roll_jitter_hours: int = integer(0, HIGH, "As log.roll.jitter.ms, in hours.", at_least(0))
    log_index_size_max_bytes: int = integer(
        10 * 1024**2, MEDIUM, "Largest offset index of a segment.", at_least(4), mode=CLUSTER_WIDE
    )
    log_index_interval_bytes: int = integer(
        4096, MEDIUM, "Bytes of log between two index entries.", at_least(0), mode=CLUSTER_WIDE
    )
    log_preallocate: bool = boolean(
        False, MEDIUM, "Reserve a new segment's space on disk at once.", mode=CLUSTER_WIDE
    )

    # --- retention ---
    log_cleanup_policy: tuple[str, ...] = strings(
        ("delete",),
        MEDIUM,
        "What happens to old data: delete it, compact it by key, or both.",
        one_of(*CLEANUP_POLICIES),
        mode=CLUSTER_WIDE,
    )
    log_retention_ms: int | None = optional_long(
        HIGH, "Age at which data is deleted, -1 for never; log.retention.minutes if unset.", mode=CLUSTER_WIDE
    )
    log_retention_minutes: int | None = optional_integer(
        HIGH, "As log.retention.ms, in minutes; log.retention.hours if unset."
    )
    log_retention_hours: int = integer(168, HIGH, "As log.retention.ms, in hours.")
    log_retention_bytes: int = long(
        -1,
        HIGH,
        "Size of a partition above which its oldest data is deleted, -1 for none.",
        mode=CLUSTER_WIDE,
    )
    log_retention_check_interval_ms: int = long(
        300_000, MEDIUM, "How often it is looked whether anything is to be deleted.", at_least(1)
    )
    log_segment_delete_delay_ms: int = long(
        60_000,
        HIGH,
        "How long the files of a deleted segment stay on disk.",
        at_least(0),
        mode=CLUSTER_WIDE,
    )
    log_local_retention_ms: int = long(
        -2,
        MEDIUM,
        "Age at which data held in an object store is deleted locally; -2 for log.retention.ms.",
        at_least(-2),
        mode=CLUSTER_WIDE,
    )
    log_local_retention_bytes: int = long(
        -2,
        MEDIUM,
        "Size above which data held in an object store is deleted locally; -2 for log.retention.bytes.",
        at_least(-2),
        mode=CLUSTER_WIDE,
    )

    # --- flushing ---
    log_flush_interval_messages: int = long(
        LONG_MAX, HIGH, "Records of a partition after which it is flushed.", at_least(1), mode=CLUSTER_WIDE
    )
    log_flush_interval_ms: int | None = optional_long(
        HIGH,
        "Longest that a record waits to be flushed; log.flush.scheduler.interval.ms if unset.",
        mode=CLUSTER_WIDE,
    )
    log_flush_scheduler_interval_ms: int = long(
        LONG_MAX, HIGH, "How often it is looked whether any log is to be flushed."
    )
    log_flush_offset_checkpoint_interval_ms: int = integer(
        60_000, HIGH, "How often the recovery points are written down.", at_least(0)
    )
    log_flush_start_offset_checkpoint_interval_ms: int = integer(
        60_000, HIGH, "How often the log start offsets are written down.", at_least(0)
    )
    log_initial_task_delay_ms: int = long(
        30_000,
        LOW,
        "Time from the start to the first run of the log's periodic tasks.",
        at_least(0),
        internal=True,
    )

    # --- idempotent producers ---
    producer_id_expiration_ms: int = integer(
        86_400_000,
        LOW,
        "Silence after which a producer's sequence numbers are forgotten.",
        at_least(1),
        mode=CLUSTER_WIDE,
    )
    producer_id_expiration_check_interval_ms: int = integer(
        600_000, LOW, "How often silent producers are looked for.", at_least(1), internal=True
    )

    # --- compaction ---
    log_cleaner_enable: bool = boolean(True, MEDIUM, "Whether compaction runs.")
    log_cleaner_threads: int = integer(1, MEDIUM, "Compactions at a time.", at_least(0), mode=CLUSTER_WIDE)
    log_cleaner_backoff_ms: int = long(
        15_000, MEDIUM, "Pause when there is nothing to compact.", at_least(0), mode=CLUSTER_WIDE
    )
    log_cleaner_dedupe_buffer_size: int = long(
        134_217_728, MEDIUM, "Memory for the keys of all compactions at a time.", mode=CLUSTER_WIDE
    )
    log_cleaner_io_buffer_size: int = integer(
        524_288, MEDIUM, "Memory for the files of all compactions at a time.", at_least(0), mode=CLUSTER_WIDE
    )
    log_cleaner_io_buffer_load_factor: float = double(
        0.9, MEDIUM, "How full the memory for keys may get.", mode=CLUSTER_WIDE
    )
    log_cleaner_io_max_bytes_per_second: float = double(
        MAX_DOUBLE, MEDIUM, "Most that compaction reads and writes a second.", mode=CLUSTER_WIDE
    )
    log_cleaner_min_cleanable_ratio: float = double(
        0.5,
        MEDIUM,
        "Share of not yet compacted bytes from which a log is compacted.",
        between(0, 1),
        mode=CLUSTER_WIDE,
    )
    log_cleaner_delete_retention_ms: int = long(
        86_400_000,
        MEDIUM,
        "How long a deletion marker stays in a compacted topic.",
        at_least(0),
        mode=CLUSTER_WIDE,
    )
    log_cleaner_min_compaction_lag_ms: int = long(
        0, MEDIUM, "Age below which a record isn't compacted away.", at_least(0), mode=CLUSTER_WIDE
    )
    log_cleaner_max_compaction_lag_ms: int = long(
        LONG_MAX,
        MEDIUM,
        "Age by which a superseded record is compacted away.",
        at_least(1),
        mode=CLUSTER_WIDE,
    )

    @property
    def data_dirs(self) -> tuple[str, ...]:
        """`log.dirs`, else `log.dir`; each once."""
        return tuple(dict.fromkeys(self.log_dirs or self.log_dir))

    @property
    def retention_ms(self) -> int:
        """`log.retention.ms` over `.minutes` over `.hours`; -1 for ever."""
        if self.log_retention_ms is not None:
            retention_ms = self.log_retention_ms
        elif self.log_retention_minutes is not None:
            retention_ms = self.log_retention_minutes * MINUTE_MS
        else:
            retention_ms = self.log_retention_hours * HOUR_MS
        return max(retention_ms, -1)

    @property
    def roll_ms(self) -> int:
        """`log.roll.ms` over `log.roll.hours`."""
        return self.log_roll_hours * HOUR_MS if self.log_roll_ms is None else self.log_roll_ms

    @property
    def roll_jitter_ms(self) -> int:
        """`log.roll.jitter.ms` over `log.roll.jitter.hours`."""
        jitter_ms = self.log_roll_jitter_ms
        return self.log_roll_jitter_hours * HOUR_MS if jitter_ms is None else jitter_ms

    @property
    def flush_ms(self) -> int:
        """`log.flush.interval.ms` over `log.flush.scheduler.interval.ms`."""
        interval_ms = self.log_flush_interval_ms
        return self.log_flush_scheduler_interval_ms if interval_ms is None else interval_ms
