"""JoinGroup: member ids, the initial delay, protocols and limits."""

from __future__ import annotations

import dataclasses

import pytest

from grouplab.shard_lab import GROUP, REBALANCE_MS, SESSION_MS, ShardLab, subscription
from tidelog.group_coordinator.groups.classic import classic_groups, rebalance
from tidelog.group_coordinator.groups.classic.classic_group import ClassicMember
from tidelog.model.errors import ErrorCode
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

DELAY_MS = BrokerSettings().group_initial_rebalance_delay_ms


def test_a_member_gets_its_id_before_it_joins() -> None:
    lab = ShardLab()
    given = lab.answers[lab.join()]
    assert given.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert given.member_id == "client-u1"
    joined = lab.join(given.member_id)
    assert joined in lab.owed
    lab.pass_time(DELAY_MS - 1)
    assert joined in lab.owed, "the initial delay is not over"
    lab.pass_time(1)
    answer = lab.answers[joined]
    assert (answer.error_code, answer.generation_id, answer.protocol_name) == (0, 1, "range")
    assert answer.leader == answer.member_id == given.member_id
    assert [member.member_id for member in answer.members] == [given.member_id]


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_before_version_4_a_member_joins_at_once(version: int) -> None:
    lab = ShardLab()
    joined = lab.join(version=version)
    lab.pass_time(DELAY_MS)
    assert lab.answers[joined].generation_id == 1
    timeout_ms = lab.group().members["client-u1"].rebalance_timeout_ms
    assert timeout_ms == (SESSION_MS if version == 0 else REBALANCE_MS)


def test_the_initial_delay_grows_with_each_member_up_to_the_rebalance_time_out() -> None:
    lab = ShardLab()
    _, first = lab.join_with_id(rebalance_ms=8_000)
    for _ in range(2):
        lab.pass_time(DELAY_MS - 1)
        lab.join_with_id(rebalance_ms=8_000)
        lab.pass_time(1)
        assert first in lab.owed
    lab.pass_time(8_000 - 2 * DELAY_MS - 1)
    lab.join_with_id(rebalance_ms=8_000)
    assert first in lab.owed
    lab.pass_time(1)
    assert lab.answers[first].generation_id == 1
    assert len(lab.group().members) == 4


def test_only_the_leader_receives_the_members() -> None:
    lab = ShardLab()
    joins = [lab.join_with_id() for _ in range(3)]
    lab.pass_time(2 * DELAY_MS)
    answers = [lab.answers[number] for _, number in joins]
    assert [len(answer.members) for answer in answers] == [3, 0, 0]
    assert {answer.leader for answer in answers} == {joins[0][0]}
    assert {answer.generation_id for answer in answers} == {1}


def test_the_chosen_protocol_is_supported_by_all_and_preferred_by_most() -> None:
    lab = ShardLab()
    data = subscription("t")
    lab.join_with_id(protocols=(("sticky", data), ("range", data), ("own", data)))
    lab.join_with_id(protocols=(("range", data), ("sticky", data)))
    lab.join_with_id(protocols=(("range", data), ("sticky", data)))
    lab.pass_time(3 * DELAY_MS)
    assert lab.group().protocol == "range"
    refused = lab.answers[lab.join(protocols=(("own", data),))]
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    refused = lab.answers[lab.join(protocol_type="connect")]
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (("range", bytes(600_000)), ("sticky", bytes(500_000)))}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_rejected_join_creates_no_group(how: dict[str, object], error: ErrorCode) -> None:
    lab = ShardLab()
    assert lab.answers[lab.join(**how)].error_code == error  # type: ignore[arg-type]
    assert not lab.core.groups.by_id
    assert not lab.log


def test_a_group_accepts_no_more_members_than_its_limit() -> None:
    lab = ShardLab(dataclasses.replace(BrokerSettings(), group_max_size=2))
    members = lab.stable_group(2)
    assert lab.answers[lab.join()].error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    lab.join(members[0])
    lab.join(members[1])
    assert lab.group().generation == 2, "the present members continue"


def test_a_loaded_group_above_its_limit_rejects_the_last_members_to_join() -> None:
    lab = ShardLab()
    members = lab.stable_group(3)
    lab.settings = dataclasses.replace(lab.settings, group_max_size=2)
    lab.fail_over()
    assert lab.heartbeat(members[0], 1) is ErrorCode.REBALANCE_IN_PROGRESS
    joins = [lab.join(member_id) for member_id in members]
    errors = [lab.answers[number].error_code for number in joins]
    assert errors == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.GROUP_MAX_SIZE_REACHED]


def test_a_member_that_never_joins_with_its_id_is_forgotten() -> None:
    lab = ShardLab()
    given = lab.answers[lab.join()].member_id
    lab.pass_time(SESSION_MS)
    assert lab.answers[lab.join(given)].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    lab.pass_time(lab.settings.offsets_retention_check_interval_ms)
    assert GROUP not in lab.core.groups.by_id


def test_a_pending_member_holds_up_the_rebalance_until_its_session_ends() -> None:
    lab = ShardLab()
    members = lab.stable_group(1)
    lab.join()
    rejoined = lab.join(members[0])
    assert rejoined in lab.owed
    lab.pass_time(SESSION_MS)
    assert lab.answers[rejoined].generation_id == 2


def test_a_repeated_join_gets_the_same_generation() -> None:
    lab = ShardLab()
    member_id, number = lab.join_with_id()
    lab.pass_time(DELAY_MS)
    again = lab.answers[lab.join(member_id)]
    assert again == lab.answers[number]
    changed = lab.join(member_id, protocols=(("range", subscription("other")),))
    assert lab.answers[changed].generation_id == 2


def test_a_join_that_its_client_repeats_is_answered_too() -> None:
    lab = ShardLab()
    member_id, number = lab.join_with_id()
    again = lab.join(member_id)
    assert lab.answers[number].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    lab.pass_time(DELAY_MS)
    assert lab.answers[again].generation_id == 1


def test_an_unchanged_join_of_a_follower_causes_no_rebalance() -> None:
    lab = ShardLab()
    leader, follower = lab.stable_group(2)
    assert lab.answers[lab.join(follower)].generation_id == 1
    assert lab.group().state == "Stable"
    assert bytes(lab.answers[lab.sync(follower, 1)].assignment) == follower.encode()
    rejoined = lab.join(leader)
    assert rejoined in lab.owed, "the leader joins again to request a rebalance"
    assert lab.heartbeat(follower, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    lab.join(follower)
    assert lab.answers[rejoined].generation_id == 2


def test_a_rejected_join_also_turns_an_empty_consumer_group_into_a_classic_group() -> None:
    lab = ShardLab()
    heartbeat = ConsumerGroupHeartbeatRequest(
        group_id=GROUP,
        member_id="m",
        rebalance_timeout_ms=1_000,
        subscribed_topic_names=["orders"],
        topic_partitions=[],
    )
    assert lab.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, heartbeat).error_code == ErrorCode.NONE
    leave = ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id="m", member_epoch=-1)
    assert lab.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, leave).error_code == ErrorCode.NONE
    assert lab.answers[lab.join("nobody")].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert lab.group().state == "Empty"
    assert not lab.reloaded().groups.by_id, "the consumer group's records are deleted"
    lab.join_with_id()
    lab.pass_time(DELAY_MS)
    assert lab.group().generation == 1


def test_a_group_accepts_no_more_metadata_than_its_record_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebalance, "MAX_GROUP_BYTES", 2_500)
    lab = ShardLab()
    members = lab.stable_group(2, protocols=(("range", bytes(1_000)),))
    refused = lab.answers[lab.join(version=3, protocols=(("range", bytes(1_000)),))]
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    grown = lab.answers[lab.join(members[1], protocols=(("range", bytes(1_500)),))]
    assert grown.error_code == ErrorCode.INVALID_REQUEST
    assert lab.group().state == "Stable"
    assert lab.join(members[0], protocols=(("range", bytes(1_100)),)) in lab.owed
    assert lab.group().metadata_bytes == sum(map(ClassicMember.metadata_bytes, lab.group().members.values()))
    assert lab.leave((members[0], None)) == [ErrorCode.NONE]
    lab.join(members[1], protocols=(("range", bytes(1_000)),))
    joined = lab.join_with_id(protocols=(("range", bytes(1_000)),))
    lab.join(members[1], protocols=(("range", bytes(1_000)),))
    assert lab.answers[joined[1]].error_code == ErrorCode.NONE


def test_an_assignment_beyond_the_record_of_a_group_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classic_groups, "MAX_GROUP_BYTES", 2_500)
    lab = ShardLab()
    (member_id, number), (_, other) = (lab.join_with_id(protocols=(("range", bytes(500)),)) for _ in range(2))
    lab.pass_time(2 * DELAY_MS)
    assert {lab.answers[found].error_code for found in (number, other)} == {ErrorCode.NONE}
    refused = lab.answers[lab.sync(member_id, 1, {member_id: bytes(2_000)})]
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert (lab.group().state, lab.log) == ("CompletingRebalance", [])
    assert lab.answers[lab.sync(member_id, 1, {member_id: bytes(1_000)})].error_code == ErrorCode.NONE


def test_a_thousand_members_with_usual_metadata_fit_into_a_group() -> None:
    lab = ShardLab()
    lab.stable_group(1_000, protocols=(("range", bytes(5_000)), ("cooperative-sticky", bytes(8_000))))
    assert len(lab.group().members) == 1_000


def test_the_ids_of_members_that_never_join_take_a_bounded_amount_of_memory() -> None:
    lab = ShardLab()
    for _ in range(600):
        asked = lab.join(session_ms=1_800_000, client_id="x" * 30_000)
        assert lab.answers[asked].error_code == ErrorCode.MEMBER_ID_REQUIRED
    kept = lab.group().pending_members
    assert sum(map(len, kept)) <= 4 * 1024 * 1024
    assert len(lab.timers) == len(kept) + 1, "one for each session, and one for the expiry of offsets"
    newest = lab.answers[asked].member_id
    joined = lab.join(newest)
    lab.pass_time(DELAY_MS)
    assert lab.answers[joined].error_code == ErrorCode.NONE, "the newest id is good"


def test_a_rebalance_does_not_wait_for_a_forgotten_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebalance, "MAX_PENDING_BYTES", 10_000)
    lab = ShardLab()
    (member_id,) = lab.stable_group(1)
    lab.join()
    again = lab.join(member_id)
    assert again in lab.owed, "the group waits for the member with the new id"
    for number in range(10):
        lab.join(group=f"other-{number}")
    assert lab.answers[again].generation_id == 2


@pytest.mark.parametrize("how", ["expired", "left", "forgotten"])
def test_a_group_of_members_that_never_join_does_not_remain(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = ShardLab()
    member_id = lab.answers[lab.join()].member_id
    assert list(lab.core.groups.by_id) == [GROUP]
    if how == "expired":
        lab.pass_time(SESSION_MS)
    elif how == "left":
        assert lab.leave((member_id, None)) == [ErrorCode.NONE]
    else:
        monkeypatch.setattr(rebalance, "MAX_PENDING_BYTES", 1_500)
        lab.join(group="other")
    assert GROUP not in lab.core.groups.by_id
