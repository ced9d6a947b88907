"""DescribeGroups, ListGroups, DeleteGroups, and the expiry of groups."""

from __future__ import annotations

from random import Random
from uuid import UUID

import pytest

from grouplab.shard_lab import EAGER, GROUP, SESSION_MS, ShardLab, subscription
from tidelog.group_coordinator.groups.classic.classic_group import ClassicGroup, session_key
from tidelog.group_coordinator.groups.group_core import EXPIRY_PAUSE_MS
from tidelog.group_coordinator.groups.offset_commits import (
    CommittedOffset,
    GroupPartition,
    offset_record,
)
from tidelog.group_coordinator.groups.shared import OffsetCommitter, TimerKey
from tidelog.group_coordinator.shard_core import ClusterImage, SetTimer, ShardDecision, TopicImage
from tidelog.model.errors import ErrorCode
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.delete_groups import DeleteGroupsRequest
from tidelog.wire.messages.describe_groups import DescribeGroupsRequest
from tidelog.wire.messages.list_groups import ListGroupsRequest
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

MOST_DELETED_AT_ONCE = 600
"""The tombstones that one decision of an expiry may contain."""


def listed(lab: ShardLab, states: list[str], types: list[str]) -> dict[str, tuple[str, str, str]]:
    answer = lab.ask(ApiKey.LIST_GROUPS, 5, ListGroupsRequest(states_filter=states, types_filter=types))
    return {
        group.group_id: (group.group_state, group.protocol_type, group.group_type) for group in answer.groups
    }


def delete(lab: ShardLab, *groups: str) -> list[ErrorCode]:
    answer = lab.ask(ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest(list(groups)))
    assert [result.group_id for result in answer.results] == list(groups)
    return [ErrorCode(result.error_code) for result in answer.results]


def test_an_absent_group_is_dead_and_from_version_6_an_error() -> None:
    lab = ShardLab()
    for version in range(7):
        answer = lab.ask(ApiKey.DESCRIBE_GROUPS, version, DescribeGroupsRequest(["none"])).groups[0]
        assert answer.group_state == "Dead"
        assert answer.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE)
    assert answer.error_message == "Group none not found."


def test_a_description_shows_subscriptions_only_of_a_stable_group() -> None:
    lab = ShardLab()
    joins = [lab.join_with_id() for _ in range(2)]
    described = lab.describe()
    assert (described.group_state, described.protocol_type) == ("PreparingRebalance", "consumer")
    assert {bytes(member.member_metadata) for member in described.members} == {b""}
    lab.pass_time(6_000)
    assert lab.describe().group_state == "CompletingRebalance"
    lab.sync_all([member_id for member_id, _ in joins])
    described = lab.describe()
    assert (described.group_state, described.protocol_data) == ("Stable", "range")
    assert {bytes(member.member_metadata) for member in described.members} == {subscription("orders")}
    assert {(member.client_id, member.client_host) for member in described.members} == {
        ("client", "/127.0.0.1")
    }


def test_groups_are_listed_by_state_and_type_ignoring_case() -> None:
    lab = ShardLab()
    lab.join_with_id(group="preparing")
    lab.core.groups.new_simple_group("simple", lab.now_ms)
    preparing = ("PreparingRebalance", "consumer", "classic")
    simple = ("Empty", "", "classic")
    assert listed(lab, [], []) == {"preparing": preparing, "simple": simple}
    assert listed(lab, ["empty"], []) == {"simple": simple}
    assert listed(lab, ["PREPARINGREBALANCE", "Stable"], ["Classic"]) == {"preparing": preparing}
    assert listed(lab, [], ["consumer"]) == {}
    assert listed(lab, ["no such state"], []) == {}


def test_only_a_group_without_members_is_deleted() -> None:
    lab = ShardLab()
    (member_id,) = lab.stable_group(1)
    assert delete(lab, GROUP, "none") == [ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND]
    lab.leave((member_id, None))
    assert delete(lab, GROUP, GROUP) == [ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND]
    assert lab.log[-1].value is None
    assert lab.log[-1].key == lab.log[0].key
    assert not lab.reloaded().groups.by_id


def test_an_empty_group_without_offsets_expires() -> None:
    lab = ShardLab()
    (member_id,) = lab.stable_group(1)
    lab.leave((member_id, None))
    lab.pass_time(lab.settings.offsets_retention_check_interval_ms)
    assert GROUP not in lab.core.groups.by_id
    assert lab.log[-1].value is None


def test_an_expiry_of_many_offsets_pauses() -> None:
    groups, offsets_each = 600, 5
    lab = ShardLab(BrokerSettings(**EAGER, offsets_retention_minutes=30))  # fewer checks than in 7 days
    for group in range(groups):
        for partition in range(offsets_each):
            key = GroupPartition(f"g{group}", "orders", partition)
            lab.log.append(offset_record(key, CommittedOffset(1, -1, "", lab.now_ms)))
    lab.fail_over()
    assert len(lab.core.groups.by_id) == groups
    interval_ms = lab.settings.offsets_retention_check_interval_ms
    lab.pass_time(lab.settings.offsets_retention_minutes * 60_000 - interval_ms)
    assert len(list(lab.core.offsets.committed_offsets())) == groups * offsets_each
    deleted: list[int] = []
    lab.on_decision = lambda decision: deleted.append(len(decision.records))
    while not sum(deleted):
        lab.pass_time(50)
    assert delete(lab, f"g{groups - 1}") == [ErrorCode.NONE]
    lab.pass_time(2_000)
    assert sum(deleted) == groups * offsets_each
    assert max(deleted) <= MOST_DELETED_AT_ONCE
    assert not lab.core.groups.by_id
    assert not list(lab.core.offsets.committed_offsets())
    before = len(deleted)
    lab.pass_time(interval_ms)
    assert len(deleted) == before + 1, "the next check comes after its interval, not after a pause"


@pytest.mark.parametrize("seed", range(12))
def test_an_expiry_pauses_within_a_group(seed: int) -> None:
    """During the pauses, clients commit again, and administrators delete the group."""
    random = Random(seed)
    sizes = {f"g{number}": random.choice([1, 30, 700, 1_300]) for number in range(random.randint(1, 5))}
    lab = ShardLab()
    for group, size in sizes.items():
        for partition in range(size):
            key = GroupPartition(group, "orders", partition)
            lab.log.append(offset_record(key, CommittedOffset(1, -1, "", lab.now_ms)))
    lab.fail_over()
    lab.image = ClusterImage(2, {"orders": TopicImage(UUID(int=1), "orders", 2_000)}, {})
    lab.core.image_changed(lab.image, lab.now_ms)
    lab.now_ms += lab.settings.offsets_retention_minutes * 60_000
    deleted: list[int] = []
    lab.on_decision = lambda decision: deleted.append(len(decision.records))
    lab.timers[TimerKey("expiry", "check")] = lab.now_ms
    kept: set[GroupPartition] = set()
    while True:
        lab.pass_time(EXPIRY_PAUSE_MS)
        assert deleted.pop() <= MOST_DELETED_AT_ONCE
        if lab.timers[TimerKey("expiry", "check")] - lab.now_ms > EXPIRY_PAUSE_MS:
            break
        lab.on_decision = lambda decision: None
        group = random.choice(list(sizes))
        if random.random() < 0.2:
            lab.send(ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest([group]))
            kept -= {key for key in kept if key.group_id == group}
        for _ in range(random.randrange(4)):
            key = GroupPartition(group, "orders", random.randrange(2_000))
            topics = [OffsetCommitRequestTopic("orders", partitions=[])]
            topics[0].partitions.append(OffsetCommitRequestPartition(key.partition, 2, -1, ""))
            lab.ask(ApiKey.OFFSET_COMMIT, 9, OffsetCommitRequest(group, -1, "", None, -1, topics))
            kept.add(key)
        lab.on_decision = lambda decision: deleted.append(len(decision.records))
    assert {key for key, _ in lab.core.offsets.committed_offsets()} == kept
    assert lab.core.groups.by_id.keys() == {key.group_id for key in kept}


def check(group: ClassicGroup, member_id: str, generation: int, **how: object) -> ErrorCode:
    committer = OffsetCommitter(
        member_id,
        how.get("instance"),  # type: ignore[arg-type]
        generation,
        ApiKey.OFFSET_COMMIT,
        9,
        bool(how.get("transactional")),
    )
    return group.check_commit(committer, ShardDecision())


def test_members_that_may_commit() -> None:
    lab = ShardLab()
    joins = [lab.join_with_id() for _ in range(2)]
    lab.pass_time(6_000)
    leader, follower = (member_id for member_id, _ in joins)
    group = lab.group()
    assert check(group, leader, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert check(group, leader, 1, transactional=True) is ErrorCode.NONE
    lab.sync_all([leader, follower])
    assert check(group, leader, 1) is ErrorCode.NONE
    assert check(group, leader, 0) is ErrorCode.ILLEGAL_GENERATION
    assert check(group, leader, 2, transactional=True) is ErrorCode.ILLEGAL_GENERATION
    assert check(group, "nobody", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert check(group, leader, 1, instance="i") is ErrorCode.UNKNOWN_MEMBER_ID
    assert check(group, "", -1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert check(group, "", -1, transactional=True) is ErrorCode.NONE
    lab.join(leader)
    assert check(group, follower, 1) is ErrorCode.NONE, "the client commits before it joins again"
    lab.leave((leader, None), (follower, None))
    assert check(group, "", -1) is ErrorCode.NONE
    assert check(group, follower, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_commit_extends_the_session() -> None:
    lab = ShardLab()
    (member_id,) = lab.stable_group(1)
    committer = OffsetCommitter(member_id, None, 1, ApiKey.OFFSET_COMMIT, 9, False)
    decision = ShardDecision()
    lab.group().check_commit(committer, decision)
    assert decision.timers == [SetTimer(session_key(GROUP, member_id), SESSION_MS)]


def test_start_of_the_retention_time_of_offsets() -> None:
    lab = ShardLab()
    (member_id,) = lab.stable_group(1)
    group = lab.group()
    assert group.offsets_expire_from("orders", 5) is None, "the group subscribes to the topic"
    assert group.offsets_expire_from("other", 5) == 5
    lab.join_with_id()
    assert group.offsets_expire_from("other", 5) is None, "the group rebalances"
    lab.leave((member_id, None))
    lab.pass_time(70_000)
    assert group.state == "Empty"
    assert group.offsets_expire_from("orders", 5) == group.state_since_ms
    simple = lab.core.groups.new_simple_group("simple", lab.now_ms)
    assert simple.offsets_expire_from("orders", 5) == 5


def test_groups_whose_offsets_may_be_deleted() -> None:
    lab = ShardLab()
    lab.stable_group(1)
    group = lab.group()
    assert group.check_offset_delete() is ErrorCode.NONE
    assert group.is_subscribed_to("orders")
    assert not group.is_subscribed_to("other")
    lab.join_with_id(group="connect", protocol_type="connect")
    assert lab.group("connect").check_offset_delete() is ErrorCode.NON_EMPTY_GROUP
    assert lab.core.groups.new_simple_group("simple", None).check_offset_delete() is ErrorCode.NONE
