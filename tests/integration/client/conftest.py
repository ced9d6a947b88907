"""The tests of our own client run against tidelog and, with the mark `java`, against Apache Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from brokerlab.clients import create_topic
from brokerlab.kafka_jars import KafkaUnavailableError, PeerKafka, find_jars


@pytest.fixture(scope="session")
def peer_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        find_jars()
    except KafkaUnavailableError as reason:
        pytest.skip(str(reason))
    kafka = PeerKafka(tmp_path_factory.mktemp("peer"), "ownclient")
    kafka.start()
    try:
        yield kafka.bootstrap
    finally:
        kafka.stop()


@pytest.fixture(params=["tidelog", pytest.param("kafka", marks=pytest.mark.java)])
def served(request: pytest.FixtureRequest) -> str:
    """The bootstrap address of tidelog, then of Apache Kafka."""
    name = "bootstrap" if request.param == "tidelog" else "peer_kafka"
    address: str = request.getfixturevalue(name)
    return address


@pytest.fixture
def served_topic(served: str, request: pytest.FixtureRequest) -> Callable[..., str]:
    """Returns served_topic(partitions=1), which creates a topic of the test's own."""
    count = 0

    def create(partitions: int = 1) -> str:
        nonlocal count
        count += 1
        name = f"{Path(request.node.name).stem[:60].replace('[', '-').replace(']', '')}-{count}"
        create_topic(served, name, partitions)
        return name

    return create
