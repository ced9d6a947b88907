"""The producer stores each acknowledged record once and in order, under all faults of the network.

The brokers are a model (brokerlab.model_brokers). Planted faults must be found, so the test can fail.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerlab import planted_in_client as planted
from brokerlab.model_brokers import Faults, ModelCluster, TopicNaming
from brokerlab.producer_runs import HEALING_MS, PRODUCER_FAULTS, SENDS, SETTINGS, History, run
from tidelog.process.build import is_compiled


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), PRODUCER_FAULTS)
def test_acknowledged_records_are_stored_once_and_in_order(seed: int, faults: Faults) -> None:
    run(seed, faults)


RECREATION = Faults(
    lost_request=0.1, lost_response=0.1, refused=0.05, leader_moves=0.02, slow=0.1, recreated=0.05
)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), PRODUCER_FAULTS, st.sampled_from(TopicNaming))
def test_the_order_is_kept_when_the_topic_is_created_again(
    seed: int, faults: Faults, naming: TopicNaming
) -> None:
    """Deliveries time out meanwhile. A later batch whose fate in the earlier topic was unknown was repeated
    first, with its old numbers, and the brokers of the next topic knew none: 7 of 300 seeds. Without topic
    ids, a batch for the earlier topic was stored in the next one, and batches before it were repeated after
    it: 7 of 200 seeds, and 22 of 200 if metadata have no ids either.
    """
    run(seed, replace(faults, recreated=0.05, naming=naming))


@pytest.mark.parametrize("naming", TopicNaming)
def test_the_order_is_kept_by_each_naming_of_topics(naming: TopicNaming) -> None:
    for seed in range(100):
        run(seed, replace(RECREATION, naming=naming))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1, 3]))
def test_too_large_batches_are_split_although_responses_are_lost(seed: int, most_records: int) -> None:
    """The refusal of a batch whose first response was lost says that no broker has stored it."""
    patient = replace(SETTINGS, delivery_timeout_ms=10 * HEALING_MS)
    cluster = ModelCluster(patient, seed, Faults(lost_response=0.3, most_records=most_records))
    history = History()
    for number in range(SENDS):
        partition = number % len(cluster.partitions)
        batch = cluster.core.append("t", partition, 1_000, None, b"%d" % number, (), cluster.now_ms)
        if batch is not None:
            history.watch(batch, batch.count - 1, b"%d" % number)
        cluster.run(cluster.now_ms + cluster.chance.choice((0, 0, 0, 20)))
    cluster.is_healed = True
    cluster.run(cluster.now_ms + HEALING_MS)
    assert cluster.core.counts.batch_split_total > 0
    assert not history.failed
    stored = [value for partition in cluster.partitions for value in partition.records]
    assert sorted(stored) == sorted(history.acknowledged), "each acknowledged record is stored once"


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


@pytest.mark.parametrize("is_idempotent", [True, False])
def test_a_batch_that_is_too_large_for_the_broker_is_split(is_idempotent: bool) -> None:
    chosen = SETTINGS if is_idempotent else replace(SETTINGS, enable_idempotence=False, acks="1")
    cluster = ModelCluster(chosen, 1, Faults(most_records=3))
    assert cluster.core.append("t", 0, 0, None, b"unknown", (), 0) is None
    cluster.run(1_000)
    history = History()
    for number in range(20):
        batch = cluster.core.append("t", 0, 0, None, b"%d" % number, (), cluster.now_ms)
        assert batch is not None
        history.watch(batch, batch.count - 1, b"%d" % number)
    cluster.run(5_000)
    stored = cluster.partitions[0].records
    assert history.acknowledged == {value: (0, offset) for offset, value in enumerate(stored)}
    assert sorted(stored, key=int) == [b"%d" % number for number in range(20)]
    assert not is_idempotent or stored == sorted(stored, key=int)
    assert cluster.core.counts.batch_split_total > 0
    assert cluster.core.counts.epoch_bump_total == 0
    assert cluster.core.free_bytes == SETTINGS.buffer_memory


@pytest.mark.skipif(is_compiled(), reason="the methods of compiled classes cannot be replaced")
@pytest.mark.parametrize(
    "plant",
    [
        planted.sequence_reset,
        planted.new_numbers_for_repetitions,
        planted.no_wait_for_open_outcomes,
        planted.no_wait_for_the_first_batch,
        planted.batches_in_flight_counted,
        planted.numbers_of_parts_kept,
        planted.fates_in_earlier_topics_kept,
        planted.overtaken_batches_repeated,
    ],
)
def test_a_planted_fault_is_found(plant: Callable[[], AbstractContextManager[None]]) -> None:
    faults = Faults(
        lost_request=0.3, lost_response=0.3, refused=0.1, rejected=0.05, leader_moves=0.02, slow=0.3
    )
    if plant is planted.numbers_of_parts_kept:
        faults.most_records = 1
    if plant is planted.fates_in_earlier_topics_kept:
        faults = RECREATION
    if plant is planted.overtaken_batches_repeated:
        faults = replace(RECREATION, naming=TopicNaming.NAMES_IN_PRODUCE)
    with plant(), pytest.raises(AssertionError):
        for seed in range(500):
            run(seed, faults)
