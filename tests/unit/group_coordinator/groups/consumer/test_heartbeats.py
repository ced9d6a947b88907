"""ConsumerGroupHeartbeat and ConsumerGroupDescribe."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any  # Any: keyword arguments of requests

import pytest

from grouplab.consumer_lab import ConsumerLab, ModelConsumer
from grouplab.shard_lab import GROUP, REBALANCE_MS, subscription
from tidelog.group_coordinator.groups.consumer import group_changes, topic_regex
from tidelog.group_coordinator.groups.consumer.group_changes import MATCHES_AT_ONCE
from tidelog.group_coordinator.groups.consumer.topic_regex import TopicRegex
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import DescribableTopics
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.consumer_group_heartbeat import TopicPartitions
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

SESSION_MS = BrokerSettings().group_consumer_session_timeout_ms


def new_lab(**topics: int) -> ConsumerLab:
    lab = ConsumerLab()
    for name, partitions in topics.items():
        lab.set_topic(name, partitions)
    return lab


def consumers(lab: ConsumerLab, count: int, topic: str = "orders") -> list[ModelConsumer]:
    return [ModelConsumer(lab, f"m{number}", [topic]) for number in range(count)]


def joining(**fields: Any) -> dict[str, Any]:
    return {
        "member_id": "m",
        "rebalance_timeout_ms": REBALANCE_MS,
        "subscribed_topic_names": ["orders"],
        "topic_partitions": [],
    } | fields


def test_a_single_member_gets_everything_with_its_first_heartbeat() -> None:
    lab = new_lab(orders=3)
    answer = lab.beat(**joining())
    assert (answer.error_code, answer.member_id, answer.member_epoch) == (0, "m", 2)
    assert answer.heartbeat_interval_ms == 5_000
    assert answer.assignment is not None
    assert [topic.partitions for topic in answer.assignment.topic_partitions] == [[0, 1, 2]]
    again = lab.beat(member_id="m", member_epoch=2)
    assert (again.error_code, again.member_epoch, again.assignment) == (0, 2, None)
    described = lab.describe_consumer()
    assert (described.group_state, described.group_epoch, described.assignment_epoch) == ("Stable", 2, 2)
    assert described.assignor_name == "uniform"
    (member,) = described.members
    assert member.assignment == member.target_assignment
    assert [(t.topic_name, t.partitions) for t in member.assignment.topic_partitions] == [
        ("orders", [0, 1, 2])
    ]
    assert (member.client_id, member.client_host, member.member_type) == ("client", "/127.0.0.1", 1)


@pytest.mark.parametrize("size", [1, 3, 20])
def test_members_share_all_partitions_and_those_of_members_that_leave(size: int) -> None:
    lab = new_lab(orders=30)
    members = consumers(lab, size)
    for member in members:
        member.step()
    lab.beat_all(members)
    assert lab.describe_consumer().group_state == "Stable"
    assert sorted(len(member.owned) for member in members) == sorted(
        30 // size + (n < 30 % size) for n in range(size)
    )
    while len(members) > 1:
        gone = members.pop()
        assert gone.leave() == ErrorCode.NONE
    lab.beat_all(members)
    assert len(members[0].owned) == 30


def test_a_partition_moves_only_after_its_owner_has_confirmed_the_revocation() -> None:
    lab = new_lab(orders=2)
    first, second = consumers(lab, 2)
    first.step()
    first.step()
    second.step()
    assert second.assigned == set()
    assert second.epoch == 3
    told = lab.beat(member_id="m0", member_epoch=2)
    assert told.member_epoch == 2, "the owner must revoke the partition first"
    assert told.assignment is not None
    (kept,) = told.assignment.topic_partitions[0].partitions
    second.step()
    assert not second.assigned
    assert lab.describe_consumer().group_state == "Reconciling"
    told = lab.beat(
        member_id="m0",
        member_epoch=2,
        topic_partitions=[TopicPartitions(lab.image.topics["orders"].topic_id, [kept])],
    )
    assert told.member_epoch == 3
    second.step()
    assert second.assigned == {(lab.image.topics["orders"].topic_id, 1 - kept)}
    assert lab.describe_consumer().group_state == "Stable"


def test_a_member_that_keeps_revoked_partitions_is_removed_after_the_timeout() -> None:
    lab = new_lab(orders=4)
    first, second = consumers(lab, 2)
    lab.beat_all([first])
    second.step()
    stubborn = 0
    while lab.beat(member_id="m0", member_epoch=first.epoch).error_code == ErrorCode.NONE:
        lab.pass_time(5_000)
        second.step()
        stubborn += 5_000
    assert REBALANCE_MS <= stubborn <= REBALANCE_MS + 5_000
    second.step()
    second.step()
    assert len(second.owned) == 4


def test_a_topic_that_is_created_grows_or_is_deleted() -> None:
    lab = new_lab(orders=2)
    members = consumers(lab, 2)
    for member in members:
        member.topics = ["orders", "late"]
    lab.beat_all(members)
    epoch = lab.consumer_group().epoch
    orders = lab.set_topic("orders", 5)
    lab.beat_all(members)
    assert sorted(p for member in members for p in member.partitions_of(orders)) == [0, 1, 2, 3, 4]
    assert lab.consumer_group().epoch == epoch + 1
    late = lab.set_topic("late", 2)
    lab.set_topic("another", 3)
    lab.beat_all(members)
    assert sorted(p for member in members for p in member.partitions_of(late)) == [0, 1]
    assert lab.consumer_group().epoch == epoch + 2
    lab.delete_topic("orders")
    lab.beat_all(members)
    assert not any(member.partitions_of(orders) for member in members)
    lab.set_topic("late", 2, racks=(frozenset({"a"}), frozenset({"b"})))
    lab.beat_all(members)
    assert lab.consumer_group().epoch == epoch + 4, "a change of racks causes another assignment, as in Kafka"


def test_a_regular_expression_follows_the_topics() -> None:
    lab = new_lab(orders=2, invoices=1, other=3)
    member = ModelConsumer(lab, "m", regex="(orders|invoices).*")
    lab.beat_all([member])
    assert len(member.owned) == 3
    more = lab.set_topic("orders-2", 4)
    lab.beat_all([member])
    assert member.partitions_of(more) == {0, 1, 2, 3}
    lab.delete_topic("invoices")
    lab.beat_all([member])
    assert len(member.owned) == 6
    (described,) = lab.describe_consumer().members
    assert (described.subscribed_topic_names, described.subscribed_topic_regex) == ([], "(orders|invoices).*")
    member.regex, member.says_all = "oth.r", True
    lab.beat_all([member])
    assert lab.consumer_group().regexes.keys() == {"oth.r"}
    assert len(member.owned) == 3
    member.regex, member.says_all = "[", True
    assert member.step() == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert len(lab.consumer_group().members["m"].owned) == 1


def test_a_regular_expression_matches_only_topics_that_the_client_may_describe() -> None:
    """Otherwise, a client could learn the names of all topics by trying expressions. Kafka does the same."""
    lab = new_lab(orders=2, secrets=3)
    lab.describable = DescribableTopics(frozenset({"orders"}), 2)
    member = ModelConsumer(lab, "m", regex=".*")
    lab.beat_all([member])
    assert len(member.owned) == 2
    guess = ModelConsumer(lab, "guess", regex="secr.*")
    lab.beat_all([guess, member])
    assert (guess.owned, guess.errors) == (set(), [])
    lab.describable = DescribableTopics(frozenset({"orders", "orders-2"}), 4)
    lab.set_topic("secrets-2", 3)
    lab.set_topic("orders-2", 1)
    lab.beat_all([member, guess])
    assert (len(member.owned), guess.owned) == (3, set())
    lab.fail_over()
    lab.beat_all([member, guess])
    assert (len(member.owned), guess.owned) == (3, set())


def test_the_names_that_regular_expressions_match_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, a group with many expressions could write so much at once that the session of its
    coordinator ends, with the shards of all groups.
    """
    monkeypatch.setattr(group_changes, "MAX_RESOLVED_BYTES", 3 * topic_regex.topics_bytes(["orders"]))
    lab = new_lab(orders=2)
    members = [ModelConsumer(lab, f"m{n}", regex="orders.*|" + "x" * n) for n in range(1, 4)]
    lab.beat_all(members)
    late = ModelConsumer(lab, "late", regex="order.")
    late.step()
    assert late.step() == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert late.owned == set()
    lab.beat_all(members)
    assert sum(len(member.owned) for member in members) == 2
    lab.set_topic("orders-2", 1)
    lab.beat_all(members)
    resolved = [found.topics for found in lab.consumer_group().regexes.values()]
    assert resolved == [{"orders"}] * 3 + [set()], "the other members keep what they have"
    assert [member.errors for member in members] == [[], [], []]
    lab.fail_over()
    lab.beat_all(members)
    assert [found.topics for found in lab.consumer_group().regexes.values()] == resolved
    assert late.step() == ErrorCode.GROUP_MAX_SIZE_REACHED
    members[0].leave()
    lab.beat_all(members[1:], rounds=SESSION_MS // 5_000 + 2, pause_ms=5_000)
    assert "late" not in lab.consumer_group().members
    again = ModelConsumer(lab, "again", regex="order.")
    lab.beat_all([*members[1:], again])
    assert again.errors == []
    assert lab.consumer_group().regexes["order."].topics == {"orders"}


def test_topics_that_the_broker_did_not_know_yet_are_matched_later() -> None:
    lab = new_lab(orders=2, more=3)
    lab.describable = DescribableTopics(frozenset({"orders"}), 1)
    member = ModelConsumer(lab, "m", regex=".*")
    lab.beat_all([member], rounds=1)
    lab.describable = DescribableTopics(frozenset({"orders", "more"}), 2)
    lab.beat_all([member])
    assert len(member.owned) == 5


def test_classic_members_resolve_no_regular_expressions_of_others() -> None:
    lab = new_lab(orders=2, secrets=3)
    lab.describable = DescribableTopics(frozenset({"orders"}), 2)
    member = ModelConsumer(lab, "m", regex=".*")
    lab.beat_all([member])
    lab.consumer_group().regexes_are_due = True
    joined = lab.answers[lab.join(version=3, protocols=(("range", subscription("orders")),))]
    assert joined.error_code == ErrorCode.NONE
    (resolved,) = lab.consumer_group().regexes.values()
    assert resolved.topics == {"orders"}
    lab.beat_all([member])
    assert len(member.owned) <= 2


def test_rejoining_static_members_get_their_partitions_back() -> None:
    lab = new_lab(orders=4)
    members = [ModelConsumer(lab, f"m{n}", ["orders"], instance_id=f"i{n}") for n in range(2)]
    lab.beat_all(members)
    before, epoch = set(members[0].owned), lab.consumer_group().epoch
    twin = ModelConsumer(lab, "twin", ["orders"], instance_id="i0")
    assert twin.step() == ErrorCode.UNRELEASED_INSTANCE_ID
    assert members[0].leave(epoch=-2) == ErrorCode.NONE
    lab.beat_all([members[1]])
    assert len(members[1].owned) == 2
    assert twin.step() == ErrorCode.NONE
    assert twin.assigned == before
    assert lab.consumer_group().epoch == epoch, "the other members keep their assignments"
    assert members[0].step() == ErrorCode.FENCED_INSTANCE_ID
    twin.step()
    twin.leave(epoch=-2)
    lab.beat_all([members[1]], rounds=SESSION_MS // 5_000 + 2, pause_ms=5_000)
    assert len(members[1].owned) == 4


def test_a_repeated_request_gets_the_lost_response_again() -> None:
    lab = new_lab(orders=4)
    first, second = consumers(lab, 2)
    first.step(loses_answer=True)
    first.step()
    second.step(loses_answer=True)
    for _ in range(6):
        first.step(loses_answer=True)
        first.step()
        second.step(loses_answer=True)
        second.step()
    assert not first.errors
    assert not second.errors
    assert len(first.owned) == len(second.owned) == 2


def test_the_previous_epoch_of_a_member_that_reports_nothing_is_fenced() -> None:
    lab = new_lab(orders=4)
    first, second = consumers(lab, 2)
    lab.beat_all([first, second])
    epoch = first.epoch
    assert lab.beat(member_id="m0", member_epoch=epoch - 1).error_code == ErrorCode.FENCED_MEMBER_EPOCH


def test_a_late_heartbeat_of_an_earlier_membership_is_fenced_and_takes_nothing() -> None:
    """A partition that it took would be read by nobody, because the member ignores the answer."""
    lab = new_lab(orders=2)
    first, second = consumers(lab, 2)
    lab.beat_all([first, second])
    late = first.epoch
    assert lab.beat(member_id="m0", member_epoch=-1).error_code == ErrorCode.NONE
    lab.beat_all([second])
    first.rejoin()
    first.step()
    assert not first.assigned, "the other member has to give a partition up first"
    second.step()
    second.step()
    assert len(second.owned) == 1
    assert lab.beat(member_id="m0", member_epoch=late).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert not lab.consumer_group().members["m0"].owned
    first.step()
    assert first.assigned is not None
    assert len(first.assigned) == 1


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": " "}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": [TopicPartitions(partitions=[1])]}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "own"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "(?=x)"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_topic_regex": "x" * 10_001}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_topic_regex": "x" * (2 << 20)}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_topic_regex": r"\pL" * 6}, ErrorCode.INVALID_REGULAR_EXPRESSION),
    ],
)
def test_impossible_requests_are_rejected_and_change_nothing(
    fields: dict[str, Any], error: ErrorCode
) -> None:
    lab = new_lab(orders=1)
    answer = lab.beat(**joining(**fields))
    assert answer.error_code == error
    assert answer.error_message
    assert not lab.log
    assert not lab.core.groups.by_id


def test_the_size_of_an_expression_is_checked_before_the_group_is_looked_for() -> None:
    lab = new_lab(orders=1)
    answer = lab.beat(member_id="nobody", member_epoch=5, subscribed_topic_regex="x" * 10_001)
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert len(answer.error_message or "") < 1_200
    assert lab.beat(**joining(subscribed_topic_regex="x" * 10_000)).error_code == ErrorCode.NONE


def test_the_coordinator_generates_the_member_id_in_version_0() -> None:
    lab = new_lab(orders=1)
    assert lab.beat(version=0, **joining(member_id="")).member_id == "u1"


def test_most_members_choose_the_assignor() -> None:
    lab = new_lab(orders=6)
    members = consumers(lab, 3)
    members[0].assignor = members[1].assignor = "range"
    lab.beat_all(members)
    assert lab.describe_consumer().assignor_name == "range"
    topic = lab.image.topics["orders"].topic_id
    assert {len(member.partitions_of(topic)) for member in members} == {2}


def test_another_coordinator_resumes_an_unfinished_reconciliation() -> None:
    lab = new_lab(orders=7)
    members = [*consumers(lab, 3), ModelConsumer(lab, "static", ["orders"], instance_id="i")]
    lab.beat_all(members, rounds=1)
    owned_before = [set(member.owned) for member in members]
    lab.fail_over()
    lab.beat_all(members)
    assert not any(member.errors for member in members)
    assert sum(len(member.owned) for member in members) == 7
    assert owned_before
    lab.fail_over()
    epoch = lab.consumer_group().epoch
    lab.beat_all(members)
    assert lab.consumer_group().epoch == epoch, "loading alone is no reason to rebalance"
    lab.beat_all([members[0]], rounds=SESSION_MS // 5_000 + 2, pause_ms=5_000)
    assert len(members[0].owned) == 7, "sessions end after loading, too"


def commit(lab: ConsumerLab, member: str, epoch: int, partition: int, version: int = 9) -> ErrorCode:
    request = OffsetCommitRequest(
        group_id=GROUP,
        generation_id_or_member_epoch=epoch,
        member_id=member,
        topics=[OffsetCommitRequestTopic("orders", partitions=[OffsetCommitRequestPartition(partition, 7)])],
    )
    answer = lab.ask(ApiKey.OFFSET_COMMIT, version, request)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def test_commits_with_an_older_epoch_are_valid_for_partitions_owned_in_it() -> None:
    """KIP-1251 allows such commits."""
    lab = new_lab(orders=2)
    first, second = consumers(lab, 2)
    lab.beat_all([first])
    assert commit(lab, "m0", 2, 1) == ErrorCode.NONE
    second.step()
    first.step()
    assert commit(lab, "m0", 2, 1) == ErrorCode.NONE, (
        "the member must give the partition up but still owns it"
    )
    first.step()
    assert [partition for _, partition in first.owned] == [0]
    assert first.epoch == 3
    assert commit(lab, "m0", 2, 0) == ErrorCode.NONE, "the answer with epoch 3 may have been lost"
    assert commit(lab, "m0", 2, 1) == ErrorCode.STALE_MEMBER_EPOCH
    lab.beat_all([first, second])
    assert commit(lab, "m1", 3, 1) == ErrorCode.NONE
    assert commit(lab, "m1", 2, 1) == ErrorCode.STALE_MEMBER_EPOCH, (
        "the member did not own the partition in that epoch"
    )
    assert commit(lab, "m1", 4, 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit(lab, "m1", 3, 1, version=8) == ErrorCode.UNSUPPORTED_VERSION
    assert commit(lab, "nobody", 3, 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(lab, "", -1, 1) == ErrorCode.UNKNOWN_MEMBER_ID
    first.leave()
    second.leave()
    assert commit(lab, "", -1, 1) == ErrorCode.NONE, "a tool may commit, because the group has no members"


def test_a_regular_expression_over_many_topics_is_resolved_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    matches: list[int] = []
    resolve = TopicRegex.resolve

    def counted(regex: TopicRegex, names: Collection[str]) -> frozenset[str]:
        matches.append(len(names))
        return resolve(regex, names)

    monkeypatch.setattr(TopicRegex, "resolve", counted)
    lab = new_lab(**{f"t{n}": 1 for n in range(3 * MATCHES_AT_ONCE)}, other=1)
    members = [ModelConsumer(lab, f"m{n}", regex=f"t.*{n}") for n in range(3)]
    for member in members:
        member.step()
    lab.beat_all(members)
    for n, member in enumerate(members):
        assert len(member.owned) == 3 * MATCHES_AT_ONCE // 10, n
    assert max(matches) <= MATCHES_AT_ONCE
    assert sum(matches) == 3 * (3 * MATCHES_AT_ONCE + 1), "each expression is matched with each topic once"
    lab.set_topic("t-new-1", 4)
    lab.delete_topic("t11")
    lab.beat_all(members)
    assert [len(member.owned) for member in members] == [60, 63, 60]
    assert max(matches) <= MATCHES_AT_ONCE


def test_the_interval_of_assignments_is_a_second() -> None:
    lab = ConsumerLab(BrokerSettings())
    lab.set_topic("orders", 4)
    one, two = (ModelConsumer(lab, name, ["orders"]) for name in ("a", "b"))
    lab.beat_all([one, two], rounds=3, pause_ms=200)
    assert not lab.consumer_group().target_of("b"), "Kafka's default is a second"
    lab.beat_all([one, two], rounds=5)
    assert len(two.owned) == 2
