"""One Spark session and one broker for all of these tests in a pytest worker: each takes seconds to start."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import create_topic
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.jars import session_jars
from tidelog.pipeline.java import check_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEEDED = ("pyspark", "pyarrow", "pandas", "fastavro")
# Py4J waits for Java's calls (foreachBatch) by select(), which takes no descriptor above 1023. Where other
# tests of the same worker left more than that open, these are low ones, set aside in time.
_LOW_DESCRIPTORS = [os.open(os.devnull, os.O_RDONLY) for _ in range(8)]
# Most of what a Spark test costs is Java's compiler at work on code that runs a few times: the quick one
# alone, and one thread that collects garbage, take 40 % off. Drivers and servers that tests start inherit it.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]


class _SkippedModule(pytest.Module):
    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        pytest.skip(f"{', '.join(MISSING)} not installed: make pipeline-setup", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return _SkippedModule.from_parent(parent, path=module_path) if MISSING else None


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """local[2], small; skips without Java. Tests leave no streaming query running."""
    try:
        check_java()
        session_jars()
    except PipelineError as error:
        pytest.skip(str(error))
    from pyspark.java_gateway import ensure_callback_server_started
    from tidelog.pipeline.session import spark_session

    directory = tempfile.mkdtemp(prefix="tidelog-spark-")
    # Python workers import what the tests import.
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
    """`new_topic(partitions=1, **configs)`: a name nobody else uses."""

    def make(partitions: int = 1, **configs: str) -> str:
        name = f"pipeline-{uuid.uuid4().hex[:12]}"
        create_topic(broker.bootstrap, name, partitions, configs)
        return name

    return make
