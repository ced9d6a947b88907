"""The settings of a consumer, with the names of Kafka 4.3's consumer.

The defaults are Kafka's, except `group.protocol`, which is `consumer` (KIP-848). With that protocol the
broker decides the session timeout and the heartbeat interval.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.client.core.producer_settings import ConnectionSettings
from tidelog.settings.setting import (
    HIGH,
    LOW,
    MEDIUM,
    at_least,
    boolean,
    integer,
    long,
    one_of,
    optional_string,
    string,
)

READ_UNCOMMITTED = 0
READ_COMMITTED = 1


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
        "Protocol of the group. This client supports consumer (KIP-848).",
        one_of("consumer"),
    )
    group_remote_assignor: str | None = optional_string(MEDIUM, "Assignor of the group on the broker.")
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

    @property
    def isolation(self) -> int:
        """The level in a request."""
        return READ_COMMITTED if self.isolation_level == "read_committed" else READ_UNCOMMITTED
