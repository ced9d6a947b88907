"""All committed offsets of a shard, and those that wait for the end of their transaction.

Which of two commits of a position counts is decided by their place in the log: a transaction's offset counts
from where it was written, not from where its marker is, so a later plain commit is never replaced by an older
one (Kafka's `OffsetMetadataManager` compares the same way).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from tidelog.group_coordinator.groups.offsets.offset_records import CommittedOffset, Position
from tidelog.group_coordinator.shard_core import Producer

REMEMBERED_MS: Final = 7 * 86_400_000
"""How long a silent producer's epoch is kept: longer than brokers do (producer.id.expiration.ms)."""

PartitionKey: TypeAlias = tuple[str, int]


class Entry(NamedTuple):
    committed: CommittedOffset
    place: int


class _Known(NamedTuple):
    """What a producer was last seen to have."""

    epoch: int
    coordinator_epoch: int
    seen_ms: int


_UNKNOWN: Final = _Known(-1, -1, -1)


class OffsetTable:
    def __init__(self) -> None:
        self._groups: Final[dict[str, dict[PartitionKey, Entry]]] = {}
        self._open: Final[dict[int, dict[Position, Entry]]] = {}
        """By producer id; without offsets where they were deleted, as the transaction is still open."""
        self._open_counts: Final[dict[Position, int]] = {}
        self._producers: Final[dict[int, _Known]] = {}
        self._next_place = 0

    # -- reading

    def group_ids(self) -> set[str]:
        return self._groups.keys() | {position.group_id for position in self._open_counts}

    def of_group(self, group_id: str) -> dict[PartitionKey, Entry]:
        """Not to be changed."""
        return self._groups.get(group_id, {})

    def get(self, position: Position) -> CommittedOffset | None:
        entry = self.of_group(position.group_id).get((position.topic, position.partition))
        return None if entry is None else entry.committed

    def is_unstable(self, position: Position) -> bool:
        """A transaction has yet to decide on it."""
        return position in self._open_counts

    def open_positions(self, group_id: str) -> list[Position]:
        return [position for position in self._open_counts if position.group_id == group_id]

    def all(self) -> Iterator[tuple[Position, CommittedOffset]]:
        for group_id, entries in self._groups.items():
            for (topic, partition), entry in entries.items():
                yield Position(group_id, topic, partition), entry.committed

    def positions_of(self, topics: set[str]) -> set[Position]:
        found = {position for position, _ in self.all() if position.topic in topics}
        return found | {position for position in self._open_counts if position.topic in topics}

    def has_open_transaction(self, producer_id: int) -> bool:
        return producer_id in self._open

    def newest_epoch(self, producer_id: int) -> int:
        return self._producers.get(producer_id, _UNKNOWN).epoch

    def newest_coordinator_epoch(self, producer_id: int) -> int:
        """Of the markers since the shard was loaded."""
        return self._producers.get(producer_id, _UNKNOWN).coordinator_epoch

    # -- changing; the same whether decided now or replayed

    def apply(
        self,
        position: Position,
        committed: CommittedOffset | None,
        producer: Producer | None,
        now_ms: int,
        place: int | None = None,
    ) -> None:
        """`place` is the offset in the log while that is replayed."""
        if place is None:
            place = self._next_place
        self._next_place = place + 1
        if producer is not None:
            self._saw(producer, now_ms)
            pending = self._open.setdefault(producer.producer_id, {})
            if committed is not None:
                if position not in pending:
                    self._open_counts[position] = self._open_counts.get(position, 0) + 1
                pending[position] = Entry(committed, place)
        elif committed is not None:
            self._put(position, Entry(committed, place))
        else:
            self._delete(position)

    def end(self, producer: Producer, is_commit: bool, now_ms: int, coordinator_epoch: int = -1) -> None:
        """A marker, whether or not the transaction had offsets here."""
        self._saw(producer, now_ms, coordinator_epoch)
        for position, entry in self._open.pop(producer.producer_id, {}).items():
            self._uncount(position)
            if is_commit:
                existing = self.of_group(position.group_id).get((position.topic, position.partition))
                if existing is None or existing.place < entry.place:
                    self._put(position, entry)

    def date_producers(self, now_ms: int) -> None:
        """After loading: everyone counts as just seen, as markers are replayed without their time."""
        for producer_id, known in self._producers.items():
            self._producers[producer_id] = known._replace(seen_ms=now_ms)

    def forget_producers(self, now_ms: int) -> None:
        silent = [
            producer_id
            for producer_id, known in self._producers.items()
            if now_ms - known.seen_ms > REMEMBERED_MS and producer_id not in self._open
        ]
        for producer_id in silent:
            del self._producers[producer_id]

    def _saw(self, producer: Producer, now_ms: int, coordinator_epoch: int = -1) -> None:
        producer_id, epoch = producer
        newest = max(coordinator_epoch, self.newest_coordinator_epoch(producer_id))
        self._producers[producer_id] = _Known(epoch, newest, now_ms)

    def _put(self, position: Position, entry: Entry) -> None:
        group = self._groups.setdefault(position.group_id, {})
        group[position.topic, position.partition] = entry

    def _delete(self, position: Position) -> None:
        """Also what transactions have yet to decide on: it must not come back with their end."""
        group = self._groups.get(position.group_id)
        if group is not None:
            group.pop((position.topic, position.partition), None)
            if not group:
                del self._groups[position.group_id]
        if position in self._open_counts:
            del self._open_counts[position]
            for pending in self._open.values():
                pending.pop(position, None)

    def _uncount(self, position: Position) -> None:
        count = self._open_counts.get(position, 0) - 1
        if count > 0:
            self._open_counts[position] = count
        else:
            self._open_counts.pop(position, None)
