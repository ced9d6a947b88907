"""The core of a membership of KIP-848: how a member leaves, and which answers it takes."""

from __future__ import annotations

import random
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.core.cluster_view import EpochEnd, MetadataReceived, Node, PartitionLeader, TopicView
from tidelog.client.core.consuming.consumed_partition import PositionState
from tidelog.client.core.consuming.consumer import ConsumerCore
from tidelog.client.core.consuming.consumer_events import (
    AssignmentDone,
    CheckPositions,
    CommittedFound,
    Effect,
    Event,
    GroupRequestFailed,
    LeaveGroup,
    LookUpCommitted,
    LookupFailed,
    PartitionsAssigned,
    PositionsChecked,
    RevocationDone,
    RevokePartitions,
    SendGroupRequest,
    TruncationFound,
)
from tidelog.client.core.consuming.membership import (
    ConsumerMembership,
    GroupPartition,
    Heartbeat,
    HeartbeatAnswered,
    LeaveHeartbeat,
    MemberState,
)
from tidelog.client.core.settings import ConsumerSettings
from tidelog.kernel.instants import Backoff
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition

TOPIC_ID = uuid.UUID(int=1)
PLACE = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)
ASSIGNMENT = frozenset({(TOPIC_ID, 0)})
BOTH = frozenset({(TOPIC_ID, 0), (TOPIC_ID, 1)})
METADATA = MetadataReceived((Node(1, "h", 1),), (TopicView("t", TOPIC_ID, (PartitionLeader(1, 0),) * 2),))
STEPS = st.lists(
    st.sampled_from(["request", "request", "answer", "answer", "fence", "fail", "tell loss", "leave"]),
    max_size=40,
)


def heartbeats(effects: list[Effect]) -> list[Heartbeat]:
    return [
        effect.request
        for effect in effects
        if isinstance(effect, SendGroupRequest) and isinstance(effect.request, Heartbeat)
    ]


def revocations(effects: list[Effect]) -> list[RevokePartitions]:
    return [effect for effect in effects if isinstance(effect, RevokePartitions)]


def assignments(effects: list[Effect]) -> list[PartitionsAssigned]:
    return [effect for effect in effects if isinstance(effect, PartitionsAssigned)]


def answered(
    beat: Heartbeat,
    epoch: int,
    error_code: int = ErrorCode.NONE,
    assignment: frozenset[GroupPartition] = ASSIGNMENT,
) -> HeartbeatAnswered:
    return HeartbeatAnswered(beat, error_code, None, epoch, 5_000, None if error_code else assignment)


def member(instance_id: str | None = None) -> tuple[ConsumerCore, Heartbeat]:
    """Returns a member in epoch 1 that has PLACE, while the application polls, and its open heartbeat."""
    core = ConsumerCore(ConsumerSettings(group_id="g", group_instance_id=instance_id), jitter=lambda: 0.5)
    core.subscribe(("t",), None, 0)
    (join,) = heartbeats(core.begin_poll(0))
    core.step(METADATA, 0)
    (beat,) = heartbeats(core.step(answered(join, 1), 1))
    core.step(AssignmentDone((PLACE,)), 2)
    assert PLACE in core.partitions
    return core, beat


@pytest.mark.parametrize(("instance_id", "epoch"), [(None, -1), ("i", -2)])
def test_a_static_member_keeps_its_partitions_when_it_leaves(instance_id: str | None, epoch: int) -> None:
    """Kafka's consumer does so, too: -1 would remove a static member for good (KIP-848)."""
    core, _ = member(instance_id)
    assert core.membership is not None
    assert core.membership.goodbye() == LeaveHeartbeat(epoch)
    core.end_poll(10)
    left = [effect for effect in core.poll(400_000) if isinstance(effect, LeaveGroup)]
    assert left == [LeaveGroup(LeaveHeartbeat(epoch))], "an application that polls too rarely"


@pytest.mark.parametrize("outcome", ["answered", "fenced", "failed"])
def test_an_answer_to_an_earlier_membership_changes_nothing(outcome: str) -> None:
    """The member would go on with an old epoch and read partitions that another member has."""
    core, late = member()
    membership = core.membership
    assert membership is not None
    core.unsubscribe()
    core.subscribe(("t",), None, 6_001)
    (join,) = heartbeats(core.poll(6_001))
    assert join.member_epoch == 0 and join.topics == ("t",), "the join does not wait for the late answer"
    outcomes: dict[str, Event] = {
        "answered": answered(late, 1),
        "fenced": answered(late, 0, ErrorCode.FENCED_MEMBER_EPOCH),
        "failed": GroupRequestFailed(late),
    }
    effects = core.step(outcomes[outcome], 6_002)
    assert not heartbeats(effects) and not core.partitions
    assert (membership.state, membership.epoch) == (MemberState.JOINING, 0)
    assert not membership.is_coordinator_unknown
    core.step(answered(join, 7), 6_003)
    assert (membership.state, membership.epoch) == (MemberState.STABLE, 7)
    assert PLACE in core.partitions


def test_a_member_does_not_take_partitions_that_it_has_said_it_does_not_own() -> None:
    """The coordinator may have given them to another member, in a response that was lost."""
    core = ConsumerCore(ConsumerSettings(group_id="g"), jitter=lambda: 0.5)
    core.subscribe(("t",), None, 0)
    (join,) = heartbeats(core.begin_poll(0))
    assert not assignments(core.step(answered(join, 1, assignment=BOTH), 1)), "without metadata"
    (beat,) = heartbeats(core.poll(6_000))
    core.step(GroupRequestFailed(beat), 6_001)
    (full,) = heartbeats(core.poll(8_000))
    assert full.owned == frozenset()
    assert not assignments(core.step(METADATA, 8_001))
    core.step(GroupRequestFailed(full), 8_002)
    (again,) = heartbeats(core.poll(10_000))
    told = assignments(core.step(answered(again, 2), 10_001))
    assert told == [PartitionsAssigned((PLACE,))]


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_loss_of_an_earlier_membership_does_not_end_this_one(is_answered: bool) -> None:
    """The application unsubscribed while it was told what it lost, and is a member again when it knows."""
    core, beat = member()
    membership = core.membership
    assert membership is not None
    (loss,) = revocations(core.step(answered(beat, 0, ErrorCode.FENCED_MEMBER_EPOCH), 10))
    core.unsubscribe()
    core.subscribe(("t",), None, 11)
    (join,) = heartbeats(core.poll(11))
    if is_answered:
        core.step(METADATA, 12)
        core.step(answered(join, 7), 12)
    expected = (membership.state, membership.epoch, membership.owned, membership.departures)
    assert expected[0] is (MemberState.STABLE if is_answered else MemberState.JOINING)
    assert not heartbeats(core.step(RevocationDone(loss.step), 13))
    assert (membership.state, membership.epoch, membership.owned, membership.departures) == expected


def beat(
    core: ConsumerCore,
    now_ms: int,
    epoch: int,
    error_code: int = ErrorCode.NONE,
    assignment: frozenset[GroupPartition] = ASSIGNMENT,
) -> list[Effect]:
    """Returns what follows from the answer to the heartbeat of a member that may have left before."""
    core.poll(now_ms)
    assert core.membership is not None
    request = Heartbeat(core.membership.departures, epoch, None, None, None)
    return core.step(answered(request, epoch, error_code, assignment), now_ms)


def join_again(core: ConsumerCore, now_ms: int, assignment: frozenset[GroupPartition]) -> list[Effect]:
    """Begins another membership while a callback or a request of the first one is under way. Returns what
    follows from its assignment.
    """
    core.unsubscribe()
    core.subscribe(("t",), None, now_ms)
    core.begin_poll(now_ms)
    core.step(METADATA, now_ms)
    effects = beat(core, now_ms, 1, assignment=assignment)
    core.step(AssignmentDone((PLACE, OTHER)), now_ms)
    return effects


def test_a_revocation_of_an_earlier_membership_does_not_end_one_of_this_one() -> None:
    """The coordinator would give a partition to another member before the application has given it up."""
    core, open_beat = member()
    (earlier,) = revocations(core.step(answered(open_beat, 2, assignment=frozenset()), 10))
    join_again(core, 20, BOTH)
    membership = core.membership
    assert membership is not None
    (revocation,) = revocations(beat(core, 10_000, 2, assignment=frozenset({(TOPIC_ID, 1)})))
    assert revocation.partitions == earlier.partitions == (PLACE,)
    core.step(RevocationDone(earlier.step), 10_001)
    assert (membership.state, membership.owned) == (MemberState.REVOKING, BOTH)
    assert PLACE in core.partitions
    core.step(RevocationDone(revocation.step), 10_002)
    assert (membership.state, membership.owned) == (MemberState.STABLE, BOTH - ASSIGNMENT)
    assert PLACE not in core.partitions


def test_a_revocation_from_before_a_loss_does_not_end_one_from_after_it() -> None:
    core, open_beat = member()
    (earlier,) = revocations(core.step(answered(open_beat, 2, assignment=frozenset()), 10))
    (asked,) = heartbeats(core.poll(10_000))
    (loss,) = revocations(core.step(answered(asked, 0, ErrorCode.FENCED_MEMBER_EPOCH), 10_000))
    (asked,) = heartbeats(core.step(RevocationDone(loss.step), 10_001))
    (asked,) = heartbeats(core.step(answered(asked, 5), 10_002))
    core.step(AssignmentDone((PLACE,)), 10_003)
    (revocation,) = revocations(core.step(answered(asked, 6, assignment=frozenset()), 10_004))
    core.step(RevocationDone(earlier.step), 10_005)
    assert PLACE in core.partitions
    core.step(RevocationDone(revocation.step), 10_006)
    assert PLACE not in core.partitions


def test_a_loss_of_an_earlier_membership_does_not_stand_for_one_of_this_one() -> None:
    """The application would go on to read partitions of others, because nobody tells it what it lost."""
    core, open_beat = member()
    (earlier,) = revocations(core.step(answered(open_beat, 0, ErrorCode.FENCED_MEMBER_EPOCH), 10))
    join_again(core, 20, ASSIGNMENT)
    core.end_poll(30)
    assert not revocations(beat(core, 10_000, 0, ErrorCode.FENCED_MEMBER_EPOCH))
    core.step(RevocationDone(earlier.step), 10_001)
    membership = core.membership
    assert membership is not None and (membership.state, membership.owned) == (MemberState.LOSING, ASSIGNMENT)
    (loss,) = revocations(core.begin_poll(10_002))
    assert loss.partitions == (PLACE,)
    core.step(RevocationDone(loss.step), 10_003)
    assert (membership.state, membership.owned) == (MemberState.JOINING, frozenset())
    assert not core.partitions


def test_a_slow_application_does_not_join_again_when_an_earlier_callback_ends() -> None:
    core, open_beat = member()
    (earlier,) = revocations(core.step(answered(open_beat, 0, ErrorCode.FENCED_MEMBER_EPOCH), 10))
    core.end_poll(20)
    core.poll(400_000)
    (loss,) = revocations(core.begin_poll(400_001))
    core.step(RevocationDone(earlier.step), 400_002)
    membership = core.membership
    assert core.is_removed_for_slowness
    assert membership is not None and membership.state is MemberState.OUTSIDE
    core.step(RevocationDone(loss.step), 400_003)
    assert not core.is_removed_for_slowness and membership.state is MemberState.JOINING


def test_an_application_that_unsubscribes_while_it_is_told_of_its_slowness_is_told_once() -> None:
    core, _ = member()
    core.end_poll(20)
    core.poll(400_000)
    (loss,) = revocations(core.begin_poll(400_001))
    core.unsubscribe()
    core.subscribe(("t",), None, 400_002)
    assert not revocations(core.begin_poll(400_002)) and not core.is_removed_for_slowness
    core.step(METADATA, 400_003)
    beat(core, 400_003, 9)
    core.step(RevocationDone(loss.step), 400_004)
    assert PLACE in core.partitions


def test_a_callback_of_an_earlier_assignment_delays_the_next_one() -> None:
    """Two callbacks for assignments never run at the same time."""
    core, open_beat = member()
    (more,) = assignments(core.step(answered(open_beat, 2, assignment=BOTH), 10))
    core.unsubscribe()
    core.subscribe(("t",), None, 20)
    core.begin_poll(20)
    assert not assignments(beat(core, 20, 1)) and PLACE not in core.partitions
    assert assignments(core.step(AssignmentDone(more.partitions), 30))
    assert not core.partitions[PLACE].can_fetch


def looking_up() -> tuple[ConsumerCore, LookUpCommitted]:
    """Returns a member that has PLACE, and the lookup of its committed offset."""
    core = ConsumerCore(ConsumerSettings(group_id="g"), jitter=lambda: 0.5)
    core.subscribe(("t",), None, 0)
    core.begin_poll(0)
    core.step(METADATA, 0)
    (lookup,) = committed_lookups(beat(core, 0, 1))
    core.step(AssignmentDone((PLACE,)), 0)
    return core, lookup


def committed_lookups(effects: list[Effect]) -> list[LookUpCommitted]:
    return [effect for effect in effects if isinstance(effect, LookUpCommitted)]


def test_a_committed_offset_from_before_another_membership_is_no_position() -> None:
    """Another member may have had the partition in the meantime, and committed more."""
    core, earlier = looking_up()
    (lookup,) = committed_lookups(join_again(core, 20, ASSIGNMENT))
    core.step(CommittedFound(earlier, {PLACE: (3, -1)}), 30)
    partition = core.partitions[PLACE]
    assert partition.state is PositionState.UNKNOWN
    core.step(CommittedFound(lookup, {PLACE: (7, -1)}), 31)
    assert partition.position == 7
    core.step(CommittedFound(earlier, {PLACE: (3, -1)}), 32)
    assert partition.position == 7


def test_a_failed_lookup_from_before_another_membership_is_no_error_of_this_one() -> None:
    core, earlier = looking_up()
    (lookup,) = committed_lookups(join_again(core, 20, ASSIGNMENT))
    core.step(LookupFailed(earlier, KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)), 30)
    assert core.partitions[PLACE].error is None
    core.step(LookupFailed(lookup, KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)), 31)
    assert core.partitions[PLACE].error is not None


def test_a_checked_position_of_an_earlier_membership_says_nothing_about_this_one() -> None:
    """The log has grown since. The consumer would go back and read records of others again."""
    core, lookup = looking_up()
    leader = TopicView("t", TOPIC_ID, (PartitionLeader(1, 1),) * 2)
    core.step(METADATA._replace(topics=(leader,)), 0)

    def check(lookup: LookUpCommitted, offset: int, now_ms: int) -> CheckPositions:
        effects = core.step(CommittedFound(lookup, {PLACE: (offset, 0)}), now_ms)
        (found,) = [effect for effect in effects if isinstance(effect, CheckPositions)]
        return found

    earlier = check(lookup, 5, 10)
    (lookup,) = committed_lookups(join_again(core, 20, ASSIGNMENT))
    assert check(lookup, 50, 30).checks.keys() == earlier.checks.keys() == {PLACE}
    effects = core.step(PositionsChecked(earlier.checks, {PLACE: EpochEnd(0, 0, 6)}), 40)
    assert not [effect for effect in effects if isinstance(effect, TruncationFound)]
    assert core.partitions[PLACE].position == 50


@given(STEPS, st.randoms(use_true_random=False))
def test_an_epoch_belongs_to_the_membership_that_got_it(steps: list[str], chance: random.Random) -> None:
    """Answers arrive in any order and after any number of leaves, and a rejoin never waits for one."""
    membership = ConsumerMembership("g", Backoff(100, 1_000, jitter=lambda: 0.5))
    membership.subscribe(("t",), None, 0)
    now_ms, epoch = 0, 0
    in_flight: list[tuple[int, Heartbeat]] = []
    current = 0
    given_epochs: set[int] = set()
    for step in [*steps, "tell loss", "request"]:
        now_ms += 10_000
        if step == "request":
            beat = membership.request(now_ms)
            if beat is not None:
                assert beat.member_epoch in given_epochs | {0}
                assert beat.member_epoch or beat.topics == ("t",)
                assert current not in {of for of, _ in in_flight}, "one request at a time"
                in_flight.append((current, beat))
        elif step == "tell loss":
            if membership.state is MemberState.LOSING:
                membership.lost(now_ms)
        elif step == "leave":
            membership.leave()
            membership.subscribe(("t",), None, now_ms)
            current += 1
            given_epochs.clear()
        elif in_flight:
            of, beat = in_flight.pop(chance.randrange(len(in_flight)))
            if step == "answer":
                epoch += 1
                membership.answered(answered(beat, epoch), now_ms)
                given_epochs |= {epoch} if of == current else set()
            elif step == "fence":
                membership.answered(answered(beat, 0, ErrorCode.FENCED_MEMBER_EPOCH), now_ms)
            else:
                membership.failed(beat, now_ms)
        assert membership.epoch in given_epochs | {0}
    assert current in {of for of, _ in in_flight}, "the membership goes on"
