"""Brokers for the integration tests.

`bootstrap` is a broker that the tests of a session share (one for each pytest-xdist worker).
TIDELOG_TEST_BOOTSTRAP=HOST:PORT names a running broker instead, so that the tests can be verified against
Apache Kafka. `start_broker` starts a broker for one test.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import create_topic
from brokerlab.kafka_jars import JavaTools, KafkaUnavailableError, find_jars
from brokerlab.raw_client import RawClient

EXTERNAL_BOOTSTRAP = "TIDELOG_TEST_BOOTSTRAP"
_running: list[BrokerProcess] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the logs of the running brokers to the report of a failed test."""
    report = yield
    if report.failed:
        for broker in _running:
            report.sections.append((f"log of the broker on {broker.bootstrap}", broker.log_tail()))
    return report


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess | None]:
    """Returns the session's broker, None if an external one is used."""
    if os.environ.get(EXTERNAL_BOOTSTRAP):
        yield None
        return
    directory = tmp_path_factory.mktemp("shared-broker")
    # Some tests send records with timestamps of past years. Retention would delete them while a test reads.
    broker = BrokerProcess(directory / "data", directory / "broker.log", {"log.retention.ms": "-1"})
    _running.append(broker)
    try:
        yield broker.start()
        broker.stop()
    finally:
        broker.kill()
        _running.remove(broker)
        shutil.rmtree(directory / "data", ignore_errors=True)


@pytest.fixture(scope="session")
def bootstrap(shared_broker: BrokerProcess | None) -> str:
    return shared_broker.bootstrap if shared_broker else os.environ[EXTERNAL_BOOTSTRAP]


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Returns start_broker(settings={...}, start=True, data_dir=..., port=...), which starts a broker."""
    if os.environ.get(EXTERNAL_BOOTSTRAP):
        pytest.skip(f"the test starts its own brokers, but {EXTERNAL_BOOTSTRAP} names a running one")
    own: list[BrokerProcess] = []
    numbers = itertools.count(1)

    def start_one(
        settings: dict[str, str] | None = None,
        *,
        data_dir: Path | None = None,
        port: int | None = None,
        file_size_limit_bytes: int | None = None,
        start: bool = True,
    ) -> BrokerProcess:
        number = next(numbers)
        broker = BrokerProcess(
            data_dir or tmp_path / f"data{number}",
            tmp_path / f"broker{number}.log",
            settings,
            port,
            file_size_limit_bytes,
        )
        own.append(broker)
        _running.append(broker)
        return broker.start() if start else broker

    try:
        yield start_one
    finally:
        for broker in own:
            broker.kill()
            _running.remove(broker)


@pytest.fixture
def own_broker(start_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    return start_broker()


def await_leaders(bootstrap: str, topic: str, partitions: int) -> None:
    """Waits until the leaders serve: Apache Kafka may name a broker as leader before it acts as one."""
    asked = [{"partition_index": p, "timestamp": -1} for p in range(partitions)]
    with RawClient(bootstrap) as client:
        while True:
            answer = client.call(
                "list_offsets",
                5,
                replica_id=-1,
                isolation_level=0,
                topics=[{"name": topic, "partitions": asked}],
            )
            if not any(p.error_code for p in answer.topics[0].partitions):
                return
            time.sleep(0.02)


@pytest.fixture
def new_topic(bootstrap: str, shared_broker: BrokerProcess | None) -> Callable[..., str]:
    """Returns new_topic(partitions=1, **configs), which creates a topic; `_` in a config's name means `.`."""

    def create(partitions: int = 1, **configs: object) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        create_topic(bootstrap, name, partitions, {k.replace("_", "."): str(v) for k, v in configs.items()})
        if shared_broker is None:
            await_leaders(bootstrap, name, partitions)
        return name

    return create


@pytest.fixture
def topic(new_topic: Callable[..., str]) -> str:
    return new_topic()


@pytest.fixture
def raw(bootstrap: str) -> Iterator[RawClient]:
    with RawClient(bootstrap) as client:
        yield client


@pytest.fixture(scope="session")
def kafka_jars() -> Path:
    try:
        return find_jars()
    except (KafkaUnavailableError, subprocess.TimeoutExpired) as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def java(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> JavaTools:
    return JavaTools(kafka_jars, tmp_path_factory.mktemp("java"))


@pytest.fixture(scope="session")
def kcat() -> str:
    found = shutil.which("kcat") or shutil.which("kafkacat")
    if found is None:
        pytest.skip("kcat is not installed")
    return found
