"""An archive through Spark Connect: its own batches, the same table, a checkpoint that changes hands."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import produce_values
from pyspark.sql import SparkSession
from tidelog.pipeline.archive.job import run_archive
from tidelog.pipeline.archive.spec import ArchiveSpec
from tidelog.pipeline.java import JavaMissingError, check_java
from tidelog.pipeline.tables import ledger_of, read_table

STARTS_S: Final = 180.0
RUN_TIMEOUT_S: Final = 300.0
STOPS_S: Final = 30.0
TIDELOG: Final = (sys.executable, "-m", "tidelog.cli.main", "pipeline")


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of `tidelog pipeline connect-server`."""
    try:
        check_java()
    except JavaMissingError as error:
        pytest.skip(str(error))
    directory = tmp_path_factory.mktemp("connect")
    port = free_port()
    options = ["--port", str(port), "--master", "local[2]", "--memory", "1g"]
    options += ["--set", "spark.sql.shuffle.partitions=2", "--set", f"spark.local.dir={directory}/local"]
    with (directory / "server.log").open("w") as log:
        server = subprocess.Popen(
            [*TIDELOG, "connect-server", *options], cwd=directory, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        _await_port(server, port, directory / "server.log")
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(STOPS_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait(STOPS_S)


def _await_port(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline_s = time.monotonic() + STARTS_S
    while time.monotonic() < deadline_s and server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"no Spark Connect server:\n{log.read_text()[-3000:]}")


def run(remote: str, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [*TIDELOG, *arguments, "--json"],
        env={**os.environ, "SPARK_REMOTE": remote},
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def test_an_archive_through_connect_goes_on_embedded_and_back(
    remote: str, spark: SparkSession, broker: BrokerProcess, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(2)
    table, checkpoint = str(tmp_path / "table"), str(tmp_path / "checkpoint")
    options = ["archive", "--bootstrap-server", broker.bootstrap, "--topic", topic, "--table", table]
    options += ["--name", topic, "--checkpoint", checkpoint, "--max-offsets", "60"]

    produce_values(broker.bootstrap, topic, [b"%d" % number for number in range(100)])
    first = run(remote, *options)
    assert (first["rows"], first["batches"]) == (100, 2)

    produce_values(broker.bootstrap, topic, [b"%d" % number for number in range(100, 130)])
    spec = ArchiveSpec(topic, broker.bootstrap, table, checkpoint, topics=(topic,))
    assert run_archive(spark, spec).rows == 30

    produce_values(broker.bootstrap, topic, [b"%d" % number for number in range(130, 150)])
    assert run(remote, *options)["rows"] == 20

    verdict = run(remote, "verify", table, "--bootstrap-server", broker.bootstrap)
    assert (verdict["rows"], verdict["lost"], verdict["duplicated"], verdict["problems"]) == (150, 0, 0, [])

    values = [int(bytes(row[0])) for row in read_table(spark, table).select("kafka_value").collect()]
    assert sorted(values) == list(range(150))
    assert [entry.batch_id for entry in ledger_of(spark, table)] == [0, 1, 2, 3]
