"""A leader and the fetches of its followers: responses, positions that it records, and followers that it
wakes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from brokerlab.in_memory_broker import InMemoryBroker
from brokerlab.leader_lab import LEADER_EPOCH, LeaderLab, parts, produced
from tidelog.metadata.entries import ISR_CHANGE_PREFIX
from tidelog.model.errors import ErrorCode
from tidelog.records.batch import parse_header

RACK_AWARE = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}


@pytest.fixture
def lab(make_broker: Callable[..., InMemoryBroker]) -> LeaderLab:
    return LeaderLab(make_broker())


async def turn() -> None:
    """Waits until the calls at the end of this turn of the event loop have run."""
    for _ in range(3):
        await asyncio.sleep(0)


def test_a_follower_reads_beyond_the_high_watermark(lab: LeaderLab) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await lab.lead()
        lab.append(5)
        part = parts(lab.follower(2).fetch({0: 0}))[0]
        assert part.high_watermark == 0
        assert parse_header(part.records or b"").record_count == 5

    lab.run(scenario)


def test_the_high_watermark_follows_the_slowest_in_sync(lab: LeaderLab) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await lab.lead()
        for _ in range(3):
            lab.append(5)
        marks = []
        for replica_id, offset in ((2, 15), (3, 5), (3, 10), (3, 15)):
            part = parts(lab.follower(replica_id).fetch({0: offset}, max_wait_ms=0))[0]
            marks.append(part.high_watermark)
        assert marks == [0, 5, 10, 15]

    lab.run(scenario)


@pytest.mark.parametrize(
    ("epoch", "error"),
    [
        (LEADER_EPOCH - 1, ErrorCode.FENCED_LEADER_EPOCH),
        (LEADER_EPOCH + 1, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_another_leader_epoch_is_fenced_and_records_no_position(
    lab: LeaderLab, epoch: int, error: ErrorCode
) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await lab.lead(isr=(1, 2))
        end = lab.append(5)
        part = parts(lab.follower(2).fetch({0: end}, epoch=epoch))[0]
        assert part.error_code == error
        assert not part.records
        assert lab.replica().core.high_watermark == 0

    lab.run(scenario)


def test_a_replica_that_is_not_assigned_is_refused(lab: LeaderLab) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await lab.lead(isr=(1, 2), replicas=(1, 2))
        assert parts(lab.follower(3).fetch({0: 0}))[0].error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        answer = lab.follower(3).fetch({0: 0}, epoch=-1)
        assert parts(answer)[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    lab.run(scenario)


def test_an_earlier_broker_epoch_is_refused(lab: LeaderLab) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await lab.lead(isr=(1, 2))
        end = lab.append()
        ghost = lab.follower(2)
        await lab.reborn(2)
        assert parts(ghost.fetch({0: end}))[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert lab.replica().core.high_watermark == 0
        assert parts(lab.follower(2).fetch({0: end}, max_wait_ms=0))[0].high_watermark == end

    lab.run(scenario)


def test_a_diverging_log_gets_the_point_and_records_no_position(lab: LeaderLab) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await lab.lead(isr=(1, 2))
        lab.append(5)
        await lab.lead(isr=(1, 2), leader_epoch=LEADER_EPOCH + 2)
        lab.append(5)
        follower = lab.follower(2)
        part = parts(follower.fetch({0: 8}, epoch=LEADER_EPOCH + 2, last_epoch=LEADER_EPOCH))[0]
        assert part.diverging_epoch is not None
        assert (part.diverging_epoch.epoch, part.diverging_epoch.end_offset) == (LEADER_EPOCH, 5)
        assert not part.records
        assert lab.replica().core.high_watermark == 0

    lab.run(scenario)


@pytest.mark.parametrize("offset", [-1, 6])
def test_an_offset_that_the_log_does_not_reach(lab: LeaderLab, offset: int) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await lab.lead(isr=(1, 2))
        lab.append(5)
        assert parts(lab.follower(2).fetch({0: offset}))[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert lab.replica().core.high_watermark == 0

    lab.run(scenario)


def test_an_unknown_topic(lab: LeaderLab) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await lab.lead()
        answer = lab.follower(2).fetch({0: 0}, topic="nowhere")
        assert parts(answer)[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
        answer = lab.follower(2, version=12).fetch({0: 0}, topic="nowhere")
        assert parts(answer)[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    lab.run(scenario)


@pytest.mark.parametrize("version", [4, 6, 11, 12, 14, 15, 17])
def test_every_version_replicates(lab: LeaderLab, version: int) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await lab.lead(isr=(1, 2))
        end = lab.append(3)
        follower = lab.follower(2, version=version)
        assert parts(follower.fetch({0: 0}))[0].records
        assert parts(follower.fetch({0: end}, max_wait_ms=0))[0].high_watermark == end

    lab.run(scenario)


# -- waiting


def test_appends_of_one_turn_wake_a_follower_once(lab: LeaderLab) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await lab.lead(partitions=2)
        follower = lab.follower(2)
        assert follower.fetch({0: 0, 1: 0}) is None
        lab.append(1, partition=0)
        lab.append(1, partition=1)
        assert not follower.answers
        await turn()
        (answer,) = follower.answers
        assert {index: bool(part.records) for index, part in parts(answer).items()} == {0: True, 1: True}

    lab.run(scenario)


def test_a_full_fetch_that_times_out_gets_all_its_partitions(lab: LeaderLab) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await lab.lead(partitions=2)
        follower = lab.follower(2)
        assert follower.fetch({0: 0, 1: 0}) is None
        lab.broker.timer.advance(499)
        assert not follower.answers
        lab.broker.timer.advance(500)
        (answer,) = follower.answers
        assert set(parts(answer)) == {0, 1}

    lab.run(scenario)


def test_a_follower_waits_for_min_bytes(lab: LeaderLab) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await lab.lead(partitions=2)
        follower = lab.follower(2)
        assert follower.fetch({0: 0, 1: 0}, min_bytes=400) is None
        lab.append(1, size_bytes=200)
        await turn()
        assert not follower.answers
        lab.append(1, partition=1, size_bytes=200)
        await turn()
        assert len(follower.answers) == 1

    lab.run(scenario)


def test_a_leader_that_resigns_answers_at_once(lab: LeaderLab) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await lab.lead()
        follower = lab.follower(2)
        assert follower.fetch({0: 0}) is None
        await lab.lead(leader=3, leader_epoch=LEADER_EPOCH + 1)
        await turn()
        (answer,) = follower.answers
        assert parts(answer)[0].error_code == ErrorCode.FENCED_LEADER_EPOCH

    lab.run(scenario)


def test_a_closed_connection_ends_the_followers_wait(lab: LeaderLab) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await lab.lead()
        follower = lab.follower(2)
        assert follower.fetch({0: 0}, session_epoch=0) is None
        follower.close()
        lab.append()
        await turn()
        lab.broker.timer.advance(1000)
        assert not follower.answers
        assert lab.broker.follower_fetch_sessions.parked_count == 0

    lab.run(scenario)


def test_the_high_watermark_is_urgent_only_with_a_replica_selector(
    make_broker: Callable[..., InMemoryBroker],
) -> None:
    async def scenario(lab: LeaderLab) -> int:
        await lab.lead(isr=(1, 2, 3))
        end = lab.append()
        follower = lab.follower(2)
        assert follower.fetch({0: end}) is None
        parts(lab.follower(3).fetch({0: end}, max_wait_ms=0))
        await turn()
        return len(follower.answers)

    assert LeaderLab(make_broker()).run(scenario) == 0
    assert LeaderLab(make_broker(RACK_AWARE)).run(scenario) == 1


# -- sessions


def test_an_incremental_response_contains_only_news(lab: LeaderLab) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await lab.lead(partitions=3, isr=(1, 2))
        follower = lab.follower(2)
        first = follower.fetch({0: 0, 1: 0, 2: 0}, session_epoch=0, max_wait_ms=0)
        assert set(parts(first)) == {0, 1, 2}
        assert first is not None
        session = {"session_id": first.session_id}
        assert follower.fetch({}, session_epoch=1, **session) is None
        end = lab.append(partition=1)
        await turn()
        assert {index: bool(part.records) for index, part in parts(follower.answers.pop()).items()} == {
            1: True
        }
        # The response contains the current high watermark. The high watermark then moves, and the next
        # response contains it.
        assert follower.fetch({1: end}, session_epoch=2, **session) is None
        assert lab.replica(1).core.high_watermark == end
        lab.append(partition=2)
        await turn()
        told = parts(follower.answers.pop())
        assert {index: part.high_watermark for index, part in told.items()} == {1: end, 2: 0}

    lab.run(scenario)


def test_lost_records_are_sent_again(lab: LeaderLab) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await lab.lead()
        lab.append()
        follower = lab.follower(2)
        first = follower.fetch({0: 0}, session_epoch=0)
        assert first is not None
        assert parts(first)[0].records
        again = follower.fetch({}, session_id=first.session_id, session_epoch=1)
        assert parts(again)[0].records

    lab.run(scenario)


def test_a_partition_that_is_added_again_gets_its_offsets_again(lab: LeaderLab) -> None:
    """The follower ignores the responses to requests before the one that adds the partition (simulator, seed
    21003).
    """

    async def scenario(lab: LeaderLab) -> None:
        await lab.lead(isr=(1, 2))
        end = lab.append()
        follower = lab.follower(2)
        first = follower.fetch({0: end}, session_epoch=0, max_wait_ms=0)
        assert first is not None
        assert parts(first)[0].high_watermark == end
        session = {"session_id": first.session_id, "max_wait_ms": 0}
        assert not parts(follower.fetch({}, session_epoch=1, **session))
        again = follower.fetch({0: end}, session_epoch=2, **session)
        assert parts(again)[0].high_watermark == end

    lab.run(scenario)


def test_a_request_ends_the_wait_of_the_one_before_it(lab: LeaderLab) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await lab.lead(partitions=2)
        follower = lab.follower(2)
        first = follower.fetch({0: 0}, session_epoch=0, max_wait_ms=0)
        assert first is not None
        assert follower.fetch({}, session_id=first.session_id, session_epoch=1) is None
        assert follower.fetch({1: 0}, session_id=first.session_id, session_epoch=2, max_wait_ms=0) is not None
        (answer,) = follower.answers
        assert not answer.responses

    lab.run(scenario)


def test_a_forgotten_partition_is_no_longer_in_responses(lab: LeaderLab) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await lab.lead(partitions=2)
        follower = lab.follower(2)
        first = follower.fetch({0: 0, 1: 0}, session_epoch=0, max_wait_ms=0)
        assert first is not None
        assert follower.fetch({}, forgotten=[0], session_id=first.session_id, session_epoch=1) is None
        lab.append(partition=0)
        await turn()
        assert not follower.answers

    lab.run(scenario)


def test_sessions_that_do_not_fit(lab: LeaderLab) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await lab.lead()
        first = lab.follower(2).fetch({0: 0}, session_epoch=0, max_wait_ms=0)
        assert first is not None
        errors = []
        for follower, fields in (
            (lab.follower(2), {"session_id": 4711, "session_epoch": 1}),
            (lab.follower(3), {"session_id": first.session_id, "session_epoch": 1}),
            (lab.follower(2), {"session_id": first.session_id, "session_epoch": 5}),
            (lab.follower(2, version=12), {"session_id": first.session_id, "session_epoch": 1}),
        ):
            answer = follower.fetch({}, **fields)
            assert answer is not None
            errors.append(answer.error_code)
        assert errors == [
            ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
            ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
            ErrorCode.INVALID_FETCH_SESSION_EPOCH,
            ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ]

    lab.run(scenario)


def test_a_follower_that_starts_a_new_session_replaces_its_old_one(lab: LeaderLab) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await lab.lead(partitions=5)
        sessions = lab.broker.follower_fetch_sessions
        for _ in range(200):
            lab.follower(2).fetch({0: 0, 4: 0}, session_epoch=0, max_wait_ms=0)
            lab.follower(3).fetch({0: 0}, max_wait_ms=0)
        assert len(sessions) == 64
        for session in sessions:
            sessions.close(session.session_id)
        assert not sessions.fetched

    lab.run(scenario)


def test_sessions_of_earlier_broker_epochs_and_unknown_brokers_end(lab: LeaderLab) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await lab.lead(partitions=2)
        sessions = lab.broker.follower_fetch_sessions
        ghost = lab.follower(2)
        for follower in (ghost, ghost, lab.follower(3)):
            follower.fetch({0: 0, 1: 0}, session_epoch=0, max_wait_ms=0)
        assert [session.replica_id for session in sessions] == [2, 2, 3]
        await lab.reborn(2)
        answer = lab.follower(2).fetch({0: 0}, session_epoch=0, max_wait_ms=0)
        assert answer is not None
        assert answer.session_id
        assert [session.replica_id for session in sessions] == [3, 2]
        for other in (ghost, lab.follower(77, broker_epoch=1)):
            answer = other.fetch({0: 0}, session_epoch=0, max_wait_ms=0)
            assert answer is not None
            assert answer.session_id == 0
        assert [session.replica_id for session in sessions] == [3, 2]

    lab.run(scenario)


# -- the ISR


def test_a_leader_that_was_frozen_removes_no_replica_from_the_isr(lab: LeaderLab) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await lab.lead(isr=(1, 2))
        lab.append()
        lab.clock.advance(60_000)
        await lab.isr.expire_if_awake()
        await lab.isr.writer.until_idle()
        assert lab.replica().core.in_sync_replicas == (1, 2)
        lab.clock.advance(15_000)
        await lab.isr.expire_if_awake()
        await lab.isr.writer.until_idle()
        assert lab.replica().core.in_sync_replicas == (1,)

    lab.run(scenario)


def test_a_follower_that_caught_up_joins_and_one_that_stops_leaves(lab: LeaderLab) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await lab.lead(isr=(1,))
        end = lab.append()
        follower = lab.follower(2)
        assert parts(follower.fetch({0: 0}))[0].records
        assert lab.replica().core.in_sync_replicas == (1,)
        assert follower.fetch({0: end}) is None
        assert lab.replica().core.pending_isr is not None
        await lab.isr.writer.until_idle()
        assert lab.replica().core.in_sync_replicas == (1, 2)
        lab.append()
        lab.clock.advance(30_001)
        await lab.isr.expire_followers()
        await lab.isr.writer.until_idle()
        assert lab.replica().core.in_sync_replicas == (1,)
        assert (lab.broker.telemetry.isr_expands, lab.broker.telemetry.isr_shrinks) == (1, 1)

    lab.run(scenario)


@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000])
def test_a_jump_of_the_wall_clock_changes_no_isr(lab: LeaderLab, jump_ms: int) -> None:
    """Nor does a jump keep a stopped follower in the ISR, or keep the controller from being informed."""

    async def scenario(lab: LeaderLab) -> None:
        await lab.lead(isr=(1, 2))
        follower = lab.follower(2)
        follower.fetch({0: 0}, max_wait_ms=0)
        lab.append()
        lab.clock.set_wall(lab.clock.wall_ms() + jump_ms)
        await lab.isr.expire_followers()
        await lab.isr.writer.until_idle()
        assert lab.replica().core.in_sync_replicas == (1, 2)
        lab.clock.advance(30_001)
        await lab.isr.expire_followers()
        await lab.isr.writer.until_idle()
        assert lab.replica().core.in_sync_replicas == (1,)
        lab.clock.set_wall(lab.clock.wall_ms() - 7_200_000)
        lab.clock.advance(5_001)
        await lab.isr.propagate_isr_changes()
        assert (await lab.store.list_prefix(ISR_CHANGE_PREFIX)).items

    lab.run(scenario)


def test_a_follower_that_idles_at_the_log_end_stays_caught_up(lab: LeaderLab) -> None:
    """Its fetches contain no partitions. Nevertheless, the first append after a long silence must not remove
    it.
    """

    async def scenario(lab: LeaderLab) -> None:
        await lab.lead(isr=(1, 2))
        follower = lab.follower(2)
        first = follower.fetch({0: 0}, session_epoch=0, max_wait_ms=0)
        assert first is not None
        for epoch in range(1, 200):
            lab.clock.advance(500)
            lab.broker.timer.advance(epoch * 500)
            follower.fetch({}, session_id=first.session_id, session_epoch=epoch)
        lab.append()
        await lab.isr.expire_followers()
        await lab.isr.writer.until_idle()
        assert lab.replica().core.in_sync_replicas == (1, 2)

    lab.run(scenario)


def test_a_follower_that_registered_again_joins_only_with_its_new_epoch(lab: LeaderLab) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await lab.lead(isr=(1,))
        follower = lab.follower(2)
        lab.register(2)  # the leader does not know its new epoch yet
        follower.fetch({0: 0}, max_wait_ms=0)
        await lab.isr.writer.until_idle()
        assert lab.replica().core.in_sync_replicas == (1,)
        assert lab.broker.telemetry.failed_isr_updates == 1

    lab.run(scenario)


def test_replica_lag_max_messages_makes_the_isr_flap_after_a_burst(
    make_broker: Callable[..., InMemoryBroker],
) -> None:
    """This flapping is the reason why Kafka removed `replica.lag.max.messages` in 0.9."""

    async def scenario(lab: LeaderLab) -> int:
        await lab.lead(isr=(1, 2))
        follower = lab.follower(2)
        end = 0
        for _ in range(10):
            end = lab.append(100)  # more records at once than the rule allows
            await lab.isr.expire_followers()
            await lab.isr.writer.until_idle()
            follower.fetch({0: end}, max_wait_ms=0)  # and the follower fetches them at once
            await lab.isr.writer.until_idle()
            lab.clock.advance(15_000)
        return lab.broker.telemetry.isr_shrinks + lab.broker.telemetry.isr_expands

    assert LeaderLab(make_broker({"replica.lag.max.messages": "50"})).run(scenario) == 20
    assert LeaderLab(make_broker()).run(scenario) == 0


def test_isr_changes_are_published_once_and_in_order(lab: LeaderLab) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await lab.lead(partitions=3, isr=(1,))
        lab.follower(2).fetch({0: 0, 2: 0}, max_wait_ms=0)
        await lab.isr.writer.until_idle()
        await lab.isr.propagate_isr_changes()
        assert not (await lab.store.list_prefix("/isr_change_notification/isr_change_")).items
        lab.clock.advance(5_001)
        lab.store.failures = ["lost"]
        await lab.isr.propagate_isr_changes()
        await lab.isr.propagate_isr_changes()
        lab.follower(2).fetch({1: 0}, max_wait_ms=0)
        await lab.isr.writer.until_idle()
        lab.clock.advance(5_001)
        await lab.isr.propagate_isr_changes()
        written = await lab.store.list_prefix("/isr_change_notification/isr_change_")
        assert [(item.key[-10:], item.value) for item in written.items] == [
            (
                "0000000000",
                b'{"version":1,"partitions":[{"topic":"t","partition":0},{"topic":"t","partition":2}]}',
            ),
            ("0000000001", b'{"version":1,"partitions":[{"topic":"t","partition":1}]}'),
        ]

    lab.run(scenario)


# -- acks=all


def test_acks_all_waits_for_the_followers(lab: LeaderLab) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await lab.lead(min_insync_replicas="2")
        answer, producer = lab.produce()
        assert answer is None
        lab.follower(2).fetch({0: 1}, max_wait_ms=0)
        assert not producer.answers
        lab.follower(3).fetch({0: 1}, max_wait_ms=0)
        assert [(produced(a).error_code, produced(a).base_offset) for a in producer.answers] == [(0, 0)]

    lab.run(scenario)


def test_acks_all_is_refused_below_min_insync_replicas(lab: LeaderLab) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await lab.lead(isr=(1,), min_insync_replicas="2")
        answer, _ = lab.produce()
        assert answer is not None
        assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        answer, _ = lab.produce(acks=1)
        assert answer is not None
        assert answer.error_code == 0

    lab.run(scenario)


def test_nothing_is_acknowledged_below_min_insync_replicas(lab: LeaderLab) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await lab.lead(isr=(1, 2), min_insync_replicas="2")
        answer, producer = lab.produce(timeout_ms=1000)
        assert answer is None
        lab.clock.advance(30_001)
        await lab.isr.expire_followers()
        await lab.isr.writer.until_idle()
        assert lab.replica().core.in_sync_replicas == (1,)
        assert not producer.answers
        lab.broker.timer.advance(1000)
        assert [produced(a).error_code for a in producer.answers] == [ErrorCode.REQUEST_TIMED_OUT]

    lab.run(scenario)


def test_losing_leadership_ends_the_wait_of_acks_all(lab: LeaderLab) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await lab.lead()
        _, producer = lab.produce()
        await lab.lead(leader=2, leader_epoch=LEADER_EPOCH + 1)
        assert [produced(a).error_code for a in producer.answers] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        (answer,) = producer.answers
        leader = produced(answer).current_leader
        assert leader is not None  # the replica knows it before UpdateMetadata informs the broker
        assert (leader.leader_id, leader.leader_epoch) == (2, LEADER_EPOCH + 1)
        assert [node.node_id for node in answer.node_endpoints] == [2]

    lab.run(scenario)


def test_a_leader_that_the_store_has_replaced_ends_the_wait(lab: LeaderLab) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await lab.lead()
        _, producer = lab.produce()
        entry = lab.store
        key = "/brokers/topics/t/partitions/0/state"
        entry.put(
            key,
            b'{"controller_epoch":8,"leader":2,"version":1,"leader_epoch":%d,"isr":[2]}' % (LEADER_EPOCH + 1),
        )
        lab.clock.advance(30_001)
        await lab.isr.expire_followers()
        await lab.isr.writer.until_idle()
        assert [produced(a).error_code for a in producer.answers] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]

    lab.run(scenario)
