"""The budget of a request that reads records: bytes, records and time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from tidelog.kernel.instants import MonotonicMs

MIB: Final = 1024 * 1024


class Budget(NamedTuple):
    """The most that a request may read. `max_bytes` limits both the bytes that brokers send and the bytes of
    the records after decompression.
    """

    max_bytes: int = 64 * MIB
    max_records: int = 500_000
    max_ms: int = 5_000


@dataclass(slots=True)
class Spent:
    """The work that a request has done."""

    began_ms: MonotonicMs
    fetched_bytes: int = 0
    record_bytes: int = 0
    records: int = 0

    @property
    def read_bytes(self) -> int:
        return max(self.fetched_bytes, self.record_bytes)

    def limit_reached(self, budget: Budget, now_ms: MonotonicMs) -> str | None:
        """Returns the limit that is used up, such as `64.0 MiB`, or None if the request may go on."""
        if self.read_bytes >= budget.max_bytes:
            return f"{budget.max_bytes / MIB:.1f} MiB"
        if self.records >= budget.max_records:
            return f"{budget.max_records:,} records"
        if now_ms - self.began_ms >= budget.max_ms:
            return f"{budget.max_ms / 1000:.1f} s"
        return None
