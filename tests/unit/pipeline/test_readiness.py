"""Checks of brokers, topics and tables before Spark starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tidelog.cli.main import main
from tidelog.pipeline import session
from tidelog.pipeline.session import QUIET_LOG, embedded_settings
from tidelog.testing import Cluster

CLOSED = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object, **__: object) -> None:
        pytest.fail("Spark was started")

    monkeypatch.setattr(session, "spark_session", start)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["pipeline", *map(str, arguments)])


@pytest.fixture
def table(tmp_path: Path) -> Path:
    log = tmp_path / "flights" / "_delta_log"
    log.mkdir(parents=True)
    (log / "00000000000000000000.json").write_text("{}")
    return log.parent


def test_verify_needs_a_table(tmp_path: Path) -> None:
    result = run("verify", tmp_path / "none", "--bootstrap-server", CLOSED)
    assert result.exit_code == 1
    assert f"{tmp_path / 'none'} holds no table of an archive" in result.output


def test_verify_needs_brokers(table: Path) -> None:
    result = run("verify", table, "--bootstrap-server", CLOSED)
    assert result.exit_code == 1
    assert "connection refused; start the brokers that hold the log" in result.output


def test_an_archive_needs_brokers_and_topics(tmp_path: Path) -> None:
    options = ("--topic", "flights", "--table", tmp_path / "flights")
    result = run("archive", *options, "-b", CLOSED)
    assert result.exit_code == 1
    assert "connection refused; start the brokers that hold the log" in result.output
    with Cluster() as cluster:
        result = run("archive", *options, "-b", cluster.bootstrap)
        assert result.exit_code == 1
        assert (
            f"the brokers at {cluster.bootstrap} have no topic flights; 'tidelog topic list'" in result.output
        )


def test_the_log_of_sparks_start_is_quiet() -> None:
    assert "rootLogger.level = off" in QUIET_LOG.read_text()
    assert str(QUIET_LOG) in embedded_settings()["spark.driver.extraJavaOptions"]
