"""Random commits, transactions, deletions and changes of owner, compared with a model that only has the log.

In the model, the offset of a partition is the last one written after the last deletion, without those of
aborted and open transactions.
"""

from __future__ import annotations

from random import Random
from typing import Any  # Any: the planted faults pass arguments on

import pytest

from grouplab.offsets_lab import OffsetsLab
from tidelog.group_coordinator.groups.offset_commits import GroupPartition, OffsetTable
from tidelog.model.errors import ErrorCode
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)

SEEDS = 40
STEPS = 120
PARTITIONS = 2
PRODUCERS = (7, 8)


class Model:
    """The log: one entry for each event of a partition, in order."""

    def __init__(self) -> None:
        self.written: dict[int, list[tuple[int, str]]] = {index: [] for index in range(PARTITIONS)}
        """Maps a partition to its offset (-1 if deleted) and its transaction's name, which may be empty."""
        self.outcomes: dict[str, bool | None] = {"": True}

    def committed(self, partition: int) -> int:
        for offset, transaction in reversed(self.written[partition]):
            if offset < 0:
                return -1
            if self.outcomes[transaction]:
                return offset
        return -1

    def is_unstable(self, partition: int) -> bool:
        for offset, transaction in reversed(self.written[partition]):
            if offset < 0:
                return False
            if self.outcomes[transaction] is None:
                return True
        return False


class History:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.lab = OffsetsLab()
        self.model = Model()
        self.epochs = dict.fromkeys(PRODUCERS, 0)
        self.numbers = dict.fromkeys(PRODUCERS, 0)
        self.open: dict[int, str] = {}
        self.next_offset = 0

    def step(self) -> None:
        choice = self.random.random()
        partition = self.random.randrange(PARTITIONS)
        producer = self.random.choice(PRODUCERS)
        self.next_offset += 1
        if choice < 0.2:
            assert self.lab.commit(self.next_offset, partition=partition) == 0
            self.model.written[partition].append((self.next_offset, ""))
        elif choice < 0.55:
            self.commit_in_transaction(producer, partition)
        elif choice < 0.85:
            self.end(producer, self.random.random() < 0.6)
        elif choice < 0.92:
            self.delete(partition)
        else:
            self.lab.load()
        self.check()

    def commit_in_transaction(self, producer: int, partition: int) -> None:
        identity = (producer, self.epochs[producer])
        if self.random.random() < 0.1 and identity[1]:
            late = (producer, identity[1] - 1)
            error = self.lab.commit_in_transaction(0, late, partition=partition)
            assert error == ErrorCode.INVALID_PRODUCER_EPOCH
            return
        assert self.lab.commit_in_transaction(self.next_offset, identity, partition=partition) == 0
        name = self.open.setdefault(producer, f"{producer}.{self.numbers[producer]}")
        self.model.outcomes.setdefault(name, None)
        self.model.written[partition].append((self.next_offset, name))

    def end(self, producer: int, is_commit: bool) -> None:
        bumps = self.random.random() < 0.5
        epoch = self.epochs[producer] + bumps
        assert self.lab.end(is_commit, (producer, epoch), bumps=bumps) == 0
        name = self.open.pop(producer, None)
        if name is not None:
            self.model.outcomes[name] = is_commit
        self.numbers[producer] += 1
        self.epochs[producer] = epoch
        if self.random.random() < 0.3:  # the request is repeated
            size = len(self.lab.log)
            assert self.lab.end(is_commit, (producer, epoch), bumps=bumps) == 0
            assert len(self.lab.log) == size

    def delete(self, partition: int) -> None:
        topics = [OffsetDeleteRequestTopic("a", [OffsetDeleteRequestPartition(partition)])]
        answer = self.lab.ask(ApiKey.OFFSET_DELETE, 0, OffsetDeleteRequest("g", topics))
        if answer.error_code == ErrorCode.NONE:
            self.model.written[partition].append((-1, ""))

    def check(self) -> None:
        for partition in range(PARTITIONS):
            committed = self.model.committed(partition)
            assert self.lab.fetch(partition=partition) == (committed, 0)
            stable = (
                (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
                if self.model.is_unstable(partition)
                else (committed, 0)
            )
            assert self.lab.fetch(partition=partition, stable=True) == stable


def run(seed: int) -> None:
    history = History(seed)
    for _ in range(STEPS):
        history.step()


def test_offsets_equal_those_of_the_model() -> None:
    for seed in range(SEEDS):
        try:
            run(seed)
        except AssertionError as problem:
            raise AssertionError(f"seed {seed}: {problem}") from problem


def finds() -> bool:
    for seed in range(SEEDS):
        try:
            run(seed)
        except AssertionError:
            return True
    return False


def test_finds_an_older_commit_that_counts_by_its_marker(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = OffsetTable.apply

    def placed(table: OffsetTable, key: GroupPartition, committed: Any, producer: Any, *rest: Any) -> None:
        apply(table, key, committed, producer, *rest)
        if producer is not None and committed is not None:
            pending = table._open[producer.producer_id]
            pending[key] = pending[key]._replace(log_position=1 << 60)

    monkeypatch.setattr(OffsetTable, "apply", placed)
    assert finds()


def test_finds_a_deletion_undone_by_a_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    delete = OffsetTable._delete

    def committed_only(table: OffsetTable, position: GroupPartition) -> None:
        pending = {producer_id: dict(of) for producer_id, of in table._open.items()}
        delete(table, position)
        table._open.update(pending)

    monkeypatch.setattr(OffsetTable, "_delete", committed_only)
    assert finds()
