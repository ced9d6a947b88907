"""Broker settings of groups of all kinds, of their offsets, of transactions, and of the states of share
partitions (KIP-932, KIP-1071).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from tidelog.settings.log_settings import LogSettings
from tidelog.settings.setting import (
    CLUSTER_WIDE,
    HIGH,
    INT_MAX,
    LOW,
    MEDIUM,
    SettingType,
    T,
    at_least,
    between,
    boolean,
    definition_of,
    definitions,
    integer,
    like,
    long,
    not_empty,
    one_of,
    one_of_ignoring_case,
    short,
    string,
    strings,
)


def _of_topic(topic: str, setting: T, **changes: Any) -> T:  # each of the type of its field in Setting
    """Makes a field like one of another internal topic, whose name is replaced in the text."""
    return like(setting, doc=re.sub(r"__[a-z_]+", topic, definition_of(setting).doc), **changes)


@dataclass(frozen=True, slots=True)
class CoordinatorSettings(LogSettings):
    """`group.*`, `offsets.*` and `transaction.*`. A base class of BrokerSettings."""

    # Classic groups.
    group_min_session_timeout_ms: int = integer(
        6_000, MEDIUM, "Minimum session timeout of a member of a classic group."
    )
    group_max_session_timeout_ms: int = integer(
        1_800_000, MEDIUM, "Maximum session timeout of a member of a classic group."
    )
    group_initial_rebalance_delay_ms: int = integer(
        3_000, MEDIUM, "Time that an empty group waits for more members before its first rebalance."
    )
    group_max_size: int = integer(
        INT_MAX, MEDIUM, "Maximum number of members of a classic group.", at_least(1)
    )
    group_coordinator_rebalance_protocols: tuple[str, ...] = strings(
        ("classic", "consumer", "streams"),
        MEDIUM,
        "Group protocols that the coordinator supports.",
        not_empty,
        one_of("consumer", "classic", "share", "streams"),
    )

    # Consumer groups (KIP-848).
    group_consumer_session_timeout_ms: int = integer(
        45_000,
        MEDIUM,
        "Time without a heartbeat after which a member of a consumer group is removed.",
        at_least(1),
    )
    group_consumer_min_session_timeout_ms: int = integer(
        45_000, MEDIUM, "Minimum session timeout that a consumer group may set.", at_least(1)
    )
    group_consumer_max_session_timeout_ms: int = integer(
        60_000, MEDIUM, "Maximum session timeout that a consumer group may set.", at_least(1)
    )
    group_consumer_heartbeat_interval_ms: int = integer(
        5_000, MEDIUM, "Interval at which the members of a consumer group send heartbeats.", at_least(1)
    )
    group_consumer_min_heartbeat_interval_ms: int = integer(
        5_000, MEDIUM, "Minimum heartbeat interval that a consumer group may set.", at_least(1)
    )
    group_consumer_max_heartbeat_interval_ms: int = integer(
        15_000, MEDIUM, "Maximum heartbeat interval that a consumer group may set.", at_least(1)
    )
    group_consumer_assignment_interval_ms: int = integer(
        1_000,
        MEDIUM,
        "Minimum time between two assignments of a consumer group.",
        at_least(0),
        mode=CLUSTER_WIDE,
    )
    group_consumer_min_assignment_interval_ms: int = integer(
        0, MEDIUM, "Minimum of consumer.assignment.interval.ms of a group.", at_least(0)
    )
    group_consumer_max_assignment_interval_ms: int = integer(
        15_000, MEDIUM, "Maximum of consumer.assignment.interval.ms of a group.", at_least(0)
    )
    group_consumer_max_size: int = integer(
        INT_MAX, MEDIUM, "Maximum number of members of a consumer group.", at_least(1)
    )
    group_consumer_assignors: tuple[str, ...] = strings(
        ("uniform", "range"), MEDIUM, "Assignors of the coordinator; the first is the default.", not_empty
    )
    group_consumer_migration_policy: str = string(
        "bidirectional",
        MEDIUM,
        "Directions in which groups in use may change between the classic and the consumer protocol.",
        one_of_ignoring_case("DISABLED", "DOWNGRADE", "UPGRADE", "BIDIRECTIONAL"),
    )

    # Offsets.
    offset_metadata_max_bytes: int = integer(
        4096, HIGH, "Maximum size of the metadata of a committed offset."
    )
    offsets_commit_timeout_ms: int = integer(
        5_000, HIGH, "Maximum time that an offset commit waits for all in-sync replicas.", at_least(1)
    )
    offsets_retention_minutes: int = integer(
        10_080, HIGH, "Time that the offsets of an empty group are kept.", at_least(1)
    )
    offsets_retention_check_interval_ms: int = long(
        600_000, HIGH, "Interval between two checks for expired offsets.", at_least(1)
    )
    offsets_topic_num_partitions: int = integer(
        50,
        HIGH,
        "Number of partitions of __consumer_offsets. It must not be changed after the topic exists.",
        at_least(1),
    )
    offsets_topic_replication_factor: int = short(
        3,
        HIGH,
        "Number of replicas of __consumer_offsets; the number of brokers, if that is smaller.",
        at_least(1),
    )
    offsets_topic_segment_bytes: int = integer(
        104_857_600, HIGH, "Maximum size of the segments of __consumer_offsets.", at_least(1)
    )

    # Transactions.
    transaction_max_timeout_ms: int = integer(
        900_000, HIGH, "Maximum transaction timeout that a producer may request.", at_least(1)
    )
    transactional_id_expiration_ms: int = integer(
        604_800_000, HIGH, "Time without transactions after which a transactional id is removed.", at_least(1)
    )
    transaction_state_log_num_partitions: int = _of_topic("__transaction_state", offsets_topic_num_partitions)
    transaction_state_log_replication_factor: int = _of_topic(
        "__transaction_state", offsets_topic_replication_factor
    )
    transaction_state_log_min_isr: int = integer(
        2,
        HIGH,
        "min.insync.replicas of __transaction_state; at most the number of its replicas.",
        at_least(1),
    )
    transaction_state_log_segment_bytes: int = _of_topic("__transaction_state", offsets_topic_segment_bytes)
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = integer(
        10_000, LOW, "Interval between two checks for transactions that have timed out.", at_least(1)
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = integer(
        3_600_000, LOW, "Interval between two checks for expired transactional ids.", at_least(1)
    )
    transaction_partition_verification_enable: bool = boolean(
        True,
        LOW,
        "Whether the leader asks the coordinator before it adds a partition to a transaction.",
        mode=CLUSTER_WIDE,
    )


_OF: Final = definitions(CoordinatorSettings)


def _share(setting: T) -> T:
    """Makes a setting of share groups like one of consumer groups."""
    return like(setting, doc=definition_of(setting).doc.replace("consumer", "share"))


@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False)
class ShareSettings(CoordinatorSettings):
    """Settings of share groups and of their dead letters. A base class of BrokerSettings."""

    # Members of share groups.
    group_share_session_timeout_ms: int = _share(_OF.group_consumer_session_timeout_ms)
    group_share_min_session_timeout_ms: int = _share(_OF.group_consumer_min_session_timeout_ms)
    group_share_max_session_timeout_ms: int = _share(_OF.group_consumer_max_session_timeout_ms)
    group_share_heartbeat_interval_ms: int = _share(_OF.group_consumer_heartbeat_interval_ms)
    group_share_min_heartbeat_interval_ms: int = _share(_OF.group_consumer_min_heartbeat_interval_ms)
    group_share_max_heartbeat_interval_ms: int = _share(_OF.group_consumer_max_heartbeat_interval_ms)
    group_share_assignment_interval_ms: int = _share(_OF.group_consumer_assignment_interval_ms)
    group_share_min_assignment_interval_ms: int = _share(_OF.group_consumer_min_assignment_interval_ms)
    group_share_max_assignment_interval_ms: int = _share(_OF.group_consumer_max_assignment_interval_ms)
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

    # Records that share groups have acquired.
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

    # Dead letters of share groups (KIP-1191).
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

    # The topic __share_group_state.
    share_coordinator_state_topic_num_partitions: int = _of_topic(
        "__share_group_state", _OF.offsets_topic_num_partitions
    )
    share_coordinator_state_topic_replication_factor: int = _of_topic(
        "__share_group_state", _OF.offsets_topic_replication_factor
    )
    share_coordinator_state_topic_min_isr: int = _of_topic(
        "__share_group_state", _OF.transaction_state_log_min_isr, type=SettingType.SHORT
    )
    share_coordinator_state_topic_segment_bytes: int = _of_topic(
        "__share_group_state", _OF.offsets_topic_segment_bytes
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


def _streams(setting: T) -> T:
    """Makes a setting of streams groups like one of consumer groups."""
    return like(setting, doc=definition_of(setting).doc.replace("consumer", "streams"))


@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False)
class StreamsSettings(ShareSettings):
    """`group.streams.*`. A base class of BrokerSettings."""

    group_streams_session_timeout_ms: int = _streams(_OF.group_consumer_session_timeout_ms)
    group_streams_min_session_timeout_ms: int = _streams(_OF.group_consumer_min_session_timeout_ms)
    group_streams_max_session_timeout_ms: int = _streams(_OF.group_consumer_max_session_timeout_ms)
    group_streams_heartbeat_interval_ms: int = _streams(_OF.group_consumer_heartbeat_interval_ms)
    group_streams_min_heartbeat_interval_ms: int = _streams(_OF.group_consumer_min_heartbeat_interval_ms)
    group_streams_max_heartbeat_interval_ms: int = _streams(_OF.group_consumer_max_heartbeat_interval_ms)
    group_streams_max_size: int = _streams(_OF.group_consumer_max_size)
    group_streams_num_standby_replicas: int = integer(
        0, MEDIUM, "Number of standby replicas of each stateful task.", at_least(0)
    )
    group_streams_max_standby_replicas: int = integer(
        2, MEDIUM, "Maximum of streams.num.standby.replicas of a group.", at_least(0)
    )
    group_streams_initial_rebalance_delay_ms: int = integer(
        3_000,
        MEDIUM,
        "Time that a streams group without members waits for more members before its first assignment.",
        at_least(0),
    )
    group_streams_assignment_interval_ms: int = _streams(_OF.group_consumer_assignment_interval_ms)
    group_streams_min_assignment_interval_ms: int = _streams(_OF.group_consumer_min_assignment_interval_ms)
    group_streams_max_assignment_interval_ms: int = _streams(_OF.group_consumer_max_assignment_interval_ms)
