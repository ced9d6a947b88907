"""Requests that wait for many partitions look only at the partition that changed. They end as if they looked
at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.coordination.markers import _MarkerWrite
from tidelog.broker.handlers.delete_records import DelayedDeleteRecords
from tidelog.broker.handlers.produce import DelayedProduce
from tidelog.model.instants import MonotonicMs
from tidelog.model.topics import TopicPartition
from tidelog.timing.purgatory import DelayedOperation, Purgatory
from tidelog.timing.timer import VirtualTimer
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

    operation: DelayedOperation
    outcome: Callable[[], list[object]]


class World:
    """Some partitions, of which an operation may name one repeatedly with several offsets."""

    def __init__(self, count: int, parts: list[tuple[int, int]]) -> None:
        self.cores = [Core() for _ in range(count)]
        self.places = [TopicPartition("t", index) for index in range(count)]
        self.parts: list[Any] = [
            (SimpleNamespace(topic_partition=self.places[index], core=self.cores[index]), offset)
            for index, offset in parts
        ]
        self.metadata: Any = SimpleNamespace(brokers={BROKER_ID: None, FOLLOWER_ID: None})
        self.timer = VirtualTimer()
        self.purgatory: Purgatory[TopicPartition] = Purgatory("t", self.timer, _raise)
        self.ended = 0

    def watch(self, operation: DelayedOperation) -> None:
        keys = [replica.topic_partition for replica, _ in self.parts]
        self.purgatory.watch(operation, keys, DEADLINE_MS)

    def end(self, *_: object) -> None:
        self.ended += 1


def _raise(operation: DelayedOperation, error: Exception) -> None:
    raise AssertionError(f"{operation} failed") from error


def produce(world: World, kind: type[DelayedProduce] = DelayedProduce) -> Waits:
    answers = [PartitionProduceResponse(at) for at in range(len(world.parts))]
    pending = [(*part, answer) for part, answer in zip(world.parts, answers, strict=True)]
    told = cast("Any", SimpleNamespace(add_current_leader=lambda answer, topic: None))
    operation = kind(told, cast("Any", None), pending, world.end)
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


class WalkingProduce(DelayedProduce):
    key_changed = DelayedOperation.key_changed


class WalkingDeleteRecords(DelayedDeleteRecords):
    key_changed = DelayedOperation.key_changed


class WalkingMarkers(_MarkerWrite):
    key_changed = DelayedOperation.key_changed


KINDS: list[Any] = [
    pytest.param(produce, WalkingProduce, id="Produce"),
    pytest.param(delete_records, WalkingDeleteRecords, id="DeleteRecords"),
    pytest.param(markers, WalkingMarkers, id="WriteTxnMarkers"),
]


@pytest.mark.parametrize(("waits", "walking"), KINDS)
def test_the_changes_of_all_partitions_take_linear_time(waits: Any, walking: Any) -> None:
    world = World(MANY, [(index, 1) for index in range(MANY)])
    world.watch(waits(world).operation)
    for core, place in zip(world.cores, world.places, strict=True):
        assert not world.ended
        core.reached = 1
        world.purgatory.check_and_complete(place)
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
        world.purgatory.check_and_complete(world.places[index])
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
