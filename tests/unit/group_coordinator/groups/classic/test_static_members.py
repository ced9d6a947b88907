"""Members with a group.instance.id (KIP-345, KIP-814)."""

from __future__ import annotations

from grouplab.shard_lab import REBALANCE_MS, SESSION_MS, ShardLab, subscription
from tidelog.model.errors import ErrorCode

LONG_SESSION_MS = 10 * REBALANCE_MS


def static_pair(lab: ShardLab) -> list[str]:
    """A stable group of the instances "a", the leader, and "b"."""
    joins = [lab.join(instance=name, session_ms=LONG_SESSION_MS) for name in "ab"]
    lab.pass_time(6_000)
    members = [lab.answers[number].member_id for number in joins]
    lab.sync_all(members)
    return members


def test_a_static_member_needs_no_id_first() -> None:
    lab = ShardLab()
    members = static_pair(lab)
    assert [member_id.split("-")[0] for member_id in members] == ["a", "b"]
    assert lab.group().leader == members[0]


def test_a_rejoining_static_member_keeps_its_assignment_without_a_rebalance() -> None:
    lab = ShardLab()
    a, b = static_pair(lab)
    records = len(lab.log)
    answer = lab.answers[lab.join(instance="b", session_ms=LONG_SESSION_MS)]
    assert (answer.error_code, answer.generation_id, answer.skip_assignment) == (0, 1, False)
    assert answer.member_id != b
    assert len(lab.log) == records + 1
    assert bytes(lab.answers[lab.sync(answer.member_id, 1, instance="b")].assignment) == b.encode()
    assert lab.heartbeat(a, 1, instance="a") is ErrorCode.NONE
    assert lab.heartbeat(b, 1, instance="b") is ErrorCode.FENCED_INSTANCE_ID
    assert lab.answers[lab.join(b, instance="b")].error_code == ErrorCode.FENCED_INSTANCE_ID
    assert lab.answers[lab.sync(b, 1, instance="b")].error_code == ErrorCode.FENCED_INSTANCE_ID
    lab.fail_over()
    assert lab.heartbeat(answer.member_id, 1, instance="b") is ErrorCode.NONE


def test_a_static_leader_that_rejoins_skips_the_assignment() -> None:
    lab = ShardLab()
    a, b = static_pair(lab)
    answer = lab.answers[lab.join(instance="a", session_ms=LONG_SESSION_MS)]
    assert answer.skip_assignment
    assert answer.leader == answer.member_id != a
    assert {member.member_id for member in answer.members} == {answer.member_id, b}
    older = lab.answers[lab.join(instance="a", session_ms=LONG_SESSION_MS, version=8)]
    assert older.leader == answer.member_id != older.member_id, (
        "a member that learns it is the leader would assign again"
    )
    assert older.members == []


def test_a_static_member_with_another_protocol_causes_a_rebalance() -> None:
    lab = ShardLab()
    data = subscription("t")
    both = (("range", data), ("sticky", data))
    joins = [lab.join(instance=name, protocols=both, session_ms=LONG_SESSION_MS) for name in "ab"]
    lab.pass_time(6_000)
    members = [lab.answers[number].member_id for number in joins]
    lab.sync_all(members)
    rejoined = lab.join(instance="b", protocols=(("sticky", data),), session_ms=LONG_SESSION_MS)
    assert rejoined in lab.owed
    lab.join(members[0], instance="a", protocols=both, session_ms=LONG_SESSION_MS)
    assert lab.answers[rejoined].protocol_name == "sticky"
    assert lab.answers[rejoined].generation_id == 2


def test_a_static_member_that_does_not_rejoin_remains_until_its_session_ends() -> None:
    lab = ShardLab()
    a, b = static_pair(lab)
    lab.join(a, instance="a", session_ms=LONG_SESSION_MS)
    lab.pass_time(REBALANCE_MS)
    assert lab.group().generation == 2
    assert set(lab.group().members) == {a, b}
    lab.sync(a, 2, {a: b"all", b: b""}, instance="a")
    answer = lab.answers[lab.join(instance="b", session_ms=LONG_SESSION_MS)]
    assert answer.generation_id == 2, "the absent static member is part of the generation"


def test_a_rebalance_of_static_members_waits_until_one_of_them_joins() -> None:
    lab = ShardLab()
    a, b = static_pair(lab)
    joined, pending = lab.join(a, instance="a", session_ms=LONG_SESSION_MS), lab.join()
    assert lab.leave((a, "a")) == [ErrorCode.NONE]
    assert lab.answers[joined].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    lab.leave((lab.answers[pending].member_id, None))
    lab.pass_time(2 * REBALANCE_MS)
    assert (lab.group().state, lab.group().generation) == ("PreparingRebalance", 1)
    rejoined = lab.join(b, instance="b", session_ms=LONG_SESSION_MS)
    lab.pass_time(REBALANCE_MS)
    assert lab.answers[rejoined].generation_id == 2


def test_a_duplicate_of_a_waiting_static_member_fences_it() -> None:
    lab = ShardLab()
    first = lab.join(instance="a")
    second = lab.join(instance="a")
    assert lab.answers[first].error_code == ErrorCode.FENCED_INSTANCE_ID
    lab.pass_time(3_000)
    answer = lab.answers[second]
    assert answer.generation_id == 1
    assert list(lab.group().members) == [answer.member_id]


def test_a_tool_removes_a_static_member_by_its_instance() -> None:
    lab = ShardLab()
    a, b = static_pair(lab)
    assert lab.leave((b, "a")) == [ErrorCode.FENCED_INSTANCE_ID]
    assert lab.leave(("", "b")) == [ErrorCode.NONE]
    assert set(lab.group().members) == {a}
    assert lab.heartbeat(b, 1, instance="b") is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_whose_session_ends_is_removed() -> None:
    lab = ShardLab()
    joined = lab.join(instance="a", session_ms=SESSION_MS)
    lab.pass_time(3_000)
    lab.sync_all([lab.answers[joined].member_id])
    lab.pass_time(SESSION_MS)
    assert lab.group().state == "Empty"
