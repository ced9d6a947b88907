"""The systems under test: a broker of tidelog, and one of Apache Kafka, for the same assertions."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

from brokerlab.broker_process import BrokerProcess
from brokerlab.peer_kafka import PeerKafka

TIDELOG, KAFKA = "tidelog", "kafka"
SYSTEMS = (KAFKA, TIDELOG)
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "5",
}
STREAMS_SETTINGS = {
    "group.streams.session.timeout.ms": "6000",
    "group.streams.min.session.timeout.ms": "6000",
    "group.streams.heartbeat.interval.ms": "500",
    "group.streams.min.heartbeat.interval.ms": "500",
    "group.streams.initial.rebalance.delay.ms": "1000",
}
"""The members of streams groups get their timeouts from the broker."""


@contextlib.contextmanager
def running(system: str, directory: Path) -> Iterator[str]:
    """Runs one broker and yields its address."""
    directory.mkdir(parents=True, exist_ok=True)
    if system == TIDELOG:
        broker = BrokerProcess(directory / "data", directory / "broker.log", SETTINGS | STREAMS_SETTINGS)
        try:
            yield broker.start().bootstrap
        finally:
            broker.kill()
        return
    kafka = PeerKafka(directory, f"ecosystem-{uuid.uuid4().hex[:6]}", STREAMS_SETTINGS)
    kafka.start()
    try:
        yield kafka.bootstrap
    finally:
        kafka.stop()
