"""One Spark session and one broker for all of these tests in a pytest worker, because each takes seconds to
start.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import create_topic
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.session import check_java, session_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Py4J waits for Java's calls (foreachBatch) with select(), which accepts no descriptor above 1023. Other
# tests of the same worker may leave more descriptors open, so low ones are reserved in time.
_LOW_DESCRIPTORS = [os.open(os.devnull, os.O_RDONLY) for _ in range(8)]
# Most of the cost of a Spark test is Java's compiler, which compiles code that runs only a few times. The
# quick compiler alone, and a single thread for garbage collection, save 40 %. Drivers and servers that tests
# start inherit the setting.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A small session with local[2]. It skips the test without Java. A test must leave no streaming query
    running.
    """
    try:
        check_java()
        session_jars()
    except PipelineError as error:
        pytest.skip(str(error))
    from pyspark.java_gateway import ensure_callback_server_started

    from tidelog.pipeline.session import spark_session

    directory = tempfile.mkdtemp(prefix="tidelog-spark-")
    # Python workers import the modules that the tests import.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.sql.warehouse.dir": f"{directory}/warehouse",
        "spark.local.dir": f"{directory}/local",
    }
    session = spark_session("tidelog tests", master="local[2]", settings=settings)
    while _LOW_DESCRIPTORS:
        os.close(_LOW_DESCRIPTORS.pop())
    ensure_callback_server_started(session.sparkContext._gateway)
    yield session
    session.stop()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("pipeline-broker")
    process = BrokerProcess(directory / "data", directory / "broker.log").start()
    yield process
    process.stop()
    shutil.rmtree(directory / "data", ignore_errors=True)


@pytest.fixture
def new_topic(broker: BrokerProcess) -> Callable[..., str]:
    """`new_topic(partitions=1, **configs)` creates a topic with an unused name."""

    def make(partitions: int = 1, **configs: str) -> str:
        name = f"pipeline-{uuid.uuid4().hex[:12]}"
        create_topic(broker.bootstrap, name, partitions, configs)
        return name

    return make
