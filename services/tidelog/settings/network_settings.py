"""Broker settings of listeners, connections, requests and replica fetches."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.settings.coordinator_settings import StreamsSettings
from tidelog.settings.setting import (
    CLUSTER_WIDE,
    HIGH,
    LOW,
    MEDIUM,
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
"""Kafka's own selectors by name. Other Java classes cannot be loaded."""
LEAST_CONNECTIONS = 10
"""The smallest `max.connections`. With fewer connections, an administrator could not undo the setting."""


@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False)
class NetworkSettings(StreamsSettings):
    """The settings of listeners and connections. A base class of BrokerSettings."""

    # Listeners.
    listeners: tuple[str, ...] = strings(
        ("PLAINTEXT://:9092",),
        HIGH,
        "Addresses on which the broker listens: NAME://host:port, separated by commas. An empty host "
        "means all interfaces.",
        not_empty,
    )
    advertised_listeners: tuple[str, ...] | None = optional_strings(
        HIGH, "Addresses that the broker gives to clients. If not set, listeners is used.", not_empty
    )
    listener_security_protocol_map: str = string(
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        LOW,
        "Security protocol of each listener name: NAME:PROTOCOL, separated by commas.",
    )
    inter_broker_listener_name: str | None = optional_string(
        MEDIUM,
        "Listener that brokers use among themselves. If not set, security.inter.broker.protocol decides.",
    )
    tidelog_inter_broker_other_listener_names: tuple[str, ...] = strings(
        (),
        MEDIUM,
        "Further listeners over which brokers replicate, while a cluster moves from one inter-broker "
        "listener to another. A leader accepts followers on each of them, and a follower uses the first "
        "that its leader has.",
    )
    security_inter_broker_protocol: str = string(
        "PLAINTEXT",
        MEDIUM,
        "Security protocol between brokers. It must not be set together with inter.broker.listener.name.",
        one_of(*SECURITY_PROTOCOLS),
    )

    # Connections.
    socket_listen_backlog_size: int = integer(
        50, MEDIUM, "Minimum length of the queue of connections that wait to be accepted.", at_least(1)
    )
    socket_send_buffer_bytes: int = integer(
        102_400,
        HIGH,
        "Size of the send buffer (SO_SNDBUF) of client connections; -1 uses the system's default.",
    )
    socket_receive_buffer_bytes: int = integer(
        -1,
        HIGH,
        "Size of the receive buffer (SO_RCVBUF) of client connections; -1 uses the system's default.",
    )
    socket_request_max_bytes: int = integer(
        104_857_600,
        HIGH,
        "Maximum size of a request. The broker closes a connection that sends a larger one.",
        at_least(1),
    )
    max_connections: int = integer(
        10_000,
        MEDIUM,
        "Maximum number of open connections, except on a listener that only brokers use.",
        at_least(LEAST_CONNECTIONS),
        mode=CLUSTER_WIDE,
    )
    max_connections_per_ip: int = integer(
        2_000,
        MEDIUM,
        "Maximum number of open connections from one IP address.",
        at_least(0),
        mode=CLUSTER_WIDE,
    )
    max_connections_per_ip_overrides: str = string(
        "",
        MEDIUM,
        "Other limits for single addresses or host names: host:number, separated by commas.",
        mode=CLUSTER_WIDE,
    )
    max_connection_creation_rate: int = integer(
        1_000,
        MEDIUM,
        "Maximum number of new connections per second. The broker delays connections above it.",
        at_least(1),
        mode=CLUSTER_WIDE,
    )
    connections_max_idle_ms: int = long(
        600_000,
        MEDIUM,
        "Time without requests after which a connection is closed; a negative value never closes it.",
    )
    queued_max_request_bytes: int = long(
        268_435_456,
        MEDIUM,
        "Maximum number of bytes that the incomplete requests of all clients hold. Each client has a fair "
        "share; above it, the broker stops reading from its connections; -1 sets no limit.",
    )
    request_timeout_ms: int = integer(
        30_000, HIGH, "Maximum time that the broker waits for the response of another broker."
    )
    max_request_partition_size_limit: int = integer(
        2_000, MEDIUM, "Maximum number of partitions in one response to DescribeTopicPartitions.", at_least(1)
    )

    # Fetches.
    fetch_max_bytes: int = integer(
        57_671_680, MEDIUM, "Maximum number of bytes of records in one fetch response.", at_least(1024)
    )
    max_incremental_fetch_session_cache_slots: int = integer(
        1_000, MEDIUM, "Maximum number of incremental fetch sessions.", at_least(0)
    )
    tidelog_max_fetch_session_partitions: int = integer(
        200_000,
        LOW,
        "Maximum number of partitions in all incremental fetch sessions of clients together. Above it, "
        "clients are served without sessions.",
        at_least(0),
    )
    replica_selector_class: str | None = optional_string(
        MEDIUM,
        "Rule by which a consumer's preferred read replica is selected (KIP-392). If not set, "
        "consumers read from the leader.",
    )

    # Replication.
    num_replica_fetchers: int = integer(
        1,
        HIGH,
        "Number of connections to each leader over which followers fetch.",
        at_least(1),
        mode=CLUSTER_WIDE,
    )
    replica_fetch_max_bytes: int = integer(
        1_048_576, MEDIUM, "Number of bytes that a follower requests per partition.", at_least(0)
    )
    replica_fetch_response_max_bytes: int = integer(
        10_485_760, MEDIUM, "Number of bytes that a follower requests per fetch.", at_least(0)
    )
    replica_fetch_min_bytes: int = integer(
        1, HIGH, "Minimum number of bytes that the leader collects before it answers a follower's fetch."
    )
    replica_fetch_wait_max_ms: int = integer(
        500, HIGH, "Maximum time that the leader waits for replica.fetch.min.bytes."
    )
    replica_fetch_backoff_ms: int = integer(1_000, MEDIUM, "Pause after a failed fetch.", at_least(0))
    replica_lag_time_max_ms: int = long(
        30_000,
        HIGH,
        "Maximum time that a follower may be behind the leader's log end before it leaves the ISR.",
    )
    replica_lag_max_messages: int = long(
        -1,
        LOW,
        "Maximum number of records that a follower may be behind before it leaves the ISR; -1 "
        "disables the check. Kafka removed this rule in 0.9, because replicas leave and rejoin the "
        "ISR with each burst of records.",
        at_least(-1),
    )
    replica_high_watermark_checkpoint_interval_ms: int = long(
        5_000, HIGH, "Interval between two checkpoints of the high watermarks."
    )
    replica_socket_timeout_ms: int = integer(
        30_000, HIGH, "Maximum time that a follower waits for the leader's response."
    )
    replica_socket_receive_buffer_bytes: int = integer(
        262_144,
        HIGH,
        "Size of the receive buffer (SO_RCVBUF) of connections to leaders; -1 uses the system's default.",
    )

    # Quotas.
    quota_window_num: int = integer(11, LOW, "Number of samples of client quotas.", at_least(1))
    quota_window_size_seconds: int = integer(1, LOW, "Duration of each sample of client quotas.", at_least(1))
    controller_quota_window_num: int = integer(
        11, LOW, "Number of samples of quotas on topic changes.", at_least(1)
    )
    controller_quota_window_size_seconds: int = integer(
        1, LOW, "Duration of each sample of quotas on topic changes.", at_least(1)
    )
