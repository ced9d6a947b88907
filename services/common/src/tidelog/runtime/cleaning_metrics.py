"""What is counted about compaction, and as Prometheus samples."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from tidelog.runtime.sample_families import Families


RECENT_CLEANINGS: Final = 20

DONE: Final = "done"
FAILED: Final = "failed"
CALLED_OFF: Final = "called off"


class Cleaning(NamedTuple):
    """One that came to its end."""

    seconds: float
    bytes_read: int
    bytes_kept: int


class CleanerCounts:
    """Of all cleanings; the event loop's to change, any thread's to read."""

    __slots__ = ("bytes_kept", "bytes_read", "last_ended_s", "max_dirty_ratio", "outcomes", "recent")

    def __init__(self) -> None:
        self.outcomes = {DONE: 0, FAILED: 0, CALLED_OFF: 0}
        self.bytes_read = 0
        self.bytes_kept = 0
        self.max_dirty_ratio = 0.0
        """Of the dirtiest log, when last looked."""
        self.last_ended_s: float | None = None
        """By the monotonic clock."""
        self.recent: deque[Cleaning] = deque(maxlen=RECENT_CLEANINGS)

    def ended(self, outcome: str, cleaning: Cleaning | None, now_s: float) -> None:
        """`cleaning` if it was done."""
        self.outcomes[outcome] += 1
        self.last_ended_s = now_s
        if cleaning is not None:
            self.bytes_read += cleaning.bytes_read
            self.bytes_kept += cleaning.bytes_kept
            self.recent.append(cleaning)


class CleanerView(Protocol):
    """What is shown of a log cleaner. Any thread."""

    @property
    def counts(self) -> CleanerCounts: ...

    @property
    def uncleanable_count(self) -> int: ...

    def now_s(self) -> float:
        """The monotonic clock."""
        ...


def add_cleaner(families: Families, cleaner: CleanerView) -> None:
    counts, recent = cleaner.counts, list(cleaner.counts.recent)
    prefix, doc = "kafka_log_logcleanermanager", "Of the dirtiest compacted log, when last looked"
    families.gauge(f"{prefix}_max_dirty_percent", doc, counts.max_dirty_ratio * 100)
    ended_s = counts.last_ended_s
    since_ms = 0.0 if ended_s is None else max(0.0, cleaner.now_s() - ended_s) * 1000
    families.gauge(f"{prefix}_time_since_last_run_ms", "Since a cleaning ended", since_ms)
    doc = "Logs whose last cleaning failed"
    families.gauge(f"{prefix}_uncleanable_partitions_count", doc, cleaner.uncleanable_count)
    prefix = "kafka_log_logcleaner"
    longest_s = max((cleaning.seconds for cleaning in recent), default=0.0)
    families.gauge(f"{prefix}_max_clean_time_secs", "The longest of the last cleanings", longest_s)
    read, kept = sum(c.bytes_read for c in recent), sum(c.bytes_kept for c in recent)
    doc = "What the last cleanings kept of what they read"
    families.gauge(f"{prefix}_cleaner_recopy_percent", doc, 100 * kept / read if read else 0.0)
    prefix = "tidelog_log_cleaner"
    for outcome, count in counts.outcomes.items():
        families.counter(f"{prefix}_runs", "Cleanings", count, outcome=outcome)
    families.counter(f"{prefix}_bytes_read", "What cleanings read", counts.bytes_read)
    families.counter(f"{prefix}_bytes_kept", "What of it was kept", counts.bytes_kept)
