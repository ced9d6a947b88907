"""Producer state against a model that keeps every batch, and against Kafka's rules one by one."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerlab.counted_work import lines_of
from tidelog.broker.partition.producer_state import (
    MAX_BATCHES_REMEMBERED,
    CompletedTransaction,
    Duplicate,
    ProducerState,
    StoredBatch,
)
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader, EndTransactionMarker

MAX_SEQUENCE = 2**31 - 1
NOW_MS = 1_000


def header(
    *,
    sequence: int,
    count: int = 1,
    epoch: int = 0,
    producer_id: int = 1,
    base_offset: int = 0,
    attributes: int = 0,
    timestamp_ms: int = NOW_MS,
) -> BatchHeader:
    return BatchHeader(
        base_offset,
        50,
        0,
        2,
        0,
        attributes,
        count - 1,
        timestamp_ms,
        timestamp_ms,
        producer_id,
        epoch,
        sequence,
        count,
    )


def marker(*, offset: int, epoch: int = 0, producer_id: int = 1, timestamp_ms: int = NOW_MS) -> BatchHeader:
    return header(
        sequence=-1,
        epoch=epoch,
        producer_id=producer_id,
        base_offset=offset,
        attributes=CONTROL_BIT | TRANSACTIONAL_BIT,
        timestamp_ms=timestamp_ms,
    )


def refusal(state: ProducerState, batch: BatchHeader, now_ms: int = NOW_MS) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        state.check(batch, now_ms)
    return caught.value.code


@dataclasses.dataclass
class Written:
    epoch: int
    first: int
    last: int
    base_offset: int
    last_offset: int


def model_decision(
    history: list[Written], epoch: int, first: int, count: int
) -> Duplicate | ErrorCode | None:
    """Returns the decision of a leader that remembers all batches. `history` is that of one producer."""
    if not history:
        return None
    newest = history[-1]
    if epoch < newest.epoch:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if epoch > newest.epoch:
        return None if first == 0 else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    if first == (newest.last + 1) % (MAX_SEQUENCE + 1):
        return None
    last = (first + count - 1) % (MAX_SEQUENCE + 1)
    for batch in [batch for batch in history if batch.epoch == epoch][-MAX_BATCHES_REMEMBERED:]:
        if (batch.first, batch.last) == (first, last):
            return Duplicate(batch.base_offset, batch.last_offset, NOW_MS)
    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@given(st.data())
def test_every_decision_agrees_with_the_model(draw: st.DataObject) -> None:
    """Producers continue, repeat, skip and change epochs; sometimes the state is stored and loaded."""
    state = ProducerState()
    histories: dict[int, list[Written]] = {0: [], 1: []}
    end_offset = 0
    for _ in range(draw.draw(st.integers(1, 25))):
        producer_id = draw.draw(st.sampled_from(list(histories)))
        history = histories[producer_id]
        count = draw.draw(st.integers(1, 3))
        if not history:
            epoch, first = draw.draw(st.integers(0, 2)), draw.draw(st.sampled_from([0, 5, MAX_SEQUENCE - 1]))
        else:
            newest = history[-1]
            epoch, first = newest.epoch, (newest.last + 1) % (MAX_SEQUENCE + 1)
            match draw.draw(st.sampled_from(["next", "next", "next", "repeat", "gap", "epoch"])):
                case "repeat":
                    old = draw.draw(st.sampled_from(history[-7:]))
                    epoch, first, count = old.epoch, old.first, old.last_offset - old.base_offset + 1
                case "gap":
                    first = (first + draw.draw(st.integers(-3, 3))) % (MAX_SEQUENCE + 1)
                case "epoch":
                    epoch, first = max(0, epoch + draw.draw(st.integers(-1, 1))), draw.draw(st.integers(0, 1))
        batch = header(
            sequence=first, count=count, epoch=epoch, producer_id=producer_id, base_offset=end_offset
        )
        expected = model_decision(history, epoch, first, count)
        if isinstance(expected, ErrorCode):
            assert refusal(state, batch) == expected
            continue
        assert state.check(batch, NOW_MS) == expected
        if expected is None:
            state.update(batch, NOW_MS)
            history.append(Written(epoch, first, batch.last_sequence, end_offset, batch.last_offset))
            end_offset += count
        if draw.draw(st.booleans()):
            loaded = ProducerState()
            loaded.load(state.snapshot(), end_offset, NOW_MS)
            assert loaded.describe() == state.describe()
            state = loaded
    assert state.end_offset == end_offset


@given(st.integers(0, 7), st.integers(1, 4))
def test_five_batches_are_remembered(repeated: int, count: int) -> None:
    state = ProducerState()
    batches = [header(sequence=i * count, count=count, base_offset=100 + i * count) for i in range(8)]
    for batch in batches:
        assert state.check(batch, NOW_MS) is None
        state.update(batch, NOW_MS)
    batch = batches[repeated]
    if repeated < 3:
        assert refusal(state, batch) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    else:
        assert state.check(batch, NOW_MS) == Duplicate(batch.base_offset, batch.last_offset, NOW_MS)
    assert len(state.stored_batches(1)) == MAX_BATCHES_REMEMBERED


def test_a_repeat_must_have_both_sequences() -> None:
    state = ProducerState()
    state.update(header(sequence=0, count=5), NOW_MS)
    for sequence, count in ((0, 4), (1, 4), (0, 6), (1, 5)):
        assert (
            refusal(state, header(sequence=sequence, count=count)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        )


def test_sequences_wrap_inside_and_between_batches() -> None:
    state = ProducerState()
    around = header(sequence=MAX_SEQUENCE, count=3)
    state.update(around, NOW_MS)
    assert state.stored_batches(1) == [StoredBatch(1, 2, 2, NOW_MS)]
    assert state.check(around, NOW_MS) == Duplicate(0, 2, NOW_MS)
    assert state.check(header(sequence=2, base_offset=3), NOW_MS) is None
    state.update(header(sequence=MAX_SEQUENCE, base_offset=3, producer_id=2), NOW_MS)
    assert state.check(header(sequence=0, base_offset=4, producer_id=2), NOW_MS) is None


def test_a_new_epoch_begins_at_zero_and_forgets_the_old_ones_batches() -> None:
    state = ProducerState()
    old = header(sequence=0, count=2)
    state.update(old, NOW_MS)
    assert refusal(state, header(sequence=2, epoch=1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    new = header(sequence=0, epoch=1, base_offset=2)
    assert state.check(new, NOW_MS) is None
    state.update(new, NOW_MS)
    assert state.stored_batches(1) == [StoredBatch(0, 2, 0, NOW_MS)]
    assert refusal(state, old) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_batches_without_a_producer_only_move_the_end() -> None:
    state = ProducerState()
    for producer_id in (-1, -7):
        batch = header(sequence=-1, producer_id=producer_id, base_offset=9)
        assert state.check(batch, NOW_MS) is None
        state.update(batch, NOW_MS)
    assert (len(state), state.end_offset) == (0, 10)


# -- transactions


def test_a_transaction_limits_readers_until_its_marker_is_replicated() -> None:
    state = ProducerState()
    assert state.first_unstable_offset is None
    state.update(header(sequence=0, base_offset=10, attributes=TRANSACTIONAL_BIT), NOW_MS)
    state.update(header(sequence=0, base_offset=11, producer_id=2, attributes=TRANSACTIONAL_BIT), NOW_MS)
    state.update(header(sequence=1, base_offset=12, attributes=TRANSACTIONAL_BIT), NOW_MS)
    assert state.first_unstable_offset == 10
    ended = state.update(
        marker(offset=13), NOW_MS, EndTransactionMarker(is_commit=False, coordinator_epoch=4)
    )
    assert ended == CompletedTransaction(1, 10, 13, is_aborted=True, last_stable_offset=11)
    state.on_high_watermark(13)
    assert state.first_unstable_offset == 10
    state.on_high_watermark(14)
    assert state.first_unstable_offset == 11
    state.update(
        marker(offset=14, producer_id=2), NOW_MS, EndTransactionMarker(is_commit=True, coordinator_epoch=4)
    )
    state.on_high_watermark(15)
    assert state.first_unstable_offset is None


def test_no_plain_batch_inside_a_transaction() -> None:
    state = ProducerState()
    state.update(header(sequence=0, attributes=TRANSACTIONAL_BIT), NOW_MS)
    assert refusal(state, header(sequence=1)) == ErrorCode.INVALID_TXN_STATE
    assert state.check(header(sequence=1, attributes=TRANSACTIONAL_BIT), NOW_MS) is None


def test_markers_without_a_transaction_are_kept_for_their_epochs() -> None:
    state = ProducerState()
    end = EndTransactionMarker(is_commit=True, coordinator_epoch=9)
    assert state.update(marker(offset=5, epoch=3), NOW_MS, end) is None
    assert [(p.producer_epoch, p.last_sequence, p.coordinator_epoch) for p in state.describe()] == [
        (3, -1, 9)
    ]
    assert refusal(state, header(sequence=1, epoch=3)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(state, header(sequence=0, epoch=2)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert state.check(header(sequence=0, epoch=3), NOW_MS) is None
    loaded = ProducerState()
    loaded.load(state.snapshot(), 6, NOW_MS)
    assert loaded.describe() == state.describe()


def test_a_marker_of_the_same_epoch_keeps_the_sequence() -> None:
    state = ProducerState()
    state.update(header(sequence=0, count=3, attributes=TRANSACTIONAL_BIT), NOW_MS)
    state.update(marker(offset=3), NOW_MS, EndTransactionMarker(is_commit=True, coordinator_epoch=0))
    assert state.check(header(sequence=3, base_offset=4), NOW_MS) is None
    assert refusal(state, header(sequence=0, base_offset=4)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_emptied_control_batch_changes_nothing_but_the_end() -> None:
    state = ProducerState()
    assert state.update(marker(offset=7), NOW_MS) is None
    assert (len(state), state.end_offset) == (0, 8)


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=20))
def test_open_transactions_survive_a_snapshot(steps: list[tuple[int, bool]]) -> None:
    state = ProducerState()
    for offset, (producer_id, ends) in enumerate(steps):
        if ends:
            end = EndTransactionMarker(is_commit=True, coordinator_epoch=0)
            state.update(marker(offset=offset, producer_id=producer_id), NOW_MS, end)
        else:
            known = state.stored_batches(producer_id)
            sequence = known[-1].last_sequence + 1 if known else 0
            state.update(
                header(
                    sequence=sequence,
                    producer_id=producer_id,
                    base_offset=offset,
                    attributes=TRANSACTIONAL_BIT,
                ),
                NOW_MS,
            )
    state.on_high_watermark(len(steps))
    loaded = ProducerState()
    loaded.load(state.snapshot(), len(steps), NOW_MS)
    assert loaded.first_unstable_offset == state.first_unstable_offset
    assert loaded.snapshot() == state.snapshot()


# -- removal


def test_expiry_counts_from_the_last_batch() -> None:
    state = ProducerState(expiration_ms=100)
    state.update(header(sequence=0), 1_000)
    state.update(header(sequence=0, producer_id=2), 1_050)
    state.update(header(sequence=0, producer_id=3, attributes=TRANSACTIONAL_BIT), 0)
    assert state.expire(1_099) == 0
    assert state.expire(1_100) == 1
    assert sorted(p.producer_id for p in state.describe()) == [2, 3]


def test_a_producer_of_old_records_does_not_expire_early() -> None:
    """With records of 2013, a retry after a restart is still a duplicate, and a gap is still refused."""
    state = ProducerState()
    state.update(header(sequence=0, timestamp_ms=1_000), NOW_MS)
    restarted = ProducerState()
    restarted.load(state.snapshot(), 1, NOW_MS + 5_000)
    for known in (state, restarted):
        assert known.expire(NOW_MS + 10_000) == 0
        assert known.check(header(sequence=0, timestamp_ms=1_000), NOW_MS + 10_000) is not None
        assert refusal(known, header(sequence=7), NOW_MS + 10_000) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_expired_producer_that_was_not_removed_yet_is_unknown() -> None:
    for batch in (header(sequence=9), header(sequence=9, epoch=5), header(sequence=4, epoch=1)):
        state = ProducerState(expiration_ms=100)
        state.update(header(sequence=0, epoch=2 if batch.producer_epoch == 1 else 0), NOW_MS)
        assert refusal(state, batch, NOW_MS + 99) in {
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            ErrorCode.INVALID_PRODUCER_EPOCH,
        }
        assert state.check(batch, NOW_MS + 100) is None
        assert len(state) == 0


def test_the_number_of_producers_is_bounded_and_the_longest_idle_go_first() -> None:
    state = ProducerState(max_producers=32)
    state.update(header(sequence=0, producer_id=1_000, attributes=TRANSACTIONAL_BIT), NOW_MS)
    for offset in range(1, 200):
        state.update(header(sequence=0, producer_id=offset, base_offset=offset), NOW_MS)
        assert len(state) <= 32
    kept = {producer.producer_id for producer in state.describe()}
    assert 1_000 in kept  # it has a transaction open
    assert kept - {1_000} == set(range(169, 200))
    loaded = ProducerState(max_producers=16)
    loaded.load(state.snapshot(), 200, NOW_MS)
    assert len(loaded) <= 16
    assert loaded.first_unstable_offset == 0


def begin(state: ProducerState, producer_id: int) -> None:
    batch = header(
        sequence=0, producer_id=producer_id, base_offset=state.end_offset, attributes=TRANSACTIONAL_BIT
    )
    assert state.check(batch, NOW_MS) is None
    state.update(batch, NOW_MS)


def test_a_new_producer_is_refused_while_all_others_have_open_transactions() -> None:
    state = ProducerState(max_producers=3)
    for producer_id in (1, 2, 3):
        begin(state, producer_id)
    assert refusal(state, header(sequence=0, producer_id=4)) == ErrorCode.POLICY_VIOLATION
    following = header(sequence=1, producer_id=2, base_offset=3, attributes=TRANSACTIONAL_BIT)
    assert state.check(following, NOW_MS) is None
    state.update(marker(offset=4, producer_id=2), NOW_MS, EndTransactionMarker(True, 0))
    begin(state, 4)
    assert {row.producer_id for row in state.describe()} == {1, 3, 4}
    loaded = ProducerState(max_producers=3)
    loaded.load(state.snapshot(), state.end_offset, NOW_MS)
    assert refusal(loaded, header(sequence=0, producer_id=5)) == ErrorCode.POLICY_VIOLATION


def test_open_transactions_do_not_delay_the_removal_of_another_producer() -> None:
    state = ProducerState(max_producers=2_001)
    for producer_id in range(2_000):
        begin(state, producer_id)

    def add_producers() -> None:
        for producer_id in range(3_000, 3_010):
            state.update(header(sequence=0, producer_id=producer_id, base_offset=state.end_offset), NOW_MS)

    lines = lines_of(add_producers)
    assert len(state) == 2_001
    assert lines < 1_000


@given(
    st.lists(
        st.tuples(st.integers(1, 6), st.sampled_from(["write", "begin", "end"]), st.booleans()), max_size=40
    )
)
def test_producers_with_open_transactions_are_never_forgotten(steps: list[tuple[int, str, bool]]) -> None:
    """The others are forgotten in the order of their last batches, also after a snapshot is loaded."""
    state = ProducerState(max_producers=4)
    opened: set[int] = set()
    idle: list[int] = []
    for offset, (producer_id, step, is_reloaded) in enumerate(steps):
        if step == "end":
            batch, end = marker(offset=offset, producer_id=producer_id), EndTransactionMarker(False, 0)
        else:
            bits = TRANSACTIONAL_BIT if step == "begin" or producer_id in opened else 0
            known = state.stored_batches(producer_id)
            batch = header(
                sequence=known[-1].last_sequence + 1 if known else 0,
                producer_id=producer_id,
                base_offset=offset,
                attributes=bits,
            )
            end = None
            is_full = len(opened) >= 4 and not idle
            if producer_id not in opened and producer_id not in idle and is_full:
                assert refusal(state, batch) == ErrorCode.POLICY_VIOLATION
                continue
            assert state.check(batch, NOW_MS) is None
        if producer_id not in opened and producer_id not in idle and len(opened) + len(idle) >= 4 and idle:
            del idle[0]
        state.update(batch, NOW_MS, end)
        if producer_id in idle:
            idle.remove(producer_id)
        if step == "begin" or (step == "write" and producer_id in opened):
            opened.add(producer_id)
        else:
            opened.discard(producer_id)
            idle.append(producer_id)
        if is_reloaded:
            end_offset, state_bytes = state.end_offset, state.snapshot()
            state = ProducerState(max_producers=max(4, len(opened) + len(idle)))
            state.load(state_bytes, end_offset, NOW_MS)
            state.max_producers = 4
        assert [row.producer_id for row in state.describe() if row.current_txn_start_offset < 0] == idle
        assert {row.producer_id for row in state.describe() if row.current_txn_start_offset >= 0} == opened
