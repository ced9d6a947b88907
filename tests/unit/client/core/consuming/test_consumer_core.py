"""Single decisions of a consumer's core. Most tests are faults that a review found."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.core.cluster_view import EpochEnd, MetadataReceived, Node, PartitionLeader, TopicView
from tidelog.client.core.consuming.assignors import decode_subscription, encode_assignment
from tidelog.client.core.consuming.classic_membership import (
    GroupHeartbeat,
    GroupHeartbeatAnswered,
    GroupMember,
    JoinAnswered,
    JoinGroup,
    SyncAnswered,
    SyncGroup,
)
from tidelog.client.core.consuming.consumed_partition import OffsetToCommit, PositionState
from tidelog.client.core.consuming.consumer import FULL_POLL_EACH_MS, ConsumerCore
from tidelog.client.core.consuming.consumer_events import (
    AssignmentDone,
    CheckPositions,
    CommittedFound,
    Effect,
    FetchAnswered,
    FetchedPartition,
    LeaveGroup,
    LookUpCommitted,
    LookupFailed,
    LookUpOffsets,
    OffsetsFound,
    PartitionsAssigned,
    PositionsChecked,
    RecordsReady,
    RequestMetadata,
    RevocationDone,
    RevokePartitions,
    SendFetch,
    SendGroupRequest,
    TopicReplaced,
    TopicsMissing,
    TruncationFound,
)
from tidelog.client.core.consuming.membership import GroupPartition, Heartbeat, HeartbeatAnswered, MemberState
from tidelog.client.core.settings import ConsumerSettings
from tidelog.client.errors import LogTruncationError, TopicAuthorizationError
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import EndTransactionMarker, encode_end_transaction
from tidelog.records.builder import build_batch
from tidelog.records.record import Record

TOPIC_ID = uuid.UUID(int=1)
PLACE = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)
NODES = (Node(1, "h", 1),)
METADATA = MetadataReceived(NODES, (TopicView("t", TOPIC_ID, (PartitionLeader(1, 0),) * 2),))
BATCH = memoryview(
    bytes(build_batch([Record(0, 1_000, None, b"a"), Record(1, 1_000, None, b"b")], leader_epoch=0))
)


def answer(
    error_code: int = ErrorCode.NONE, records: memoryview = BATCH, preferred_replica: int = -1
) -> FetchedPartition:
    return FetchedPartition(error_code, records, 2, 2, 0, [], preferred_replica, None)


def fetches(effects: list[Effect]) -> list[SendFetch]:
    return [effect for effect in effects if isinstance(effect, SendFetch)]


def reader(*places: TopicPartition) -> tuple[ConsumerCore, SendFetch]:
    """Returns a consumer that waits for records at offset 0 of these partitions, and its fetch."""
    core = ConsumerCore(ConsumerSettings(), jitter=lambda: 0.5)
    core.assign(places)
    core.begin_poll(0)
    core.step(METADATA, 0)
    for place in places:
        core.partitions[place].seek(0)
    return core, fetches(core.poll(200))[0]


def test_an_error_waits_until_the_records_before_it_were_returned() -> None:
    core, fetch = reader(PLACE, OTHER)
    refused = answer(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    core.step(FetchAnswered(fetch.request_id, 0, {PLACE: answer(), OTHER: refused}), 201)
    assert core.take(10) is not None
    assert core.take(8, raises=False) is None
    with pytest.raises(KafkaError, match="t-1"):
        core.take(10)


def test_a_damaged_batch_waits_until_the_records_before_it_were_returned() -> None:
    core, fetch = reader(PLACE, OTHER)
    damaged = bytearray(BATCH)
    damaged[-1] ^= 1
    core.step(
        FetchAnswered(fetch.request_id, 0, {PLACE: answer(), OTHER: answer(records=memoryview(damaged))}), 201
    )
    assert core.take(10) is not None
    assert core.take(8, raises=False) is None
    with pytest.raises(KafkaError, match="t-1"):
        core.take(10)
    assert core.partitions[PLACE].consumed == 0


def test_a_partition_goes_on_after_its_error() -> None:
    core, fetch = reader(PLACE)
    core.step(FetchAnswered(fetch.request_id, 0, {PLACE: answer(ErrorCode.TOPIC_AUTHORIZATION_FAILED)}), 201)
    core.begin_poll(201)
    with pytest.raises(KafkaError):
        core.take(10)
    assert not core.is_polling, "it would never notice that the application stopped to poll"
    assert not fetches(core.begin_poll(202)), "it does not back off"
    again = fetches(core.poll(2_000))
    assert again and again[0].offsets[PLACE][0] == 0


def test_a_poll_soon_after_a_full_one_only_counts_what_was_delivered() -> None:
    core, fetch = reader(PLACE)
    core.begin_poll(300)
    core.step(FetchAnswered(fetch.request_id, 0, {PLACE: answer()}), 301)
    assert core.take(1) is not None
    core.end_poll(302)
    last_ms = 299 + FULL_POLL_EACH_MS
    assert core.continue_polls(last_ms)
    assert core.partitions[PLACE].consumed == 1
    assert core.last_poll_ms == last_ms and not core.is_polling


def test_a_poll_without_a_recent_full_one_is_full() -> None:
    core, fetch = reader(PLACE)
    core.begin_poll(300)
    core.step(FetchAnswered(fetch.request_id, 0, {PLACE: answer()}), 301)
    assert core.take(1) is not None
    core.end_poll(302)
    assert not core.continue_polls(300 + FULL_POLL_EACH_MS)
    assert core.partitions[PLACE].consumed == 0, "the poll has not begun yet"
    assert core.last_poll_ms == 302
    assert not ConsumerCore(ConsumerSettings(), jitter=lambda: 0.5).continue_polls(0)


@given(st.lists(st.tuples(st.integers(0, 2 * FULL_POLL_EACH_MS), st.booleans()), max_size=50))
def test_short_polls_never_put_off_the_next_full_poll(polls: list[tuple[int, bool]]) -> None:
    """The polls follow each other after these times; some are full although they could be short."""
    core, _ = reader(PLACE)
    at_ms = full_ms = 1_000
    core.begin_poll(at_ms)
    for wait_ms, is_full in polls:
        at_ms += wait_ms
        if not is_full and core.continue_polls(at_ms):
            assert at_ms - full_ms < FULL_POLL_EACH_MS
        else:
            assert is_full or at_ms - full_ms >= FULL_POLL_EACH_MS
            core.begin_poll(at_ms)
            full_ms = at_ms
        assert core.last_poll_ms == at_ms
        core.end_poll(at_ms)


def heartbeat_answered(
    epoch: int, assignment: Iterable[GroupPartition] = (), *, attempt: int = 0
) -> HeartbeatAnswered:
    beat = Heartbeat(attempt, epoch - 1, ("t",), None, frozenset())
    return HeartbeatAnswered(beat, 0, None, epoch, 5_000, frozenset(assignment))


def member() -> ConsumerCore:
    """Returns a member of a group that has PLACE, while the application polls."""
    core = ConsumerCore(ConsumerSettings(group_id="g"), jitter=lambda: 0.5)
    core.subscribe(("t",), None, 0)
    core.begin_poll(0)
    core.step(METADATA, 0)
    core.step(heartbeat_answered(1, {(TOPIC_ID, 0)}), 1)
    assert PLACE in core.partitions
    core.step(AssignmentDone((PLACE,)), 2)
    return core


def revocations(effects: list[Effect]) -> list[RevokePartitions]:
    return [effect for effect in effects if isinstance(effect, RevokePartitions)]


def test_a_partition_of_a_topic_that_metadata_forgot_is_given_up() -> None:
    core = member()
    deleted = TopicView("t", TOPIC_ID, (), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    core.step(MetadataReceived(NODES, (deleted,)), 10)
    core.poll(6_000)
    (revocation,) = revocations(core.step(heartbeat_answered(2), 6_001))
    assert revocation.partitions == (PLACE,)
    core.step(RevocationDone(revocation.step), 6_002)
    assert not core.partitions


def lookups(effects: list[Effect]) -> list[LookUpOffsets]:
    return [effect for effect in effects if isinstance(effect, LookUpOffsets)]


def committed_lookups(effects: list[Effect]) -> list[LookUpCommitted]:
    return [effect for effect in effects if isinstance(effect, LookUpCommitted)]


def test_the_last_of_three_seeks_to_a_time_counts() -> None:
    core, _ = reader(PLACE)
    partition = core.partitions[PLACE]
    partition.reset(EARLIEST_TIMESTAMP)
    (first,) = lookups(core.poll(201))
    partition.reset(LATEST_TIMESTAMP)
    (second,) = lookups(core.poll(202))
    partition.reset(LATEST_TIMESTAMP)
    (third,) = lookups(core.poll(203))
    core.step(OffsetsFound(first, {PLACE: 0}), 204)
    core.step(OffsetsFound(second, {PLACE: 90}), 205)
    assert partition.state is PositionState.RESETTING, "the end has moved since the second request"
    core.step(OffsetsFound(third, {PLACE: 100}), 206)
    assert partition.position == 100


def test_a_failed_lookup_does_not_undo_a_seek() -> None:
    core, _ = reader(PLACE)
    partition = core.partitions[PLACE]
    partition.reset(EARLIEST_TIMESTAMP)
    (lookup,) = lookups(core.poll(201))
    partition.seek(7)
    core.step(LookupFailed(lookup, KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)), 202)
    assert partition.error is None and partition.position == 7


def test_no_record_is_fetched_before_the_application_knows_its_assignment() -> None:
    core = ConsumerCore(ConsumerSettings(group_id="g"), jitter=lambda: 0.5)
    core.subscribe(("t",), None, 0)
    core.begin_poll(0)
    core.step(METADATA, 0)
    (lookup,) = committed_lookups(core.step(heartbeat_answered(1, {(TOPIC_ID, 0)}), 1))
    assert not fetches(core.step(CommittedFound(lookup, {PLACE: (0, 0)}), 2))
    core.partitions[PLACE].seek(3)
    (fetch,) = fetches(core.step(AssignmentDone((PLACE,)), 3))
    assert fetch.offsets[PLACE][0] == 3


def test_a_slow_application_is_told_what_it_lost_before_it_joins_again() -> None:
    core = member()
    core.end_poll(10)
    left = core.poll(400_000)
    assert [effect for effect in left if isinstance(effect, LeaveGroup)] and not revocations(left)
    (loss,) = revocations(core.begin_poll(400_001))
    assert (loss.partitions, loss.is_lost) == ((PLACE,), True)
    assert core.is_removed_for_slowness and not revocations(core.begin_poll(400_002))
    core.step(RevocationDone(loss.step), 400_003)
    assert core.membership is not None and core.membership.state is MemberState.JOINING
    assert not core.is_removed_for_slowness


def test_a_revocation_of_an_earlier_membership_takes_no_partition_away() -> None:
    """The application unsubscribed while its callback ran, and has the partition again when it ends."""
    core = member()
    core.poll(6_000)
    (revocation,) = revocations(core.step(heartbeat_answered(2), 6_001))
    core.unsubscribe()
    core.subscribe(("t",), None, 6_002)
    core.begin_poll(6_002)
    core.step(METADATA, 6_003)
    (lookup,) = committed_lookups(core.step(heartbeat_answered(3, {(TOPIC_ID, 0)}, attempt=1), 6_004))
    core.step(AssignmentDone((PLACE,)), 6_005)
    core.step(RevocationDone(revocation.step), 6_006)
    assert fetches(core.step(CommittedFound(lookup, {PLACE: (0, -1)}), 6_007))


def test_an_unknown_preferred_replica_is_looked_up_without_a_busy_loop() -> None:
    core, fetch = reader(PLACE)
    elsewhere = answer(records=memoryview(b""), preferred_replica=2)
    effects = core.step(FetchAnswered(fetch.request_id, 0, {PLACE: elsewhere}), 201)
    assert not fetches(effects)
    assert [effect for effect in effects if isinstance(effect, RequestMetadata)]
    both = (*NODES, Node(2, "h", 2))
    core.step(METADATA._replace(nodes=both), 202)
    (again,) = fetches(core.poll(1_000))
    (moved,) = fetches(core.step(FetchAnswered(again.request_id, 0, {PLACE: elsewhere}), 1_001))
    assert moved.node_id == 2


# -- another leader may lack what was read (KIP-320)


def led_by(leader_epoch: int) -> MetadataReceived:
    return MetadataReceived(NODES, (TopicView("t", TOPIC_ID, (PartitionLeader(1, leader_epoch),) * 2),))


def check_after_election(policy: str, *, takes: bool = True) -> tuple[ConsumerCore, CheckPositions]:
    """Returns a consumer that fetched the records 0 and 1, and its check of the next leader."""
    core = ConsumerCore(ConsumerSettings(auto_offset_reset=policy), jitter=lambda: 0.5)
    core.assign((PLACE,))
    core.begin_poll(0)
    core.step(METADATA, 0)
    core.partitions[PLACE].seek(0)
    (fetch,) = fetches(core.poll(200))
    (again,) = fetches(core.step(FetchAnswered(fetch.request_id, 0, {PLACE: answer()}), 201))
    if takes:
        core.take(10)
        core.begin_poll(202)
    refused = answer(ErrorCode.FENCED_LEADER_EPOCH, memoryview(b""))
    core.step(FetchAnswered(again.request_id, 0, {PLACE: refused}), 204)
    effects = core.step(led_by(1), 205) + core.poll(1_000)
    (check,) = [effect for effect in effects if isinstance(effect, CheckPositions)]
    assert not fetches(effects)
    found = check.checks[PLACE]
    assert (found.leader_epoch, found.epoch) == (1, 0)
    return core, check


def answer_check(
    core: ConsumerCore, check: CheckPositions, end_offset: int, epoch: int = 0, code: int = 0
) -> list[Effect]:
    return core.step(PositionsChecked(check.checks, {PLACE: EpochEnd(code, epoch, end_offset)}), 1_001)


def test_a_consumer_goes_on_if_the_next_leader_has_what_it_read() -> None:
    core, check = check_after_election("none")
    (fetch,) = fetches(answer_check(core, check, 2))
    assert fetch.offsets[PLACE] == (2, 1)


def test_lost_records_are_an_error_without_a_reset_policy() -> None:
    core, check = check_after_election("none")
    answer_check(core, check, 1)
    with pytest.raises(LogTruncationError, match="before offset 2 from offset 1 on") as raised:
        core.take(10)
    assert raised.value.divergent_offset == 1
    core.partitions[PLACE].seek(1)
    (fetch,) = fetches(core.poll(5_000))
    assert fetch.offsets[PLACE][0] == 1


def test_a_reset_policy_goes_on_where_the_logs_diverge() -> None:
    core, check = check_after_election("latest")
    effects = answer_check(core, check, 1)
    assert TruncationFound(PLACE, 2, 1) in effects
    (fetch,) = fetches(effects)
    assert fetch.offsets[PLACE][0] == 1
    assert core.partitions.commitable() == {PLACE: OffsetToCommit(1, 0, TOPIC_ID)}


def test_a_log_without_the_epoch_is_read_from_the_reset_position() -> None:
    core, check = check_after_election("earliest")
    effects = answer_check(core, check, -1, epoch=-1)
    assert TruncationFound(PLACE, 2, None) in effects
    assert [lookup.timestamps for lookup in lookups(effects)] == [{PLACE: EARLIEST_TIMESTAMP}]


def test_lost_records_that_the_application_has_not_got_are_fetched_again() -> None:
    core, check = check_after_election("none", takes=False)
    (fetch,) = fetches(answer_check(core, check, 1))
    assert fetch.offsets[PLACE][0] == 0
    assert core.take(10) is None


def test_a_seek_replaces_a_check() -> None:
    core, check = check_after_election("none")
    core.partitions[PLACE].seek(7)
    answer_check(core, check, 1)
    assert core.partitions[PLACE].position == 7 and core.partitions[PLACE].error is None


@pytest.mark.parametrize("code", [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER])
def test_a_check_of_an_old_leader_is_repeated(code: ErrorCode) -> None:
    core, check = check_after_election("none")
    assert not fetches(answer_check(core, check, -1, code=code))
    effects = core.step(led_by(2), 2_000)
    (again,) = [effect for effect in effects if isinstance(effect, CheckPositions)]
    assert again.checks[PLACE].leader_epoch == 2


@pytest.mark.parametrize("in_batches", [False, True])
def test_partitions_with_a_backlog_take_turns(in_batches: bool) -> None:
    """The application is slower than the fetches, so both partitions always have records."""
    core, fetch = reader(PLACE, OTHER)
    waiting, got = [fetch], {PLACE: 0, OTHER: 0}
    for now_ms in range(201, 401):
        while waiting:
            asked = waiting.pop(0)
            rows = {
                place: FetchedPartition(0, numbered(offset, 100), 10**6, 10**6, 0, [], -1, None)
                for place, (offset, _) in asked.offsets.items()
            }
            waiting += fetches(core.step(FetchAnswered(asked.request_id, 0, rows), now_ms))
        waiting += fetches(core.begin_poll(now_ms))
        batch = core.take_batch() if in_batches else None
        records = [] if in_batches else core.take(50) or []
        core.end_poll(now_ms)
        waiting += fetches(core.poll(now_ms))
        if batch is not None:
            got[batch.place] += len(batch)
        elif records:
            got[records[0].place] += len(records)
    assert min(got.values()) > 0.4 * sum(got.values())


def numbered(first_offset: int, count: int, leader_epoch: int = 0, **producer: Any) -> memoryview:
    records = [Record(first_offset + number, 1_000, None, b"v") for number in range(count)]
    return memoryview(bytes(build_batch(records, leader_epoch=leader_epoch, **producer)))


@pytest.mark.parametrize("in_batches", [False, True])
def test_a_position_behind_a_marker_has_its_epoch(in_batches: bool) -> None:
    """Otherwise the next member of the group compares it with an epoch that ended before it."""
    core = ConsumerCore(ConsumerSettings(group_id="g"), jitter=lambda: 0.5)
    core.assign([PLACE])
    (lookup,) = committed_lookups(core.begin_poll(0))
    core.step(MetadataReceived(NODES, (TopicView("t", TOPIC_ID, (PartitionLeader(1, 2),)),)), 0)
    (fetch,) = fetches(core.step(CommittedFound(lookup, {PLACE: (0, -1)}), 200))
    key, value = encode_end_transaction(EndTransactionMarker(is_commit=True, coordinator_epoch=0))
    producer = {"producer_id": 1, "producer_epoch": 0, "is_transactional": True}
    marker = build_batch([Record(10, 1_000, key, value)], leader_epoch=2, is_control=True, **producer)
    raw = memoryview(bytes(numbered(0, 10, 1, base_sequence=0, **producer)) + bytes(marker))
    core.step(FetchAnswered(fetch.request_id, 0, {PLACE: answer(records=raw)}), 201)
    for now_ms in (202, 203, 204):
        core.begin_poll(now_ms)
        if in_batches:
            core.take_batch()
        else:
            core.take(500)
    assert core.partitions.commitable() == {PLACE: OffsetToCommit(11, 2, TOPIC_ID)}


def test_a_damaged_length_fails_only_its_partition() -> None:
    core, fetch = reader(PLACE, OTHER)
    damaged = memoryview(bytes(BATCH) + bytes(61))
    rows = {PLACE: answer(records=damaged), OTHER: answer()}
    core.step(FetchAnswered(fetch.request_id, 0, rows), 201)
    taken: set[TopicPartition] = set()
    errors: list[str] = []
    for now_ms in range(202, 210):
        core.begin_poll(now_ms)
        try:
            taken |= {record.place for record in core.take(10) or []}
        except KafkaError as error:
            errors.append(str(error))
    assert taken == {PLACE, OTHER}
    assert errors
    assert all("t-0" in error for error in errors)


def test_a_pattern_is_not_matched_with_metadata_of_an_earlier_subscription() -> None:
    """The consumer would join without the topics of the pattern, and look again only after five minutes."""
    core = ConsumerCore(ConsumerSettings(group_id="g", group_protocol="classic"), jitter=lambda: 0.5)
    core.subscribe(("t",), None, 0)
    assert [effect.topics for effect in core.begin_poll(0) if isinstance(effect, RequestMetadata)] == [("t",)]
    core.unsubscribe()
    core.subscribe((), "u.*", 1)
    late = core.step(METADATA, 2)
    assert not [effect for effect in late if isinstance(effect, SendGroupRequest)]
    (asked,) = [effect for effect in core.poll(1_000) if isinstance(effect, RequestMetadata)]
    assert asked.has_unknown_ids
    all_topics = (*METADATA.topics, TopicView("u1", uuid.UUID(int=2), (PartitionLeader(1, 0),)))
    effects = core.step(MetadataReceived(NODES, all_topics, is_complete=True), 1_001)
    (join,) = [effect.request for effect in effects if isinstance(effect, SendGroupRequest)]
    assert isinstance(join, JoinGroup)
    assert decode_subscription("range", "m", None, dict(join.protocols)["range"]).topics == {"u1"}


@pytest.mark.parametrize("is_static", [False, True])
def test_the_leader_of_a_classic_group_notices_new_partitions(is_static: bool) -> None:
    """Also if the topic did not exist when it assigned, and if the coordinator kept a static leader's
    assignment (KIP-814).
    """
    core = ConsumerCore(
        ConsumerSettings(
            group_id="g",
            group_protocol="classic",
            group_instance_id="i" if is_static else None,
            partition_assignment_strategy=("range",),
        ),
        jitter=lambda: 0.5,
    )
    core.subscribe(("t",), None, 0)
    effects, joins = core.begin_poll(0), 0
    for now_ms in range(0, 600_000, 100):
        count = 3 if now_ms >= 10_000 else 1 if is_static else 0
        following: list[Effect] = []
        for effect in effects:
            match effect:
                case RequestMetadata():
                    code = ErrorCode.NONE if count else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    topic = TopicView("t", TOPIC_ID, (PartitionLeader(1, 0),) * count, code)
                    following += core.step(MetadataReceived(NODES, (topic,)), now_ms)
                case SendGroupRequest(request=JoinGroup() as request):
                    joins += 1
                    member = GroupMember("m", None, request.protocols[0][1])
                    keeps = is_static and joins == 1
                    joined = JoinAnswered(request, 0, "m", joins, "range", "m", (member,), keeps)
                    following += core.step(joined, now_ms)
                case SendGroupRequest(request=SyncGroup() as request):
                    kept = encode_assignment([PLACE]) if is_static else b""
                    data = dict(request.assignments).get("m", kept)
                    following += core.step(SyncAnswered(request, 0, data), now_ms)
                case SendGroupRequest(request=GroupHeartbeat() as request):
                    following += core.step(GroupHeartbeatAnswered(request, 0), now_ms)
                case PartitionsAssigned(partitions=places):
                    following += core.step(AssignmentDone(places), now_ms)
                case RevokePartitions(step=step):
                    following += core.step(RevocationDone(step), now_ms)
                case LookUpCommitted():
                    found = dict.fromkeys(effect.generations, (0, -1))
                    following += core.step(CommittedFound(effect, found), now_ms)
        effects = following + core.poll(now_ms)
    assert {place.partition for place in core.membership.owned} == {0, 1, 2}


def test_a_late_answer_about_a_deleted_topic_names_no_leader_of_its_successor() -> None:
    """The epochs of the next topic begin at 0, so metadata would never replace a leader of epoch 9."""
    core, fetch = reader(PLACE)
    nodes = (Node(1, "h", 1), Node(2, "h", 1), Node(3, "h", 1))
    successor = TopicView("t", uuid.UUID(int=2), (PartitionLeader(2, 0),))
    core.step(MetadataReceived(nodes, (successor,)), 201)
    moved = answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, memoryview(b""))._replace(leader=PartitionLeader(3, 9))
    core.step(FetchAnswered(fetch.request_id, 0, {PLACE: moved}), 202)
    assert core.view.leader(PLACE) == PartitionLeader(2, 0)


# -- a topic that is deleted and created again under its name

NEXT_ID = uuid.UUID(int=2)
REPLACED = MetadataReceived(NODES, (TopicView("t", NEXT_ID, (PartitionLeader(1, 0),) * 2),))


def read_two(settings: ConsumerSettings) -> tuple[ConsumerCore, SendFetch]:
    """Returns a consumer whose application got two records of a topic, and its next fetch. Two further
    records wait for the application.
    """
    core = ConsumerCore(settings, jitter=lambda: 0.5)
    core.assign([PLACE])
    effects = [*core.begin_poll(0), *core.step(METADATA, 0)]
    if settings.group_id is not None:
        (lookup,) = committed_lookups(effects)
        effects = core.step(CommittedFound(lookup, {PLACE: (0, -1)}), 200)
    else:
        (reset,) = lookups(effects)
        effects = core.step(OffsetsFound(reset, {PLACE: 0}), 200)
    (fetch,) = fetches(effects)
    (fetch,) = fetches(
        core.step(FetchAnswered(fetch.request_id, 0, {PLACE: answer(records=numbered(0, 4))}), 201)
    )
    assert [record.offset for record in core.take(2) or []] == [0, 1]
    return core, fetch


@pytest.mark.parametrize("policy", ["earliest", "latest"])
def test_a_topic_that_was_created_again_is_read_from_the_reset_position(policy: str) -> None:
    """Its records before the position in the earlier topic would be skipped."""
    core, fetch = read_two(ConsumerSettings(auto_offset_reset=policy))
    effects = core.step(REPLACED, 202)
    (reset,) = lookups(effects)
    assert reset.timestamps == {PLACE: EARLIEST_TIMESTAMP if policy == "earliest" else LATEST_TIMESTAMP}
    assert TopicReplaced("t") in effects
    core.step(FetchAnswered(fetch.request_id, 0, {PLACE: answer(records=numbered(4, 4))}), 203)
    core.begin_poll(204)
    assert core.take(10) is None, "it delivers records of the deleted topic"
    (again,) = fetches(core.step(OffsetsFound(reset, {PLACE: 0}), 205))
    assert again.offsets[PLACE][0] == 0
    assert again.session.topic_ids == {"t": NEXT_ID}


def test_a_topic_that_was_created_again_is_read_from_its_committed_offset() -> None:
    core, fetch = read_two(ConsumerSettings(group_id="g"))
    assert core.partitions.chosen_to_commit({PLACE: 2}) == {PLACE: OffsetToCommit(2, topic_id=TOPIC_ID)}
    core.begin_poll(202)
    earlier = core.partitions.commitable()
    assert earlier == {PLACE: OffsetToCommit(2, 0, TOPIC_ID)}
    (lookup,) = committed_lookups(core.step(REPLACED, 203))
    core.partitions.committed(earlier)
    assert not core.partitions.commitable(), (
        "an offset of the deleted topic would be committed for the new one"
    )
    core.step(FetchAnswered(fetch.request_id, 0, {PLACE: answer()}), 204)
    (again,) = fetches(core.step(CommittedFound(lookup, {PLACE: (7, -1)}), 205))
    assert again.offsets[PLACE][0] == 7
    core.partitions[PLACE].read_again(1)
    assert core.partitions[PLACE].position == 7, "it goes back to a record of the deleted topic"
    assert core.partitions.chosen_to_commit({PLACE: 2}) == {PLACE: OffsetToCommit(2, topic_id=TOPIC_ID)}
    core.partitions[PLACE].seek(2)
    assert core.partitions.commitable() == {PLACE: OffsetToCommit(2)}, (
        "an earlier commit does not stand for this one"
    )


def test_the_lack_of_a_committed_offset_in_the_next_topic_is_an_error_if_the_policy_is_none() -> None:
    core, _ = read_two(ConsumerSettings(group_id="g", auto_offset_reset="none"))
    (lookup,) = committed_lookups(core.step(REPLACED, 202))
    core.step(CommittedFound(lookup, {PLACE: (-1, -1)}), 203)
    core.begin_poll(204)
    with pytest.raises(KafkaError, match="t-0 has no committed offset"):
        core.take(10)


def test_a_topic_that_is_gone_for_a_while_is_recognized_as_another_one() -> None:
    core, _ = read_two(ConsumerSettings(auto_offset_reset="earliest"))
    deleted = TopicView("t", TOPIC_ID, (), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert not lookups(core.step(MetadataReceived(NODES, (deleted,)), 202))
    assert lookups(core.step(REPLACED, 1_000))


def test_a_topic_without_ids_keeps_its_position() -> None:
    """Brokers before Kafka 2.8 name no ids, and a cluster may be in the middle of an upgrade."""
    core, _ = read_two(ConsumerSettings(auto_offset_reset="earliest"))
    (without,) = REPLACED.topics
    core.step(MetadataReceived(NODES, (without._replace(topic_id=uuid.UUID(int=0)),)), 202)
    effects = core.step(METADATA, 203)
    assert not lookups(effects) and core.partitions[PLACE].position == 2


@pytest.mark.parametrize("is_answered_before", [False, True])
def test_a_sought_position_belongs_to_the_topic_of_the_first_fetch(is_answered_before: bool) -> None:
    """An application may know of the new topic before the consumer does."""
    core, begun = read_two(ConsumerSettings(auto_offset_reset="earliest"))
    core.partitions[PLACE].seek(1)
    deleted = answer(ErrorCode.UNKNOWN_TOPIC_ID)
    (fetch,) = fetches(core.step(FetchAnswered(begun.request_id, 0, {}), 202))
    late = FetchAnswered(fetch.request_id, 0, {PLACE: answer()})
    if is_answered_before:
        core.step(FetchAnswered(fetch.request_id, 0, {PLACE: deleted}), 203)
    effects = core.step(REPLACED, 204)
    assert not lookups(effects)
    if not is_answered_before:
        effects = core.step(late, 205)
        core.begin_poll(206)
        assert core.take(10) is None, "it delivers records of the deleted topic"
    (again,) = fetches(effects) or fetches(core.poll(1_000))
    assert again.offsets[PLACE][0] == 1 and again.session.topic_ids == {"t": NEXT_ID}


def test_a_group_of_kip_848_reads_the_next_topic_when_it_has_assigned_it() -> None:
    """The coordinator may give the new partition to another member."""
    core = member()
    (lookup,) = committed_lookups(core.poll(3)) or [
        LookUpCommitted({PLACE: core.partitions[PLACE].generation})
    ]
    (fetch,) = fetches(core.step(CommittedFound(lookup, {PLACE: (0, -1)}), 4))
    core.step(FetchAnswered(fetch.request_id, 0, {PLACE: answer()}), 5)
    effects = core.step(REPLACED, 6)
    assert not fetches(effects) and not committed_lookups(effects)
    core.begin_poll(7)
    assert core.take(10) is None
    assert not core.partitions.commitable()
    effects = core.poll(6_000)
    (revocation,) = revocations(core.step(heartbeat_answered(2, {(NEXT_ID, 0)}), 6_001))
    assert revocation.partitions == (PLACE,)
    effects = core.step(RevocationDone(revocation.step), 6_002)
    assert PartitionsAssigned((PLACE,)) in effects
    assert committed_lookups(effects)


def test_partitions_of_an_earlier_subscription_say_nothing_about_ids() -> None:
    core = member()
    core.unsubscribe()
    core.assign([PLACE])
    (lookup,) = committed_lookups(core.poll(3))
    core.step(REPLACED, 4)
    (lookup,) = committed_lookups(core.poll(5)) or [lookup]
    assert not core.partitions[PLACE].is_revoked


def test_an_error_of_a_session_that_names_topics_otherwise_asks_for_metadata() -> None:
    core, fetch = reader(PLACE)
    effects = core.step(FetchAnswered(fetch.request_id, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, {}), 1_000)
    assert [effect for effect in effects if isinstance(effect, RequestMetadata)]


# -- topics without records


def test_a_missing_topic_is_named_once_and_again_after_a_while() -> None:
    """The consumer waited for it without a word."""
    core = ConsumerCore(ConsumerSettings(), jitter=lambda: 0.5)
    core.assign([PLACE, TopicPartition("u", 9)])
    missing = TopicView("t", TOPIC_ID, (), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    short = TopicView("u", NEXT_ID, (PartitionLeader(1, 0),))
    warned: dict[int, list[str]] = {}
    core.begin_poll(0)
    for now_ms in range(1_000, 400_000, 1_000):
        for effect in core.step(MetadataReceived(NODES, (missing, short)), now_ms):
            if isinstance(effect, TopicsMissing):
                warned[now_ms] = list(effect.reasons)
    assert warned == {at_ms: ["topic 't'", "partition u-9"] for at_ms in (11_000, 311_000)}
    assert core.problems.reasons["topic 't'"] == "the topic or partition does not exist"
    core.step(MetadataReceived(NODES, (*METADATA.topics, short)), 400_000)
    assert list(core.problems.reasons) == ["partition u-9"]


def test_a_topic_that_the_user_may_not_see_is_an_error_of_the_poll() -> None:
    core = ConsumerCore(ConsumerSettings(), jitter=lambda: 0.5)
    core.assign([PLACE])
    core.begin_poll(0)
    refused = TopicView("t", TOPIC_ID, (), ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert RecordsReady() in core.step(MetadataReceived(NODES, (refused,)), 1)
    core.begin_poll(2)
    with pytest.raises(TopicAuthorizationError, match="topic 't'"):
        core.take(10)
