"""Records of transactions have Kafka's format, and decode to the same state."""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.group_coordinator.shard_core import ReplayedRecord, UnknownRecordError
from tidelog.group_coordinator.transactions.transaction import (
    TransactionMetadata,
    TransactionStatus,
    read_record,
    transaction_record,
)
from tidelog.kernel.instants import WallMs
from tidelog.model.topics import TopicPartition
from tidelog.wire.codec import record_codec
from tidelog.wire.messages.records.transaction_log import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)

_INT64 = st.integers(0, 2**63 - 1)
_MAYBE = st.integers(-1, 2**63 - 1)


@st.composite
def transactions(draw: st.DrawFn) -> TransactionMetadata:
    status = draw(st.sampled_from(list(TransactionStatus)[:6]))
    partitions = draw(
        st.frozensets(
            st.builds(TopicPartition, st.text(max_size=200), st.integers(0, 2**31 - 1)), max_size=200
        )
    )
    epoch = draw(st.integers(0, 32_767))
    last_epoch = draw(st.sampled_from([-1, epoch - 1 if epoch else 32_766]))
    return TransactionMetadata(
        draw(_INT64),
        epoch,
        draw(st.integers(1, 2**31 - 1)),
        status,
        frozenset() if status is TransactionStatus.EMPTY else partitions,
        draw(_MAYBE),
        draw(_MAYBE),
        last_epoch,
        draw(_MAYBE),
        draw(_MAYBE),
        draw(st.sampled_from([0, 2])),
    )


@given(st.text(max_size=300), transactions())
def test_records_equal_those_of_the_codec(name: str, transaction: TransactionMetadata) -> None:
    record = transaction_record(name, transaction)
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(transaction.partitions):
        topics.setdefault(topic, []).append(partition)
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.producer_epoch,
        next_producer_epoch=-1 if transaction.last_epoch < 0 else transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.status,
        transaction_partitions=None
        if transaction.status is TransactionStatus.EMPTY
        else [PartitionsSchema(topic, ids) for topic, ids in topics.items()],
        transaction_last_update_timestamp_ms=transaction.update_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
        client_transaction_version=transaction.version,
    )
    assert record.key == record_codec(TransactionLogKey).encode(TransactionLogKey(name))
    assert record.value == record_codec(TransactionLogValue).encode(value, 1)
    assert read_record(ReplayedRecord(*record, 0, None)) == (name, transaction)


def test_tombstones_and_unknown_records() -> None:
    tombstone = transaction_record("t", None)
    assert read_record(ReplayedRecord(*tombstone, 0, None)) == ("t", None)
    for key, value in [
        (b"", b""),
        (b"\x00\x01\x00\x00", b"x"),
        (tombstone.key, b"\x00\x07"),
        (tombstone.key, b""),
    ]:
        with pytest.raises(UnknownRecordError):
            read_record(ReplayedRecord(key, value, 0, None))


def test_records_of_kafka_before_transaction_version_1() -> None:
    value = TransactionLogValue(
        producer_id=7,
        producer_epoch=3,
        transaction_timeout_ms=60_000,
        transaction_status=TransactionStatus.ONGOING,
        transaction_partitions=[PartitionsSchema("a", [1])],
        transaction_last_update_timestamp_ms=5,
        transaction_start_timestamp_ms=4,
    )
    record = ReplayedRecord(
        transaction_record("t", None).key, record_codec(TransactionLogValue).encode(value, 0), 0, None
    )
    expected = TransactionMetadata(
        7, 3, 60_000, TransactionStatus.ONGOING, frozenset({TopicPartition("a", 1)}), 4, 5
    )
    assert read_record(record) == ("t", expected)


class CountedName(str):
    """The name of a topic that counts how often it is compared with another one."""

    __slots__ = ()
    comparisons: ClassVar[list[int]] = [0]

    def __lt__(self, other: str) -> bool:
        self.comparisons[0] += 1
        return super().__lt__(other)


def test_a_record_compares_topics_and_not_all_partitions() -> None:
    names = [CountedName(f"topic-{number:03}") for number in range(100)]
    partitions = frozenset(TopicPartition(name, number) for name in names for number in range(20))
    CountedName.comparisons[0] = 0
    record = transaction_record("t", TransactionMetadata(1, 0, 1, TransactionStatus.ONGOING, partitions))
    assert CountedName.comparisons[0] < 1_000
    _, found = read_record(ReplayedRecord(record.key, record.value, WallMs(0), None))
    assert found is not None
    assert found.partitions == partitions
