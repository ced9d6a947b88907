"""Fixtures of the tests that run Kafka's ecosystem against tidelog and against Apache Kafka."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerlab.kafka_jars import KafkaUnavailableError, find_ecosystem_jars, find_jars
from clusterlab.java_systems import KAFKA, SYSTEMS, running


@pytest.fixture(scope="session")
def jars() -> Path:
    try:
        return find_ecosystem_jars()
    except (KafkaUnavailableError, subprocess.TimeoutExpired) as reason:
        pytest.skip(str(reason))


@pytest.fixture(params=SYSTEMS)
def system(request: pytest.FixtureRequest) -> str:
    """Returns the name of the system under test. Apache Kafka needs its own jars."""
    name: str = request.param
    if name == KAFKA:
        try:
            find_jars()
        except (KafkaUnavailableError, subprocess.TimeoutExpired) as reason:
            pytest.skip(str(reason))
    return name


@pytest.fixture
def server(system: str, tmp_path: Path) -> Iterator[str]:
    """Returns the address of the system under test."""
    with running(system, tmp_path / system) as address:
        yield address
