"""Jobs through Spark Connect: what they do embedded they do there, and a checkpoint changes hands."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import fastavro
import pytest
from brokerlab.broker_process import BrokerProcess, free_port
from brokerlab.clients import produce_values
from pyspark.sql import SparkSession
from tidelog.pipeline.archive.job import run_archive
from tidelog.pipeline.archive.spec import ArchiveSpec
from tidelog.pipeline.formats.load import load_value_format
from tidelog.pipeline.java import JavaMissingError, check_java
from tidelog.pipeline.segments.storage import Storage
from tidelog.pipeline.segments.visible import visible_logs
from tidelog.pipeline.tables import ledger_of, read_table

pytestmark = [pytest.mark.integration, pytest.mark.spark]
STARTS_S: Final = 180.0
STOPS_S: Final = 30.0
CHECKPOINT_TIMEOUT_S: Final = 60.0
COMMANDS: Final = Path(__file__).with_name("connect_commands.py")
AVRO: Final = {"type": "record", "name": "Seen", "fields": [{"name": "number", "type": "long"}]}
SMALL: Final = (
    "spark.sql.shuffle.partitions=1",
    "spark.databricks.delta.snapshotPartitions=1",
    # A server that lives for seconds: compiling more than once costs more than it saves.
    "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
)


class Commands:
    """Of a process that has SPARK_REMOTE."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def outcome(self, *arguments: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(['pipeline', *arguments])}\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def run(self, *arguments: str) -> Any:
        outcome = self.outcome(*arguments, "--json")
        assert outcome["exit"] == 0, outcome
        return json.loads(outcome["said"])


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """Commands at a server of `tidelog pipeline connect-server`."""
    try:
        check_java()
    except JavaMissingError as error:
        pytest.skip(str(error))
    directory = tmp_path_factory.mktemp("connect")
    port = free_port()
    options = ["--port", str(port), "--master", "local[2]", "--memory", "1g"]
    for setting in (*SMALL, f"spark.local.dir={directory}/local"):
        options += ["--set", setting]
    with (directory / "server.log").open("w") as log:
        serves = [sys.executable, "-m", "tidelog.cli.main", "pipeline", "connect-server", *options]
        server = subprocess.Popen(serves, cwd=directory, stdout=log, stderr=subprocess.STDOUT)
    commands = subprocess.Popen(
        [sys.executable, str(COMMANDS)],
        env={**os.environ, "SPARK_REMOTE": f"sc://127.0.0.1:{port}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        _await_port(server, port, directory / "server.log")
        yield Commands(commands)
    finally:
        for process in (commands, server):
            process.send_signal(signal.SIGTERM)
            try:
                process.communicate(timeout=STOPS_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate(timeout=STOPS_S)


def _await_port(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline_s = time.monotonic() + STARTS_S
    while time.monotonic() < deadline_s and server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"no Spark Connect server:\n{log.read_text()[-3000:]}")


@pytest.fixture
def filed_topic(broker: BrokerProcess, new_topic: Callable[..., str]) -> str:
    """Numbers as Avro."""
    topic = new_topic(2)
    values = []
    for number in range(40):
        value = io.BytesIO()
        fastavro.schemaless_writer(value, AVRO, {"number": number})
        values.append(value.getvalue())
    produce_values(broker.bootstrap, topic, values)
    return topic


@pytest.fixture
def copy(broker: BrokerProcess, filed_topic: str, tmp_path: Path) -> Path:
    """Of that topic's files, as they were before more came."""
    _await_checkpoint(broker.data_dir, filed_topic, 40)
    directory = tmp_path / "copy"
    for partition in range(2):
        name = f"{filed_topic}-{partition}"
        shutil.copytree(broker.data_dir / name, directory / name)
    shutil.copy(broker.data_dir / "replication-offset-checkpoint", directory)
    return directory


def json_values(numbers: range, **more: Any) -> list[bytes]:
    return [json.dumps({"number": number, **more}).encode() for number in numbers]


def test_json_goes_on_embedded_and_back(
    remote: Commands,
    spark: SparkSession,
    broker: BrokerProcess,
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    topic = new_topic(2)
    bad, table, checkpoint = f"{topic}-bad", str(tmp_path / "table"), str(tmp_path / "checkpoint")
    options = ["archive", "--bootstrap-server", broker.bootstrap, "--topic", topic, "--table", table]
    options += ["--name", topic, "--checkpoint", checkpoint, "--values", "json", "--quarantine", bad]

    produce_values(broker.bootstrap, topic, [*json_values(range(98)), b"{", b'{"number": "one"}'])
    first = remote.run(*options)
    assert (first["rows"], first["quarantined"], first["batches"]) == (98, 2, 1)

    produce_values(broker.bootstrap, topic, json_values(range(98, 130)))
    spec = ArchiveSpec(
        topic,
        broker.bootstrap,
        table,
        checkpoint,
        topics=(topic,),
        value_format=load_value_format("json"),
        quarantine_topic=bad,
    )
    assert run_archive(spark, spec).rows == 32

    produce_values(broker.bootstrap, topic, json_values(range(130, 150), gate="A1"))
    assert remote.run(*options)["rows"] == 20

    verdict = remote.run("verify", table, "--bootstrap-server", broker.bootstrap, "--quarantine", bad)
    assert (verdict["rows"], verdict["lost"], verdict["duplicated"], verdict["problems"]) == (150, 0, 0, [])
    rows = read_table(spark, table).select("number", "gate").collect()
    assert sorted(map(tuple, rows)) == [(number, "A1" if number >= 130 else None) for number in range(150)]
    assert [entry.batch_id for entry in ledger_of(spark, table)] == [0, 1, 2]


def test_files_then_live_into_parquet(
    remote: Commands, filed_topic: str, copy: Path, broker: BrokerProcess, tmp_path: Path
) -> None:
    schema, table = tmp_path / "seen.avsc", str(tmp_path / "table")
    schema.write_text(json.dumps(AVRO))
    produce_values(broker.bootstrap, filed_topic, [b"\x02"] * 5)
    options = ["archive", "--bootstrap-server", broker.bootstrap, "--topic", filed_topic, "--table", table]
    options += ["--table-format", "parquet", "--values", "avro", "--schema", str(schema)]
    done = remote.run(*options, "--from-segments", str(copy), "--max-offsets", "30")
    assert (done["rows"], done["batches"]) == (45, 3)
    assert (tmp_path / "table.checkpoint/segments/commits/1").exists()
    assert not (tmp_path / "table.checkpoint/commits/1").exists()

    _await_checkpoint(broker.data_dir, filed_topic, 45)
    verdict = remote.run("verify", table, "--segments", str(broker.data_dir))
    assert (verdict["rows"], verdict["lost"], verdict["duplicated"], verdict["problems"]) == (45, 0, 0, [])


def _await_checkpoint(directory: Path, topic: str, count: int) -> None:
    """The broker writes it every five seconds."""
    deadline_s = time.monotonic() + CHECKPOINT_TIMEOUT_S
    while (
        sum(
            log.end_offset
            for log in visible_logs(Storage(), [str(directory)], [topic], unknown_is_empty=True)
        )
        < count
    ):
        assert time.monotonic() < deadline_s
        time.sleep(0.2)
