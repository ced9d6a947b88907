"""The settings of producers, consumers and share consumers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidelog.client.core.connection_settings import (
    ConnectionSettings,
    Properties,
    SettingsError,
    parse_settings,
)
from tidelog.client.core.consuming.assignors import CLASSES, STRATEGIES
from tidelog.model.protocol_values import ACKS_ALL, READ_COMMITTED, READ_UNCOMMITTED
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
    strings,
)

MAX_IN_FLIGHT_WITH_IDEMPOTENCE = 5
"""A broker remembers this number of batches of each producer, and recognises repetitions of no others."""


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


CLASSIC_ONLY = ("partition.assignment.strategy", "session.timeout.ms", "heartbeat.interval.ms")
"""The settings that need `group.protocol=classic`, as in Kafka: otherwise the broker decides."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConsumerSettings(ConnectionSettings):
    """Raises ValueError if settings contradict each other."""

    group_id: str | None = optional_string(HIGH, "Name of the consumer's group.")
    group_instance_id: str | None = optional_string(
        MEDIUM, "Name of a static member, which keeps its partitions while it restarts."
    )
    group_protocol: str = string(
        "consumer",
        HIGH,
        "Protocol of the group: consumer (KIP-848), or classic, which older brokers and clients speak.",
        one_of("consumer", "classic"),
    )
    group_remote_assignor: str | None = optional_string(MEDIUM, "Assignor of the group on the broker.")
    partition_assignment_strategy: tuple[str, ...] = strings(
        ("range", "cooperative-sticky"),
        MEDIUM,
        "Assignors of a classic group, the preferred one first. The members' leader uses one that all know.",
        one_of(*STRATEGIES, *CLASSES),
    )
    session_timeout_ms: int = integer(
        45_000, HIGH, "Time without a heartbeat after which a classic group removes a member.", at_least(1)
    )
    heartbeat_interval_ms: int = integer(
        3_000, HIGH, "Time between the heartbeats of a member of a classic group.", at_least(1)
    )
    exclude_internal_topics: bool = boolean(
        True, MEDIUM, "Whether a pattern of a classic group leaves out Kafka's internal topics."
    )
    client_rack: str = string("", LOW, "Rack of the consumer, for fetches from the closest replica.")
    enable_auto_commit: bool = boolean(True, MEDIUM, "Whether the consumer commits by itself.")
    auto_commit_interval_ms: int = integer(5_000, LOW, "Time between automatic commits.", at_least(0))
    auto_offset_reset: str = string(
        "latest",
        MEDIUM,
        "Position without a committed offset: earliest, latest, or none for an error.",
        one_of("earliest", "latest", "none"),
    )
    max_poll_records: int = integer(500, MEDIUM, "Most records of one poll.", at_least(1))
    max_poll_interval_ms: int = integer(
        300_000, MEDIUM, "Longest time between polls. A slower consumer leaves the group.", at_least(1)
    )
    fetch_min_bytes: int = integer(1, HIGH, "Bytes for which a fetch waits.", at_least(0))
    fetch_max_bytes: int = integer(52_428_800, MEDIUM, "Most bytes of a fetch.", at_least(0))
    fetch_max_wait_ms: int = integer(500, LOW, "Longest time that a fetch waits.", at_least(0))
    max_partition_fetch_bytes: int = integer(
        1_048_576, HIGH, "Most bytes of a partition in a fetch.", at_least(0)
    )
    isolation_level: str = string(
        "read_uncommitted",
        MEDIUM,
        "Whether records of open and aborted transactions are visible.",
        one_of("read_uncommitted", "read_committed"),
    )
    check_crcs: bool = boolean(True, LOW, "Whether CRCs are checked. It cannot be turned off.")
    default_api_timeout_ms: int = integer(
        60_000, MEDIUM, "Time after which a call such as commit or position fails.", at_least(0)
    )
    allow_auto_create_topics: bool = boolean(
        True, MEDIUM, "Whether a subscription creates a missing topic, if the broker permits it."
    )
    metadata_max_age_ms: int = long(300_000, LOW, "Age of metadata.", at_least(1))

    def __post_init__(self) -> None:
        if not self.check_crcs:
            raise ValueError("check.crcs=false is not supported: a CRC costs little")
        if self.group_instance_id is not None and self.group_id is None:
            raise ValueError("group.instance.id needs group.id")
        if self.is_classic and self.group_remote_assignor is not None:
            raise ValueError("group.remote.assignor needs group.protocol=consumer")
        if self.is_classic and not self.partition_assignment_strategy:
            raise ValueError("group.protocol=classic needs partition.assignment.strategy")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ValueError("heartbeat.interval.ms must be less than session.timeout.ms")

    @property
    def is_classic(self) -> bool:
        return self.group_protocol == "classic"

    @property
    def assignors(self) -> tuple[str, ...]:
        """The names of the assignors, as members exchange them."""
        return tuple(dict.fromkeys(CLASSES.get(name, name) for name in self.partition_assignment_strategy))

    @property
    def isolation(self) -> int:
        """The level in a request."""
        return READ_COMMITTED if self.isolation_level == "read_committed" else READ_UNCOMMITTED


def most_records(max_records: int | None, max_poll_records: int) -> int:
    """Returns the most records of a poll. Raises ValueError."""
    if max_records is None:
        return max_poll_records
    if max_records < 1:
        raise ValueError(
            f"max_records={max_records}: a poll gets at least 1; omit max_records to get max.poll.records"
        )
    return max_records


def parse_consumer_settings(properties: Properties) -> ConsumerSettings:
    """Returns the settings. Raises SettingsError."""
    settings = parse_settings(ConsumerSettings, properties)
    for name in CLASSIC_ONLY:
        if name in properties and not settings.is_classic:
            raise SettingsError(f"{name} needs group.protocol=classic: with KIP-848 the broker decides it")
    return settings


ACQUIRE_MODES: Final = ("batch_optimized", "record_limit")
"""The names of the acquire modes, at the place of their numbers (KIP-1206)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShareConsumerSettings(ConnectionSettings):
    """Raises ValueError without a group."""

    group_id: str = string("", HIGH, "Name of the share group.")
    client_rack: str = string("", LOW, "Rack of the consumer.")
    share_acknowledgement_mode: str = string(
        "implicit",
        MEDIUM,
        "Whether the next poll accepts the records of the last one (implicit), or the application says "
        "of each record what became of it (explicit).",
        one_of("implicit", "explicit"),
    )
    share_acquire_mode: str = string(
        "batch_optimized",
        MEDIUM,
        "Whether a fetch gets whole batches, or never more than max.poll.records.",
        one_of(*ACQUIRE_MODES),
    )
    max_poll_records: int = integer(500, MEDIUM, "Most records of one poll.", at_least(1))
    max_poll_interval_ms: int = integer(
        300_000, MEDIUM, "Longest time between polls. A slower consumer leaves the group.", at_least(1)
    )
    fetch_min_bytes: int = integer(1, HIGH, "Bytes for which a fetch waits.", at_least(0))
    fetch_max_bytes: int = integer(52_428_800, MEDIUM, "Most bytes of a fetch.", at_least(0))
    fetch_max_wait_ms: int = integer(500, LOW, "Longest time that a fetch waits.", at_least(0))
    default_api_timeout_ms: int = integer(60_000, MEDIUM, "Time after which a commit fails.", at_least(0))
    allow_auto_create_topics: bool = boolean(
        True, MEDIUM, "Whether a subscription creates a missing topic, if the broker permits it."
    )

    def __post_init__(self) -> None:
        if not self.group_id:
            raise ValueError("a share consumer needs group.id")

    @property
    def is_explicit(self) -> bool:
        return self.share_acknowledgement_mode == "explicit"

    @property
    def acquire_mode(self) -> int:
        """The mode in a request."""
        return ACQUIRE_MODES.index(self.share_acquire_mode)
