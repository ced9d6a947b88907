"""The settings of a share consumer, with the names and defaults of Kafka 4.3's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidelog.client.core.producer_settings import ConnectionSettings
from tidelog.settings.setting import HIGH, LOW, MEDIUM, at_least, boolean, integer, one_of, string

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
