"""The table of offsets, compared with a model that only has the log, and its work for one key or group."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from brokerlab.counted_work import instructions_of
from tidelog.group_coordinator.groups.offset_commits import CommittedOffset, GroupPartition, OffsetTable
from tidelog.group_coordinator.shard_core import Producer
from tidelog.kernel.instants import WallMs

NOW_MS = WallMs(1_000)
SEEDS = 30
STEPS = 80
PRODUCERS = range(4)
GROUPS = ("g", "h")
KEYS = [GroupPartition(group, topic, index) for group in GROUPS for topic in ("a", "b") for index in (0, 1)]


class Model:
    """The events of each key, in order: (offset, transaction), where an offset of -1 is a deletion."""

    def __init__(self) -> None:
        self.events: dict[GroupPartition, list[tuple[int, object]]] = {key: [] for key in KEYS}
        self.outcomes: dict[object, bool | None] = {None: True}

    def since_deletion(self, key: GroupPartition) -> list[tuple[int, object]]:
        events = self.events[key]
        deletions = [number for number, (offset, _) in enumerate(events) if offset < 0]
        return events[deletions[-1] + 1 :] if deletions else events

    def committed(self, key: GroupPartition) -> int | None:
        counting = [offset for offset, transaction in self.since_deletion(key) if self.outcomes[transaction]]
        return counting[-1] if counting else None

    def is_unstable(self, key: GroupPartition) -> bool:
        return any(self.outcomes[transaction] is None for _, transaction in self.since_deletion(key))


def check(table: OffsetTable, model: Model) -> None:
    unstable = {key for key in KEYS if model.is_unstable(key)}
    known = {key for key in KEYS if model.committed(key) is not None} | unstable
    for key in KEYS:
        found = table.get(key)
        assert (None if found is None else found.offset) == model.committed(key)
        assert table.is_unstable(key) == (key in unstable)
    for group in GROUPS:
        partitions = table.all_partitions_of(group)
        assert sorted(partitions) == sorted(key.topic_partition for key in known if key.group_id == group)
        assert table.has_offsets(group) == any(key.group_id == group for key in known)
    assert set(table.group_ids()) == {key.group_id for key in known}


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_table_equals_the_model(seed: int) -> None:
    random, table, model = Random(seed), OffsetTable(), Model()
    open_transactions: dict[int, object] = {}
    for offset in range(STEPS):
        choice, key, producer_id = random.random(), random.choice(KEYS), random.choice(PRODUCERS)
        if choice < 0.15:
            table.apply(key, CommittedOffset(offset, -1, "", NOW_MS), None, NOW_MS)
            model.events[key].append((offset, None))
        elif choice < 0.6:
            transaction = open_transactions.setdefault(producer_id, object())
            table.apply(key, CommittedOffset(offset, -1, "", NOW_MS), Producer(producer_id, 0), NOW_MS)
            model.events[key].append((offset, transaction))
            model.outcomes.setdefault(transaction, None)
        elif choice < 0.8:
            is_commit = random.random() < 0.5
            table.end(Producer(producer_id, 0), is_commit, NOW_MS)
            if producer_id in open_transactions:
                model.outcomes[open_transactions.pop(producer_id)] = is_commit
        else:
            table.apply(key, None, None, NOW_MS)
            model.events[key].append((-1, None))
        check(table, model)


def table_with(transactions: int) -> OffsetTable:
    """Returns a table in which each transaction has one pending offset of a group of its own."""
    table = OffsetTable()
    for number in range(transactions):
        key = GroupPartition(f"g{number}", "a", 0)
        table.apply(key, CommittedOffset(1, -1, "", NOW_MS), Producer(number, 0), NOW_MS)
    return table


@pytest.mark.parametrize(
    "work",
    [
        lambda table: table.apply(GroupPartition("g1", "a", 0), None, None, NOW_MS),
        lambda table: table.all_partitions_of("g1"),
        lambda table: table.has_offsets("g1"),
        lambda table: table.is_unstable(GroupPartition("g1", "a", 0)),
        lambda table: table.end(Producer(1, 0), True, NOW_MS),
    ],
    ids=["delete", "all_partitions_of", "has_offsets", "is_unstable", "end"],
)
def test_work_for_one_group_does_not_depend_on_the_other_transactions(
    work: Callable[[OffsetTable], object],
) -> None:
    few, many = table_with(2), table_with(500)
    assert instructions_of(lambda: work(few)) == instructions_of(lambda: work(many))
