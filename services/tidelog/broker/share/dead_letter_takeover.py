"""Continues the copies of dead letters after a change of leaders, also where no member fetches.

A new leader reads the state of a share partition when a member fetches it. But a group whose records wait for
their copy may have no members any more. So a leader asks for the states of its partitions once in each leader
epoch, for the groups that have a dead letter topic. Where records wait, it begins to use the share partition,
which copies them and is then forgotten.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple
from uuid import UUID

from tidelog.broker.hosting.replica import Replica
from tidelog.broker.share.record_ranges import DeliveryState
from tidelog.broker.share.share_partition import RETRIABLE, SharePartitionKey, ShareState
from tidelog.model.protocol_values import UNKNOWN_EPOCH
from tidelog.model.topics import TopicPartition
from tidelog.wire.messages.read_share_group_state import (
    PartitionData,
    PartitionResult,
    ReadShareGroupStateRequest,
    ReadStateData,
)

MAX_READS: Final = 100
"""The most states that are read at a time. Each has at most 10,000 batches."""


class _Known(NamedTuple):
    """The groups whose states of a partition were read in a leader epoch."""

    leader_epoch: int
    groups: frozenset[str]


class _Unread(NamedTuple):
    key: SharePartitionKey
    replica: Replica
    leader_epoch: int


class DeadLetterTakeover:
    """The states that this broker has read as a leader. `use` begins to use a share partition without a
    member, unless it is in use.
    """

    def __init__(self, state: ShareState, use: Callable[[SharePartitionKey, Replica], object]) -> None:
        self._state = state
        self._use = use
        self._known: dict[TopicPartition, _Known] = {}
        self._groups: frozenset[str] = frozenset()
        """The groups of the last scan, so that the partitions share one set."""

    async def scan(self, groups: frozenset[str], replicas: Iterable[Replica]) -> None:
        """Reads the states of the groups that were not read in the current leader epochs. A state that
        cannot be read now is read by a later scan.
        """
        if groups != self._groups:
            self._groups = groups
        unread = self._unread(list(replicas))
        while wanted := list(islice(unread, MAX_READS)):
            by_group: defaultdict[str, list[_Unread]] = defaultdict(list)
            for found in wanted:
                by_group[found.key.group_id].append(found)
            for group, states in by_group.items():
                await self._read(group, states)

    def _unread(self, replicas: list[Replica]) -> Iterator[_Unread]:
        led = {replica.topic_partition: replica for replica in replicas if replica.core.is_leader}
        self._known = {at: known for at, known in self._known.items() if at in led}
        for at, replica in led.items():
            groups, epoch, known = self._groups, replica.core.leader_epoch, self._known.get(at)
            if known is None or known.leader_epoch != epoch:
                known = self._known[at] = _Known(epoch, frozenset())
            if known.groups is groups:
                continue
            for group in sorted(groups - known.groups):
                yield _Unread(SharePartitionKey(group, replica.topic_id, at.partition), replica, epoch)
            if groups <= known.groups:  # a group has no dead letter topic any more
                self._known[at] = _Known(epoch, groups)

    async def _read(self, group: str, states: list[_Unread]) -> None:
        partitions: defaultdict[UUID, list[PartitionData]] = defaultdict(list)
        for found in states:
            partitions[found.key.topic_id].append(PartitionData(found.key.partition, UNKNOWN_EPOCH))
        topics = [ReadStateData(topic_id, wanted) for topic_id, wanted in partitions.items()]
        response = await self._state.read(ReadShareGroupStateRequest(group, topics))
        results = {
            (topic.topic_id, result.partition): result
            for topic in response.results
            for result in topic.partitions
        }
        for key, replica, leader_epoch in states:
            result = results.get((key.topic_id, key.partition))
            known = self._known.get(replica.topic_partition)
            if result is None or result.error_code in RETRIABLE:
                continue
            if known is None or known.leader_epoch != leader_epoch:
                continue
            if _waits(result):
                self._use(key, replica)
            groups = known.groups | {group}
            self._known[replica.topic_partition] = _Known(
                leader_epoch, self._groups if groups == self._groups else groups
            )


def _waits(result: PartitionResult) -> bool:
    """Returns whether records wait for their copy. A result with an error has no records."""
    return any(batch.delivery_state == DeliveryState.ARCHIVING for batch in result.state_batches)
