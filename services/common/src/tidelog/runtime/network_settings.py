"""Broker settings of listeners, connections, requests and replica fetches."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.runtime.coordinator_settings import CoordinatorSettings
from tidelog.runtime.setting import (
    CLUSTER_WIDE,
    HIGH,
    INT_MAX,
    LOW,
    MEDIUM,
    PER_BROKER,
    at_least,
    integer,
    long,
    not_empty,
    one_of,
    optional_string,
    optional_strings,
    string,
    strings,
)

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
REPLICA_SELECTORS = (
    "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "org.apache.kafka.common.replica.LeaderSelector",
    "RackAwareReplicaSelector",
    "LeaderSelector",
)
"""Kafka's own, by name; other Java classes can't be loaded."""


@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False)
class NetworkSettings(CoordinatorSettings):
    """What clients and other brokers connect to; a link of BrokerSettings' chain."""

    # --- listeners ---
    listeners: tuple[str, ...] = strings(
        ("PLAINTEXT://:9092",),
        HIGH,
        "Where the broker listens: NAME://host:port, comma-separated; no host means all interfaces.",
        not_empty,
        mode=PER_BROKER,
    )
    advertised_listeners: tuple[str, ...] | None = optional_strings(
        HIGH, "Addresses that clients are told; listeners where this is not set.", not_empty
    )
    listener_security_protocol_map: str = string(
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        LOW,
        "Which security protocol each listener name stands for: NAME:PROTOCOL, comma-separated.",
        mode=PER_BROKER,
    )
    inter_broker_listener_name: str | None = optional_string(
        MEDIUM, "Listener that brokers use among themselves; security.inter.broker.protocol if unset."
    )
    security_inter_broker_protocol: str = string(
        "PLAINTEXT",
        MEDIUM,
        "Security protocol between brokers; not together with inter.broker.listener.name.",
        one_of(*SECURITY_PROTOCOLS),
    )

    # --- connections ---
    socket_listen_backlog_size: int = integer(
        50, MEDIUM, "Least number of connections that may wait to be accepted.", at_least(1)
    )
    socket_send_buffer_bytes: int = integer(
        102_400, HIGH, "SO_SNDBUF of client connections; -1 for the system's default."
    )
    socket_receive_buffer_bytes: int = integer(
        102_400, HIGH, "SO_RCVBUF of client connections; -1 for the system's default."
    )
    socket_request_max_bytes: int = integer(
        104_857_600, HIGH, "Largest request; a larger one closes its connection.", at_least(1)
    )
    max_connections: int = integer(
        INT_MAX, MEDIUM, "Most connections at a time.", at_least(0), mode=CLUSTER_WIDE
    )
    max_connections_per_ip: int = integer(
        INT_MAX, MEDIUM, "Most connections at a time from one address.", at_least(0), mode=CLUSTER_WIDE
    )
    max_connections_per_ip_overrides: str = string(
        "",
        MEDIUM,
        "Other limits for some addresses or host names: host:number, comma-separated.",
        mode=CLUSTER_WIDE,
    )
    max_connection_creation_rate: int = integer(
        INT_MAX,
        MEDIUM,
        "Most new connections a second; those above it are served later.",
        at_least(0),
        mode=CLUSTER_WIDE,
    )
    connections_max_idle_ms: int = long(
        600_000, MEDIUM, "Silence after which a connection is closed; negative for never."
    )
    queued_max_requests: int = integer(
        500,
        HIGH,
        "Without effect: there is no queue of requests, see tidelog.connection.max.in.flight.requests.",
        at_least(1),
    )
    queued_max_request_bytes: int = long(
        -1, MEDIUM, "Without effect: there is no queue of requests; each is started as soon as it is read."
    )
    request_timeout_ms: int = integer(30_000, HIGH, "Longest wait for another broker's answer.")
    max_request_partition_size_limit: int = integer(
        2_000, MEDIUM, "Most partitions in one answer to DescribeTopicPartitions.", at_least(1)
    )

    # --- fetches ---
    fetch_max_bytes: int = integer(
        57_671_680, MEDIUM, "Most bytes of records in one answer to a fetch.", at_least(1024)
    )
    max_incremental_fetch_session_cache_slots: int = integer(
        1_000, MEDIUM, "Most incremental fetch sessions kept.", at_least(0)
    )
    replica_selector_class: str | None = optional_string(
        MEDIUM, "How a consumer's preferred replica is found (KIP-392); the leader if unset."
    )

    # --- replication ---
    num_replica_fetchers: int = integer(
        1, HIGH, "Connections to each leader that replicas fetch over.", at_least(1), mode=CLUSTER_WIDE
    )
    replica_fetch_max_bytes: int = integer(
        1_048_576, MEDIUM, "Bytes that a replica asks for per partition.", at_least(0)
    )
    replica_fetch_response_max_bytes: int = integer(
        10_485_760, MEDIUM, "Bytes that a replica asks for per fetch.", at_least(0)
    )
    replica_fetch_min_bytes: int = integer(1, HIGH, "Bytes that a replica's fetch waits for.")
    replica_fetch_wait_max_ms: int = integer(500, HIGH, "Longest that it waits for them.")
    replica_fetch_backoff_ms: int = integer(1_000, MEDIUM, "Pause after a failed fetch.", at_least(0))
    replica_lag_time_max_ms: int = long(
        30_000, HIGH, "How long a replica may be behind before it leaves the ISR."
    )
    replica_lag_max_messages: int = long(
        -1,
        LOW,
        "tidelog's own: records that a replica may be behind before it leaves the ISR, -1 for off. "
        "The rule that Kafka gave up in 0.9, as bursts make the ISR flap.",
        at_least(-1),
    )
    replica_high_watermark_checkpoint_interval_ms: int = long(
        5_000, HIGH, "How often high watermarks are written down."
    )
    replica_socket_timeout_ms: int = integer(30_000, HIGH, "Longest wait for a leader's answer.")
    replica_socket_receive_buffer_bytes: int = integer(
        262_144, HIGH, "SO_RCVBUF of connections to leaders; -1 for the system's default."
    )

    # --- quotas ---
    quota_window_num: int = integer(11, LOW, "Samples of client quotas.", at_least(1))
    quota_window_size_seconds: int = integer(1, LOW, "Seconds of each sample.", at_least(1))
    replication_quota_window_num: int = integer(11, LOW, "Samples of replication quotas.", at_least(1))
    replication_quota_window_size_seconds: int = integer(1, LOW, "Seconds of each sample.", at_least(1))
    controller_quota_window_num: int = integer(11, LOW, "Samples of topic mutation quotas.", at_least(1))
    controller_quota_window_size_seconds: int = integer(1, LOW, "Seconds of each sample.", at_least(1))
