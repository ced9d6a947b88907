"""A batch after a refused one is refused for the same reason, not because of a gap in the sequence."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.partition.core import PartitionCore
from tidelog.broker.partition.events import (
    AppendBatch,
    AppendFailed,
    BatchAppended,
    LeaderAndIsrReceived,
    ProduceDuringRoleChange,
    ProduceReceived,
    ReceivedAppended,
    Refuse,
)
from tidelog.broker.partition.producer_state import ProducerState
from tidelog.broker.partition.roles import MAX_PRODUCERS, MEMORY_MS, RefusedBatches
from tidelog.log_format.leader_epochs import LeaderEpochs
from tidelog.model.errors import ErrorCode
from tidelog.records.batch import BatchHeader

ME, OTHER = 1, 2
NOW = 1_700_000_000_000
PRODUCER = 1000
ALL = -1
MOST_IN_FLIGHT = 5


def batch(sequence: int, epoch: int = 0, producer_id: int = PRODUCER) -> BatchHeader:
    return BatchHeader(0, 100, -1, 2, 0, 0, 0, NOW, NOW, producer_id, epoch, sequence, 1)


def partition(leader: int, isr: tuple[int, ...] = (ME,), min_isr: int = 1) -> PartitionCore:
    core = PartitionCore(
        ME,
        ProducerState(),
        LeaderEpochs(),
        log_start_offset=0,
        log_end_offset=0,
        high_watermark=0,
        min_in_sync_replicas=min_isr,
    )
    core.step(LeaderAndIsrReceived(leader, 0, 0, isr, (ME, OTHER), NOW))
    return core


def produce(core: PartitionCore, header: BatchHeader, now_ms: int = NOW) -> ErrorCode:
    """Returns the error of the batch; NONE means that it was appended."""
    effect = core.step(ProduceReceived(header, ALL, now_ms))[0]
    if isinstance(effect, Refuse):
        return effect.error
    assert isinstance(effect, AppendBatch), effect
    core.step(BatchAppended(header._replace(base_offset=effect.base_offset), now_ms))
    return ErrorCode.NONE


def lead(core: PartitionCore) -> None:
    core.step(LeaderAndIsrReceived(ME, 1, 1, (ME,), (ME, OTHER), NOW))


@given(st.integers(0, 2**31 - 1), st.integers(1, MOST_IN_FLIGHT), st.data())
def test_batches_in_flight_while_the_broker_becomes_leader(
    first: int, count: int, data: st.DataObject
) -> None:
    core = partition(OTHER)
    sequences = [(first + number) % 2**31 for number in range(count)]
    early = data.draw(st.integers(1, count))
    for sequence in sequences[:early]:
        assert produce(core, batch(sequence)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    lead(core)
    for sequence in sequences[early:]:
        assert produce(core, batch(sequence)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [produce(core, batch(sequence)) for sequence in sequences] == [ErrorCode.NONE] * count


def test_batches_in_flight_while_a_role_change_is_persisted() -> None:
    core = partition(ME)
    assert produce(core, batch(0)) is ErrorCode.NONE
    (refusal,) = core.step(ProduceDuringRoleChange(batch(1), NOW))
    assert isinstance(refusal, Refuse)
    assert refusal.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert produce(core, batch(2)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [produce(core, batch(sequence)) for sequence in (1, 2)] == [ErrorCode.NONE] * 2


def test_batches_after_one_that_could_not_be_written() -> None:
    core = partition(ME)
    assert produce(core, batch(0)) is ErrorCode.NONE
    assert isinstance(core.step(ProduceReceived(batch(1), ALL, NOW))[0], AppendBatch)
    assert core.step(AppendFailed(batch(1), NOW)) == []
    assert produce(core, batch(2)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert [produce(core, batch(sequence)) for sequence in (1, 2)] == [ErrorCode.NONE] * 2


def test_a_batch_that_arrived_through_another_leader_is_not_awaited() -> None:
    """Leadership is lost and regained while the refusal is remembered."""
    core = partition(ME)
    assert produce(core, batch(0)) is ErrorCode.NONE
    core.step(LeaderAndIsrReceived(OTHER, 1, 1, (OTHER, ME), (ME, OTHER), NOW))
    assert produce(core, batch(1)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    stored = [batch(sequence)._replace(base_offset=sequence) for sequence in (1, 2)]
    core.step(ReceivedAppended(stored, 3, 0, NOW))
    core.step(LeaderAndIsrReceived(ME, 2, 2, (ME, OTHER), (ME, OTHER), NOW))
    assert produce(core, batch(4)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [produce(core, batch(sequence)) for sequence in (3, 4)] == [ErrorCode.NONE] * 2


def test_batches_in_flight_while_the_isr_grows() -> None:
    core = partition(ME, (ME,), min_isr=2)
    assert produce(core, batch(0)) is ErrorCode.NOT_ENOUGH_REPLICAS
    core.step(LeaderAndIsrReceived(ME, 0, 1, (ME, OTHER), (ME, OTHER), NOW))
    assert produce(core, batch(1)) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert produce(core, batch(0)) is ErrorCode.NONE
    assert produce(core, batch(1)) is ErrorCode.NONE


def test_a_gap_that_the_client_caused_is_refused() -> None:
    core = partition(OTHER)
    lead(core)
    assert produce(core, batch(0)) is ErrorCode.NONE
    assert produce(core, batch(2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_other_producers_and_epochs_are_not_held_back() -> None:
    core = partition(OTHER)
    assert produce(core, batch(7)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    lead(core)
    assert produce(core, batch(8, producer_id=PRODUCER + 1)) is ErrorCode.NONE
    assert produce(core, batch(8)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert produce(core, batch(0, epoch=1)) is ErrorCode.NONE


def test_a_client_that_drops_the_refused_batch_waits_for_a_limited_time() -> None:
    core = partition(OTHER)
    assert produce(core, batch(7)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    lead(core)
    assert produce(core, batch(8), NOW + MEMORY_MS) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert produce(core, batch(8), NOW + MEMORY_MS + 1) is ErrorCode.NONE


def test_an_earlier_batch_does_not_remove_the_refusal() -> None:
    refused = RefusedBatches()
    refused.refused(batch(7), ErrorCode.NOT_LEADER_OR_FOLLOWER, NOW)
    assert refused.reason_to_refuse(batch(6), NOW) is None
    assert refused.reason_to_refuse(batch(8), NOW) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert refused.reason_to_refuse(batch(7), NOW) is None
    assert refused.reason_to_refuse(batch(8), NOW) is None


def test_the_number_of_refusals_is_bounded() -> None:
    refused = RefusedBatches()
    for number in range(MAX_PRODUCERS + 10):
        refused.refused(batch(7, producer_id=number), ErrorCode.NOT_LEADER_OR_FOLLOWER, NOW)
    assert len(refused) == MAX_PRODUCERS
    assert refused.reason_to_refuse(batch(8, producer_id=0), NOW) is None
