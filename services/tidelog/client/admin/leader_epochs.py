"""Finds the leader epochs of offsets by OffsetForLeaderEpoch requests from the newest epoch downwards."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.client import calls
from tidelog.client.cluster import RETRY_BACKOFF_S, Cluster, Partition
from tidelog.client.connection import answer_of
from tidelog.client.core.cluster_view import EpochEnd, in_parts
from tidelog.client.errors import UnknownTopicError, request_error
from tidelog.model.errors import ErrorCode
from tidelog.model.protocol_values import UNKNOWN_EPOCH
from tidelog.model.topics import TopicPartition


class OffsetRange(NamedTuple):
    """A range of offsets, without `end`."""

    start: int
    end: int


class EpochStart(NamedTuple):
    epoch: int
    start_offset: int


@dataclass(slots=True)
class EpochWalk:
    """The search for the epochs of one range. `asks` is the next epoch to request, None at the end."""

    wanted: OffsetRange
    asks: int | None
    _current: int = UNKNOWN_EPOCH
    _found: list[EpochStart] = field(default_factory=list)

    def answered(self, end: EpochEnd) -> None:
        """Takes a response: the end of the lower epochs is the start of the current one."""
        if self._current != UNKNOWN_EPOCH:
            start = self.wanted.start if end.epoch == UNKNOWN_EPOCH else end.end_offset
            if start < self.wanted.end:
                self._found.append(EpochStart(self._current, max(start, self.wanted.start)))
            if start <= self.wanted.start:
                self.asks = None
                return
        if end.epoch == UNKNOWN_EPOCH:
            self.asks = None
            return
        self._current = end.epoch
        self.asks = end.epoch - 1

    def epochs(self) -> tuple[EpochStart, ...]:
        """Returns the epochs in the order of offsets. The first one starts where the range starts."""
        return tuple(reversed(self._found))


def epochs_of_ranges(
    cluster: Cluster, ranges: Mapping[TopicPartition, OffsetRange]
) -> dict[TopicPartition, tuple[EpochStart, ...]]:
    """Returns the leader epochs of each range. Raises KafkaError, ClientError."""
    leaders = _leaders(cluster, {place.topic for place in ranges})
    walks: dict[TopicPartition, EpochWalk] = {}
    for place, wanted in ranges.items():
        partition = leaders.get(place)
        if partition is None:
            raise UnknownTopicError(f"{place} does not exist")
        walks[place] = EpochWalk(wanted, partition.leader_epoch if wanted.start < wanted.end else None)
    while True:
        asked = {place: walk.asks for place, walk in walks.items() if walk.asks is not None}
        if not asked:
            return {place: walk.epochs() for place, walk in walks.items()}
        for place, end in epoch_ends(cluster, asked).items():
            walks[place].answered(end)


def epoch_ends(cluster: Cluster, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]:
    """Returns the end of the given epoch of each partition.

    If a leader moves, the request is retried until the cluster's timeout. Raises KafkaError, ClientError.
    """
    found: dict[TopicPartition, EpochEnd] = {}
    deadline_s = time.monotonic() + cluster.timeout_s
    while True:
        leaders = _leaders(cluster, {place.topic for place in epochs.keys() - found.keys()})
        failed: tuple[TopicPartition, int] | None = None
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for place in epochs.keys() - found.keys():
            leader = leaders[place].leader if place in leaders else UNKNOWN_EPOCH
            if leader < 0:
                failed = (place, ErrorCode.LEADER_NOT_AVAILABLE)
                continue
            by_leader.setdefault(leader, {})[place] = epochs[place]
        parts = [(leader, part) for leader, asked in by_leader.items() for part in in_parts(asked.items())]
        for leader, part in parts:
            for place, end in answer_of(cluster.broker(leader), calls.epoch_ends(dict(part))).items():
                if end.error_code == ErrorCode.NONE:
                    found[place] = end
                else:
                    failed = (place, end.error_code)
        if failed is None:
            return found
        error = request_error(failed[1], f"leader epochs of {failed[0]}")
        if not error.is_retriable or time.monotonic() > deadline_s:
            raise error
        time.sleep(RETRY_BACKOFF_S)


def _leaders(cluster: Cluster, names: Iterable[str]) -> dict[TopicPartition, Partition]:
    return {
        TopicPartition(topic.name, partition.index): partition
        for topic in cluster.topics(sorted(names)).values()
        for partition in topic.partitions
    }
