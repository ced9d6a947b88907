"""The deletion of the offsets of topics and groups in several turns, compared with a model that deletes them
at once.
"""

from __future__ import annotations

from random import Random
from typing import Any  # Any: generated messages have no common base
from uuid import UUID

import pytest

from grouplab.offsets_lab import Logged, OffsetsLab, image_of
from tidelog.group_coordinator.groups import group_offsets
from tidelog.group_coordinator.groups.group_offsets import (
    DELETIONS_PAUSE_MS,
    DELETIONS_TIMER,
    MAX_DELETED_AT_ONCE,
    MAX_SOUGHT_AT_ONCE,
)
from tidelog.group_coordinator.groups.offset_commits import CommittedOffset, GroupPartition, offset_record
from tidelog.group_coordinator.shard_core import CancelTimer, SetTimer, ShardDecision, ShardRequest
from tidelog.kernel.instants import WallMs
from tidelog.model.errors import ErrorCode
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse

SEEDS = 30
STEPS = 40
PRODUCERS = (7, 8, 9)
GROUPS = ("g", "h")
KEYS = [GroupPartition(group, topic, index) for group in GROUPS for topic in "ab" for index in range(3)]


class TimedLab(OffsetsLab):
    """Runs the timer of deletions only when it is told to."""

    def __init__(self) -> None:
        self.has_timer = False
        self.replies: dict[Any, Any] = {}
        self.decisions: list[ShardDecision] = []
        super().__init__()

    def load(self, entries: int | None = None) -> None:
        self.has_timer = False
        super().load(entries)

    def take(self, decision: ShardDecision) -> dict[Any, Any]:
        self.decisions.append(decision)
        for timer in decision.timers:
            if timer.key == DELETIONS_TIMER:
                assert not isinstance(timer, CancelTimer)
                assert timer == SetTimer(DELETIONS_TIMER, DELETIONS_PAUSE_MS)
                assert not self.has_timer
                self.has_timer = True
        replies = super().take(decision)
        assert not replies.keys() & self.replies.keys()
        self.replies.update(replies)
        return replies

    def turn(self) -> None:
        assert self.has_timer
        self.has_timer = False
        self.take(self.core.timer_fired(DELETIONS_TIMER, WallMs(self.now_ms)))

    def finish(self) -> int:
        turns = 0
        while self.has_timer:
            self.turn()
            turns += 1
        return turns

    def recreate(self, *topics: str) -> None:
        for topic in topics:
            self.topic_ids[topic] = UUID(int=self.topic_ids[topic].int + 100)
        self.take(self.core.image_changed(image_of(self.topic_ids), WallMs(self.now_ms)))

    def delete_groups(self, *groups: str) -> str:
        """Sends the request and returns the number of its reply."""
        number = f"deletion {len(self.decisions)}"
        request = ShardRequest(number, ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest(list(groups)))
        self.take(self.core.handle(request, WallMs(self.now_ms)))
        return number

    def errors_of(self, number: str) -> list[int]:
        reply = self.replies[number]
        assert isinstance(reply, DeleteGroupsResponse)
        return [result.error_code for result in reply.results]


class History:
    """Random requests, and for each key its offsets since the last deletion, with their transactions."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.lab = TimedLab()
        self.since_deletion: dict[GroupPartition, list[tuple[int, object]]] = {key: [] for key in KEYS}
        self.outcomes: dict[object, bool | None] = {None: True}
        self.open: dict[int, object] = {}
        self.repeated = 0

    def step(self, number: int) -> None:
        choice, key, producer_id = (
            self.random.random(),
            self.random.choice(KEYS),
            self.random.choice(PRODUCERS),
        )
        where = {"group": key.group_id, "topic": key.topic, "partition": key.partition}
        if choice < 0.25:
            assert self.lab.commit(number, **where) == 0  # type: ignore[arg-type]
            self.since_deletion[key].append((number, None))
        elif choice < 0.55:
            while self.lab.commit_in_transaction(number, (producer_id, 0), **where):  # type: ignore[arg-type]
                self.repeated += 1
                self.lab.turn()  # there is an end, because the error is no other one
            transaction = self.open.setdefault(producer_id, object())
            self.outcomes.setdefault(transaction, None)
            self.since_deletion[key].append((number, transaction))
        elif choice < 0.65:
            is_commit = self.random.random() < 0.7
            assert self.lab.end(is_commit, (producer_id, 0)) == 0
            if producer_id in self.open:
                self.outcomes[self.open.pop(producer_id)] = is_commit
        elif choice < 0.75:
            topics = self.random.choice(["a", "b", "ab"])
            self.lab.recreate(*topics)
            self.forget(lambda key: key.topic in topics)
        elif choice < 0.82:
            self.lab.delete_groups(key.group_id)
            self.forget(lambda other: other.group_id == key.group_id)
        elif choice < 0.95:
            if self.lab.has_timer:
                self.lab.turn()
        else:
            self.lab.finish()
            self.lab.load()

    def forget(self, is_deleted: Any) -> None:
        for key in filter(is_deleted, KEYS):
            self.since_deletion[key] = []

    def check(self) -> None:
        for key, events in self.since_deletion.items():
            where = {"group": key.group_id, "topic": key.topic, "partition": key.partition}
            counting = [offset for offset, transaction in events if self.outcomes[transaction]]
            committed = counting[-1] if counting else -1
            assert self.lab.fetch(**where) == (committed, 0)  # type: ignore[arg-type]
            is_unstable = any(self.outcomes[transaction] is None for _, transaction in events)
            stable = (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT) if is_unstable else (committed, 0)
            assert self.lab.fetch(**where, stable=True) == stable  # type: ignore[arg-type]
        committed_keys = {
            key
            for key, events in self.since_deletion.items()
            if any(self.outcomes[transaction] for _, transaction in events)
        }
        assert {key for key, _ in self.lab.core.offsets.committed_offsets()} == committed_keys
        for group in GROUPS:
            keys = {(key.topic, key.partition) for key in committed_keys if key.group_id == group}
            assert self.lab.fetch_all(group).keys() == keys


@pytest.mark.parametrize("seed", range(SEEDS))
def test_offsets_equal_those_of_the_model(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(group_offsets, "MAX_DELETED_AT_ONCE", 1 + seed % 3)
    monkeypatch.setattr(group_offsets, "MAX_SOUGHT_AT_ONCE", 2 + seed % 7)
    history = History(seed)
    for number in range(STEPS):
        history.step(number)
        history.check()
    history.lab.finish()
    history.check()
    history.lab.load()
    history.check()


def lab_with(offsets: dict[str, int]) -> TimedLab:
    """Returns a lab in which each group has so many offsets of topic a."""
    lab = TimedLab()
    for group, count in offsets.items():
        for partition in range(count):
            record = offset_record(
                GroupPartition(group, "a", partition), CommittedOffset(1, -1, "", WallMs(1))
            )
            lab.log.append(Logged(record, None, None, lab.now_ms))
    lab.load()
    lab.decisions.clear()
    return lab


@pytest.mark.parametrize("offsets", [{"g": 1_201}, {f"g{number}": 1 for number in range(3_000)}])
def test_the_offsets_of_a_deleted_topic_are_deleted_in_several_turns(offsets: dict[str, int]) -> None:
    lab = lab_with(offsets)
    lab.recreate("a")
    assert not list(lab.core.offsets.committed_offsets())
    lab.finish()
    written = [len(decision.records) for decision in lab.decisions]
    assert max(written) == MAX_DELETED_AT_ONCE
    assert sum(written) == sum(offsets.values())
    lab.load()
    assert not lab.core.groups.by_id.keys() & offsets.keys() or not list(lab.core.offsets.committed_offsets())


def test_offsets_of_a_deleted_topic_are_sought_in_several_turns() -> None:
    lab = lab_with({"g": MAX_SOUGHT_AT_ONCE * 3})
    lab.recreate("b")
    assert 2 <= lab.finish() <= 4
    assert len(list(lab.core.offsets.committed_offsets())) == MAX_SOUGHT_AT_ONCE * 3


def test_the_deletion_of_large_groups_is_answered_at_its_end() -> None:
    lab = lab_with({"small": 3, "g": 1_200, "h": 700})
    answer = lab.delete_groups("small", "g", "h", "none")
    assert answer not in lab.replies
    assert lab.fetch_all("g") == {}
    while lab.has_timer:
        assert answer not in lab.replies
        lab.turn()
    assert lab.errors_of(answer) == [0, 0, 0, ErrorCode.GROUP_ID_NOT_FOUND]
    assert max(len(decision.records) for decision in lab.decisions) <= MAX_DELETED_AT_ONCE + 3
    lab.load()
    assert not lab.core.groups.by_id


def test_a_lost_shard_refuses_the_deletions_that_are_under_way() -> None:
    lab = lab_with({"small": 1, "g": 1_200, "h": 700})
    lab.delete_groups("small", "g", "h")
    lab.turn()
    (reply,) = lab.core.deactivate()
    assert isinstance(reply.message, DeleteGroupsResponse)
    refused = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert [result.error_code for result in reply.message.results] == [0, refused, refused]
    lab.load()
    again = lab.delete_groups("small", "g", "h")
    lab.finish()
    assert lab.errors_of(again) == [ErrorCode.GROUP_ID_NOT_FOUND, 0, 0]
