"""Broker settings of consumer groups, their offsets, and transactions."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.runtime.log_settings import LogSettings
from tidelog.runtime.setting import (
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
    """`group.*`, `offsets.*`, `transaction.*`; a link of BrokerSettings' chain."""

    # --- classic groups ---
    group_min_session_timeout_ms: int = integer(6_000, MEDIUM, "Least session timeout of a member.")
    group_max_session_timeout_ms: int = integer(1_800_000, MEDIUM, "Greatest session timeout of a member.")
    group_initial_rebalance_delay_ms: int = integer(
        3_000, MEDIUM, "How long a group that was empty waits for more members before it starts."
    )
    group_max_size: int = integer(INT_MAX, MEDIUM, "Most members of a group.", at_least(1))
    group_coordinator_rebalance_protocols: tuple[str, ...] = strings(
        ("classic", "consumer", "streams"),
        MEDIUM,
        "Group protocols that are served.",
        not_empty,
        one_of("consumer", "classic", "share", "streams"),
    )
    group_coordinator_append_linger_ms: int = integer(
        -1, MEDIUM, "How long the coordinator collects records before it appends them.", at_least(-1)
    )

    # --- consumer groups (KIP-848) ---
    group_consumer_session_timeout_ms: int = integer(
        45_000, MEDIUM, "Silence after which a member is taken for dead.", at_least(1)
    )
    group_consumer_min_session_timeout_ms: int = integer(
        45_000, MEDIUM, "Least that a group may set for it.", at_least(1)
    )
    group_consumer_max_session_timeout_ms: int = integer(
        60_000, MEDIUM, "Greatest that a group may set for it.", at_least(1)
    )
    group_consumer_heartbeat_interval_ms: int = integer(
        5_000, MEDIUM, "How often members are to call.", at_least(1)
    )
    group_consumer_min_heartbeat_interval_ms: int = integer(
        5_000, MEDIUM, "Least that a group may set for it.", at_least(1)
    )
    group_consumer_max_heartbeat_interval_ms: int = integer(
        15_000, MEDIUM, "Greatest that a group may set for it.", at_least(1)
    )
    group_consumer_max_size: int = integer(INT_MAX, MEDIUM, "Most members of such a group.", at_least(1))
    group_consumer_assignors: tuple[str, ...] = strings(
        ("uniform", "range"), MEDIUM, "Assignors of the server; the first is the default.", not_empty
    )
    group_consumer_migration_policy: str = string(
        "bidirectional",
        MEDIUM,
        "Which groups may change between the classic and the consumer protocol while in use.",
        one_of_ignoring_case("DISABLED", "DOWNGRADE", "UPGRADE", "BIDIRECTIONAL"),
    )

    # --- offsets ---
    offset_metadata_max_bytes: int = integer(4096, HIGH, "Most bytes of metadata with a committed offset.")
    offsets_commit_timeout_ms: int = integer(
        5_000, HIGH, "Longest that a commit waits for all replicas.", at_least(1)
    )
    offsets_load_buffer_size: int = integer(
        5_242_880, HIGH, "Bytes read at a time when a shard is loaded.", at_least(1)
    )
    offsets_retention_minutes: int = integer(
        10_080, HIGH, "How long the offsets of an empty group are kept.", at_least(1)
    )
    offsets_retention_check_interval_ms: int = long(
        600_000, HIGH, "How often expired offsets are looked for.", at_least(1)
    )
    offsets_topic_compression_codec: int = integer(
        0, HIGH, "Codec of __consumer_offsets by number: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."
    )
    offsets_topic_num_partitions: int = integer(
        50, HIGH, "Partitions of __consumer_offsets; not to be changed later.", at_least(1)
    )
    offsets_topic_replication_factor: int = short(
        3, HIGH, "Replicas of __consumer_offsets; as many as there are brokers, if fewer.", at_least(1)
    )
    offsets_topic_segment_bytes: int = integer(
        104_857_600, HIGH, "Segment size of __consumer_offsets.", at_least(1)
    )

    # --- transactions ---
    transaction_max_timeout_ms: int = integer(
        900_000, HIGH, "Greatest transaction timeout that a producer may ask for.", at_least(1)
    )
    transactional_id_expiration_ms: int = integer(
        604_800_000, HIGH, "Silence after which a transactional id is forgotten.", at_least(1)
    )
    transaction_state_log_num_partitions: int = integer(
        50, HIGH, "Partitions of __transaction_state; not to be changed later.", at_least(1)
    )
    transaction_state_log_replication_factor: int = short(
        3, HIGH, "Replicas of __transaction_state; as many as there are brokers, if fewer.", at_least(1)
    )
    transaction_state_log_min_isr: int = integer(
        2, HIGH, "min.insync.replicas of __transaction_state; no more than its replicas.", at_least(1)
    )
    transaction_state_log_segment_bytes: int = integer(
        104_857_600, HIGH, "Segment size of __transaction_state.", at_least(1)
    )
    transaction_state_log_load_buffer_size: int = integer(
        5_242_880, HIGH, "Bytes read at a time when a shard is loaded.", at_least(1)
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = integer(
        10_000, LOW, "How often transactions past their timeout are aborted.", at_least(1)
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = integer(
        3_600_000, LOW, "How often silent transactional ids are looked for.", at_least(1)
    )
    transaction_partition_verification_enable: bool = boolean(
        True, LOW, "Ask the coordinator before a partition takes part in a transaction.", mode=CLUSTER_WIDE
    )
    transaction_two_phase_commit_enable: bool = boolean(
        False, LOW, "Let producers take part in two-phase commits (KIP-939)."
    )
