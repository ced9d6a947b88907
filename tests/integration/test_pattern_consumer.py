"""Kafka's Java consumer with a SubscriptionPattern (RE2J): the coordinator evaluates the pattern, and the
consumer asks for the names of its topics by their ids.
"""

from __future__ import annotations

import subprocess
import uuid
from pathlib import Path

import pytest

import brokerlab
from brokerlab.clients import create_topic, new_producer
from brokerlab.kafka_jars import JAVA_OPTIONS

pytestmark = [pytest.mark.integration, pytest.mark.java]
CONSUMER = Path(brokerlab.__path__[0]) / "PatternConsumer.java"
WAIT_S = 60


def test_a_pattern_of_the_coordinator_gets_an_assignment(bootstrap: str, kafka_jars: Path) -> None:
    prefix = f"p{uuid.uuid4().hex[:8]}"
    producer = new_producer(bootstrap)
    for topic in (f"{prefix}-one", f"{prefix}-two", f"x{prefix}-one"):
        create_topic(bootstrap, topic, 1, {})
        producer.produce(topic, b"in " + topic.encode())
    assert producer.flush(20) == 0
    arguments = [bootstrap, f"g-{prefix}", f"^{prefix}-.*", "2", str(WAIT_S)]
    done = subprocess.run(
        ["java", *JAVA_OPTIONS, "-cp", f"{kafka_jars}/*", str(CONSUMER), *arguments],
        capture_output=True,
        text=True,
        timeout=WAIT_S + 60,
        check=False,
    )
    assert sorted(done.stdout.splitlines()) == [
        f"{prefix}-one\tin {prefix}-one",
        f"{prefix}-two\tin {prefix}-two",
    ], done.stderr[-3000:]
