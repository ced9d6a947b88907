"""Broker settings of consumer groups, their offsets, and transactions."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.settings.log_settings import LogSettings
from tidelog.settings.setting import (
    CLUSTER_WIDE,
    HIGH,
    INT_MAX,
    LOW,
    MEDIUM,
    at_least,
    boolean,
    integer,
    long,
    not_empty,
    one_of,
    one_of_ignoring_case,
    short,
    string,
    strings,
)


@dataclass(frozen=True, slots=True)
class CoordinatorSettings(LogSettings):
    """`group.*`, `offsets.*` and `transaction.*`. A base class of BrokerSettings."""

    # --- classic groups ---
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

    # --- consumer groups (KIP-848) ---
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

    # --- offsets ---
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

    # --- transactions ---
    transaction_max_timeout_ms: int = integer(
        900_000, HIGH, "Maximum transaction timeout that a producer may request.", at_least(1)
    )
    transactional_id_expiration_ms: int = integer(
        604_800_000, HIGH, "Time without transactions after which a transactional id is removed.", at_least(1)
    )
    transaction_state_log_num_partitions: int = integer(
        50,
        HIGH,
        "Number of partitions of __transaction_state. It must not be changed after the topic exists.",
        at_least(1),
    )
    transaction_state_log_replication_factor: int = short(
        3,
        HIGH,
        "Number of replicas of __transaction_state; the number of brokers, if that is smaller.",
        at_least(1),
    )
    transaction_state_log_min_isr: int = integer(
        2,
        HIGH,
        "min.insync.replicas of __transaction_state; at most the number of its replicas.",
        at_least(1),
    )
    transaction_state_log_segment_bytes: int = integer(
        104_857_600, HIGH, "Maximum size of the segments of __transaction_state.", at_least(1)
    )
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
