"""A transactional copy is exact while brokers, coordinators, controllers and copiers are killed.

In each partition, the copy has the same records in the same order as the original. The short run belongs to
`make test`. TRANSACTIONAL_COPY_MESSAGES (the full proof: 100000), TRANSACTION_MESSAGES (750) and FAULT_SEED
change the long run.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from brokerlab.kafka_jars import JavaTools
from clusterlab.tidelog_cluster import TidelogCluster
from grouplab.copying import Copiers, CopyFaults, read_all

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_800)]
FEW_MESSAGES, FEW_FAULTS = 1_500, 2
MESSAGES = int(os.environ.get("TRANSACTIONAL_COPY_MESSAGES", "6000"))
TRANSACTION_MESSAGES = int(os.environ.get("TRANSACTION_MESSAGES", "150"))
SEED = int(os.environ.get("FAULT_SEED", "20240607"))
PAUSE_S = float(os.environ.get("COPY_PAUSE_S", "0.3"))
LIMIT_S = float(os.environ.get("COPY_LIMIT_S", "240"))
MOST_FAULTS = int(os.environ.get("COPY_FAULTS", "6"))
SETTINGS = {
    "default.replication.factor": "3",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}


def written(bootstrap: str, topic: str, partitions: int, messages: int) -> dict[int, list[bytes]]:
    """Writes the original and returns its values by partition."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20})
    values: dict[int, list[bytes]] = {partition: [] for partition in range(partitions)}
    for number in range(messages):
        value = b"message %d" % number
        values[number % partitions].append(value)
        producer.produce(topic, value, partition=number % partitions)
        if number % 1_000 == 0:
            producer.poll(0)
    assert producer.flush(60) == 0
    return values


def copy_under_faults(
    cluster: TidelogCluster,
    copiers: Copiers,
    start: Callable[[], None],
    partitions: int,
    messages: int = MESSAGES,
    most_faults: int = MOST_FAULTS,
) -> None:
    original = written(cluster.bootstrap, copiers.source, partitions, messages)
    faults = CopyFaults(cluster, copiers, random.Random(SEED))
    began_s = time.monotonic()
    start()
    try:
        while (copied := copiers.copied(partitions)) < messages:
            elapsed_s = time.monotonic() - began_s
            assert elapsed_s < LIMIT_S, f"{copied} of {messages} copied after {elapsed_s:.0f} s"
            if copied and len(faults.done) < most_faults:
                faults.strike()
            else:
                time.sleep(0.3)
            copiers.tend()
        copiers.stop()
        copy = read_all(cluster.bootstrap, copiers.target, partitions, "read_committed")
        everything = read_all(cluster.bootstrap, copiers.target, partitions, "read_uncommitted")
    except AssertionError:
        print(copiers.logs())
        raise
    finally:
        copiers.stop()
        print(f"seed {SEED}: {', '.join(faults.done)}; {copiers.restarts} restarts of copiers")
    aborted = sum(map(len, everything.values())) - sum(map(len, copy.values()))
    print(f"{messages} messages in {time.monotonic() - began_s:.0f} s; {aborted} in aborted transactions")
    for partition, values in original.items():
        assert copy[partition] == values, f"seed {SEED}: partition {partition} differs"
    assert faults.done


@pytest.fixture
def faulty_cluster(new_cluster: Callable[..., TidelogCluster]) -> TidelogCluster:
    return new_cluster(brokers=3, controllers=2, settings=SETTINGS, options=["--coordinators", "2"])


@pytest.mark.parametrize(
    ("messages", "most_faults"),
    [
        pytest.param(FEW_MESSAGES, FEW_FAULTS, id="short"),
        pytest.param(MESSAGES, MOST_FAULTS, id="long", marks=pytest.mark.slow),
    ],
)
def test_the_copy_is_exact_under_kills(
    faulty_cluster: TidelogCluster,
    new_replicated_topic: Callable[..., str],
    tmp_path: Path,
    messages: int,
    most_faults: int,
) -> None:
    source, target = (new_replicated_topic(faulty_cluster, 3) for _ in range(2))
    copiers = Copiers(faulty_cluster.bootstrap, source, target, tmp_path, 2)
    copy_under_faults(
        faulty_cluster,
        copiers,
        lambda: copiers.start(TRANSACTION_MESSAGES, PAUSE_S),
        3,
        messages,
        most_faults,
    )


@pytest.mark.java
@pytest.mark.slow
def test_the_copy_by_kafkas_own_copier_is_exact(
    faulty_cluster: TidelogCluster,
    new_replicated_topic: Callable[..., str],
    java: JavaTools,
    tmp_path: Path,
) -> None:
    source, target = (new_replicated_topic(faulty_cluster, 2) for _ in range(2))
    copiers = Copiers(faulty_cluster.bootstrap, source, target, tmp_path, 2)
    # Kafka's copier does not pause between transactions. Small ones keep it busy until the first fault.
    size = max(TRANSACTION_MESSAGES // 10, 1)
    copy_under_faults(faulty_cluster, copiers, lambda: copiers.start_java(java, size), 2)
