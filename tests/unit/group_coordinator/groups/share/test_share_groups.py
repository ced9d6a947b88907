"""Share groups in the core: heartbeats, states of share partitions, failures, and random histories."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence

import pytest

from grouplab.share_lab import SHARERS, ModelSharer, ShareLab
from tidelog.group_coordinator.groups.modern_group import Assignment
from tidelog.group_coordinator.groups.share import share_group
from tidelog.group_coordinator.groups.share.share_assignor import SharedTopic, ShareMemberSpec, assign
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import SharePartitionKey, TopicPartition
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from tidelog.wire.messages.delete_groups import DeleteGroupsRequest
from tidelog.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from tidelog.wire.messages.offset_commit import OffsetCommitRequest
from tidelog.wire.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

T = "t"


@pytest.fixture
def lab() -> ShareLab:
    made = ShareLab()
    made.set_topic(T, 4)
    return made


def joined(lab: ShareLab, member_id: str = "a", topics: list[str] | None = None) -> ModelSharer:
    member = ModelSharer(lab, member_id, topics or [T])
    assert member.beat().error_code == ErrorCode.NONE
    lab.settle()
    member.beat()
    return member


def raw(lab: ShareLab, **fields: object) -> ShareGroupHeartbeatResponse:
    request = ShareGroupHeartbeatRequest(**{"group_id": SHARERS, "member_id": "a"} | fields)  # type: ignore[arg-type]
    answer: ShareGroupHeartbeatResponse = lab.ask(ApiKey.SHARE_GROUP_HEARTBEAT, 1, request)
    return answer


def test_the_topics_of_equal_subscriptions_are_looked_up_once(
    lab: ShareLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.set_topic("u", 4)
    seen: list[Sequence[ShareMemberSpec]] = []

    def noted(members: Sequence[ShareMemberSpec], topics: Mapping[str, SharedTopic]) -> dict[str, Assignment]:
        seen.append(members)
        return assign(members, topics)

    monkeypatch.setattr(share_group, "assign", noted)
    for number in range(6):
        joined(lab, f"m{number}", [T, "u"] if number % 2 else [T])
    assert len(seen[-1]) == 6
    assert len({id(member.topic_names) for member in seen[-1]}) == 2


def test_a_partition_is_assigned_only_after_its_state_exists(lab: ShareLab) -> None:
    member = ModelSharer(lab, "a", [T])
    member.beat()
    assert member.partitions == set()
    member.beat()
    assert member.partitions == set()
    lab.settle()
    member.beat()
    assert member.partitions == {(T, partition) for partition in range(4)}
    assert lab.start_offsets() == {(T, partition): -1 for partition in range(4)}


def test_new_partitions_follow(lab: ShareLab) -> None:
    member = joined(lab)
    lab.set_topic(T, 6)
    member.beat()
    lab.settle()
    member.beat()
    assert len(member.partitions) == 6


@pytest.mark.parametrize("loss", [False, None])
def test_a_question_without_an_answer_is_repeated(lab: ShareLab, loss: bool | None) -> None:
    lab.answers_states = lambda: loss
    member = ModelSharer(lab, "a", [T])
    member.beat()
    lab.settle()
    member.beat()
    assert member.partitions == set()
    lab.answers_states = lambda: True
    lab.pass_time(1_000)
    lab.settle()
    member.beat()
    assert len(member.partitions) == 4


def test_a_repeated_question_does_not_reset_a_state(lab: ShareLab) -> None:
    lab.answers_states = lambda: None
    ModelSharer(lab, "a", [T]).beat()
    lab.settle()
    before = dict(lab.states.states)
    lab.answers_states = lambda: True
    lab.pass_time(1_000)
    lab.settle()
    assert lab.states.states == before


def test_a_new_owner_continues_the_initialization(lab: ShareLab) -> None:
    member = ModelSharer(lab, "a", [T])
    member.beat()
    lab.fail_over()
    lab.settle()
    member.beat()
    assert len(member.partitions) == 4


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": " "}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": []}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": 1}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"member_epoch": -1}, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_an_invalid_heartbeat_is_refused(lab: ShareLab, fields: dict[str, object], error: ErrorCode) -> None:
    assert raw(lab, **{"subscribed_topic_names": [T]} | fields).error_code == error
    assert SHARERS not in lab.core.groups.by_id


def test_the_previous_epoch_is_valid_and_others_are_fenced(lab: ShareLab) -> None:
    member = joined(lab)
    epoch = member.epoch
    joined(lab, "b")
    member.beat()
    assert member.epoch > epoch
    assert member.beat(epoch).error_code == ErrorCode.NONE  # the response was lost
    assert raw(lab, member_epoch=epoch - 1).error_code == ErrorCode.FENCED_MEMBER_EPOCH


def test_other_protocols_cannot_use_the_group(lab: ShareLab) -> None:
    joined(lab)
    assert lab.answers[lab.join("", group=SHARERS)].error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    commit = OffsetCommitRequest(SHARERS)
    assert lab.ask(ApiKey.OFFSET_COMMIT, 9, commit).topics == []
    assert lab.heartbeat("a", 1, group=SHARERS) == ErrorCode.UNKNOWN_MEMBER_ID
    answer = lab.beat(
        group_id=SHARERS,
        member_id="c",
        rebalance_timeout_ms=1,
        subscribed_topic_names=[T],
        topic_partitions=[],
    )
    assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    lab.stable_group(1)
    assert raw(lab, group_id="readers", subscribed_topic_names=[T]).error_code == (
        ErrorCode.GROUP_ID_NOT_FOUND
    )


def alter(lab: ShareLab, offset: int, partition: int = 0) -> int:
    """Returns the number of the request."""
    partitions = [AlterShareGroupOffsetsRequestPartition(partition, offset)]
    request = AlterShareGroupOffsetsRequest(SHARERS, [AlterShareGroupOffsetsRequestTopic(T, partitions)])
    return lab.send(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, request)


def test_a_reset_waits_for_the_owner_of_the_state(lab: ShareLab) -> None:
    joined(lab).beat(-1)
    number = alter(lab, 7)
    assert number not in lab.answers
    lab.settle()
    assert lab.answers[number].responses[0].partitions[0].error_code == ErrorCode.NONE
    assert lab.start_offsets()[T, 0] == 7


def test_a_reset_of_a_share_partition_without_state_creates_it(lab: ShareLab) -> None:
    joined(lab).beat(-1)
    lab.set_topic(T, 5)
    alter(lab, 7, 4)
    lab.settle()
    assert lab.start_offsets()[T, 4] == 7
    assert 4 in lab.share_group().partitions.partitions_of(lab.image.topics[T].topic_id)


def test_a_reset_creates_a_group_that_does_not_exist(lab: ShareLab) -> None:
    number = alter(lab, 7, 2)
    lab.settle()
    assert lab.answers[number].responses[0].partitions[0].error_code == ErrorCode.NONE
    assert lab.share_group().state == "Empty"
    member = joined(lab)
    assert len(member.partitions) == 4
    assert lab.start_offsets()[T, 2] == 7


def test_a_reset_of_unknown_topics_creates_no_group(lab: ShareLab) -> None:
    number = alter(lab, 7, 99)
    assert lab.answers[number].responses[0].partitions[0].error_code == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert SHARERS not in lab.core.groups.by_id


def test_a_group_that_does_not_exist_has_no_start_offsets(lab: ShareLab) -> None:
    request = DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsRequestGroup(SHARERS, None)])
    described = lab.ask(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, request).groups[0]
    assert (described.error_code, described.topics) == (ErrorCode.NONE, [])


def test_a_request_that_waits_is_refused_when_the_shard_moves(lab: ShareLab) -> None:
    joined(lab).beat(-1)
    number = alter(lab, 7)
    lab.fail_over()
    assert lab.answers[number].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@pytest.mark.parametrize("version", [0, 1])
def test_the_lag_is_what_is_not_delivered_completely(lab: ShareLab, version: int) -> None:
    joined(lab).beat(-1)
    for partition in (0, 1, 2):
        alter(lab, 10, partition)
    lab.settle()
    topic_id = lab.image.topics[T].topic_id
    key = SharePartitionKey(SHARERS, topic_id, 1)
    lab.states.states[key] = dataclasses.replace(lab.states.states[key], delivery_complete_count=4)
    lab.ends = {TopicPartition(T, 0): 17, TopicPartition(T, 1): 17}
    request = DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsRequestGroup(SHARERS, None)])
    number = lab.send(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, version, request)
    lab.settle()
    (topic,) = lab.answers[number].groups[0].topics
    assert [partition.start_offset for partition in topic.partitions] == [10, 10, 10, -1]
    lags = [7, 3, -1, -1] if version else [-1] * 4
    assert [partition.lag for partition in topic.partitions] == lags


def test_a_group_is_deleted_after_its_states(lab: ShareLab) -> None:
    joined(lab).beat(-1)
    number = lab.send(ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest([SHARERS, "nobody"]))
    assert number not in lab.answers
    lab.settle()
    errors = [result.error_code for result in lab.answers[number].results]
    assert errors == [ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND]
    assert lab.start_offsets() == {}
    assert SHARERS not in lab.core.groups.by_id
    assert SHARERS not in lab.reloaded().groups.by_id


def test_a_failed_deletion_keeps_the_group_and_is_repeated(lab: ShareLab) -> None:
    joined(lab).beat(-1)
    lab.answers_states = lambda: False
    number = lab.send(ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest([SHARERS]))
    lab.settle()
    assert lab.answers[number].results[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    lab.answers_states = lambda: True
    lab.pass_time(2_000)
    lab.settle()
    assert lab.start_offsets() == {}
    number = lab.send(ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest([SHARERS]))
    assert lab.answers[number].results[0].error_code == ErrorCode.NONE


def test_a_member_that_joins_during_a_deletion_gets_new_states(lab: ShareLab) -> None:
    joined(lab).beat(-1)
    number = lab.send(ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest([SHARERS]))
    late = ModelSharer(lab, "late", [T])
    late.beat()
    lab.settle()
    assert lab.answers[number].results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    late.beat()
    lab.settle()
    late.beat()
    assert len(late.partitions) == 4
    assert lab.start_offsets() == {(T, partition): -1 for partition in range(4)}


def test_an_empty_group_expires_only_without_states(lab: ShareLab) -> None:
    joined(lab).beat(-1)
    lab.pass_time(700_000)
    assert SHARERS in lab.core.groups.by_id
    lab.delete_topic(T)
    lab.pass_time(700_000)
    assert SHARERS not in lab.core.groups.by_id


@pytest.mark.parametrize("seed", range(25))
def test_random_histories_end_with_everything_shared(seed: int) -> None:
    chance = random.Random(seed)
    lab = ShareLab()
    lab.set_topic(T, 3)
    lab.answers_states = lambda: chance.choice([True, True, False, None])
    members: list[ModelSharer] = []
    for number in range(60):
        event = chance.random()
        if event < 0.2 or not members:
            members.append(ModelSharer(lab, f"m{number}", chance.choice([[T], [T, "u"], ["u"]])))
            members[-1].beat()
        elif event < 0.3:
            members.pop(chance.randrange(len(members))).beat(-1)
        elif event < 0.35:
            members.pop(chance.randrange(len(members)))  # it dies
        elif event < 0.4:
            topic = chance.choice([T, "u"])
            known = lab.image.topics.get(topic)
            lab.set_topic(topic, 2 if known is None else known.partition_count + 1)
        elif event < 0.43 and "u" in lab.image.topics:
            lab.delete_topic("u")
        elif event < 0.47:
            lab.fail_over()
        elif event < 0.7:
            lab.settle()
        else:
            chance.choice(members).beat()
        lab.pass_time(chance.randrange(3_000))
    lab.answers_states = lambda: True
    for _ in range(30):
        lab.settle()
        for member in members:
            member.beat()
        lab.pass_time(5_000)
    wanted = {
        (topic, partition)
        for topic in {name for member in members for name in member.topics} & lab.image.topics.keys()
        for partition in range(lab.image.topics[topic].partition_count)
    }
    assert set[tuple[str, int]]().union(*(member.partitions for member in members)) == wanted
    group, again = lab.share_group(), lab.reloaded().groups.by_id[SHARERS]
    for name in ("epoch", "metadata_hash", "assignment_epoch", "members", "targets", "partitions"):
        assert getattr(again, name) == getattr(group, name), name
    assert group.partitions.initializing == {} == group.partitions.deleting
