"""SyncGroup, Heartbeat, LeaveGroup, the end of sessions, and timeouts."""

from __future__ import annotations

import pytest

from grouplab.shard_lab import GROUP, REBALANCE_MS, SESSION_MS, ShardLab
from tidelog.model.errors import ErrorCode
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.leave_group import LeaveGroupRequest
from tidelog.wire.messages.sync_group import SyncGroupRequest


def beat_for(lab: ShardLab, milliseconds: int, members: list[str], generation: int) -> None:
    for _ in range(milliseconds // 3_000):
        lab.pass_time(3_000)
        for member_id in members:
            assert lab.heartbeat(member_id, generation) in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)


def test_followers_wait_for_the_leaders_assignment() -> None:
    lab = ShardLab()
    joins = [lab.join_with_id() for _ in range(3)]
    lab.pass_time(6_000)
    leader, *followers = [member_id for member_id, _ in joins]
    waiting = [lab.sync(member_id, 1) for member_id in followers]
    assert all(number in lab.owed for number in waiting)
    assert not lab.log
    lab.sync(leader, 1, {member_id: member_id.encode() for member_id in (leader, followers[0])})
    assert [bytes(lab.answers[number].assignment) for number in waiting] == [followers[0].encode(), b""]
    assert len(lab.log) == 1
    described = lab.describe()
    assert (described.group_state, described.protocol_data) == ("Stable", "range")
    assert {member.member_id: bytes(member.member_assignment) for member in described.members} == {
        leader: leader.encode(),
        followers[0]: followers[0].encode(),
        followers[1]: b"",
    }


def test_a_sync_must_fit_the_generation() -> None:
    lab = ShardLab()
    (member_id,) = lab.stable_group(1)
    assert lab.answers[lab.sync(member_id, 0)].error_code == ErrorCode.ILLEGAL_GENERATION
    assert lab.answers[lab.sync("nobody", 1)].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    other = lab.answers[lab.sync(member_id, 1, protocol="roundrobin")]
    assert other.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert lab.answers[lab.sync(member_id, 1, group="none")].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert lab.answers[lab.sync(member_id, 1, group="")].error_code == ErrorCode.INVALID_GROUP_ID


def test_a_member_without_heartbeats_is_removed_and_the_others_share_its_partitions() -> None:
    lab = ShardLab()
    members = lab.stable_group(3)
    beat_for(lab, 12_000, members[:2], 1)
    assert set(lab.group().members) == set(members[:2])
    assert lab.heartbeat(members[0], 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert lab.heartbeat(members[2], 1) is ErrorCode.UNKNOWN_MEMBER_ID
    joins = [lab.join(member_id) for member_id in members[:2]]
    assert {lab.answers[number].generation_id for number in joins} == {2}


def test_a_heartbeat_extends_the_session() -> None:
    lab = ShardLab()
    (member_id,) = lab.stable_group(1)
    lab.pass_time(SESSION_MS - 1)
    assert lab.heartbeat(member_id, 1) is ErrorCode.NONE
    lab.pass_time(SESSION_MS - 1)
    assert member_id in lab.group().members
    lab.pass_time(1)
    assert member_id not in lab.group().members


def test_a_member_that_does_not_rejoin_is_removed_after_the_rebalance_timeout() -> None:
    lab = ShardLab()
    members = lab.stable_group(2)
    _, joined = lab.join_with_id()
    rejoined = lab.join(members[0])
    beat_for(lab, REBALANCE_MS - 3_000, [members[1]], 1)
    assert joined in lab.owed
    lab.pass_time(3_000)
    assert lab.answers[joined].generation_id == lab.answers[rejoined].generation_id == 2
    assert members[1] not in lab.group().members


def test_a_leader_that_does_not_rejoin_is_replaced() -> None:
    lab = ShardLab()
    leader, follower = lab.stable_group(2)
    _, joined = lab.join_with_id()
    rejoined = lab.join(follower)
    lab.pass_time(REBALANCE_MS)
    assert lab.answers[rejoined].leader == lab.answers[joined].leader == follower != leader
    assert len(lab.answers[rejoined].members) == 2


def test_a_member_that_does_not_sync_is_removed_after_the_rebalance_timeout() -> None:
    lab = ShardLab()
    joins = [lab.join_with_id() for _ in range(2)]
    lab.pass_time(6_000)
    leader, silent = (member_id for member_id, _ in joins)
    lab.sync(leader, 1, {})
    beat_for(lab, REBALANCE_MS - 3_000, [leader, silent], 1)
    assert silent in lab.group().members
    lab.pass_time(3_000)
    assert silent not in lab.group().members
    assert lab.heartbeat(leader, 1) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_new_member_during_the_sync_makes_all_join_again() -> None:
    lab = ShardLab()
    joins = [lab.join_with_id() for _ in range(2)]
    lab.pass_time(6_000)
    _, follower = (member_id for member_id, _ in joins)
    waiting = lab.sync(follower, 1)
    lab.join_with_id()
    assert lab.answers[waiting].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert lab.answers[lab.sync(follower, 1)].error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_member_that_leaves_while_it_waits_is_answered() -> None:
    lab = ShardLab()
    joins = [lab.join_with_id() for _ in range(2)]
    lab.pass_time(6_000)
    follower = joins[1][0]
    waiting = lab.sync(follower, 1)
    assert lab.leave((follower, None)) == [ErrorCode.NONE]
    assert lab.answers[waiting].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    rejoined = lab.join(joins[0][0])
    assert lab.answers[rejoined].generation_id == 2


def test_the_last_member_leaves_a_recorded_empty_group() -> None:
    lab = ShardLab()
    members = lab.stable_group(2)
    assert lab.leave(*((member_id, None) for member_id in members)) == [ErrorCode.NONE] * 2
    group = lab.group()
    assert (group.state, group.generation, group.protocol, group.leader) == ("Empty", 2, None, None)
    assert lab.describe().protocol_type == "consumer"
    loaded = lab.reloaded().groups.by_id[GROUP]
    assert loaded.listed() == group.listed()
    assert not lab.owed


def test_each_leaving_member_has_its_own_result() -> None:
    lab = ShardLab()
    members = lab.stable_group(2)
    pending = lab.answers[lab.join()].member_id
    results = lab.leave(("nobody", None), (members[1], None), (pending, None), ("", "no-instance"))
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert results == [unknown, ErrorCode.NONE, ErrorCode.NONE, unknown]
    assert set(lab.group().members) == {members[0]}


@pytest.mark.parametrize("version", [0, 1, 2])
def test_before_version_3_one_member_leaves(version: int) -> None:
    lab = ShardLab()
    (member_id,) = lab.stable_group(1)
    answer = lab.ask(ApiKey.LEAVE_GROUP, version, LeaveGroupRequest(group_id=GROUP, member_id="nobody"))
    assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    answer = lab.ask(ApiKey.LEAVE_GROUP, version, LeaveGroupRequest(group_id=GROUP, member_id=member_id))
    assert (answer.error_code, answer.members) == (ErrorCode.NONE, [])
    assert lab.group().state == "Empty"


def test_after_a_failover_members_continue_in_their_generation() -> None:
    lab = ShardLab()
    members = lab.stable_group(3)
    lab.pass_time(SESSION_MS - 1)
    lab.fail_over()
    lab.pass_time(SESSION_MS - 1)
    for member_id in members[:2]:
        assert lab.heartbeat(member_id, 1) is ErrorCode.NONE
        assert bytes(lab.answers[lab.sync(member_id, 1)].assignment) == member_id.encode()
    lab.pass_time(1)
    assert set(lab.group().members) == set(members[:2])


def test_requests_that_wait_while_a_shard_is_released_are_rejected() -> None:
    lab = ShardLab()
    members = lab.stable_group(2)
    _, joined = lab.join_with_id()
    lab.fail_over()
    assert lab.answers[joined].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert not lab.owed
    assert lab.heartbeat(members[0], 1) is ErrorCode.NONE, "the next owner does not know of the rebalance"


def test_a_member_that_waits_for_its_assignment_joins_again_when_the_shard_is_released() -> None:
    lab = ShardLab()
    joins = [lab.join_with_id() for _ in range(2)]
    while not all(number in lab.answers for _, number in joins):
        lab.pass_time(lab.settings.group_initial_rebalance_delay_ms)
    group = lab.group()
    follower = next(member_id for member_id, _ in joins if member_id != group.leader)
    waiting = lab.sync(follower, group.generation)
    assert waiting in lab.owed
    lab.fail_over()
    assert lab.answers[waiting].error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_from_version_5_a_sync_must_name_its_protocol() -> None:
    lab = ShardLab()
    (member_id,) = lab.stable_group(1)
    for version in range(6):
        request = SyncGroupRequest(GROUP, 1, member_id)
        error = lab.ask(ApiKey.SYNC_GROUP, version, request).error_code
        assert error == (ErrorCode.INCONSISTENT_GROUP_PROTOCOL if version == 5 else ErrorCode.NONE)


def test_leaving_an_absent_group_is_an_error() -> None:
    lab = ShardLab()
    assert lab.leave(("nobody", None), group="none") == [ErrorCode.UNKNOWN_MEMBER_ID]
