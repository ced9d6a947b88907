"""Apache Kafka's own tools, if they are available."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from brokerlab.kafka_jars import JavaTools, KafkaUnavailableError, find_jars


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> JavaTools:
    try:
        jars: Path = find_jars()
    except (KafkaUnavailableError, subprocess.TimeoutExpired) as reason:
        pytest.skip(str(reason))
    return JavaTools(jars, tmp_path_factory.mktemp("java"))
