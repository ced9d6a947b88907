"""The session's master, the JARs, which are used only if each of them is the expected one, and the messages
when a session cannot start.
"""

from __future__ import annotations

import hashlib
import re
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
    DELTA_VERSION,
    JAR_SHA256,
    JARS_VARIABLE,
    PROVIDED,
    SCALA_VERSION,
    SPARK_VERSION,
    JavaMissingError,
    check_hashes,
    check_java,
    session_jars,
    spark_session,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXPECTED = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("a.jar", "b.jar")}


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


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    for name in EXPECTED:
        (tmp_path / name).write_text(name)
    return tmp_path


def test_the_expected_jars_are_accepted(jars: Path) -> None:
    check_hashes(jars, EXPECTED)


def test_a_changed_jar_is_refused(jars: Path) -> None:
    (jars / "b.jar").write_text("changed")
    with pytest.raises(PipelineError, match=r"the JAR b\.jar has the SHA-256"):
        check_hashes(jars, EXPECTED)


def test_a_missing_and_a_further_jar_are_refused(jars: Path) -> None:
    (jars / "c.jar").write_text("more")
    with pytest.raises(PipelineError, match=r"c\.jar was fetched, but is not expected"):
        check_hashes(jars, EXPECTED)
    (jars / "c.jar").unlink()
    (jars / "a.jar").unlink()
    with pytest.raises(PipelineError, match=r"a\.jar is expected, but was not fetched"):
        check_hashes(jars, EXPECTED)


def test_the_table_belongs_to_the_versions() -> None:
    assert f"spark-sql-kafka-0-10_{SCALA_VERSION}-{SPARK_VERSION}.jar" in JAR_SHA256
    assert f"delta-spark_{SCALA_VERSION}-{DELTA_VERSION}.jar" in JAR_SHA256
    assert all(re.fullmatch(r"[0-9a-f]{64}", value) for value in JAR_SHA256.values())
