"""On a disk that takes 3 s for each fsync, requests without fsync continue and the broker stays registered,
because the event loop never waits for a disk.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from brokerlab.clients import create_topic
from clusterlab.tidelog_cluster import TidelogCluster

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]
FSYNC_S = 3.0
LOAD_S = 12.0
SESSION_MS = 2000
MOST_LATENCY_S = 1.0
VALUE = b"x" * 4096
"""A size at which segments of 1 MiB roll during the test."""
SLOW_FSYNC = """\
import os, time
def slowed(sync):
    def slow(fd):
        time.sleep({seconds})
        sync(fd)
    return slow
os.fsync, os.fdatasync = slowed(os.fsync), slowed(os.fdatasync)
"""


def produce_for(bootstrap: str, topic: str, seconds: float) -> list[float]:
    """Produces one message at a time and returns the duration of each."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
    latencies_s: list[float] = []
    failed: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error)

    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        began_s = time.monotonic()
        producer.produce(topic, VALUE, on_delivery=on_delivery)
        assert producer.flush(30) == 0
        latencies_s.append(time.monotonic() - began_s)
        time.sleep(0.005)
    assert not failed, failed
    return latencies_s


def test_a_slow_disk_delays_only_requests_that_need_it(
    new_cluster: Callable[..., TidelogCluster],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tell: Callable[..., None],
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SLOW_FSYNC.format(seconds=FSYNC_S))
    monkeypatch.setenv("PYTHONPATH", str(site))
    cluster = new_cluster(
        brokers=1,
        controllers=1,
        settings={
            "broker.session.timeout.ms": str(SESSION_MS),
            "broker.heartbeat.interval.ms": "500",
            "log.flush.offset.checkpoint.interval.ms": "1000",
            "replica.high.watermark.checkpoint.interval.ms": "1000",
            "log.flush.interval.ms": "1000",
        },
    )
    registered = cluster.etcd().keys("/brokers/ids/1")[0].create_revision
    quick, durable = (f"{kind}-{uuid.uuid4().hex[:6]}" for kind in ("quick", "durable"))
    create_topic(cluster.bootstrap, quick, 1, {"segment.bytes": "1048576", "flush.ms": "1000"})
    create_topic(cluster.bootstrap, durable, 1, {"flush.messages": "1"})
    waited: list[float] = []
    waiting = threading.Thread(
        target=lambda: waited.extend(produce_for(cluster.bootstrap, durable, LOAD_S - 2 * FSYNC_S))
    )
    waiting.start()
    latencies_s = produce_for(cluster.bootstrap, quick, LOAD_S)
    waiting.join()
    tell("fsync of 3 s: longest produce that needs none", max(latencies_s))
    tell("fsync of 3 s: shortest produce that needs one", min(waited))
    assert min(waited) >= FSYNC_S, "the record was acknowledged before it was on the disk"
    assert max(latencies_s) < MOST_LATENCY_S
    assert cluster.etcd().keys("/brokers/ids/1")[0].create_revision == registered, "its session ended"
