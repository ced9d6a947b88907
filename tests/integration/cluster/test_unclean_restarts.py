"""All brokers die at once and come back with less data: no acknowledged record is lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerlab.clients import create_topic
from clusterlab.history import judge
from clusterlab.load import Load, LoadPlan, read_all
from clusterlab.tidelog_cluster import TidelogCluster
from clusterlab.topic_view import await_view

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]
TOPIC = "kept"
PARTITIONS = 3
BROKERS = (1, 2, 3)
SESSION_S = 6.0
CHECKPOINT_S = 5.0  # replica.high.watermark.checkpoint.interval.ms


def loaded_and_killed(cluster: TidelogCluster) -> Load:
    """Runs a load, waits until its high watermarks are on disk and kills every broker."""
    create_topic(cluster.bootstrap, TOPIC, PARTITIONS, {"min.insync.replicas": "2"}, replication_factor=3)
    with Load(cluster.bootstrap, LoadPlan(TOPIC, PARTITIONS)) as load:
        load.await_acknowledged(range(PARTITIONS), 20)
        time.sleep(2)
    time.sleep(CHECKPOINT_S + 1)
    for broker_id in BROKERS:
        cluster.kill(f"broker-{broker_id}")
    return load


def expect_all_there(cluster: TidelogCluster, load: Load) -> None:
    await_view(
        cluster.addresses.values(),
        TOPIC,
        lambda view: len(view) == PARTITIONS and all(len(p.isr) == 3 for p in view.values()),
        40,
    )
    load.history.final = read_all(cluster.bootstrap, TOPIC, PARTITIONS)
    found = judge(load.history)
    assert found.is_sound and found.acknowledged > 0, str(found)


def set_boot_id(log_dir: Path, boot_id: str) -> None:
    """Changes the boot id, as if the machine had crashed with the broker."""
    meta = log_dir / "meta.properties"
    lines = meta.read_text().splitlines()
    changed = [
        f"tidelog.boot.id={boot_id}" if line.startswith("tidelog.boot.id=") else line for line in lines
    ]
    assert changed != lines
    meta.write_text("\n".join(changed) + "\n")


def test_all_machines_go_down_at_once(new_cluster: Callable[..., TidelogCluster]) -> None:
    """All logs are equally uncertain, so the last leader's log counts."""
    cluster = new_cluster(controllers=1)
    load = loaded_and_killed(cluster)
    for broker_id in BROKERS:
        set_boot_id(cluster.log_dir(broker_id), "another-run-of-the-machine")
    time.sleep(SESSION_S + 1)
    for broker_id in (3, 1, 2):
        cluster.start(f"broker-{broker_id}")
    expect_all_there(cluster, load)


def cut_in_half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flip_bits(content: bytes) -> bytes:
    """Recovery cuts the log there, so the records behind it are lost, too.

    The four bytes of a batch's leader epoch are not covered by its CRC, so more than these are changed.
    """
    middle = len(content) // 2
    changed = bytes(byte ^ 1 for byte in content[middle : middle + 8])
    return content[:middle] + changed + content[middle + 8 :]


@pytest.mark.parametrize(
    ("damage", "seconds_dead"),
    [(cut_in_half, 0), (cut_in_half, SESSION_S + 2), (flip_bits, SESSION_S + 2)],
    ids=["half, within the session", "half, after it", "some bits, after it"],
)
def test_a_broker_that_lost_records_does_not_lead(
    new_cluster: Callable[..., TidelogCluster], damage: Callable[[bytes], bytes], seconds_dead: float
) -> None:
    """Broker 1, which is in the ISR, comes back first with damaged logs, and reports its loss."""
    cluster = new_cluster(controllers=1)
    load = loaded_and_killed(cluster)
    for partition in range(PARTITIONS):
        for segment in (cluster.log_dir(1) / f"{TOPIC}-{partition}").glob("*.log"):
            segment.write_bytes(damage(segment.read_bytes()))
    time.sleep(seconds_dead)
    cluster.start("broker-1")
    time.sleep(3)
    states = cluster.etcd().keys(f"/brokers/topics/{TOPIC}/partitions/")
    assert len(states) == PARTITIONS
    for state in states:
        assert 1 not in state.json["isr"] and state.json["leader"] != 1, state.json
    registered = cluster.etcd().get("/brokers/ids/1")
    assert registered is not None and len(registered.json["suspect_partitions"]) == PARTITIONS
    for broker_id in (2, 3):
        cluster.start(f"broker-{broker_id}")
    expect_all_there(cluster, load)
