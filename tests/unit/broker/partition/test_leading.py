"""The leader's side of the partition core: followers' progress, high watermark, changes of the ISR."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.partition.core import PartitionCore
from tidelog.broker.partition.events import (
    AdvanceHighWatermark,
    AdvanceLowWatermark,
    BatchAppended,
    Effect,
    Flushed,
    FlushLog,
    FlushMessagesChanged,
    FollowerFetched,
    IsrCheckDue,
    IsrRefused,
    IsrState,
    IsrWritten,
    LeaderAndIsrReceived,
    PersistLeaderEpochs,
    ProduceReceived,
    ProposeIsr,
    Refuse,
    ReportIsrChange,
    StepDown,
)
from tidelog.broker.partition.producer_state import ProducerState
from tidelog.log_format.leader_epochs import EpochEntry, LeaderEpochs
from tidelog.model.errors import ErrorCode
from tidelog.records.batch import BatchHeader

ME, SECOND, THIRD = 1, 2, 3
ALL = (ME, SECOND, THIRD)
NOW = 1_700_000_000_000
MAX_LAG_MS = 30_000
BROKER_EPOCH = 77


def leading(
    isr: tuple[int, ...] = ALL,
    *,
    log_end_offset: int = 0,
    high_watermark: int = 0,
    min_isr: int = 1,
    max_lag: int | None = None,
) -> PartitionCore:
    core = PartitionCore(
        ME,
        ProducerState(),
        LeaderEpochs([EpochEntry(1, 0)] if log_end_offset else []),
        log_start_offset=0,
        log_end_offset=log_end_offset,
        high_watermark=high_watermark,
        min_in_sync_replicas=min_isr,
        replica_lag_time_max_ms=MAX_LAG_MS,
        replica_lag_max_messages=max_lag,
    )
    core.step(LeaderAndIsrReceived(ME, 5, 10, isr, ALL, NOW))
    return core


def append(core: PartitionCore, count: int, now_ms: int = NOW) -> list[Effect]:
    header = BatchHeader(core.log_end_offset, 100, 5, 2, 0, 0, count - 1, NOW, NOW, -1, -1, -1, count)
    return core.step(BatchAppended(header, now_ms))


def fetch(
    core: PartitionCore, replica: int, offset: int, now_ms: int = NOW, epoch: int = BROKER_EPOCH
) -> list[Effect]:
    effects = core.step(FollowerFetched(replica, epoch, offset, 0, now_ms))
    return [effect for effect in effects if not isinstance(effect, AdvanceLowWatermark)]


def proposal_of(effects: list[Effect]) -> ProposeIsr:
    (proposal,) = [effect for effect in effects if isinstance(effect, ProposeIsr)]
    return proposal


def test_the_high_watermark_is_the_least_log_end_of_the_isr() -> None:
    core = leading()
    assert append(core, 10) == []
    assert fetch(core, SECOND, 10) == []
    assert fetch(core, THIRD, 4) == [AdvanceHighWatermark(4)]
    assert fetch(core, THIRD, 10) == [AdvanceHighWatermark(10)]


def test_a_replica_outside_the_isr_does_not_delay_the_high_watermark() -> None:
    core = leading((ME, SECOND))
    append(core, 10)
    assert fetch(core, SECOND, 10) == [AdvanceHighWatermark(10)]


def test_the_high_watermark_waits_for_the_leaders_own_flush() -> None:
    """A power failure of all machines can make the leader lead again, although the followers have more."""
    core = leading()
    assert core.step(FlushMessagesChanged(10)) == []
    assert append(core, 9) == []
    assert fetch(core, SECOND, 9) == []
    assert fetch(core, THIRD, 9) == [AdvanceHighWatermark(9)]
    assert append(core, 4) == [FlushLog()]
    assert core.is_flush_due
    assert fetch(core, SECOND, 13) == []
    assert fetch(core, THIRD, 13) == []
    assert append(core, 1) == [FlushLog()]
    assert core.step(Flushed(13)) == [AdvanceHighWatermark(13)]
    assert not core.is_flush_due


def test_a_single_replica_shows_records_after_its_flush() -> None:
    core = leading((ME,))
    core.step(FlushMessagesChanged(1))
    assert append(core, 2) == [FlushLog()]
    assert core.step(Flushed(2)) == [AdvanceHighWatermark(2)]


def test_a_new_leader_flushes_what_it_received_as_follower() -> None:
    core = leading(log_end_offset=5)
    assert core.step(FlushMessagesChanged(1)) == [FlushLog()]
    effects = core.step(LeaderAndIsrReceived(ME, 6, 11, ALL, ALL, NOW))
    assert effects == [PersistLeaderEpochs(), FlushLog()]
    fetch(core, SECOND, 5)
    assert fetch(core, THIRD, 5) == []
    assert core.step(Flushed(5)) == [AdvanceHighWatermark(5)]


def test_a_larger_flush_messages_ends_the_wait() -> None:
    core = leading((ME,))
    core.step(FlushMessagesChanged(1))
    append(core, 2)
    assert core.step(FlushMessagesChanged(3)) == [AdvanceHighWatermark(2)]


def test_the_high_watermark_does_not_advance_below_min_isr() -> None:
    core = leading((ME,), min_isr=2)
    assert append(core, 10) == []
    assert core.high_watermark == 0 and core.is_under_min_isr
    refusal = core.step(
        ProduceReceived(BatchHeader(0, 100, -1, 2, 0, 0, 0, NOW, NOW, -1, -1, -1, 1), -1, NOW)
    )
    assert isinstance(refusal[0], Refuse) and refusal[0].error is ErrorCode.NOT_ENOUGH_REPLICAS


def test_min_isr_is_no_more_than_there_are_replicas() -> None:
    core = PartitionCore(
        ME,
        ProducerState(),
        LeaderEpochs(),
        log_start_offset=0,
        log_end_offset=0,
        high_watermark=0,
        min_in_sync_replicas=2,
    )
    core.step(LeaderAndIsrReceived(ME, 0, 1, (ME,), (ME,), NOW))
    assert append(core, 1) == [AdvanceHighWatermark(1)]


def test_a_follower_that_reached_the_high_watermark_is_proposed_with_its_broker_epoch() -> None:
    core = leading((ME, SECOND))
    append(core, 10)
    fetch(core, SECOND, 8)
    assert fetch(core, THIRD, 7) == []
    proposal = proposal_of(fetch(core, THIRD, 8))
    assert proposal == ProposeIsr(5, 10, (ME, SECOND, THIRD), (), ((THIRD, BROKER_EPOCH),))
    assert core.in_sync_replicas == (ME, SECOND), "the ISR changes only after the store has accepted it"


def test_a_follower_below_the_start_of_the_leaders_epoch_may_not_join() -> None:
    core = leading((ME, SECOND), log_end_offset=10, high_watermark=6)
    assert fetch(core, THIRD, 9) == []
    assert proposal_of(fetch(core, THIRD, 10)).isr == (ME, SECOND, THIRD)


def test_while_a_join_is_under_way_the_high_watermark_waits_for_it() -> None:
    core = leading((ME, SECOND))
    append(core, 10)
    fetch(core, SECOND, 5)
    proposal = proposal_of(fetch(core, THIRD, 5))
    assert fetch(core, SECOND, 10) == [], "the third replica may be in the ISR already"
    assert core.step(IsrWritten(proposal, 12)) == [ReportIsrChange(True)]
    assert core.in_sync_replicas == ALL and core.partition_epoch == 12
    assert fetch(core, THIRD, 10) == [AdvanceHighWatermark(10)]


def test_a_stored_state_of_another_leader_ends_the_role_whatever_its_epoch() -> None:
    """A topic that was deleted and created again begins with epoch 0."""
    for standing in (IsrState(SECOND, 0, (SECOND,)), IsrState(SECOND, 5, (SECOND,)), IsrState(ME, 0, ALL)):
        core = leading((ME, SECOND))
        proposal = proposal_of(fetch(core, THIRD, 0))
        assert core.step(IsrRefused(proposal, standing, 20, NOW)) == [StepDown()]
        assert not core.is_leader


def test_the_high_watermark_does_not_advance_while_others_are_eligible_to_lead() -> None:
    """These replicas have everything that was acknowledged, and must keep having it, even while the
    controller uses another min.insync.replicas than this broker.
    """
    core = leading((ME,), min_isr=1)
    core.step(LeaderAndIsrReceived(ME, 5, 11, (ME,), ALL, NOW, (SECOND,)))
    assert append(core, 3) == []
    proposal = proposal_of(fetch(core, SECOND, 3))
    assert proposal.elr == ()
    effects = core.step(IsrWritten(proposal, 12))
    assert AdvanceHighWatermark(3) in effects


def test_a_refused_join_is_not_proposed_at_each_fetch() -> None:
    core = leading((ME, SECOND))
    proposal = proposal_of(fetch(core, THIRD, 0))
    core.step(IsrRefused(proposal, IsrState(ME, 5, (ME, SECOND)), 10, NOW))
    assert fetch(core, THIRD, 0, NOW + 10) == []
    assert proposal_of(fetch(core, THIRD, 0, NOW + 2000)).added == ((THIRD, BROKER_EPOCH),)


def test_a_follower_that_does_not_catch_up_leaves_the_isr() -> None:
    core = leading()
    append(core, 10)
    fetch(core, SECOND, 10, NOW + MAX_LAG_MS)
    assert core.step(IsrCheckDue(NOW + MAX_LAG_MS)) == []
    proposal = proposal_of(core.step(IsrCheckDue(NOW + MAX_LAG_MS + 1)))
    assert proposal == ProposeIsr(5, 10, (ME, SECOND), (), ())
    assert core.high_watermark == 0, "the third replica counts until the store has accepted the change"
    assert core.step(IsrCheckDue(NOW + 10 * MAX_LAG_MS)) == [], "there is one change at a time"
    assert core.step(IsrWritten(proposal, 11)) == [ReportIsrChange(False), AdvanceHighWatermark(10)]


def test_an_idle_follower_at_the_log_end_stays_in_the_isr() -> None:
    core = leading()
    append(core, 1)
    fetch(core, SECOND, 1)
    fetch(core, THIRD, 1)
    assert core.step(IsrCheckDue(NOW + 100 * MAX_LAG_MS)) == []


def test_a_follower_as_fast_as_the_writers_stays_in_the_isr() -> None:
    core = leading((ME, SECOND))
    for step in range(100):
        append(core, 10)
        fetch(core, SECOND, step * 10, NOW + step * 1000)
    assert core.step(IsrCheckDue(NOW + 99 * 1000 + MAX_LAG_MS - 1000)) == []


def test_with_a_limit_of_messages_a_burst_makes_the_isr_flap() -> None:
    """This is why Kafka 0.9 removed `replica.lag.max.messages`: each burst above the limit shrinks and
    expands the ISR, although the follower is never more than one fetch behind.
    """
    changes = {True: 0, False: 0}
    for limit in (None, 50):
        core = leading((ME, SECOND), max_lag=limit)
        for burst in range(10):
            now_ms = NOW + burst * 1000
            append(core, 100, now_ms)
            for effect in core.step(IsrCheckDue(now_ms)):
                assert isinstance(effect, ProposeIsr)
                core.step(IsrWritten(effect, core.partition_epoch + 1))
                changes[limit is None] += 1
            for effect in fetch(core, SECOND, core.log_end_offset, now_ms + 5):
                if isinstance(effect, ProposeIsr):
                    core.step(IsrWritten(effect, core.partition_epoch + 1))
                    changes[limit is None] += 1
    assert changes == {True: 0, False: 20}


def test_a_replica_that_leaves_an_isr_below_its_minimum_stays_eligible_to_lead() -> None:
    core = leading(min_isr=2)
    append(core, 1)
    proposal = proposal_of(core.step(IsrCheckDue(NOW + MAX_LAG_MS + 1)))
    assert (proposal.isr, proposal.elr) == ((ME,), (SECOND, THIRD))
    core.step(IsrWritten(proposal, 11))
    assert core.elr == (SECOND, THIRD) and core.high_watermark == 0
    proposal = proposal_of(fetch(core, THIRD, 1, NOW + MAX_LAG_MS + 2))
    assert (proposal.isr, proposal.elr) == ((ME, THIRD), ()), "the ISR is large enough, so the ELR is empty"


def test_a_leader_that_finds_a_later_epoch_in_the_store_steps_down() -> None:
    core = leading((ME, SECOND))
    proposal = proposal_of(fetch(core, THIRD, 0))
    assert core.step(IsrRefused(proposal, IsrState(SECOND, 6, (SECOND,)), 20, NOW)) == [StepDown()]
    assert not core.is_leader
    late = LeaderAndIsrReceived(ME, 5, 15, (ME, SECOND), ALL, NOW)
    core.step(late)
    assert not core.is_leader, "an older command must not make it lead again"


def test_a_change_by_the_controller_ends_a_proposal_made_before() -> None:
    core = leading()
    append(core, 1)
    fetch(core, SECOND, 1)
    proposal = proposal_of(core.step(IsrCheckDue(NOW + MAX_LAG_MS + 1)))
    core.step(LeaderAndIsrReceived(ME, 5, 14, (ME, SECOND), ALL, NOW))
    assert core.pending_isr == proposal
    assert core.step(IsrRefused(proposal, IsrState(ME, 5, (ME, SECOND)), 14, NOW)) == []
    assert core.pending_isr is None and core.in_sync_replicas == (ME, SECOND) and core.high_watermark == 1


def test_an_older_write_reported_late_does_not_undo_the_controllers() -> None:
    core = leading((ME, SECOND))
    proposal = proposal_of(fetch(core, THIRD, 0))
    core.step(LeaderAndIsrReceived(ME, 5, 14, (ME,), ALL, NOW))
    core.step(IsrWritten(proposal, 12))
    assert core.in_sync_replicas == (ME,) and core.partition_epoch == 14


def test_fetches_of_an_earlier_broker_epoch_do_not_count() -> None:
    core = leading((ME, SECOND))
    append(core, 10)
    fetch(core, SECOND, 4, epoch=BROKER_EPOCH + 1)
    assert fetch(core, SECOND, 10, epoch=BROKER_EPOCH) == []
    assert core.high_watermark == 4


def test_the_high_watermark_of_a_new_leader_is_known_once_it_reached_its_epoch() -> None:
    core = leading((ME, SECOND), log_end_offset=10, high_watermark=6)
    assert not core.is_high_watermark_known
    fetch(core, SECOND, 10)
    assert core.is_high_watermark_known


def test_the_low_watermark_is_the_least_log_start() -> None:
    core = leading((ME, SECOND))
    assert core.low_watermark == -1
    assert core.step(FollowerFetched(SECOND, 1, 0, 0, NOW))[-1:] == [AdvanceLowWatermark()]
    core.step(FollowerFetched(THIRD, 1, 0, 0, NOW))
    assert core.low_watermark == 0


@st.composite
def _happenings(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    kind = st.sampled_from(["append", "fetch", "fetch", "fetch", "check", "outcome"])
    return draw(st.lists(st.tuples(kind, st.integers(2, 3), st.integers(0, 20)), max_size=60))


@given(_happenings(), st.integers(1, 3))
def test_records_below_the_high_watermark_are_on_every_replica_in_sync(
    happenings: list[tuple[str, int, int]], min_isr: int
) -> None:
    """The next leader comes from the store's ISR, not from the one that the leader assumes, so every replica
    in the store's ISR has the records.
    """
    core = leading(min_isr=min_isr)
    stored, revision = ALL, 10
    followers = dict.fromkeys((SECOND, THIRD), 0)
    now_ms, pending = NOW, None
    for kind, replica, number in happenings:
        now_ms += number * 2000
        before = core.high_watermark
        effects: list[Effect] = []
        if kind == "append":
            effects = append(core, number + 1, now_ms)
        elif kind == "fetch":
            followers[replica] = min(core.log_end_offset, followers[replica] + number)
            effects = fetch(core, replica, followers[replica], now_ms)
        elif kind == "check":
            effects = core.step(IsrCheckDue(now_ms))
        elif pending is not None:
            if number % 3:
                revision += 1
                stored = pending.isr
                effects = core.step(IsrWritten(pending, revision))
            else:
                effects = core.step(IsrRefused(pending, IsrState(ME, 5, stored), revision, now_ms))
            pending = None
        for effect in effects:
            if isinstance(effect, ProposeIsr):
                assert pending is None
                pending = effect
        assert before <= core.high_watermark <= core.log_end_offset
        in_doubt = (stored, pending.isr) if pending is not None else (stored,)
        for isr in in_doubt:
            assert ME in isr
            if core.high_watermark > before:
                assert all(followers[r] >= core.high_watermark for r in isr if r != ME)
