"""The producer stores each acknowledged record once and in order, under all faults of the network.

The brokers are a model (clientlab.model_brokers). Two planted faults must be found, so the test can fail.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clientlab.model_brokers import REQUEST_TIMEOUT_MS, Faults, ModelCluster
from tidelog.client.core.partition_queue import PartitionQueue
from tidelog.client.core.producer import ProducerCore
from tidelog.client.core.producer_batch import ProducerBatch
from tidelog.client.core.producer_settings import ProducerSettings
from tidelog.process.build import is_compiled

SETTINGS = ProducerSettings(
    batch_size=200,
    linger_ms=5,
    buffer_memory=20_000,
    request_timeout_ms=REQUEST_TIMEOUT_MS,
    delivery_timeout_ms=4_000,
)
SENDS = 150
HEALING_MS = 60_000
PROBABILITY = st.sampled_from([0.0, 0.02, 0.1, 0.3])
FAULTS = st.builds(
    Faults,
    lost_request=PROBABILITY,
    lost_response=PROBABILITY,
    refused=PROBABILITY,
    rejected=st.sampled_from([0.0, 0.0, 0.05]),
    leader_moves=PROBABILITY,
    slow=PROBABILITY,
)


class History:
    """The outcomes that the application was told."""

    def __init__(self) -> None:
        self.acknowledged: dict[bytes, tuple[int, int]] = {}
        self.failed: set[bytes] = set()

    def watch(self, batch: ProducerBatch, index: int, value: bytes) -> None:
        def done(batch: ProducerBatch) -> None:
            assert value not in self.acknowledged and value not in self.failed, "an outcome came twice"
            if batch.error is None:
                self.acknowledged[value] = (batch.place.partition, batch.base_offset + index)
            else:
                self.failed.add(value)

        batch.callbacks.append(done)


def run(seed: int, faults: Faults, core: type[ProducerCore] = ProducerCore) -> None:
    cluster = ModelCluster(SETTINGS, seed, faults, make_core=core)
    history = History()
    sent: list[list[bytes]] = [[] for _ in cluster.partitions]
    for number in itertools.count():
        if number == SENDS:
            break
        partition = cluster.chance.randrange(len(cluster.partitions))
        value = b"%d" % number
        batch = cluster.core.append("t", partition, 1_000 + number, None, value, (), cluster.now_ms)
        if batch is not None:
            sent[partition].append(value)
            history.watch(batch, batch.count - 1, value)
        cluster.run(cluster.now_ms + cluster.chance.choice((0, 0, 1, 20, 200)))
    cluster.is_healed = True
    cluster.run(cluster.now_ms + HEALING_MS)
    check(cluster, history, sent)


def check(cluster: ModelCluster, history: History, sent: list[list[bytes]]) -> None:
    core = cluster.core
    assert not core.pending_batches()
    assert core.free_bytes == SETTINGS.buffer_memory, "the buffer leaks"
    for index, values in enumerate(sent):
        stored = cluster.partitions[index].records
        assert len(stored) == len(set(stored)), f"partition {index} has a record twice: {stored}"
        order = [value for value in values if value in set(stored)]
        assert stored == order, f"partition {index} is not in order"
        for value in values:
            assert (value in history.acknowledged) != (value in history.failed), f"{value!r} has no outcome"
            if value in history.acknowledged:
                place, offset = history.acknowledged[value]
                assert place == index
                assert stored[offset : offset + 1] == [value], f"{value!r} was acknowledged and is lost"


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), FAULTS)
def test_acknowledged_records_are_stored_once_and_in_order(seed: int, faults: Faults) -> None:
    run(seed, faults)


def test_without_faults_everything_is_acknowledged() -> None:
    cluster = ModelCluster(SETTINGS, 1, Faults())
    cluster.core.append("t", 0, 0, None, b"first", (), 0)
    cluster.run(1_000)
    history = History()
    for number in range(20):
        batch = cluster.core.append("t", 0, 0, None, b"%d" % number, (), cluster.now_ms)
        assert batch is not None
        history.watch(batch, batch.count - 1, b"%d" % number)
    cluster.run(2_000)
    assert len(history.acknowledged) == 20
    assert cluster.core.counts.record_error_total == 0


def _sequence_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a timeout, the sequence begins again at 0 in the same epoch."""

    def renew_epoch(queue: PartitionQueue, fresh_producer_id: int) -> bool:
        if queue.needs_new_epoch:
            queue.needs_new_epoch = False
            queue.next_sequence = 0
        return False

    monkeypatch.setattr(PartitionQueue, "renew_epoch", renew_epoch)


def _new_numbers_for_repetitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated batch gets new numbers, so the broker does not recognise it."""
    original = ProducerBatch.encode

    def encode(batch: ProducerBatch, *, is_transactional: bool) -> Any:
        if batch.attempts > 1:
            batch.number(batch.producer_id, batch.producer_epoch + batch.attempts, 0)
        return original(batch, is_transactional=is_transactional)

    monkeypatch.setattr(ProducerBatch, "encode", encode)


def _no_wait_for_open_outcomes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The epoch changes while the outcome of a sent batch is open."""
    original = PartitionQueue.renew_epoch

    def renew_epoch(queue: PartitionQueue, fresh_producer_id: int) -> bool:
        for batch in queue.unacknowledged:
            batch.is_fate_unknown = False
        return original(queue, fresh_producer_id)

    monkeypatch.setattr(PartitionQueue, "renew_epoch", renew_epoch)


def _no_wait_for_the_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second batch is sent before the broker has stored the first one."""
    original = PartitionQueue.adopt

    def adopt(queue: PartitionQueue, producer_id: int, producer_epoch: int) -> None:
        original(queue, producer_id, producer_epoch)
        queue.is_known = True

    monkeypatch.setattr(PartitionQueue, "adopt", adopt)


def _batches_in_flight_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches follow an old one without an outcome as long as few are in flight."""
    monkeypatch.setattr(
        PartitionQueue, "sent_since_oldest", property(lambda queue: len(queue.unacknowledged))
    )


@pytest.mark.skipif(is_compiled(), reason="the methods of compiled classes cannot be replaced")
@pytest.mark.parametrize(
    "plant",
    [
        _sequence_reset,
        _new_numbers_for_repetitions,
        _no_wait_for_open_outcomes,
        _no_wait_for_the_first_batch,
        _batches_in_flight_counted,
    ],
)
def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch, plant: Any) -> None:
    plant(monkeypatch)
    faults = Faults(
        lost_request=0.3, lost_response=0.3, refused=0.1, rejected=0.05, leader_moves=0.02, slow=0.3
    )
    with pytest.raises(AssertionError):
        for seed in range(500):
            run(seed, faults)
