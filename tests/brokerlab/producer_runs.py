"""Runs of a producer against model brokers. They check that each acknowledged record is stored once and in
order. Everything follows from the seed and the faults.
"""

from __future__ import annotations

import itertools
import random

from hypothesis import strategies as st

from brokerlab.model_brokers import REQUEST_TIMEOUT_MS, Faults, ModelCluster, TopicNaming
from tidelog.client.core.producing.producer import ProducerCore
from tidelog.client.core.producing.producer_batch import ProducerBatch
from tidelog.client.core.settings import ProducerSettings
from tidelog.client.errors import OutOfOrderSequenceError

SETTINGS = ProducerSettings(
    batch_size=200,
    linger_ms=5,
    buffer_memory=20_000,
    request_timeout_ms=REQUEST_TIMEOUT_MS,
    delivery_timeout_ms=4_000,
)
SENDS = 150
HEALING_MS = 60_000
PROBABILITIES = (0.0, 0.02, 0.1, 0.3)


def drawn_faults(chance: random.Random) -> Faults:
    """Returns faults of all kinds, except that the topic is created again."""
    return Faults(
        lost_request=chance.choice(PROBABILITIES),
        lost_response=chance.choice(PROBABILITIES),
        refused=chance.choice(PROBABILITIES),
        rejected=chance.choice((0.0, 0.0, 0.05)),
        leader_moves=chance.choice(PROBABILITIES),
        replaced=chance.choice(PROBABILITIES),
        slow=chance.choice(PROBABILITIES),
        unconnected=chance.choice(PROBABILITIES),
        most_records=chance.choice((None, None, 1, 3)),
    )


class History:
    """The outcomes that the application was told."""

    def __init__(self) -> None:
        self.acknowledged: dict[bytes, tuple[int, int]] = {}
        self.failed: set[bytes] = set()

    def watch(self, batch: ProducerBatch, index: int, value: bytes) -> None:
        def done(batch: ProducerBatch) -> None:
            assert value not in self.acknowledged and value not in self.failed, "an outcome came twice"
            ((part, at, _),) = batch.runs_of(index, 1)
            if part.error is None:
                self.acknowledged[value] = (batch.place.partition, part.base_offset + at)
            else:
                self.failed.add(value)

        batch.callbacks.append(done)


def run(seed: int, faults: Faults, core: type[ProducerCore] = ProducerCore) -> None:
    """Raises AssertionError if a record is stored twice, in the wrong order, or not where the application was
    told, or fails to keep an order that nothing endangers.
    """
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
    if not cluster.deleted or faults.naming is TopicNaming.IDS:
        overtaken = [each for each in cluster.completed if isinstance(each.error, OutOfOrderSequenceError)]
        assert not overtaken, f"{overtaken[0]} failed to keep the order, which nothing endangers"


def check(cluster: ModelCluster, history: History, sent: list[list[bytes]]) -> None:
    core = cluster.core
    assert not core.pending_batches()
    assert core.free_bytes == SETTINGS.buffer_memory, "the buffer leaks"
    for index, values in enumerate(sent):
        logs = [topic[index].records for topic in (*cluster.deleted, cluster.partitions)]
        for stored in logs:
            assert len(stored) == len(set(stored)), f"partition {index} has a record twice: {stored}"
            order = [value for value in values if value in set(stored)]
            assert stored == order, f"partition {index} is not in order"
        for value in values:
            assert (value in history.acknowledged) != (value in history.failed), f"{value!r} has no outcome"
            if value in history.acknowledged:
                place, offset = history.acknowledged[value]
                assert place == index
                assert any(stored[offset : offset + 1] == [value] for stored in logs), (
                    f"{value!r} was acknowledged and is lost"
                )


PRODUCER_FAULTS = st.randoms(use_true_random=False).map(drawn_faults)
