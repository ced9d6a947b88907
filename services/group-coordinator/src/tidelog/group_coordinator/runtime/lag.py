"""How far groups are behind: looked up every few seconds, without reading a record.

A leader tells where its partition's log begins and ends, and by its time index when the record at the
committed offset came. Records of transactions that are still open don't count: nobody can read them yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tidelog.group_coordinator.groups.group_core import GroupCore
from tidelog.group_coordinator.runtime.offset_questions import Position
from tidelog.group_coordinator.runtime.runner import CoordinatorRuntime
from tidelog.group_coordinator.runtime.shard import Cancellable, ShardState
from tidelog.model.topics import TopicPartition
from tidelog.rpc.coordinator_session import PartitionOffsets
from tidelog.runtime.coordinator_metrics import GroupLag

INTERVAL_MS: Final = 5_000
MAX_POSITIONS: Final = 200_000
"""Looked up at a time; groups beyond are left out."""


class LagReporter:
    """A CoordinatorView: what `start` looks up from time to time."""

    def __init__(self, runtime: CoordinatorRuntime) -> None:
        self._runtime = runtime
        self._lags: Sequence[GroupLag] = ()
        self._member_counts: Mapping[str, int] = {}
        self._next: Cancellable | None = None
        self._is_stopped = False

    def start(self) -> None:
        """On the loop."""
        self._look()

    def stop(self) -> None:
        self._is_stopped = True
        if self._next is not None:
            self._next.cancel()

    @property
    def lags(self) -> Sequence[GroupLag]:
        return self._lags

    @property
    def member_counts(self) -> Mapping[str, int]:
        return self._member_counts

    @property
    def shard_counts(self) -> Mapping[tuple[str, str], int]:
        shards = list(self._runtime.shards.values())
        return Counter((shard.shard_id.kind.value, shard.state.value) for shard in shards)

    def _look(self) -> None:
        if self._is_stopped:
            return
        self._next = self._runtime.call_after(self._look, INTERVAL_MS)
        committed: list[tuple[str, TopicPartition, int]] = []
        members: dict[str, int] = {}
        for core in self._cores():
            for group in core.groups.by_id.values():
                members[group.group_id] = group.member_count()
            for position, offset in core.offsets.committed_positions():
                if len(committed) < MAX_POSITIONS:
                    partition = TopicPartition(position.topic, position.partition)
                    committed.append((position.group_id, partition, offset.offset))
        self._member_counts = members
        asked: list[Position] = list({(partition, offset) for _, partition, offset in committed})
        self._runtime.offset_questions.ask(asked, lambda found: self._told(committed, found))

    def _cores(self) -> Iterable[GroupCore]:
        for shard in self._runtime.shards.values():
            core = shard.core
            if shard.state is ShardState.SERVING and isinstance(core, GroupCore):
                yield core

    def _told(
        self,
        committed: Sequence[tuple[str, TopicPartition, int]],
        found: Mapping[Position, PartitionOffsets],
    ) -> None:
        now_ms = self._runtime.now_ms()
        lags = []
        for group, partition, offset in committed:
            offsets = found.get((partition, offset))
            if offsets is not None:
                lags.append(lag_of(group, partition, offset, offsets, now_ms))
        self._lags = lags


def lag_of(
    group: str, partition: TopicPartition, offset: int, offsets: PartitionOffsets, now_ms: int
) -> GroupLag:
    """What was deleted before it was read doesn't count; what can't be read yet neither."""
    lag = max(0, offsets.last_stable_offset - max(offset, offsets.log_start_offset))
    first_unread_ms = offsets.first_unread_timestamp_ms
    seconds = max(0, now_ms - first_unread_ms) / 1000 if lag and first_unread_ms >= 0 else 0.0
    return GroupLag(group, partition.topic, partition.partition, offset, lag, seconds)
