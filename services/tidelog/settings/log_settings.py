"""Broker settings of the log: directories, segments, retention, flushing and compaction.

Most of them are the defaults of a topic setting, which topic_settings.py makes of the definition here.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.kernel.instants import HOUR_MS, MINUTE_MS
from tidelog.settings.setting import (
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


@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False)
class LogSettings:
    """`log.*` and the settings of topics. A base class of BrokerSettings."""

    # Directories.
    log_dir: tuple[str, ...] = strings(
        ("/tmp/kafka-logs",), HIGH, "Data directories; used if log.dirs is not set.", not_empty
    )
    log_dirs: tuple[str, ...] | None = optional_strings(
        HIGH, "Data directories, separated by commas. If not set, log.dir is used.", not_empty
    )
    num_recovery_threads_per_data_dir: int = integer(
        2,
        HIGH,
        "Number of threads that recover logs at startup.",
        at_least(1),
    )

    # Defaults of new topics, and the checks of their records.
    auto_create_topics_enable: bool = boolean(
        True,
        HIGH,
        "Whether a topic is created when a client asks for metadata of a topic that does not exist.",
    )
    delete_topic_enable: bool = boolean(True, HIGH, "Whether topics can be deleted.")
    num_partitions: int = integer(
        1, MEDIUM, "Number of partitions of a new topic if the request does not give it.", at_least(1)
    )
    default_replication_factor: int = integer(
        1, MEDIUM, "Number of replicas of a new topic's partitions if the request does not give it."
    )
    tidelog_max_partitions: int = integer(
        200_000,
        LOW,
        "Maximum number of partitions in the cluster. Requests that would create more are refused with "
        "POLICY_VIOLATION.",
        at_least(1),
    )
    tidelog_max_partitions_per_broker: int = integer(
        20_000,
        LOW,
        "Maximum number of partitions on one broker, leaders and followers. Requests that would create more "
        "are refused with POLICY_VIOLATION; reassignments are not.",
        at_least(1),
    )
    min_insync_replicas: int = integer(
        1,
        HIGH,
        "Minimum size of the ISR, including the leader. Below it, the broker rejects requests with acks=all.",
        at_least(1),
        mode=CLUSTER_WIDE,
    )
    unclean_leader_election_enable: bool = boolean(
        False,
        HIGH,
        "Whether a replica outside the ISR may become leader if no other replica is available. "
        "Records may be lost.",
        mode=CLUSTER_WIDE,
    )
    message_max_bytes: int = integer(
        MAX_MESSAGE_BYTES_DEFAULT,
        HIGH,
        "Maximum size of a record batch, after compression.",
        at_least(0),
        mode=CLUSTER_WIDE,
    )
    compression_type: str = string(
        "producer",
        HIGH,
        "Codec in which batches are stored. With producer, they are stored as the producer sent them.",
        one_of(*COMPRESSION_TYPES),
        mode=CLUSTER_WIDE,
    )
    compression_gzip_level: int = integer(
        -1, MEDIUM, "Compression level if compression.type is gzip.", between_or(1, 9, -1), mode=CLUSTER_WIDE
    )
    compression_lz4_level: int = integer(
        9, MEDIUM, "Compression level if compression.type is lz4.", between(1, 17), mode=CLUSTER_WIDE
    )
    compression_zstd_level: int = integer(
        3, MEDIUM, "Compression level if compression.type is zstd.", between(-131072, 22), mode=CLUSTER_WIDE
    )
    log_message_timestamp_type: str = string(
        "CreateTime",
        MEDIUM,
        "Timestamp of a record: CreateTime is the producer's, LogAppendTime is the broker's time at "
        "the append.",
        one_of(*TIMESTAMP_TYPES),
        mode=CLUSTER_WIDE,
    )
    log_message_timestamp_before_max_ms: int = long(
        LONG_MAX,
        MEDIUM,
        "Maximum time that a record's timestamp may be behind the broker's clock. Ignored with "
        "LogAppendTime.",
        at_least(0),
        mode=CLUSTER_WIDE,
    )
    log_message_timestamp_after_max_ms: int = long(
        HOUR_MS,
        MEDIUM,
        "Maximum time that a record's timestamp may be ahead of the broker's clock. Ignored with "
        "LogAppendTime.",
        at_least(0),
        mode=CLUSTER_WIDE,
    )

    # Rolling.
    log_segment_bytes: int = integer(
        1024**3, HIGH, "Maximum size of a segment file.", at_least(MIN_SEGMENT_BYTES), mode=CLUSTER_WIDE
    )
    log_roll_ms: int | None = optional_long(
        HIGH,
        "Maximum age of an active segment; an older one is closed even if it is not full. If not set,"
        " log.roll.hours is used.",
        mode=CLUSTER_WIDE,
    )
    log_roll_hours: int = integer(
        168, HIGH, "Maximum age of an active segment in hours; used if log.roll.ms is not set.", at_least(1)
    )
    log_roll_jitter_ms: int | None = optional_long(
        HIGH,
        "Maximum random time that is subtracted from log.roll.ms, so that segments do not all roll at"
        " once. If not set, log.roll.jitter.hours is used.",
        mode=CLUSTER_WIDE,
    )
    log_roll_jitter_hours: int = integer(
        0,
        HIGH,
        "Maximum random time in hours that is subtracted from log.roll.ms; used if log.roll.jitter.ms"
        " is not set.",
        at_least(0),
    )
    log_index_size_max_bytes: int = integer(
        10 * 1024**2, MEDIUM, "Maximum size of a segment's offset index.", at_least(4), mode=CLUSTER_WIDE
    )
    log_index_interval_bytes: int = integer(
        4096,
        MEDIUM,
        "Number of bytes of the log between two entries of the offset index.",
        at_least(0),
        mode=CLUSTER_WIDE,
    )
    log_preallocate: bool = boolean(
        False,
        MEDIUM,
        "Whether the whole space of a new segment is reserved on disk at once.",
        mode=CLUSTER_WIDE,
    )

    # Retention.
    log_cleanup_policy: tuple[str, ...] = strings(
        ("delete",),
        MEDIUM,
        "Treatment of old data: delete removes it, compact keeps the last record of each key; both "
        "are possible.",
        one_of(*CLEANUP_POLICIES),
        mode=CLUSTER_WIDE,
    )
    log_retention_ms: int | None = optional_long(
        HIGH,
        "Age at which data is deleted; -1 keeps it forever. If not set, log.retention.minutes is used.",
        mode=CLUSTER_WIDE,
    )
    log_retention_minutes: int | None = optional_integer(
        HIGH,
        "Age in minutes at which data is deleted; used if log.retention.ms is not set. If not set, "
        "log.retention.hours is used.",
    )
    log_retention_hours: int = integer(
        168,
        HIGH,
        "Age in hours at which data is deleted; used if neither log.retention.ms nor "
        "log.retention.minutes is set.",
    )
    log_retention_bytes: int = long(
        -1,
        HIGH,
        "Maximum size of a partition, above which its oldest data is deleted; -1 sets no limit.",
        mode=CLUSTER_WIDE,
    )
    log_retention_check_interval_ms: int = long(
        300_000, MEDIUM, "Interval between two checks for data that retention deletes.", at_least(1)
    )
    log_segment_delete_delay_ms: int = long(
        60_000,
        HIGH,
        "Time that the files of a deleted segment stay on disk.",
        at_least(0),
        mode=CLUSTER_WIDE,
    )
    log_local_retention_ms: int = long(
        -2,
        MEDIUM,
        "Age at which the local copy of data in an object store is deleted; -2 uses log.retention.ms.",
        at_least(-2),
        mode=CLUSTER_WIDE,
    )
    log_local_retention_bytes: int = long(
        -2,
        MEDIUM,
        "Maximum local size of a partition whose data is in an object store; -2 uses log.retention.bytes.",
        at_least(-2),
        mode=CLUSTER_WIDE,
    )

    # Flushing.
    log_flush_interval_messages: int = long(
        LONG_MAX,
        HIGH,
        "Number of records after which a partition is flushed to disk.",
        at_least(1),
        mode=CLUSTER_WIDE,
    )
    log_flush_interval_ms: int | None = optional_long(
        HIGH,
        "Maximum time before a record is flushed to disk. If not set, log.flush.scheduler.interval.ms"
        " is used.",
        mode=CLUSTER_WIDE,
    )
    log_flush_scheduler_interval_ms: int = long(
        LONG_MAX, HIGH, "Interval between two checks for logs that must be flushed."
    )
    log_flush_offset_checkpoint_interval_ms: int = integer(
        60_000, HIGH, "Interval between two checkpoints of the recovery points.", at_least(0)
    )
    log_flush_start_offset_checkpoint_interval_ms: int = integer(
        60_000, HIGH, "Interval between two checkpoints of the log start offsets.", at_least(0)
    )
    log_initial_task_delay_ms: int = long(
        30_000,
        LOW,
        "Time between startup and the first run of the log's periodic tasks.",
        at_least(0),
        internal=True,
    )

    # Idempotent producers.
    producer_id_expiration_ms: int = integer(
        86_400_000,
        LOW,
        "Time without records after which a partition forgets a producer's sequence numbers.",
        at_least(1),
        mode=CLUSTER_WIDE,
    )
    producer_id_expiration_check_interval_ms: int = integer(
        600_000, LOW, "Interval between two checks for expired producers.", at_least(1), internal=True
    )

    # Compaction.
    log_cleaner_enable: bool = boolean(True, MEDIUM, "Whether compaction runs.")
    log_cleaner_threads: int = integer(
        1, MEDIUM, "Number of compactions that run at a time.", at_least(0), mode=CLUSTER_WIDE
    )
    log_cleaner_backoff_ms: int = long(
        15_000,
        MEDIUM,
        "Pause before the next check if no log needs compaction.",
        at_least(0),
        mode=CLUSTER_WIDE,
    )
    log_cleaner_dedupe_buffer_size: int = long(
        134_217_728, MEDIUM, "Total memory for the keys of all running compactions.", mode=CLUSTER_WIDE
    )
    log_cleaner_io_buffer_size: int = integer(
        524_288,
        MEDIUM,
        "Total memory for the file buffers of all running compactions.",
        at_least(0),
        mode=CLUSTER_WIDE,
    )
    log_cleaner_io_buffer_load_factor: float = double(
        0.9, MEDIUM, "Share of the memory for keys that may be filled.", mode=CLUSTER_WIDE
    )
    log_cleaner_io_max_bytes_per_second: float = double(
        MAX_DOUBLE,
        MEDIUM,
        "Limit of the bytes per second that compaction reads and writes.",
        mode=CLUSTER_WIDE,
    )
    log_cleaner_min_cleanable_ratio: float = double(
        0.5,
        MEDIUM,
        "Minimum share of uncompacted bytes in a log for compaction to start.",
        between(0, 1),
        mode=CLUSTER_WIDE,
    )
    log_cleaner_delete_retention_ms: int = long(
        86_400_000,
        MEDIUM,
        "Time that a tombstone stays in a compacted topic.",
        at_least(0),
        mode=CLUSTER_WIDE,
    )
    log_cleaner_min_compaction_lag_ms: int = long(
        0, MEDIUM, "Minimum age of a record before compaction may remove it.", at_least(0), mode=CLUSTER_WIDE
    )
    log_cleaner_max_compaction_lag_ms: int = long(
        LONG_MAX,
        MEDIUM,
        "Maximum age of a record before its log becomes eligible for compaction.",
        at_least(1),
        mode=CLUSTER_WIDE,
    )

    @property
    def data_dirs(self) -> tuple[str, ...]:
        """The data directories: `log.dirs`, or else `log.dir`, without duplicates."""
        return tuple(dict.fromkeys(self.log_dirs or self.log_dir))

    @property
    def retention_ms(self) -> int:
        """The retention time: `log.retention.ms`, or else `.minutes`, or else `.hours`. -1 means forever."""
        if self.log_retention_ms is not None:
            retention_ms = self.log_retention_ms
        elif self.log_retention_minutes is not None:
            retention_ms = self.log_retention_minutes * MINUTE_MS
        else:
            retention_ms = self.log_retention_hours * HOUR_MS
        return max(retention_ms, -1)

    @property
    def roll_ms(self) -> int:
        """The maximum age of an active segment: `log.roll.ms`, or else `log.roll.hours`."""
        return self.log_roll_hours * HOUR_MS if self.log_roll_ms is None else self.log_roll_ms

    @property
    def roll_jitter_ms(self) -> int:
        """The maximum jitter of that age: `log.roll.jitter.ms`, or else `log.roll.jitter.hours`."""
        jitter_ms = self.log_roll_jitter_ms
        return self.log_roll_jitter_hours * HOUR_MS if jitter_ms is None else jitter_ms

    @property
    def flush_ms(self) -> int:
        """The flush interval: `log.flush.interval.ms`, or else `log.flush.scheduler.interval.ms`."""
        interval_ms = self.log_flush_interval_ms
        return self.log_flush_scheduler_interval_ms if interval_ms is None else interval_ms
