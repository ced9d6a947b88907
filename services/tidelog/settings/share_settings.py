"""Broker settings of share groups (KIP-932) and of the coordinator of their share partitions' states."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.settings.coordinator_settings import CoordinatorSettings
from tidelog.settings.setting import (
    CLUSTER_WIDE,
    HIGH,
    LOW,
    MEDIUM,
    at_least,
    between,
    boolean,
    integer,
    not_empty,
    short,
    string,
    strings,
)


@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False)
class ShareSettings(CoordinatorSettings):
    """Settings of share groups and of their dead letters. A base class of BrokerSettings."""

    # --- members of share groups ---
    group_share_session_timeout_ms: int = integer(
        45_000,
        MEDIUM,
        "Time without a heartbeat after which a member of a share group is removed.",
        at_least(1),
    )
    group_share_min_session_timeout_ms: int = integer(
        45_000, MEDIUM, "Minimum session timeout that a share group may set.", at_least(1)
    )
    group_share_max_session_timeout_ms: int = integer(
        60_000, MEDIUM, "Maximum session timeout that a share group may set.", at_least(1)
    )
    group_share_heartbeat_interval_ms: int = integer(
        5_000, MEDIUM, "Interval at which the members of a share group send heartbeats.", at_least(1)
    )
    group_share_min_heartbeat_interval_ms: int = integer(
        5_000, MEDIUM, "Minimum heartbeat interval that a share group may set.", at_least(1)
    )
    group_share_max_heartbeat_interval_ms: int = integer(
        15_000, MEDIUM, "Maximum heartbeat interval that a share group may set.", at_least(1)
    )
    group_share_assignment_interval_ms: int = integer(
        1_000,
        MEDIUM,
        "Minimum time between two assignments of a share group.",
        at_least(0),
        mode=CLUSTER_WIDE,
    )
    group_share_min_assignment_interval_ms: int = integer(
        0, MEDIUM, "Minimum of share.assignment.interval.ms of a group.", at_least(0)
    )
    group_share_max_assignment_interval_ms: int = integer(
        15_000, MEDIUM, "Maximum of share.assignment.interval.ms of a group.", at_least(0)
    )
    group_share_max_size: int = integer(
        200, MEDIUM, "Maximum number of members of a share group.", between(1, 1_000)
    )
    group_share_assignors: tuple[str, ...] = strings(
        ("simple",), MEDIUM, "Assignors of share groups. There is one, `simple`.", not_empty
    )
    group_share_initialize_retry_interval_ms: int = integer(
        30_000,
        LOW,
        "Time after which the states of share partitions that are being initialized are initialized again.",
        at_least(1),
        internal=True,
    )

    # --- records that share groups have acquired ---
    group_share_partition_max_record_locks: int = integer(
        2_000, MEDIUM, "Maximum number of records in flight of a share partition.", between(100, 10_000)
    )
    group_share_min_partition_max_record_locks: int = integer(
        100, MEDIUM, "Minimum of share.partition.max.record.locks of a group.", between(100, 2_000)
    )
    group_share_max_partition_max_record_locks: int = integer(
        4_000, MEDIUM, "Maximum of share.partition.max.record.locks of a group.", between(2_000, 10_000)
    )
    group_share_delivery_count_limit: int = integer(
        5, MEDIUM, "Number of times that a record is delivered before it is archived.", between(2, 10)
    )
    group_share_min_delivery_count_limit: int = integer(
        2, MEDIUM, "Minimum of share.delivery.count.limit of a group.", between(2, 5)
    )
    group_share_max_delivery_count_limit: int = integer(
        10, MEDIUM, "Maximum of share.delivery.count.limit of a group.", between(5, 25)
    )
    group_share_record_lock_duration_ms: int = integer(
        30_000, MEDIUM, "Time for which a consumer holds an acquired record.", between(1_000, 3_600_000)
    )
    group_share_min_record_lock_duration_ms: int = integer(
        15_000, MEDIUM, "Minimum of share.record.lock.duration.ms of a group.", between(1_000, 30_000)
    )
    group_share_max_record_lock_duration_ms: int = integer(
        60_000, MEDIUM, "Maximum of share.record.lock.duration.ms of a group.", between(30_000, 3_600_000)
    )
    group_share_max_share_sessions: int = integer(
        2_000, MEDIUM, "Maximum number of share sessions of a broker.", at_least(1)
    )

    # --- dead letters of share groups (KIP-1191) ---
    errors_deadletterqueue_auto_create_topics_enable: bool = boolean(
        False,
        MEDIUM,
        "Whether a dead letter topic that a share group names and that does not exist is created.",
        mode=CLUSTER_WIDE,
    )
    errors_deadletterqueue_topic_name_prefix: str = string(
        "dlq.",
        MEDIUM,
        "Prefix of the names of dead letter topics. If it is empty, every name is allowed.",
        mode=CLUSTER_WIDE,
    )

    # --- __share_group_state ---
    share_coordinator_state_topic_num_partitions: int = integer(
        50,
        HIGH,
        "Number of partitions of __share_group_state. It must not be changed after the topic exists.",
        at_least(1),
    )
    share_coordinator_state_topic_replication_factor: int = short(
        3,
        HIGH,
        "Number of replicas of __share_group_state; the number of brokers, if that is smaller.",
        at_least(1),
    )
    share_coordinator_state_topic_min_isr: int = short(
        2,
        HIGH,
        "min.insync.replicas of __share_group_state; at most the number of its replicas.",
        at_least(1),
    )
    share_coordinator_state_topic_segment_bytes: int = integer(
        104_857_600, HIGH, "Maximum size of the segments of __share_group_state.", at_least(1)
    )
    share_coordinator_snapshot_update_records_per_snapshot: int = integer(
        500,
        MEDIUM,
        "Number of updates of a share partition's state between two snapshots of it.",
        between(0, 500),
    )
    share_coordinator_state_topic_prune_interval_ms: int = integer(
        300_000,
        LOW,
        "Interval at which records of __share_group_state that are not needed are deleted.",
        at_least(1),
        internal=True,
    )
    share_coordinator_cold_partition_snapshot_interval_ms: int = integer(
        300_000,
        LOW,
        "Time without a snapshot of a share partition's state after which a snapshot is written.",
        at_least(1),
        internal=True,
    )
