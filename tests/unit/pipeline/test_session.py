"""The session's master, and the messages when a session cannot start."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from brokerlab.broker_process import BrokerProcess, free_port
from tidelog.cli.main import main
from tidelog.pipeline import session
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.session import (
    JARS_VARIABLE,
    PROVIDED,
    JavaMissingError,
    check_java,
    session_jars,
    spark_session,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("no_java")
def test_a_missing_java_is_one_clear_sentence() -> None:
    with pytest.raises(
        JavaMissingError, match="Spark needs Java 17 or newer, and there is none: install one"
    ):
        check_java()


def test_an_old_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setattr(session, "java_command", lambda: str(old))
    with pytest.raises(JavaMissingError, match=f"{old} is Java 8"):
        check_java()


def test_existing_jars_are_not_downloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(JARS_VARIABLE, PROVIDED)
    assert session_jars() == []
    (tmp_path / "a.jar").touch()
    monkeypatch.setenv(JARS_VARIABLE, str(tmp_path))
    assert session_jars() == [tmp_path / "a.jar"]
    monkeypatch.setenv(JARS_VARIABLE, str(tmp_path / "no"))
    result = CliRunner().invoke(main, ["pipeline", "jars"])
    assert result.exit_code == 1
    assert f"{JARS_VARIABLE} names {tmp_path / 'no'}, which is not a directory" in result.output


def test_without_the_extra_the_command_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(PipelineError, match=r"pip install .* 'pyspark\[connect\]=="):
        spark_session("nothing")


@pytest.mark.parametrize(
    "remote", ["127.0.0.1:15002", "http://host:1", "sc://", "sc://host:port", "sc://[::1"]
)
def test_an_invalid_server_address_is_reported(monkeypatch: pytest.MonkeyPatch, remote: str) -> None:
    monkeypatch.setenv("SPARK_REMOTE", remote)
    with pytest.raises(PipelineError, match=r"not an address of a Spark Connect server"):
        spark_session("nothing")


def test_a_missing_server_is_reported_at_once() -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(PipelineError, match=f"no Spark Connect server answers at {address} .*connect-server"):
        spark_session("nothing", remote=f"sc://{address}/;user_id=me")


@pytest.mark.spark
@pytest.mark.integration
def test_topics_and_delta_tables_are_read_and_written(
    spark: SparkSession, broker: BrokerProcess, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(partitions=2)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(20):
        producer.produce(topic, b"%d" % number, partition=number % 2)
    producer.flush(10)
    records = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("subscribe", topic)
        .load()
    )
    table = str(tmp_path / "table")
    records.write.format("delta").save(table)
    values = {int(row.value) for row in spark.read.format("delta").load(table).collect()}
    assert values == set(range(20))
