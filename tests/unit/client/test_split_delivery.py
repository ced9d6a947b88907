"""The outcomes of records whose batch was split because it was too large for its topic."""

from __future__ import annotations

import pytest

from tidelog.client.core.producing.producer_batch import BatchState, ProducerBatch
from tidelog.client.errors import RecordTooLargeError
from tidelog.client.shell.producing.delivery import BatchDelivery, Delivery, StoredRange
from tidelog.model.topics import TopicPartition
from tidelog.records.compression import Compression

PLACE = TopicPartition("t", 0)


def split_batch() -> tuple[ProducerBatch, ProducerBatch, ProducerBatch]:
    """Returns a batch of four records that was split, and its two halves."""
    batch = ProducerBatch(PLACE, 1_000, Compression.NONE, 0, 100)
    for _ in range(4):
        batch.append(1_000, None, b"value", ())
    batch.close()
    batch.move_to(BatchState.SENT)
    first, second = batch.split()
    assert (first.count, second.count) == (2, 2)
    return batch, first, second


def test_each_part_has_offsets_of_its_own() -> None:
    batch, first, second = split_batch()
    first.finish(base_offset=10)
    second.finish(base_offset=20)  # another producer's records are between them
    batch.finish(base_offset=10)
    assert [Delivery(batch, index, 1_000).metadata().offset for index in range(4)] == [10, 11, 20, 21]
    together = BatchDelivery()
    together.add(batch, 1, 3)
    assert together.stored() == [StoredRange("t", 0, 11, 1), StoredRange("t", 0, 20, 2)]


def test_a_part_can_fail_alone() -> None:
    batch, first, second = split_batch()
    error = RecordTooLargeError("too large")
    first.finish(base_offset=10)
    second.finish(error=error)
    batch.finish(base_offset=10, error=error)
    assert [Delivery(batch, index, 1_000).error() for index in range(4)] == [None, None, error, error]
    together = BatchDelivery()
    together.add(batch, 0, 4)
    assert together.errors() == [(2, error)]
    with pytest.raises(RecordTooLargeError):
        together.stored()
