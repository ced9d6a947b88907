"""The topic settings that affect a partition's log.

They have Kafka's names (with `_` for `.`) and the defaults of Kafka 4.3.
"""

from __future__ import annotations

from dataclasses import dataclass

INT64_MAX = 2**63 - 1
NO_LIMIT = -1


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The settings of one log: sizes in bytes, times in milliseconds.

    When a setting changes, the log gets a new object.
    """

    segment_bytes: int = 1_073_741_824
    segment_ms: int = 604_800_000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10_485_760
    index_interval_bytes: int = 4096
    retention_ms: int = 604_800_000  # -1: no limit
    retention_bytes: int = NO_LIMIT
    file_delete_delay_ms: int = 60_000
    flush_ms: int = INT64_MAX
    cleanup_policy: frozenset[str] = frozenset({"delete"})

    @property
    def is_delete_policy(self) -> bool:
        return "delete" in self.cleanup_policy
