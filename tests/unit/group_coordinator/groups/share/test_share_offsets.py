"""DescribeShareGroupOffsets of many groups and partitions: its bound, its questions and its steps."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from brokerlab.counted_work import calls_of
from grouplab import shard_lab
from grouplab.share_lab import ShareLab
from tidelog.group_coordinator import shard_core
from tidelog.group_coordinator.groups.share import share_admin
from tidelog.group_coordinator.groups.share.share_admin import PARTITION_BYTES
from tidelog.group_coordinator.shard_core import AskShareStates
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.codec import response_encoder
from tidelog.wire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from tidelog.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
)

T, PARTITIONS = "t", 4
GROUPS = [f"s{number}" for number in range(10)]
MOST_CALLS_OF_A_STEP = 60


@pytest.fixture
def lab() -> ShareLab:
    made = ShareLab()
    made.set_topic(T, PARTITIONS)
    for group in GROUPS:
        set_offsets(made, group, PARTITIONS)
    made.ends = {TopicPartition(T, 0): 17}
    return made


def set_offsets(lab: ShareLab, group: str, partition_count: int) -> None:
    partitions = [
        AlterShareGroupOffsetsRequestPartition(partition, 10 + partition)
        for partition in range(partition_count)
    ]
    topics = [AlterShareGroupOffsetsRequestTopic(T, partitions)]
    number = lab.send(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, AlterShareGroupOffsetsRequest(group, topics))
    lab.settle()
    assert lab.answers[number].error_code == ErrorCode.NONE


def describe(lab: ShareLab, *groups: str) -> int:
    asked = [DescribeShareGroupOffsetsRequestGroup(group, None) for group in groups]
    return lab.send(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, DescribeShareGroupOffsetsRequest(asked))


def described(lab: ShareLab, *groups: str) -> DescribeShareGroupOffsetsResponse:
    number = describe(lab, *groups)
    lab.settle()
    told: DescribeShareGroupOffsetsResponse = lab.answers[number]
    return told


def test_groups_without_room_in_the_answer_get_a_retriable_error(
    lab: ShareLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = described(lab, *GROUPS)
    assert {group.error_code for group in whole.groups} == {ErrorCode.NONE}
    monkeypatch.setattr(shard_core, "MAX_DESCRIBED_BYTES", 2 * PARTITIONS * PARTITION_BYTES + 1)
    number = describe(lab, *GROUPS)
    assert len(lab.questions) == 3, "nothing is asked about groups without room"
    lab.settle()
    told = lab.answers[number]
    assert told.groups[:3] == whole.groups[:3]
    assert {group.error_code for group in told.groups[3:]} == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    assert [group.group_id for group in told.groups] == GROUPS


def test_a_first_group_without_room_is_described(lab: ShareLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_core, "MAX_DESCRIBED_BYTES", 1)
    errors = [group.error_code for group in described(lab, *GROUPS[:3]).groups]
    assert errors == [ErrorCode.NONE, *[ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 2]


def test_the_room_of_a_partition_is_near_its_size_on_the_wire(lab: ShareLab) -> None:
    lab.set_topic(T, 200)
    set_offsets(lab, "large", 200)
    told = described(lab, "large")
    size_bytes = len(b"".join(response_encoder(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1)(told)))
    assert size_bytes / 2 < 200 * PARTITION_BYTES < 2 * size_bytes


def test_owners_are_asked_about_some_groups_after_the_others(
    lab: ShareLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [*GROUPS[:4], "absent", *GROUPS[4:], "absent too"]
    whole = described(lab, *names)
    monkeypatch.setattr(share_admin, "PARTITIONS_AT_ONCE", 2 * PARTITIONS)
    number = describe(lab, *names)
    open_at_once = 0
    while lab.questions:
        asked = sum(isinstance(question, AskShareStates) for question in lab.questions)
        open_at_once = max(open_at_once, asked)
        lab.answer_first()
    assert open_at_once == 2
    assert lab.answers[number] == whole


def test_a_shard_that_moves_refuses_the_whole_request_once(
    lab: ShareLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_admin, "PARTITIONS_AT_ONCE", 2 * PARTITIONS)
    number = describe(lab, *GROUPS, "absent")
    lab.fail_over()
    told = lab.answers[number]
    assert [group.group_id for group in told.groups] == [*GROUPS, "absent"]
    assert {group.error_code for group in told.groups} == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}


def test_the_answer_is_made_in_steps(lab: ShareLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.set_topic(T, 200)
    set_offsets(lab, "large", 200)
    calls: list[int] = []

    def counted(message: object) -> Any:
        if not isinstance(message, Generator):
            return message
        ended: list[object] = []

        def until_the_end() -> Generator[None, None, None]:
            ended.append((yield from message))
            yield

        steps = until_the_end()
        while not ended:
            calls.append(calls_of(lambda: next(steps)))
        return ended[0]

    monkeypatch.setattr(shard_lab, "completed", counted)
    assert len(described(lab, "large", *GROUPS).groups[0].topics[0].partitions) == 200
    assert len(calls) > 200
    assert max(calls) <= MOST_CALLS_OF_A_STEP
