"""Spark Connect reads segment files, then the live topic, into Delta, while the checkpoint changes hands."""

from __future__ import annotations

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

import pytest
from pyspark.sql import SparkSession

from brokerlab.broker_process import BrokerProcess, free_port
from brokerlab.clients import produce_values
from tidelog.pipeline.archive.job import run_archive
from tidelog.pipeline.archive.spec import ArchiveSpec
from tidelog.pipeline.formats.value_format import load_value_format
from tidelog.pipeline.segments.storage import Storage
from tidelog.pipeline.segments.visible import visible_logs
from tidelog.pipeline.session import JavaMissingError, check_java
from tidelog.pipeline.tables.archive_table import ledger_of, read_table

pytestmark = [pytest.mark.integration, pytest.mark.spark]
STARTS_S: Final = 180.0
STOPS_S: Final = 30.0
CHECKPOINT_TIMEOUT_S: Final = 60.0
COMMANDS: Final = Path(__file__).with_name("connect_commands.py")
SMALL: Final = (
    "spark.sql.shuffle.partitions=1",
    "spark.databricks.delta.snapshotPartitions=1",
    # The server lives for seconds, so compiling more than once costs more than it saves.
    "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
)


class Commands:
    """Commands in a process that has SPARK_REMOTE."""

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
    """Commands that use the server of `tidelog pipeline connect-server`."""
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


def json_values(numbers: range, **more: Any) -> list[bytes]:
    return [json.dumps({"number": number, **more}).encode() for number in numbers]


def test_files_then_live_then_embedded(
    remote: Commands,
    spark: SparkSession,
    broker: BrokerProcess,
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    topic = new_topic(2)
    bad, table, checkpoint = f"{topic}-bad", str(tmp_path / "table"), str(tmp_path / "checkpoint")
    options = ["archive", "--bootstrap-server", broker.bootstrap, "--topic", topic, "--name", topic]
    options += ["--table", table, "--checkpoint", checkpoint, "--values", "json", "--quarantine", bad]

    produce_values(broker.bootstrap, topic, [*json_values(range(98)), b"{", b'{"number": "one"}'])
    files = _copy(broker.data_dir, topic, 100, tmp_path / "files")
    produce_values(broker.bootstrap, topic, json_values(range(98, 130), gate="A1"))
    first = remote.run(*options, "--from-segments", str(files))
    assert (first["rows"], first["quarantined"], first["batches"]) == (130, 2, 2)

    produce_values(broker.bootstrap, topic, json_values(range(130, 150)))
    spec = ArchiveSpec(
        topic,
        broker.bootstrap,
        table,
        checkpoint,
        topics=(topic,),
        value_format=load_value_format("json"),
        quarantine_topic=bad,
    )
    assert run_archive(spark, spec).rows == 20

    _await_checkpoint(broker.data_dir, topic, 152)
    verdict = remote.run("verify", table, "--segments", str(broker.data_dir))
    assert (verdict["rows"], verdict["lost"], verdict["duplicated"], verdict["problems"]) == (150, 0, 0, [])
    rows = read_table(spark, table).select("number", "gate").collect()
    wanted = [(number, "A1" if 98 <= number < 130 else None) for number in range(150)]
    assert sorted(map(tuple, rows)) == wanted
    assert [entry.batch_id for entry in ledger_of(spark, table)] == [0, 1, 2]


def _copy(data_dir: Path, topic: str, count: int, directory: Path) -> Path:
    """Copies the topic's files when they contain that many records."""
    _await_checkpoint(data_dir, topic, count)
    for partition in range(2):
        shutil.copytree(data_dir / f"{topic}-{partition}", directory / f"{topic}-{partition}")
    shutil.copy(data_dir / "replication-offset-checkpoint", directory)
    return directory


def _await_checkpoint(directory: Path, topic: str, count: int) -> None:
    """Waits for the checkpoint, which the broker writes every five seconds."""
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
