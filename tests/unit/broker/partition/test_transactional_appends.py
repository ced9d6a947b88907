"""Transactions at the partition core: accepted batches, markers, and what read_committed sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tidelog.broker.partition.core import PartitionCore
from tidelog.broker.partition.events import (
    AdvanceHighWatermark,
    AnswerDuplicate,
    AppendBatch,
    BatchAppended,
    BatchesAppended,
    Effect,
    FollowerFetched,
    IndexAborted,
    LeaderAndIsrReceived,
    MarkerReceived,
    ProduceReceived,
    ReceivedAppended,
    Refuse,
    ShardAppendReceived,
    VerificationAsked,
    VerificationRefused,
    VerifyTransaction,
)
from tidelog.broker.partition.guards import NO_GUARD, NO_TRANSACTIONAL_ID, UNGUARDED
from tidelog.broker.partition.producer_state import CompletedTransaction, ProducerState, TransactionMarker
from tidelog.log_format.leader_epochs import LeaderEpochs
from tidelog.model.errors import ErrorCode
from tidelog.model.protocol_values import ACKS_ALL, READ_COMMITTED
from tidelog.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader, EndTransactionMarker

ME, OTHER = 1, 2
NOW = 1_700_000_000_000
COMMIT, ABORT = EndTransactionMarker(True, 3), EndTransactionMarker(False, 3)


def leading(replicas: tuple[int, ...] = (ME,), *, min_isr: int = 1) -> PartitionCore:
    core = PartitionCore(
        ME,
        ProducerState(),
        LeaderEpochs(),
        log_start_offset=0,
        log_end_offset=0,
        high_watermark=0,
        min_in_sync_replicas=min_isr,
    )
    core.step(LeaderAndIsrReceived(ME, 5, 10, replicas, replicas, NOW))
    return core


def batch(
    sequence: int = 0, *, pid: int = 7, epoch: int = 0, count: int = 1, attributes: int = TRANSACTIONAL_BIT
) -> BatchHeader:
    return BatchHeader(0, 100, -1, 2, 0, attributes, count - 1, NOW, NOW, pid, epoch, sequence, count)


def verify(core: PartitionCore, header: BatchHeader, *, bumps_epoch: bool = False) -> int | None:
    effects = core.step(VerificationAsked(header, bumps_epoch, NOW))
    return effects[0].guard if effects and isinstance(effects[0], VerifyTransaction) else None


def append(core: PartitionCore, header: BatchHeader) -> list[Effect]:
    return core.step(BatchAppended(header._replace(base_offset=core.log_end_offset), NOW))


def produce(core: PartitionCore, header: BatchHeader, guard: int | None = NO_GUARD) -> Effect:
    """Returns the decision. If the batch is accepted, it is appended."""
    effect = core.step(ProduceReceived(header, ACKS_ALL, NOW, NO_GUARD if guard is None else guard))[0]
    if isinstance(effect, AppendBatch):
        append(core, header)
    return effect


def write(core: PartitionCore, header: BatchHeader) -> None:
    """Produces like a client whose coordinator confirms the transaction."""
    assert isinstance(produce(core, header, verify(core, header)), AppendBatch)


def end(
    core: PartitionCore,
    marker: EndTransactionMarker = COMMIT,
    *,
    pid: int = 7,
    epoch: int = 0,
    version: int = 0,
) -> Any:
    """Returns the refusal of the marker, or the effects of its append."""
    effect = core.step(MarkerReceived(TransactionMarker(pid, epoch, marker, version)))[0]
    if isinstance(effect, Refuse):
        return effect.error
    header = batch(-1, pid=pid, epoch=epoch, attributes=TRANSACTIONAL_BIT | CONTROL_BIT)
    return core.step(BatchAppended(header._replace(base_offset=core.log_end_offset), NOW, marker))


def error_of(effect: Effect) -> ErrorCode:
    assert isinstance(effect, Refuse), effect
    return effect.error


# -- verification


def test_only_the_first_batch_of_a_transaction_is_verified() -> None:
    core = leading()
    assert error_of(produce(core, batch())) is ErrorCode.INVALID_TXN_STATE
    guard = verify(core, batch())
    assert guard is not None
    assert error_of(produce(core, batch(), guard + 1)) is ErrorCode.INVALID_TXN_STATE
    assert isinstance(produce(core, batch(), guard), AppendBatch)
    assert verify(core, batch(1)) is None
    assert isinstance(produce(core, batch(1)), AppendBatch)
    assert isinstance(produce(core, batch(1)), AnswerDuplicate)
    end(core)
    assert error_of(produce(core, batch(2))) is ErrorCode.INVALID_TXN_STATE
    assert isinstance(produce(core, batch(2), verify(core, batch(2))), AppendBatch)


@pytest.mark.parametrize("version", [0, 2])
def test_a_batch_after_the_end_of_its_transaction_opens_none(version: int) -> None:
    """The coordinator confirmed the transaction, but it was aborted before the batch arrived (KIP-890)."""
    core = leading()
    late = batch()
    guard = verify(core, late, bumps_epoch=version == 2)
    end(core, ABORT, epoch=1 if version == 2 else 0, version=version)
    assert error_of(produce(core, late, guard)) in (
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    )
    assert core.producers.first_unstable_offset is None


def test_the_previous_transactions_marker_does_not_end_the_next_verification() -> None:
    """With KIP-890, a producer continues as soon as the end is decided, before its markers are written."""
    core = leading()
    guard = verify(core, batch(), bumps_epoch=True)
    assert isinstance(produce(core, batch(), guard), AppendBatch)
    guard = verify(core, batch(epoch=1), bumps_epoch=True)
    assert guard is not None
    end(core, COMMIT, epoch=1, version=2)
    assert isinstance(produce(core, batch(epoch=1), guard), AppendBatch)
    guard = verify(core, batch(epoch=2), bumps_epoch=True)
    end(core, ABORT, epoch=2, version=2)
    end(core, ABORT, epoch=3, version=2)
    assert error_of(produce(core, batch(epoch=2), guard)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert core.producers.first_unstable_offset is None


def test_a_broker_that_leads_again_has_forgotten_its_guards() -> None:
    core = leading()
    guard = verify(core, batch())
    core.step(LeaderAndIsrReceived(OTHER, 6, 11, (ME, OTHER), (ME, OTHER), NOW))
    core.step(LeaderAndIsrReceived(ME, 7, 12, (ME,), (ME,), NOW))
    assert error_of(produce(core, batch(), guard)) is ErrorCode.INVALID_TXN_STATE


def test_verification_can_be_switched_off() -> None:
    assert isinstance(produce(leading(), batch(), UNGUARDED), AppendBatch)


def test_a_transactional_batch_without_transactional_id_is_refused() -> None:
    core = leading()
    refusal = produce(core, batch(), NO_TRANSACTIONAL_ID)
    assert error_of(refusal) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert isinstance(produce(core, batch(attributes=0), NO_TRANSACTIONAL_ID), AppendBatch)


def test_a_later_batch_waits_for_the_earlier_one() -> None:
    """Both batches wait for the coordinator. In either order, the log begins with the lower sequence."""
    core = leading()
    first, second = batch(0), batch(1)
    guard = verify(core, first)
    assert verify(core, second) == guard
    assert error_of(produce(core, second, guard)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert isinstance(produce(core, first, guard), AppendBatch)
    assert isinstance(produce(core, second), AppendBatch)


def test_a_batch_after_one_that_could_not_be_verified_is_refused_too() -> None:
    core = leading()
    verify(core, batch(0))
    core.step(VerificationRefused(batch(0), ErrorCode.NOT_ENOUGH_REPLICAS, NOW))
    guard = verify(core, batch(1))
    assert error_of(produce(core, batch(1), guard)) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert isinstance(produce(core, batch(0), verify(core, batch(0))), AppendBatch)


def test_the_first_sequence_is_0_with_an_epoch_per_transaction() -> None:
    core = leading()
    guard = verify(core, batch(4), bumps_epoch=True)
    assert error_of(produce(core, batch(4), guard)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    core = leading()
    assert isinstance(produce(core, batch(4), verify(core, batch(4))), AppendBatch), (
        "without KIP-890, any first sequence is accepted"
    )


def test_guards_are_bounded_and_expire() -> None:
    core = leading()
    guard = verify(core, batch())
    core.producers.expiration_ms = 1000
    core.producers.expire(NOW + 1000)
    assert error_of(produce(core, batch(), guard)) is ErrorCode.INVALID_TXN_STATE


# -- markers


def test_an_aborted_transaction_is_indexed_before_readers_are_woken() -> None:
    core = leading()
    write(core, batch(count=3))
    write(core, batch(pid=8))
    assert core.read_limit(READ_COMMITTED) == 0
    completed = CompletedTransaction(7, 0, 4, is_aborted=True, last_stable_offset=3)
    assert end(core, ABORT) == [IndexAborted(completed), AdvanceHighWatermark(5)]
    assert core.read_limit(READ_COMMITTED) == 3
    assert end(core, COMMIT, pid=8) == [AdvanceHighWatermark(6)]
    assert core.read_limit(READ_COMMITTED) == 6


def test_a_transaction_ends_for_readers_when_its_marker_is_replicated() -> None:
    core = leading((ME, OTHER))
    write(core, batch(count=3))
    core.step(FollowerFetched(OTHER, 1, 3, 0, NOW))
    assert (core.high_watermark, core.last_stable_offset) == (3, 0)
    assert end(core) == []
    assert core.last_stable_offset == 0
    assert AdvanceHighWatermark(4) in core.step(FollowerFetched(OTHER, 1, 4, 0, NOW))
    assert core.last_stable_offset == 4


@pytest.mark.parametrize(
    ("epoch", "version", "coordinator_epoch", "expected"),
    [
        (2, 0, 3, None),  # the same epoch as the data
        (3, 0, 3, None),  # a coordinator aborts with a raised epoch
        (1, 0, 3, ErrorCode.INVALID_PRODUCER_EPOCH),
        (3, 2, 3, None),
        # a marker of the previous transaction; this one is still open
        (2, 2, 3, ErrorCode.INVALID_PRODUCER_EPOCH),
        (1, 2, 3, ErrorCode.INVALID_PRODUCER_EPOCH),
        (3, 2, 2, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
        (2, 0, 2, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
        (3, 2, 4, None),
    ],
)
def test_markers_that_end_an_open_transaction(
    epoch: int, version: int, coordinator_epoch: int, expected: ErrorCode | None
) -> None:
    core = leading()
    write(core, batch(epoch=1))
    end(core, COMMIT, epoch=1)
    write(core, batch(epoch=2))
    answer = end(core, EndTransactionMarker(True, coordinator_epoch), epoch=epoch, version=version)
    assert (answer is expected) if expected else isinstance(answer, list)
    assert (core.producers.first_unstable_offset is None) == (expected is None)


def test_a_marker_is_accepted_again_until_a_new_transaction_begins() -> None:
    core = leading()
    write(core, batch(epoch=0))
    for _ in range(2):
        assert isinstance(end(core, COMMIT, epoch=1, version=2), list)
    write(core, batch(epoch=1))
    assert end(core, COMMIT, epoch=1, version=2) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert core.producers.has_open_transaction(7, 1), "a delayed marker does not end the next transaction"


def test_a_marker_needs_as_many_in_sync_as_acks_all() -> None:
    assert end(leading(min_isr=1)) != ErrorCode.NOT_ENOUGH_REPLICAS
    core = leading((ME, OTHER), min_isr=2)
    core.step(LeaderAndIsrReceived(ME, 5, 11, (ME,), (ME, OTHER), NOW))
    assert end(core) is ErrorCode.NOT_ENOUGH_REPLICAS
    core.step(LeaderAndIsrReceived(OTHER, 6, 12, (OTHER,), (ME, OTHER), NOW))
    assert end(core) is ErrorCode.NOT_LEADER_OR_FOLLOWER


# -- appends of a shard's owner


def shard_append(
    core: PartitionCore,
    headers: Sequence[BatchHeader],
    markers: dict[int, EndTransactionMarker | None] | None = None,
    *,
    leader_epoch: int = 5,
    at: int | None = None,
) -> Any:
    offset = core.log_end_offset if at is None else at
    numbered = []
    for header in headers:
        numbered.append(header._replace(base_offset=offset, partition_leader_epoch=leader_epoch))
        offset = numbered[-1].last_offset + 1
    by_offset = {numbered[number].base_offset: marker for number, marker in (markers or {}).items()}
    event = ShardAppendReceived(numbered, by_offset, leader_epoch, core.log_end_offset if at is None else at)
    effect = core.step(event)[0]
    if isinstance(effect, Refuse):
        return effect.error
    return core.step(BatchesAppended(numbered, by_offset, NOW))


def test_an_owner_appends_at_its_expected_log_end_or_not_at_all() -> None:
    core = leading()
    plain = batch(-1, pid=-1, epoch=-1, attributes=0, count=2)
    assert shard_append(core, [plain, plain]) == [AdvanceHighWatermark(4)]
    for at in (3, 5):
        assert shard_append(core, [plain], at=at) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert shard_append(core, [plain], leader_epoch=4) is ErrorCode.FENCED_LEADER_EPOCH
    assert shard_append(core, [plain], leader_epoch=6) is ErrorCode.UNKNOWN_LEADER_EPOCH
    core.step(LeaderAndIsrReceived(OTHER, 6, 12, (OTHER,), (ME, OTHER), NOW))
    assert shard_append(core, [plain], leader_epoch=6) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_pending_offsets_of_a_transaction_limit_readers_of_the_shard() -> None:
    core = leading()
    pending = batch(-1, pid=9, epoch=2)
    shard_append(core, [pending])
    assert core.last_stable_offset == 0
    marker = batch(-1, pid=9, epoch=2, attributes=TRANSACTIONAL_BIT | CONTROL_BIT)
    effects = shard_append(core, [marker, pending], {0: ABORT})
    assert effects[0] == IndexAborted(CompletedTransaction(9, 0, 1, is_aborted=True, last_stable_offset=2))
    assert core.last_stable_offset == 2
    stale = batch(-1, pid=9, epoch=1)
    assert shard_append(core, [stale]) is ErrorCode.INVALID_PRODUCER_EPOCH
    fenced = {0: EndTransactionMarker(True, 2)}
    assert shard_append(core, [marker], fenced) is ErrorCode.TRANSACTION_COORDINATOR_FENCED


# -- followers


def test_a_follower_derives_the_same_state_from_fetched_batches() -> None:
    leader, follower = leading((ME, OTHER)), leading()
    follower.step(LeaderAndIsrReceived(OTHER, 6, 12, (OTHER,), (ME, OTHER), NOW))
    write(leader, batch(count=2))
    write(leader, batch(pid=8))
    end(leader, ABORT)
    data = [batch(count=2), batch(pid=8)._replace(base_offset=2)]
    marker = batch(-1, attributes=TRANSACTIONAL_BIT | CONTROL_BIT)._replace(base_offset=3)
    effects = follower.step(ReceivedAppended([*data, marker], 4, 0, NOW, {3: ABORT}))
    completed = CompletedTransaction(7, 0, 3, is_aborted=True, last_stable_offset=2)
    assert effects == [IndexAborted(completed), AdvanceHighWatermark(4)]
    assert follower.last_stable_offset == 2
    assert follower.producers.snapshot() == leader.producers.snapshot()


def test_read_committed_does_not_stop_below_the_logs_beginning() -> None:
    core = leading()
    write(core, batch(count=5))
    append(core, batch(-1, pid=-1, epoch=-1, attributes=0))
    core.log_start_offset = 3
    assert core.last_stable_offset == 3
