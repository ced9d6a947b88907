"""Requests that wait for many partitions look only at the partition that changed. They end as if they looked
at all.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.coordination.questions import _MarkerWrite
from tidelog.broker.handlers.delete_records import DelayedDeleteRecords
from tidelog.broker.handlers.produce import DelayedProduce
from tidelog.broker.handlers.share_requests import Acknowledgements, _DelayedAcknowledgements
from tidelog.broker.requests.waiting import Purgatory, Waiter
from tidelog.broker.share.deliveries import AcknowledgementsOf, AcknowledgeResult
from tidelog.broker.share.share_sessions import SessionKey
from tidelog.kernel.instants import MonotonicMs
from tidelog.kernel.steps import all_at_once
from tidelog.kernel.timer import VirtualTimer
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import SharePartitionKey, TopicPartition
from tidelog.wire.messages.delete_records import DeleteRecordsPartitionResult
from tidelog.wire.messages.produce import PartitionProduceResponse

MANY = 200
DEADLINE_MS = MonotonicMs(1000)
BROKER_ID = 1
FOLLOWER_ID = 2


class Core:
    """The state of one partition on which waiting requests depend. It counts how often it is looked at."""

    def __init__(self) -> None:
        self.looks = 0
        self.leads = True
        self.reached = 0
        self.leader_epoch = 3
        self.is_under_min_isr = False
        self.broker_id = BROKER_ID
        self.replicas = (BROKER_ID, FOLLOWER_ID)
        self.log_start_offset = 1 << 60

    @property
    def is_leader(self) -> bool:
        self.looks += 1
        return self.leads

    def is_acknowledged(self, required_offset: int) -> bool:
        return self.reached >= required_offset

    def follower_start_offset(self, replica_id: int) -> int:
        return self.reached


class Waits(NamedTuple):
    """An operation, and what it has found out about each of its parts so far."""

    operation: Waiter
    outcome: Callable[[], list[object]]


class World:
    """Some partitions, of which an operation may name one repeatedly with several offsets."""

    def __init__(self, count: int, parts: list[tuple[int, int]]) -> None:
        self.cores = [Core() for _ in range(count)]
        self.keys: list[Hashable] = [TopicPartition("t", index) for index in range(count)]
        """The keys under which operations wait for the partitions."""
        self.named = [index for index, _ in parts]
        self.parts: list[Any] = [
            (SimpleNamespace(topic_partition=self.keys[index], core=self.cores[index]), offset)
            for index, offset in parts
        ]
        self.metadata: Any = SimpleNamespace(brokers={BROKER_ID: None, FOLLOWER_ID: None})
        self.timer = VirtualTimer()
        self.purgatory: Purgatory = Purgatory("t", self.timer, _raise)
        self.ended = 0

    def watch(self, operation: Waiter) -> None:
        self.purgatory.watch(operation, [self.keys[index] for index in self.named], DEADLINE_MS)

    def end(self, *_: object) -> None:
        self.ended += 1


def _raise(operation: Waiter, error: Exception) -> None:
    raise AssertionError(f"{operation} failed") from error


def produce(world: World, kind: type[DelayedProduce] = DelayedProduce) -> Waits:
    answers = [PartitionProduceResponse(at) for at in range(len(world.parts))]
    pending = [(*part, answer) for part, answer in zip(world.parts, answers, strict=True)]
    told = SimpleNamespace(add_current_leader=lambda answer, topic: None, response=lambda: None)
    operation = kind(cast("Any", told), cast("Any", SimpleNamespace(reply=world.end)), pending)
    return Waits(operation, lambda: [answer.error_code for answer in answers])


def delete_records(world: World, kind: type[DelayedDeleteRecords] = DelayedDeleteRecords) -> Waits:
    results = [DeleteRecordsPartitionResult(at) for at in range(len(world.parts))]
    pending = [(*part, result) for part, result in zip(world.parts, results, strict=True)]
    done = cast("Any", SimpleNamespace(done=lambda: False, set_result=world.end))
    operation = kind(world.metadata, pending, done)
    # Until the end, a low watermark is only as new as the last look at its partition.
    return Waits(
        operation,
        lambda: [(each.error_code, each.low_watermark if world.ended else None) for each in results],
    )


def markers(world: World, kind: type[_MarkerWrite] = _MarkerWrite) -> Waits:
    marker = cast("Any", SimpleNamespace(partitions=[replica.topic_partition for replica, _ in world.parts]))
    operation = kind([marker], world.end)
    for at, (replica, offset) in enumerate(world.parts):
        operation.unreplicated[0, at] = replica, replica.core.leader_epoch, offset
    return Waits(operation, lambda: list(operation.errors[0]))


class SharePartitions:
    """The share partitions of the world's partitions. A look at one ends its acknowledgements, as the share
    coordinator's answers do.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._unstored: list[tuple[Core, int, AcknowledgeResult]] = []

    def find(self, key: SharePartitionKey) -> SimpleNamespace:
        core = self._world.cores[key.partition]
        leads = core.is_leader
        for acknowledged, offset, result in self._unstored:
            if acknowledged is not core or result.error is not None:
                continue
            if not leads:
                result.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif core.is_acknowledged(offset):
                result.error = ErrorCode.NONE
        return SimpleNamespace(
            range_count=1, acknowledge=lambda member, batches: self._acknowledge(core, batches[-1].first)
        )

    def _acknowledge(self, core: Core, offset: int) -> AcknowledgeResult:
        result = AcknowledgeResult()
        self._unstored.append((core, offset, result))
        return result


def acknowledgements(world: World, kind: type[_DelayedAcknowledgements] = _DelayedAcknowledgements) -> Waits:
    key, topic_id = SessionKey("g", "m"), UUID(int=1)
    world.keys = [
        AcknowledgementsOf(SharePartitionKey("g", topic_id, index)) for index in range(len(world.cores))
    ]
    parts = SimpleNamespace(partitions=SharePartitions(world), replica=lambda *_: None)
    acknowledged = Acknowledgements(cast("Any", parts), cast("Any", None), key, may_renew=False)
    # The offsets of a partition that is named repeatedly are one acknowledgement, which ends with the last.
    for index, offset in sorted(
        {(index, part[1]) for index, part in zip(world.named, world.parts, strict=True)}
    ):
        batch = SimpleNamespace(first_offset=offset, last_offset=offset, acknowledge_types=[1])
        acknowledged.add(topic_id, index, [batch])
    all_at_once(acknowledged.begin())
    for core in world.cores:
        core.looks = 0
    operation = kind(acknowledged, cast("Any", None), world.end)
    return Waits(operation, lambda: [result.error for _, result in acknowledged.results])


class WalkingProduce(DelayedProduce):
    def on_change(self, key: Hashable | None) -> bool:
        return super().on_change(None)


class WalkingDeleteRecords(DelayedDeleteRecords):
    def on_change(self, key: Hashable | None) -> bool:
        return super().on_change(None)


class WalkingMarkers(_MarkerWrite):
    def on_change(self, key: Hashable | None) -> bool:
        return super().on_change(None)


class WalkingAcknowledgements(_DelayedAcknowledgements):
    def on_change(self, key: Hashable | None) -> bool:
        return super().on_change(None)


KINDS: list[Any] = [
    pytest.param(produce, WalkingProduce, id="Produce"),
    pytest.param(delete_records, WalkingDeleteRecords, id="DeleteRecords"),
    pytest.param(markers, WalkingMarkers, id="WriteTxnMarkers"),
    pytest.param(acknowledgements, WalkingAcknowledgements, id="ShareAcknowledge"),
]


@pytest.mark.parametrize(("waits", "walking"), KINDS)
def test_the_changes_of_all_partitions_take_linear_time(waits: Any, walking: Any) -> None:
    world = World(MANY, [(index, 1) for index in range(MANY)])
    world.watch(waits(world).operation)
    for core, key in zip(world.cores, world.keys, strict=True):
        assert not world.ended
        core.reached = 1
        world.purgatory.changed(key)
    assert world.ended == 1
    assert sum(core.looks for core in world.cores) == 2 * MANY


PARTITIONS = 3
ACTIONS = st.one_of(
    st.tuples(st.just("reach"), st.integers(0, PARTITIONS - 1), st.integers(0, 4)),
    st.tuples(st.just("leave"), st.integers(0, PARTITIONS - 1), st.just(0)),
    st.tuples(st.just("return"), st.integers(0, PARTITIONS - 1), st.just(0)),
    st.tuples(st.just("shrink"), st.integers(0, PARTITIONS - 1), st.integers(0, 1)),
    st.tuples(st.just("die"), st.integers(0, PARTITIONS - 1), st.just(0)),
)


def _outcomes(
    waits: Any, kind: Any, parts: list[tuple[int, int]], actions: list[tuple[str, int, int]]
) -> Iterator[object]:
    """Yields what the operation has found out after each action. Each action wakes its partition."""
    world = World(PARTITIONS, parts)
    operation, outcome = waits(world, kind)
    world.watch(operation)
    yield world.ended, outcome()
    for action, index, value in actions:
        core = world.cores[index]
        match action:
            case "reach":
                core.reached = max(core.reached, value)
            case "leave":
                core.leads = False
            case "return":
                core.leads, core.leader_epoch = True, core.leader_epoch + 1
            case "shrink":
                core.is_under_min_isr = bool(value)
            case "die":
                world.metadata.brokers = {BROKER_ID: None}
        world.purgatory.changed(world.keys[index])
        yield world.ended, outcome()
    world.timer.advance(DEADLINE_MS)
    yield world.ended, outcome()


@pytest.mark.parametrize(("waits", "walking"), KINDS)
@given(
    parts=st.lists(st.tuples(st.integers(0, PARTITIONS - 1), st.integers(1, 4)), min_size=1, max_size=6),
    actions=st.lists(ACTIONS, max_size=12),
)
def test_it_ends_as_if_it_looked_at_all_partitions(
    waits: Any, walking: Any, parts: list[tuple[int, int]], actions: list[tuple[str, int, int]]
) -> None:
    kind = walking.__mro__[1]
    assert list(_outcomes(waits, kind, parts, actions)) == list(_outcomes(waits, walking, parts, actions))
