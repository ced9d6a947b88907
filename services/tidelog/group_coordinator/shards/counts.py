"""What a coordinator counts, for metrics."""

from __future__ import annotations

from tidelog.model.coordinator_shards import ShardKind


class RuntimeCounts:
    """The event loop's to change, any thread's to read."""

    __slots__ = ("ended", "loads", "longest_load_ms", "lost")

    def __init__(self) -> None:
        self.ended = {True: 0, False: 0}
        """Transactions all of whose markers are written, by whether they were committed."""
        self.loads = dict.fromkeys(ShardKind, 0)
        self.longest_load_ms = dict.fromkeys(ShardKind, 0)
        self.lost = dict.fromkeys(ShardKind, 0)

    def loaded(self, kind: ShardKind, load_ms: int) -> None:
        self.loads[kind] += 1
        self.longest_load_ms[kind] = max(self.longest_load_ms[kind], load_ms)
