"""The partition core: exact effects of events, and the invariants that every sequence of events keeps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.partition.core import PartitionCore
from tidelog.broker.partition.events import (
    AdvanceHighWatermark,
    AdvanceLogStartOffset,
    AnswerDuplicate,
    AppendBatch,
    BatchAppended,
    DeleteRecordsReceived,
    Event,
    LeaderAndIsrReceived,
    LogStartOffsetMoved,
    MinInSyncReplicasChanged,
    PersistLeaderEpochs,
    ProduceReceived,
    Refuse,
)
from tidelog.broker.partition.producer_state import ProducerState
from tidelog.log_format.leader_epochs import LeaderEpochs
from tidelog.model.errors import ErrorCode
from tidelog.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader, EndTransactionMarker

ME, OTHER = 1, 2
NOW = 1_700_000_000_000


def new_core(log_end_offset: int = 0, high_watermark: int = 0) -> PartitionCore:
    return PartitionCore(
        ME,
        ProducerState(),
        LeaderEpochs(),
        log_start_offset=0,
        log_end_offset=log_end_offset,
        high_watermark=high_watermark,
    )


def leading(
    epoch: int = 0, isr: tuple[int, ...] = (ME,), replicas: tuple[int, ...] | None = None
) -> PartitionCore:
    core = new_core()
    core.step(LeaderAndIsrReceived(ME, epoch, 0, isr, replicas or isr, NOW))
    return core


def batch(
    count: int = 1, producer_id: int = -1, epoch: int = -1, sequence: int = -1, base_offset: int = 0
) -> BatchHeader:
    return BatchHeader(
        base_offset, 100, -1, 2, 0, 0, count - 1, NOW, NOW, producer_id, epoch, sequence, count
    )


def append(core: PartitionCore, header: BatchHeader, acks: int = -1) -> list[object]:
    effects = core.step(ProduceReceived(header, acks, NOW))
    assert isinstance(effects[0], AppendBatch), effects
    decided = effects[0]
    appended = header._replace(base_offset=decided.base_offset, partition_leader_epoch=decided.leader_epoch)
    return [decided, *core.step(BatchAppended(appended, NOW))]


def test_a_new_leader_persists_the_start_of_its_epoch_before_it_appends() -> None:
    core = new_core(log_end_offset=7, high_watermark=5)
    effects = core.step(LeaderAndIsrReceived(ME, 3, 0, (ME,), (ME,), NOW))
    assert effects == [PersistLeaderEpochs(), AdvanceHighWatermark(7)]
    assert [tuple(entry) for entry in core.leader_epochs] == [(3, 7)]


def test_an_outdated_command_changes_nothing() -> None:
    core = leading(epoch=4)
    assert core.step(LeaderAndIsrReceived(OTHER, 3, 0, (OTHER,), (ME, OTHER), NOW)) == []
    assert core.is_leader and core.leader_epoch == 4


def test_a_sole_replica_acknowledges_at_once() -> None:
    core = leading(epoch=2)
    assert append(core, batch(3)) == [AppendBatch(0, 2), AdvanceHighWatermark(3)]
    assert append(core, batch(2)) == [AppendBatch(3, 2), AdvanceHighWatermark(5)]
    assert core.is_acknowledged(5) and not core.is_acknowledged(6)


def test_the_high_watermark_waits_for_every_replica_in_sync() -> None:
    core = leading(isr=(ME, OTHER))
    assert append(core, batch(3)) == [AppendBatch(0, 0)]
    assert core.high_watermark == 0 and core.log_end_offset == 3


def test_a_replica_that_does_not_lead_appends_nothing() -> None:
    core = new_core()
    assert core.step(ProduceReceived(batch(), 1, NOW))[0].error is ErrorCode.NOT_LEADER_OR_FOLLOWER  # type: ignore[union-attr]


def test_acks_all_needs_min_in_sync_replicas() -> None:
    core = leading(isr=(ME,), replicas=(ME, OTHER))
    core.step(MinInSyncReplicasChanged(2))
    refusal = core.step(ProduceReceived(batch(), -1, NOW))[0]
    assert isinstance(refusal, Refuse) and refusal.error is ErrorCode.NOT_ENOUGH_REPLICAS
    assert isinstance(core.step(ProduceReceived(batch(), 1, NOW))[0], AppendBatch)


def test_min_in_sync_replicas_is_no_more_than_there_are_replicas() -> None:
    core = leading()
    core.step(MinInSyncReplicasChanged(2))
    assert isinstance(core.step(ProduceReceived(batch(), -1, NOW))[0], AppendBatch)


def test_a_repeated_batch_gets_its_first_answer_and_a_gap_is_refused() -> None:
    core = leading()
    append(core, batch(2))
    append(core, batch(3, producer_id=9, epoch=0, sequence=0))
    append(core, batch(1, producer_id=9, epoch=0, sequence=3))
    repeated = core.step(ProduceReceived(batch(3, producer_id=9, epoch=0, sequence=0), -1, NOW))
    assert repeated == [AnswerDuplicate(2, 4, NOW)]
    gap = core.step(ProduceReceived(batch(1, producer_id=9, epoch=0, sequence=6), -1, NOW))[0]
    assert isinstance(gap, Refuse) and gap.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert core.log_end_offset == 6


def test_a_transactional_batch_is_refused_while_nothing_can_end_its_transaction() -> None:
    transactional = batch(producer_id=9, epoch=0, sequence=0)._replace(attributes=TRANSACTIONAL_BIT)
    refusal = leading().step(ProduceReceived(transactional, -1, NOW))[0]
    assert isinstance(refusal, Refuse) and refusal.error is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize(
    ("known", "error"),
    [
        (-1, ErrorCode.NONE),
        (5, ErrorCode.NONE),
        (4, ErrorCode.FENCED_LEADER_EPOCH),
        (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_requests_with_another_leader_epoch_are_fenced(known: int, error: ErrorCode) -> None:
    assert leading(epoch=5).leadership_error(known) is error


def test_records_are_deleted_up_to_the_high_watermark_only() -> None:
    core = leading()
    append(core, batch(10))
    assert core.step(DeleteRecordsReceived(4)) == [AdvanceLogStartOffset(4)]
    core.step(LogStartOffsetMoved(4))
    assert core.step(DeleteRecordsReceived(3)) == []
    assert core.step(DeleteRecordsReceived(-1)) == [AdvanceLogStartOffset(10)]
    for offset in (11, -2):
        refusal = core.step(DeleteRecordsReceived(offset))[0]
        assert isinstance(refusal, Refuse) and refusal.error is ErrorCode.OFFSET_OUT_OF_RANGE


def test_after_a_restart_an_ended_transaction_below_the_high_watermark_does_not_limit_readers() -> None:
    producers = ProducerState()
    producers.update(batch(producer_id=9, epoch=0, sequence=0)._replace(attributes=TRANSACTIONAL_BIT), NOW)
    marker = batch(producer_id=9, epoch=0, base_offset=1)._replace(attributes=TRANSACTIONAL_BIT | CONTROL_BIT)
    producers.update(marker, NOW, EndTransactionMarker(is_commit=True, coordinator_epoch=0))
    core = PartitionCore(
        ME, producers, LeaderEpochs(), log_start_offset=0, log_end_offset=2, high_watermark=2
    )
    assert core.last_stable_offset == 2


events = st.one_of(
    st.builds(
        LeaderAndIsrReceived,
        leader=st.sampled_from([ME, OTHER]),
        leader_epoch=st.integers(0, 4),
        partition_epoch=st.integers(0, 4),
        isr=st.sampled_from([(ME,), (ME, OTHER), (OTHER,)]),
        replicas=st.just((ME, OTHER)),
    ),
    st.builds(
        ProduceReceived,
        header=st.builds(batch, count=st.integers(1, 5)),
        required_acks=st.sampled_from([-1, 0, 1]),
    ),
    st.builds(DeleteRecordsReceived, offset=st.integers(-1, 20)),
)


@given(st.lists(events, max_size=40))
def test_offsets_keep_their_order_and_visible_records_stay(happenings: list[Event]) -> None:
    core = new_core()
    shown = 0
    for event in happenings:
        for effect in core.step(event):
            if isinstance(effect, AppendBatch) and isinstance(event, ProduceReceived):
                assert effect.base_offset == core.log_end_offset
                core.step(BatchAppended(event.header._replace(base_offset=effect.base_offset), NOW))
            elif isinstance(effect, AdvanceLogStartOffset):
                core.step(LogStartOffsetMoved(effect.log_start_offset))
        assert core.log_start_offset <= core.last_stable_offset <= core.high_watermark <= core.log_end_offset
        assert core.high_watermark >= shown
        shown = core.high_watermark
