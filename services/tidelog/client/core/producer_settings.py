"""The settings of a producer, with the names and defaults of Kafka 4.3's producer.

Older clients had other defaults: `linger.ms` was 0 before 4.0, `acks` was 1 and `enable.idempotence` was
false before 3.0, and `retries` was 0 before 2.1.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.model.protocol_values import ACKS_ALL
from tidelog.records.compression import Compression
from tidelog.settings.setting import (
    HIGH,
    INT_MAX,
    LOW,
    MEDIUM,
    at_least,
    between,
    boolean,
    integer,
    long,
    one_of,
    optional_string,
    string,
)

MAX_IN_FLIGHT_WITH_IDEMPOTENCE = 5
"""A broker remembers this number of batches of each producer, and recognises repetitions of no others."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConnectionSettings:
    """Settings of the connections, which all clients have."""

    client_id: str = string("tidelog", MEDIUM, "Name of the client in the broker's logs and quotas.")
    request_timeout_ms: int = integer(30_000, MEDIUM, "Time to wait for a response.", at_least(1))
    retry_backoff_ms: int = long(100, LOW, "Time before the first retry. It doubles each time.", at_least(0))
    retry_backoff_max_ms: int = long(1_000, LOW, "Longest time before a retry.", at_least(0))
    reconnect_backoff_ms: int = long(50, LOW, "Time before a broker is connected again.", at_least(0))
    reconnect_backoff_max_ms: int = long(1_000, LOW, "Longest time before a reconnection.", at_least(0))
    socket_connection_setup_timeout_ms: int = long(10_000, MEDIUM, "Time to connect.", at_least(1))
    connections_max_idle_ms: int = long(
        540_000, MEDIUM, "An unused connection is closed after this time; -1 means never.", at_least(-1)
    )
    metadata_max_age_ms: int = long(
        300_000, LOW, "Metadata are requested again after this time, even without errors.", at_least(1)
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProducerSettings(ConnectionSettings):
    """Raises ValueError if settings contradict each other."""

    batch_size: int = integer(16_384, MEDIUM, "Bytes of records at which a batch is full.", at_least(0))
    linger_ms: int = long(5, MEDIUM, "Time that a batch waits for more records.", at_least(0))
    buffer_memory: int = long(33_554_432, HIGH, "Bytes of all batches that are not sent.", at_least(1))
    max_block_ms: int = long(
        60_000, MEDIUM, "Time that a send waits for metadata and free memory.", at_least(0)
    )
    max_request_size: int = integer(1_048_576, MEDIUM, "Most bytes of a request.", at_least(1))
    compression_type: str = string(
        "none",
        HIGH,
        "Compression of batches.",
        one_of(*(codec.name.lower() for codec in Compression)),
    )
    acks: str = string(
        "all",
        LOW,
        "Replicas that must have a batch before the leader answers: 0, 1, or all (also written -1).",
        one_of("0", "1", "all", "-1"),
    )
    retries: int = integer(INT_MAX, HIGH, "Most repetitions of a failed request.", at_least(0))
    delivery_timeout_ms: int = integer(
        120_000, MEDIUM, "Time from a send to its acknowledgement or failure.", at_least(0)
    )
    cancelled_flush_timeout_ms: int = long(
        10_000,
        MEDIUM,
        "Time that a producer still sends its records after a cancellation or Ctrl-C, or without a close.",
        at_least(0),
    )
    max_in_flight_requests_per_connection: int = integer(
        5, LOW, "Most requests to one broker without a response.", at_least(1)
    )
    enable_idempotence: bool = boolean(
        True, LOW, "Whether each record is stored exactly once and in the order of the sends."
    )
    transactional_id: str | None = optional_string(LOW, "Name of the producer of transactions.")
    transaction_timeout_ms: int = integer(
        60_000, LOW, "Time after which the coordinator aborts an open transaction.", between(1, INT_MAX)
    )

    def __post_init__(self) -> None:
        if self.delivery_timeout_ms < self.linger_ms + self.request_timeout_ms:
            raise ValueError("delivery.timeout.ms must be at least linger.ms + request.timeout.ms")
        if not self.enable_idempotence:
            if self.transactional_id is not None:
                raise ValueError("transactional.id needs enable.idempotence=true")
            return
        if self.required_acks != ACKS_ALL:
            raise ValueError(
                "enable.idempotence=true needs acks=all; set enable.idempotence=false for fewer acks"
            )
        if self.retries == 0:
            raise ValueError("enable.idempotence=true needs retries of at least 1")
        if self.max_in_flight_requests_per_connection > MAX_IN_FLIGHT_WITH_IDEMPOTENCE:
            raise ValueError(
                "enable.idempotence=true needs max.in.flight.requests.per.connection of at most "
                f"{MAX_IN_FLIGHT_WITH_IDEMPOTENCE}"
            )

    @property
    def required_acks(self) -> int:
        """The number in a Produce request: 0, 1, or -1 for all replicas in sync."""
        return ACKS_ALL if self.acks == "all" else int(self.acks)

    @property
    def compression(self) -> Compression:
        return Compression[self.compression_type.upper()]
